// AMD, by the HIP runtime that the process already has: a second copy would not know its streams. As in cuda.cc, the
// types and numbers of its ABI that are used stand here.
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>

#include "driver.h"
#include "error.h"

namespace kiln {
namespace {

using hipError_t = int;
using hipStream_t = void*;
using hipModule_t = void*;
using hipFunction_t = void*;

constexpr hipError_t kDeinitialized = 4, kNoDevice = 100;
// hipDeviceAttribute_t, whose numbers have stood since 5.0.
constexpr int kMaxGridX = 29, kMaxGridY = 30, kMaxGridZ = 31, kMaxThreadsPerBlock = 56, kMultiprocessors = 63;
constexpr int kMaxShared = 74, kMaxSharedOptin = 75, kWarpSize = 87;
constexpr int kStaticShared = 1;
constexpr int kLowestRuntime = 50600000;  // 5.6: hipStreamGetDevice, code object 5

// hipDeviceProp_tR0600 is 1,472 bytes with gcnArchName at 1,160; the room is for later ones, should they grow.
constexpr size_t kPropertiesBytes = 16384, kArchitectureOffset = 1160, kNameBytes = 256;

// X(symbol, whether Kiln cannot do without it, parameters)
#define KILN_HIP_ENTRIES(X)                                                                                    \
  X(hipInit, 1, (unsigned))                                                                                    \
  X(hipRuntimeGetVersion, 1, (int*))                                                                           \
  X(hipGetLastError, 0, ())                                                                                    \
  X(hipGetDeviceCount, 1, (int*))                                                                              \
  X(hipGetDevice, 1, (int*))                                                                                   \
  X(hipSetDevice, 1, (int))                                                                                    \
  X(hipDeviceGetName, 1, (char*, int, int))                                                                    \
  X(hipDeviceGetPCIBusId, 1, (char*, int, int))                                                                \
  X(hipDeviceGetAttribute, 1, (int*, int, int))                                                                \
  X(hipGetDevicePropertiesR0600, 0, (void*, int))                                                              \
  X(hipGetDeviceProperties, 0, (void*, int))                                                                   \
  X(hipStreamGetDevice, 1, (hipStream_t, int*))                                                                \
  X(hipModuleLoadData, 1, (hipModule_t*, const void*))                                                         \
  X(hipModuleUnload, 1, (hipModule_t))                                                                         \
  X(hipModuleGetFunction, 1, (hipFunction_t*, hipModule_t, const char*))                                       \
  X(hipFuncGetAttribute, 1, (int*, int, hipFunction_t))                                                        \
  X(hipMemsetAsync, 1, (void*, int, size_t, hipStream_t))                                                      \
  X(hipStreamSynchronize, 1, (hipStream_t))                                                                    \
  X(hipModuleLaunchKernel, 1,                                                                                  \
    (hipFunction_t, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, hipStream_t, void**, \
     void**))

struct Hip : Driver {
  void* library;
  const char* (*hipGetErrorName)(hipError_t);
#define X(name, needed, parameters) hipError_t(*name) parameters;
  KILN_HIP_ENTRIES(X)
#undef X
};

Hip& of(Driver& driver) { return static_cast<Hip&>(driver); }

// The result of a call of the runtime. HIP keeps a failure for the caller's next hipGetLastError(), where it would be
// blamed on something else; each is answered here, so it is taken back there. Every call goes through this.
hipError_t take_back(Hip& hip, hipError_t result) {
  if (result && hip.hipGetLastError) hip.hipGetLastError();
  return result;
}

const char* error_name(Hip& hip, hipError_t result) {
  const char* name = hip.hipGetErrorName ? hip.hipGetErrorName(result) : nullptr;
  return name ? name : "hipError?";
}

kiln_status driver_error(Hip& hip, hipError_t result, const char* call) {
  return fail(KILN_E_DRIVER, "%s: the HIP runtime returned %s (%d)", call, error_name(hip, result), result);
}

void log_failure(Hip& hip, hipError_t result, const char* call) {
  log(*hip.options, KILN_LOG_WARNING, "%s: the HIP runtime returned %s (%d)", call, error_name(hip, result), result);
}

void leave(Driver& driver, const Scope& scope) {
  if (!scope.switched) return;
  Hip& hip = of(driver);
  int previous = static_cast<int>(reinterpret_cast<intptr_t>(scope.previous));
  if (hipError_t result = take_back(hip, hip.hipSetDevice(previous))) log_failure(hip, result, "hipSetDevice");
}

// Makes a device current until leave(); `call` names what failed.
hipError_t make_current(Hip& hip, int device, Scope* scope, const char** call) {
  int current = -1;
  scope->switched = false;
  *call = "hipGetDevice";
  hipError_t result = take_back(hip, hip.hipGetDevice(&current));
  if (result || current == device) return result;
  scope->previous = reinterpret_cast<void*>(static_cast<intptr_t>(current));
  *call = "hipSetDevice";
  result = take_back(hip, hip.hipSetDevice(device));
  scope->switched = result == 0;
  return result;
}

kiln_status enter(Driver& driver, const kiln_queue& queue, Scope* scope) {
  Hip& hip = of(driver);
  int device = -1;
  // 1 and 2 stand for the legacy and the thread's own null stream: those of the device that is named, else of the
  // current one.
  bool null = reinterpret_cast<uintptr_t>(queue.stream) <= 2;
  hipError_t result = 0;
  if (null && queue.device >= 0)
    device = queue.device;
  else
    result = take_back(hip, null ? hip.hipGetDevice(&device) : hip.hipStreamGetDevice(queue.stream, &device));
  if (result)
    return fail(KILN_E_QUEUE, "the queue's stream cannot be used: the HIP runtime returned %s (%d)",
                error_name(hip, result), result);
  if (device < 0 || device >= hip.device_count)
    return fail(KILN_E_QUEUE, "the queue's stream belongs to device %d, which was not found", device);
  if (queue.device >= 0 && queue.device != device)
    return fail(KILN_E_QUEUE, "the queue names device %d, but its stream belongs to device %d", queue.device, device);
  scope->device = &hip.devices[device];
  scope->stream = queue.stream;
  kiln_status status = ask(*scope->device);
  if (status != KILN_OK) return status;
  if (scope->device->refusal[0]) return fail(KILN_E_NO_DEVICE, "%s", scope->device->refusal);
  scope->switched = false;
  const char* call;
  if ((!null || queue.device >= 0) && (result = make_current(hip, device, scope, &call)))
    return driver_error(hip, result, call);
  return KILN_OK;
}

void unload(Driver& driver, Device& device, Loaded& loaded) {
  Hip& hip = of(driver);
  if (!loaded.module) return;
  Scope scope;
  const char* call;
  hipError_t result = make_current(hip, device.ordinal, &scope, &call);
  if (result && result != kDeinitialized) log_failure(hip, result, call);
  result = take_back(hip, hip.hipModuleUnload(loaded.module));
  if (result && result != kDeinitialized) log_failure(hip, result, "hipModuleUnload");
  leave(driver, scope);
  loaded.module = nullptr;
}

kiln_status load(Driver& driver, Device& device, const ImageRow& row, const char* symbol, void* code, Loaded* loaded) {
  Hip& hip = of(driver);
  loaded->code = code;  // the runtime may read it until the module is unloaded
  hipError_t result = take_back(hip, hip.hipModuleLoadData(&loaded->module, code));
  const char* call = "hipModuleLoadData";
  if (result) loaded->module = nullptr;
  if (!result) {
    call = "hipModuleGetFunction";
    result = take_back(hip, hip.hipModuleGetFunction(&loaded->function, loaded->module, symbol));
  }
  int fixed = 0;
  if (!result) {
    call = "hipFuncGetAttribute";
    result = take_back(hip, hip.hipFuncGetAttribute(&fixed, kStaticShared, loaded->function));
  }
  if (result) {
    kiln_status status = fail(KILN_E_DRIVER, "%s: the HIP runtime returned %s (%d) for an image of %s", call,
                              error_name(hip, result), result, symbol);
    unload(driver, device, *loaded);  // leaves no sentence of its own: that of the failure stands
    free(code);
    loaded->code = nullptr;
    return status;
  }
  // The row counts static and dynamic LDS together; a launch states the dynamic part.
  uint32_t fixed_bytes = fixed > 0 ? static_cast<uint32_t>(fixed) : 0;
  loaded->dynamic_shared = row.shared > fixed_bytes ? row.shared - fixed_bytes : 0;
  return KILN_OK;
}

kiln_status launch(Driver& driver, const Scope& scope, const Launch& launch) {
  Hip& hip = of(driver);
  const Loaded& image = *launch.image;
  hipError_t result = take_back(
      hip, hip.hipModuleLaunchKernel(image.function, launch.grid[0], launch.grid[1], launch.grid[2], image.row->threads,
                                     1, 1, image.dynamic_shared, scope.stream, launch.parameters, nullptr));
  return result ? driver_error(hip, result, "hipModuleLaunchKernel") : KILN_OK;
}

kiln_status zero(Driver& driver, const Scope& scope, uint64_t address, uint64_t bytes) {
  Hip& hip = of(driver);
  hipError_t result = take_back(hip, hip.hipMemsetAsync(reinterpret_cast<void*>(address), 0, bytes, scope.stream));
  return result ? driver_error(hip, result, "hipMemsetAsync") : KILN_OK;
}

kiln_status wait(Driver& driver, const Scope& scope) {
  Hip& hip = of(driver);
  hipError_t result = take_back(hip, hip.hipStreamSynchronize(scope.stream));
  return result ? driver_error(hip, result, "hipStreamSynchronize") : KILN_OK;
}

void close(Driver* driver, bool release) {
  Hip* hip = static_cast<Hip*>(driver);
  if (hip->library && release) dlclose(hip->library);
  free(hip->devices);
  free(hip);
}

// Remembers the path of the first loaded library that is a HIP runtime, under whatever name it was bundled.
int is_hip(struct dl_phdr_info* library, size_t, void* found) {
  const char* slash = strrchr(library->dlpi_name, '/');
  const char* name = slash ? slash + 1 : library->dlpi_name;
  if (strncmp(name, "libamdhip64", 11) != 0) return 0;
  snprintf(static_cast<char*>(found), 4096, "%s", library->dlpi_name);
  return 1;
}

void* open_library() {
  char path[4096];
  if (dl_iterate_phdr(is_hip, path))
    if (void* library = dlopen(path, RTLD_NOW | RTLD_NOLOAD)) return library;
  static const char* const kNames[] = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so"};
  for (const char* name : kNames)
    if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)) return library;
  return nullptr;
}

