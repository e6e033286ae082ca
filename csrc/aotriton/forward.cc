// attn_fwd, and what dropout keeps.
#include "call.h"
#include "fill.h"
#include "refusal.h"

namespace kiln_aotriton {
namespace {

using aotriton::v3::flash::attn_fwd_params;
using aotriton::v3::flash::T0;
using aotriton::v3::flash::T1;
using aotriton::v3::flash::T2;
using aotriton::v3::flash::T4;

// What a mask of dropout is a function of.
struct Dropout {
  float probability;
  T0 seed, offset1;
  uint64_t offset2;
};

hipError_t write_mask(const Session& session, const kiln_queue& queue, const T4& mask, const Dropout& from) {
  Views views;
  kiln_dropout_mask_params params = KILN_DROPOUT_MASK_PARAMS_INIT;
  params.mask = views.given(mask);
  if (!(from.probability <= 0.0f)) {
    params.seed = views.number(from.seed);
    params.offset = views.number(from.offset1);
  }
  params.offset_value = static_cast<int64_t>(from.offset2);
  params.dropout = from.probability;
  return error_of(kiln_dropout_mask(session.kiln, &queue, &params));
}

hipError_t prepare_and_run(const attn_fwd_params& in, void* stream) {
  if (in.A.data_ptr())
    return refuse(KILN_E_UNSUPPORTED, "aotriton: ALiBi slopes (A) are not supported: no backward has them");
  Layout layout;
  hipError_t error = find_layout(in, &layout);
  if (error) return error;
  Views views;
  kiln_attn_fwd_params params = KILN_ATTN_FWD_PARAMS_INIT;
  const bool leaves_lse = is_short(in, layout);
  if ((error = fill_shared(in, layout, leaves_lse ? nullptr : views.optional(in.L), &views, &params))) return error;
  params.seed_out = views.number(in.philox_seed_output);
  params.offset_out = views.number(in.philox_offset_output);
  Session session;
  if ((error = enter(&session))) return error;
  kiln_queue queue = session.queue(stream);
  if ((error = error_of(kiln_attn_fwd(session.kiln, &queue, &params)))) return error;
  if (leaves_lse && (error = fill_with_nan(session.machine->driver, *views.given(in.L), stream))) return error;
  if (!is_given(in.encoded_softmax)) return hipSuccess;
  return write_mask(session, queue, in.encoded_softmax,
                    {in.dropout_p, in.philox_seed_ptr, in.philox_offset1, in.philox_offset2});
}

hipError_t forward(const attn_fwd_params& in, int32_t version, void* stream, const attn_options* options) {
  if (version != attn_fwd_params::kVersion) return give_up("attn_fwd", refuse_version(), stream, nullptr, 0);
  hipError_t error = check_options(options);
  if (!error) error = prepare_and_run(in, stream);
  if (!error) return hipSuccess;
  Views views;
  const kiln_tensor* outputs[] = {views.optional(in.Out), views.optional(in.L), views.optional(in.encoded_softmax)};
  return give_up("attn_fwd", error, stream, outputs);
}

hipError_t simulate(const T4& mask, const Dropout& from, void* stream) {
  Session session;
  hipError_t error = enter(&session);
  if (!error) error = write_mask(session, session.queue(stream), mask, from);
  if (!error) return hipSuccess;
  Views views;
  const kiln_tensor* outputs[] = {views.optional(mask)};
  return give_up("debug_simulate_encoded_softmax", error, stream, outputs);
}

}  // namespace
}  // namespace kiln_aotriton

namespace AOTRITON_NS::v3::flash {

hipError_t attn_fwd(const attn_fwd_params& params, int32_t params_version, Stream stream, const attn_options* options) {
  return kiln_aotriton::forward(params, params_version, stream.native(), options);
}

}  // namespace AOTRITON_NS::v3::flash

namespace AOTRITON_NS::v2::flash {

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
  kiln_aotriton::set_causal(is_causal, &params);
  return kiln_aotriton::forward(params, params.kVersion, stream.native(), nullptr);
}

hipError_t attn_fwd(T4 q, T4 k, T4 v, T4 b, float sm_scale, T2 softmax_lse, T4 out, float dropout_p, T0 philox_seed,
                    T0 philox_offset1, int64_t philox_offset2, T0 philox_seed_output, T0 philox_offset_output,
                    T4 encoded_softmax, bool is_causal, T0 atomic_for_causal, Stream stream, FwdExtraArguments* extra) {
  return attn_fwd_compact_varlen(q, k, v, b, {}, {}, 0, 0, sm_scale, softmax_lse, out, dropout_p, philox_seed,
                                 philox_offset1, philox_offset2, philox_seed_output, philox_offset_output,
                                 encoded_softmax, is_causal, atomic_for_causal, stream, extra);
}

hipError_t debug_simulate_encoded_softmax(T4 r, float dropout_p, T0 philox_seed, T0 philox_offset1,
                                          uint64_t philox_offset2, Stream stream) {
  return kiln_aotriton::simulate(r, {dropout_p, philox_seed, philox_offset1, philox_offset2}, stream.native());
}

}  // namespace AOTRITON_NS::v2::flash
