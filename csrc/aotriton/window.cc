#include "window.h"

namespace kiln_aotriton {
namespace {

// One end of a window, counted from where the first row and the first key belong together.
struct Bound {
  int64_t count;
  bool unlimited;

  // Counted from `shift` keys further on, in its own direction; whether that is a count.
  bool counts(int64_t shift, int64_t* out) const {
    *out = unlimited ? -1 : count + shift;
    return unlimited || *out >= 0;
  }
};

bool is_aligned(int32_t value) { return value == kTopLeftAligned || value == kBottomRightAligned; }

bool counts_from(int64_t diagonal, const Bound& left, const Bound& right, Window* out) {
  return left.counts(diagonal, &out->left) && right.counts(-diagonal, &out->right);
}

}  // namespace

bool find_window(int32_t left, int32_t right, const Lengths& lengths, Window* out) {
  int64_t diagonal = lengths.keys - lengths.rows;  // where the last row and the last key belong together
  Bound from = {left, is_aligned(left) || left >= lengths.rows - 1};
  Bound to = {right, !is_aligned(right) && right >= lengths.keys - 1};
  if (right == kTopLeftAligned) to.count = 0;
  if (right == kBottomRightAligned) {
    out->bottom_right = 1;
    if (from.unlimited) {  // of every sequence, whatever its lengths
      out->left = -1;
      out->right = 0;
      return true;
    }
    to.count = diagonal;
    return lengths.exact && counts_from(diagonal, from, to, out);
  }
  out->bottom_right = 0;
  if (counts_from(0, from, to, out)) return true;
  out->bottom_right = 1;
  return lengths.exact && counts_from(diagonal, from, to, out);
}

}  // namespace kiln_aotriton
