// From AOTriton's views to the descriptions that libkiln takes.
#pragma once

#include "../hip.h"

#include <aotriton/util.h>

#include "kiln/kiln.h"

namespace kiln_aotriton {

// Whether a view has an address, and elements.
template <int kRank>
bool is_given(const aotriton::TensorView<kRank>& view) {
  bool given = view.data_ptr() != nullptr;
  for (int i = 0; i < kRank; ++i) given &= view.size(i) != 0;
  return given;
}

// Room for the description of a view.
class Slot {
 public:
  // One that is always given: what has no elements is for the library to judge.
  template <int kRank>
  kiln_tensor* given(const aotriton::TensorView<kRank>& view) {
    tensor_ = {};
    tensor_.data = view.data_ptr();
    tensor_.dtype = static_cast<kiln_dtype>(view.dtype());
    tensor_.rank = kRank;
    for (int i = 0; i < kRank; ++i) {
      tensor_.sizes[i] = static_cast<int64_t>(view.size(i));
      tensor_.strides[i] = static_cast<int64_t>(view.stride(i));
    }
    return &tensor_;
  }

  // NULL where it is not given.
  template <int kRank>
  kiln_tensor* optional(const aotriton::TensorView<kRank>& view) {
    return is_given(view) ? given(view) : nullptr;
  }

  // An integer of 64 bits, which may be called unsigned.
  kiln_tensor* number(const aotriton::TensorView<0>& view) {
    kiln_tensor* out = optional(view);
    if (out && view.dtype() == aotriton::kUInt64) out->dtype = KILN_INT64;
    return out;
  }

 private:
  kiln_tensor tensor_;
};

// The descriptions that a call borrows: one for each tensor, by name, so that no two of a call can share one.
struct ScoreViews {
  Slot q, k, v, out, bias, lse, seed, offset;
};

struct ForwardViews : ScoreViews {
  Slot slopes, seed_out, offset_out, mask;
};

struct BackwardViews : ScoreViews {
  Slot dout, dq, dk, dv, dbias;
};

// Both number dtypes alike.
static_assert(int{aotriton::kFloat32} == KILN_FP32 && int{aotriton::kFloat16} == KILN_FP16 &&
              int{aotriton::kBFloat16} == KILN_BF16 && int{aotriton::kInt8} == KILN_INT8 &&
              int{aotriton::kInt16} == KILN_INT16 && int{aotriton::kInt32} == KILN_INT32 &&
              int{aotriton::kInt64} == KILN_INT64 && int{aotriton::kUInt8} == KILN_UINT8 &&
              int{aotriton::kUInt16} == KILN_UINT16 && int{aotriton::kUInt32} == KILN_UINT32 &&
              int{aotriton::kUInt64} == KILN_UINT64);

}  // namespace kiln_aotriton
