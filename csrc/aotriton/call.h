// What forward and backward share: the parameters of AOTriton become those of libkiln.
#pragma once

#include "errors.h"
#include "open.h"
#include "views.h"
#include "window.h"

#include <aotriton/flash.h>

namespace kiln_aotriton {

using aotriton::v3::flash::attn_options;
using aotriton::v3::flash::CausalType;
using aotriton::v3::flash::VarlenType;

// How sequences lie.
struct Layout {
  bool packed;  // one after another
  bool padded;  // each at the begin of its batch, its length from cu_seqlens
  int64_t batch, heads;
  int64_t most_rows, most_keys;  // of padded ones: rows behind them belong to no sequence; else -1
};

// Leaves a sentence on a caller of other headers, whose parameters cannot be read.
hipError_t refuse_version();

// Whether a call asks for a backend that there is. A failure leaves a sentence.
hipError_t check_options(const attn_options* options);

// Finds how sequences lie. A failure leaves a sentence.
template <typename Params>
hipError_t find_layout(const Params& in, Layout* out) {
  if (in.varlen_type < VarlenType::None || in.varlen_type > VarlenType::PaddedVarlen)
    return refuse(KILN_E_UNSUPPORTED, "aotriton: varlen_type must be None, CompactVarlen or PaddedVarlen");
  bool sequences = in.cu_seqlens_q.data_ptr();
  if (in.varlen_type != VarlenType::None && !sequences)
    return refuse(KILN_E_ARGUMENT, "aotriton: varlen_type says that there are cu_seqlens_q, which are not given");
  out->padded = in.varlen_type == VarlenType::PaddedVarlen;
  out->packed = sequences && !out->padded;
  out->batch = static_cast<int64_t>(out->packed ? in.cu_seqlens_q.size(0) - 1 : in.Q.size(0));
  out->heads = static_cast<int64_t>(in.Q.size(1));
  out->most_rows = out->padded && in.Max_seqlen_q > 0 ? in.Max_seqlen_q : -1;
  out->most_keys = out->padded && in.Max_seqlen_k > 0 ? in.Max_seqlen_k : -1;
  return hipSuccess;
}

// The mask of entries that know one.
template <typename Params>
void set_causal(bool is_causal, Params* out) {
  out->causal_type = is_causal ? CausalType::WindowedAttention : CausalType::None;
  out->window_left = out->window_right = aotriton::v3::flash::WindowValue::TopLeftAligned;
}

// A tensor of rows, or of keys, of which no more than `most` count.
inline kiln_tensor* rows_of(Views* views, const aotriton::TensorView<4>& view, int64_t most) {
  kiln_tensor* out = views->given(view);
  if (most >= 0 && most < out->sizes[2]) out->sizes[2] = most;
  return out;
}

// Whether the log-sum-exp of compact sequences is as PyTorch makes it: a row for each head, as long as the longest
// sequence. It cannot hold those of all sequences, so nothing is read from it.
template <typename Params>
bool is_short(const Params& in, const Layout& layout) {
  return layout.packed && layout.batch > 1 && is_given(in.L) && in.L.dtype() == aotriton::kFloat32 &&
         in.L.size(0) == in.Q.size(1) && in.Max_seqlen_q > 0 &&
         in.L.size(1) == static_cast<uint64_t>(in.Max_seqlen_q) && in.L.size(1) < in.Q.size(2);
}

// The log-sum-exp by batches and heads. A failure leaves a sentence.
hipError_t split_heads(const Layout& layout, int64_t rows, kiln_tensor* lse);

// The mask. A failure leaves a sentence.
hipError_t mask_of(int8_t causal_type, int32_t left, int32_t right, const Lengths& lengths, Window* out);

// libkiln takes 0 for 1 / sqrt(head_dim), and AOTriton for 0: the least number there is in its place makes all scores
// 0.
constexpr float kLeastScale = 1.4e-45f;

// The fields that the parameters of both passes have in common. `lse`: of in.L, or NULL.
template <typename In, typename Out>
hipError_t fill_shared(const In& in, const Layout& layout, kiln_tensor* lse, Views* views, Out* out) {
  kiln_tensor* q = rows_of(views, in.Q, layout.most_rows);
  kiln_tensor* k = rows_of(views, in.K, layout.most_keys);
  bool drops = !(in.dropout_p <= 0.0f);  // a number that is none is refused later
  out->q = q;
  out->k = k;
  out->v = rows_of(views, in.V, layout.most_keys);
  out->out = rows_of(views, in.Out, layout.most_rows);
  out->bias = views->optional(in.B);
  out->lse = lse;
  if (drops) {  // else there may be anything behind these, memory of the host too
    out->seed = views->number(in.philox_seed_ptr);
    out->offset = views->number(in.philox_offset1);
  }
  out->offset_value = static_cast<int64_t>(in.philox_offset2);
  out->dropout = in.dropout_p;
  out->sm_scale = in.Sm_scale == 0.0f ? kLeastScale : in.Sm_scale;
  out->padded = layout.padded;
  Lengths lengths = {q->sizes[2], k->sizes[2], !layout.packed && !layout.padded};
  if (!lengths.exact) {
    out->cu_seqlens_q = views->given(in.cu_seqlens_q);
    if (in.cu_seqlens_k.data_ptr()) out->cu_seqlens_k = views->given(in.cu_seqlens_k);
    out->max_seqlen_q = in.Max_seqlen_q;
    out->max_seqlen_k = in.Max_seqlen_k;
    if (in.Max_seqlen_q > 0) lengths.rows = in.Max_seqlen_q;
    if (in.Max_seqlen_k > 0) lengths.keys = in.Max_seqlen_k;
  }
  Window window;
  hipError_t error = mask_of(in.causal_type, in.window_left, in.window_right, lengths, &window);
  if (error) return error;
  out->window_left = window.left;
  out->window_right = window.right;
  out->bottom_right = window.bottom_right;
  return lse ? split_heads(layout, q->sizes[2], lse) : hipSuccess;
}

}  // namespace kiln_aotriton
