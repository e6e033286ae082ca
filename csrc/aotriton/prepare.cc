#include "prepare.h"

#include "errors.h"

namespace kiln_aotriton {
namespace {

// libkiln takes 0 for 1 / sqrt(head_dim), and AOTriton for 0: the least number there is in its place makes all scores
// 0.
constexpr float kLeastScale = 1.4e-45f;

// The log-sum-exp by batches and heads. A failure leaves a sentence.
hipError_t split_heads(const Sequences& sequences, int64_t rows, kiln_tensor* lse) {
  const int64_t lines = lse->sizes[0], length = lse->sizes[1], line = lse->strides[0], step = lse->strides[1];
  const int64_t heads = sequences.heads, batch = sequences.batch, most = sequences.rows.most;
  const bool in_lines = sequences.packed || sequences.rows.split;  // all rows of a head may be one line
  int64_t wanted;
  bool by_sequence = !__builtin_mul_overflow(batch, heads, &wanted) && lines == wanted;
  if (!by_sequence && !(in_lines && lines == heads))
    return refuse(
        KILN_E_ARGUMENT,
        "aotriton: the log-sum-exp must have a row for each head of each batch, or of each sequence; of compact "
        "sequences it may have one for each head, with all their rows");
  if (!sequences.packed && (by_sequence ? length : batch ? length / batch : rows) < rows)
    return refuse(KILN_E_ARGUMENT, "aotriton: the log-sum-exp has fewer columns than Q, or Max_seqlen_q, has rows");
  const bool is_split = sequences.rows.split && !by_sequence;
  lse->rank = 3;
  lse->sizes[0] = by_sequence || is_split ? batch : 1;
  lse->sizes[1] = heads;
  lse->sizes[2] = sequences.packed ? length : rows;
  const uint64_t next = is_split ? static_cast<uint64_t>(most) * static_cast<uint64_t>(step)
                                 : static_cast<uint64_t>(heads) * static_cast<uint64_t>(line);
  lse->strides[0] = static_cast<int64_t>(next);
  lse->strides[1] = line;
  lse->strides[2] = step;
  return hipSuccess;
}

hipError_t mask_of(const Scores& call, const Lengths& lengths, Window* out) {
  *out = {-1, -1, 0};
  if (call.causal_type == kNoMask) return hipSuccess;
  if (call.causal_type != kWindowed)
    return refuse(KILN_E_UNSUPPORTED, "aotriton: causal_type must be None or WindowedAttention");
  if (find_window(call.window_left, call.window_right, lengths, out)) return hipSuccess;
  return refuse(
      KILN_E_UNSUPPORTED,
      "aotriton: no kernel takes this window_left and window_right: counted from the first row and key, or from "
      "the last where all sequences have the same lengths, both must be 0 or more");
}

// Prepared::is_short.
bool is_short(const Scores& call, const Sequences& sequences) {
  const kiln_tensor* lse = call.lse;
  return sequences.packed && sequences.batch > 1 && lse && lse->dtype == KILN_FP32 &&
         lse->sizes[0] == call.q->sizes[1] && call.rows.most > 0 && lse->sizes[1] == call.rows.most &&
         lse->sizes[1] < call.q->sizes[2];
}

}  // namespace

hipError_t prepare(const Scores& call, Prepared* out) {
  if (call.error) return call.error;
  if (call.force_backend_index > 0)
    return refuse(KILN_E_UNSUPPORTED,
                  "aotriton: force_backend_index must be 0, or below for any; there is one backend");
  if (call.heads_inside)
    return refuse(KILN_E_UNSUPPORTED,
                  "aotriton: the log-sum-exp must have heads outside and tokens inside (VarlenLseLayout::HT)");
  Sequences& sequences = out->sequences;
  hipError_t error = place(call.rows, call.keys, *call.q, *call.k, &sequences);
  if (error) return error;
  const int64_t batch = sequences.batch;
  const Placed &rows = sequences.rows, &keys = sequences.keys;
  out->q = shape(rows, batch, call.q, &out->shaped[0]);
  out->k = shape(keys, batch, call.k, &out->shaped[1]);
  out->v = shape(keys, batch, call.v, &out->shaped[2]);
  out->out = shape(rows, batch, call.out, &out->shaped[3]);
  out->is_short = is_short(call, sequences);
  const bool exact = !rows.cu && !rows.used && !keys.cu && !keys.used;
  Lengths lengths = {out->q->sizes[2], out->k->sizes[2], exact};
  if (!exact && call.rows.most > 0) lengths.rows = call.rows.most;
  if (!exact && call.keys.most > 0) lengths.keys = call.keys.most;
  if ((error = mask_of(call, lengths, &out->window))) return error;
  out->sm_scale = call.sm_scale == 0.0f ? kLeastScale : call.sm_scale;
  if (!call.lse || out->is_short) return hipSuccess;
  out->lse = *call.lse;
  return split_heads(sequences, out->q->sizes[2], &out->lse);
}

}  // namespace kiln_aotriton
