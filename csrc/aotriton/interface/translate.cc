#include "translate.h"

#include "../errors.h"

namespace kiln_aotriton {
namespace {

Side side(bool stacked, Side::Length length, Side::Position position, const kiln_tensor& lengths,
          const kiln_tensor& positions, int32_t most) {
  return {stacked, length, position, lengths, positions, most};
}

}  // namespace

hipError_t find_sides(const OldSequences& from, Side* rows, Side* keys) {
  const bool has_starts = from.starts_q != nullptr;
  if (from.varlen_type < kDense || from.varlen_type > (has_starts ? kStrided : kPadded))
    return refuse(KILN_E_UNSUPPORTED, has_starts ? "aotriton: varlen_type must be None, CompactVarlen, PaddedVarlen or "
                                                   "StridedVarlen"
                                                 : "aotriton: varlen_type must be None, CompactVarlen or PaddedVarlen");
  const kiln_tensor none = {}, lengths_q = list_of(from.cu_q), lengths_k = list_of(from.cu_k);
  const bool has_lengths = lengths_q.data != nullptr, has_keys = lengths_k.data != nullptr;
  if (from.varlen_type != kDense && !has_lengths)
    return refuse(KILN_E_ARGUMENT, "aotriton: varlen_type says that there are cu_seqlens_q, which are not given");
  *rows = *keys = side(false, Side::kMost, Side::kImplied, none, none, 0);
  if (!has_lengths) return hipSuccess;
  const bool has_positions = has_starts && from.starts_q->data_ptr();
  if (from.varlen_type == kStrided || (from.varlen_type != kPadded && has_positions)) {
    *rows = side(true, Side::kCumulative, Side::kListed, lengths_q, list_of(*from.starts_q), from.most_q);
    *keys = side(true, Side::kCumulative, Side::kListed, lengths_k, list_of(*from.starts_k), from.most_k);
    return hipSuccess;
  }
  const bool stacked = from.varlen_type != kPadded;
  const Side::Position position = stacked ? Side::kReused : Side::kImplied;
  *rows = side(stacked, Side::kCumulative, position, lengths_q, none, from.most_q);
  // Without lengths of their own keys have a batch for each sequence.
  keys->most = stacked ? 0 : from.most_k;
  if (has_keys) *keys = side(stacked, Side::kCumulative, position, lengths_k, none, from.most_k);
  return hipSuccess;
}

}  // namespace kiln_aotriton
