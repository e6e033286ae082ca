/* The fake driver's state, and what tests do with it. */
#include "fake_internal.h"

#include <dlfcn.h>
#include <unistd.h>

enum { ENTRIES = 128, DEPTH = 16 };

typedef struct Entry {
  char name[48];
  int calls, fail_at, code, sticky, hidden, delay; /* delay: milliseconds */
} Entry;
typedef struct Piece {
  struct Piece* next;
  uint64_t address;
  Stream* stream; /* that the caller made, if it is no memory */
} Piece;

pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;
int fake_versions[3], fake_counts[3], fake_properties;

static Entry entries[ENTRIES];
static int entry_count, loaded, image_count, launch_count;
static Context contexts[FAKE_DEVICES][CONTEXTS], greens[FAKE_DEVICES];
static Stream streams[3][FAKE_DEVICES][STREAMS], green_streams[FAKE_DEVICES];
static Image* images;
static Piece* pieces;
static uint64_t next_address;
static __thread Context* stack[DEPTH];
static __thread int depth;
static __thread int hip_device, hip_last;

static Entry* entry(const char* name) {
  for (int i = 0; i < entry_count; ++i)
    if (strcmp(entries[i].name, name) == 0) return &entries[i];
  if (entry_count == ENTRIES) abort();
  Entry* e = &entries[entry_count++];
  memset(e, 0, sizeof *e);
  snprintf(e->name, sizeof e->name, "%s", name);
  return e;
}

int fake_enter(const char* name) {
  pthread_mutex_lock(&fake_lock);
  Entry* e = entry(name);
  int call = ++e->calls, code = 0, delay = e->delay;
  if (e->fail_at && (call == e->fail_at || (e->sticky && call > e->fail_at))) code = e->code;
  pthread_mutex_unlock(&fake_lock);
  if (delay) usleep((useconds_t)delay * 1000);
  return code;
}

EXPORT void fake_reset(void) {
  pthread_mutex_lock(&fake_lock);
  entry_count = launch_count = image_count = loaded = fake_properties = 0;
  fake_versions[FAKE_NVIDIA] = 12080, fake_versions[FAKE_AMD] = 60200000;
  fake_counts[FAKE_NVIDIA] = fake_counts[FAKE_AMD] = FAKE_DEVICES;
  next_address = 0x600000000000;
  for (Image* next; images; images = next) next = images->next, free(images);
  for (Piece* next; pieces; pieces = next) next = pieces->next, free(pieces->stream), free(pieces);
  for (int d = 0; d < FAKE_DEVICES; ++d) {
    for (int c = 0; c < CONTEXTS; ++c) contexts[d][c].device = d;
    greens[d].device = d, greens[d].green = 1;
    green_streams[d] = (Stream){FAKE_NVIDIA, d, 0, &greens[d]};
    for (int s = 0; s < STREAMS; ++s) {
      streams[FAKE_NVIDIA][d][s] = (Stream){FAKE_NVIDIA, d, 0, &contexts[d][s < CONTEXTS ? s : 0]};
      streams[FAKE_AMD][d][s] = (Stream){FAKE_AMD, d, 0, NULL};
    }
  }
  depth = 0, hip_device = 0, hip_last = 0;
  fake_forget_record();
  pthread_mutex_unlock(&fake_lock);
}

EXPORT void fake_fail(const char* symbol, int nth, int code, int sticky) {
  pthread_mutex_lock(&fake_lock);
  Entry* e = entry(symbol);
  e->fail_at = e->calls + nth, e->code = code, e->sticky = sticky;
  pthread_mutex_unlock(&fake_lock);
}
EXPORT void fake_delay(const char* symbol, int milliseconds) {
  pthread_mutex_lock(&fake_lock);
  entry(symbol)->delay = milliseconds;
  pthread_mutex_unlock(&fake_lock);
}
EXPORT void fake_hide(const char* symbol) {
  pthread_mutex_lock(&fake_lock);
  entry(symbol)->hidden = 1;
  pthread_mutex_unlock(&fake_lock);
}
EXPORT void fake_set_version(int cuda, int hip) { fake_versions[FAKE_NVIDIA] = cuda, fake_versions[FAKE_AMD] = hip; }
EXPORT void fake_set_device_count(int32_t vendor, int count) { fake_counts[vendor] = count; }
EXPORT void fake_set_properties(int mode) { fake_properties = mode; }
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
  pthread_mutex_lock(&fake_lock);
  int calls = entry(symbol)->calls;
  pthread_mutex_unlock(&fake_lock);
  return calls;
}
EXPORT int fake_last_error(void) { return hip_last; }
EXPORT int fake_loaded(void) { return loaded; }
EXPORT int fake_launches(void) { return launch_count; }
EXPORT int fake_allocated(void) {
  int count = 0;
  for (Piece* piece = pieces; piece; piece = piece->next) ++count;
  return count;
}

