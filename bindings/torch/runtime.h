// The runtime that PyTorch's calls share, and the stream that PyTorch enqueues on.
#pragma once

#include "kiln/kiln.h"

namespace kiln_torch {

// The process's runtime, opened at the first call and never closed: images stay loaded as long as PyTorch runs. With
// PyTorch for ROCm, HIP is what libtorch_hip.so itself has loaded. `useless`: one that this gave before and that
// belongs to the parent of this process (KILN_E_FORKED); the first thread that says so opens another.
kiln_status runtime(kiln_t* out, kiln_t useless = nullptr);

// Where the runtime's messages go, once it is opened: kiln_torch_set_log.
kiln_status set_log(kiln_log_fn log, void* user, int32_t level);

// A queue of PyTorch's current stream on a device. KILN_E_QUEUE: PyTorch does not tell; then there is no queue, least
// of all the null stream.
kiln_status current_queue(int32_t device, kiln_queue* out);

// Leaves a formatted sentence for the calling thread, returns `status`.
kiln_status fail(kiln_status status, const char* format, ...) __attribute__((format(printf, 2, 3)));

}  // namespace kiln_torch
