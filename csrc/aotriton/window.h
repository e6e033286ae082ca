// AOTriton's windows in libkiln's words.
#pragma once

#include <stdint.h>

namespace kiln_aotriton {

// AOTriton's CausalType and WindowValue.
constexpr int8_t kNoMask = 0, kWindowed = 3;
constexpr int32_t kTopLeftAligned = -2147483647, kBottomRightAligned = -2147483646;

// As in kiln_attn_fwd_params.
struct Window {
  int64_t left, right;  // -1: no limit
  int32_t bottom_right;
};

// What the lengths of sequences are known of.
struct Lengths {
  int64_t rows, keys;  // no sequence has more
  bool exact;          // each has that many
};

// Row i sees the keys from i - left to i + right, either below 0 too, or a WindowValue. False where that cannot be said
// by counts from the first or the last row and key, neither below 0.
bool find_window(int32_t left, int32_t right, const Lengths& lengths, Window* out);

}  // namespace kiln_aotriton
