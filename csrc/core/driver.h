// What Kiln needs of a vendor's driver, and nothing more. cuda.cc and hip.cc fill it in.
//
// The caller's current context (CUDA) or device (HIP) is changed only between enter() and leave(), which restores it.
#pragma once

#include <stdint.h>

#include <atomic>

#include "memory.h"
#include "options.h"
#include "pack.h"

namespace kiln {

constexpr int kMaxDevices = 64;  // a vendor's; more are not looked at

struct Descriptor;
struct Driver;

struct Device {
  Driver* driver;
  int32_t vendor, ordinal;
  std::atomic<void*> primary;  // CUDA: the device's primary context, once it is held; else nullptr
  std::atomic<bool> asked;     // what follows is known
  int32_t handle;              // CUdevice; the ordinal again for HIP
  int32_t multiprocessors, warp_size;
  uint32_t max_threads, max_shared;  // of a block, opted in
  int64_t max_grid[3];               // blocks
  int64_t max_grid_threads;          // threads along a dimension of the grid
  char name[256];
  char id[64];
  char target[64];    // "sm_90", "gfx942"
  char refusal[160];  // why the driver cannot use it, or ""
};

// An image that a driver has loaded for one device.
struct Loaded {
  Loaded* next;
  const ImageRow* row;
  void* module;    // CUlibrary, hipModule_t
  void* function;  // CUkernel, hipFunction_t
  void* code;      // kept until it is unloaded, where the driver wants that; else nullptr
  uint32_t dynamic_shared;
};

// Between enter() and leave() the queue's device is current.
struct Scope {
  Device* device;
  void* stream;
  void* previous;  // what leave() restores
  bool switched;
};

struct Launch {
  const Loaded* image;
  uint32_t grid[3];  // blocks, clusters counted in
  void** parameters;
  bool overlaps;  // with the kernel before it on the stream, for whose end it waits by itself
};

struct DriverCalls {
  // Fills in what the driver tells of a device. Under driver.lock; a failure leaves the device unasked.
  kiln_status (*describe)(Driver& driver, Device& device);
  // Finds whose stream it is, checks that against the queue's device, makes it current. KILN_E_QUEUE if it cannot. The
  // device has been asked then.
  kiln_status (*enter)(Driver& driver, const kiln_queue& queue, Scope* scope);
  void (*leave)(Driver& driver, const Scope& scope);
  // Takes `code`, which is malloc'ed, over: frees it, or leaves it in loaded->code. On failure nothing stays loaded.
  kiln_status (*load)(Driver& driver, Device& device, const ImageRow& row, const char* symbol, void* code,
                      Loaded* loaded);
  // A sentence of what went wrong is logged, nothing more can be done.
  void (*unload)(Driver& driver, Device& device, Loaded& loaded);
  kiln_status (*launch)(Driver& driver, const Scope& scope, const Launch& launch);
  // Fills in a descriptor's map by its key; `argument` is the tensor's name. nullptr where the vendor has no
  // descriptors.
  kiln_status (*encode)(Driver& driver, const char* argument, Descriptor& descriptor);
  kiln_status (*zero)(Driver& driver, const Scope& scope, uint64_t address, uint64_t bytes);
  // Returns once all of the stream's work is done.
  kiln_status (*wait)(Driver& driver, const Scope& scope);
  // Frees the driver; without `release` (in a forked child) its library stays as it is.
  void (*close)(Driver* driver, bool release);
};

// A vendor's open driver; the vendor's file derives from it.
struct Driver {
  const DriverCalls* calls;
  const Options* options;
  int32_t vendor;
  int32_t version;       // NVIDIA: cuDriverGetVersion(), 12080; 0: it does not tell; AMD: 0
  bool has_descriptors;  // `encode` can be called
  int32_t device_count;
  Device* devices;
  Mutex lock;  // of what is asked of the devices
};

// Find, initialise and count. KILN_E_NO_DEVICE: no such driver, or one too old; KILN_E_DRIVER: it failed.
kiln_status open_cuda(const Options& options, Driver** out);
kiln_status open_hip(const Options& options, Driver** out);

// The driver's devices by number, none of them asked yet: one that cannot be is no reason to do without the others.
kiln_status make_devices(Driver& driver, int count);

// Asks the driver about a device, at first use. A failure is not remembered: the next use asks again.
kiln_status ask(Device& device);

const char* vendor_name(int32_t vendor);

// Gives an entry point: by the caller's resolver if there is one, else from `library`.
void* resolve(const Options& options, int32_t vendor, void* library, const char* symbol);

}  // namespace kiln
