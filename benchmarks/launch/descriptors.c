/* What tensor descriptors cost on the host: a repeated call of examples/matmul by its implementation for Hopper, whose
 * three descriptors are remembered, against the one in Triton, which has none; in one run, batch by batch in turn. Then
 * the same with an address that is new in each call, so that the driver encodes a descriptor.
 *
 * Needs the driver, a Hopper GPU and a release made with KILN_RECIPES=examples/matmul/recipe.yaml:
 *   cc -O2 -I kiln/include benchmarks/launch/descriptors.c -o descriptors -ldl && ./descriptors kiln/lib
 */
#define _GNU_SOURCE
#include <string.h>

#include "kiln/family.h"
#include "timing.h"

enum { BATCH = 200, BATCHES = 60, SIZE = 128, STEPS = 64 };

typedef kiln_status (*explain_fn)(const kiln_call*, kiln_variant_fn, void*);
typedef kiln_status (*launch_fn)(const kiln_call*);

struct implementation {
  const char* kernel;
  char key[128];
};

static int32_t find_image(const kiln_variant* variant, void* user) {
  struct implementation* wanted = user;
  if (strcmp(variant->kernel, wanted->kernel) == 0 && !variant->unavailable &&
      strstr(variant->functional, "dtype=bf16"))
    snprintf(wanted->key, sizeof wanted->key, "%s", variant->key);
  return 0;
}

static int32_t print_image(const kiln_variant* variant, void* user) {
  (void)user;
  printf("image                    `%.12s` %s %s/%s[%s][%s][%s]\n", variant->key, variant->target, variant->operation,
         variant->kernel, variant->functional, variant->configuration, variant->specialization);
  return 0;
}

static kiln_tensor square(unsigned long long address) {
  kiln_tensor t = {(void*)address, KILN_BF16, 2, {SIZE, SIZE}, {SIZE, 1}, {0}};
  return t;
}

