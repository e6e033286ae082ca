// attn_bwd, under all its names.
#include "again.h"
#include "call.h"
#include "refusal.h"

namespace kiln_aotriton {
namespace {

using aotriton::v3::flash::attn_bwd_params;

// Works in memory that is taken on the stream, and given back on it. With `again`, params->lse stands for what is
// worked out once more.
hipError_t run(const Session& session, const kiln_queue& queue, kiln_tensor* again, kiln_attn_bwd_params* params) {
  uint64_t needed;
  hipError_t error = error_of(kiln_attn_bwd_workspace(session.kiln, &queue, params, &needed));
  if (error) return error;
  params->workspace_bytes = needed;
  const Driver& driver = session.machine->driver;
  if (needed && (error = allocate(driver, needed, queue.stream, &params->workspace))) return error;
  void* lse = nullptr;
  if (again) error = find_lse(session, queue, *params, again, &lse);
  if (!error) {
    error = error_of(kiln_attn_bwd(session.kiln, &queue, params));
    if (lse) error = release(driver, lse, queue.stream, error);
  }
  return params->workspace ? release(driver, params->workspace, queue.stream, error) : error;
}

hipError_t prepare_and_run(const attn_bwd_params& in, void* stream) {
  Layout layout;
  hipError_t error = find_layout(in, &layout);
  if (error) return error;
  Views views;
  kiln_attn_bwd_params params = KILN_ATTN_BWD_PARAMS_INIT;
  const bool lacks_lse = is_short(in, layout);
  if ((error = fill_shared(in, layout, lacks_lse ? nullptr : views.given(in.L), &views, &params))) return error;
  kiln_tensor again;
  if (lacks_lse) {
    again = all_lse(*params.q, in.L.data_ptr());
    params.lse = &again;
  }
  params.dout = rows_of(&views, in.DO, layout.most_rows);
  params.dq = rows_of(&views, in.DQ, layout.most_rows);
  params.dk = rows_of(&views, in.DK, layout.most_keys);
  params.dv = rows_of(&views, in.DV, layout.most_keys);
  params.dbias = views.optional(in.DB);
  Session session;
  if ((error = enter(&session))) return error;
  return run(session, session.queue(stream), lacks_lse ? &again : nullptr, &params);
}

hipError_t backward(const attn_bwd_params& in, int32_t version, void* stream, const attn_options* options) {
  if (version != attn_bwd_params::kVersion) return give_up("attn_bwd", refuse_version(), stream, nullptr, 0);
  hipError_t error = check_options(options);
  if (!error) error = prepare_and_run(in, stream);
  in.D.free();
  in.DQ_ACC.free();
  if (!error) return hipSuccess;
  Views views;
  const kiln_tensor* outputs[] = {views.optional(in.DQ), views.optional(in.DK), views.optional(in.DV),
                                  views.optional(in.DB)};
  return give_up("attn_bwd", error, stream, outputs);
}

}  // namespace
}  // namespace kiln_aotriton

namespace AOTRITON_NS::v3::flash {

hipError_t attn_bwd(const attn_bwd_params& params, int32_t params_version, Stream stream, const attn_options* options) {
  return kiln_aotriton::backward(params, params_version, stream.native(), options);
}

hipError_t aiter_bwd(const attn_bwd_params& params, int32_t params_version, Stream stream,
                     const attn_options* options) {
  return kiln_aotriton::backward(params, params_version, stream.native(), options);
}

}  // namespace AOTRITON_NS::v3::flash

namespace AOTRITON_NS::v2::flash {

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
  kiln_aotriton::set_causal(is_causal, &params);
  return kiln_aotriton::backward(params, params.kVersion, stream.native(), nullptr);
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
