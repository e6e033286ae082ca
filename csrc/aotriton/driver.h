// What is needed of a vendor's driver besides what libkiln does: whose a stream is, and memory in a stream's order.
#pragma once

#include <stdint.h>

#include "hip.h"

namespace kiln_aotriton {

constexpr int kMaxDevices = 64;  // more are not looked at

// Entry points of the driver that libkiln has opened. Frozen once made; an entry that the driver lacks is NULL.
struct Driver {
  int32_t vendor;  // KILN_VENDOR_*
  int32_t device_count;
  void* entries[8];
};

// Finds the entry points, in the library that is loaded.
void find_entries(Driver* driver);

// The ordinal of the stream's device, of the null stream the current one; -1 if that cannot be told.
int device_of(const Driver& driver, void* stream);

// Memory that can be used by what follows on the stream, aligned to 256 bytes or more. A failure leaves a sentence.
hipError_t allocate(const Driver& driver, uint64_t bytes, void* stream, void** out);
// Gives it back once what precedes on the stream is done. The result is `error`, and its sentence stays, unless there
// is none and this fails.
hipError_t release(const Driver& driver, void* memory, void* stream, hipError_t error);

}  // namespace kiln_aotriton
