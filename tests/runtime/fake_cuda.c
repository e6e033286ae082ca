/* The CUDA driver's entry points. */
#include "fake_internal.h"

#define ENTRY(name, parameters, arguments) FAKE_ENTRY(FAKE_NVIDIA, name, parameters, arguments)

enum { INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_IMAGE = 200, INVALID_CONTEXT = 201 };
enum { INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_SUPPORTED = 801 };
enum { FIRST_DEVICE = 100 }; /* a CUdevice is no ordinal */

static const struct {
  int major, minor, multiprocessors, shared;
} devices[FAKE_DEVICES] = {
    {9, 0, 132, 232448}, {8, 0, 108, 166912}, {7, 5, 40, 65536}, {8, 6, 84, 101376}, {9, 0, 132, 232448}};

static Context* current(void) { return fake_get_current(FAKE_NVIDIA); }
/* 1 and 2 stand for the legacy and the thread's own null stream. */
static int is_null(const Stream* stream) { return (uintptr_t)stream <= 2; }

/* ---- devices ----------------------------------------------------------------------------------------------------- */

ENTRY(cuInit, (unsigned flags), (flags)) { return (int)flags; }
ENTRY(cuDriverGetVersion, (int* version), (version)) {
  *version = fake_versions[FAKE_NVIDIA];
  return 0;
}
ENTRY(cuGetErrorName, (int code, const char** name), (code, name)) {
  static const struct {
    int code;
    const char* name;
  } names[] = {{1, "CUDA_ERROR_INVALID_VALUE"},     {2, "CUDA_ERROR_OUT_OF_MEMORY"},
               {3, "CUDA_ERROR_NOT_INITIALIZED"},   {200, "CUDA_ERROR_INVALID_IMAGE"},
               {201, "CUDA_ERROR_INVALID_CONTEXT"}, {400, "CUDA_ERROR_INVALID_HANDLE"},
               {500, "CUDA_ERROR_NOT_FOUND"},       {700, "CUDA_ERROR_ILLEGAL_ADDRESS"}};
  for (unsigned i = 0; i < sizeof names / sizeof *names; ++i)
    if (names[i].code == code) return *name = names[i].name, 0;
  return INVALID_VALUE;
}
ENTRY(cuDeviceGetCount, (int* count), (count)) {
  *count = fake_counts[FAKE_NVIDIA];
  return 0;
}
ENTRY(cuDeviceGet, (int* device, int ordinal), (device, ordinal)) {
  *device = FIRST_DEVICE + ordinal;
  return 0;
}
ENTRY(cuDeviceGetName, (char* name, int size, int device), (name, size, device)) {
  snprintf(name, (size_t)size, "Fake NVIDIA %d", device - FIRST_DEVICE);
  return 0;
}
ENTRY(cuDeviceGetUuid_v2, (unsigned char* uuid, int device), (uuid, device)) {
  for (int i = 0; i < 16; ++i) uuid[i] = (unsigned char)(16 * i + device - FIRST_DEVICE);
  return 0;
}
ENTRY(cuDeviceGetAttribute, (int* value, int which, int device), (value, which, device)) {
  int d = device - FIRST_DEVICE;
  switch (which) {
    case 1:
      *value = 1024;
      return 0;
    case 10:
      *value = 32;
      return 0;
    case 16:
      *value = devices[d].multiprocessors;
      return 0;
    case 75:
      *value = devices[d].major;
      return 0;
    case 76:
      *value = devices[d].minor;
      return 0;
    case 97:
      *value = devices[d].shared;
      return 0;
    default:
      return INVALID_VALUE;
  }
}

/* ---- contexts and streams ---------------------------------------------------------------------------------------- */

