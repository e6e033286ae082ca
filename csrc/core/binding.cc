// A family's pack made ready for a device, and the loading of its images: each once for a device, at first use.
#include "runtime.h"

namespace kiln {
namespace {

// Whether a pack's name of a kernel is that of this one: "matmul.hopper", or "matmul" of an only implementation.
bool is_named(const char* name, const kiln_kernel_table& kernel) {
  size_t length = strlen(kernel.name);
  if (!kernel.implementation) return strcmp(name, kernel.name) == 0;
  return strncmp(name, kernel.name, length) == 0 && name[length] == '.' &&
         strcmp(name + length + 1, kernel.implementation) == 0;
}

const KernelRow* find_row(const Pack& pack, const char* family, const char* operation,
                          const kiln_kernel_table& kernel) {
  for (uint32_t i = 0; i < pack.counts->kernels; ++i) {
    const KernelRow& row = pack.kernels[i];
    if (is_named(pack.string(row.kernel), kernel) && strcmp(pack.string(row.operation), operation) == 0 &&
        strcmp(pack.string(row.family), family) == 0)
      return &row;
  }
  return nullptr;
}

const kiln_kernel_target_table* find_target(const kiln_kernel_table& kernel, const char* target) {
  for (int32_t i = 0; i < kernel.target_count; ++i)
    if (strcmp(kernel.targets[i].target, target) == 0) return &kernel.targets[i];
  return nullptr;
}

kiln_status bind_kernel(const Pack& pack, const char* target, const kiln_operation_state& operation,
                        const kiln_kernel_table& kernel, BoundKernel* out) {
  out->target = find_target(kernel, target);
  if (!out->target) return KILN_OK;
  const KernelRow* row = find_row(pack, operation.family->table->name, operation.table->name, kernel);
  const char* wrong = nullptr;
  uint64_t functionals = 1;
  for (int32_t i = 0; i < kernel.choice_count; ++i)
    functionals *= static_cast<uint64_t>(operation.table->choices[kernel.choices[i]].count);
  uint64_t configurations = static_cast<uint64_t>(out->target->configuration_count);
  uint64_t specializations = static_cast<uint64_t>(kernel.specialization_count);
  if (!row)
    wrong = "the pack does not hold it";
  else if (memcmp(row->layout, out->target->layout, 32) != 0 || row->configurations != configurations ||
           row->specializations != specializations || row->slots != functionals * configurations * specializations)
    wrong = "the pack numbers its variants in another way";
  if (wrong)
    return fail(KILN_E_PACK_MISMATCH, "%s does not match the library of release %s: kernel %s of %s: %s", pack.path,
                operation.family->table->version, FullName(kernel).c_str(), operation.name, wrong);
  out->first_slot = row->first_slot;
  return KILN_OK;
}

void free_binding(Binding* binding) {
  free(binding->kernels);
  free(binding->slots);
  free(binding);
}

kiln_status make_binding(Family& family, Device& device, int32_t number, bool ptx, Pack* pack, Binding** out) {
  Binding* binding = allocate<Binding>();
  if (!binding) return out_of_memory();
  binding->device = &device;
  binding->family = &family;
  binding->pack_number = number;
  binding->ptx = ptx;
  binding->pack = pack;
  binding->kernels = allocate<BoundKernel>(static_cast<size_t>(family.kernel_count));
  binding->slots = allocate<std::atomic<Loaded*>>(pack->counts->slots);
  kiln_status status = binding->kernels && binding->slots ? KILN_OK : out_of_memory();
  if (status == KILN_OK) status = bind_kernels(family, number, *pack, binding->kernels);
  if (status != KILN_OK) {
    free_binding(binding);
    return status;
  }
  *out = binding;
  return KILN_OK;
}

kiln_status get_binding(Family& family, Device& device, int32_t number, bool ptx, Binding** out) {
  for (Binding* known = family.bindings.load(std::memory_order_acquire); known; known = known->next)
    if (known->device == &device && known->pack_number == number && known->ptx == ptx) {
      *out = known;
      return KILN_OK;
    }
  Pack* pack;
  kiln_status status = get_pack(family, number, &pack);
  if (status != KILN_OK) return status;
  Lock lock(family.runtime->lock);
  Binding* first = family.bindings.load(std::memory_order_relaxed);
  for (Binding* known = first; known; known = known->next)
    if (known->device == &device && known->pack_number == number && known->ptx == ptx) {
      *out = known;
      return KILN_OK;
    }
  status = make_binding(family, device, number, ptx, pack, out);
  if (status != KILN_OK) return status;
  (*out)->next = first;
  family.bindings.store(*out, std::memory_order_release);
  return KILN_OK;
}

bool lists(const char* const* names, const char* name) {
  for (; *names; ++names)
    if (strcmp(*names, name) == 0) return true;
  return false;
}

void list_targets(const Family& family, int32_t vendor, Text& text) {
  for (int32_t i = 0; i < family.table->pack_count; ++i)
    if (!vendor || family.table->packs[i].vendor == vendor)
      text.add("%s%s", text.length() ? ", " : "", family.table->packs[i].target);
  if (!text.length()) text.add("none");
}

kiln_status bind_native(Family& family, Device& device, Binding** out) {
  int32_t number = -1;
  for (int32_t i = 0; i < family.table->pack_count; ++i) {
    const kiln_pack_table& pack = family.table->packs[i];
    if (!runs_natively(pack, device)) continue;
    bool exact = strcmp(pack.target, device.target) == 0;
    if (exact || number < 0) number = i;
    if (exact) break;
  }
  if (number < 0) {
    FixedText<512> targets;
    list_targets(family, device.vendor, targets);
    return fail(KILN_E_NO_DEVICE, "no pack of %s serves the %s device %d (%s, %s); its %s targets are: %s",
                family.table->name, vendor_name(device.vendor), device.ordinal, device.name, device.target,
                vendor_name(device.vendor), targets.c_str());
  }
  kiln_status status = get_binding(family, device, number, false, out);
  if (status == KILN_OK) family.native[device.vendor - 1][device.ordinal].store(*out, std::memory_order_release);
  return status;
}

// Loads an image, or finds it loaded for another slot. Under binding.lock.
kiln_status load_image(Binding& binding, const ImageRow& image, Loaded** out) {
  for (Loaded* known = binding.loaded; known; known = known->next)
    if (known->row == &image) {
      *out = known;
      return KILN_OK;
    }
  Loaded* loaded = allocate<Loaded>();
  if (!loaded) return out_of_memory();
  uint8_t* code;
  kiln_status status = read_image(*binding.pack, image, &code);
  if (status == KILN_OK) {
    loaded->row = &image;
    const char* symbol = binding.pack->string(image.symbol);
    Driver& driver = *binding.device->driver;
    status = driver.calls->load(driver, *binding.device, image, symbol, code, loaded);
    if (status == KILN_OK)
      log(*driver.options, KILN_LOG_DEBUG, "loaded %s (%u bytes) on %s device %d", symbol, image.bytes,
          vendor_name(driver.vendor), binding.device->ordinal);
  }
  if (status != KILN_OK) {
    free(loaded);
    return status;
  }
  loaded->next = binding.loaded;
  binding.loaded = loaded;
  *out = loaded;
  return KILN_OK;
}

}  // namespace

kiln_status bind_kernels(const Family& family, int32_t number, const Pack& pack, BoundKernel* out) {
  for (int32_t i = 0; i < family.table->operation_count; ++i) {
    const kiln_operation_state& operation = family.operations[i];
    for (int32_t k = 0; k < operation.table->kernel_count; ++k) {
      kiln_status status = bind_kernel(pack, family.table->packs[number].target, operation, operation.table->kernels[k],
                                       &out[operation.first_kernel + k]);
      if (status != KILN_OK) return status;
    }
  }
  return KILN_OK;
}

bool runs_natively(const kiln_pack_table& pack, const Device& device) {
  return pack.vendor == device.vendor &&
         (strcmp(pack.target, device.target) == 0 || lists(pack.runs_on, device.target));
}

kiln_status bind(Family& family, Device& device, const char* force_target, Binding** out) {
  if (!force_target) {
    *out = family.native[device.vendor - 1][device.ordinal].load(std::memory_order_acquire);
    return *out ? KILN_OK : bind_native(family, device, out);
  }
  for (int32_t i = 0; i < family.table->pack_count; ++i) {
    const kiln_pack_table& pack = family.table->packs[i];
    if (strcmp(pack.target, force_target) != 0) continue;
    bool native = runs_natively(pack, device);
    if (!native && (pack.vendor != device.vendor || device.vendor != KILN_VENDOR_NVIDIA))
      return fail(KILN_E_UNSUPPORTED,
                  "the target %s cannot be forced on the %s device %d (%s): only NVIDIA images come "
                  "with PTX, and for NVIDIA devices",
                  force_target, vendor_name(device.vendor), device.ordinal, device.target);
    return get_binding(family, device, i, !native, out);
  }
  FixedText<512> targets;
  list_targets(family, 0, targets);
  return fail(KILN_E_NOT_FOUND, "%s has no target %s; its targets are: %s", family.table->name, force_target,
              targets.c_str());
}

kiln_status load_slot(Binding& binding, uint32_t slot, const ImageRow& image, Loaded** out) {
  std::atomic<Loaded*>& place = binding.slots[slot];
  if ((*out = place.load(std::memory_order_acquire))) return KILN_OK;
  const Device& device = *binding.device;
  if (image.shared > device.max_shared || image.threads > device.max_threads)
    return fail(KILN_E_RESOURCES,
                "%s needs %u bytes of shared memory and %u threads a block; the %s device %d (%s) gives "
                "%u and %u",
                binding.pack->string(image.symbol), image.shared, image.threads, vendor_name(device.vendor),
                device.ordinal, device.target, device.max_shared, device.max_threads);
  Lock lock(binding.lock);
  if ((*out = place.load(std::memory_order_relaxed))) return KILN_OK;
  kiln_status status = load_image(binding, image, out);
  if (status == KILN_OK) place.store(*out, std::memory_order_release);
  return status;
}

void close_family(Family* family, bool unload) {
  for (Binding* binding = family->bindings.load(std::memory_order_relaxed); binding;) {
    Binding* next = binding->next;
    for (Loaded* loaded = binding->loaded; loaded;) {
      Loaded* after = loaded->next;
      Driver& driver = *binding->device->driver;
      if (unload) driver.calls->unload(driver, *binding->device, *loaded);
      free(loaded->code);
      free(loaded);
      loaded = after;
    }
    free_binding(binding);
    binding = next;
  }
  if (family->operations)
    for (int32_t i = 0; i < family->table->operation_count; ++i) free(family->operations[i].name);
  free(family->operations);
  free(family->packs);
  free(family->folder);
  free(family);
}

}  // namespace kiln
