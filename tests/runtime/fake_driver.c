#include "fake_driver.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define MAX_ENTRIES 64
#define MAX_LAUNCHES 4096
#define STREAMS 4
#define CONTEXTS 3

typedef struct Context {
  int device, green;
} Context;
typedef struct Stream {
  int vendor, device;
  Context* context;
} Stream;
typedef struct Image {
  char symbol[64];
  int fixed, count, dynamic, live;
  uint32_t sizes[80];
  struct Image* next;
} Image;
typedef struct Entry {
  char name[48];
  int calls, fail_at, code, sticky, hidden;
} Entry;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Entry entries[MAX_ENTRIES];
static int entry_count, cuda_version, hip_version, counts[3], properties_mode, recording;
static Context contexts[FAKE_DEVICES][CONTEXTS], greens[FAKE_DEVICES];
static Stream streams[3][FAKE_DEVICES][STREAMS], green_streams[FAKE_DEVICES];
static Image* images;
static int loaded;
static fake_launch launches[MAX_LAUNCHES];
static fake_zero zeros[256];
static int launch_count, zero_count;
static __thread Context* stack[16];
static __thread int depth;
static __thread int hip_device, hip_last;

static const struct {
  int major, minor, multiprocessors, shared;
} cuda_devices[FAKE_DEVICES] = {
    {9, 0, 132, 232448}, {8, 0, 108, 166912}, {7, 5, 40, 65536}, {8, 6, 84, 101376}, {9, 0, 132, 232448}};
static const struct {
  const char* name;
  int warp, multiprocessors;
} hip_devices[FAKE_DEVICES] = {{"gfx942:sramecc+:xnack-", 64, 304},
                               {"gfx90a:sramecc+:xnack-", 64, 104},
                               {"gfx1100", 32, 96},
                               {"gfx1201", 32, 64},
                               {"gfx942", 64, 304}};

static Entry* entry(const char* name) {
  for (int i = 0; i < entry_count; ++i)
    if (strcmp(entries[i].name, name) == 0) return &entries[i];
  Entry* e = &entries[entry_count++];
  memset(e, 0, sizeof *e);
  snprintf(e->name, sizeof e->name, "%s", name);
  return e;
}

/* Counts the call of an entry point; the code that it is to fail with, or 0. */
static int enter(const char* name) {
  pthread_mutex_lock(&lock);
  Entry* e = entry(name);
  int call = ++e->calls, code = 0;
  if (e->fail_at && (call == e->fail_at || (e->sticky && call > e->fail_at))) code = e->code;
  pthread_mutex_unlock(&lock);
  return code;
}
#define ENTER()                  \
  do {                           \
    int code_ = enter(__func__); \
    if (code_) return code_;     \
  } while (0)

EXPORT void fake_reset(void) {
  pthread_mutex_lock(&lock);
  entry_count = launch_count = zero_count = loaded = properties_mode = 0;
  recording = 1;
  cuda_version = 12080, hip_version = 60200000;
  counts[FAKE_NVIDIA] = counts[FAKE_AMD] = FAKE_DEVICES;
  while (images) {
    Image* next = images->next;
    free(images);
    images = next;
  }
  for (int d = 0; d < FAKE_DEVICES; ++d) {
    for (int c = 0; c < CONTEXTS; ++c) contexts[d][c].device = d;
    greens[d].device = d, greens[d].green = 1;
    green_streams[d] = (Stream){FAKE_NVIDIA, d, &greens[d]};
    for (int s = 0; s < STREAMS; ++s) {
      streams[FAKE_NVIDIA][d][s] = (Stream){FAKE_NVIDIA, d, &contexts[d][s < CONTEXTS ? s : 0]};
      streams[FAKE_AMD][d][s] = (Stream){FAKE_AMD, d, NULL};
    }
  }
  depth = 0, hip_device = 0, hip_last = 0;
  pthread_mutex_unlock(&lock);
}

