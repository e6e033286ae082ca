// What is asked of a stream's device.
#include "call.h"

namespace kiln_aotriton {
namespace {

// Facts of a stream's device; zeros where it cannot be told.
Facts facts_of(hipStream_t stream) {
  Session session;
  if (enter(&session) != hipSuccess) return {0, aotriton::GPU_ARCH_UNKNOWN};
  int device = device_of(session.machine->driver, stream);
  if (device < 0) return {0, aotriton::GPU_ARCH_UNKNOWN};
  const Facts& facts = session.machine->devices[device];
  return facts.multiprocessors ? facts : ask(session, device);  // the driver may have failed when it was looked at
}

// Asks for a forward without running it: nothing is read at the address. The pack of the stream's device is found
// first: KILN_E_UNSUPPORTED tells that a release of few images has none for this one.
hipError_t find_pack(const Session& session, void* stream) {
  alignas(16) static char anywhere[16];
  const kiln_tensor one = {anywhere, KILN_FP16, 4, {1, 1, 1, 8}, {8, 8, 8, 1}, {}};
  kiln_attn_fwd_params params = KILN_ATTN_FWD_PARAMS_INIT;
  params.q = params.k = params.v = params.out = &one;
  kiln_queue queue = session.queue(stream);
  uint64_t bytes;
  kiln_status status = kiln_attn_fwd_workspace(session.kiln, &queue, &params, &bytes);
  return status == KILN_E_UNSUPPORTED ? hipSuccess : error_of(status);
}

}  // namespace
}  // namespace kiln_aotriton

namespace AOTRITON_NS {

Gpu getGpuFromStream(hipStream_t stream) { return static_cast<Gpu>(kiln_aotriton::facts_of(stream).gpu); }

int getMultiProcessorCount(hipStream_t stream) { return kiln_aotriton::facts_of(stream).multiprocessors; }

bool isArchExperimentallySupported(hipStream_t) { return false; }

}  // namespace AOTRITON_NS

namespace AOTRITON_NS::v2::flash {

hipError_t check_gpu(Stream stream) {
  kiln_aotriton::Session session;
  if (hipError_t error = kiln_aotriton::enter(&session)) return error;
  return kiln_aotriton::find_pack(session, stream.native());
}

}  // namespace AOTRITON_NS::v2::flash
