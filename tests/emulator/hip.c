/* A stand-in for libamdhip64 that executes what is launched: the entry points that Kiln's runtime calls, with one
 * device. A runtime gets it through kiln_options.resolve, or under the library's name.
 *
 * Memory is the process's own. Kernels may touch what was lent by hip_own(), and what HIP itself was told to set; all
 * else is a fault. A launch has ended when it returns, so that streams need no order. One that faults gives
 * hipErrorLaunchFailure, whose name, as hipGetErrorName() says it, is the fault's sentence. */
#include "fake_internal.h" /* first: it asks for all of libc */

#include <dlfcn.h>

#include "hip.h"

enum { AMD = 2 };
enum {
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  NO_BINARY = 209,
  INVALID_HANDLE = 400,
  NOT_FOUND = 500,
  LAUNCH_FAILURE = 719
};
enum { MOST_KERNARG = 4096 };

/* What the runtime is told of a device: multiprocessors as its data sheet has them, which a call's splits go by. */
static const struct device {
  const char *target, *full; /* its name; with features, as HIP gives it */
  int warp, multiprocessors, shared;
} devices[] = {
    {"gfx90a", "gfx90a:sramecc+:xnack-", 64, 104, 65536},
    {"gfx942", "gfx942:sramecc+:xnack-", 64, 304, 65536},
    {"gfx950", "gfx950:sramecc+:xnack-", 64, 256, 163840},
    {"gfx1100", "gfx1100", 32, 96, 65536},
    {"gfx1151", "gfx1151", 32, 40, 65536},
    {"gfx1200", "gfx1200", 32, 32, 65536},
    {"gfx1201", "gfx1201", 32, 64, 65536},
};

typedef struct Module {
  Image image;
  const struct emu_program* program;
} Module;
typedef struct Piece {
  struct emu_region region;
  char name[32];
} Piece;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const struct device* device = &devices[0];
static hip_loader* load;
static struct hip_executor executor;
static Piece pieces[HIP_PIECES];
static uint32_t piece_count;

/* ---- for tests --------------------------------------------------------------------------------------------------- */