EXPORT void fake_fail(const char* symbol, int nth, int code, int sticky) {
  pthread_mutex_lock(&lock);
  Entry* e = entry(symbol);
  e->fail_at = e->calls + nth, e->code = code, e->sticky = sticky;
  pthread_mutex_unlock(&lock);
}
EXPORT void fake_hide(const char* symbol) {
  pthread_mutex_lock(&lock);
  entry(symbol)->hidden = 1;
  pthread_mutex_unlock(&lock);
}
EXPORT void fake_set_version(int cuda, int hip) { cuda_version = cuda, hip_version = hip; }
EXPORT void fake_set_device_count(int32_t vendor, int count) { counts[vendor] = count; }
EXPORT void fake_set_properties(int mode) { properties_mode = mode; }
EXPORT void fake_set_recording(int on) { recording = on; }
EXPORT void* fake_context(int device, int number) { return &contexts[device][number]; }
EXPORT void* fake_green_stream(int device) { return &green_streams[device]; }
EXPORT void* fake_stream(int32_t vendor, int device, int number) { return &streams[vendor][device][number]; }
EXPORT void fake_set_current(int32_t vendor, void* what) {
  if (vendor == FAKE_AMD)
    hip_device = (int)(intptr_t)what;
  else
    depth = what ? 1 : 0, stack[0] = what;
}
EXPORT void* fake_get_current(int32_t vendor) {
  if (vendor == FAKE_AMD) return (void*)(intptr_t)hip_device;
  return depth ? stack[depth - 1] : NULL;
}
EXPORT int fake_count(const char* symbol) {
  pthread_mutex_lock(&lock);
  int calls = entry(symbol)->calls;
  pthread_mutex_unlock(&lock);
  return calls;
}
EXPORT int fake_last_error(void) { return hip_last; }
EXPORT int fake_loaded(void) { return loaded; }
EXPORT int fake_launches(void) { return launch_count; }
EXPORT const fake_launch* fake_get_launch(int number) { return &launches[number]; }
EXPORT int fake_zeros(void) { return zero_count; }
EXPORT const fake_zero* fake_get_zero(int number) { return &zeros[number]; }

/* ---- shared by both ---------------------------------------------------------------------------------------------- */

static int load_image(Image** out, const void* code, int bad) {
  char word[8];
  int at = 0, n;
  Image* image = calloc(1, sizeof *image);
  const char* text = code;
  if (sscanf(text, "%7s %63s %d%n", word, image->symbol, &image->fixed, &at) != 3 || strcmp(word, "FAKE") != 0) {
    free(image);
    return bad;
  }
  while (image->count < 80 && sscanf(text += at, "%u%n", &image->sizes[image->count], &n) == 1) at = n, ++image->count;
  image->live = 1;
  pthread_mutex_lock(&lock);
  image->next = images, images = image;
  ++loaded;
  pthread_mutex_unlock(&lock);
  *out = image;
  return 0;
}

static int unload_image(Image* image, int bad) {
  pthread_mutex_lock(&lock);
  int live = image->live;
  image->live = 0;
  loaded -= live;
  pthread_mutex_unlock(&lock);
  return live ? 0 : bad;
}

static int current_device(int vendor) {
  Context* context = vendor == FAKE_NVIDIA ? fake_get_current(vendor) : NULL;
  return vendor == FAKE_AMD ? hip_device : context ? context->device : -1;
}

static int record(int vendor, Image* image, const unsigned* grid, const unsigned* block, unsigned shared, void* stream,
                  unsigned cluster, void** parameters) {
  if (!image->live) return 400;
  if (!recording) return 0;
  pthread_mutex_lock(&lock);
  if (launch_count < MAX_LAUNCHES) {
    fake_launch* l = &launches[launch_count++];
    memset(l, 0, sizeof *l);
    l->vendor = vendor, l->device = current_device(vendor), l->shared = shared, l->stream = stream,
    l->cluster = cluster;
    memcpy(l->symbol, image->symbol, sizeof l->symbol);
    memcpy(l->grid, grid, sizeof l->grid);
    memcpy(l->block, block, sizeof l->block);
    l->parameter_count = (uint32_t)image->count;
    for (int i = 0; i < image->count; ++i) {
      l->sizes[i] = image->sizes[i];
      memcpy(&l->values[i], parameters[i], image->sizes[i]);
    }
  }
  pthread_mutex_unlock(&lock);
  return 0;
}

static int record_zero(int vendor, uint64_t address, uint64_t bytes, void* stream) {
  pthread_mutex_lock(&lock);
  if (zero_count < 256)
    zeros[zero_count++] = (fake_zero){vendor, current_device(vendor), address, bytes, (uint32_t)launch_count, stream};
  pthread_mutex_unlock(&lock);
  return 0;
}

