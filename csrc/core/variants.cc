// What there is: the variants in the packs, and those that a call would run.
#include "dispatch.h"
#include "sha256.h"

namespace kiln {
namespace {

// Shows one variant to the caller; non-zero to stop.
int32_t show(const kiln_operation_state& operation, const kiln_kernel_table& kernel,
             const kiln_kernel_target_table& target, const Pack& pack, uint32_t first_slot, int32_t number, bool ptx,
             kiln_variant_fn visit, void* user) {
  int32_t specialization = number % kernel.specialization_count;
  int32_t configuration = number / kernel.specialization_count % target.configuration_count;
  int32_t functional = number / kernel.specialization_count / target.configuration_count;
  const SlotRow& slot = pack.slots[first_slot + static_cast<uint32_t>(number)];
  char key[65];
  to_hex(slot.key, key);
  FixedText<600> text;
  describe_functional(*operation.table, kernel, functional, text);
  kiln_variant variant = {};
  variant.size = sizeof variant;
  variant.key = key;
  variant.target = target.target;
  variant.operation = operation.name;
  variant.kernel = kernel.name;
  variant.functional = text.c_str();
  variant.configuration = target.configuration_names[configuration];
  variant.specialization = kernel.specializations[specialization].name;
  variant.has_ptx = slot.ptx != kNone;
  uint32_t row = ptx ? slot.ptx : slot.image;
  if (row == kNone) {
    variant.unavailable = pack.string(slot.reason);
    if (!variant.unavailable) variant.unavailable = "not in this release";
  } else {
    const ImageRow& image = pack.images[row];
    variant.registers = static_cast<int32_t>(image.registers);
    variant.shared_bytes = static_cast<int32_t>(image.shared);
    variant.spill_bytes = static_cast<int32_t>(image.spills);
    variant.threads = static_cast<int32_t>(image.threads);
  }
  return visit(&variant, user);
}

// The variants of an operation in one pack.
int32_t show_operation(const kiln_operation_state& operation, const Pack& pack, const BoundKernel* kernels,
                       kiln_variant_fn visit, void* user) {
  for (int32_t k = 0; k < operation.table->kernel_count; ++k) {
    const kiln_kernel_table& kernel = operation.table->kernels[k];
    const BoundKernel& bound = kernels[operation.first_kernel + k];
    if (!bound.target) continue;
    int32_t count =
        functional_count(*operation.table, kernel) * bound.target->configuration_count * kernel.specialization_count;
    for (int32_t i = 0; i < count; ++i)
      if (int32_t stop = show(operation, kernel, *bound.target, pack, bound.first_slot, i, false, visit, user))
        return stop;
  }
  return 0;
}

kiln_status show_family(Family& family, const char* operation, const char* target, kiln_variant_fn visit, void* user,
                        bool* stopped, int32_t* packs) {
  for (int32_t number = 0; number < family.table->pack_count; ++number) {
    const kiln_pack_table& table = family.table->packs[number];
    if (target && strcmp(table.target, target) != 0) continue;
    Pack* pack;
    kiln_status status = get_pack(family, number, &pack);
    if (status == KILN_E_PACK_NOT_FOUND && !target) continue;
    if (status != KILN_OK) return status;
    BoundKernel* kernels = allocate<BoundKernel>(static_cast<size_t>(family.kernel_count));
    if (!kernels) return out_of_memory();
    status = bind_kernels(family, number, *pack, kernels);
    for (int32_t i = 0; i < family.table->operation_count && status == KILN_OK && !*stopped; ++i)
      if (!operation || strcmp(family.operations[i].name, operation) == 0)
        *stopped = show_operation(family.operations[i], *pack, kernels, visit, user) != 0;
    free(kernels);
    if (status != KILN_OK) return status;
    ++*packs;
    if (*stopped) return KILN_OK;
  }
  return KILN_OK;
}

bool has_target(const Family& family, const char* target) {
  for (int32_t i = 0; i < family.table->pack_count; ++i)
    if (strcmp(family.table->packs[i].target, target) == 0) return true;
  return false;
}

}  // namespace

kiln_status explain(const Plan& plan, kiln_variant_fn visit, void* user) {
  for (int32_t i = 0; i < plan.kernel_count; ++i) {
    const KernelPlan& kernel = plan.kernels[i];
    if (show(*plan.operation, *kernel.table, *kernel.bound->target, *plan.binding->pack, kernel.bound->first_slot,
             static_cast<int32_t>(kernel.slot - kernel.bound->first_slot), plan.binding->ptx, visit, user))
      break;
  }
  return KILN_OK;
}

}  // namespace kiln

using namespace kiln;

extern "C" kiln_status kiln_variants(kiln_t kiln, const char* operation, const char* target, kiln_variant_fn visit,
                                     void* user) {
  kiln_status status = check_runtime(kiln);
  if (status != KILN_OK) return status;
  if (!visit) return fail(KILN_E_ARGUMENT, "kiln_variants: visit is NULL");
  kiln_operation found = nullptr;
  if (operation && (status = kiln_find_operation(kiln, operation, &found)) != KILN_OK) return status;
  Family* first = kiln->families.load(std::memory_order_acquire);
  if (!first) return fail(KILN_E_NOT_FOUND, "there are no variants: no family is registered");
  bool stopped = false, known = !target;
  int32_t packs = 0;
  for (Family* family = first; family && !stopped; family = family->next) {
    if (found && found->family != family) continue;
    known |= target && has_target(*family, target);
    status = show_family(*family, operation, target, visit, user, &stopped, &packs);
    if (status != KILN_OK) return status;
  }
  if (!known) return fail(KILN_E_NOT_FOUND, "no registered family has a target %s", target);
  if (!packs) return fail(KILN_E_PACK_NOT_FOUND, "no pack of any target was found");
  return KILN_OK;
}