ENTRY(cuCtxGetCurrent, (Context * *context), (context)) {
  *context = current();
  return 0;
}
ENTRY(cuCtxSetCurrent, (Context * context), (context)) {
  fake_set_current(FAKE_NVIDIA, context);
  return 0;
}
ENTRY(cuCtxGetDevice, (int* device), (device)) {
  if (!current()) return INVALID_CONTEXT;
  *device = FIRST_DEVICE + current()->device;
  return 0;
}
ENTRY(cuCtxPushCurrent_v2, (Context * context), (context)) {
  fake_push(context);
  return 0;
}
ENTRY(cuCtxPopCurrent_v2, (Context * *context), (context)) {
  *context = fake_pop();
  return *context ? 0 : INVALID_CONTEXT;
}
ENTRY(cuDevicePrimaryCtxRetain, (Context * *context, int device), (context, device)) {
  *context = fake_context(device - FIRST_DEVICE, 0);
  return 0;
}
ENTRY(cuDevicePrimaryCtxRelease_v2, (int device), (device)) { return device < FIRST_DEVICE ? INVALID_VALUE : 0; }
ENTRY(cuStreamGetCtx, (Stream * stream, Context** context), (stream, context)) {
  if (is_null(stream)) return (*context = current()) ? 0 : INVALID_CONTEXT;
  if (stream->vendor != FAKE_NVIDIA) return INVALID_HANDLE;
  if (stream->context->green) return NOT_SUPPORTED;
  *context = stream->context;
  return 0;
}
ENTRY(cuStreamGetCtx_v2, (Stream * stream, Context** context, Context** green), (stream, context, green)) {
  *context = *green = NULL;
  if (is_null(stream)) return (*context = current()) ? 0 : INVALID_CONTEXT;
  if (stream->vendor != FAKE_NVIDIA) return INVALID_HANDLE;
  *(stream->context->green ? green : context) = stream->context;
  return 0;
}
ENTRY(cuCtxFromGreenCtx, (Context * *context, Context* green), (context, green)) {
  *context = green;
  return 0;
}
ENTRY(cuStreamCreate, (Stream * *stream, unsigned flags), (stream, flags)) {
  if (!current()) return INVALID_CONTEXT;
  *stream = fake_make_stream(FAKE_NVIDIA, current());
  return flags > 1 ? INVALID_VALUE : 0;
}
ENTRY(cuStreamDestroy_v2, (Stream * stream), (stream)) { return fake_destroy_stream(stream, INVALID_HANDLE); }
ENTRY(cuStreamSynchronize, (Stream * stream), (stream)) {
  fake_note("\"stream\": %llu", (unsigned long long)(uintptr_t)stream);
  return is_null(stream) || stream->vendor == FAKE_NVIDIA ? 0 : INVALID_HANDLE;
}

/* ---- images and launches ----------------------------------------------------------------------------------------- */

EXPORT int cuLibraryLoadData(Image** image, const void* code, int* options, void** values, unsigned count, int* a,
                             void** b, unsigned c) {
  (void)a, (void)b, (void)c;
  fake_begin();
  int failed = fake_enter(__func__);
  for (unsigned i = 0; failed && i < count; ++i)
    if (options[i] == 5) snprintf(values[i], (size_t)values[i + 1], "ptxas: line 1 is wrong");
  return fake_end(FAKE_NVIDIA, __func__, failed ? failed : fake_load(FAKE_NVIDIA, image, code, INVALID_IMAGE));
}
ENTRY(cuLibraryGetKernel, (Image * *kernel, Image* image, const char* symbol), (kernel, image, symbol)) {
  if (strcmp(image->symbol, symbol) != 0) return NOT_FOUND;
  *kernel = image;
  fake_note("\"module\": %d, \"symbol\": \"%s\"", image->number, symbol);
  return 0;
}
ENTRY(cuLibraryUnload, (Image * image), (image)) { return fake_unload(image, INVALID_HANDLE); }
ENTRY(cuKernelGetAttribute, (int* value, int which, Image* kernel, int device), (value, which, kernel, device)) {
  if (which != 1 || device < FIRST_DEVICE) return INVALID_VALUE;
  *value = kernel->fixed;
  return 0;
}
ENTRY(cuKernelSetAttribute, (int which, int value, Image* kernel, int device), (which, value, kernel, device)) {
  if (device < FIRST_DEVICE || (which != 8 && which != 14)) return INVALID_VALUE;
  if (which == 8) kernel->dynamic = value;
  fake_note("\"module\": %d, \"attribute\": %d, \"value\": %d", kernel->number, which, value);
  return 0;
}

