// aotriton::v2::flash, attention: what 0.12 and those before it have besides v3. Each function makes a structure of its
// arguments, and calls v3.
#include "../hip.h"

#include <aotriton/flash.h>

#if AOTRITON_VERSION_MINOR < 13

namespace AOTRITON_NS::v2::flash {
namespace {

// The mask of entries that know one.
template <typename Params>
void set_causal(bool is_causal, Params* out) {
  out->causal_type = is_causal ? v3::flash::CausalType::WindowedAttention : v3::flash::CausalType::None;
  out->window_left = out->window_right = v3::flash::WindowValue::TopLeftAligned;
}

}  // namespace

hipError_t attn_fwd_compact_varlen(T4 q, T4 k, T4 v, T4 b, T1 cu_seqlens_q, T1 cu_seqlens_k, int32_t max_seqlen_q,
                                   int32_t max_seqlen_k, float sm_scale, T2 softmax_lse, T4 out, float dropout_p,
                                   T0 philox_seed, T0 philox_offset1, int64_t philox_offset2, T0 philox_seed_output,
                                   T0 philox_offset_output, T4 encoded_softmax, bool is_causal, T0 atomic_for_causal,
                                   Stream stream, FwdExtraArguments*) {
  v3::flash::attn_fwd_params params;
  params.Q = q;
  params.K = k;
  params.V = v;
  params.B = b;
  params.Sm_scale = sm_scale;
  params.L = softmax_lse;
  params.Out = out;
  params.cu_seqlens_q = cu_seqlens_q;
  params.cu_seqlens_k = cu_seqlens_k;
  params.Max_seqlen_q = max_seqlen_q;
  params.Max_seqlen_k = max_seqlen_k;
  params.dropout_p = dropout_p;
  params.philox_seed_ptr = philox_seed;
  params.philox_offset1 = philox_offset1;
  params.philox_offset2 = static_cast<uint64_t>(philox_offset2);
  params.philox_seed_output = philox_seed_output;
  params.philox_offset_output = philox_offset_output;
  params.encoded_softmax = encoded_softmax;
  params.persistent_atomic_counter = atomic_for_causal;
  set_causal(is_causal, &params);
  return v3::flash::attn_fwd(params, params.kVersion, stream);
}

hipError_t attn_fwd_compact_varlen(T4 q, T4 k, T4 v, T4 b, T1 cu_seqlens_q, T1 cu_seqlens_k, int32_t max_seqlen_q,
                                   int32_t max_seqlen_k, float sm_scale, T2 softmax_lse, T4 out, float dropout_p,
                                   T0 philox_seed, T0 philox_offset1, int64_t philox_offset2, T0 philox_seed_output,
                                   T0 philox_offset_output, T4 encoded_softmax, bool is_causal, Stream stream,
                                   FwdExtraArguments* extra) {
  return attn_fwd_compact_varlen(q, k, v, b, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, sm_scale,
                                 softmax_lse, out, dropout_p, philox_seed, philox_offset1, philox_offset2,
                                 philox_seed_output, philox_offset_output, encoded_softmax, is_causal, T0(), stream,
                                 extra);
}

hipError_t attn_fwd(T4 q, T4 k, T4 v, T4 b, float sm_scale, T2 softmax_lse, T4 out, float dropout_p, T0 philox_seed,
                    T0 philox_offset1, int64_t philox_offset2, T0 philox_seed_output, T0 philox_offset_output,
                    T4 encoded_softmax, bool is_causal, T0 atomic_for_causal, Stream stream, FwdExtraArguments* extra) {
  return attn_fwd_compact_varlen(q, k, v, b, {}, {}, 0, 0, sm_scale, softmax_lse, out, dropout_p, philox_seed,
                                 philox_offset1, philox_offset2, philox_seed_output, philox_offset_output,
                                 encoded_softmax, is_causal, atomic_for_causal, stream, extra);
}

hipError_t attn_fwd(T4 q, T4 k, T4 v, T4 b, float sm_scale, T2 softmax_lse, T4 out, float dropout_p, T0 philox_seed,
                    T0 philox_offset1, int64_t philox_offset2, T0 philox_seed_output, T0 philox_offset_output,
                    T4 encoded_softmax, bool is_causal, Stream stream, FwdExtraArguments* extra) {
  return attn_fwd(q, k, v, b, sm_scale, softmax_lse, out, dropout_p, philox_seed, philox_offset1, philox_offset2,
                  philox_seed_output, philox_offset_output, encoded_softmax, is_causal, T0(), stream, extra);
}

hipError_t attn_bwd_compact_varlen(T4 q, T4 k, T4 v, T1 cu_seqlens_q, T1 cu_seqlens_k, int32_t max_seqlen_q,
                                   int32_t max_seqlen_k, T4 b, float sm_scale, T4 out, T4 dout, T4 dq, T4 dk, T4 dv,
                                   T4 db, T2 softmax_lse, T2, float dropout_p, T0 philox_seed, T0 philox_offset1,
                                   int64_t philox_offset2, bool is_causal, Stream stream, BwdExtraArguments*) {
  v3::flash::attn_bwd_params params;
  params.Q = q;
  params.K = k;
  params.V = v;
  params.B = b;
  params.Sm_scale = sm_scale;
  params.Out = out;
  params.DO = dout;
  params.DK = dk;
  params.DV = dv;
  params.DQ = dq;
  params.DB = db;
  params.L = softmax_lse;
  params.cu_seqlens_q = cu_seqlens_q;
  params.cu_seqlens_k = cu_seqlens_k;
  params.Max_seqlen_q = max_seqlen_q;
  params.Max_seqlen_k = max_seqlen_k;
  params.dropout_p = dropout_p;
  params.philox_seed_ptr = philox_seed;
  params.philox_offset1 = philox_offset1;
  params.philox_offset2 = static_cast<uint64_t>(philox_offset2);
  set_causal(is_causal, &params);
  return v3::flash::attn_bwd(params, params.kVersion, stream);
}

hipError_t attn_bwd(T4 q, T4 k, T4 v, T4 b, float sm_scale, T4 out, T4 dout, T4 dq, T4 dk, T4 dv, T4 db, T2 softmax_lse,
                    T2, float dropout_p, T0 philox_seed, T0 philox_offset1, int64_t philox_offset2, bool is_causal,
                    Stream stream, BwdExtraArguments* extra) {
  return attn_bwd_compact_varlen(q, k, v, {}, {}, 0, 0, b, sm_scale, out, dout, dq, dk, dv, db, softmax_lse, {},
                                 dropout_p, philox_seed, philox_offset1, philox_offset2, is_causal, stream, extra);
}

hipError_t attn_bwd_fused(T4 q, T4 k, T4 v, T4 b, float sm_scale, T4 out, T4 dout, T4 dq, T4 dk, T4 dv, T4 db,
                          T2 softmax_lse, float dropout_p, T0 philox_seed, T0 philox_offset1, int64_t philox_offset2,
                          bool is_causal, Stream stream, FusedBwdExtraArguments*) {
  return attn_bwd_compact_varlen(q, k, v, {}, {}, 0, 0, b, sm_scale, out, dout, dq, dk, dv, db, softmax_lse, {},
                                 dropout_p, philox_seed, philox_offset1, philox_offset2, is_causal, stream, nullptr);
}

}  // namespace AOTRITON_NS::v2::flash

#endif
