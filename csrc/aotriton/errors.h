// From statuses to what AOTriton's callers test for.
#pragma once

#include "hip.h"
#include "kiln/kiln.h"

namespace kiln_aotriton {

// The table of aotriton/flash.h. KILN_E_NO_DEVICE is that of a device without images here; open.cc knows of others.
hipError_t error_of(kiln_status status);

// Leaves a sentence.
hipError_t refuse(kiln_status status, const char* sentence);

}  // namespace kiln_aotriton
