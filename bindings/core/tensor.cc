#include "tensor.h"

#include <stdlib.h>
#include <string.h>

#include <new>

#include "dtypes.h"

namespace kiln_python {
namespace {

struct Dtype {
  kiln_dtype number;
  const char* name;
  uint8_t code, bits;  // DLPack's
};
#define ROW(number, name, code, bits, torch) {number, name, code, bits},
constexpr Dtype kDtypes[] = {KILN_DTYPES(ROW)};
#undef ROW

const Dtype* find(kiln_dtype number) {
  for (const Dtype& row : kDtypes)
    if (row.number == number) return &row;
  return nullptr;
}

constexpr const char *kName = "dltensor", *kUsedName = "used_dltensor";
constexpr const char *kVersionedName = "dltensor_versioned", *kUsedVersionedName = "used_dltensor_versioned";

// What a capsule that we give away owns: the Tensor object, and shape and strides of its own.
template <typename Managed>
struct Lent {
  Managed managed;
  PyObject* owner;
  int64_t sizes[KILN_MAX_RANK], strides[KILN_MAX_RANK];
};

template <typename Managed>
void give_back(Managed* managed) {
  auto* lent = static_cast<Lent<Managed>*>(managed->context);
  if (Py_IsInitialized()) {  // its holder may outlive the interpreter
    PyGILState_STATE state = PyGILState_Ensure();
    Py_DECREF(lent->owner);
    PyGILState_Release(state);
  }
  free(lent);
}

// A capsule that was not taken.
template <typename Managed>
void forget(PyObject* capsule, const char* name) {
  if (!PyCapsule_IsValid(capsule, name)) return;
  auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule, name));
  managed->deleter(managed);
}
void forget_managed(PyObject* capsule) { forget<DlManaged>(capsule, kName); }
void forget_versioned(PyObject* capsule) { forget<DlVersioned>(capsule, kVersionedName); }

template <typename Managed>
Lent<Managed>* lend(const Tensor& tensor, nb::handle owner) {
  auto* lent = static_cast<Lent<Managed>*>(calloc(1, sizeof(Lent<Managed>)));
  if (!lent) throw std::bad_alloc();
  const kiln_tensor& view = tensor.view();
  const Dtype* dtype = find(view.dtype);
  memcpy(lent->sizes, view.sizes, sizeof lent->sizes);
  memcpy(lent->strides, view.strides, sizeof lent->strides);
  lent->managed.tensor = {view.data,   tensor.device(), view.rank, {dtype->code, dtype->bits, 1},
                          lent->sizes, lent->strides,   0};
  lent->managed.context = lent;
  lent->managed.deleter = give_back<Managed>;
  lent->owner = owner.inc_ref().ptr();
  return lent;
}

// Tensor.__dlpack__: the same memory again. The producer's stream is the business of those that have launched work on
// it, so `stream` is not read.
nb::object export_capsule(nb::handle self, nb::handle max_version) {
  const Tensor& tensor = nb::cast<const Tensor&>(self);
  bool versioned = PyTuple_Check(max_version.ptr()) && PyTuple_Size(max_version.ptr()) == 2 &&
                   integer_of(max_version[0], "max_version") >= kDlMajor;
  PyObject* capsule;
  if (versioned) {
    auto* lent = lend<DlVersioned>(tensor, self);
    lent->managed.major = kDlMajor;
    lent->managed.flags = tensor.read_only() ? kDlReadOnly : 0;
    capsule = PyCapsule_New(&lent->managed, kVersionedName, forget_versioned);
  } else {
    capsule = PyCapsule_New(&lend<DlManaged>(tensor, self)->managed, kName, forget_managed);
  }
  if (!capsule) throw nb::python_error();
  return nb::steal<nb::object>(capsule);
}

nb::tuple numbers(const int64_t* values, int32_t count) {
  nb::list list;
  for (int32_t i = 0; i < count; ++i) list.append(values[i]);
  return nb::tuple(list);
}

// A list of at most KILN_MAX_RANK whole numbers.
int32_t read_numbers(nb::handle from, const char* what, int64_t* to) {
  if (!PyTuple_Check(from.ptr()) && !PyList_Check(from.ptr()))
    refuse(std::string(what) + " must have its sizes and strides as tuples of integers; " + shown(from) + " is not");
  Py_ssize_t count = PySequence_Size(from.ptr());
  if (count > KILN_MAX_RANK)
    refuse(std::string(what) + " has " + std::to_string(count) + " dimensions; a tensor has at most 8");
  for (Py_ssize_t i = 0; i < count; ++i) {
    nb::object item = nb::steal<nb::object>(PySequence_GetItem(from.ptr(), i));
    if (!item.is_valid()) throw nb::python_error();
    to[i] = integer_of(item, what);
  }
  return static_cast<int32_t>(count);
}

