/* What a call costs on the host, on an NVIDIA GPU:
 *
 *   the first call of a process, from dlopen() of the libraries to the end of the work, beyond the creation of the
 *   CUDA context; and a repeated call of kiln_attn_fwd against a bare cuLaunchKernel of the very same kernel with the
 *   very same parameters, in one run, batch by batch in turn; on Hopper, of heads above 64, whose kernel takes tensor
 *   descriptors, also against the same call by the kernel that takes none, and with an `out` that moves.
 *
 * Needs the driver and a release, nothing else:
 *   cc -O2 -I kiln/include benchmarks/launch/launch.c -o launch -ldl && ./launch kiln/lib [head_dim]
 */
#define _GNU_SOURCE
#include <string.h>

#include "kiln/flash.h"
#include "timing.h"

enum { BATCH = 200, BATCHES = 60, PARAMETERS = 80, LARGEST = 128, PLACES = 64 };

typedef int (*launch_fn)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**,
                         void**);

/* The last launch that went through the recorder. The driver copies parameters by the kernel's own sizes, of which a
 * descriptor's is the largest. */
static struct {
  launch_fn real;
  void* function;
  unsigned grid[3], block[3], shared;
  void* stream;
  _Alignas(64) unsigned char values[PARAMETERS][LARGEST];
  size_t sizes[PARAMETERS];
  void* pointers[PARAMETERS];
  int count;
} bare;

static void* cuda;

static int record(void* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                  unsigned shared, void* stream, void** parameters, void** extra) {
  bare.function = f;
  bare.grid[0] = gx, bare.grid[1] = gy, bare.grid[2] = gz;
  bare.block[0] = bx, bare.block[1] = by, bare.block[2] = bz;
  bare.shared = shared, bare.stream = stream;
  for (int i = 0; i < bare.count; ++i) {
    memcpy(bare.values[i], parameters[i], bare.sizes[i]);
    bare.pointers[i] = bare.values[i];
  }
  return bare.real(f, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra);
}

static void* recording_resolve(int32_t vendor, const char* symbol, void* user) {
  (void)user;
  if (vendor != KILN_VENDOR_NVIDIA) return NULL;
  if (strcmp(symbol, "cuLaunchKernel") == 0) return (void*)record;
  return dlsym(cuda, symbol);
}

static kiln_tensor view(unsigned long long data, int64_t heads, int64_t rows, int64_t width) {
  kiln_tensor t;
  memset(&t, 0, sizeof t);
  t.data = (void*)data, t.dtype = KILN_BF16, t.rank = 4;
  int64_t sizes[] = {1, heads, rows, width}, strides[] = {heads * rows * width, rows * width, width, 1};
  memcpy(t.sizes, sizes, sizeof sizes);
  memcpy(t.strides, strides, sizeof strides);
  return t;
}

/* A page of measurements names what it measured by the key's first 12 digits (docs/measured.py). */
static int32_t print_image(const kiln_variant* variant, void* user) {
  (void)user;
  printf("image              `%.12s` %s %s/%s[%s][%s][%s]\n", variant->key, variant->target, variant->operation,
         variant->kernel, variant->functional, variant->configuration, variant->specialization);
  return 0;
}

/* The image of a call: its kernel, and what another kernel's must have in common with it. */
struct image {
  char kernel[64], functional[128], key[128];
};

static int32_t keep_image(const kiln_variant* variant, void* user) {
  struct image* image = user;
  snprintf(image->kernel, sizeof image->kernel, "%s", variant->kernel);
  snprintf(image->functional, sizeof image->functional, "%s", variant->functional);
  return 0;
}

static int32_t find_general(const kiln_variant* variant, void* user) {
  struct image* image = user;
  if (!variant->unavailable && strcmp(variant->kernel, "attn_fwd.general") == 0 &&
      strcmp(variant->functional, image->functional) == 0 && strcmp(variant->specialization, "aligned") == 0)
    snprintf(image->key, sizeof image->key, "%s", variant->key);
  return 0;
}