static int launch(Image* kernel, const unsigned* grid, const unsigned* block, unsigned shared, Stream* stream,
                  unsigned cluster, void** parameters, void** extra) {
  if ((int)shared > kernel->dynamic || grid[0] % cluster) return INVALID_VALUE;
  return fake_launch(FAKE_NVIDIA, kernel, grid, block, shared, stream, cluster, parameters, extra, 0);
}
ENTRY(cuLaunchKernel,
      (Image * kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
       Stream* stream, void** parameters, void** extra),
      (kernel, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra)) {
  const unsigned grid[] = {gx, gy, gz}, block[] = {bx, by, bz};
  return launch(kernel, grid, block, shared, stream, 1, parameters, extra);
}
typedef struct {
  unsigned id;
  char pad[4];
  unsigned words[16];
} Attribute;
typedef struct {
  unsigned grid[3], block[3], shared;
  Stream* stream;
  Attribute* attributes;
  unsigned count;
} Config;
ENTRY(cuLaunchKernelEx, (const Config* config, Image* kernel, void** parameters, void** extra),
      (config, kernel, parameters, extra)) {
  unsigned cluster = 1, overlaps = 0;
  for (unsigned i = 0; i < config->count; ++i) {
    if (config->attributes[i].id == 4) cluster = config->attributes[i].words[0];
    if (config->attributes[i].id == 6) overlaps = config->attributes[i].words[0];
  }
  fake_note("\"overlaps\": %u", overlaps);
  return launch(kernel, config->grid, config->block, config->shared, config->stream, cluster, parameters, extra);
}

#ifndef FAKE_WITHOUT_MAPS
ENTRY(cuTensorMapEncodeTiled,
      (Map * map, int type, unsigned rank, uint64_t address, const uint64_t* sizes, const uint64_t* strides,
       const unsigned* box, const unsigned* steps, int interleave, int swizzle, int promotion, int fill),
      (map, type, rank, address, sizes, strides, box, steps, interleave, swizzle, promotion, fill)) {
  return fake_encode(map, type, rank, address, sizes, strides, box, steps, interleave, swizzle, promotion, fill);
}
#endif

/* ---- memory ------------------------------------------------------------------------------------------------------ */

typedef unsigned long long Pointer;

ENTRY(cuMemAlloc_v2, (uint64_t* address, size_t bytes), (address, bytes)) {
  return current() ? fake_allocate(address, bytes, NULL, OUT_OF_MEMORY) : INVALID_CONTEXT;
}
ENTRY(cuMemFree_v2, (Pointer address), (address)) { return fake_free(address, NULL, INVALID_VALUE); }
ENTRY(cuMemAllocAsync, (uint64_t* address, size_t bytes, Stream* stream), (address, bytes, stream)) {
  return fake_allocate(address, bytes, stream, OUT_OF_MEMORY);
}
ENTRY(cuMemFreeAsync, (Pointer address, Stream* stream), (address, stream)) {
  return fake_free(address, stream, INVALID_VALUE);
}
ENTRY(cuMemsetD8Async, (Pointer address, unsigned char value, size_t bytes, Stream* stream),
      (address, value, bytes, stream)) {
  return fake_set(address, value, bytes, stream);
}
ENTRY(cuMemsetD2D8Async,
      (Pointer address, size_t pitch, unsigned char value, size_t width, size_t height, Stream* stream),
      (address, pitch, value, width, height, stream)) {
  return pitch < width ? INVALID_VALUE : fake_set_rows(address, pitch, value, width, height, stream);
}
ENTRY(cuMemcpyAsync, (Pointer to, Pointer from, size_t bytes, Stream* stream), (to, from, bytes, stream)) {
  return fake_copy(to, from, bytes, stream);
}
ENTRY(cuMemcpyHtoDAsync_v2, (Pointer to, const void* from, size_t bytes, Stream* stream), (to, from, bytes, stream)) {
  return fake_copy(to, (uintptr_t)from, bytes, stream);
}
ENTRY(cuMemcpyDtoHAsync_v2, (void* to, Pointer from, size_t bytes, Stream* stream), (to, from, bytes, stream)) {
  memset(to, 0, bytes); /* nothing lies in device memory */
  return fake_copy((uintptr_t)to, from, bytes, stream);
}
