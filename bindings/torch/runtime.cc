#include "runtime.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>

#include <atomic>

#include "kiln/family.h"
#include "shim.h"

namespace kiln_torch {
namespace {

// All of it is fit for use when zeroed, and nothing has a destructor.
pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
std::atomic<kiln_t> opened;
std::atomic<GetCurrentStream> get_stream;
int32_t vendor;  // of get_stream, which is stored after it

struct Backend {
  const char* library;
  int32_t vendor;
};
constexpr Backend kBackends[] = {{"libtorch_cuda.so", KILN_VENDOR_NVIDIA}, {"libtorch_hip.so", KILN_VENDOR_AMD}};

void* loaded(const char* library) { return dlopen(library, RTLD_LAZY | RTLD_NOLOAD); }

// PyTorch's ROCm wheels bring a HIP runtime of their own. A second one in the process would not know their streams, so
// its entry points are looked up through the library that uses it: dlsym searches what that depends on.
void* resolve_hip(int32_t wanted, const char* symbol, void* library) {
  return wanted == KILN_VENDOR_AMD ? dlsym(library, symbol) : nullptr;
}

kiln_status open(kiln_t* out) {
  kiln_options options = KILN_OPTIONS_INIT;
  if (void* hip = loaded("libtorch_hip.so")) {
    options.resolve = resolve_hip;
    options.resolve_user = hip;
  }
  return kiln_open(&options, out);
}

kiln_status find_stream() {
  for (const Backend& backend : kBackends) {
    void* library = loaded(backend.library);
    if (!library) continue;
    void* address = dlsym(library, kGetCurrentStream);
    if (!address)
      return fail(KILN_E_QUEUE, "%s has no entry point %s, so the current stream is not known", backend.library,
                  kGetCurrentStream);
    vendor = backend.vendor;
    get_stream.store(reinterpret_cast<GetCurrentStream>(address), std::memory_order_release);
    return KILN_OK;
  }
  return fail(KILN_E_QUEUE,
              "neither libtorch_cuda.so nor libtorch_hip.so is loaded, so the current stream is not known");
}

}  // namespace

kiln_status fail(kiln_status status, const char* format, ...) {
  char sentence[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(sentence, sizeof sentence, format, arguments);
  va_end(arguments);
  return kiln_set_error(status, sentence);
}

kiln_status runtime(kiln_t* out, bool fresh) {
  kiln_t before = opened.load(std::memory_order_acquire);
  if (before && !fresh) {
    *out = before;
    return KILN_OK;
  }
  pthread_mutex_lock(&lock);
  kiln_t now = opened.load(std::memory_order_relaxed);
  kiln_status status = KILN_OK;
  if (now == before) {  // no other thread was here first
    now = nullptr;      // a parent's is left as it is: this process cannot use it, nor is it ours to unload
    status = open(&now);
    if (status == KILN_OK) opened.store(now, std::memory_order_release);
  }
  pthread_mutex_unlock(&lock);
  *out = now;
  return status;
}

kiln_status current_queue(int32_t device, kiln_queue* out) {
  GetCurrentStream get = get_stream.load(std::memory_order_acquire);
  if (!get) {
    pthread_mutex_lock(&lock);
    kiln_status status = find_stream();
    pthread_mutex_unlock(&lock);
    if (status != KILN_OK) return status;
    get = get_stream.load(std::memory_order_acquire);
  }
  void* stream = nullptr;
  if (get(device, &stream))
    return fail(KILN_E_QUEUE, "PyTorch does not tell the current stream of device %d", static_cast<int>(device));
  kiln_queue queue = KILN_QUEUE_INIT(vendor, stream);
  queue.device = device;
  *out = queue;
  return KILN_OK;
}

}  // namespace kiln_torch
