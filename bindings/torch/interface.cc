// What C++ programs call: include/kiln/torch.h.
#include "kiln/torch.h"

#include "kiln/family.h"
#include "runtime.h"

namespace {

// The runtime of a parent process says so at any call.
bool is_the_parents(kiln_t kiln) {
  return kiln_operations(
             kiln, [](const char*, kiln_operation, void*) -> int32_t { return 1; }, nullptr) == KILN_E_FORKED;
}

}  // namespace

extern "C" {

kiln_status kiln_torch_runtime(kiln_t* out) {
  if (!out) return kiln_set_error(KILN_E_ARGUMENT, "kiln_torch_runtime: out is NULL");
  kiln_status status = kiln_torch::runtime(out);
  if (status == KILN_OK && is_the_parents(*out)) status = kiln_torch::runtime(out, *out);
  return status;
}

kiln_status kiln_torch_set_log(kiln_log_fn log, void* user, int32_t level) {
  return kiln_torch::set_log(log, user, level);
}

kiln_status kiln_torch_queue(int32_t device, kiln_queue* out) {
  if (!out) return kiln_set_error(KILN_E_ARGUMENT, "kiln_torch_queue: out is NULL");
  return kiln_torch::current_queue(device, out);
}

}  // extern "C"
