// What forward and backward share: a call's fields become those of libkiln.
#pragma once

#include "call.h"
#include "kiln/flash.h"

namespace kiln_aotriton {

// libkiln's tensors and numbers of a call, which borrow from it.
struct Prepared {
  Sequences sequences;
  const kiln_tensor* q;
  const kiln_tensor* k;
  const kiln_tensor* v;
  const kiln_tensor* out;
  kiln_tensor lse;  // where call.lse is given and not short
  Window window;
  float sm_scale;
  // The log-sum-exp of compact sequences is as PyTorch made it for AOTriton 0.11: a row for each head, as long as the
  // longest sequence. It cannot hold those of all sequences, so nothing is read from it.
  bool is_short;
  kiln_tensor shaped[4];
};

// A failure leaves a sentence.
hipError_t prepare(const Scores& call, Prepared* out);

// Fills the fields that the parameters of both passes have in common, but for the log-sum-exp.
template <typename Params>
void fill(const Scores& call, const Prepared& prepared, Params* out) {
  const Placed &rows = prepared.sequences.rows, &keys = prepared.sequences.keys;
  out->q = prepared.q;
  out->k = prepared.k;
  out->v = prepared.v;
  out->out = prepared.out;
  out->bias = call.bias;
  if (!(call.dropout.probability <= 0.0f)) {  // else there may be anything behind these, memory of the host too
    out->seed = call.dropout.seed;
    out->offset = call.dropout.offset;
  }
  out->offset_value = call.dropout.offset_value;
  out->dropout = call.dropout.probability;
  out->sm_scale = prepared.sm_scale;
  out->cu_seqlens_q = rows.cu;
  out->cu_seqlens_k = keys.cu;
  out->seqused_q = rows.used;
  out->seqused_k = keys.used;
  if (rows.cu) out->max_seqlen_q = call.rows.most > 0 ? call.rows.most : 0;
  if (keys.cu) out->max_seqlen_k = call.keys.most > 0 ? call.keys.most : 0;
  out->padded = rows.sums || keys.sums;
  out->window_left = prepared.window.left;
  out->window_right = prepared.window.right;
  out->bottom_right = prepared.window.bottom_right;
}

}  // namespace kiln_aotriton
