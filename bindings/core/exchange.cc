// A call of plain attention costs a few microseconds of the host, most of it the driver's. Through a framework's
// dispatcher it would cost that twice; here arrays are looked at where they lie, by the table of C functions that their
// type offers. It takes the calls that need nothing else, and leaves all others to whoever asked.
#include "exchange.h"

#include <algorithm>
#include <exception>
#include <vector>

#include "dlpack.h"
#include "kiln/flash.h"

namespace kiln_python {
namespace {

constexpr int kInputs = 3;                                                   // q, k, v
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

// Looks at an array of the table's type; false, without a Python error, where it is not for here.
bool look(const DlExchange& table, nb::handle array, bool rows_first, DlTensor* seen, kiln_tensor* view) {
  if (table.view(array.ptr(), seen) == 0 && describe(*seen, rows_first, view)) return true;
  PyErr_Clear();
  return false;
}

bool is_on(const DlTensor& seen, const DlDevice& device) {
  return seen.device.type == device.type && seen.device.id == device.id;
}

// Sizes and strides of the result, in the order of dimensions that the caller has: dense, rows outside of heads if they
// come first or lie so in q; as describe_like() in bindings/torch/call.cc.
void lay_out(const kiln_tensor& q, int64_t width, bool rows_first, int64_t (&sizes)[4], int64_t (&strides)[4]) {
  const int heads = rows_first ? 2 : 1, rows = 3 - heads;  // where they stand in the caller's order
  const bool rows_outside = rows_first || q.strides[2] > q.strides[1];
  const int outer = rows_outside ? rows : heads, inner = 3 - outer;
  sizes[0] = q.sizes[0], sizes[heads] = q.sizes[1], sizes[rows] = q.sizes[2], sizes[3] = width;
  // Of sizes of 0 PyTorch makes strides as if they were 1.
  strides[3] = 1;
  strides[inner] = std::max<int64_t>(width, 1);
  strides[outer] = strides[inner] * std::max<int64_t>(sizes[inner], 1);
  strides[0] = strides[outer] * std::max<int64_t>(sizes[outer], 1);
}

nb::object tuple_of(const int64_t (&numbers)[4]) {
  return nb::make_tuple(numbers[0], numbers[1], numbers[2], numbers[3]);
}

// Throws nb::python_error.
bool is_true(const nb::object& value) {
  const int truth = PyObject_IsTrue(value.ptr());
  if (truth < 0) nb::raise_python_error();
  return truth;
}

// The shortest way for PyTorch's plain tensors, and what tells whether a call may take it. With the GIL.
//
// A tensor whose negative bit is set would be taken for what its memory says; but whatever has one, an imaginary part,
// has no contiguous last dimension.
class Shortcut {
 public:
  Shortcut(nb::type_object type, nb::callable empty, const nb::tuple& dtypes, nb::callable current_device,
           nb::callable records, const nb::tuple& others, nb::handle forward_ad, nb::callable runtime)
      : type_(type),
        empty_(empty),
        dtypes_(dtypes),
        current_device_(current_device),
        records_(records),
        forward_ad_(nb::borrow(forward_ad)),
        runtime_(runtime),
        level_(interned("_current_level")),
        requires_grad_(interned("requires_grad")),
        table_(exchange_of(type)) {
    if (dtypes_.size() != 3) refuse("dtypes must be three: fp16, bf16 and fp32");
    for (nb::handle other : others) others_.push_back(nb::borrow(other));
  }

  bool is_open = true;

  nb::object attend(nb::handle q, nb::handle k, nb::handle v, double scale, int flags) {
    const nb::handle inputs[] = {q, k, v};
    if (!is_open || !table_ || !is_plain(inputs)) return nb::none();
    const float sm_scale = static_cast<float>(scale);
    if (sm_scale == 0 && scale != 0) return nb::none();  // it would be the default
    const bool rows_first = flags & kRowsFirst;
    kiln_tensor views[kInputs] = {}, result = {};
    DlTensor seen[kInputs], made;
    for (int i = 0; i < kInputs; ++i)
      if (!look(*table_, inputs[i], rows_first, &seen[i], &views[i]) || !is_on(seen[i], seen[0].device))
        return nb::none();
    if ((flags & kEqualHeads) && views[0].sizes[1] != views[1].sizes[1]) return nb::none();
    kiln_queue queue;
    if (!queue_of(*table_, seen[0].device, &queue)) return nb::none();

    if (!known_) known_ = nb::cast<uintptr_t>(runtime_());
    nb::object out = made_for(queue.device, views[0], views[2], rows_first);
    if (!out.is_valid() || !is_ours(out) || !look(*table_, out, rows_first, &made, &result) ||
        !is_on(made, seen[0].device))
      return nb::none();
    kiln_attn_fwd_params params = KILN_ATTN_FWD_PARAMS_INIT;
    params.q = &views[0], params.k = &views[1], params.v = &views[2], params.out = &result;
    params.sm_scale = sm_scale;
    params.causal = flags & kCausal;
    params.bottom_right = flags & kBottomRight;
    const kiln_status status = enqueue(reinterpret_cast<kiln_t>(known_), queue, params);
    if (status == KILN_E_FORKED) known_ = 0;
    return status == KILN_OK ? out : nb::none();
  }

 private:
  static nb::object interned(const char* name) { return nb::steal(PyUnicode_InternFromString(name)); }

  static kiln_status enqueue(kiln_t kiln, const kiln_queue& queue, const kiln_attn_fwd_params& params) {
    nb::gil_scoped_release released;
    return kiln_attn_fwd(kiln, &queue, &params);
  }

