/* The HIP runtime's entry points. */
#include "fake_internal.h"

#define ENTRY(name, parameters, arguments) FAKE_ENTRY(FAKE_AMD, name, parameters, arguments)

enum { INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_BINARY = 209, INVALID_HANDLE = 400, NOT_FOUND = 500 };
enum { DEVICE_TO_HOST = 2 };

static const struct {
  const char* name;
  int warp, multiprocessors;
} devices[FAKE_DEVICES] = {{"gfx942:sramecc+:xnack-", 64, 304},
                           {"gfx90a:sramecc+:xnack-", 64, 104},
                           {"gfx1100", 32, 96},
                           {"gfx1201", 32, 64},
                           {"gfx942", 64, 304}};

static int is_null(const Stream* stream) { return (uintptr_t)stream <= 2; }

/* ---- devices and streams ----------------------------------------------------------------------------------------- */

ENTRY(hipInit, (unsigned flags), (flags)) { return (int)flags; }
ENTRY(hipRuntimeGetVersion, (int* version), (version)) {
  *version = fake_versions[FAKE_AMD];
  return 0;
}
EXPORT int hipGetLastError(void) {
  fake_begin();
  fake_enter(__func__);
  int code = fake_take_remembered();
  fake_note("\"value\": %d", code);
  fake_end(FAKE_AMD, __func__, 0);
  return code;
}
EXPORT const char* hipGetErrorName(int code) {
  return code == NO_BINARY ? "hipErrorNoBinaryForGpu" : "hipErrorUnknown";
}
ENTRY(hipGetDeviceCount, (int* count), (count)) {
  *count = fake_counts[FAKE_AMD];
  return 0;
}
ENTRY(hipGetDevice, (int* device), (device)) {
  *device = fake_current_device(FAKE_AMD);
  return 0;
}
ENTRY(hipSetDevice, (int device), (device)) {
  fake_set_current(FAKE_AMD, (void*)(intptr_t)device);
  return 0;
}
ENTRY(hipDeviceGetName, (char* name, int size, int device), (name, size, device)) {
  snprintf(name, (size_t)size, "Fake AMD %d", device);
  return 0;
}
ENTRY(hipDeviceGetPCIBusId, (char* id, int size, int device), (id, size, device)) {
  snprintf(id, (size_t)size, "0000:%02x:00.0", device + 1);
  return 0;
}
ENTRY(hipDeviceGetAttribute, (int* value, int which, int device), (value, which, device)) {
  switch (which) {
    case 29:
      *value = 0x7FFFFFFF;
      return 0;
    case 30:
    case 31:
      *value = 65535;
      return 0;
    case 56:
      *value = 1024;
      return 0;
    case 63:
      *value = devices[device].multiprocessors;
      return 0;
    case 74:
      *value = 65536;
      return 0;
    case 87:
      *value = devices[device].warp;
      return 0;
    default:
      return INVALID_VALUE;
  }
}
ENTRY(hipGetDevicePropertiesR0600, (char* properties, int device), (properties, device)) {
  memset(properties, 0, 1472);
  snprintf(properties, 256, "AMD gfx fake");
  if (fake_properties < 2) strcpy(properties + (fake_properties ? 1200 : 1160), devices[device].name);
  return 0;
}
ENTRY(hipStreamGetDevice, (Stream * stream, int* device), (stream, device)) {
  if (is_null(stream))
    *device = fake_current_device(FAKE_AMD);
  else if (stream->vendor != FAKE_AMD)
    return INVALID_HANDLE;
  else
    *device = stream->device;
  return 0;
}
ENTRY(hipStreamCreate, (Stream * *stream), (stream)) {
  *stream = fake_make_stream(FAKE_AMD, NULL);
  return 0;
}
ENTRY(hipStreamDestroy, (Stream * stream), (stream)) { return fake_destroy_stream(stream, INVALID_HANDLE); }
ENTRY(hipStreamSynchronize, (Stream * stream), (stream)) {
  fake_note("\"stream\": %llu", (unsigned long long)(uintptr_t)stream);
  return is_null(stream) || stream->vendor == FAKE_AMD ? 0 : INVALID_HANDLE;
}
ENTRY(hipDeviceSynchronize, (void), ()) { return 0; }

/* ---- images and launches ----------------------------------------------------------------------------------------- */

ENTRY(hipModuleLoadData, (Image * *image, const void* code), (image, code)) {
  return fake_load(FAKE_AMD, image, code, NO_BINARY);
}
ENTRY(hipModuleUnload, (Image * image), (image)) { return fake_unload(image, INVALID_HANDLE); }
ENTRY(hipModuleGetFunction, (Image * *function, Image* image, const char* symbol), (function, image, symbol)) {
  if (strcmp(image->symbol, symbol) != 0) return NOT_FOUND;
  *function = image;
  fake_note("\"module\": %d, \"symbol\": \"%s\"", image->number, symbol);
  return 0;
}
ENTRY(hipFuncGetAttribute, (int* value, int which, Image* function), (value, which, function)) {
  if (which != 1) return INVALID_VALUE;
  *value = function->fixed;
  return 0;
}
ENTRY(hipModuleLaunchKernel,
      (Image * function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
       Stream* stream, void** parameters, void** extra),
      (function, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra)) {
  const unsigned grid[] = {gx, gy, gz}, block[] = {bx, by, bz};
  return fake_launch(FAKE_AMD, function, grid, block, shared, stream, 1, parameters, extra, 3);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

ENTRY(hipMalloc, (uint64_t* address, size_t bytes), (address, bytes)) {
  return fake_allocate(address, bytes, NULL, OUT_OF_MEMORY);
}
ENTRY(hipFree, (void* address), (address)) { return fake_free((uintptr_t)address, NULL, INVALID_VALUE); }
ENTRY(hipMallocAsync, (uint64_t* address, size_t bytes, Stream* stream), (address, bytes, stream)) {
  return fake_allocate(address, bytes, stream, OUT_OF_MEMORY);
}
ENTRY(hipFreeAsync, (void* address, Stream* stream), (address, stream)) {
  return fake_free((uintptr_t)address, stream, INVALID_VALUE);
}
ENTRY(hipMemsetAsync, (void* address, int value, size_t bytes, Stream* stream), (address, value, bytes, stream)) {
  return fake_set((uintptr_t)address, value, bytes, stream);
}
ENTRY(hipMemset2DAsync, (void* address, size_t pitch, int value, size_t width, size_t height, Stream* stream),
      (address, pitch, value, width, height, stream)) {
  return pitch < width ? INVALID_VALUE : fake_set_rows((uintptr_t)address, pitch, value, width, height, stream);
}
ENTRY(hipMemcpyAsync, (void* to, const void* from, size_t bytes, int kind, Stream* stream),
      (to, from, bytes, kind, stream)) {
  if (kind == DEVICE_TO_HOST) memset(to, 0, bytes); /* nothing lies in device memory */
  return fake_copy((uintptr_t)to, (uintptr_t)from, bytes, stream);
}
ENTRY(hipMemcpy, (void* to, const void* from, size_t bytes, int kind), (to, from, bytes, kind)) {
  if (kind == DEVICE_TO_HOST) memset(to, 0, bytes);
  return fake_copy((uintptr_t)to, (uintptr_t)from, bytes, NULL);
}
