// A call of plain attention costs a few microseconds of the host, most of it the driver's. Through a framework's
// dispatcher it would cost that twice; here arrays are looked at where they lie. It takes the calls that need nothing
// else, and leaves all others to the caller.
#ifndef KILN_BINDINGS_SHORTCUT_H
#define KILN_BINDINGS_SHORTCUT_H

#include <algorithm>
#include <vector>

#include "exchange.h"
#include "flags.h"
#include "kiln/flash.h"
#include "layout.h"

namespace kiln_python {

using namespace kiln_flags;

inline nb::object tuple_of(const int64_t (&numbers)[4]) {
  return nb::make_tuple(numbers[0], numbers[1], numbers[2], numbers[3]);
}

// Throws nb::python_error.
inline bool is_true(const nb::object& value) {
  const int truth = PyObject_IsTrue(value.ptr());
  if (truth < 0) nb::raise_python_error();
  return truth;
}

// The shortest way for PyTorch's plain tensors, and what tells whether a call may take it. With the GIL.
//
// A tensor whose negative bit is set would be taken for what its memory says; but whatever has one, an imaginary part,
// has no contiguous last dimension. Tensors that functorch wraps have no memory to look at.
class Shortcut {
 public:
  Shortcut(nb::type_object type, nb::callable empty_like, nb::callable empty_strided, nb::callable records,
           nb::callable unpack_dual, nb::callable casts, uintptr_t is_watched, const nb::tuple& watchers,
           nb::callable wrote, nb::callable runtime)
      : type_(type),
        empty_like_(empty_like),
        empty_strided_(empty_strided),
        records_(records),
        unpack_dual_(unpack_dual),
        casts_(casts),
        wrote_(wrote),
        runtime_(runtime),
        requires_grad_(nb::steal(PyUnicode_InternFromString("requires_grad"))),
        is_watched_(reinterpret_cast<int32_t (*)()>(is_watched)),
        table_(exchange_of(type)) {
    for (nb::handle watcher : watchers) watchers_.push_back(nb::borrow(watcher));
  }

  static constexpr int kPositional = 3, kMostArrays = 8;
  static constexpr uint64_t kMostGuessed = 16 << 20;  // bytes that a call may be given although it needs fewer
  bool is_open = true;