int main(int count, char** words) {
  if (count != 2) return fprintf(stderr, "usage: descriptors <folder of libkiln.so.0>\n"), 2;
  void* cuda = dlopen("libcuda.so.1", RTLD_NOW);
  int (*init)(unsigned) = (int (*)(unsigned))get(cuda, "cuInit");
  int (*retain)(void**, int) = (int (*)(void**, int))get(cuda, "cuDevicePrimaryCtxRetain");
  int (*make_current)(void*) = (int (*)(void*))get(cuda, "cuCtxSetCurrent");
  int (*synchronize)(void) = (int (*)(void))get(cuda, "cuCtxSynchronize");
  int (*allocate)(unsigned long long*, size_t) = (int (*)(unsigned long long*, size_t))get(cuda, "cuMemAlloc_v2");
  int (*clear)(unsigned long long, unsigned char, size_t) =
      (int (*)(unsigned long long, unsigned char, size_t))get(cuda, "cuMemsetD8_v2");
  int (*make_stream)(void**, unsigned) = (int (*)(void**, unsigned))get(cuda, "cuStreamCreate");
  void *context, *stream;
  check(init(0), "cuInit");
  check(retain(&context, 0), "cuDevicePrimaryCtxRetain");
  check(make_current(context), "cuCtxSetCurrent");
  check(make_stream(&stream, 1), "cuStreamCreate");
  const size_t bytes = SIZE * SIZE * 2;
  unsigned long long memory;
  check(allocate(&memory, (2 + STEPS) * bytes), "cuMemAlloc");
  check(clear(memory, 0, (2 + STEPS) * bytes), "cuMemsetD8");
  check(synchronize(), "cuCtxSynchronize");

  void* core = open_library(words[1], "libkiln.so.0");
  void* matmul = open_library(words[1], "libkiln_matmul.so");
  kiln_status (*open)(const kiln_options*, kiln_t*) =
      (kiln_status (*)(const kiln_options*, kiln_t*))get(core, "kiln_open");
  kiln_status (*close)(kiln_t) = (kiln_status (*)(kiln_t))get(core, "kiln_close");
  kiln_status (*add)(kiln_t, const kiln_family*) =
      (kiln_status (*)(kiln_t, const kiln_family*))get(core, "kiln_register_family");
  kiln_status (*find)(kiln_t, const char*, kiln_operation*) =
      (kiln_status (*)(kiln_t, const char*, kiln_operation*))get(core, "kiln_find_operation");
  kiln_status (*variants)(kiln_t, const char*, const char*, kiln_variant_fn, void*) =
      (kiln_status (*)(kiln_t, const char*, const char*, kiln_variant_fn, void*))get(core, "kiln_variants");
  launch_fn launch = (launch_fn)get(core, "kiln_launch");
  explain_fn explain = (explain_fn)get(core, "kiln_explain");
  const char* (*error)(void) = (const char* (*)(void))get(core, "kiln_error");
  const kiln_family* (*family)(void) = (const kiln_family* (*)(void))get(matmul, "kiln_matmul_family");

  kiln_t kiln;
  kiln_operation operation;
  check(open(NULL, &kiln), "kiln_open");
  check(add(kiln, family()), "kiln_register_family");
  check(find(kiln, "matmul.matmul", &operation), "kiln_find_operation");
  kiln_tensor a = square(memory), b = square(memory + bytes), c = square(memory + 2 * bytes);
  kiln_argument arguments[3] = {{KILN_ARG_TENSOR}, {KILN_ARG_TENSOR}, {KILN_ARG_TENSOR}};
  arguments[0].value.tensor = &a, arguments[1].value.tensor = &b, arguments[2].value.tensor = &c;
  kiln_queue queue = KILN_QUEUE_INIT(KILN_VENDOR_NVIDIA, stream);

  kiln_call calls[2] = {KILN_CALL_INIT, KILN_CALL_INIT};
  struct implementation found[2] = {{"matmul.hopper", ""}, {"matmul.general", ""}};
  const char* keys[2];
  for (int i = 0; i < 2; ++i) {
    check(variants(kiln, "matmul.matmul", "sm_90", find_image, &found[i]), "kiln_variants");
    if (!found[i].key[0]) return fprintf(stderr, "the release has no image of %s\n", found[i].kernel), 1;
    keys[i] = found[i].key;
    calls[i].operation = operation, calls[i].queue = &queue, calls[i].arguments = arguments;
    calls[i].argument_count = 3, calls[i].force_count = 1, calls[i].force_keys = &keys[i];
    if (explain(&calls[i], print_image, NULL) || launch(&calls[i])) return fprintf(stderr, "%s\n", error()), 1;
    check(synchronize(), "cuCtxSynchronize");
  }

  /* With descriptors, without, and with descriptors of which one is new each time. */
  static double times[3][BATCHES];
  for (int batch = 0; batch < BATCHES; ++batch) {
    for (int way = 0; way < 3; ++way) {
      const kiln_call* call = &calls[way == 1];
      double begin = now();
      for (int i = 0; i < BATCH; ++i) {
        if (way == 2) c.data = (void*)(memory + (2 + (size_t)(i % STEPS)) * bytes);
        if (launch(call)) return fprintf(stderr, "%s\n", error()), 1;
      }
      times[way][batch] = (now() - begin) / BATCH;
      c.data = (void*)(memory + 2 * bytes);
      check(synchronize(), "cuCtxSynchronize");
    }
  }
  double with = median(times[0], BATCHES), without = median(times[1], BATCHES), anew = median(times[2], BATCHES);
  printf("with three descriptors   %7.3f us   median of %d batches of %d\n", with, BATCHES, BATCH);
  printf("without descriptors      %7.3f us   the same product in Triton\n", without);
  printf("ratio                    %7.2f\n", with / without);
  printf("one of them new          %7.3f us   the driver encodes it, or it is among the last ones\n", anew);
  check(close(kiln), "kiln_close");
  return 0;
}
