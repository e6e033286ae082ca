#include "driver.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

#include "errors.h"
#include "kiln/family.h"

namespace kiln_aotriton {
namespace {

// Both drivers number their results alike; types are as their ABIs have them.
enum Amd {
  kHipGetDevice,
  kHipStreamGetDevice,
  kHipMallocAsync,
  kHipFreeAsync,
  kHipGetLastError,
  kHipMemsetAsync,
  kHipMemset2DAsync,
  kAmdEntries
};
constexpr const char* kAmdNames[kAmdEntries] = {"hipGetDevice",    "hipStreamGetDevice", "hipMallocAsync",
                                                "hipFreeAsync",    "hipGetLastError",    "hipMemsetAsync",
                                                "hipMemset2DAsync"};
enum Nvidia {
  kCuStreamGetCtx,
  kCuCtxPush,
  kCuCtxPop,
  kCuCtxGetDevice,
  kCuDeviceGet,
  kCuMemAllocAsync,
  kCuMemFreeAsync,
  kCuMemsetD8Async,
  kCuMemsetD2D8Async,
  kNvidiaEntries
};
constexpr const char* kNvidiaNames[kNvidiaEntries] = {"cuStreamGetCtx", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2",
                                                      "cuCtxGetDevice", "cuDeviceGet",         "cuMemAllocAsync",
                                                      "cuMemFreeAsync", "cuMemsetD8Async",     "cuMemsetD2D8Async"};
static_assert(int{kAmdEntries} <= kMaxEntries && int{kNvidiaEntries} <= kMaxEntries, "room in Driver");
constexpr int kNotSupported = 801;

// Calls an entry point, if there is one. HIP keeps a failure for the caller's next hipGetLastError(), where it would be
// blamed on something else: it is taken back there.
template <typename... Arguments>
int call(const Driver& driver, int entry, Arguments... arguments) {
  void* address = driver.entries[entry];
  if (!address) return kNotSupported;
  int result = reinterpret_cast<int (*)(Arguments...)>(address)(arguments...);
  void* last = driver.vendor == KILN_VENDOR_AMD ? driver.entries[kHipGetLastError] : nullptr;
  if (result && last) reinterpret_cast<int (*)()>(last)();
  return result;
}

// 0, 1 and 2 stand for null streams, which are those of the current device.
bool is_null(void* stream) { return reinterpret_cast<uintptr_t>(stream) <= 2; }

// The context of a stream is current for the length of a block, if it has one.
class Current {
 public:
  Current(const Driver& driver, void* stream) : driver_(driver) {
    void* context = nullptr;
    pushed_ = driver.vendor == KILN_VENDOR_NVIDIA && !is_null(stream) &&
              call(driver, kCuStreamGetCtx, stream, &context) == 0 && call(driver, kCuCtxPush, context) == 0;
  }
  ~Current() {
    void* context;
    if (pushed_) call(driver_, kCuCtxPop, &context);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  const Driver& driver_;
  bool pushed_;
};

int nvidia_device_of(const Driver& driver, void* stream) {
  Current current(driver, stream);
  int handle = -1;
  if (call(driver, kCuCtxGetDevice, &handle)) return -1;
  for (int i = 0; i < driver.device_count; ++i) {
    int found = -1;
    if (call(driver, kCuDeviceGet, &found, i) == 0 && found == handle) return i;
  }
  return -1;
}

int amd_device_of(const Driver& driver, void* stream) {
  int device = -1;
  int result =
      is_null(stream) ? call(driver, kHipGetDevice, &device) : call(driver, kHipStreamGetDevice, stream, &device);
  return result == 0 && device < driver.device_count ? device : -1;
}

// Remembers the path of the first loaded library that is a HIP runtime, under whatever name it was bundled.
int is_hip(struct dl_phdr_info* library, size_t, void* found) {
  const char* slash = strrchr(library->dlpi_name, '/');
  if (strncmp(slash ? slash + 1 : library->dlpi_name, "libamdhip64", 11) != 0) return 0;
  snprintf(static_cast<char*>(found), 4096, "%s", library->dlpi_name);
  return 1;
}

int set_row(const Driver& driver, uint64_t address, uint64_t bytes, void* stream) {
  return driver.vendor == KILN_VENDOR_AMD
             ? call(driver, kHipMemsetAsync, reinterpret_cast<void*>(address), 0xFF, size_t{bytes}, stream)
             : call(driver, kCuMemsetD8Async, address, static_cast<unsigned char>(0xFF), size_t{bytes}, stream);
}

int set_rows(const Driver& driver, const Rows& rows, void* stream) {
  size_t pitch = rows.pitch, width = rows.width, height = rows.height;
  return driver.vendor == KILN_VENDOR_AMD ? call(driver, kHipMemset2DAsync, reinterpret_cast<void*>(rows.address),
                                                 pitch, 0xFF, width, height, stream)
                                          : call(driver, kCuMemsetD2D8Async, rows.address, pitch,
                                                 static_cast<unsigned char>(0xFF), width, height, stream);
}

}  // namespace

hipError_t failure(const Driver& driver, const char* what, int result) {
  char sentence[160];
  snprintf(sentence, sizeof sentence, "%s, for memory of this call: the %s returned %d", what,
           driver.vendor == KILN_VENDOR_AMD ? "HIP runtime" : "CUDA driver", result);
  kiln_set_error(KILN_E_DRIVER, sentence);
  return static_cast<hipError_t>(result);
}

void find_entries(Driver* driver) {
  bool amd = driver->vendor == KILN_VENDOR_AMD;
  char path[4096] = "libcuda.so.1";
  if (amd && !dl_iterate_phdr(is_hip, path)) return;
  void* library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);  // stays loaded: libkiln keeps it
  if (!library) return;
  for (int i = 0; i < (amd ? int{kAmdEntries} : int{kNvidiaEntries}); ++i)
    driver->entries[i] = dlsym(library, amd ? kAmdNames[i] : kNvidiaNames[i]);
  dlclose(library);
}

int device_of(const Driver& driver, void* stream) {
  return driver.vendor == KILN_VENDOR_AMD ? amd_device_of(driver, stream) : nvidia_device_of(driver, stream);
}

hipError_t allocate(const Driver& driver, uint64_t bytes, void* stream, void** out) {
  bool amd = driver.vendor == KILN_VENDOR_AMD;
  Current current(driver, stream);
  int entry = amd ? int{kHipMallocAsync} : int{kCuMemAllocAsync};
  int result = call(driver, entry, out, static_cast<size_t>(bytes), stream);
  return result ? failure(driver, amd ? "hipMallocAsync" : "cuMemAllocAsync", result) : hipSuccess;
}

hipError_t release(const Driver& driver, void* memory, void* stream, hipError_t error) {
  bool amd = driver.vendor == KILN_VENDOR_AMD;
  Current current(driver, stream);
  int result = call(driver, amd ? int{kHipFreeAsync} : int{kCuMemFreeAsync}, memory, stream);
  return result && !error ? failure(driver, amd ? "hipFreeAsync" : "cuMemFreeAsync", result) : error;
}

int set_bits(const Driver& driver, const Rows& rows, void* stream) {
  Current current(driver, stream);
  if (rows.height > 1 && set_rows(driver, rows, stream) == 0) return 0;
  for (uint64_t i = 0; i < rows.height; ++i)  // one, or those whose distance the driver does not take
    if (int result = set_row(driver, rows.address + i * rows.pitch, rows.width, stream)) return result;
  return 0;
}

}  // namespace kiln_aotriton
