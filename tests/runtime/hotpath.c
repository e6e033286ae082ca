/* A repeated call allocates nothing and takes no lock: malloc and its kin, and pthread_mutex_lock, are counted by
 * standing in for them; the driver is a stub that does nothing. Prints the counts and the nanoseconds of calls. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "fake_driver.h"
#include "toy_call.h"

static int counting;
static long allocations, locks;

extern void* __libc_malloc(size_t);
extern void* __libc_calloc(size_t, size_t);
extern void* __libc_realloc(void*, size_t);
void* malloc(size_t size) { return allocations += counting, __libc_malloc(size); }
void* calloc(size_t count, size_t size) { return allocations += counting, __libc_calloc(count, size); }
void* realloc(void* old, size_t size) { return allocations += counting, __libc_realloc(old, size); }

int pthread_mutex_lock(pthread_mutex_t* mutex) {
  static int (*real)(pthread_mutex_t*);
  if (!real) *(void**)&real = dlsym(RTLD_NEXT, "pthread_mutex_lock");
  locks += counting;
  return real(mutex);
}

static int launched(void) { return 0; }
static int stream_context(void* stream, void** context) { return *context = (void*)8, stream == NULL; }
static int current_context(void** context) { return *context = (void*)8, 0; }
static int current_device(int* device) { return *device = 100, 0; }

static void* resolve(int32_t vendor, const char* symbol, void* user) {
  if (!strcmp(symbol, "cuLaunchKernel") || !strcmp(symbol, "cuLaunchKernelEx") || !strcmp(symbol, "cuMemsetD8Async"))
    return (void*)launched;
  if (!strcmp(symbol, "cuStreamGetCtx")) return (void*)stream_context;
  if (!strcmp(symbol, "cuCtxGetCurrent")) return (void*)current_context;
  if (!strcmp(symbol, "cuCtxGetDevice")) return (void*)current_device;
  return fake_resolve(vendor, symbol, user);
}

static kiln_t kiln;

enum { BATCHES = 100, CALLS = 200 };

static long long now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1000000000ll + time.tv_nsec;
}

/* Nanoseconds of a repeated call, in the fastest batch; everything else that a caller may repeat is counted too. */
static long long measure(const kiln_call* call, const char* operation, const kiln_family* family) {
  kiln_operation found;
  uint64_t workspace;
  if (kiln_launch(call) || kiln_workspace_size(call, &workspace)) return -1;
  counting = 1;
  long long best = 1ll << 62;
  for (int batch = 0; batch < BATCHES; ++batch) {
    long long begin = now();
    for (int i = 0; i < CALLS; ++i)
      if (kiln_launch(call)) return -1;
    long long took = now() - begin;
    if (took < best) best = took;
  }
  for (int i = 0; i < BATCHES * CALLS; ++i)
    if (kiln_workspace_size(call, &workspace) || kiln_prepare(call) || kiln_register_family(kiln, family) ||
        kiln_find_operation(kiln, operation, &found))
      return -1;
  counting = 0;
  return best / CALLS;
}

/* A matrix product: its kernel takes three descriptors, unless k is 1024 or more. */
static long long measure_product(int64_t k) {
  tiles_call made;
  kiln_operation operation;
  if (kiln_find_operation(kiln, "tiles.product", &operation)) return -1;
  make_tiles_call(&made, operation, (void*)16, 0x100000, 256, k);
  return measure(&made.call, "tiles.product", kiln_tiles_family());
}

/* Prints the nanoseconds of a call of the toy family; or, given the folder of the packs of tiles_family.cc and the
 * digest of that for sm_90, of a call without descriptors and of a like one with three. */
int main(int count, char** words) {
  fake_reset();
  kiln_options options = KILN_OPTIONS_INIT;
  options.resolve = resolve;
  if (count == 3) options.pack_path = words[1], options.trusted_packs = words[2];
  kiln_operation operation;
  toy_call toy;
  if (kiln_open(&options, &kiln) || kiln_register_family(kiln, kiln_toy_family()) ||
      kiln_register_family(kiln, kiln_tiles_family()) || kiln_find_operation(kiln, "toy.mix", &operation))
    return puts(kiln_error()), 1;
  make_toy_call(&toy, operation, KILN_VENDOR_NVIDIA, (void*)16);
  long long first, second = 0;
  if (count == 3)
    first = measure_product(1024), second = measure_product(512);
  else
    first = measure(&toy.call, "toy.mix", kiln_toy_family());
  if (first < 0 || second < 0) return puts(kiln_error()), 1;
  printf("%ld %ld %lld %lld\n", allocations, locks, first, second);
  return kiln_close(kiln);
}
