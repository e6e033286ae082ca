// What is asked of a stream's device.
#pragma once

#include "open.h"

namespace kiln_aotriton {

// Facts of a stream's device; zeros where it cannot be told.
Facts facts_of(void* stream);

// Whether there are images for the stream's device, and their pack is found. A failure leaves a sentence.
hipError_t check_device(void* stream);

}  // namespace kiln_aotriton
