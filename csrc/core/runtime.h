// The state behind kiln_t. Every list is append-only until kiln_close and published by release stores, so that the
// path of a repeated call takes no lock.
#pragma once

#include <atomic>

#include "driver.h"
#include "error.h"
#include "kiln/family.h"
#include "memory.h"
#include "options.h"
#include "pack.h"

namespace kiln {

struct Family;

// A kernel of a family, bound to a pack: where its slots begin and its table for the pack's target.
struct BoundKernel {
  const kiln_kernel_target_table* target;  // nullptr: not built for this target
  uint32_t first_slot;
};

// A family's pack made ready for one device.
struct Binding {
  Binding* next;
  Device* device;
  Family* family;
  int32_t pack_number;
  bool ptx;  // the device has another architecture: images are the slots' PTX
  Pack* pack;
  BoundKernel* kernels;         // as Family counts them
  std::atomic<Loaded*>* slots;  // by slot of the pack
  Mutex lock;                   // of what follows
  Loaded* loaded;               // each image once

  // The row of images that a slot leads to, or kNone.
  uint32_t image_of(const SlotRow& slot) const { return ptx ? slot.ptx : slot.image; }
};

}  // namespace kiln

struct kiln_operation_state {
  kiln::Family* family;
  const kiln_operation_table* table;
  char* name;            // "flash.attn_fwd"
  int32_t first_kernel;  // in the family's count
};

namespace kiln {

struct Family {
  Family* next;
  kiln_runtime* runtime;
  const kiln_family* table;
  char* folder;  // of the library that holds the tables, or nullptr
  kiln_operation_state* operations;
  int32_t kernel_count;
  std::atomic<Pack*>* packs;                     // by number; nullptr: not opened yet
  std::atomic<Binding*> native[2][kMaxDevices];  // by vendor and ordinal
  std::atomic<Binding*> bindings;                // all
};

}  // namespace kiln

struct kiln_runtime {
  kiln::Options options;
  const uint64_t* alive;  // a page that the kernel wipes in a forked child, or nullptr
  int64_t process;        // whose pid this is, where there is no such page
  kiln::Mutex lock;       // of registration, drivers, packs and bindings; taken before a binding's and a pack's
  std::atomic<kiln::Family*> families;
  std::atomic<kiln::Driver*> drivers[2];  // by vendor
  kiln::Pack* packs;
};

namespace kiln {

// A kernel as sentences and packs name it: "matmul", "matmul.hopper".
class FullName : public FixedText<256> {
 public:
  explicit FullName(const kiln_kernel_table& kernel) {
    add(kernel.implementation ? "%s.%s" : "%s", kernel.name, kernel.implementation);
  }
};

constexpr char kNoFamily[] =
    "no family is registered; register one with kiln_register_family(kiln, kiln_<family>_family())";

// KILN_E_ARGUMENT for NULL, KILN_E_FORKED in a child of the process that opened it.
kiln_status check_runtime(const kiln_runtime* runtime);

// The vendor's driver, opened at first use.
kiln_status get_driver(kiln_runtime& runtime, int32_t vendor, Driver** out);

// KILN_E_FAMILY, with a sentence, unless everything in the tables that the dispatch relies on holds.
kiln_status validate_family(const kiln_family* family);

// The pack of a family, searched for and opened at first use.
kiln_status get_pack(Family& family, int32_t number, Pack** out);

// Finds each kernel of a family in its pack of that number. KILN_E_PACK_MISMATCH: the two number variants differently.
kiln_status bind_kernels(const Family& family, int32_t number, const Pack& pack, BoundKernel* out);

// Whether a pack's images run on the device as they are; an exact target is preferred by `bind`.
bool runs_natively(const kiln_pack_table& pack, const Device& device);

// The binding of a family to a device: by its own architecture, or by `force_target` (or NULL).
kiln_status bind(Family& family, Device& device, const char* force_target, Binding** out);

// What cuDriverGetVersion() must be at least for a kernel's images; 0: anything. The kernel is for the target.
inline int32_t needed_driver(const Binding& binding, const BoundKernel& bound) {
  return binding.ptx ? bound.target->ptx_driver : bound.target->driver;
}

// Whether the driver is new enough for a kernel's images, as far as it tells its version, and can make what they take.
// The kernel is for the target.
inline bool drives(const Binding& binding, const kiln_kernel_table& kernel, const BoundKernel& bound) {
  const Driver& driver = *binding.device->driver;
  bool is_new_enough = driver.version == 0 || driver.version >= needed_driver(binding, bound);
  return is_new_enough && (kernel.descriptor_count == 0 || driver.has_descriptors);
}

// The image in a slot, loaded at first use. The device must be entered.
kiln_status load_slot(Binding& binding, uint32_t slot, const ImageRow& image, Loaded** out);

void close_family(Family* family, bool unload);

}  // namespace kiln
