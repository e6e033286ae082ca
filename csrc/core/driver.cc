#include "driver.h"

#include <dlfcn.h>

#include "runtime.h"

namespace kiln {

const char* vendor_name(int32_t vendor) { return vendor == KILN_VENDOR_NVIDIA ? "NVIDIA" : "AMD"; }

void* resolve(const Options& options, int32_t vendor, void* library, const char* symbol) {
  if (options.resolve) return options.resolve(vendor, symbol, options.resolve_user);
  return dlsym(library, symbol);
}

kiln_status get_driver(kiln_runtime& runtime, int32_t vendor, Driver** out) {
  if (vendor != KILN_VENDOR_NVIDIA && vendor != KILN_VENDOR_AMD)
    return fail(KILN_E_ARGUMENT, "the queue's vendor is %d; it must be KILN_VENDOR_NVIDIA or KILN_VENDOR_AMD", vendor);
  std::atomic<Driver*>& slot = runtime.drivers[vendor - 1];
  if ((*out = slot.load(std::memory_order_acquire))) return KILN_OK;
  Lock lock(runtime.lock);
  if ((*out = slot.load(std::memory_order_relaxed))) return KILN_OK;
  kiln_status status = vendor == KILN_VENDOR_NVIDIA ? open_cuda(runtime.options, out) : open_hip(runtime.options, out);
  if (status != KILN_OK) return status;
  log(runtime.options, KILN_LOG_INFO, "%s driver with %d devices", vendor_name(vendor), (*out)->device_count);
  slot.store(*out, std::memory_order_release);
  return KILN_OK;
}

}  // namespace kiln
