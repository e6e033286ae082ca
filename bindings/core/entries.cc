#include "entries.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "tensor.h"

namespace kiln_python {

enum class Kind : uint8_t { kTensor, kInteger, kReal, kScale, kFlag, kAddress, kKeys, kText };

// A field of a parameter structure: its name, what it takes, where it lies, and where the count of its keys does.
// `scale` is sm_scale for those who leave it out by None.
struct Field {
  const char* name;
  Kind kind;
  uint16_t offset, count;
};

}  // namespace kiln_python

// A type for each operation, with its Params, kDefaults and kFields, and the list of them.
#include "arguments.h"

namespace kiln_python {
namespace {

// The C entries take structures of their own; these have one signature.
template <typename Params, kiln_status (*kFunction)(kiln_t, const kiln_queue*, const Params*)>
kiln_status plain(kiln_t kiln, const kiln_queue* queue, const void* params) {
  return kFunction(kiln, queue, static_cast<const Params*>(params));
}
template <typename Params, kiln_status (*kFunction)(kiln_t, const kiln_queue*, const Params*, uint64_t*)>
kiln_status sized(kiln_t kiln, const kiln_queue* queue, const void* params, uint64_t* bytes) {
  return kFunction(kiln, queue, static_cast<const Params*>(params), bytes);
}
template <typename Params, kiln_status (*kFunction)(kiln_t, const kiln_queue*, const Params*, kiln_variant_fn, void*)>
kiln_status visited(kiln_t kiln, const kiln_queue* queue, const void* params, kiln_variant_fn visit, void* user) {
  return kFunction(kiln, queue, static_cast<const Params*>(params), visit, user);
}

struct Row {
  Entry entry;
  const Field* fields;
  size_t count;
  const void* defaults;
  size_t size;
};

constexpr size_t count_tensors(const Field* fields, size_t count) {
  size_t tensors = 0;
  for (size_t i = 0; i < count; ++i) tensors += fields[i].kind == Kind::kTensor;
  return tensors;
}

template <typename Operation>
constexpr Row row(Entry entry) {
  constexpr size_t kCount = sizeof Operation::kFields / sizeof(Field);
  static_assert(sizeof(typename Operation::Params) <= Parameters::kCapacity, "room for the parameter structure");
  static_assert(count_tensors(Operation::kFields, kCount) <= Parameters::kTensors, "room for each of its tensors");
  static_assert(kCount <= Parameters::kFields, "a bit for each of its fields");
  return {entry, Operation::kFields, kCount, &Operation::kDefaults, sizeof(typename Operation::Params)};
}

#define LAUNCHED(Type, name) row<Type>({#name, plain<Type::Params, kiln_##name>, nullptr, nullptr, nullptr}),
#define FULL(Type, name)                                                                            \
  row<Type>({#name, plain<Type::Params, kiln_##name>, sized<Type::Params, kiln_##name##_workspace>, \
             plain<Type::Params, kiln_##name##_prepare>, visited<Type::Params, kiln_##name##_explain>}),

const Row kRows[] = {KILN_OPERATIONS(FULL, LAUNCHED)};

bool flag_of(nb::handle value, const char* name) {
  if (PyBool_Check(value.ptr())) return value.ptr() == Py_True;
  if (PyIndex_Check(value.ptr())) return integer_of(value, name) != 0;
  refuse(std::string(name) + " must be True or False; " + shown(value) + " is neither");
}

float real_of(nb::handle value, const char* name) {
  double number = PyUnicode_Check(value.ptr()) ? -1 : PyFloat_AsDouble(value.ptr());
  if (PyUnicode_Check(value.ptr()) || PyErr_Occurred()) {
    PyErr_Clear();
    refuse(std::string(name) + " must be a number; " + shown(value) + " is not");
  }
  float result = static_cast<float>(number);
  // A number that would become 0 is refused too: 0 stands for the default, or for none.
  if ((isinf(result) && !isinf(number)) || (result == 0 && number != 0))
    refuse(std::string(name) + " is " + shown(value) + ", which fp32 cannot hold");
  return result;
}

float scale_of(nb::handle value, const char* name) {
  float result = real_of(value, name);
  if (result == 0) refuse(std::string(name) + " is 0; None is 1 / sqrt(head_dim)");
  return result;
}

}  // namespace

// An older libkiln.so.0 may give a shorter structure: whether it has a field that was added later, `size` says.
Variant copy(const kiln_variant& v) {
  return {v.key,
          v.target,
          v.operation,
          v.kernel,
          v.functional,
          v.configuration,
          v.specialization,
          v.unavailable ? v.unavailable : "",
          v.size > offsetof(kiln_variant, passed_over) && v.passed_over ? v.passed_over : "",
          v.unavailable == nullptr,
          v.has_ptx != 0,
          v.registers,
          v.shared_bytes,
          v.spill_bytes,
          v.threads};
}

const Entry& find_entry(const std::string& name) {
  for (const Row& row : kRows)
    if (name == row.entry.name) return row.entry;
  std::string there;
  for (const Row& row : kRows) there += std::string(there.empty() ? "" : ", ") + row.entry.name;
  raise(KILN_E_NOT_FOUND, "there is no operation " + name + "; there are " + there);
}

Parameters::Parameters(const Entry& entry, nb::dict fields) {
  const Row* row = kRows;
  while (&row->entry != &entry) ++row;
  memcpy(bytes_, row->defaults, row->size);
  uint64_t seen = 0;  // keys may differ for Python and read alike
  for (auto [key, borrowed] : fields) {
    nb::object value = nb::borrow<nb::object>(borrowed);  // what it runs may take it out of the dictionary
    std::string name = text_of(key, "a parameter's name");
    size_t i = 0;
    while (i < row->count && name != row->fields[i].name) ++i;
    if (i == row->count) refuse(std::string(entry.name) + " has no parameter " + name);
    if (seen >> i & 1) refuse(std::string(entry.name) + " has its parameter " + name + " twice");
    seen |= uint64_t{1} << i;
    if (!value.is_none()) set(row->fields[i], value);
  }
}

void Parameters::set(const Field& field, nb::handle value) {
  switch (field.kind) {
    case Kind::kTensor:
      tensors_[tensor_count_] = view_of(value, field.name);
      at<const kiln_tensor*>(field.offset) = &tensors_[tensor_count_++];
      return;
    case Kind::kInteger:
      at<int64_t>(field.offset) = integer_of(value, field.name);
      return;
    case Kind::kReal:
      at<float>(field.offset) = real_of(value, field.name);
      return;
    case Kind::kScale:
      at<float>(field.offset) = scale_of(value, field.name);
      return;
    case Kind::kFlag:
      at<int32_t>(field.offset) = flag_of(value, field.name);
      return;
    case Kind::kAddress:
      at<uint64_t>(field.offset) = address_of(value, field.name);
      return;
    case Kind::kKeys:
      return set_keys(field, value);
    case Kind::kText:
      target_ = text_of(value, field.name);
      at<const char*>(field.offset) = target_.c_str();
      return;
  }
}

void Parameters::set_keys(const Field& field, nb::handle value) {
  if (PyUnicode_Check(value.ptr()) || !PySequence_Check(value.ptr()))
    refuse("force_keys must be a sequence of keys, each 64 hexadecimal digits; " + shown(value) + " is not");
  Py_ssize_t count = PySequence_Size(value.ptr());
  constexpr Py_ssize_t kMost = 1024;
  if (count < 0) throw nb::python_error();
  if (count > kMost) refuse("force_keys has " + std::to_string(count) + " keys; a call has a few kernels");
  for (Py_ssize_t i = 0; i < count; ++i) {
    nb::object key = nb::steal<nb::object>(PySequence_GetItem(value.ptr(), i));
    if (!key.is_valid()) throw nb::python_error();
    keys_.push_back(text_of(key, "force_keys"));
  }
  for (const std::string& key : keys_) key_pointers_.push_back(key.c_str());
  at<const char* const*>(field.offset) = key_pointers_.data();
  at<int32_t>(field.count) = static_cast<int32_t>(key_pointers_.size());
}

}  // namespace kiln_python