int fake_current_device(int vendor) {
  Context* context = vendor == FAKE_NVIDIA ? fake_get_current(vendor) : NULL;
  return vendor == FAKE_AMD ? hip_device : context ? context->device : -1;
}
void fake_push(Context* context) {
  if (depth == DEPTH) abort();
  stack[depth++] = context;
}
Context* fake_pop(void) { return depth ? stack[--depth] : NULL; }

void fake_remember(int code) { hip_last = code; }
int fake_take_remembered(void) {
  int code = hip_last;
  hip_last = 0;
  return code;
}

/* ---- images ------------------------------------------------------------------------------------------------------ */

int fake_load(int vendor, Image** out, const void* code, int bad) {
  Image* image = calloc(1, sizeof *image);
  if (!image) abort();
  size_t size = fake_read_image(code, image);
  if (!size) {
    free(image);
    return bad;
  }
  image->live = 1, image->device = fake_current_device(vendor);
  pthread_mutex_lock(&fake_lock);
  image->next = images, images = image;
  image->number = ++image_count, ++loaded;
  pthread_mutex_unlock(&fake_lock);
  fake_note("\"module\": %d", image->number);
  fake_note_image(image);
  fake_note_bytes("code", code, size);
  *out = image;
  return 0;
}

int fake_unload(Image* image, int stale) {
  pthread_mutex_lock(&fake_lock);
  int live = image->live;
  image->live = 0;
  loaded -= live;
  pthread_mutex_unlock(&fake_lock);
  fake_note("\"module\": %d", image->number);
  return live ? 0 : stale;
}

/* The parameters in one buffer, as `extra` of a launch gives it: pairs of a key and a value. */
static const char* read_extra(void** extra, int end, size_t* size) {
  enum { POINTER = 1, SIZE = 2 };
  const char* buffer = NULL;
  *size = 0;
  for (; (intptr_t)extra[0] != end; extra += 2) {
    if ((intptr_t)extra[0] == POINTER) buffer = extra[1];
    if ((intptr_t)extra[0] == SIZE) *size = *(const size_t*)extra[1];
  }
  return buffer;
}

int fake_launch(int vendor, Image* image, const unsigned* grid, const unsigned* block, unsigned shared, Stream* stream,
                unsigned cluster, void** parameters, void** extra, int end) {
  enum { BAD_VALUE = 1, BAD_HANDLE = 400 };
  const void* arguments[PARAMETERS];
  int device = fake_current_device(vendor);
  if (!image->live || (vendor == FAKE_AMD && image->device != device)) return BAD_HANDLE;
  if ((uintptr_t)stream > 2 && (stream->vendor != vendor || stream->device != device)) return BAD_HANDLE;
  for (int i = 0; i < 3; ++i)
    if (!grid[i] || !block[i]) return BAD_VALUE;
  if (!parameters == !extra && image->count) return BAD_VALUE;
  if (extra) {
    size_t size;
    const char* buffer = read_extra(extra, end, &size);
    for (int i = 0; i < image->count; ++i) {
      arguments[i] = buffer + image->parameters[i].offset;
      if (!buffer || image->parameters[i].offset + image->parameters[i].size > size) return BAD_VALUE;
    }
    fake_note_bytes("buffer", buffer, size);
  } else {
    for (int i = 0; i < image->count; ++i) arguments[i] = parameters[i];
  }
  fake_note("\"module\": %d, \"symbol\": \"%s\"", image->number, image->symbol);
  fake_note("\"grid\": [%u, %u, %u], \"block\": [%u, %u, %u]", grid[0], grid[1], grid[2], block[0], block[1], block[2]);
  fake_note("\"shared\": %u, \"cluster\": %u, \"stream\": %llu", shared, cluster,
            (unsigned long long)(uintptr_t)stream);
  if (!fake_note_arguments(image, arguments) || !fake_check_maps(image, arguments)) return BAD_VALUE;
  pthread_mutex_lock(&fake_lock);
  ++launch_count;
  pthread_mutex_unlock(&fake_lock);
  return 0;
}

/* ---- memory and streams ------------------------------------------------------------------------------------------ */

