// libtorch's numbers for devices, layouts and dtypes, asked for once, when the library is loaded.
#pragma once

#include "dtypes.h"
#include "kiln/kiln.h"

namespace kiln_torch {

#define NUMBER(number, name, code, bits, torch) number,
constexpr kiln_dtype kKilnDtypes[] = {KILN_DTYPES(NUMBER)};
#undef NUMBER
constexpr int kDtypes = sizeof kKilnDtypes / sizeof *kKilnDtypes;

struct Numbers {
  int32_t cpu, cuda, strided;
  int32_t torch_dtypes[kDtypes];  // in the order of kKilnDtypes
};
extern Numbers numbers;

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
