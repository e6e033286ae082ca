// How results lie in memory, for all that makes them through a framework; kiln/layout.py has the same for Python.
#pragma once

#include "kiln/kiln.h"

namespace kiln_layout {

// Of a size of 0 PyTorch makes strides as if it were 1.
inline int64_t at_least_one(int64_t size) { return size > 0 ? size : 1; }

// A result of the rows of `model`, which is [batch, heads, rows, d], and of `width` columns: dense, rows outside of
// heads if the caller's tensors have them first, or if they lie so in `model`. Without memory.
inline kiln_tensor result_like(const kiln_tensor& model, int64_t width, bool rows_first) {
  const bool rows_outside = rows_first || model.strides[2] > model.strides[1];
  const int outer = rows_outside ? 2 : 1, inner = 3 - outer;
  kiln_tensor result = model;
  result.sizes[3] = width;
  result.strides[3] = 1;
  result.strides[inner] = at_least_one(width);
  result.strides[outer] = result.strides[inner] * at_least_one(model.sizes[inner]);
  result.strides[0] = result.strides[outer] * at_least_one(model.sizes[outer]);
  return result;
}

// Sizes or strides in the order in which the caller has dimensions.
inline void in_callers_order(const int64_t (&from)[KILN_MAX_RANK], bool rows_first, int64_t (&to)[4]) {
  const int heads = rows_first ? 2 : 1;
  to[0] = from[0], to[heads] = from[1], to[3 - heads] = from[2], to[3] = from[3];
}

}  // namespace kiln_layout
