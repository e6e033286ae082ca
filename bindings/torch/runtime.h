// The runtime that PyTorch's calls share, and the stream that PyTorch enqueues on.
#pragma once

#include "kiln/kiln.h"

namespace kiln_torch {

// The process's runtime, opened at the first call and never closed: images stay loaded as long as PyTorch runs. With
// PyTorch for ROCm, HIP is what libtorch_hip.so itself has loaded. `fresh`: the one there is belongs to the parent of
// this process (KILN_E_FORKED), so another is opened.
kiln_status runtime(kiln_t* out, bool fresh = false);

// A queue of PyTorch's current stream on a device. KILN_E_QUEUE: PyTorch does not tell; then there is no queue, least
// of all the null stream.
kiln_status current_queue(int32_t device, kiln_queue* out);

// Leaves a formatted sentence for the calling thread, returns `status`.
kiln_status fail(kiln_status status, const char* format, ...) __attribute__((format(printf, 2, 3)));

}  // namespace kiln_torch
