// What the typed entries of the flash family share: parameters become the arguments of an operation, in the recipe's
// order.
#ifndef KILN_FLASH_CALL_H
#define KILN_FLASH_CALL_H

#include <math.h>

#include "kiln/family.h"
#include "kiln/flash.h"

namespace kiln_flash {

// The arguments of one call, filled front to back.
template <int32_t kCount>
class Arguments {
 public:
  void tensor(const kiln_tensor* tensor) {
    kiln_argument& argument = next();
    argument.kind = tensor ? KILN_ARG_TENSOR : KILN_ARG_ABSENT;
    argument.value.tensor = tensor;
  }
  void integer(int64_t value) {
    kiln_argument& argument = next();
    argument.kind = KILN_ARG_INT;
    argument.value.integer = value;
  }
  void real(double value) {
    kiln_argument& argument = next();
    argument.kind = KILN_ARG_FLOAT;
    argument.value.real = value;
  }
  const kiln_argument* data() const { return arguments_; }
  int32_t count() const { return count_; }

 private:
  kiln_argument& next() {
    kiln_argument& argument = arguments_[count_++];
    argument.reserved = 0;
    return argument;
  }

  kiln_argument arguments_[kCount];
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

inline kiln_status check_softcap(float softcap) {
  if (softcap >= 0.0f && softcap <= 3.0e38f) return KILN_OK;
  return kiln_set_error(KILN_E_ARGUMENT, "flash: softcap must be finite and not negative; 0 for none");
}

inline kiln_status check_dropout(float dropout) {
  if (dropout >= 0.0f && dropout < 1.0f) return KILN_OK;
  return kiln_set_error(KILN_E_ARGUMENT, "flash: dropout must be at least 0 and below 1");
}

// Weights whose 32-bit number is below this are dropped.
inline int64_t threshold_of(float dropout) { return static_cast<int64_t>(static_cast<double>(dropout) * 4294967296.0); }

// The arguments that forward and backward have in common, in the recipes' order: what shapes scores and weights.
template <typename Params, typename Arguments>
void add_shared(const Params& params, Arguments* to) {
  const kiln_tensor* const tensors[] = {params.sinks,        params.bias,      params.alibi_slopes,
                                        params.seed,         params.offset,    params.cu_seqlens_q,
                                        params.cu_seqlens_k, params.seqused_q, params.seqused_k};
  for (const kiln_tensor* tensor : tensors) to->tensor(tensor);
  to->integer(params.max_seqlen_q);
  to->integer(params.max_seqlen_k);
  to->integer(params.window_left);
  to->integer(params.causal ? 0 : params.window_right);
  to->integer(params.bottom_right != 0);
  to->real(scale_of(params.sm_scale, params.q));
  to->integer(params.sm_scale < 0.0f);
  to->integer(params.softcap > 0.0f);
  to->real(params.softcap > 0.0f ? static_cast<double>(params.softcap) : 1.0);
  to->integer(threshold_of(params.dropout));
  to->real(1.0 / (1.0 - static_cast<double>(params.dropout)));
  to->integer(params.seed_value);
  to->integer(params.offset_value);
}

// Fills a call from the arguments, and the fields that all parameter structures end with.
template <typename Params, typename Arguments>
void fill(const Params& params, const kiln_queue* queue, kiln_operation operation, const Arguments& arguments,
          kiln_call* call) {
  *call = KILN_CALL_INIT;
  call->operation = operation;
  call->queue = queue;
  call->arguments = arguments.data();
  call->argument_count = arguments.count();
  call->force_count = params.force_count;
  call->force_keys = params.force_keys;
  call->force_target = params.force_target;
  call->workspace = params.workspace;
  call->workspace_bytes = params.workspace_bytes;
}

}  // namespace kiln_flash

#endif
