/* Kiln: AOTriton's interface up to 0.12, entries with flat arguments. aotriton/flash.h includes it, and says what they
 * mean. */
#ifndef AOTRITON_V2_API_FLASH_ATTN_H /* defined by callers of 0.12 and later that do not want this header */
#define AOTRITON_V2_API_FLASH_ATTN_H

#include <aotriton/config.h>
#include <aotriton/cpp_tune.h>
#include <aotriton/runtime.h>
#include <aotriton/util.h>

namespace AOTRITON_NS::v2::flash {

using T4 = AOTRITON_NS::TensorView<4>;
using T2 = AOTRITON_NS::TensorView<2>;
using T1 = AOTRITON_NS::TensorView<1>;
using T0 = AOTRITON_NS::TensorView<0>;

struct AOTRITON_API FwdExtraArguments : public CppTune {};
struct AOTRITON_API BwdExtraArguments {};
struct AOTRITON_API FusedBwdExtraArguments : public CppTune {};

/* is_causal, here and below: the first row and the first key belong together. */
hipError_t AOTRITON_API attn_fwd(T4 q, T4 k, T4 v, T4 b, float sm_scale, T2 softmax_lse, T4 out, float dropout_p,
                                 T0 philox_seed, T0 philox_offset1, int64_t philox_offset2, T0 philox_seed_output,
                                 T0 philox_offset_output, T4 encoded_softmax, bool is_causal, T0 atomic_for_causal,
                                 AOTRITON_NS::Stream stream, FwdExtraArguments* extargs = nullptr);
/* As it was up to 0.8: without a counter. */
hipError_t AOTRITON_API attn_fwd(T4 q, T4 k, T4 v, T4 b, float sm_scale, T2 softmax_lse, T4 out, float dropout_p,
                                 T0 philox_seed, T0 philox_offset1, int64_t philox_offset2, T0 philox_seed_output,
                                 T0 philox_offset_output, T4 encoded_softmax, bool is_causal,
                                 AOTRITON_NS::Stream stream, FwdExtraArguments* extargs = nullptr);

/* Sequences lie one after another: the batch of q, k, v and out is 1. encoded_softmax is [sequences, heads,
 * max_seqlen_q, max_seqlen_k]. */
hipError_t AOTRITON_API attn_fwd_compact_varlen(T4 q, T4 k, T4 v, T4 b, T1 cu_seqlens_q, T1 cu_seqlens_k,
                                                int32_t max_seqlen_q, int32_t max_seqlen_k, float sm_scale,
                                                T2 softmax_lse, T4 out, float dropout_p, T0 philox_seed,
                                                T0 philox_offset1, int64_t philox_offset2, T0 philox_seed_output,
                                                T0 philox_offset_output, T4 encoded_softmax, bool is_causal,
                                                T0 atomic_for_causal, AOTRITON_NS::Stream stream,
                                                FwdExtraArguments* extargs = nullptr);
/* As it was up to 0.8. */
hipError_t AOTRITON_API attn_fwd_compact_varlen(T4 q, T4 k, T4 v, T4 b, T1 cu_seqlens_q, T1 cu_seqlens_k,
                                                int32_t max_seqlen_q, int32_t max_seqlen_k, float sm_scale,
                                                T2 softmax_lse, T4 out, float dropout_p, T0 philox_seed,
                                                T0 philox_offset1, int64_t philox_offset2, T0 philox_seed_output,
                                                T0 philox_offset_output, T4 encoded_softmax, bool is_causal,
                                                AOTRITON_NS::Stream stream, FwdExtraArguments* extargs = nullptr);

/* delta: left alone. */
hipError_t AOTRITON_API attn_bwd(T4 q, T4 k, T4 v, T4 b, float sm_scale, T4 out, T4 dout, T4 dq, T4 dk, T4 dv, T4 db,
                                 T2 softmax_lse, T2 delta, float dropout_p, T0 philox_seed, T0 philox_offset1,
                                 int64_t philox_offset2, bool is_causal, AOTRITON_NS::Stream stream,
                                 BwdExtraArguments* extargs = nullptr);

/* The same, without a delta. */
hipError_t AOTRITON_API attn_bwd_fused(T4 q, T4 k, T4 v, T4 b, float sm_scale, T4 out, T4 dout, T4 dq, T4 dk, T4 dv,
                                       T4 db, T2 softmax_lse, float dropout_p, T0 philox_seed, T0 philox_offset1,
                                       int64_t philox_offset2, bool is_causal, AOTRITON_NS::Stream stream,
                                       FusedBwdExtraArguments* extargs = nullptr);

hipError_t AOTRITON_API attn_bwd_compact_varlen(T4 q, T4 k, T4 v, T1 cu_seqlens_q, T1 cu_seqlens_k,
                                                int32_t max_seqlen_q, int32_t max_seqlen_k, T4 b, float sm_scale,
                                                T4 out, T4 dout, T4 dq, T4 dk, T4 dv, T4 db, T2 softmax_lse, T2 delta,
                                                float dropout_p, T0 philox_seed, T0 philox_offset1,
                                                int64_t philox_offset2, bool is_causal, AOTRITON_NS::Stream stream,
                                                BwdExtraArguments* extargs = nullptr);

}  // namespace AOTRITON_NS::v2::flash

#endif