/* ---- CUDA -------------------------------------------------------------------------------------------------------- */

static int cuInit(unsigned flags) {
  ENTER();
  return (int)flags;
}
static int cuDriverGetVersion(int* version) {
  ENTER();
  *version = cuda_version;
  return 0;
}
static int cuGetErrorName(int code, const char** name) {
  static const struct {
    int code;
    const char* name;
  } names[] = {{1, "CUDA_ERROR_INVALID_VALUE"},     {2, "CUDA_ERROR_OUT_OF_MEMORY"},
               {3, "CUDA_ERROR_NOT_INITIALIZED"},   {200, "CUDA_ERROR_INVALID_IMAGE"},
               {201, "CUDA_ERROR_INVALID_CONTEXT"}, {400, "CUDA_ERROR_INVALID_HANDLE"},
               {500, "CUDA_ERROR_NOT_FOUND"},       {700, "CUDA_ERROR_ILLEGAL_ADDRESS"}};
  enter(__func__);
  for (unsigned i = 0; i < sizeof names / sizeof *names; ++i)
    if (names[i].code == code) return *name = names[i].name, 0;
  return 1;
}
static int cuDeviceGetCount(int* count) {
  ENTER();
  *count = counts[FAKE_NVIDIA];
  return 0;
}
static int cuDeviceGet(int* device, int ordinal) {
  ENTER();
  *device = 100 + ordinal;
  return 0;
}
static int cuDeviceGetName(char* name, int size, int device) {
  ENTER();
  snprintf(name, (size_t)size, "Fake NVIDIA %d", device - 100);
  return 0;
}
static int cuDeviceGetUuid_v2(unsigned char* uuid, int device) {
  ENTER();
  for (int i = 0; i < 16; ++i) uuid[i] = (unsigned char)(16 * i + device - 100);
  return 0;
}
static int cuDeviceGetAttribute(int* value, int which, int device) {
  ENTER();
  int d = device - 100;
  switch (which) {
    case 1:
      *value = 1024;
      return 0;
    case 10:
      *value = 32;
      return 0;
    case 16:
      *value = cuda_devices[d].multiprocessors;
      return 0;
    case 75:
      *value = cuda_devices[d].major;
      return 0;
    case 76:
      *value = cuda_devices[d].minor;
      return 0;
    case 97:
      *value = cuda_devices[d].shared;
      return 0;
    default:
      return 1;
  }
}
static int cuCtxGetCurrent(Context** context) {
  ENTER();
  *context = fake_get_current(FAKE_NVIDIA);
  return 0;
}
static int cuCtxGetDevice(int* device) {
  ENTER();
  Context* context = fake_get_current(FAKE_NVIDIA);
  if (!context) return 201;
  *device = 100 + context->device;
  return 0;
}
static int cuCtxPushCurrent_v2(Context* context) {
  ENTER();
  stack[depth++] = context;
  return 0;
}
static int cuCtxPopCurrent_v2(Context** context) {
  ENTER();
  *context = stack[--depth];
  return 0;
}
static int cuStreamGetCtx(Stream* stream, Context** context) {
  ENTER();
  if ((uintptr_t)stream <= 2) return (*context = fake_get_current(FAKE_NVIDIA)) ? 0 : 201;
  if (stream->vendor != FAKE_NVIDIA) return 400;
  if (stream->context->green) return 801;
  *context = stream->context;
  return 0;
}
static int cuStreamGetCtx_v2(Stream* stream, Context** context, Context** green) {
  ENTER();
  *context = *green = NULL;
  if ((uintptr_t)stream <= 2) return (*context = fake_get_current(FAKE_NVIDIA)) ? 0 : 201;
  if (stream->vendor != FAKE_NVIDIA) return 400;
  *(stream->context->green ? green : context) = stream->context;
  return 0;
}
static int cuCtxFromGreenCtx(Context** context, Context* green) {
  ENTER();
  *context = green;
  return 0;
}
static int cuLibraryLoadData(Image** image, const void* code, int* options, void** values, unsigned count, int* a,
                             void** b, unsigned c) {
  (void)a, (void)b, (void)c;
  int code_ = enter(__func__);
  for (unsigned i = 0; code_ && i < count; ++i)
    if (options[i] == 5) snprintf(values[i], (size_t)values[i + 1], "ptxas: line 1 is wrong");
  return code_ ? code_ : load_image(image, code, 200);
}
static int cuLibraryGetKernel(Image** kernel, Image* image, const char* symbol) {
  ENTER();
  if (strcmp(image->symbol, symbol) != 0) return 500;
  *kernel = image;
  return 0;
}
static int cuLibraryUnload(Image* image) {
  ENTER();
  return unload_image(image, 400);
}
static int cuKernelGetAttribute(int* value, int which, Image* kernel, int device) {
  ENTER();
  if (which != 1 || device < 100) return 1;
  *value = kernel->fixed;
  return 0;
}
static int cuKernelSetAttribute(int which, int value, Image* kernel, int device) {
  ENTER();
  if (device < 100 || (which != 8 && which != 14)) return 1;
  if (which == 8) kernel->dynamic = value;
  return 0;
}
static int cuMemsetD8Async(unsigned long long address, unsigned char value, size_t bytes, void* stream) {
  ENTER();
  return value ? 1 : record_zero(FAKE_NVIDIA, address, bytes, stream);
}
static int cuLaunchKernel(Image* kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                          unsigned shared, void* stream, void** parameters, void** extra) {
  ENTER();
  const unsigned grid[] = {gx, gy, gz}, block[] = {bx, by, bz};
  if (extra || !gx || !gy || !gz || (int)shared > kernel->dynamic) return 1;
  return record(FAKE_NVIDIA, kernel, grid, block, shared, stream, 1, parameters);
}
typedef struct {
  unsigned id;
  char pad[4];
  unsigned words[16];
} Attribute;
typedef struct {
  unsigned grid[3], block[3], shared;
  void* stream;
  Attribute* attributes;
  unsigned count;
} Config;
static int cuLaunchKernelEx(const Config* config, Image* kernel, void** parameters, void** extra) {
  ENTER();
  unsigned cluster = 1;
  for (unsigned i = 0; i < config->count; ++i)
    if (config->attributes[i].id == 4) cluster = config->attributes[i].words[0];
  if (extra || config->grid[0] % cluster) return 1;
  return record(FAKE_NVIDIA, kernel, config->grid, config->block, config->shared, config->stream, cluster, parameters);
}

