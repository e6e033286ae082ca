// All bits of a view's elements set: NaN in fp16, bf16 and fp32.
#pragma once

#include "driver.h"
#include "kiln/kiln.h"

namespace kiln_aotriton {

// The bytes of a view's elements: `rows`, as often as the outer dimensions say.
struct Pieces {
  struct Dimension {
    uint64_t size, stride;  // bytes
  };
  Rows rows;  // height 0: there are no elements
  Dimension outer[KILN_MAX_RANK];
  int outer_count;
};

// False where elements have no known size, some have no address, or there are too many pieces.
bool find_pieces(const kiln_tensor& view, Pieces* out);

// Sets all bits of these bytes, and of no others, on the stream. The driver's result, and no sentence.
int fill(const Driver& driver, const Pieces& pieces, void* stream);

// The same of a view that a call could use. A failure leaves a sentence.
hipError_t fill_with_nan(const Driver& driver, const kiln_tensor& view, void* stream);

}  // namespace kiln_aotriton
