// kiln_attn_decode: parameters become a call of the recipe's operation.
#include "call.h"

namespace {

using namespace kiln_flash;

using DecodeArguments = Arguments<27>;

kiln_status make_call(kiln_t kiln, const kiln_queue* queue, const kiln_attn_decode_params* from,
                      DecodeArguments* arguments, kiln_call* call) {
  const char* const name = "flash.attn_decode";
  kiln_attn_decode_params params = KILN_ATTN_DECODE_PARAMS_INIT;
  kiln_operation operation;
  kiln_status status = kiln_read_struct(&params, sizeof params, from, "kiln_attn_decode_params");
  if (status != KILN_OK) return status;
  if (params.reserved1)
    return kiln_set_error(KILN_E_NEWER_CALLER, "a reserved field of kiln_attn_decode_params is not zero");
  if ((status = check_softcap(params.softcap)) != KILN_OK) return status;
  if ((status = find(kiln, name, &operation)) != KILN_OK) return status;
  const kiln_tensor* const tensors[] = {
      params.q,           params.k_cache, params.v_cache,     params.out,          params.lse,
      params.k_new,       params.v_new,   params.seqused_k,   params.cu_seqlens_q, params.block_table,
      params.cache_batch, params.leftpad, params.rotary_cos,  params.rotary_sin,   params.k_scale,
      params.v_scale,     params.sinks,   params.alibi_slopes};
  for (const kiln_tensor* tensor : tensors) arguments->tensor(tensor);
  arguments->integer(params.max_seqlen_q);
  arguments->integer(params.max_seqlen_k);
  arguments->integer(params.window_left);
  arguments->integer(params.causal ? 0 : params.window_right);
  arguments->integer(params.splits);
  arguments->real(scale_of(params.sm_scale, params.q));
  arguments->integer(params.softcap > 0.0f);
  arguments->real(params.softcap > 0.0f ? static_cast<double>(params.softcap) : 1.0);
  arguments->integer(params.rotary_interleaved != 0);
  fill(params, queue, operation, *arguments, call);
  return KILN_OK;
}

}  // namespace

extern "C" {

kiln_status kiln_attn_decode(kiln_t kiln, const kiln_queue* queue, const kiln_attn_decode_params* params) {
  DecodeArguments arguments;
  kiln_call call;
  kiln_status status = make_call(kiln, queue, params, &arguments, &call);
  return status == KILN_OK ? kiln_launch(&call) : status;
}

kiln_status kiln_attn_decode_workspace(kiln_t kiln, const kiln_queue* queue, const kiln_attn_decode_params* params,
                                       uint64_t* bytes) {
  DecodeArguments arguments;
  kiln_call call;
  kiln_status status = make_call(kiln, queue, params, &arguments, &call);
  return status == KILN_OK ? kiln_workspace_size(&call, bytes) : status;
}

}  // extern "C"
