// attn_bwd, under all its names.
#include "call.h"

namespace kiln_aotriton {
namespace {

using aotriton::TensorView;
using aotriton::v3::flash::attn_bwd_params;
using Buffer = aotriton::v3::flash::LT2;

// What libkiln asks for besides the bytes of delta is their rounding, up to KILN_WORKSPACE_ALIGNMENT; no kernel touches
// it.
constexpr uint64_t rounded(uint64_t bytes) {
  return (bytes + KILN_WORKSPACE_ALIGNMENT - 1) & ~uint64_t{KILN_WORKSPACE_ALIGNMENT - 1};
}

// The bytes of delta, a number for each row of each head; 0 if there are none, or more than a number can say.
uint64_t bytes_of_delta(const kiln_tensor& q) {
  uint64_t bytes = sizeof(float);
  for (int i = 0; i < 3; ++i)
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(q.sizes[i]), &bytes)) return 0;
  return bytes;
}

// Whether a caller's buffer has so many bytes, contiguous and aligned.
bool holds(const TensorView<2>& buffer, uint64_t bytes) {
  bool contiguous = buffer.stride(1) == 1 && (buffer.stride(0) == buffer.size(1) || buffer.size(0) == 1);
  bool aligned = reinterpret_cast<uintptr_t>(buffer.data_ptr()) % KILN_WORKSPACE_ALIGNMENT == 0;
  uint64_t elements;
  return buffer && contiguous && aligned && buffer.dtype() == aotriton::kFloat32 &&
         !__builtin_mul_overflow(buffer.size(0), buffer.size(1), &elements) && elements >= bytes / sizeof(float);
}

// Whether libkiln can work in a caller's buffer, which is asked for only if it may do.
bool find_in(const Buffer& buffer, const kiln_tensor& q, uint64_t needed, void** out) {
  uint64_t delta = bytes_of_delta(q);
  if (!buffer.acquire || needed != rounded(delta)) return false;
  TensorView<2> view = buffer.acquire(buffer.cookie);
  *out = view.data_ptr();
  return holds(view, delta);
}

hipError_t run(const Session& session, const kiln_queue& queue, const Buffer& buffer, kiln_attn_bwd_params* params) {
  uint64_t needed;
  hipError_t error = error_of(kiln_attn_bwd_workspace(session.kiln, &queue, params, &needed));
  if (error) return error;
  params->workspace_bytes = needed;
  const Driver& driver = session.machine->driver;
  void* own = nullptr;
  if (needed && !find_in(buffer, *params->q, needed, &params->workspace)) {
    if ((error = allocate(driver, needed, queue.stream, &own))) return error;
    params->workspace = own;
  }
  error = error_of(kiln_attn_bwd(session.kiln, &queue, params));
  return own ? release(driver, own, queue.stream, error) : error;
}

hipError_t prepare_and_run(const attn_bwd_params& in, void* stream) {
  Layout layout;
  hipError_t error = find_layout(in, &layout);
  if (error) return error;
  Views views;
  kiln_attn_bwd_params params = KILN_ATTN_BWD_PARAMS_INIT;
  if ((error = fill_shared(in, layout, views.given(in.L), &views, &params))) return error;
  params.dout = rows_of(&views, in.DO, layout.most_rows);
  params.dq = rows_of(&views, in.DQ, layout.most_rows);
  params.dk = rows_of(&views, in.DK, layout.most_keys);
  params.dv = rows_of(&views, in.DV, layout.most_keys);
  params.dbias = views.optional(in.DB);
  Session session;
  if ((error = enter(&session))) return error;
  return run(session, session.queue(stream), in.D, &params);
}

hipError_t backward(const attn_bwd_params& in, int32_t version, void* stream, const attn_options* options) {
  bool is_known = version == attn_bwd_params::kVersion;
  hipError_t error = check_call(is_known, options);
  if (!error) error = prepare_and_run(in, stream);
  if (is_known) {
    in.D.free();
    in.DQ_ACC.free();
  }
  return error;
}

// A buffer that is there already.
Buffer ready(TensorView<2>* view) {
  Buffer out;
  if (!*view) return out;
  out.cookie = view;
  out.acquire = [](void* cookie) { return *static_cast<TensorView<2>*>(cookie); };
  return out;
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
                                   T4 db, T2 softmax_lse, T2 delta, float dropout_p, T0 philox_seed, T0 philox_offset1,
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
  params.D = kiln_aotriton::ready(&delta);
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
                    T2 delta, float dropout_p, T0 philox_seed, T0 philox_offset1, int64_t philox_offset2,
                    bool is_causal, Stream stream, BwdExtraArguments* extra) {
  return attn_bwd_compact_varlen(q, k, v, {}, {}, 0, 0, b, sm_scale, out, dout, dq, dk, dv, db, softmax_lse, delta,
                                 dropout_p, philox_seed, philox_offset1, philox_offset2, is_causal, stream, extra);
}

hipError_t attn_bwd_fused(T4 q, T4 k, T4 v, T4 b, float sm_scale, T4 out, T4 dout, T4 dq, T4 dk, T4 dv, T4 db,
                          T2 softmax_lse, float dropout_p, T0 philox_seed, T0 philox_offset1, int64_t philox_offset2,
                          bool is_causal, Stream stream, FusedBwdExtraArguments*) {
  return attn_bwd_compact_varlen(q, k, v, {}, {}, 0, 0, b, sm_scale, out, dout, dq, dk, dv, db, softmax_lse, {},
                                 dropout_p, philox_seed, philox_offset1, philox_offset2, is_causal, stream, nullptr);
}

}  // namespace AOTRITON_NS::v2::flash
