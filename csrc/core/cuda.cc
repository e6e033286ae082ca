// NVIDIA, by the driver API alone. The few types and numbers of it that are used stand here, as its ABI has them, so
// that nothing of a toolkit is needed to build.
#include <dlfcn.h>
#include <stdio.h>

#include "descriptor.h"
#include "driver.h"
#include "error.h"

namespace kiln {
namespace {

using CUresult = int;
using CUdevice = int;
using CUcontext = void*;
using CUgreenCtx = void*;
using CUstream = void*;
using CUlibrary = void*;
using CUkernel = void*;
using Sizes = const uint64_t*;  // of a tensor, by dimension
using Sides = const unsigned*;  // of a box

constexpr CUresult kDeinitialized = 4, kInvalidContext = 201;
constexpr int kMaxThreadsPerBlock = 1, kWarpSize = 10, kMultiprocessors = 16, kMajor = 75, kMinor = 76;
constexpr int kMaxSharedOptin = 97;
constexpr int kStaticShared = 1, kMaxDynamicShared = 8, kNonPortableCluster = 14;
constexpr int kJitErrorLog = 5, kJitErrorLogBytes = 6;
constexpr unsigned kClusterDimension = 4, kClusterScheduling = 5, kProgrammaticSerialization = 6, kClusterSpread = 1;
constexpr unsigned kLargestPortableCluster = 8;
constexpr int kLowestDriver = 12000, kFirstDriverWithOverlap = 12030;
constexpr int kNoInterleave = 0, kPromoteTo128Bytes = 2, kFillWithZeros = 0;
constexpr int kLastDriverWithSmallMaps = 13010;

struct CUlaunchAttribute {
  unsigned id;
  char pad[4];
  union {
    char bytes[64];
    unsigned words[16];
  } value;
};
struct CUlaunchConfig {
  unsigned grid[3], block[3], shared;
  CUstream stream;
  CUlaunchAttribute* attributes;
  unsigned attribute_count;
};
static_assert(sizeof(CUlaunchAttribute) == 72 && sizeof(CUlaunchConfig) == 56, "the driver's ABI");

// X(symbol, whether Kiln cannot do without it, result and parameters)
#define KILN_CUDA_ENTRIES(X)                                                                                  \
  X(cuInit, 1, (unsigned))                                                                                    \
  X(cuDriverGetVersion, 1, (int*))                                                                            \
  X(cuGetErrorName, 1, (CUresult, const char**))                                                              \
  X(cuDeviceGetCount, 1, (int*))                                                                              \
  X(cuDeviceGet, 1, (CUdevice*, int))                                                                         \
  X(cuDeviceGetName, 1, (char*, int, CUdevice))                                                               \
  X(cuDeviceGetUuid_v2, 1, (unsigned char*, CUdevice))                                                        \
  X(cuDeviceGetAttribute, 1, (int*, int, CUdevice))                                                           \
  X(cuCtxGetCurrent, 1, (CUcontext*))                                                                         \
  X(cuCtxGetDevice, 1, (CUdevice*))                                                                           \
  X(cuCtxPushCurrent_v2, 1, (CUcontext))                                                                      \
  X(cuCtxPopCurrent_v2, 1, (CUcontext*))                                                                      \
  X(cuDevicePrimaryCtxRetain, 0, (CUcontext*, CUdevice))                                                      \
  X(cuDevicePrimaryCtxRelease_v2, 0, (CUdevice))                                                              \
  X(cuStreamGetCtx, 1, (CUstream, CUcontext*))                                                                \
  X(cuStreamGetCtx_v2, 0, (CUstream, CUcontext*, CUgreenCtx*))                                                \
  X(cuCtxFromGreenCtx, 0, (CUcontext*, CUgreenCtx))                                                           \
  X(cuLibraryLoadData, 1, (CUlibrary*, const void*, int*, void**, unsigned, int*, void**, unsigned))          \
  X(cuLibraryGetKernel, 1, (CUkernel*, CUlibrary, const char*))                                               \
  X(cuLibraryUnload, 1, (CUlibrary))                                                                          \
  X(cuKernelGetAttribute, 1, (int*, int, CUkernel, CUdevice))                                                 \
  X(cuKernelSetAttribute, 1, (int, int, CUkernel, CUdevice))                                                  \
  X(cuTensorMapEncodeTiled, 0, (void*, int, unsigned, void*, Sizes, Sizes, Sides, Sides, int, int, int, int)) \
  X(cuMemsetD8Async, 1, (unsigned long long, unsigned char, size_t, CUstream))                                \
  X(cuStreamSynchronize, 1, (CUstream))                                                                       \
  X(cuLaunchKernel, 1,                                                                                        \
    (void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void**, void**))  \
  X(cuLaunchKernelEx, 1, (const CUlaunchConfig*, void*, void**, void**))

struct Cuda : Driver {
  void* library;
#define X(name, needed, parameters) CUresult(*name) parameters;
  KILN_CUDA_ENTRIES(X)
#undef X
};

Cuda& of(Driver& driver) { return static_cast<Cuda&>(driver); }

const char* error_name(Cuda& cuda, CUresult result) {
  const char* name = nullptr;
  if (cuda.cuGetErrorName(result, &name) != 0 || !name) name = "CUDA_ERROR_?";
  return name;
}

kiln_status driver_error(Cuda& cuda, CUresult result, const char* call) {
  return fail(KILN_E_DRIVER, "%s: the CUDA driver returned %s (%d)", call, error_name(cuda, result), result);
}

// The context of a stream. A green context's stream has none of its own in older calls; its newer one is asked then.
CUresult stream_context(Cuda& cuda, CUstream stream, CUcontext* context) {
  CUresult result = cuda.cuStreamGetCtx(stream, context);
  if (result == 0 || !cuda.cuStreamGetCtx_v2 || !cuda.cuCtxFromGreenCtx) return result;
  CUgreenCtx green = nullptr;
  CUresult second = cuda.cuStreamGetCtx_v2(stream, context, &green);
  if (second == 0 && green) second = cuda.cuCtxFromGreenCtx(context, green);
  return second == 0 && *context ? 0 : result;
}

void leave(Driver& driver, const Scope& scope) {
  if (!scope.switched) return;
  Cuda& cuda = of(driver);
  CUcontext popped;
  CUresult result = cuda.cuCtxPopCurrent_v2(&popped);
  if (result && result != kDeinitialized)
    log(*cuda.options, KILN_LOG_WARNING, "cuCtxPopCurrent: the CUDA driver returned %s (%d)", error_name(cuda, result),
        result);
}

// The device that the driver calls `handle`, asked if it was not.
kiln_status find_device(Cuda& cuda, CUdevice handle, Device** out) {
  for (int32_t i = 0; i < cuda.device_count; ++i) {
    *out = &cuda.devices[i];
    if ((*out)->asked.load(std::memory_order_acquire) && (*out)->handle == handle) return KILN_OK;
  }
  CUresult failure = 0;
  for (int32_t i = 0; i < cuda.device_count; ++i) {
    CUdevice found = -1;
    CUresult result = cuda.cuDeviceGet(&found, i);
    if (result) failure = result;
    if (result || found != handle) continue;
    *out = &cuda.devices[i];
    return ask(**out);
  }
  if (failure) return driver_error(cuda, failure, "cuDeviceGet");
  return fail(KILN_E_QUEUE, "the queue's stream belongs to device %d, which was not found", handle);
}

// The primary context of a device, held until the driver is closed: whose null stream a caller means that names the
// device, where the thread has no context of it.
kiln_status primary_context(Cuda& cuda, int32_t ordinal, CUcontext* context) {
  if (ordinal >= cuda.device_count)
    return fail(KILN_E_QUEUE, "the queue names device %d, which was not found", ordinal);
  Device& device = cuda.devices[ordinal];
  kiln_status status = ask(device);
  if (status != KILN_OK) return status;
  if ((*context = device.primary.load(std::memory_order_acquire))) return KILN_OK;
  Lock lock(cuda.lock);
  if ((*context = device.primary.load(std::memory_order_relaxed))) return KILN_OK;
  CUresult result = cuda.cuDevicePrimaryCtxRetain(context, device.handle);
  if (result) return driver_error(cuda, result, "cuDevicePrimaryCtxRetain");
  device.primary.store(*context, std::memory_order_release);
  return KILN_OK;
}

// Whether the current context is one of that device, which `out` then is.
bool is_current(Cuda& cuda, int32_t ordinal, Device** out) {
  CUdevice handle = -1;
  return cuda.cuCtxGetDevice(&handle) == 0 && find_device(cuda, handle, out) == KILN_OK && (*out)->ordinal == ordinal;
}

kiln_status enter(Driver& driver, const kiln_queue& queue, Scope* scope) {
  Cuda& cuda = of(driver);
  // 1 and 2 stand for the legacy and the thread's own null stream.
  const bool null = reinterpret_cast<uintptr_t>(queue.stream) <= 2;
  scope->stream = queue.stream;
  scope->switched = false;
  // Most calls of most frameworks are such: a null stream is the current context's, and one question tells whose.
  if (null && queue.device >= 0 && is_current(cuda, queue.device, &scope->device)) return KILN_OK;
  CUcontext context = nullptr, current = nullptr;
  CUresult result = 0;
  if (null && queue.device >= 0 && cuda.cuDevicePrimaryCtxRetain) {
    kiln_status status = primary_context(cuda, queue.device, &context);
    if (status != KILN_OK) return status;
  } else {
    result = stream_context(cuda, queue.stream, &context);
  }
  if (null && (result == kInvalidContext || (result == 0 && !context)))
    return fail(KILN_E_QUEUE, "the queue's null stream has no device: the calling thread has no current CUDA context");
  if (result)
    return fail(KILN_E_QUEUE, "the queue's stream cannot be used: the CUDA driver returned %s (%d)",
                error_name(cuda, result), result);
  if ((result = cuda.cuCtxGetCurrent(&current))) return driver_error(cuda, result, "cuCtxGetCurrent");
  scope->switched = current != context;
  if (scope->switched && (result = cuda.cuCtxPushCurrent_v2(context)))
    return fail(KILN_E_QUEUE, "the context of the queue's stream cannot be used: the CUDA driver returned %s (%d)",
                error_name(cuda, result), result);
  CUdevice handle = -1;
  result = cuda.cuCtxGetDevice(&handle);
  kiln_status status =
      result ? driver_error(cuda, result, "cuCtxGetDevice") : find_device(cuda, handle, &scope->device);
  if (status == KILN_OK && queue.device >= 0 && queue.device != scope->device->ordinal)
    status = fail(KILN_E_QUEUE, "the queue names device %d, but its stream belongs to device %d", queue.device,
                  scope->device->ordinal);
  if (status != KILN_OK) leave(driver, *scope);
  return status;
}

void unload(Driver& driver, Device&, Loaded& loaded) {
  Cuda& cuda = of(driver);
  CUresult result = loaded.module ? cuda.cuLibraryUnload(loaded.module) : 0;
  if (result && result != kDeinitialized)
    log(*cuda.options, KILN_LOG_WARNING, "cuLibraryUnload: the CUDA driver returned %s (%d)", error_name(cuda, result),
        result);
  loaded.module = nullptr;
}

kiln_status prepare(Cuda& cuda, Device& device, const ImageRow& row, const char* symbol, Loaded* loaded) {
  CUresult result = cuda.cuLibraryGetKernel(&loaded->function, loaded->module, symbol);
  if (result) return driver_error(cuda, result, "cuLibraryGetKernel");
  int fixed = 0;
  if ((result = cuda.cuKernelGetAttribute(&fixed, kStaticShared, loaded->function, device.handle)))
    return driver_error(cuda, result, "cuKernelGetAttribute");
  // The row counts static and dynamic shared memory together; a launch states the dynamic part.
  uint32_t fixed_bytes = fixed > 0 ? static_cast<uint32_t>(fixed) : 0;
  loaded->dynamic_shared = row.shared > fixed_bytes ? row.shared - fixed_bytes : 0;
  if (loaded->dynamic_shared) {
    result = cuda.cuKernelSetAttribute(kMaxDynamicShared, static_cast<int>(loaded->dynamic_shared), loaded->function,
                                       device.handle);
    if (result) return driver_error(cuda, result, "cuKernelSetAttribute (dynamic shared memory)");
  }
  if (row.clusters > kLargestPortableCluster) {
    result = cuda.cuKernelSetAttribute(kNonPortableCluster, 1, loaded->function, device.handle);
    if (result) return driver_error(cuda, result, "cuKernelSetAttribute (cluster size)");
  }
  return KILN_OK;
}

kiln_status load(Driver& driver, Device& device, const ImageRow& row, const char* symbol, void* code, Loaded* loaded) {
  Cuda& cuda = of(driver);
  char report[512] = {0};
  int keys[2] = {kJitErrorLog, kJitErrorLogBytes};
  void* values[2] = {report, reinterpret_cast<void*>(sizeof report - 1)};
  CUresult result =
      cuda.cuLibraryLoadData(&loaded->module, code, keys, values, row.kind == kPtx ? 2 : 0, nullptr, nullptr, 0);
  free(code);  // the driver has a copy
  if (result) {
    loaded->module = nullptr;
    return fail(KILN_E_DRIVER, "cuLibraryLoadData: the CUDA driver returned %s (%d) for an image of %s%s%s",
                error_name(cuda, result), result, symbol, report[0] ? ": " : "", report);
  }
  kiln_status status = prepare(cuda, device, row, symbol, loaded);  // its sentence stands: unload() leaves none
  if (status != KILN_OK) unload(driver, device, *loaded);
  return status;
}

kiln_status launch(Driver& driver, const Scope& scope, const Launch& launch) {
  Cuda& cuda = of(driver);
  const Loaded& image = *launch.image;
  const ImageRow& row = *image.row;
  // Older drivers cannot capture a launch that overlaps.
  bool overlaps = launch.overlaps && driver.version >= kFirstDriverWithOverlap;
  CUresult result;
  if (row.clusters == 1 && !overlaps) {
    result = cuda.cuLaunchKernel(image.function, launch.grid[0], launch.grid[1], launch.grid[2], row.threads, 1, 1,
                                 image.dynamic_shared, scope.stream, launch.parameters, nullptr);
    return result ? driver_error(cuda, result, "cuLaunchKernel") : KILN_OK;
  }
  CUlaunchAttribute attributes[3] = {};
  unsigned count = 0;
  if (row.clusters > 1) {
    attributes[count].id = kClusterDimension;
    attributes[count].value.words[0] = row.clusters;
    attributes[count].value.words[1] = attributes[count].value.words[2] = 1;
    attributes[++count].id = kClusterScheduling;
    attributes[count++].value.words[0] = kClusterSpread;
  }
  if (overlaps) {
    attributes[count].id = kProgrammaticSerialization;
    attributes[count++].value.words[0] = 1;
  }
  CUlaunchConfig config = {{launch.grid[0], launch.grid[1], launch.grid[2]},
                           {row.threads, 1, 1},
                           image.dynamic_shared,
                           scope.stream,
                           attributes,
                           count};
  result = cuda.cuLaunchKernelEx(&config, image.function, launch.parameters, nullptr);
  return result ? driver_error(cuda, result, "cuLaunchKernelEx") : KILN_OK;
}

// Drivers up to 13.1 set a bit of the map of a small tensor that makes the device read beyond it.
void correct(const Cuda& cuda, const DescriptorKey& key, uint32_t element, uint8_t* map) {
  constexpr uint64_t kSmall = 128 << 10, kBit = 1 << 21;
  if (cuda.version > kLastDriverWithSmallMaps) return;
  uint64_t last = 0;  // offset in bytes of the last element; far from an overflow, by the limits of sizes and strides
  for (int d = 0; d < key.rank; ++d)
    last += static_cast<uint64_t>(key.sizes[d] - 1) * static_cast<uint64_t>(key.strides[d]) * element;
  if (last + 1 >= kSmall) return;
  uint64_t word;
  memcpy(&word, map + sizeof word, sizeof word);
  word &= ~kBit;
  memcpy(map + sizeof word, &word, sizeof word);
}

kiln_status encode(Driver& driver, const char* argument, Descriptor& descriptor) {
  Cuda& cuda = of(driver);
  const DescriptorKey& key = descriptor.key;
  uint64_t sizes[KILN_MAX_DESCRIPTOR_RANK], strides[KILN_MAX_DESCRIPTOR_RANK];  // bytes; the driver counts from inside
  unsigned box[KILN_MAX_DESCRIPTOR_RANK];
  static const unsigned kSteps[KILN_MAX_DESCRIPTOR_RANK] = {1, 1, 1, 1, 1};
  uint32_t element = element_bytes(key.element_type);
  for (int d = 0; d < key.rank; ++d) {
    int outer = key.rank - 1 - d;
    sizes[d] = static_cast<uint64_t>(key.sizes[outer]);
    box[d] = key.box[outer];
    if (d) strides[d - 1] = static_cast<uint64_t>(key.strides[outer]) * element;
  }
  CUresult result = cuda.cuTensorMapEncodeTiled(descriptor.map, key.element_type, key.rank,
                                                reinterpret_cast<void*>(key.address), sizes, strides, box, kSteps,
                                                kNoInterleave, key.swizzle, kPromoteTo128Bytes, kFillWithZeros);
  if (result)
    return fail(KILN_E_DRIVER, "cuTensorMapEncodeTiled: the CUDA driver returned %s (%d) for the tensor %s",
                error_name(cuda, result), result, argument);
  correct(cuda, key, element, descriptor.map);
  return KILN_OK;
}

kiln_status zero(Driver& driver, const Scope& scope, uint64_t address, uint64_t bytes) {
  CUresult result = of(driver).cuMemsetD8Async(address, 0, bytes, scope.stream);
  return result ? driver_error(of(driver), result, "cuMemsetD8Async") : KILN_OK;
}

kiln_status wait(Driver& driver, const Scope& scope) {
  CUresult result = of(driver).cuStreamSynchronize(scope.stream);
  return result ? driver_error(of(driver), result, "cuStreamSynchronize") : KILN_OK;
}

void close(Driver* driver, bool release) {
  Cuda* cuda = static_cast<Cuda*>(driver);
  for (int32_t i = 0; release && i < cuda->device_count; ++i)
    if (cuda->devices[i].primary.load(std::memory_order_relaxed) && cuda->cuDevicePrimaryCtxRelease_v2)
      cuda->cuDevicePrimaryCtxRelease_v2(cuda->devices[i].handle);
  if (cuda->library && release) dlclose(cuda->library);
  free(cuda->devices);
  free(cuda);
}

kiln_status find_entries(Cuda& cuda) {
  if (!cuda.options->resolve) {
    // Stays mapped after it is closed: a driver may have threads that would return into nothing.
    cuda.library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!cuda.library) return fail(KILN_E_NO_DEVICE, "there is no NVIDIA driver: %s", dlerror());
  }
#define X(name, needed, parameters) \
  cuda.name = reinterpret_cast<CUresult(*) parameters>(resolve(*cuda.options, KILN_VENDOR_NVIDIA, cuda.library, #name));
  KILN_CUDA_ENTRIES(X)
#undef X
  // Asked first: a driver that is too old lacks entries, and is told so in its own words.
  int version = 0;
  if (cuda.cuDriverGetVersion && cuda.cuDriverGetVersion(&version) == 0) cuda.version = version;
  if (cuda.version && cuda.version < kLowestDriver)
    return fail(KILN_E_NO_DEVICE, "the NVIDIA driver is for CUDA %d.%d; Kiln needs a driver for CUDA 12.0 or later",
                version / 1000, version % 1000 / 10);
#define X(name, needed, parameters) \
  if (needed && !cuda.name) return fail(KILN_E_NO_DEVICE, "the NVIDIA driver has no entry point " #name);
  KILN_CUDA_ENTRIES(X)
#undef X
  cuda.has_descriptors = cuda.cuTensorMapEncodeTiled != nullptr;
  return KILN_OK;
}

void format_uuid(const unsigned char uuid[16], char* text, size_t size) {
  FixedText<64> out;
  out.add("GPU-");
  for (int i = 0; i < 16; ++i) out.add(i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", uuid[i]);
  snprintf(text, size, "%s", out.c_str());
}

kiln_status describe(Driver& driver, Device& device) {
  Cuda& cuda = of(driver);
  struct {
    int which, value;
  } facts[] = {{kMaxThreadsPerBlock, 0}, {kWarpSize, 0}, {kMultiprocessors, 0}, {kMajor, 0}, {kMinor, 0},
               {kMaxSharedOptin, 0}};
  CUresult result = cuda.cuDeviceGet(&device.handle, device.ordinal);
  if (result) return driver_error(cuda, result, "cuDeviceGet");
  for (auto& fact : facts)
    if ((result = cuda.cuDeviceGetAttribute(&fact.value, fact.which, device.handle)))
      return driver_error(cuda, result, "cuDeviceGetAttribute");
  unsigned char uuid[16] = {0};
  if ((result = cuda.cuDeviceGetUuid_v2(uuid, device.handle))) return driver_error(cuda, result, "cuDeviceGetUuid");
  if ((result = cuda.cuDeviceGetName(device.name, sizeof device.name - 1, device.handle)))
    return driver_error(cuda, result, "cuDeviceGetName");
  device.max_threads = static_cast<uint32_t>(facts[0].value);
  device.warp_size = facts[1].value;
  device.multiprocessors = facts[2].value;
  device.max_shared = static_cast<uint32_t>(facts[5].value);
  snprintf(device.target, sizeof device.target, "sm_%d%d", facts[3].value, facts[4].value);
  device.max_grid[0] = 0x7FFFFFFF;
  device.max_grid[1] = device.max_grid[2] = 65535;
  device.max_grid_threads = INT64_MAX;
  format_uuid(uuid, device.id, sizeof device.id);
  return KILN_OK;
}

kiln_status open(Cuda& cuda) {
  kiln_status status = find_entries(cuda);
  if (status != KILN_OK) return status;
  CUresult result = cuda.cuInit(0);
  constexpr CUresult kNoDevice = 100;
  if (result == kNoDevice) return fail(KILN_E_NO_DEVICE, "the NVIDIA driver has no device");
  if (result) return driver_error(cuda, result, "cuInit");
  int count = 0;
  if ((result = cuda.cuDeviceGetCount(&count))) return driver_error(cuda, result, "cuDeviceGetCount");
  if (count <= 0) return fail(KILN_E_NO_DEVICE, "the NVIDIA driver has no device");
  return make_devices(cuda, count);
}

constexpr DriverCalls kCalls = {describe, enter, leave, load, unload, launch, encode, zero, wait, close};

}  // namespace

kiln_status open_cuda(const Options& options, Driver** out) {
  Cuda* cuda = allocate<Cuda>();
  if (!cuda) return out_of_memory();
  cuda->calls = &kCalls;
  cuda->options = &options;
  cuda->vendor = KILN_VENDOR_NVIDIA;
  kiln_status status = open(*cuda);
  if (status != KILN_OK) {
    close(cuda, true);
    return status;
  }
  *out = cuda;
  return KILN_OK;
}

}  // namespace kiln
