// The typed entries of the flash family: each turns its parameters into a call of the operation that the tables know,
// in the order of tritonsrc/flash/recipe.yaml.
#include "kiln/flash.h"

#include <math.h>

#include "kiln/family.h"

namespace {

// Both look-ups walk a short list without a lock, so nothing is remembered here that could outlive a kiln_t.
kiln_status find(kiln_t kiln, kiln_operation* out) {
  kiln_status status = kiln_register_family(kiln, kiln_flash_family());
  return status == KILN_OK ? kiln_find_operation(kiln, "flash.attn_fwd", out) : status;
}

kiln_argument tensor(const kiln_tensor* tensor) {
  kiln_argument argument = {tensor ? KILN_ARG_TENSOR : KILN_ARG_ABSENT, 0, {tensor}};
  return argument;
}

kiln_argument real(double value) {
  kiln_argument argument = {KILN_ARG_FLOAT, 0, {nullptr}};
  argument.value.real = value;
  return argument;
}

kiln_argument integer(int64_t value) {
  kiln_argument argument = {KILN_ARG_INT, 0, {nullptr}};
  argument.value.integer = value;
  return argument;
}

double default_scale(const kiln_tensor* q) {
  bool known = q && q->rank == 4 && q->sizes[3] > 0;
  return known ? 1.0 / sqrt(static_cast<double>(q->sizes[3])) : 1.0;  // if not, the call fails for q's sake
}

constexpr int32_t kArguments = 25;

kiln_status make_call(kiln_t kiln, const kiln_queue* queue, const kiln_attn_fwd_params* from,
                      kiln_argument arguments[kArguments], kiln_call* call) {
  kiln_attn_fwd_params params = KILN_ATTN_FWD_PARAMS_INIT;
  kiln_status status = kiln_read_struct(&params, sizeof params, from, "kiln_attn_fwd_params");
  if (status != KILN_OK) return status;
  if (params.reserved0 || params.reserved1)
    return kiln_set_error(KILN_E_NEWER_CALLER, "a reserved field of kiln_attn_fwd_params is not zero");
  if (!(params.dropout >= 0.0f && params.dropout < 1.0f))
    return kiln_set_error(KILN_E_ARGUMENT, "flash.attn_fwd: dropout must be at least 0 and below 1");
  if (!(params.softcap >= 0.0f && params.softcap <= 3.0e38f))
    return kiln_set_error(KILN_E_ARGUMENT, "flash.attn_fwd: softcap must be finite and not negative; 0 for none");
  *call = KILN_CALL_INIT;
  if ((status = find(kiln, &call->operation)) != KILN_OK) return status;
  double scale = params.sm_scale == 0.0f ? default_scale(params.q) : static_cast<double>(params.sm_scale);
  kiln_argument* next = arguments;
  const kiln_tensor* const tensors[] = {params.q, params.k, params.v, params.out, params.lse, params.sinks, params.bias,
                                        params.alibi_slopes, params.seed, params.offset, params.cu_seqlens_q,
                                        params.cu_seqlens_k, params.seqused_q, params.seqused_k};
  for (const kiln_tensor* given : tensors)
    *next++ = tensor(given);
  *next++ = integer(params.max_seqlen_q);
  *next++ = integer(params.max_seqlen_k);
  *next++ = real(scale);
  *next++ = real(params.softcap > 0.0f ? static_cast<double>(params.softcap) : 1.0);
  *next++ = real(1.0 / (1.0 - static_cast<double>(params.dropout)));
  *next++ = integer(scale < 0.0);
  *next++ = integer(params.softcap > 0.0f);
  *next++ = integer(static_cast<int64_t>(static_cast<double>(params.dropout) * 4294967296.0));
  *next++ = integer(params.window_left);
  *next++ = integer(params.causal ? 0 : params.window_right);
  *next++ = integer(params.bottom_right != 0);
  call->queue = queue;
  call->arguments = arguments;
  call->argument_count = kArguments;
  call->force_count = params.force_count;
  call->force_keys = params.force_keys;
  call->force_target = params.force_target;
  call->workspace = params.workspace;
  call->workspace_bytes = params.workspace_bytes;
  return KILN_OK;
}

}  // namespace

extern "C" {

kiln_status kiln_attn_fwd(kiln_t kiln, const kiln_queue* queue, const kiln_attn_fwd_params* params) {
  kiln_argument arguments[kArguments];
  kiln_call call;
  kiln_status status = make_call(kiln, queue, params, arguments, &call);
  return status == KILN_OK ? kiln_launch(&call) : status;
}

kiln_status kiln_attn_fwd_workspace(kiln_t kiln, const kiln_queue* queue, const kiln_attn_fwd_params* params,
                                    uint64_t* bytes) {
  kiln_argument arguments[kArguments];
  kiln_call call;
  kiln_status status = make_call(kiln, queue, params, arguments, &call);
  return status == KILN_OK ? kiln_workspace_size(&call, bytes) : status;
}

}  // extern "C"
