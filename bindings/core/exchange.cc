// A call of plain attention costs a few microseconds of the host, most of it the driver's. Through a framework's
// dispatcher it would cost that twice; here arrays are looked at where they lie, by the table of C functions that their
// type offers. It takes the calls that need nothing else, and leaves all others to whoever asked.
#include "exchange.h"

#include <vector>

#include "dlpack.h"
#include "kiln/flash.h"

namespace kiln_python {
namespace {

constexpr int kLeft = -1;                                                    // not a call for here
constexpr int kArrays = 4;                                                   // q, k, v, out
enum { kCausal = 1, kBottomRight = 2, kRowsFirst = 4, kEqualHeads = 1024 };  // as bindings/torch/call.h has them

// Null: the type offers none, or one of another version.
const DlExchange* exchange_of(nb::handle type) {
  nb::object capsule = nb::getattr(type, kDlExchangeAttribute, nb::none());
  if (!PyCapsule_IsValid(capsule.ptr(), kDlExchangeName)) return nullptr;
  auto* table = static_cast<const DlExchange*>(PyCapsule_GetPointer(capsule.ptr(), kDlExchangeName));
  return table->major == kDlMajor && table->view && table->current_stream ? table : nullptr;
}

kiln_dtype dtype_of(const DlDataType& dtype) {
  if (dtype.lanes != 1) return 0;
  if (dtype.code == kDlBfloat && dtype.bits == 16) return KILN_BF16;
  if (dtype.code == kDlFloat && dtype.bits == 16) return KILN_FP16;
  return dtype.code == kDlFloat && dtype.bits == 32 ? KILN_FP32 : 0;
}

// [batch, heads, rows, head_dim], the last dimension contiguous.
bool describe(const DlTensor& from, bool rows_first, kiln_tensor* to) {
  if (from.rank != 4 || !from.strides || from.strides[3] != 1 || !(to->dtype = dtype_of(from.dtype))) return false;
  to->data = static_cast<char*>(from.data) + from.byte_offset;
  to->rank = 4;
  for (int i = 0; i < 4; ++i) {
    int other = rows_first && (i == 1 || i == 2) ? 3 - i : i;
    to->sizes[i] = from.sizes[other];
    to->strides[i] = from.strides[other];
  }
  return true;
}

bool queue_of(const DlExchange& table, const DlDevice& device, kiln_queue* out) {
  if (device.type != kDlCuda && device.type != kDlRocm) return false;
  void* stream = nullptr;
  if (table.current_stream(device.type, device.id, &stream)) return false;
  kiln_queue queue = KILN_QUEUE_INIT(device.type == kDlRocm ? KILN_VENDOR_AMD : KILN_VENDOR_NVIDIA, stream);
  queue.device = device.id;
  *out = queue;
  return true;
}

// Looks at the arrays, all of the table's type; false, without a Python error, where it cannot be done here.
bool look(const DlExchange& table, const nb::handle (&arrays)[kArrays], bool rows_first, kiln_tensor* views,
          kiln_queue* queue) {
  DlTensor seen[kArrays];
  bool is_taken = true;
  for (int i = 0; i < kArrays && is_taken; ++i)
    is_taken = table.view(arrays[i].ptr(), &seen[i]) == 0 && seen[i].device.type == seen[0].device.type &&
               seen[i].device.id == seen[0].device.id && describe(seen[i], rows_first, &views[i]);
  is_taken = is_taken && queue_of(table, seen[0].device, queue);
  PyErr_Clear();
  return is_taken;
}

// A kiln_status, or kLeft.
int attend(const DlExchange& table, kiln_t runtime, const nb::handle (&arrays)[kArrays], double scale, int flags) {
  kiln_tensor views[kArrays] = {};
  kiln_queue queue;
  const float sm_scale = static_cast<float>(scale);
  if (sm_scale == 0 && scale != 0) return kLeft;  // it would be the default
  if (!look(table, arrays, flags & kRowsFirst, views, &queue)) return kLeft;
  if ((flags & kEqualHeads) && views[0].sizes[1] != views[1].sizes[1]) return kLeft;
  // An out that was made like q lies as it is promised only if q's batches are outermost, and nothing is repeated.
  const kiln_tensor& query = views[0];
  if (query.strides[0] < query.strides[1] || query.strides[0] < query.strides[2]) return kLeft;
  for (int i = 0; i < 3; ++i)
    if (query.sizes[i] > 1 && query.strides[i] <= 0) return kLeft;
  kiln_attn_fwd_params params = KILN_ATTN_FWD_PARAMS_INIT;
  params.q = &views[0], params.k = &views[1], params.v = &views[2], params.out = &views[3];
  params.sm_scale = sm_scale;
  params.causal = flags & kCausal;
  params.bottom_right = flags & kBottomRight;
  nb::gil_scoped_release released;
  return kiln_attn_fwd(runtime, &queue, &params);
}

// Throws nb::python_error.
bool is_true(const nb::object& value) {
  const int truth = PyObject_IsTrue(value.ptr());
  if (truth < 0) nb::raise_python_error();
  return truth;
}

// The shortest way for the arrays of one framework, and what tells whether a call may take it. With the GIL.
class Shortcut {
 public:
  Shortcut(nb::type_object type, nb::callable empty_like, nb::callable records, const nb::tuple& others,
           nb::handle forward_ad, nb::callable runtime)
      : type_(type),
        empty_like_(empty_like),
        records_(records),
        forward_ad_(nb::borrow(forward_ad)),
        runtime_(runtime),
        level_(interned("_current_level")),
        requires_grad_(interned("requires_grad")),
        table_(exchange_of(type)) {
    for (nb::handle other : others) others_.push_back(nb::borrow(other));
  }