  bool is_ours(nb::handle array) const { return reinterpret_cast<PyObject*>(Py_TYPE(array.ptr())) == type_.ptr(); }

  bool is_plain(const nb::handle (&inputs)[kInputs]) const {
    for (nb::handle input : inputs)
      if (!is_ours(input)) return false;
    if (is_true(records_()))
      for (nb::handle input : inputs)
        if (is_true(attribute(input, requires_grad_))) return false;
    if (nb::cast<long>(attribute(forward_ad_, level_)) >= 0) return false;
    for (const nb::object& other : others_)
      if (is_true(other())) return false;
    return true;
  }

  static nb::object attribute(nb::handle of, const nb::object& name) {
    nb::object value = nb::steal(PyObject_GetAttr(of.ptr(), name.ptr()));
    if (!value.is_valid()) nb::raise_python_error();
    return value;
  }

  // What a call of q and v returns, empty. Null where the device is not the current one or there is no memory: the
  // framework's other ways see to that.
  nb::object made_for(int32_t device, const kiln_tensor& q, const kiln_tensor& v, bool rows_first) const {
    int64_t sizes[4], strides[4];
    lay_out(q, v.sizes[3], rows_first, sizes, strides);
    const int dtype = q.dtype == KILN_FP16 ? 0 : q.dtype == KILN_BF16 ? 1 : 2;
    try {
      if (nb::cast<int32_t>(current_device_()) != device) return {};
      return empty_(tuple_of(sizes), tuple_of(strides), dtypes_[dtype]);
    } catch (nb::python_error& error) {
      if (!error.matches(PyExc_Exception)) throw;
      return {};
    }
  }

  // Never collected where they know it in turn: there is one of it, which lives as long as the process.
  nb::object type_, empty_;
  nb::tuple dtypes_;
  nb::object current_device_, records_, forward_ad_, runtime_, level_, requires_grad_;
  std::vector<nb::object> others_;
  const DlExchange* table_;  // its type's, which never goes
  uintptr_t known_ = 0;      // of runtime_; 0: not known, or no longer it
};

// Of attend_or(); `self` is the shortcut and the other function.
PyObject* call_or(PyObject* self, PyObject* const* arguments, Py_ssize_t count, PyObject* names) {
  if (count == kInputs && !names) {
    auto* shortcut = nb::inst_ptr<Shortcut>(PyTuple_GetItem(self, 0));
    try {
      nb::object out = shortcut->attend(arguments[0], arguments[1], arguments[2], 0.0, 0);
      if (!out.is_none()) return PyTuple_Pack(2, out.ptr(), Py_None);
    } catch (nb::python_error& error) {
      error.restore();
      return nullptr;
    } catch (const std::exception& error) {
      PyErr_SetString(PyExc_RuntimeError, error.what());
      return nullptr;
    }
  }
  return PyObject_Vectorcall(PyTuple_GetItem(self, 1), arguments, static_cast<size_t>(count), names);
}

nb::object attend_or(Shortcut& shortcut, nb::callable otherwise) {
  static PyMethodDef method = {"attend_or", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&call_or)),
                               METH_FASTCALL | METH_KEYWORDS, nullptr};
  nb::object self = nb::make_tuple(nb::find(shortcut), otherwise);
  return nb::steal(PyCFunction_NewEx(&method, self.ptr(), nullptr));
}

}  // namespace

void define_exchange(nb::module_& module) {
  nb::class_<Shortcut>(
      module, "Shortcut",
      "Plain attention past PyTorch's dispatcher, on the current stream, for tensors that C may look at.")
      .def(nb::init<nb::type_object, nb::callable, nb::tuple, nb::callable, nb::callable, nb::tuple, nb::handle,
                    nb::callable>(),
           nb::arg("type"), nb::arg("empty"), nb::arg("dtypes"), nb::arg("current_device"), nb::arg("records"),
           nb::arg("others"), nb::arg("forward_ad"), nb::arg("runtime"),
           "type: of all tensors.\n"
           "empty: makes the result, on the current device, of its sizes, its strides and one of `dtypes`.\n"
           "dtypes: fp16, bf16 and fp32.\n"
           "current_device: its number; calls on another are not taken.\n"
           "records: whether this thread records gradients; then no tensor may want one.\n"
           "others: functions that must give something false for a call to be taken.\n"
           "forward_ad: torch.autograd.forward_ad, none of whose levels may be open.\n"
           "runtime: gives the address of a runtime; asked again after a fork.")
      .def_rw("is_open", &Shortcut::is_open, "False: it takes no call.")
      .def("attend", &Shortcut::attend, nb::arg("q").none(), nb::arg("k").none(), nb::arg("v").none(),
           nb::arg("scale") = 0.0, nb::arg("flags") = 0,
           nb::sig("def attend(self, q: object, k: object, v: object, scale: float = 0.0, flags: int = 0) -> object"),
           "The result, once it is enqueued.\n"
           "\n"
           "None: it is no call for here or was refused; nothing was launched.\n"
           "Flags: 1 causal, 2 bottom right, 4 rows first, 1024 only if q and k have as many heads.")
      .def("attend_or", &attend_or, nb::arg("otherwise"),
           nb::sig("def attend_or(self, otherwise: Callable) -> Callable"),
           "A function that of three tensors alone gives (attend(), None).\n"
           "\n"
           "Of what that does not take, and of all other arguments, it gives what `otherwise` does. No frame of "
           "Python's "
           "is made before.");
}

}  // namespace kiln_python
