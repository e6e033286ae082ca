/* Kiln: for programs of PyTorch's C++ library (libkiln_torch.so, which serves every PyTorch from 2.10 on).
 *
 * With these, the entries of kiln/flash.h run on PyTorch's tensors: their memory, on PyTorch's current stream. Nothing
 * here needs PyTorch's headers, throws, or changes the current device. All may be called from any thread, but
 * kiln_torch_set_log.
 */
#ifndef KILN_TORCH_H
#define KILN_TORCH_H

#include "kiln/kiln.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The process's runtime for PyTorch's tensors, opened at the first call; of ROCm's PyTorch, on the HIP that PyTorch has
 * loaded. It is the library's: never to be closed. In the child of a fork it is the child's own. */
KILN_API kiln_status kiln_torch_runtime(kiln_t* out);
/* Has that runtime's messages up to `level` (KILN_LOG_*) go to `log`; NULL: nowhere, as without this call. To be called
 * before the first call of anything that needs the runtime, and by one thread; KILN_E_ARGUMENT: it is open already, and
 * keeps the log that it has. `log` and `user` are the caller's and must stay valid as long as the process; `log` may be
 * called from any thread, also in the child of a fork. kiln.torch sets Python's logger "kiln" when it is imported. */
KILN_API kiln_status kiln_torch_set_log(kiln_log_fn log, void* user, int32_t level);
/* The queue of PyTorch's current stream of a device, as torch::Device counts them. KILN_E_QUEUE: neither libtorch_cuda.so
 * nor libtorch_hip.so is loaded. It is good for calls until the current stream changes. */
KILN_API kiln_status kiln_torch_queue(int32_t device, kiln_queue* out);

#ifdef __cplusplus
}
#endif
#endif
