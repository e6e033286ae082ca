// libtorch's numbers for devices, layouts and dtypes, asked for once, when the library is loaded.
#pragma once

#include "kiln/kiln.h"

namespace kiln_torch {

constexpr int kDtypes = 12;

struct Numbers {
  int32_t cpu, cuda, strided;
  int32_t torch_dtypes[kDtypes];  // in the order of kKilnDtypes
};
extern Numbers numbers;
constexpr kiln_dtype kKilnDtypes[kDtypes] = {KILN_BF16,  KILN_FP16, KILN_FP32, KILN_INT32, KILN_INT64,   KILN_FP8E4M3,
                                             KILN_UINT8, KILN_FP64, KILN_INT8, KILN_INT16, KILN_FP8E5M2, KILN_BOOL};

void ask_numbers();

// 0: Kiln has none such.
inline kiln_dtype dtype_of(int32_t torch_dtype) {
  for (int i = 0; i < kDtypes; ++i)
    if (numbers.torch_dtypes[i] == torch_dtype) return kKilnDtypes[i];
  return 0;
}
inline int32_t torch_dtype_of(kiln_dtype dtype) {
  for (int i = 0; i < kDtypes; ++i)
    if (kKilnDtypes[i] == dtype) return numbers.torch_dtypes[i];
  return -1;
}

}  // namespace kiln_torch