  bool is_open = true;

  nb::object attend(nb::handle q, nb::handle k, nb::handle v, double scale, int flags) {
    if (!is_open || !table_ || !is_plain({q, k, v})) return nb::none();
    if (!known_) known_ = nb::cast<uintptr_t>(runtime_());
    nb::object out = made_like(q);
    if (!out.is_valid() || !is_ours(out)) return nb::none();
    const int status = kiln_python::attend(*table_, reinterpret_cast<kiln_t>(known_), {q, k, v, out}, scale, flags);
    if (status == KILN_OK) return out;
    if (status != kLeft) known_ = 0;  // the process may have forked
    return nb::none();
  }

 private:
  static nb::object interned(const char* name) { return nb::steal(PyUnicode_InternFromString(name)); }

  bool is_ours(nb::handle array) const { return reinterpret_cast<PyObject*>(Py_TYPE(array.ptr())) == type_.ptr(); }

  bool is_plain(const nb::handle (&inputs)[kArrays - 1]) const {
    for (nb::handle input : inputs)
      if (!is_ours(input)) return false;
    if (is_true(records_()))
      for (nb::handle input : inputs)
        if (is_true(attribute(input, requires_grad_))) return false;
    for (const nb::object& other : others_)
      if (is_true(other())) return false;
    return nb::cast<long>(attribute(forward_ad_, level_)) < 0;
  }

  static nb::object attribute(nb::handle of, const nb::object& name) {
    nb::object value = nb::steal(PyObject_GetAttr(of.ptr(), name.ptr()));
    if (!value.is_valid()) nb::raise_python_error();
    return value;
  }

  // Null where there is no memory, for which the framework's other ways have words.
  nb::object made_like(nb::handle q) const {
    try {
      return empty_like_(q);
    } catch (nb::python_error& error) {
      if (!error.matches(PyExc_Exception)) throw;
      return {};
    }
  }

  nb::object type_, empty_like_, records_, forward_ad_, runtime_, level_, requires_grad_;
  std::vector<nb::object> others_;
  const DlExchange* table_;  // its type's, which never goes
  uintptr_t known_ = 0;      // of runtime_; 0: not known, or no longer it
};

// Of attend_or(); `self` is the shortcut and the other function.
PyObject* call_or(PyObject* self, PyObject* const* arguments, Py_ssize_t count, PyObject* names) {
  if (count == kArrays - 1 && !names) {
    auto* shortcut = nb::inst_ptr<Shortcut>(PyTuple_GetItem(self, 0));
    try {
      nb::object out = shortcut->attend(arguments[0], arguments[1], arguments[2], 0.0, 0);
      if (!out.is_none()) return PyTuple_Pack(2, out.ptr(), Py_None);
    } catch (nb::python_error& error) {
      error.restore();
      return nullptr;
    }
  }
  return PyObject_Vectorcall(PyTuple_GetItem(self, 1), arguments, static_cast<size_t>(count), names);
}

nb::object attend_or(nb::handle shortcut, nb::callable otherwise) {
  static PyMethodDef method = {"attend_or", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&call_or)),
                               METH_FASTCALL | METH_KEYWORDS, nullptr};
  nb::object self = nb::make_tuple(shortcut, otherwise);
  return nb::steal(PyCFunction_NewEx(&method, self.ptr(), nullptr));
}

}  // namespace

void define_exchange(nb::module_& module) {
  nb::class_<Shortcut>(
      module, "Shortcut",
      "Plain attention past a framework's dispatcher, on the current stream, for arrays of a type that "
      "lets C look at them.")
      .def(nb::init<nb::type_object, nb::callable, nb::callable, nb::tuple, nb::handle, nb::callable>(),
           nb::arg("type"), nb::arg("empty_like"), nb::arg("records"), nb::arg("others"), nb::arg("forward_ad"),
           nb::arg("runtime"),
           "type: of all arrays. empty_like: makes the result of q. records: whether this thread records gradients; "
           "then "
           "no array may want one.\n"
           "others: functions that must give something false for a call to be taken. forward_ad: that module. runtime: "
           "gives the address of a\n"
           "runtime, and is asked again after a call failed.")
      .def_rw("is_open", &Shortcut::is_open, "False: it takes no call.")
      .def("attend", &Shortcut::attend, nb::arg("q").none(), nb::arg("k").none(), nb::arg("v").none(),
           nb::arg("scale") = 0.0, nb::arg("flags") = 0,
           nb::sig("def attend(self, q: object, k: object, v: object, scale: float = 0.0, flags: int = 0) -> object"),
           "The result, once it is enqueued; None where it is no call for here or was refused: nothing was launched "
           "then.\n"
           "\n"
           "Flags: 1 causal, 2 bottom right, 4 rows first, 1024 only if q and k have as many heads.")
      .def("attend_or", &attend_or, nb::arg("otherwise"),
           nb::sig("def attend_or(self, otherwise: Callable) -> Callable"),
           "A function that of three arrays alone gives (attend(), None), and of what that does not take, and of all "
           "other arguments, what\n"
           "`otherwise` gives: without a frame of Python's, which is a twentieth of such a call.");
}

}  // namespace kiln_python
