// What becomes of a call that is refused: not every caller looks at what is returned.
#pragma once

#include <stdint.h>

#include "hip.h"
#include "kiln/kiln.h"

namespace kiln_aotriton {

// Fills the outputs of a refused call with NaN on its stream, and says its sentence on stderr, once a process. The
// result is `error`; its sentence stays, and tells of outputs that could not be filled. NULL: an output that is not
// given; a count of 0: what is given is not known.
hipError_t give_up(const char* function, hipError_t error, void* stream, const kiln_tensor* const* outputs, int count);

template <int kCount>
hipError_t give_up(const char* function, hipError_t error, void* stream, const kiln_tensor* const (&outputs)[kCount]) {
  return give_up(function, error, stream, outputs, kCount);
}

// A version of AOTriton, and the params_version of one of its structures.
struct Interface {
  uint32_t major, minor;
  int32_t params_version;
};

// Refuses a caller of other headers than `known`'s, whose parameters cannot be read: nothing is filled.
hipError_t refuse_version(const char* function, int32_t params_version, const Interface& known);

}  // namespace kiln_aotriton
