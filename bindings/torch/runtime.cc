#include "runtime.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>

#include <atomic>

#include "kiln/family.h"
#include "shim.h"

namespace kiln_torch {
namespace {

// A library of PyTorch's that knows its current stream.
struct Backend {
  const char* library;
  int32_t vendor;
  std::atomic<GetCurrentStream> get_stream;  // NULL: not looked up
};

// None of it is initialised by code or has a destructor. There is no lock: one that another thread holds while a
// process forks would stay locked in the child.
Backend backends[] = {{"libtorch_cuda.so", KILN_VENDOR_NVIDIA, {nullptr}},
                      {"libtorch_hip.so", KILN_VENDOR_AMD, {nullptr}}};
std::atomic<const Backend*> backend;  // the one that is loaded; its get_stream is stored before it
std::atomic<kiln_t> opened;
struct {
  std::atomic<kiln_log_fn> write;  // stored after the others
  std::atomic<void*> user;
  std::atomic<int32_t> level;
} messages;

void* loaded(const char* library) { return dlopen(library, RTLD_LAZY | RTLD_NOLOAD); }

// PyTorch's ROCm wheels bring a HIP runtime of their own. A second one in the process would not know their streams, so
// its entry points are looked up through the library that uses it: dlsym searches what that depends on.
void* resolve_hip(int32_t wanted, const char* symbol, void* library) {
  return wanted == KILN_VENDOR_AMD ? dlsym(library, symbol) : nullptr;
}

kiln_status open(kiln_t* out) {
  kiln_options options = KILN_OPTIONS_INIT;
  if ((options.log = messages.write.load(std::memory_order_acquire))) {
    options.log_user = messages.user.load(std::memory_order_relaxed);
    options.log_level = messages.level.load(std::memory_order_relaxed);
  }
  if (void* hip = loaded("libtorch_hip.so")) {
    options.resolve = resolve_hip;
    options.resolve_user = hip;
  }
  return kiln_open(&options, out);
}

// Several threads may look at once, and find the same.
kiln_status find_backend() {
  for (Backend& each : backends) {
    void* library = loaded(each.library);
    if (!library) continue;
    void* address = dlsym(library, kGetCurrentStream);
    if (!address)
      return fail(KILN_E_QUEUE, "%s has no entry point %s, so the current stream is not known", each.library,
                  kGetCurrentStream);
    each.get_stream.store(reinterpret_cast<GetCurrentStream>(address), std::memory_order_relaxed);
    backend.store(&each, std::memory_order_release);
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

kiln_status runtime(kiln_t* out, kiln_t useless) {
  kiln_t now = opened.load(std::memory_order_acquire);
  if (now == useless) {
    // A parent's is left as it is: this process cannot use it, nor is it ours to unload.
    kiln_t made = nullptr;
    kiln_status status = open(&made);
    if (status != KILN_OK) return status;
    if (opened.compare_exchange_strong(now, made, std::memory_order_acq_rel))
      now = made;
    else
      kiln_close(made);  // another thread was first, and `now` is its
  }
  *out = now;
  return KILN_OK;
}

kiln_status set_log(kiln_log_fn log, void* user, int32_t level) {
  if (opened.load(std::memory_order_acquire))
    return fail(KILN_E_ARGUMENT, "kiln_torch_set_log: the runtime is open already; set its log before the first call");
  messages.user.store(user, std::memory_order_relaxed);
  messages.level.store(level, std::memory_order_relaxed);
  messages.write.store(log, std::memory_order_release);
  return KILN_OK;
}

kiln_status current_queue(int32_t device, kiln_queue* out) {
  const Backend* from = backend.load(std::memory_order_acquire);
  if (!from) {
    kiln_status status = find_backend();
    if (status != KILN_OK) return status;
    from = backend.load(std::memory_order_acquire);
  }
  void* stream = nullptr;
  if (from->get_stream.load(std::memory_order_relaxed)(device, &stream))
    return fail(KILN_E_QUEUE, "PyTorch does not tell the current stream of device %d", static_cast<int>(device));
  kiln_queue queue = KILN_QUEUE_INIT(from->vendor, stream);
  queue.device = device;
  *out = queue;
  return KILN_OK;
}

}  // namespace kiln_torch
