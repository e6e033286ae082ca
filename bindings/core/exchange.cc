// A call of plain attention costs a few microseconds of the host, most of it the driver's. Through a framework's
// dispatcher it would cost that twice; here arrays are looked at where they lie, by the table of C functions that their
// type offers. It takes the calls that need nothing else, and leaves all others to whoever asked.
#include "exchange.h"

#include <algorithm>
#include <exception>
#include <vector>

#include "dlpack.h"
#include "flags.h"
#include "kiln/flash.h"
#include "layout.h"

namespace kiln_python {
namespace {

using namespace kiln_flags;

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

// Of a dimension of [batch, heads, rows, head_dim] its place where rows may come first, or the other way round.
int place_of(int dimension, bool rows_first) {
  return rows_first && (dimension == 1 || dimension == 2) ? 3 - dimension : dimension;
}

// [batch, heads, rows, head_dim], the last dimension contiguous.
bool describe(const DlTensor& from, bool rows_first, kiln_tensor* to) {
  if (from.rank != 4 || !from.strides || from.strides[3] != 1 || !(to->dtype = dtype_of(from.dtype))) return false;
  to->data = static_cast<char*>(from.data) + from.byte_offset;
  to->rank = 4;
  for (int i = 0; i < 4; ++i) {
    to->sizes[i] = from.sizes[place_of(i, rows_first)];
    to->strides[i] = from.strides[place_of(i, rows_first)];
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

nb::object tuple_of(const int64_t (&numbers)[4]) {
  return nb::make_tuple(numbers[0], numbers[1], numbers[2], numbers[3]);
}

// Throws nb::python_error.
bool is_true(const nb::object& value) {
  const int truth = PyObject_IsTrue(value.ptr());
  if (truth < 0) nb::raise_python_error();
  return truth;
}

// Lengths and places: [batch], [batch, pages].
bool describe_places(const DlTensor& from, int32_t rank, kiln_tensor* to) {
  if (from.rank != rank || !from.strides || from.dtype.code != kDlInt || from.dtype.bits != 32) return false;
  to->data = static_cast<char*>(from.data) + from.byte_offset;
  to->dtype = KILN_INT32;
  to->rank = rank;
  std::copy_n(from.sizes, rank, to->sizes);
  std::copy_n(from.strides, rank, to->strides);
  return true;
}

// The shortest way for PyTorch's plain tensors, and what tells whether a call may take it. With the GIL.
//
// A tensor whose negative bit is set would be taken for what its memory says; but whatever has one, an imaginary part,
// has no contiguous last dimension. Tensors that functorch wraps have no memory to look at.
class Shortcut {
 public:
  Shortcut(nb::type_object type, nb::callable empty_like, nb::callable empty_strided, nb::callable records,
           nb::callable unpack_dual, const nb::tuple& watchers, nb::callable runtime)
      : type_(type),
        empty_like_(empty_like),
        empty_strided_(empty_strided),
        records_(records),
        unpack_dual_(unpack_dual),
        runtime_(runtime),
        requires_grad_(nb::steal(PyUnicode_InternFromString("requires_grad"))),
        table_(exchange_of(type)) {
    for (nb::handle watcher : watchers) watchers_.push_back(nb::borrow(watcher));
  }

  bool is_open = true;

  nb::object attend(nb::handle q, nb::handle k, nb::handle v, double scale, int flags) {
    const bool rows_first = flags & kRowsFirst;
    Call call{*this, scale};
    kiln_tensor views[3] = {}, result = {};
    const nb::handle inputs[] = {q, k, v};
    if (!call.may_take(inputs, 3)) return nb::none();
    for (int i = 0; i < 3; ++i)
      if (!call.look_at(inputs[i], rows_first, &views[i])) return nb::none();
    if ((flags & kEqualHeads) && views[0].sizes[1] != views[1].sizes[1]) return nb::none();
    nb::object out = call.make_result(q, views[0], views[2].sizes[3], rows_first, &result);
    if (!out.is_valid()) return nb::none();
    kiln_attn_fwd_params params = KILN_ATTN_FWD_PARAMS_INIT;
    params.q = &views[0], params.k = &views[1], params.v = &views[2], params.out = &result;
    params.sm_scale = call.sm_scale;
    params.causal = flags & kCausal;
    params.bottom_right = flags & kBottomRight;
    return call.enqueue([&](kiln_t kiln, const kiln_queue& queue) { return kiln_attn_fwd(kiln, &queue, &params); })
               ? out
               : nb::none();
  }

  // Splits that need a workspace are not for here.
  nb::object decode(nb::handle q, nb::handle k_cache, nb::handle v_cache, nb::handle k_new, nb::handle v_new,
                    nb::handle seqused_k, nb::handle block_table, nb::handle given_out, double scale, int flags) {
    enum { kQ, kKCache, kVCache, kKNew, kVNew, kOut, kUsedK, kTable, kInputs };
    const bool rows_first = flags & kRowsFirst;
    Call call{*this, scale};
    const nb::handle inputs[kInputs] = {q, k_cache, v_cache, k_new, v_new, given_out, seqused_k, block_table};
    kiln_tensor views[kInputs] = {};
    const kiln_tensor* seen[kInputs] = {};
    if (!call.may_take(inputs, kInputs)) return nb::none();
    for (int i = 0; i < kInputs; ++i) {
      if (inputs[i].is_none()) continue;
      if (!(i < kUsedK ? call.look_at(inputs[i], rows_first, &views[i])
                       : call.look_at_places(inputs[i], i == kTable ? 2 : 1, &views[i])))
        return nb::none();
      seen[i] = &views[i];
    }
    nb::object out = nb::borrow(given_out);
    if (!seen[kOut]) {
      out = call.make_result(q, views[kQ], views[kVCache].sizes[3], rows_first, &views[kOut]);
      if (!out.is_valid()) return nb::none();
    }
    kiln_attn_decode_params params = KILN_ATTN_DECODE_PARAMS_INIT;
    params.q = seen[kQ], params.k_cache = seen[kKCache], params.v_cache = seen[kVCache], params.out = &views[kOut];
    params.k_new = seen[kKNew], params.v_new = seen[kVNew];
    params.seqused_k = seen[kUsedK], params.block_table = seen[kTable];
    params.sm_scale = call.sm_scale;
    params.causal = flags & kCausal;
    return call.enqueue([&](kiln_t kiln, const kiln_queue& queue) { return kiln_attn_decode(kiln, &queue, &params); })
               ? out
               : nb::none();
  }

 private:
  // One call. Whatever is false, or null, leaves it to whoever asked.
  struct Call {
    Shortcut& shortcut;
    const double scale;
    float sm_scale = 0;
    DlDevice device = {};  // the first input's
    bool has_device = false;
    kiln_queue queue = {};

    bool may_take(const nb::handle* inputs, int count) {
      sm_scale = static_cast<float>(scale);
      if (sm_scale == 0 && scale != 0) return false;  // it would be the default
      return shortcut.is_open && shortcut.table_ && shortcut.is_plain(inputs, count);
    }

    bool view(nb::handle array, DlTensor* to) {
      if (shortcut.table_->view(array.ptr(), to) == 0) return true;
      PyErr_Clear();
      return false;
    }

    bool look_at(nb::handle array, bool rows_first, kiln_tensor* to) {
      DlTensor seen;
      return view(array, &seen) && describe(seen, rows_first, to) && is_with_others(seen);
    }

    bool look_at_places(nb::handle array, int32_t rank, kiln_tensor* to) {
      DlTensor seen;
      return view(array, &seen) && describe_places(seen, rank, to) && is_with_others(seen);
    }

    bool is_with_others(const DlTensor& seen) {
      if (has_device) return seen.device.type == device.type && seen.device.id == device.id;
      device = seen.device;
      has_device = true;
      return queue_of(*shortcut.table_, device, &queue);
    }

    nb::object make_result(nb::handle q, const kiln_tensor& logical, int64_t width, bool rows_first, kiln_tensor* to) {
      int64_t sizes[4], strides[4];
      const kiln_tensor wanted = kiln_layout::result_like(logical, width, rows_first);
      kiln_layout::in_callers_order(wanted.sizes, rows_first, sizes);
      kiln_layout::in_callers_order(wanted.strides, rows_first, strides);
      bool is_alike = true;
      for (int i = 0; i < 4; ++i) {
        const int from = place_of(i, rows_first);
        is_alike &= sizes[i] == logical.sizes[from] && strides[i] == logical.strides[from];
      }
      nb::object out;
      try {
        out = is_alike ? shortcut.empty_like_(q) : shortcut.empty_strided_(q, tuple_of(sizes), tuple_of(strides));
      } catch (nb::python_error& error) {  // no memory: the framework's other ways see to that
        if (!error.matches(PyExc_Exception)) throw;
        return {};
      }
      return shortcut.is_ours(out) && look_at(out, rows_first, to) ? out : nb::object();
    }

    template <typename Entry>
    bool enqueue(Entry entry) {
      if (!shortcut.known_) shortcut.known_ = nb::cast<uintptr_t>(shortcut.runtime_());
      const kiln_t kiln = reinterpret_cast<kiln_t>(shortcut.known_);
      kiln_status status;
      {
        nb::gil_scoped_release released;
        status = entry(kiln, queue);
      }
      if (status == KILN_E_FORKED) shortcut.known_ = 0;
      return status == KILN_OK;
    }
  };

  bool is_ours(nb::handle array) const { return reinterpret_cast<PyObject*>(Py_TYPE(array.ptr())) == type_.ptr(); }

  // None is an input that is not given.
  bool is_plain(const nb::handle* inputs, int count) const {
    for (int i = 0; i < count; ++i)
      if (!is_ours(inputs[i]) && !(i > 2 && inputs[i].is_none())) return false;
    if (is_true(records_()))
      for (int i = 0; i < count; ++i)
        if (!inputs[i].is_none() && wants_gradient(inputs[i])) return false;
    // Where no level of forward mode is open, nothing is unpacked: what comes back is the tensor itself.
    nb::object primal = nb::steal(PySequence_GetItem(nb::object(unpack_dual_(inputs[0])).ptr(), 0));
    if (!primal.is_valid()) nb::raise_python_error();
    if (!primal.is(inputs[0])) return false;
    for (const nb::object& watcher : watchers_)
      if (is_true(watcher())) return false;
    return true;
  }

  bool wants_gradient(nb::handle array) const {
    nb::object value = nb::steal(PyObject_GetAttr(array.ptr(), requires_grad_.ptr()));
    if (!value.is_valid()) nb::raise_python_error();
    return is_true(value);
  }

  // Never collected where they know it in turn: there is one of it, which lives as long as the process.
  nb::object type_, empty_like_, empty_strided_, records_, unpack_dual_, runtime_, requires_grad_;
  std::vector<nb::object> watchers_;
  const DlExchange* table_;  // its type's, which never goes
  uintptr_t known_ = 0;      // of runtime_; 0: not known, or no longer it
};

// Of attend_or(); `self` is the shortcut and the other function.
PyObject* call_or(PyObject* self, PyObject* const* arguments, Py_ssize_t count, PyObject* names) {
  if (count == 3 && (!names || PyTuple_Size(names) == 0)) {
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
      .def(nb::init<nb::type_object, nb::callable, nb::callable, nb::callable, nb::callable, nb::tuple, nb::callable>(),
           nb::arg("type"), nb::arg("empty_like"), nb::arg("empty_strided"), nb::arg("records"), nb::arg("unpack_dual"),
           nb::arg("watchers"), nb::arg("runtime"),
           "type: of all tensors.\n"
           "empty_like: of q a result that lies as q does.\n"
           "empty_strided: of q, sizes and strides a result on q's device, of its dtype.\n"
           "records: whether this thread records gradients; then no tensor may want one.\n"
           "unpack_dual: torch.autograd.forward_ad's; a call is taken while it has nothing to unpack.\n"
           "watchers: functions that must give something false for a call to be taken.\n"
           "runtime: gives the address of a runtime; asked again after a fork.")
      .def_rw("is_open", &Shortcut::is_open, "False: it takes no call.")
      .def("attend", &Shortcut::attend, nb::arg("q").none(), nb::arg("k").none(), nb::arg("v").none(),
           nb::arg("scale") = 0.0, nb::arg("flags") = 0,
           nb::sig("def attend(self, q: object, k: object, v: object, scale: float = 0.0, flags: int = 0) -> object"),
           "The result, once it is enqueued.\n"
           "\n"
           "None: it is no call for here or was refused; nothing was launched.\n"
           "Flags: 1 causal, 2 bottom right, 4 rows first, 1024 only if q and k have as many heads.")
      .def("decode", &Shortcut::decode, nb::arg("q").none(), nb::arg("k_cache").none(), nb::arg("v_cache").none(),
           nb::arg("k_new").none() = nb::none(), nb::arg("v_new").none() = nb::none(),
           nb::arg("seqused_k").none() = nb::none(), nb::arg("block_table").none() = nb::none(),
           nb::arg("out").none() = nb::none(), nb::arg("scale") = 0.0, nb::arg("flags") = 0,
           nb::sig("def decode(self, q: object, k_cache: object, v_cache: object, k_new: object = None, "
                   "v_new: object = None, seqused_k: object = None, block_table: object = None, out: object = None, "
                   "scale: float = 0.0, flags: int = 0) -> object"),
           "attend() of attention over a cache: the result, or None. Flags: 1 causal, 4 rows first.")
      .def("attend_or", &attend_or, nb::arg("otherwise"),
           nb::sig("def attend_or(self, otherwise: Callable) -> Callable"),
           "A function that of three tensors alone gives (attend(), None).\n"
           "\n"
           "Of what that does not take, and of all other arguments, it gives what `otherwise` does. No frame of "
           "Python's "
           "is made before.");
}

}  // namespace kiln_python