kiln_dtype read_dtype(nb::handle from, const char* what) {
  if (PyUnicode_Check(from.ptr())) {
    std::string name = text_of(from, what);
    for (const Dtype& row : kDtypes)
      if (name == row.name) return row.number;
    refuse(std::string(what) + " has the dtype " + shown(from) + "; for example 'bf16'");
  }
  int64_t number = integer_of(from, what);
  if (number < INT32_MIN || number > INT32_MAX || !find(static_cast<kiln_dtype>(number)))
    refuse(std::string(what) + " has dtype " + shown(from) + ", which is not a kiln_dtype");
  return static_cast<kiln_dtype>(number);
}

}  // namespace

const char* dtype_name(kiln_dtype dtype) {
  const Dtype* row = find(dtype);
  return row ? row->name : nullptr;
}

Tensor::Tensor(nb::capsule capsule) {
  const char* name = PyCapsule_GetName(capsule.ptr());
  if (!name && PyErr_Occurred()) PyErr_Clear();
  if (name && strcmp(name, kVersionedName) == 0) {
    auto* versioned = static_cast<DlVersioned*>(PyCapsule_GetPointer(capsule.ptr(), name));
    if (versioned->major != kDlMajor)
      refuse("an array was given by DLPack " + std::to_string(versioned->major) + "; Kiln knows DLPack 0 and 1");
    describe(versioned->tensor);
    read_only_ = versioned->flags & kDlReadOnly;
    if (PyCapsule_SetName(capsule.ptr(), kUsedVersionedName)) throw nb::python_error();
    versioned_ = versioned;
  } else if (name && strcmp(name, kName) == 0) {
    auto* managed = static_cast<DlManaged*>(PyCapsule_GetPointer(capsule.ptr(), name));
    describe(managed->tensor);
    if (PyCapsule_SetName(capsule.ptr(), kUsedName)) throw nb::python_error();
    managed_ = managed;
  } else {
    refuse(std::string("a capsule of DLPack is named dltensor or dltensor_versioned; this one is named ") +
           (name ? name : "nothing") + "; it holds something else, or was used before");
  }
}

Tensor::~Tensor() {
  if (managed_ && managed_->deleter) managed_->deleter(managed_);
  if (versioned_ && versioned_->deleter) versioned_->deleter(versioned_);
}

void Tensor::describe(const DlTensor& from) {
  if (from.rank < 0 || from.rank > KILN_MAX_RANK)
    refuse("an array has " + std::to_string(from.rank) + " dimensions; a tensor has at most 8");
  for (const Dtype& row : kDtypes)
    if (row.code == from.dtype.code && row.bits == from.dtype.bits && from.dtype.lanes == 1) view_.dtype = row.number;
  if (!view_.dtype)
    refuse("an array has elements of DLPack's type code " + std::to_string(from.dtype.code) + " with " +
           std::to_string(from.dtype.bits) + " bits and " + std::to_string(from.dtype.lanes) +
           " lanes, for which Kiln has no dtype");
  // Not computed on a null pointer, which arrays without elements may have.
  view_.data = from.data ? static_cast<char*>(from.data) + from.byte_offset : nullptr;
  view_.rank = from.rank;
  device_ = from.device;
  int64_t step = 1;
  for (int32_t i = from.rank - 1; i >= 0; --i) {
    view_.sizes[i] = from.sizes[i];
    view_.strides[i] = from.strides ? from.strides[i] : step;
    if (__builtin_mul_overflow(step, from.sizes[i] > 0 ? from.sizes[i] : 1, &step)) step = INT64_MAX;
  }
}

int64_t integer_of(nb::handle value, const char* what) {
  if (PyIndex_Check(value.ptr())) {
    nb::object number = nb::steal<nb::object>(PyNumber_Index(value.ptr()));
    if (number.is_valid()) {
      int overflow = 0;
      long long result = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
      if (!overflow && !(result == -1 && PyErr_Occurred())) return result;
    }
    PyErr_Clear();
  }
  refuse(std::string(what) + " must be an integer of 64 bits; " + shown(value) + " is not");
}