/* ---- HIP --------------------------------------------------------------------------------------------------------- */

/* As HIP does: a failure stays until hipGetLastError() asks for it. */
static int hip_result(int code) {
  if (code) hip_last = code;
  return code;
}
#define HIP_ENTER()                      \
  do {                                   \
    int code_ = enter(__func__);         \
    if (code_) return hip_result(code_); \
  } while (0)

static int hipInit(unsigned flags) {
  HIP_ENTER();
  return (int)flags;
}
static int hipRuntimeGetVersion(int* version) {
  HIP_ENTER();
  *version = hip_version;
  return 0;
}
static int hipGetLastError(void) {
  enter(__func__);
  int code = hip_last;
  hip_last = 0;
  return code;
}
static const char* hipGetErrorName(int code) { return code == 209 ? "hipErrorNoBinaryForGpu" : "hipErrorUnknown"; }
static int hipGetDeviceCount(int* count) {
  HIP_ENTER();
  *count = counts[FAKE_AMD];
  return 0;
}
static int hipGetDevice(int* device) {
  HIP_ENTER();
  *device = hip_device;
  return 0;
}
static int hipSetDevice(int device) {
  HIP_ENTER();
  hip_device = device;
  return 0;
}
static int hipDeviceGetName(char* name, int size, int device) {
  HIP_ENTER();
  snprintf(name, (size_t)size, "Fake AMD %d", device);
  return 0;
}
static int hipDeviceGetPCIBusId(char* id, int size, int device) {
  HIP_ENTER();
  snprintf(id, (size_t)size, "0000:%02x:00.0", device + 1);
  return 0;
}
static int hipDeviceGetAttribute(int* value, int which, int device) {
  HIP_ENTER();
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
      *value = hip_devices[device].multiprocessors;
      return 0;
    case 74:
      *value = 65536;
      return 0;
    case 87:
      *value = hip_devices[device].warp;
      return 0;
    default:
      return hip_result(1);
  }
}
static int hipGetDevicePropertiesR0600(char* properties, int device) {
  HIP_ENTER();
  memset(properties, 0, 1472);
  snprintf(properties, 256, "AMD gfx fake");
  if (properties_mode < 2) strcpy(properties + (properties_mode ? 1200 : 1160), hip_devices[device].name);
  return 0;
}
static int hipStreamGetDevice(Stream* stream, int* device) {
  HIP_ENTER();
  if (stream->vendor != FAKE_AMD) return hip_result(400);
  *device = stream->device;
  return 0;
}
static int hipModuleLoadData(Image** image, const void* code) {
  HIP_ENTER();
  return hip_result(load_image(image, code, 209));
}
static int hipModuleUnload(Image* image) {
  HIP_ENTER();
  return hip_result(unload_image(image, 400));
}
static int hipModuleGetFunction(Image** function, Image* image, const char* symbol) {
  HIP_ENTER();
  if (strcmp(image->symbol, symbol) != 0) return hip_result(500);
  *function = image;
  return 0;
}
static int hipFuncGetAttribute(int* value, int which, Image* function) {
  HIP_ENTER();
  if (which != 1) return hip_result(1);
  *value = function->fixed;
  return 0;
}
static int hipMemsetAsync(void* address, int value, size_t bytes, void* stream) {
  HIP_ENTER();
  return value ? hip_result(1) : record_zero(FAKE_AMD, (uint64_t)(uintptr_t)address, bytes, stream);
}
static int hipModuleLaunchKernel(Image* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                 unsigned bz, unsigned shared, void* stream, void** parameters, void** extra) {
  HIP_ENTER();
  const unsigned grid[] = {gx, gy, gz}, block[] = {bx, by, bz};
  if (extra || !gx || !gy || !gz) return hip_result(1);
  return hip_result(record(FAKE_AMD, function, grid, block, shared, stream, 1, parameters));
}