kiln_status find_entries(Hip& hip) {
  if (!hip.options->resolve) {
    hip.library = open_library();
    if (!hip.library) return fail(KILN_E_NO_DEVICE, "there is no AMD driver: %s", dlerror());
  }
#define X(name, needed, parameters)                                                                                  \
  hip.name = reinterpret_cast<hipError_t(*) parameters>(resolve(*hip.options, KILN_VENDOR_AMD, hip.library, #name)); \
  if (needed && !hip.name) return fail(KILN_E_NO_DEVICE, "the HIP runtime has no entry point " #name);
  KILN_HIP_ENTRIES(X)
#undef X
  hip.hipGetErrorName = reinterpret_cast<const char* (*)(hipError_t)>(
      resolve(*hip.options, KILN_VENDOR_AMD, hip.library, "hipGetErrorName"));
  if (!hip.hipGetDevicePropertiesR0600 && !hip.hipGetDeviceProperties)
    return fail(KILN_E_NO_DEVICE, "the HIP runtime has no entry point hipGetDevicePropertiesR0600");
  int version = 0;
  hipError_t result = take_back(hip, hip.hipRuntimeGetVersion(&version));
  if (result) return driver_error(hip, result, "hipRuntimeGetVersion");
  if (version < kLowestRuntime)
    return fail(KILN_E_NO_DEVICE, "the HIP runtime is from ROCm %d.%d; Kiln needs 5.6 or later", version / 10000000,
                version / 100000 % 100);
  return KILN_OK;
}

// The length of an architecture's name that begins at `text`, without its features (":sramecc+:xnack-"), or 0.
size_t architecture_length(const char* text, size_t room) {
  if (room < 5 || memcmp(text, "gfx", 3) != 0) return 0;
  size_t n = 3;
  while (n < room && ((text[n] >= '0' && text[n] <= '9') || (text[n] >= 'a' && text[n] <= 'f'))) ++n;
  return n > 4 && n < 32 && n < room && (text[n] == 0 || text[n] == ':') ? n : 0;
}

// The architecture is to be had from the device's properties only, a large structure whose layout depends on the
// runtime's release. It is looked for where the releases since 6.0 have it, then wherever a string begins that can be
// nothing else: "gfx" and hexadecimal digits, after a zero byte and behind the device's name.
kiln_status find_architecture(Hip& hip, Device& device) {
  char* properties = allocate<char>(kPropertiesBytes);
  if (!properties) return out_of_memory();
  hipError_t result =
      take_back(hip, hip.hipGetDevicePropertiesR0600 ? hip.hipGetDevicePropertiesR0600(properties, device.ordinal)
                                                     : hip.hipGetDeviceProperties(properties, device.ordinal));
  size_t at = kArchitectureOffset;
  size_t length = architecture_length(properties + at, kPropertiesBytes - at);
  for (at = length ? at : kNameBytes; !length && at < kPropertiesBytes; ++at)
    if (properties[at - 1] == 0 && (length = architecture_length(properties + at, kPropertiesBytes - at))) break;
  if (length)
    snprintf(device.target, sizeof device.target, "%.*s", static_cast<int>(length), properties + at);
  else
    snprintf(device.refusal, sizeof device.refusal, "the HIP runtime does not report the architecture of device %d",
             device.ordinal);
  free(properties);
  return result ? driver_error(hip, result, "hipGetDeviceProperties") : KILN_OK;
}

kiln_status describe(Driver& driver, Device& device) {
  Hip& hip = of(driver);
  struct {
    int which, value;
  } facts[] = {{kMaxThreadsPerBlock, 0}, {kWarpSize, 0}, {kMultiprocessors, 0}, {kMaxShared, 0},
               {kMaxGridX, 0},           {kMaxGridY, 0}, {kMaxGridZ, 0}};
  device.refusal[0] = 0;
  hipError_t result;
  for (auto& fact : facts)
    if ((result = take_back(hip, hip.hipDeviceGetAttribute(&fact.value, fact.which, device.ordinal))))
      return driver_error(hip, result, "hipDeviceGetAttribute");
  if ((result = take_back(hip, hip.hipDeviceGetName(device.name, sizeof device.name - 1, device.ordinal))))
    return driver_error(hip, result, "hipDeviceGetName");
  if ((result = take_back(hip, hip.hipDeviceGetPCIBusId(device.id, sizeof device.id - 1, device.ordinal))))
    return driver_error(hip, result, "hipDeviceGetPCIBusId");
  device.handle = device.ordinal;
  device.max_threads = static_cast<uint32_t>(facts[0].value);
  device.warp_size = facts[1].value;
  device.multiprocessors = facts[2].value;
  int optin = 0;  // not known to older runtimes
  if (take_back(hip, hip.hipDeviceGetAttribute(&optin, kMaxSharedOptin, device.ordinal))) optin = 0;
  device.max_shared = static_cast<uint32_t>(optin > facts[3].value ? optin : facts[3].value);
  for (int i = 0; i < 3; ++i) device.max_grid[i] = facts[4 + i].value;
  device.max_grid_threads = 0xFFFFFFFF;  // a dispatch packet counts work-items in 32 bits
  if ((device.warp_size != 32 && device.warp_size != 64) || device.multiprocessors <= 0)
    snprintf(device.refusal, sizeof device.refusal, "the HIP runtime reports invalid attributes of device %d",
             device.ordinal);
  return find_architecture(hip, device);
}

kiln_status open(Hip& hip) {
  kiln_status status = find_entries(hip);
  if (status != KILN_OK) return status;
  const char* call = "hipInit";
  hipError_t result = take_back(hip, hip.hipInit(0));
  int count = 0;
  if (!result) {
    call = "hipGetDeviceCount";
    result = take_back(hip, hip.hipGetDeviceCount(&count));
  }
  if (result == kNoDevice || (!result && count <= 0)) return fail(KILN_E_NO_DEVICE, "the HIP runtime has no device");
  return result ? driver_error(hip, result, call) : make_devices(hip, count);
}

constexpr DriverCalls kCalls = {describe, enter, leave, load, unload, launch, nullptr, zero, wait, close};

}  // namespace

kiln_status open_hip(const Options& options, Driver** out) {
  Hip* hip = allocate<Hip>();
  if (!hip) return out_of_memory();
  hip->calls = &kCalls;
  hip->options = &options;
  hip->vendor = KILN_VENDOR_AMD;
  kiln_status status = open(*hip);
  if (status != KILN_OK) {
    close(hip, true);
    return status;
  }
  *out = hip;
  return KILN_OK;
}

}  // namespace kiln
