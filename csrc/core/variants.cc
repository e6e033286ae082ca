// What there is: the variants in the packs, and those that a call would run.
#include "dispatch.h"
#include "sha256.h"

namespace kiln {
namespace {

// The room for the longest text of a functional of the kernel.
size_t functional_bytes(const kiln_operation_table& op, const kiln_kernel_table& kernel) {
  size_t bytes = 1;
  for (int32_t i = 0; i < kernel.choice_count; ++i) {
    const kiln_choice_table& choice = op.choices[kernel.choices[i]];
    size_t longest = 0;
    for (int32_t k = 0; k < choice.count; ++k) {
      size_t length = strlen(choice.spellings[k]);
      if (length > longest) longest = length;
    }
    bytes += strlen(choice.name) + longest + 2;
  }
  return bytes;
}

// A functional as text: "dtype=bf16 head_dim=64".
void describe_functional(const kiln_operation_table& op, const kiln_kernel_table& kernel, int32_t functional,
                         Text& text) {
  int32_t index[KILN_MAX_VALUES];
  for (int32_t i = kernel.choice_count - 1; i >= 0; --i) {
    int32_t count = op.choices[kernel.choices[i]].count;
    index[i] = functional % count;
    functional /= count;
  }
  for (int32_t i = 0; i < kernel.choice_count; ++i) {
    const kiln_choice_table& choice = op.choices[kernel.choices[i]];
    text.add("%s%s=%s", i ? " " : "", choice.name, choice.spellings[index[i]]);
  }
}

// A kernel's variants in a pack, to be shown.
struct Shown {
  const kiln_operation_state& operation;
  const kiln_kernel_table& kernel;
  const BoundKernel& bound;
  const Pack& pack;
  bool ptx;
  const char* passed_over;
};

// Shows one variant to the caller; non-zero to stop. `functional` is its text.
int32_t show(const Shown& shown, int32_t number, const char* functional, kiln_variant_fn visit, void* user) {
  const kiln_kernel_target_table& target = *shown.bound.target;
  const SlotRow& slot = shown.pack.slots[shown.bound.first_slot + static_cast<uint32_t>(number)];
  char key[65];
  to_hex(slot.key, key);
  FullName name(shown.kernel);
  kiln_variant variant = {};
  variant.size = sizeof variant;
  variant.key = key;
  variant.target = target.target;
  variant.operation = shown.operation.name;
  variant.kernel = name.c_str();
  variant.functional = functional;
  variant.configuration =
      target.configuration_names[number / shown.kernel.specialization_count % target.configuration_count];
  variant.specialization = shown.kernel.specializations[number % shown.kernel.specialization_count].name;
  variant.passed_over = shown.passed_over;
  variant.has_ptx = slot.ptx != kNone;
  uint32_t row = shown.ptx ? slot.ptx : slot.image;
  if (row == kNone) {
    variant.unavailable = shown.pack.string(slot.reason);
    if (!variant.unavailable) variant.unavailable = "not in this release";
  } else {
    const ImageRow& image = shown.pack.images[row];
    variant.registers = static_cast<int32_t>(image.registers);
    variant.shared_bytes = static_cast<int32_t>(image.shared);
    variant.spill_bytes = static_cast<int32_t>(image.spills);
    variant.threads = static_cast<int32_t>(image.threads);
  }
  return visit(&variant, user);
}

// Shows `count` variants from `first` on.
kiln_status show_some(const Shown& shown, int32_t first, int32_t count, kiln_variant_fn visit, void* user,
                      bool* stopped) {
  const kiln_operation_table& op = *shown.operation.table;
  size_t bytes = functional_bytes(op, shown.kernel);
  char* buffer = allocate<char>(bytes);
  if (!buffer) return out_of_memory();
  Text text(buffer, bytes);
  int32_t per_functional = shown.bound.target->configuration_count * shown.kernel.specialization_count;
  for (int32_t number = first; number < first + count && !*stopped; ++number) {
    text.clear();
    describe_functional(op, shown.kernel, number / per_functional, text);
    *stopped = show(shown, number, text.c_str(), visit, user) != 0;
  }
  free(buffer);
  return KILN_OK;
}

// The variants of an operation in one pack.
kiln_status show_operation(const kiln_operation_state& operation, const Pack& pack, const BoundKernel* kernels,
                           kiln_variant_fn visit, void* user, bool* stopped) {
  for (int32_t k = 0; k < operation.table->kernel_count && !*stopped; ++k) {
    const kiln_kernel_table& kernel = operation.table->kernels[k];
    const BoundKernel& bound = kernels[operation.first_kernel + k];
    if (!bound.target) continue;
    int32_t count =
        functional_count(*operation.table, kernel) * bound.target->configuration_count * kernel.specialization_count;
    kiln_status status = show_some({operation, kernel, bound, pack, false, nullptr}, 0, count, visit, user, stopped);
    if (status != KILN_OK) return status;
  }
  return KILN_OK;
}

// The packs that cannot be used, of which the caller is told once all others were shown.
struct Unusable {
  kiln_status status = KILN_OK;  // the first one's
  FixedText<kSentenceBytes> sentences;
};

// Shows one pack's variants.
kiln_status show_pack(Family& family, int32_t number, const char* operation, kiln_variant_fn visit, void* user,
                      bool* stopped) {
  Pack* pack;
  kiln_status status = get_pack(family, number, &pack);
  if (status != KILN_OK) return status;
  BoundKernel* kernels = allocate<BoundKernel>(static_cast<size_t>(family.kernel_count));
  if (!kernels) return out_of_memory();
  status = bind_kernels(family, number, *pack, kernels);
  for (int32_t i = 0; i < family.table->operation_count && status == KILN_OK && !*stopped; ++i)
    if (!operation || strcmp(family.operations[i].name, operation) == 0)
      status = show_operation(family.operations[i], *pack, kernels, visit, user, stopped);
  free(kernels);
  return status;
}

kiln_status show_family(Family& family, const char* operation, const char* target, kiln_variant_fn visit, void* user,
                        bool* stopped, int32_t* packs, Unusable* unusable) {
  for (int32_t number = 0; number < family.table->pack_count && !*stopped; ++number) {
    if (target && strcmp(family.table->packs[number].target, target) != 0) continue;
    kiln_status status = show_pack(family, number, operation, visit, user, stopped);
    if (status == KILN_OK) {
      ++*packs;
      continue;
    }
    if (target || status == KILN_E_OUT_OF_MEMORY) return status;
    if (status == KILN_E_PACK_NOT_FOUND) continue;
    // One that is damaged hides none that is whole.
    if (unusable->status == KILN_OK) unusable->status = status;
    unusable->sentences.add("%s%s", unusable->sentences.length() ? "; " : "", kiln_error());
  }
  return KILN_OK;
}

bool has_target(const Family& family, const char* target) {
  for (int32_t i = 0; i < family.table->pack_count; ++i)
    if (strcmp(family.table->packs[i].target, target) == 0) return true;
  return false;
}

// "gfx942, sm_90": the targets of all families, or of one alone, each once.
void list_targets(Family* first, const Family* alone, Text& text) {
  for (Family* family = first; family; family = family->next) {
    if (alone && alone != family) continue;
    for (int32_t i = 0; i < family->table->pack_count; ++i) {
      const char* target = family->table->packs[i].target;
      bool listed = false;
      if (!alone)
        for (Family* before = first; before != family && !listed; before = before->next)
          listed = has_target(*before, target);
      if (!listed) text.add("%s%s", text.length() ? ", " : "", target);
    }
  }
}

}  // namespace

kiln_status explain(const Plan& plan, kiln_variant_fn visit, void* user) {
  bool stopped = false;
  kiln_status status = KILN_OK;
  for (int32_t i = 0; i < plan.kernel_count && status == KILN_OK && !stopped; ++i) {
    const KernelPlan& kernel = plan.kernels[i];
    FixedText<kSentenceBytes> passed_over;
    for (int32_t k = 0; k < kernel.passed_count; ++k) {
      if (k) passed_over.add("\n");
      word(plan, plan.passed[kernel.first_passed + k], passed_over);
    }
    status = show_some({*plan.operation, *kernel.table, *kernel.bound, *plan.binding->pack, plan.binding->ptx,
                        kernel.passed_count ? passed_over.c_str() : nullptr},
                       static_cast<int32_t>(kernel.slot - kernel.bound->first_slot), 1, visit, user, &stopped);
  }
  return status;
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
  if (!first) return fail(KILN_E_NOT_FOUND, "there are no variants: %s", kNoFamily);
  bool stopped = false, known = !target;
  int32_t packs = 0;
  Unusable unusable;
  for (Family* family = first; family && !stopped; family = family->next) {
    if (found && found->family != family) continue;
    known |= target && has_target(*family, target);
    status = show_family(*family, operation, target, visit, user, &stopped, &packs, &unusable);
    if (status != KILN_OK) return status;
  }
  if (!known) {
    FixedText<512> there;
    list_targets(first, found ? found->family : nullptr, there);
    return fail(KILN_E_NOT_FOUND, "no registered family has a target %s; there are %s", target,
                there.length() ? there.c_str() : "none");
  }
  if (unusable.status != KILN_OK) return fail(unusable.status, "%s", unusable.sentences.c_str());
  if (!packs) return fail(KILN_E_PACK_NOT_FOUND, "no pack of any target was found");
  return KILN_OK;
}