EXPORT void* fake_resolve(int32_t vendor, const char* symbol, void* user) {
  (void)user;
#define CUDA(name) {FAKE_NVIDIA, #name, (void*)name}
#define HIP(name)                \
  {                              \
    FAKE_AMD, #name, (void*)name \
  }
  static const struct {
    int vendor;
    const char* name;
    void* address;
  } table[] = {CUDA(cuInit),
               CUDA(cuDriverGetVersion),
               CUDA(cuGetErrorName),
               CUDA(cuDeviceGetCount),
               CUDA(cuDeviceGet),
               CUDA(cuDeviceGetName),
               CUDA(cuDeviceGetUuid_v2),
               CUDA(cuDeviceGetAttribute),
               CUDA(cuCtxGetCurrent),
               CUDA(cuCtxGetDevice),
               CUDA(cuCtxPushCurrent_v2),
               CUDA(cuCtxPopCurrent_v2),
               CUDA(cuStreamGetCtx),
               CUDA(cuStreamGetCtx_v2),
               CUDA(cuCtxFromGreenCtx),
               CUDA(cuLibraryLoadData),
               CUDA(cuLibraryGetKernel),
               CUDA(cuLibraryUnload),
               CUDA(cuKernelGetAttribute),
               CUDA(cuKernelSetAttribute),
               CUDA(cuMemsetD8Async),
               CUDA(cuLaunchKernel),
               CUDA(cuLaunchKernelEx),
               HIP(hipInit),
               HIP(hipRuntimeGetVersion),
               HIP(hipGetLastError),
               HIP(hipGetErrorName),
               HIP(hipGetDeviceCount),
               HIP(hipGetDevice),
               HIP(hipSetDevice),
               HIP(hipDeviceGetName),
               HIP(hipDeviceGetPCIBusId),
               HIP(hipDeviceGetAttribute),
               HIP(hipGetDevicePropertiesR0600),
               HIP(hipStreamGetDevice),
               HIP(hipModuleLoadData),
               HIP(hipModuleUnload),
               HIP(hipModuleGetFunction),
               HIP(hipFuncGetAttribute),
               HIP(hipMemsetAsync),
               HIP(hipModuleLaunchKernel)};
  for (unsigned i = 0; i < sizeof table / sizeof *table; ++i)
    if (table[i].vendor == vendor && strcmp(table[i].name, symbol) == 0) {
      pthread_mutex_lock(&lock);
      int hidden = entry(symbol)->hidden;
      pthread_mutex_unlock(&lock);
      return hidden ? NULL : table[i].address;
    }
  return NULL;
}