  nb::object attend(nb::handle q, nb::handle k, nb::handle v, double scale, int flags) {
    const bool rows_first = flags & kRowsFirst;
    Call call{*this, scale};
    kiln_tensor views[3] = {}, result = {};
    const nb::handle inputs[] = {q, k, v};
    if (!call.may_take(inputs, 3, true)) return nb::none();
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

  nb::object decode(nb::handle q, nb::handle k_cache, nb::handle v_cache, nb::handle k_new, nb::handle v_new,
                    nb::handle given_out, nb::handle seqused_k, nb::handle block_table, double scale, int flags) {
    enum { kQ, kKCache, kVCache, kKNew, kVNew, kOut, kUsedK, kTable, kInputs };
    const bool rows_first = flags & kRowsFirst;
    Call call{*this, scale};
    const nb::handle inputs[kInputs] = {q, k_cache, v_cache, k_new, v_new, given_out, seqused_k, block_table};
    kiln_tensor views[kInputs] = {};
    const kiln_tensor* seen[kInputs] = {};
    if (!call.may_take(inputs, kInputs, false)) return nb::none();
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
    if (!call.enqueue_decode(q, &params)) return nb::none();
    if (seen[kKNew] || seen[kOut]) wrote_(nb::make_tuple(k_cache, v_cache, out));
    return out;
  }

 private:
  // One call. Whatever is false, or null, leaves it to the caller.
  struct Call {
    Shortcut& shortcut;
    const double scale;
    float sm_scale = 0;
    DlDevice device = {};  // the first input's
    bool has_device = false;
    kiln_queue queue = {};
    kiln_status status = KILN_OK;  // of what was enqueued last

    bool may_take(const nb::handle* inputs, int count, bool is_differentiable) {
      sm_scale = static_cast<float>(scale);
      if (sm_scale == 0 && scale != 0) return false;  // it would be the default
      return shortcut.is_open && shortcut.table_ && shortcut.is_plain(inputs, count, is_differentiable);
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
      try {
        // What lies as q does is made for less, if it may lie so: dimensions in q's order, without gaps.
        const int outer = strides[1] > strides[2] ? 1 : 2;
        const int64_t* order = logical.strides;
        if (width == logical.sizes[3] && order[0] >= order[place_of(outer, rows_first)] &&
            order[place_of(outer, rows_first)] >= order[place_of(3 - outer, rows_first)]) {
          nb::object out = shortcut.empty_like_(q);
          if (!shortcut.is_ours(out) || !look_at(out, rows_first, to)) return {};
          bool is_alike = true;
          for (int i = 0; i < 4; ++i) is_alike &= strides[i] == to->strides[place_of(i, rows_first)];
          if (is_alike) return out;
        }
        nb::object out = shortcut.empty_strided_(q, tuple_of(sizes), tuple_of(strides));
        return shortcut.is_ours(out) && look_at(out, rows_first, to) ? out : nb::object();
      } catch (nb::python_error& error) {  // no memory: the framework's other ways see to that
        if (!error.matches(PyExc_Exception)) throw;
        return {};
      }
    }

    // Memory by elements of q's dtype, which have two bytes at least.
    bool make_workspace(nb::handle q, uint64_t bytes, nb::object* held, void** data) {
      if (!bytes) return true;
      DlTensor seen;
      try {
        *held = shortcut.empty_strided_(q, nb::make_tuple((bytes + 1) / 2), nb::make_tuple(1));
      } catch (nb::python_error& error) {
        if (!error.matches(PyExc_Exception)) throw;
        return false;
      }
      if (!shortcut.is_ours(*held) || !view(*held, &seen)) return false;
      *data = static_cast<char*>(seen.data) + seen.byte_offset;
      return true;
    }

    // With a workspace, which is free again at the end: the stream's next work comes behind this call's. To ask how
    // much is needed plans the call, as launching does; so what the last one needed is tried first.
    bool enqueue_decode(nb::handle q, kiln_attn_decode_params* params) {
      nb::object workspace;
      const auto asks = [&](kiln_t kiln, const kiln_queue& on) {
        return kiln_attn_decode_workspace(kiln, &on, params, &params->workspace_bytes);
      };
      const auto launches = [&](kiln_t kiln, const kiln_queue& on) { return kiln_attn_decode(kiln, &on, params); };
      params->workspace_bytes = shortcut.usual_workspace_;
      if (params->workspace_bytes <= kMostGuessed) {
        if (!make_workspace(q, params->workspace_bytes, &workspace, &params->workspace)) return false;
        if (enqueue(launches)) return true;
        if (status != KILN_E_WORKSPACE) return false;
      }
      params->workspace = nullptr;
      if (!enqueue(asks)) return false;
      shortcut.usual_workspace_ = params->workspace_bytes;
      return make_workspace(q, params->workspace_bytes, &workspace, &params->workspace) && enqueue(launches);
    }

    template <typename Entry>
    bool enqueue(Entry entry) {
      if (!shortcut.known_) shortcut.known_ = nb::cast<uintptr_t>(shortcut.runtime_());
      const kiln_t kiln = reinterpret_cast<kiln_t>(shortcut.known_);
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
  bool is_plain(const nb::handle* inputs, int count, bool is_differentiable) const {
    for (int i = 0; i < count; ++i)
      if (!is_ours(inputs[i]) && !(i > 2 && inputs[i].is_none())) return false;
    if (is_true(records_()))
      for (int i = 0; i < count; ++i)
        if (!inputs[i].is_none() && wants_gradient(inputs[i])) return false;
    if (is_differentiable && !is_left_alone(inputs[0])) return false;
    if (is_watched_()) return PyErr_Clear(), false;
    for (const nb::object& watcher : watchers_)
      if (is_true(watcher())) return false;
    return true;
  }

  // Neither does autocast cast it, nor does forward mode have a derivative of it.
  bool is_left_alone(nb::handle q) const {
    if (is_true(casts_())) return false;
    // Where no level of forward mode is open, nothing is unpacked: what comes back is the tensor itself.
    nb::object primal = nb::steal(PySequence_GetItem(nb::object(unpack_dual_(q)).ptr(), 0));
    if (!primal.is_valid()) nb::raise_python_error();
    return primal.is(q);
  }

  bool wants_gradient(nb::handle array) const {
    nb::object value = nb::steal(PyObject_GetAttr(array.ptr(), requires_grad_.ptr()));
    if (!value.is_valid()) nb::raise_python_error();
    return is_true(value);
  }

  // Never collected where they know it in turn: there is one of it, which lives as long as the process.
  nb::object type_, empty_like_, empty_strided_, records_, unpack_dual_, casts_, wrote_, runtime_, requires_grad_;
  std::vector<nb::object> watchers_;
  int32_t (*is_watched_)();
  const DlExchange* table_;       // its type's, which never goes
  uintptr_t known_ = 0;           // of runtime_; 0: not known, or no longer it
  uint64_t usual_workspace_ = 0;  // bytes: of the last decode that was asked for its own
};

void define_shortcut(nb::module_& module);

}  // namespace kiln_python

#endif
