/* Eight threads, first calls at once, over and over, for the thread sanitizer: registration, look-up, two vendors,
 * three devices, failures and their sentences. Then tensor descriptors: given the folder of the packs of
 * tiles_family.cc and the digest of that for sm_90. The fake driver checks each that is launched. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "fake_driver.h"
#include "toy_call.h"

enum { THREADS = 8 };

static kiln_t kiln;
static pthread_barrier_t barrier;

static int32_t ignore(const kiln_variant* variant, void* user) { return (void)variant, (void)user, 0; }

static void* body(void* argument) {
  int number = (int)(intptr_t)argument;
  int32_t vendor = number % 2 ? KILN_VENDOR_AMD : KILN_VENDOR_NVIDIA;
  kiln_operation operation;
  toy_call toy;
  pthread_barrier_wait(&barrier);
  if (kiln_register_family(kiln, kiln_toy_family()) || kiln_find_operation(kiln, "toy.mix", &operation)) return "find";
  for (int step = 0; step < 6; ++step) {
    int device = number % 4 < 2 ? 0 : 4;
    make_toy_call(&toy, operation, vendor, fake_stream(vendor, device, 0));
    toy.arguments[5].value.integer = step % 2;
    toy.arguments[3].value.integer = 1 + step / 2;
    if (kiln_launch(&toy.call)) return "launch";
    toy.arguments[5].value.integer = 2 + number;
    char expected[64];
    snprintf(expected, sizeof expected, "toy.mix: flag is %d;", 2 + number);
    if (kiln_launch(&toy.call) != KILN_E_RANGE || strncmp(kiln_error(), expected, strlen(expected))) return "sentence";
    toy.arguments[5].value.integer = 0;
    if (kiln_explain(&toy.call, ignore, NULL)) return "explain";
  }
  return kiln_variants(kiln, NULL, NULL, ignore, NULL) ? "variants" : NULL;
}

static void* describe(void* argument) {
  int number = (int)(intptr_t)argument;
  kiln_operation operation;
  tiles_call made;
  pthread_barrier_wait(&barrier);
  if (kiln_find_operation(kiln, "tiles.product", &operation)) return "find";
  for (int step = 0; step < 200; ++step) {
    uintptr_t address = 0x10000000 + 0x1000 * (uintptr_t)(step % 23); /* more tensors than are kept */
    make_tiles_call(&made, operation, fake_stream(FAKE_NVIDIA, number % 2 * 4, 0), address, 64 + number, 64);
    if (kiln_launch(&made.call)) return "launch";
  }
  return NULL;
}

static int run(void* (*body)(void*)) {
  pthread_barrier_init(&barrier, NULL, THREADS);
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; ++i) pthread_create(&threads[i], NULL, body, (void*)(intptr_t)i);
  for (int i = 0; i < THREADS; ++i) {
    void* failed;
    pthread_join(threads[i], &failed);
    if (failed) return printf("%s: %s\n", (char*)failed, kiln_error()), 1;
  }
  pthread_barrier_destroy(&barrier);
  return 0;
}

int main(int count, char** words) {
  if (count != 3) return puts("threads <folder of packs> <digest>"), 1;
  for (int round = 0; round < 30; ++round) {
    fake_reset();
    kiln_options options = KILN_OPTIONS_INIT;
    options.resolve = fake_resolve;
    if (kiln_open(&options, &kiln)) return 1;
    if (run(body)) return 1;
    if (fake_launches() != 2 * 6 * THREADS || kiln_close(kiln) || fake_loaded()) return puts("counts"), 1;
  }
  fake_reset();
  kiln_options options = KILN_OPTIONS_INIT;
  options.resolve = fake_resolve;
  options.pack_path = words[1], options.trusted_packs = words[2];
  if (kiln_open(&options, &kiln) || kiln_register_family(kiln, kiln_tiles_family()) || run(describe)) return 1;
  if (fake_launches() != 200 * THREADS || kiln_close(kiln)) return puts("launches"), 1;
  puts("fine");
  return 0;
}
