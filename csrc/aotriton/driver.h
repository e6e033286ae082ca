// What is needed of a vendor's driver besides what libkiln does: whose a stream is, memory in a stream's order, and
// setting memory.
#pragma once

#include <stdint.h>

#include "hip.h"

namespace kiln_aotriton {

constexpr int kMaxDevices = 64;  // more are not looked at
constexpr int kMaxEntries = 9;

// Entry points of the driver that libkiln has opened. Frozen once made; an entry that the driver lacks is NULL.
struct Driver {
  int32_t vendor;  // KILN_VENDOR_*
  int32_t device_count;
  void* entries[kMaxEntries];
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

// Leaves a sentence on a call of the driver's for memory, `what`, that failed with this number.
hipError_t failure(const Driver& driver, const char* what, int result);

// Rows of bytes in device memory, `pitch` bytes from one to the next.
struct Rows {
  uint64_t address, pitch, width, height;
};
// Sets all bits of rows on the stream, which has a device. The driver's result, and no sentence.
int set_bits(const Driver& driver, const Rows& rows, void* stream);

}  // namespace kiln_aotriton
