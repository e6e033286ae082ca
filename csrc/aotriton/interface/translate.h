// From the structures of one version of AOTriton's interface to a call (../call.h).
#pragma once

#include "../hip.h"

#include <aotriton/flash.h>

#include "../call.h"
#include "views.h"

namespace kiln_aotriton {

static_assert(int{kNoMask} == aotriton::v3::flash::CausalType::None &&
              int{kWindowed} == aotriton::v3::flash::CausalType::WindowedAttention &&
              kTopLeftAligned == aotriton::v3::flash::WindowValue::TopLeftAligned &&
              kBottomRightAligned == aotriton::v3::flash::WindowValue::BottomRightAligned);

// The VarlenType of 0.11 to 0.13; 0.14 takes its numbers too, in parameters of 0.12 and 0.13.
enum VarlenType : int8_t { kDense = 0, kCompact = 1, kPadded = 2, kStrided = 3 };

#if AOTRITON_VERSION_MINOR >= 14
static_assert(Side::kMost == aotriton::v3::flash::VarlenLength::MAX &&
              Side::kCumulative == aotriton::v3::flash::VarlenLength::CUMULATIVE &&
              Side::kIndividual == aotriton::v3::flash::VarlenLength::INDIVIDUAL &&
              Side::kImplied == aotriton::v3::flash::VarlenPosition::IMPLIED &&
              Side::kReused == aotriton::v3::flash::VarlenPosition::REUSE &&
              Side::kListed == aotriton::v3::flash::VarlenPosition::ARRAY);
#else
static_assert(int{kDense} == aotriton::v3::flash::VarlenType::None &&
              int{kCompact} == aotriton::v3::flash::VarlenType::CompactVarlen &&
              int{kPadded} == aotriton::v3::flash::VarlenType::PaddedVarlen);
#if AOTRITON_VERSION_MINOR >= 12
static_assert(int{kStrided} == aotriton::v3::flash::VarlenType::StridedVarlen);
#endif
#endif

// A view of rank 1 as a Side has it.
inline kiln_tensor list_of(const aotriton::TensorView<1>& view) {
  return {view.data_ptr(),
          static_cast<kiln_dtype>(view.dtype()),
          1,
          {static_cast<int64_t>(view.size(0))},
          {static_cast<int64_t>(view.stride(0))},
          {}};
}

// How sequences lie by a VarlenType. As in AOTriton, None with lengths is compact, and either with positions is
// strided. A failure leaves a sentence.
struct OldSequences {
  int8_t varlen_type;
  const aotriton::TensorView<1>&cu_q, &cu_k;
  const aotriton::TensorView<1>*starts_q, *starts_k;  // NULL: the version has none
  int32_t most_q, most_k;
};
hipError_t find_sides(const OldSequences& from, Side* rows, Side* keys);

// How a structure of this params_version says that sequences lie. A failure leaves a sentence.
template <typename Params>
hipError_t find_sides(const Params& in, int32_t version, Scores* out) {
#if AOTRITON_VERSION_MINOR >= 14
  if (version != Params::kVersion) {
    // The structure of 0.12 and 0.13: the same up to its end, which is before varlen_bits, with a varlen_type in what
    // is padding now.
    static_assert(offsetof(Params, window_left) == offsetof(Params, causal_type) + 4 &&
                  offsetof(Params, seqinfo_q1) == offsetof(Params, seqinfo_q0) + 72);
    const int8_t varlen_type = *(reinterpret_cast<const int8_t*>(&in) + offsetof(Params, causal_type) + 1);
    return find_sides(
        {varlen_type, in.seqinfo_q0, in.seqinfo_k0, &in.seqinfo_q1, &in.seqinfo_k1, in.Max_seqlen_q, in.Max_seqlen_k},
        &out->rows, &out->keys);
  }
  const aotriton::v3::flash::VarlenBits bits = in.varlen_bits;
  using aotriton::v3::flash::VarlenStacked;
  out->heads_inside = bits.lse_layout != aotriton::v3::flash::VarlenLseLayout::HT;
  out->rows = {bits.qmode.stacked == VarlenStacked::THD,
               bits.qmode.length,
               bits.qmode.position,
               list_of(in.seqinfo_q0),
               list_of(in.seqinfo_q1),
               in.Max_seqlen_q};
  out->keys = {bits.kmode.stacked == VarlenStacked::THD,
               bits.kmode.length,
               bits.kmode.position,
               list_of(in.seqinfo_k0),
               list_of(in.seqinfo_k1),
               in.Max_seqlen_k};
  return hipSuccess;
#else
  (void)version;
#if AOTRITON_VERSION_MINOR >= 12
  const aotriton::TensorView<1>*starts_q = &in.seq_strides_q, *starts_k = &in.seq_strides_k;
#else
  const aotriton::TensorView<1>*starts_q = nullptr, *starts_k = nullptr;
#endif
  return find_sides(
      {in.varlen_type, in.cu_seqlens_q, in.cu_seqlens_k, starts_q, starts_k, in.Max_seqlen_q, in.Max_seqlen_k},
      &out->rows, &out->keys);
#endif
}

// The fields that the structures of both passes have in common. A failure leaves a sentence.
template <typename Params>
hipError_t translate(const Params& in, int32_t version, const aotriton::v3::flash::attn_options* options,
                     ScoreViews* views, Scores* out) {
  out->q = views->q.given(in.Q);
  out->k = views->k.given(in.K);
  out->v = views->v.given(in.V);
  out->out = views->out.given(in.Out);
  out->bias = views->bias.optional(in.B);
  out->lse = views->lse.optional(in.L);
  out->sm_scale = in.Sm_scale;
  out->dropout = {in.dropout_p, views->seed.number(in.philox_seed_ptr), views->offset.number(in.philox_offset1),
                  static_cast<int64_t>(in.philox_offset2)};
  out->causal_type = in.causal_type;
  out->window_left = in.window_left;
  out->window_right = in.window_right;
  out->force_backend_index = options ? options->force_backend_index : -1;
  return find_sides(in, version, out);
}

}  // namespace kiln_aotriton
