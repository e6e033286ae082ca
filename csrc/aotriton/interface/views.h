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

// The descriptions of one call.
class Views {
 public:
  // One that is always given: what has no elements is for the library to judge.
  template <int kRank>
  kiln_tensor* given(const aotriton::TensorView<kRank>& view) {
    kiln_tensor* out = next(view.data_ptr(), view.dtype(), kRank);
    for (int i = 0; i < kRank; ++i) {
      out->sizes[i] = static_cast<int64_t>(view.size(i));
      out->strides[i] = static_cast<int64_t>(view.stride(i));
    }
    return out;
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
  static constexpr int kCapacity = 20;  // attn_bwd has most, 15

  kiln_tensor* next(void* data, aotriton::DType dtype, int rank) {
    kiln_tensor* out = &views_[count_ < kCapacity - 1 ? count_++ : count_];
    *out = {};
    out->data = data;
    out->dtype = static_cast<kiln_dtype>(dtype);
    out->rank = rank;
    return out;
  }

  kiln_tensor views_[kCapacity];
  int count_ = 0;
};

// Both number dtypes alike.
static_assert(int{aotriton::kFloat32} == KILN_FP32 && int{aotriton::kFloat16} == KILN_FP16 &&
              int{aotriton::kBFloat16} == KILN_BF16 && int{aotriton::kInt32} == KILN_INT32 &&
              int{aotriton::kInt64} == KILN_INT64 && int{aotriton::kUInt8} == KILN_UINT8 &&
              int{aotriton::kUInt64} == KILN_UINT64);

}  // namespace kiln_aotriton