static Piece* keep(uint64_t bytes, Stream* stream) {
  enum { ALIGNMENT = 512 };
  Piece* piece = malloc(sizeof *piece);
  if (!piece) abort();
  pthread_mutex_lock(&fake_lock);
  *piece = (Piece){pieces, next_address, stream};
  pieces = piece;
  next_address += (bytes / ALIGNMENT + 2) * ALIGNMENT; /* a gap that nothing owns */
  pthread_mutex_unlock(&fake_lock);
  return piece;
}

/* Whether there was such a piece, which is gone then. */
static int drop(uint64_t address, const Stream* stream) {
  pthread_mutex_lock(&fake_lock);
  Piece** at = &pieces;
  while (*at && (stream ? (*at)->stream != stream : (*at)->stream || (*at)->address != address)) at = &(*at)->next;
  Piece* found = *at;
  if (found) *at = found->next;
  pthread_mutex_unlock(&fake_lock);
  free(found);
  return found != NULL;
}

int fake_allocate(uint64_t* address, size_t bytes, void* stream, int full) {
  if (bytes >= (size_t)1 << 40) return full;
  *address = keep(bytes, NULL)->address;
  fake_note("\"address\": %llu, \"bytes\": %zu, \"stream\": %llu", (unsigned long long)*address, bytes,
            (unsigned long long)(uintptr_t)stream);
  return 0;
}

int fake_free(uint64_t address, void* stream, int unknown) {
  if (address && !drop(address, NULL)) return unknown;
  fake_note("\"address\": %llu, \"stream\": %llu", (unsigned long long)address, (unsigned long long)(uintptr_t)stream);
  return 0;
}

int fake_set(uint64_t address, int value, size_t bytes, void* stream) {
  fake_note("\"address\": %llu, \"value\": %d, \"bytes\": %zu, \"stream\": %llu", (unsigned long long)address, value,
            bytes, (unsigned long long)(uintptr_t)stream);
  return 0;
}

int fake_set_rows(uint64_t address, size_t pitch, int value, size_t width, size_t height, void* stream) {
  fake_note("\"address\": %llu, \"pitch\": %zu, \"value\": %d, \"bytes\": %zu, \"rows\": %zu, \"stream\": %llu",
            (unsigned long long)address, pitch, value, width, height, (unsigned long long)(uintptr_t)stream);
  return 0;
}

int fake_copy(uint64_t to, uint64_t from, size_t bytes, void* stream) {
  fake_note("\"address\": %llu, \"from\": %llu, \"bytes\": %zu, \"stream\": %llu", (unsigned long long)to,
            (unsigned long long)from, bytes, (unsigned long long)(uintptr_t)stream);
  return 0;
}

Stream* fake_make_stream(int vendor, Context* context) {
  Stream* stream = malloc(sizeof *stream);
  if (!stream) abort();
  *stream = (Stream){vendor, fake_current_device(vendor), 1, context};
  keep(0, stream);
  fake_note("\"stream\": %llu", (unsigned long long)(uintptr_t)stream);
  return stream;
}

int fake_destroy_stream(Stream* stream, int unknown) {
  if (!drop(0, stream)) return unknown;
  fake_note("\"stream\": %llu", (unsigned long long)(uintptr_t)stream);
  free(stream);
  return 0;
}

/* ---- how a program finds it -------------------------------------------------------------------------------------- */

EXPORT void* fake_resolve(int32_t vendor, const char* symbol, void* user) {
  (void)user;
  if (strncmp(symbol, vendor == FAKE_AMD ? "hip" : "cu", vendor == FAKE_AMD ? 3 : 2) != 0) return NULL;
  pthread_mutex_lock(&fake_lock);
  int hidden = entry(symbol)->hidden;
  pthread_mutex_unlock(&fake_lock);
  Dl_info own;
  if (hidden || !dladdr((void*)&fake_lock, &own)) return NULL;
  void* library = dlopen(own.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  void* address = library ? dlsym(library, symbol) : NULL;
  if (library) dlclose(library);
  return address;
}

__attribute__((constructor)) static void begin(void) {
  fake_reset();
  const char* path = getenv("FAKE_DRIVER_RECORD");
  if (path) fake_open_record(path);
  const char* version = getenv("FAKE_DRIVER_VERSION");
  if (version) fake_versions[FAKE_NVIDIA] = atoi(version);
  const char* at = getenv("FAKE_DRIVER_FAIL");
  for (int size; at && *at; at += at[0] == ',') {
    char name[48];
    int nth, code;
    if (sscanf(at, "%47[^:]:%d:%d%n", name, &nth, &code, &size) != 3) {
      fprintf(stderr, "FAKE_DRIVER_FAIL is entry:nth:code, separated by ','; it ends in %s\n", at);
      abort();
    }
    fake_fail(name, nth, code, 0);
    at += size;
  }
}
