// What the typed entries of the flash family share: parameters become the arguments of an operation, in the recipe's
// order.
#ifndef KILN_FLASH_CALL_H
#define KILN_FLASH_CALL_H

#include <math.h>

#include "kiln/family.h"
#include "kiln/flash.h"

namespace kiln_flash {

// The arguments of one call, filled front to back.
class Arguments {
 public:
  template <int32_t kCount>
  void tensors(const kiln_tensor* const (&given)[kCount]) {
    for (const kiln_tensor* tensor : given) next(tensor ? KILN_ARG_TENSOR : KILN_ARG_ABSENT).value.tensor = tensor;
  }
  void integer(int64_t value) { next(KILN_ARG_INT).value.integer = value; }
  void real(double value) { next(KILN_ARG_FLOAT).value.real = value; }
  // NULL where there are too many: the core refuses that, if it has not refused their count.
  const kiln_argument* data() const { return count_ <= kCapacity ? arguments_ : nullptr; }
  int32_t count() const { return count_; }

 private:
  static constexpr int32_t kCapacity = 40;

  kiln_argument& next(int32_t kind) {
    kiln_argument& argument = arguments_[count_ < kCapacity ? count_ : kCapacity];
    ++count_;
    argument.kind = kind;
    argument.reserved = 0;
    return argument;
  }

  kiln_argument arguments_[kCapacity + 1];  // the last takes what is too many
  int32_t count_ = 0;
};

// Both look-ups walk a short list without a lock, so nothing is remembered here that could outlive a kiln_t.
inline kiln_status find(kiln_t kiln, const char* operation, kiln_operation* out) {
  kiln_status status = kiln_register_family(kiln, kiln_flash_family());
  return status == KILN_OK ? kiln_find_operation(kiln, operation, out) : status;
}

inline double scale_of(float sm_scale, const kiln_tensor* q) {
  if (sm_scale != 0.0f) return static_cast<double>(sm_scale);
  bool known = q && q->rank == 4 && q->sizes[3] > 0;
  return known ? 1.0 / sqrt(static_cast<double>(q->sizes[3])) : 1.0;  // if not, the call fails for q's sake
}

// The numbers that shape scores.
template <typename Params>
kiln_status check_scores(const Params& params) {
  if (!(params.softcap >= 0.0f && params.softcap <= 1.0e30f))  // times log2(e), and over, in fp32
    return kiln_set_error(KILN_E_ARGUMENT, "flash: softcap must be at least 0, for none, and at most 1e30");
  if (!isfinite(params.sm_scale))
    return kiln_set_error(KILN_E_ARGUMENT, "flash: sm_scale must be a finite number; 0 is 1 / sqrt(head_dim)");
  return KILN_OK;
}

inline kiln_status check_dropout(float dropout) {
  if (dropout >= 0.0f && dropout <= 0.9999f) return KILN_OK;  // what is kept is multiplied: fp16 ends at 65504
  return kiln_set_error(KILN_E_ARGUMENT, "flash: dropout must be at least 0 and at most 0.9999");
}

// Weights whose 32-bit number is below this are dropped.
inline int64_t threshold_of(float dropout) { return static_cast<int64_t>(static_cast<double>(dropout) * 4294967296.0); }

inline void add_softcap(float softcap, Arguments* to) {
  to->integer(softcap > 0.0f);
  to->real(softcap > 0.0f ? static_cast<double>(softcap) : 1.0);
}

// The arguments that forward and backward have in common, in the recipes' order: what shapes scores and weights.
template <typename Params>
void add_shared(const Params& params, Arguments* to) {
  to->tensors({params.sinks, params.bias, params.alibi_slopes, params.seed, params.offset, params.cu_seqlens_q,
               params.cu_seqlens_k, params.seqused_q, params.seqused_k});
  to->integer(params.max_seqlen_q);
  to->integer(params.max_seqlen_k);
  to->integer(params.window_left);
  to->integer(params.causal ? 0 : params.window_right);
  to->integer(params.bottom_right != 0);
  to->integer(params.padded != 0);
  to->real(scale_of(params.sm_scale, params.q));
  to->integer(params.sm_scale < 0.0f);
  add_softcap(params.softcap, to);
  to->integer(threshold_of(params.dropout));
  to->real(1.0 / (1.0 - static_cast<double>(params.dropout)));
  to->integer(params.seed_value);
  to->integer(params.offset_value);
}

// The fields that all but kiln_dropout_mask's parameters end with.
template <typename Params>
void fill(const Params& params, kiln_call* call) {
  call->force_count = params.force_count;
  call->force_keys = params.force_keys;
  call->workspace = params.workspace;
  call->workspace_bytes = params.workspace_bytes;
}
inline void fill(const kiln_dropout_mask_params&, kiln_call*) {}

// An entry. `Operation` has what is its own: Params, kDefaults, kOperation and kParams (the names of both), check() and
// add(), which gives the arguments in the recipe's order. `run` gets the call: kiln_launch, or kiln_workspace_size.
template <typename Operation, typename... Results>
kiln_status enter(kiln_t kiln, const kiln_queue* queue, const typename Operation::Params* from,
                  kiln_status (*run)(const kiln_call*, Results*...), Results*... results) {
  typename Operation::Params params = Operation::kDefaults;
  kiln_call call = KILN_CALL_INIT;
  Arguments arguments;
  kiln_status status = kiln_read_struct(&params, sizeof params, from, Operation::kParams);
  if (status != KILN_OK) return status;
  if ((status = Operation::check(params)) != KILN_OK) return status;
  if ((status = find(kiln, Operation::kOperation, &call.operation)) != KILN_OK) return status;
  Operation::add(params, &arguments);
  fill(params, &call);
  call.queue = queue;
  call.arguments = arguments.data();
  call.argument_count = arguments.count();
  call.force_target = params.force_target;
  return run(&call, results...);
}

}  // namespace kiln_flash

#endif