int main(int count, char** words) {
  const int64_t width = count == 3 ? atoi(words[2]) : 64;
  if (count < 2 || count > 3 || width < 8)
    return fprintf(stderr, "usage: launch <folder of libkiln.so.0> [head_dim]\n"), 2;
  cuda = dlopen("libcuda.so.1", RTLD_NOW);
  int (*init)(unsigned) = (int (*)(unsigned))get(cuda, "cuInit");
  int (*retain)(void**, int) = (int (*)(void**, int))get(cuda, "cuDevicePrimaryCtxRetain");
  int (*make_current)(void*) = (int (*)(void*))get(cuda, "cuCtxSetCurrent");
  int (*synchronize)(void) = (int (*)(void))get(cuda, "cuCtxSynchronize");
  int (*allocate)(unsigned long long*, size_t) = (int (*)(unsigned long long*, size_t))get(cuda, "cuMemAlloc_v2");
  int (*clear)(unsigned long long, unsigned char, size_t) =
      (int (*)(unsigned long long, unsigned char, size_t))get(cuda, "cuMemsetD8_v2");
  int (*make_stream)(void**, unsigned) = (int (*)(void**, unsigned))get(cuda, "cuStreamCreate");
  bare.real = (launch_fn)get(cuda, "cuLaunchKernel");

  double begin = now();
  void *context, *stream;
  check(init(0), "cuInit");
  check(retain(&context, 0), "cuDevicePrimaryCtxRetain");
  check(make_current(context), "cuCtxSetCurrent");
  check(make_stream(&stream, 1), "cuStreamCreate");
  enum { HEADS = 8, ROWS = 128 };
  size_t bytes = (size_t)(HEADS * ROWS * width * 2);
  unsigned long long memory;
  check(allocate(&memory, (3 + PLACES) * bytes), "cuMemAlloc");
  check(clear(memory, 0, (3 + PLACES) * bytes), "cuMemsetD8");
  check(synchronize(), "cuCtxSynchronize");
  printf("context            %9.1f us\n", now() - begin);

  begin = now();
  void* core = open_library(words[1], "libkiln.so.0");
  void* flash = open_library(words[1], "libkiln_flash.so");
  kiln_status (*open)(const kiln_options*, kiln_t*) =
      (kiln_status (*)(const kiln_options*, kiln_t*))get(core, "kiln_open");
  kiln_status (*close)(kiln_t) = (kiln_status (*)(kiln_t))get(core, "kiln_close");
  const char* (*error)(void) = (const char* (*)(void))get(core, "kiln_error");
  kiln_status (*attention)(kiln_t, const kiln_queue*, const kiln_attn_fwd_params*) =
      (kiln_status (*)(kiln_t, const kiln_queue*, const kiln_attn_fwd_params*))get(flash, "kiln_attn_fwd");
  kiln_status (*explain)(kiln_t, const kiln_queue*, const kiln_attn_fwd_params*, kiln_variant_fn, void*) =
      (kiln_status (*)(kiln_t, const kiln_queue*, const kiln_attn_fwd_params*, kiln_variant_fn, void*))get(
          flash, "kiln_attn_fwd_explain");
  kiln_tensor q = view(memory, HEADS, ROWS, width), k = view(memory + bytes, HEADS, ROWS, width);
  kiln_tensor v = view(memory + 2 * bytes, HEADS, ROWS, width), out = view(memory + 3 * bytes, HEADS, ROWS, width);
  kiln_attn_fwd_params params = KILN_ATTN_FWD_PARAMS_INIT;
  params.q = &q, params.k = &k, params.v = &v, params.out = &out;
  kiln_queue queue = KILN_QUEUE_INIT(KILN_VENDOR_NVIDIA, stream);
  kiln_t kiln;
  check(open(NULL, &kiln), "kiln_open");
  double opened = now();
  if (attention(kiln, &queue, &params)) return fprintf(stderr, "%s\n", error()), 1;
  double returned = now();
  check(synchronize(), "cuCtxSynchronize");
  printf("first call         %9.1f us   dlopen and kiln_open %.1f, kiln_attn_fwd %.1f, the work %.1f\n", now() - begin,
         opened - begin, returned - opened, now() - returned);

  /* The parameters of the same call, by a second runtime whose launches pass through the recorder. */
  kiln_options options = KILN_OPTIONS_INIT;
  options.resolve = recording_resolve;
  kiln_t recorder;
  check(open(&options, &recorder), "kiln_open");
  int (*parameter_info)(void*, size_t, size_t*, size_t*) =
      (int (*)(void*, size_t, size_t*, size_t*))dlsym(cuda, "cuKernelGetParamInfo");
  bare.count = 0; /* the kernel is known after one launch; its parameters after the next */
  check(attention(recorder, &queue, &params), "kiln_attn_fwd");
  size_t offset, size;
  while (parameter_info && parameter_info(bare.function, (size_t)bare.count, &offset, &size) == 0) {
    if (bare.count == PARAMETERS || size > LARGEST) return fprintf(stderr, "the kernel has larger parameters\n"), 1;
    bare.sizes[bare.count++] = size;
  }
  if (bare.count == 0) return fprintf(stderr, "this driver does not tell a kernel's parameters (12.4 does)\n"), 1;
  check(attention(recorder, &queue, &params), "kiln_attn_fwd");
  check(synchronize(), "cuCtxSynchronize");

  /* The same call without descriptors, where it has some. */
  kiln_status (*variants)(kiln_t, const char*, const char*, kiln_variant_fn, void*) =
      (kiln_status (*)(kiln_t, const char*, const char*, kiln_variant_fn, void*))get(core, "kiln_variants");
  struct image image = {"", "", ""};
  check(explain(kiln, &queue, &params, keep_image, &image), "kiln_attn_fwd_explain");
  const int is_described = strcmp(image.kernel, "attn_fwd.general") != 0;
  kiln_attn_fwd_params plain = params;
  const char* key = image.key;
  if (is_described) {
    check(variants(kiln, "flash.attn_fwd", "sm_90", find_general, &image), "kiln_variants");
    if (!image.key[0]) return fprintf(stderr, "the release has no image of attn_fwd.general for this call\n"), 1;
    plain.force_keys = &key, plain.force_count = 1;
    if (attention(kiln, &queue, &plain)) return fprintf(stderr, "%s\n", error()), 1;
  }

  static double ours[BATCHES], theirs[BATCHES], without[BATCHES], moved[BATCHES];
  for (int batch = 0; batch < BATCHES; ++batch) {
    begin = now();
    for (int i = 0; i < BATCH; ++i) attention(kiln, &queue, &params);
    ours[batch] = (now() - begin) / BATCH;
    check(synchronize(), "cuCtxSynchronize");
    begin = now();
    for (int i = 0; i < BATCH; ++i)
      bare.real(bare.function, bare.grid[0], bare.grid[1], bare.grid[2], bare.block[0], bare.block[1], bare.block[2],
                bare.shared, bare.stream, bare.pointers, NULL);
    theirs[batch] = (now() - begin) / BATCH;
    check(synchronize(), "cuCtxSynchronize");
    if (!is_described) continue;
    begin = now();
    for (int i = 0; i < BATCH; ++i) attention(kiln, &queue, &plain);
    without[batch] = (now() - begin) / BATCH;
    check(synchronize(), "cuCtxSynchronize");
    begin = now();
    for (int i = 0; i < BATCH; ++i) {
      out.data = (void*)(memory + (3 + (size_t)(i % PLACES)) * bytes);
      attention(kiln, &queue, &params);
    }
    moved[batch] = (now() - begin) / BATCH;
    out.data = (void*)(memory + 3 * bytes);
    check(synchronize(), "cuCtxSynchronize");
  }
  double repeated = median(ours, BATCHES), reference = median(theirs, BATCHES);
  printf("repeated call      %9.3f us   median of %d batches of %d\n", repeated, BATCHES, BATCH);
  printf("bare cuLaunchKernel%9.3f us   the same kernel and parameters\n", reference);
  printf("difference         %9.3f us\n", repeated - reference);
  if (is_described) {
    double general = median(without, BATCHES);
    printf("without descriptors%9.3f us   the same call by attn_fwd.general\n", general);
    printf("ratio              %9.3f\n", repeated / general);
    printf("out moves          %9.3f us   to %d places in turn\n", median(moved, BATCHES), PLACES);
  }
  check(explain(kiln, &queue, &params, print_image, NULL), "kiln_attn_fwd_explain");
  check(close(recorder), "kiln_close");
  check(close(kiln), "kiln_close");
  return 0;
}
