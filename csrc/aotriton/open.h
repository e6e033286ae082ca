// The one runtime of the process.
#pragma once

#include "driver.h"
#include "kiln/flash.h"

namespace kiln_aotriton {

struct Facts {
  int32_t multiprocessors;
  uint64_t gpu;  // aotriton::Gpu
};

// A Gpu: the vendor as PCI numbers it, the digits of the architecture's name, and a modification, which is always 0.
constexpr uint64_t gpu_number(bool amd, uint64_t digits) {
  return uint64_t{amd ? 0x1002u : 0x10deu} << 32 | digits << 16;
}

// What an opened runtime knows of its machine.
struct Machine {
  Driver driver;
  Facts devices[kMaxDevices];  // by ordinal
};

// What every entry begins with.
struct Session {
  kiln_t kiln;
  const Machine* machine;

  kiln_queue queue(void* stream) const { return KILN_QUEUE_INIT(machine->driver.vendor, stream); }
};

// What the driver tells of a device now; zeros where it tells nothing.
Facts ask(const Session& session, int32_t ordinal);

// Opens the runtime at the first call, and in a forked child anew. A failure leaves a sentence, and is not remembered.
hipError_t enter(Session* out);

}  // namespace kiln_aotriton