uint64_t address_of(nb::handle value, const char* what) {
  int64_t number = integer_of(value, what);  // below 2^63 on every machine that has a device
  if (number < 0) refuse(std::string(what) + " must be at least 0; " + shown(value) + " is less");
  return static_cast<uint64_t>(number);
}

std::string text_of(nb::handle value, const char* what) {
  Py_ssize_t size = 0;
  const char* utf8 = PyUnicode_Check(value.ptr()) ? PyUnicode_AsUTF8AndSize(value.ptr(), &size) : nullptr;
  if (utf8 && strlen(utf8) == static_cast<size_t>(size)) return std::string(utf8, static_cast<size_t>(size));
  PyErr_Clear();
  refuse(std::string(what) + " must be text without zero bytes; " + shown(value) + " is not");
}

kiln_tensor view_of(nb::handle value, const char* what) {
  const Tensor* tensor = nullptr;
  if (nb::try_cast(value, tensor) && tensor) return tensor->view();
  if (!PyTuple_Check(value.ptr()) || PyTuple_Size(value.ptr()) != 4)
    refuse(std::string(what) + " must be a tensor: a kiln._core.Tensor, or (address, dtype, sizes, strides); " +
           shown(value) + " is neither");
  kiln_tensor view = {};
  uint64_t address = 0;
  nb::object first = nb::borrow(PyTuple_GetItem(value.ptr(), 0));
  if (PyIndex_Check(first.ptr())) {
    nb::object number = nb::steal<nb::object>(PyNumber_Index(first.ptr()));
    address = number.is_valid() ? PyLong_AsUnsignedLongLong(number.ptr()) : 0;
    if (PyErr_Occurred()) {
      PyErr_Clear();
      refuse(std::string(what) + " has the address " + shown(first) + ", which 64-bit machines do not have");
    }
  } else {
    refuse(std::string(what) + " has the address " + shown(first) + "; it must be an integer");
  }
  view.data = reinterpret_cast<void*>(address);
  view.dtype = read_dtype(PyTuple_GetItem(value.ptr(), 1), what);
  view.rank = read_numbers(PyTuple_GetItem(value.ptr(), 2), what, view.sizes);
  if (read_numbers(PyTuple_GetItem(value.ptr(), 3), what, view.strides) != view.rank)
    refuse(std::string(what) + " must have as many strides as sizes");
  return view;
}

void define_tensor(nb::module_& module) {
  nb::class_<Tensor>(module, "Tensor", "An array of another library, taken by DLPack; it lives as long as this does.")
      .def(nb::init<nb::capsule>(), nb::arg("capsule"), nb::sig("def __init__(self, capsule: object) -> None"),
           "Takes over a capsule that an array's __dlpack__() gave.")
      .def_prop_ro(
          "address", [](const Tensor& t) { return reinterpret_cast<uintptr_t>(t.view().data); },
          "Where the first element lies; an address of its device.")
      .def_prop_ro(
          "dtype", [](const Tensor& t) { return dtype_name(t.view().dtype); }, "'bf16', 'fp32', 'int64' ...")
      .def_prop_ro(
          "shape", [](const Tensor& t) { return numbers(t.view().sizes, t.view().rank); },
          nb::sig("def shape(self) -> tuple[int, ...]"), "In elements.")
      .def_prop_ro(
          "strides", [](const Tensor& t) { return numbers(t.view().strides, t.view().rank); },
          nb::sig("def strides(self) -> tuple[int, ...]"), "In elements.")
      .def_prop_ro(
          "read_only", [](const Tensor& t) { return t.read_only(); }, "Whether its library says so.")
      .def(
          "__dlpack_device__", [](const Tensor& t) { return nb::make_tuple(t.device().type, t.device().id); },
          nb::sig("def __dlpack_device__(self) -> tuple[int, int]"),
          "DLPack's number of the device's kind, and its own.")
      .def(
          "__dlpack__",
          [](nb::handle self, nb::handle, nb::handle max_version, nb::handle, nb::handle) {
            return export_capsule(self, max_version);
          },
          nb::kw_only(), nb::arg("stream") = nb::none(), nb::arg("max_version") = nb::none(),
          nb::arg("dl_device") = nb::none(), nb::arg("copy") = nb::none(),
          nb::sig("def __dlpack__(self, *, stream: object = None, max_version: object = None, "
                  "dl_device: object = None, copy: object = None) -> object"),
          "A capsule of the same memory. Order your work on it yourself: `stream` is ignored.");
}

}  // namespace kiln_python
