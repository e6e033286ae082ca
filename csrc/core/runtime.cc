// kiln_open, kiln_close, kiln_devices.
#include "runtime.h"

#include <sys/mman.h>
#include <unistd.h>

namespace kiln {
namespace {

constexpr size_t kPage = 4096;

// The mark of this process: a page that the kernel wipes in every child, however it was forked. A check is one load.
void mark_process(kiln_runtime& runtime) {
  runtime.process = getpid();
  void* page = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return;
  if (madvise(page, kPage, MADV_WIPEONFORK) != 0) {
    munmap(page, kPage);
    return;
  }
  *static_cast<uint64_t*>(page) = 1;
  runtime.alive = static_cast<uint64_t*>(page);
}

bool is_forked(const kiln_runtime& runtime) {
  return runtime.alive ? *static_cast<const volatile uint64_t*>(runtime.alive) == 0 : runtime.process != getpid();
}

// Everything but what belongs to the drivers.
void release(kiln_runtime* runtime, bool unload) {
  for (Family* family = runtime->families.load(std::memory_order_relaxed); family;) {
    Family* next = family->next;
    close_family(family, unload);
    family = next;
  }
  for (Pack* pack = runtime->packs; pack;) {
    Pack* next = pack->next;
    close_pack(pack);
    pack = next;
  }
  for (std::atomic<Driver*>& slot : runtime->drivers)
    if (Driver* driver = slot.load(std::memory_order_relaxed)) driver->calls->close(driver, unload);
  free_options(runtime->options);
  if (runtime->alive) munmap(const_cast<uint64_t*>(runtime->alive), kPage);
  free(runtime);
}

// Why no registered family can run on the device, or "".
void find_refusal(kiln_runtime& runtime, Device& device, Text& refusal) {
  if (ask(device) != KILN_OK) return refusal.add("%s", kiln_error());
  if (device.refusal[0]) return refusal.add("%s", device.refusal);
  Family* family = runtime.families.load(std::memory_order_acquire);
  if (!family) return refusal.add("%s", kNoFamily);
  for (; family; family = family->next) {
    Binding* binding;
    if (bind(*family, device, nullptr, &binding) == KILN_OK) return refusal.clear();
    refusal.add("%s%s", refusal.length() ? "; " : "", kiln_error());
  }
}

// Shows one device to the caller; non-zero to stop. Of one that cannot be asked only its place is known.
int32_t show(kiln_runtime& runtime, Device& device, kiln_device_fn visit, void* user) {
  FixedText<kSentenceBytes> refusal;
  find_refusal(runtime, device, refusal);
  kiln_device shown = {sizeof shown, device.vendor, device.ordinal, 0, 0, "", "", "", nullptr};
  if (device.asked.load(std::memory_order_acquire)) {
    shown.multiprocessors = device.multiprocessors;
    shown.warp_size = device.warp_size;
    shown.name = device.name;
    shown.id = device.id;
    shown.target = device.target;
  }
  if (refusal.length()) shown.refusal = refusal.c_str();
  return visit(&shown, user);
}

}  // namespace

kiln_status check_runtime(const kiln_runtime* runtime) {
  if (!runtime) return fail(KILN_E_ARGUMENT, "the kiln_t is NULL");
  if (is_forked(*runtime))
    return fail(KILN_E_FORKED, "this process was forked from the one that opened the kiln_t; open another one here");
  return KILN_OK;
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

using namespace kiln;

extern "C" {

kiln_status kiln_open(const kiln_options* from, kiln_t* out) {
  if (!out) return fail(KILN_E_ARGUMENT, "kiln_open: out is NULL");
  *out = nullptr;
  kiln_options options = KILN_OPTIONS_INIT;
  kiln_status status = from ? kiln_read_struct(&options, sizeof options, from, "kiln_options") : KILN_OK;
  if (status != KILN_OK) return status;
  kiln_runtime* runtime = allocate<kiln_runtime>();
  if (!runtime) return out_of_memory();
  mark_process(*runtime);
  status = read_options(options, runtime->options);
  if (status != KILN_OK) {
    release(runtime, false);
    return status;
  }
  *out = runtime;
  return KILN_OK;
}

kiln_status kiln_close(kiln_t kiln) {
  // In a forked child the driver is not to be touched: its state is the parent's.
  if (kiln) release(kiln, !is_forked(*kiln));
  return KILN_OK;
}

kiln_status kiln_devices(kiln_t kiln, kiln_device_fn visit, void* user) {
  kiln_status status = check_runtime(kiln);
  if (status != KILN_OK) return status;
  if (!visit) return fail(KILN_E_ARGUMENT, "kiln_devices: visit is NULL");
  FixedText<kSentenceBytes> failures;
  kiln_status worst = KILN_E_NO_DEVICE;  // the first that is worse than a vendor without driver or devices
  bool found = false;
  for (int32_t vendor = KILN_VENDOR_NVIDIA; vendor <= KILN_VENDOR_AMD; ++vendor) {
    Driver* driver;
    status = get_driver(*kiln, vendor, &driver);
    if (status != KILN_OK) {
      failures.add("%s%s", failures.length() ? "; " : "", kiln_error());
      if (worst == KILN_E_NO_DEVICE) worst = status;
      continue;
    }
    found = true;
    for (int32_t i = 0; i < driver->device_count; ++i)
      if (show(*kiln, driver->devices[i], visit, user)) return KILN_OK;
  }
  return found && worst == KILN_E_NO_DEVICE ? KILN_OK : fail(worst, "%s", failures.c_str());
}

}  // extern "C"