EXPORT int hip_begin(const char* target, hip_loader* loader) {
  memset(&executor, 0, sizeof executor);
  piece_count = 0, load = loader;
  for (size_t i = 0; i < sizeof devices / sizeof *devices; ++i)
    if (strcmp(devices[i].target, target) == 0) {
      device = &devices[i];
      return 0;
    }
  return 1;
}
EXPORT struct hip_executor* hip_executor(void) { return &executor; }
EXPORT int hip_own(uint64_t address, uint64_t bytes, int writable, const char* name) {
  if (!bytes) return 0;
  if (piece_count == HIP_PIECES) return 1;
  Piece* piece = &pieces[piece_count++];
  piece->region = (struct emu_region){address, bytes, (uint32_t)writable, 0};
  snprintf(piece->name, sizeof piece->name, "%s", name);
  return 0;
}
EXPORT void hip_disown(void) { piece_count = 0; }
EXPORT void* hip_resolve(int32_t vendor, const char* symbol, void* user) {
  (void)user;
  Dl_info own;
  if (vendor != AMD || strncmp(symbol, "hip", 3) != 0 || !dladdr((void*)&lock, &own)) return NULL;
  void* library = dlopen(own.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  void* address = library ? dlsym(library, symbol) : NULL;
  if (library) dlclose(library);
  return address;
}

/* ---- devices and streams ----------------------------------------------------------------------------------------- */

EXPORT int hipInit(unsigned flags) { return (int)flags; }
EXPORT int hipRuntimeGetVersion(int* version) {
  *version = 60200000;
  return 0;
}
EXPORT int hipGetLastError(void) { return 0; }
EXPORT const char* hipGetErrorName(int code) {
  switch (code) {
    case LAUNCH_FAILURE:
      return executor.sentence;
    case NO_BINARY:
      return "hipErrorNoBinaryForGpu";
    case NOT_FOUND:
      return "hipErrorNotFound";
    default:
      return "hipErrorInvalidValue";
  }
}
EXPORT int hipGetDeviceCount(int* count) {
  *count = 1;
  return 0;
}
EXPORT int hipGetDevice(int* ordinal) {
  *ordinal = 0;
  return 0;
}
EXPORT int hipSetDevice(int ordinal) { return ordinal ? INVALID_VALUE : 0; }
EXPORT int hipDeviceGetName(char* name, int size, int ordinal) {
  (void)ordinal;
  snprintf(name, (size_t)size, "Executor of %s", device->target);
  return 0;
}
EXPORT int hipDeviceGetPCIBusId(char* id, int size, int ordinal) {
  snprintf(id, (size_t)size, "0000:%02x:00.0", ordinal + 1);
  return 0;
}
EXPORT int hipDeviceGetAttribute(int* value, int which, int ordinal) {
  (void)ordinal;
  switch (which) {
    case 29: /* the grid's sides */
      *value = 0x7FFFFFFF;
      return 0;
    case 30:
    case 31:
      *value = 65535;
      return 0;
    case 56: /* threads of a block */
      *value = 1024;
      return 0;
    case 63:
      *value = device->multiprocessors;
      return 0;
    case 74:
      *value = device->shared;
      return 0;
    case 87:
      *value = device->warp;
      return 0;
    default:
      return INVALID_VALUE;
  }
}
EXPORT int hipGetDevicePropertiesR0600(char* properties, int ordinal) {
  (void)ordinal;
  enum { BYTES = 1472, ARCHITECTURE = 1160 };
  memset(properties, 0, BYTES);
  snprintf(properties, 256, "Executor of %s", device->target);
  strcpy(properties + ARCHITECTURE, device->full);
  return 0;
}
EXPORT int hipStreamGetDevice(void* stream, int* ordinal) {
  *ordinal = 0;
  return stream ? INVALID_HANDLE : 0; /* there is the null stream alone */
}
EXPORT int hipStreamSynchronize(void* stream) { return stream ? INVALID_HANDLE : 0; }

/* ---- images ------------------------------------------------------------------------------------------------------ */

EXPORT int hipModuleLoadData(Module** out, const void* code) {
  Module* module = calloc(1, sizeof *module);
  if (!module) abort();
  size_t size = fake_read_image(code, &module->image);
  module->program = size && load ? load(code, size) : NULL;
  if (!module->program) {
    free(module);
    return NO_BINARY;
  }
  *out = module;
  return 0;
}
EXPORT int hipModuleUnload(Module* module) {
  free(module);
  return 0;
}
EXPORT int hipModuleGetFunction(Module** function, Module* module, const char* symbol) {
  *function = module;
  return strcmp(module->image.symbol, symbol) == 0 ? 0 : NOT_FOUND;
}
EXPORT int hipFuncGetAttribute(int* value, int which, const Module* function) {
  *value = function->image.fixed;
  return which == 1 ? 0 : INVALID_VALUE;
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

static int by_base(const void* a, const void* b) {
  uint64_t x = ((const struct emu_region*)a)->base, y = ((const struct emu_region*)b)->base;
  return x < y ? -1 : x > y;
}

/* The pieces, sorted; those that touch are one. Their number. */
static uint32_t regions_of(struct emu_region* regions) {
  for (uint32_t i = 0; i < piece_count; ++i) regions[i] = pieces[i].region;
  qsort(regions, piece_count, sizeof *regions, by_base);
  uint32_t count = 0;
  for (uint32_t i = 0; i < piece_count; ++i) {
    struct emu_region* last = count ? &regions[count - 1] : NULL;
    uint64_t end = regions[i].base + regions[i].size;
    if (last && regions[i].base <= last->base + last->size) {
      if (end > last->base + last->size) last->size = end - last->base;
      last->writable |= regions[i].writable;
    } else {
      regions[count++] = regions[i];
    }
  }
  return count;
}

/* Where an address lies beside the nearest piece: "12 bytes behind q (1024 bytes)". */
static void tell_place(char* text, size_t room, uint64_t address) {
  const Piece* nearest = NULL;
  uint64_t least = UINT64_MAX;
  for (uint32_t i = 0; i < piece_count; ++i) {
    const struct emu_region* r = &pieces[i].region;
    uint64_t far = address < r->base              ? r->base - address
                   : address >= r->base + r->size ? address - r->base - r->size + 1
                                                  : 0;
    if (far < least) least = far, nearest = &pieces[i];
  }
  text[0] = 0;
  if (!nearest) return;
  const struct emu_region* r = &nearest->region;
  if (!least)
    snprintf(text, room, ", at byte %llu of %s", (unsigned long long)(address - r->base), nearest->name);
  else
    snprintf(text, room, ", %llu bytes %s %s of %llu bytes", (unsigned long long)least,
             address < r->base ? "before" : "behind", nearest->name, (unsigned long long)r->size);
}

static const char* check_name(uint32_t check) {
  static const char* const names[] = {"ok",      "unknown",     "address",   "outstanding", "race",
                                      "barrier", "wait states", "unwritten", "endless",     "program"};
  return check < sizeof names / sizeof *names ? names[check] : "fault";
}

static void tell_fault(const Module* module, const struct emu_program* program) {
  const struct emu_fault* f = &executor.fault;
  const char* text = f->instruction < program->count ? program->texts + program->instructions[f->instruction].text : "";
  char place[128] = "", lane[24] = "";
  if (f->check == EMU_ADDRESS) tell_place(place, sizeof place, f->address);
  if (f->lane >= 0) snprintf(lane, sizeof lane, ", lane %d", f->lane);
  snprintf(executor.sentence, sizeof executor.sentence, "%s: %s%s; %s at 0x%x: `%s`, group %u %u %u, wave %u%s",
           check_name(f->check), f->why, place, module->image.symbol, f->pc, text, f->group[0], f->group[1],
           f->group[2], f->wave, lane);
}

EXPORT int hipModuleLaunchKernel(const Module* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                 unsigned by, unsigned bz, unsigned shared, void* stream, void** parameters,
                                 void** extra) {
  if (stream || extra || !parameters) return INVALID_VALUE;
  const Image* image = &function->image;
  const struct emu_program* program = function->program;
  if (program == executor.replaced) program = executor.replacement;
  /* What the runtime of HIP fills in besides the parameters, no image of Kiln's asks for. */
  uint8_t kernarg[MOST_KERNARG] = {0};
  uint32_t end = program->kernarg;
  for (int i = 0; i < image->count; ++i) {
    const Parameter* p = &image->parameters[i];
    if (p->offset + p->size > sizeof kernarg) return INVALID_VALUE;
    memcpy(kernarg + p->offset, parameters[i], p->size);
    if (p->offset + p->size > end) end = p->offset + p->size;
  }
  if (end > sizeof kernarg) return INVALID_VALUE;
  struct emu_region regions[HIP_PIECES];
  struct emu_report report = {0};
  struct emu_launch launch = {
      .program = program,
      .grid = {gx, gy, gz},
      .block = {bx, by, bz},
      .dynamic_lds = shared,
      .kernarg_size = end,
      .kernarg = kernarg,
      .regions = regions,
      .region_count = regions_of(regions),
      .flags = executor.flags,
      .schedule_seed = executor.schedule_seed,
      .contents_seed = executor.contents_seed,
      .limit = executor.limit,
  };
  for (int axis = 0; executor.shortened && axis < 3; ++axis)
    if (launch.grid[axis] > 1) {
      --launch.grid[axis];
      break;
    }
  pthread_mutex_lock(&lock);
  uint32_t check = emu_run(&launch, &report);
  ++executor.launches;
  executor.instructions += report.instructions;
  executor.unwritten += report.unwritten;
  if (check) {
    executor.fault = report.fault;
    tell_fault(function, program);
  }
  pthread_mutex_unlock(&lock);
  return check ? LAUNCH_FAILURE : 0;
}

/* ---- memory for a program that has none from PyTorch ----------------------------------------------------------- */

EXPORT int hipMalloc(void** out, size_t bytes) {
  *out = aligned_alloc(256, (bytes + 255) & ~(size_t)255);
  return *out && !hip_own((uintptr_t)*out, bytes, 1, "memory of hipMalloc") ? 0 : OUT_OF_MEMORY;
}
EXPORT int hipFree(void* address) {
  for (uint32_t i = 0; i < piece_count; ++i)
    if (pieces[i].region.base == (uintptr_t)address) {
      pieces[i] = pieces[--piece_count];
      free(address);
      return 0;
    }
  return INVALID_VALUE;
}
EXPORT int hipMemcpy(void* to, const void* from, size_t bytes, int kind) {
  if (kind != 1 && kind != 2) return INVALID_VALUE; /* to the device, or from it */
  memcpy(to, from, bytes);
  return 0;
}

EXPORT int hipMemsetAsync(void* address, int value, size_t bytes, void* stream) {
  if (stream) return INVALID_VALUE;
  struct emu_region regions[HIP_PIECES];
  uint32_t count = regions_of(regions);
  uint64_t begin = (uintptr_t)address;
  for (uint32_t i = 0; i < count; ++i)
    if (regions[i].writable && begin >= regions[i].base && begin + bytes <= regions[i].base + regions[i].size) {
      memset(address, value, bytes);
      return 0;
    }
  return INVALID_VALUE;
}
