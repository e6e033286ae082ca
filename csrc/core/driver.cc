#include "driver.h"

#include <dlfcn.h>

#include "error.h"

namespace kiln {

const char* vendor_name(int32_t vendor) { return vendor == KILN_VENDOR_NVIDIA ? "NVIDIA" : "AMD"; }

void* resolve(const Options& options, int32_t vendor, void* library, const char* symbol) {
  if (options.resolve) return options.resolve(vendor, symbol, options.resolve_user);
  return dlsym(library, symbol);
}

kiln_status make_devices(Driver& driver, int count) {
  driver.device_count = count < kMaxDevices ? count : kMaxDevices;
  driver.devices = allocate<Device>(static_cast<size_t>(driver.device_count));
  if (!driver.devices) return out_of_memory();
  for (int32_t i = 0; i < driver.device_count; ++i) {
    driver.devices[i].driver = &driver;
    driver.devices[i].vendor = driver.vendor;
    driver.devices[i].ordinal = i;
  }
  return KILN_OK;
}

kiln_status ask(Device& device) {
  if (device.asked.load(std::memory_order_acquire)) return KILN_OK;
  Driver& driver = *device.driver;
  Lock lock(driver.lock);
  if (device.asked.load(std::memory_order_relaxed)) return KILN_OK;
  kiln_status status = driver.calls->describe(driver, device);
  if (status == KILN_OK) device.asked.store(true, std::memory_order_release);
  return status;
}

}  // namespace kiln
