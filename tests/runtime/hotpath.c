/* A repeated call allocates nothing and takes no lock: malloc and its kin, and pthread_mutex_lock, are counted by
 * standing in for them; the driver is a stub that does nothing. Prints the counts and the nanoseconds of a call. */
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

int main(void) {
  fake_reset();
  kiln_options options = KILN_OPTIONS_INIT;
  options.resolve = resolve;
  kiln_t kiln;
  kiln_operation operation;
  toy_call toy;
  if (kiln_open(&options, &kiln) || kiln_register_family(kiln, kiln_toy_family()) ||
      kiln_find_operation(kiln, "toy.mix", &operation))
    return puts(kiln_error()), 1;
  make_toy_call(&toy, operation, KILN_VENDOR_NVIDIA, (void*)16);
  uint64_t workspace;
  if (kiln_launch(&toy.call) || kiln_workspace_size(&toy.call, &workspace)) return puts(kiln_error()), 1;
  counting = 1;
  struct timespec begin, end;
  clock_gettime(CLOCK_MONOTONIC, &begin);
  enum { CALLS = 20000 };
  for (int i = 0; i < CALLS; ++i)
    if (kiln_launch(&toy.call)) return puts(kiln_error()), 1;
  clock_gettime(CLOCK_MONOTONIC, &end);
  for (int i = 0; i < CALLS; ++i)
    if (kiln_workspace_size(&toy.call, &workspace) || kiln_prepare(&toy.call) ||
        kiln_register_family(kiln, kiln_toy_family()) || kiln_find_operation(kiln, "toy.mix", &operation))
      return puts(kiln_error()), 1;
  counting = 0;
  long long nanoseconds = (end.tv_sec - begin.tv_sec) * 1000000000ll + (end.tv_nsec - begin.tv_nsec);
  printf("%ld %ld %lld\n", allocations, locks, nanoseconds / CALLS);
  return kiln_close(kiln);
}
