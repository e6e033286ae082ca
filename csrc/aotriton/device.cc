#include "device.h"

#include "errors.h"

namespace kiln_aotriton {

Facts facts_of(void* stream) {
  Session session;
  if (enter(&session) != hipSuccess) return {};
  int device = device_of(session.machine->driver, stream);
  if (device < 0) return {};
  const Facts& facts = session.machine->devices[device];
  return facts.multiprocessors ? facts : ask(session, device);  // the driver may have failed when it was looked at
}

// Asks for a forward without running it: nothing is read at the address. The pack of the stream's device is found
// first: KILN_E_UNSUPPORTED tells that a release of few images has none for this one.
hipError_t check_device(void* stream) {
  Session session;
  if (hipError_t error = enter(&session)) return error;
  alignas(16) static char anywhere[16];
  const kiln_tensor one = {anywhere, KILN_FP16, 4, {1, 1, 1, 8}, {8, 8, 8, 1}, {}};
  kiln_attn_fwd_params params = KILN_ATTN_FWD_PARAMS_INIT;
  params.q = params.k = params.v = params.out = &one;
  kiln_queue queue = session.queue(stream);
  uint64_t bytes;
  kiln_status status = kiln_attn_fwd_workspace(session.kiln, &queue, &params, &bytes);
  return status == KILN_E_UNSUPPORTED ? hipSuccess : error_of(status);
}

}  // namespace kiln_aotriton
