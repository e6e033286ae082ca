// kiln_attn_decode: parameters become a call of the recipe's operation.
#include "call.h"

namespace {

using namespace kiln_flash;

struct Decode {
  using Params = kiln_attn_decode_params;
  static constexpr Params kDefaults = KILN_ATTN_DECODE_PARAMS_INIT;
  static constexpr const char* kOperation = "flash.attn_decode";
  static constexpr const char* kParams = "kiln_attn_decode_params";

  static kiln_status check(const Params& params) {
    if (params.reserved1)
      return kiln_set_error(KILN_E_NEWER_CALLER, "a reserved field of kiln_attn_decode_params is not zero");
    return check_scores(params);
  }

  static void add(const Params& params, Arguments* to) {
    to->tensors({params.q, params.k_cache, params.v_cache, params.out, params.lse, params.k_new, params.v_new,
                 params.seqused_k, params.cu_seqlens_q, params.block_table, params.cache_batch, params.leftpad,
                 params.rotary_cos, params.rotary_sin, params.k_scale, params.v_scale, params.sinks,
                 params.alibi_slopes});
    to->integer(params.max_seqlen_q);
    to->integer(params.max_seqlen_k);
    to->integer(params.window_left);
    to->integer(params.causal ? 0 : params.window_right);
    to->integer(params.splits);
    to->real(scale_of(params.sm_scale, params.q));
    add_softcap(params.softcap, to);
    to->integer(params.rotary_interleaved != 0);
  }
};

}  // namespace

extern "C" {

kiln_status kiln_attn_decode(kiln_t kiln, const kiln_queue* queue, const kiln_attn_decode_params* params) {
  return enter<Decode>(kiln, queue, params, kiln_launch);
}

kiln_status kiln_attn_decode_workspace(kiln_t kiln, const kiln_queue* queue, const kiln_attn_decode_params* params,
                                       uint64_t* bytes) {
  return enter<Decode>(kiln, queue, params, kiln_workspace_size, bytes);
}

kiln_status kiln_attn_decode_prepare(kiln_t kiln, const kiln_queue* queue, const kiln_attn_decode_params* params) {
  return enter<Decode>(kiln, queue, params, kiln_prepare);
}

kiln_status kiln_attn_decode_explain(kiln_t kiln, const kiln_queue* queue, const kiln_attn_decode_params* params,
                                     kiln_variant_fn visit, void* user) {
  return enter<Decode>(kiln, queue, params, kiln_explain, visit, user);
}

}  // extern "C"
