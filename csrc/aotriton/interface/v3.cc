// aotriton::v3::flash.
#include "../refusal.h"
#include "translate.h"

namespace kiln_aotriton {
namespace {

using aotriton::v3::flash::attn_bwd_params;
using aotriton::v3::flash::attn_fwd_params;
using aotriton::v3::flash::attn_options;

// The version of parameters before VarlenBits, which AOTriton 0.14 takes too; the others only take their own.
#if AOTRITON_VERSION_MINOR >= 14
constexpr int32_t kOlderForward = 3, kOlderBackward = 6;
#else
constexpr int32_t kOlderForward = attn_fwd_params::kVersion, kOlderBackward = attn_bwd_params::kVersion;
#endif

hipError_t run(const attn_fwd_params& in, int32_t version, void* stream, const attn_options* options) {
  if (version != attn_fwd_params::kVersion && version != kOlderForward)
    return refuse_version("attn_fwd", version,
                          {AOTRITON_VERSION_MAJOR, AOTRITON_VERSION_MINOR, attn_fwd_params::kVersion});
  ForwardViews views;
  Forward call = {};
  call.slopes = in.A.data_ptr() ? views.slopes.given(in.A) : nullptr;
  call.seed_out = views.seed_out.number(in.philox_seed_output);
  call.offset_out = views.offset_out.number(in.philox_offset_output);
  call.mask = views.mask.optional(in.encoded_softmax);
  call.error = translate(in, version, options, &views, &call);
  return forward(call, stream);
}

hipError_t run(const attn_bwd_params& in, int32_t version, void* stream, const attn_options* options) {
  if (version != attn_bwd_params::kVersion && version != kOlderBackward)
    return refuse_version("attn_bwd", version,
                          {AOTRITON_VERSION_MAJOR, AOTRITON_VERSION_MINOR, attn_bwd_params::kVersion});
  BackwardViews views;
  Backward call = {};
  call.dout = views.dout.given(in.DO);
  call.dq = views.dq.given(in.DQ);
  call.dk = views.dk.given(in.DK);
  call.dv = views.dv.given(in.DV);
  call.dbias = views.dbias.optional(in.DB);
  call.error = translate(in, version, options, &views, &call);
  call.lse = views.lse.given(in.L);  // read, not written: one of nothing is for libkiln to judge
  hipError_t error = backward(call, stream);
  in.D.free();
  in.DQ_ACC.free();
  return error;
}

}  // namespace
}  // namespace kiln_aotriton

namespace AOTRITON_NS::v3::flash {

attn_fwd_params::attn_fwd_params() {}
attn_bwd_params::attn_bwd_params() {}

hipError_t attn_fwd(const attn_fwd_params& params, int32_t params_version, Stream stream, const attn_options* options) {
  return kiln_aotriton::run(params, params_version, stream.native(), options);
}

hipError_t attn_bwd(const attn_bwd_params& params, int32_t params_version, Stream stream, const attn_options* options) {
  return kiln_aotriton::run(params, params_version, stream.native(), options);
}

#if AOTRITON_VERSION_MINOR < 12
hipError_t aiter_bwd(const attn_bwd_params& params, int32_t params_version, Stream stream,
                     const attn_options* options) {
  return kiln_aotriton::run(params, params_version, stream.native(), options);
}
#endif

}  // namespace AOTRITON_NS::v3::flash
