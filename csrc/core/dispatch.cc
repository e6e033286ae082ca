#include "dispatch.h"

#include "sha256.h"

namespace kiln {
namespace {

// Definitions, then requirements.
kiln_status define(Plan& plan) {
  const kiln_operation_table& op = *plan.operation->table;
  int32_t broken = 0;
  if (op.definition_count) {
    const int32_t defined = op.define(plan.v, &broken);
    if (broken) return fault(plan, "the value", op.definitions[defined]);
  }
  if (op.requirement_count) {
    const int32_t fulfilled = op.check(plan.v, &broken);
    if (broken) return fault(plan, "what decides that", op.requirements[fulfilled]);
    if (fulfilled < op.requirement_count)
      return fail(KILN_E_ARGUMENT, "%s: %s", plan.operation->name, op.requirements[fulfilled]);
  }
  return KILN_OK;
}

// The index of the value that a call means, or -1.
int32_t match(const kiln_choice_table& choice, int64_t asked) {
  for (int32_t i = 0; i < choice.count; ++i)
    if (choice.match == KILN_MATCH_NEXT_LARGER ? choice.values[i] >= asked : choice.values[i] == asked) return i;
  return -1;
}

kiln_status choose(Plan& plan) {
  const kiln_operation_table& op = *plan.operation->table;
  int32_t broken = 0;
  bool missing = false;
  for (int32_t i = 0; i < op.choice_count; ++i) {
    const kiln_choice_table& choice = op.choices[i];
    int64_t asked = choice.value(plan.v, &broken);
    if (broken) return fault(plan, "the choice", choice.name);
    int32_t place = match(choice, asked);
    missing |= place < 0;
    plan.asked[i] = place < 0 ? asked : choice.values[place];
    plan.chosen[i] = place < 0 ? -1 : choice.served[place];
    plan.v[choice.index] = place < 0 ? asked : choice.values[plan.chosen[i]];
  }
  if (missing) return no_such_choice(plan);
  for (int32_t i = 0; i < op.argument_count; ++i) {
    const kiln_argument_table& argument = op.arguments[i];
    if (argument.kind != KILN_ARG_TENSOR || argument.dtype >= 0) continue;
    if (argument.optional && plan.call->arguments[i].kind == KILN_ARG_ABSENT) continue;
    const kiln_choice_table& choice = op.choices[-1 - argument.dtype];
    if (plan.v[argument.index + 1] != plan.v[choice.index])
      return fail(KILN_E_ARGUMENT, "%s: %s is %s; it must be %s, as this call's %s", plan.operation->name,
                  argument.name, dtype_name(plan.v[argument.index + 1]),
                  choice.spellings[plan.chosen[-1 - argument.dtype]], choice.name);
  }
  return KILN_OK;
}

// Addresses of the operation's workspaces from `at` on; plan.workspace_bytes becomes what they take.
kiln_status place_workspaces(Plan& plan, uint64_t at) {
  const kiln_operation_table& op = *plan.operation->table;
  uint64_t used = 0;
  for (int32_t i = 0; i < op.workspace_count; ++i) {
    int32_t broken = 0;
    int64_t bytes = op.workspaces[i].bytes(plan.v, &broken);
    if (broken || bytes < 0 || bytes > INT64_MAX / KILN_MAX_VALUES)
      return fail(KILN_E_RANGE, "%s: the workspace %s of this call has an invalid size", plan.operation->name,
                  op.workspaces[i].name);
    plan.v[op.workspaces[i].index] = static_cast<int64_t>(at + used);
    used += (static_cast<uint64_t>(bytes) + kAlignment - 1) & ~(kAlignment - 1);
  }
  plan.workspace_bytes = used;
  return KILN_OK;
}

// Scratch is one region that the kernels, which run one after another, share.
kiln_status add_scratch(Plan& plan, const KernelPlan& kernel, uint64_t* scratch_bytes, uint64_t* scratch_align) {
  const ImageRow& image = *kernel.image;
  if (!image.scratch || kernel.empty) return KILN_OK;
  uint64_t bytes = image.scratch;
  const uint64_t factors[] = {image.clusters, kernel.grid[0], kernel.grid[1], kernel.grid[2]};
  for (uint64_t factor : factors)
    if (__builtin_mul_overflow(bytes, factor, &bytes) || bytes > INT64_MAX / 2)
      return fail(KILN_E_RANGE, "%s: the scratch of kernel %s for this call overflows", plan.operation->name,
                  FullName(*kernel.table).c_str());
  if (bytes > *scratch_bytes) *scratch_bytes = bytes;
  if (image.scratch_align > *scratch_align) *scratch_align = image.scratch_align;
  return KILN_OK;
}

// What slots without a variant have in place of a key.
constexpr uint8_t kNoKey[32] = {};

kiln_status read_keys(const Plan& plan, Keys& keys) {
  keys.used = 0;
  const kiln_call& call = *plan.call;
  if (call.force_count < 0 || call.force_count > KILN_MAX_KERNELS)
    return fail(KILN_E_ARGUMENT, "%s: force_count is %d; it must be 0 to %d", plan.operation->name, call.force_count,
                KILN_MAX_KERNELS);
  if (call.force_count && !call.force_keys)
    return fail(KILN_E_ARGUMENT, "%s: force_keys is NULL", plan.operation->name);
  for (int32_t i = 0; i < call.force_count; ++i) {
    const char* key = call.force_keys[i];
    if (!key || !from_hex(key, strnlen(key, 65), keys.keys[i]))
      return fail(KILN_E_ARGUMENT, "%s: force_keys[%d] is not a key of 64 hexadecimal digits", plan.operation->name, i);
    if (!memcmp(keys.keys[i], kNoKey, sizeof kNoKey))
      return fail(KILN_E_ARGUMENT, "%s: force_keys[%d] is 0, which is not a variant's key", plan.operation->name, i);
  }
  return KILN_OK;
}

bool all_used(const Plan& plan, const Keys& keys) { return keys.used == (uint64_t{1} << plan.call->force_count) - 1; }

kiln_status check_used(const Plan& plan, const Keys& keys) {
  for (int32_t i = 0; i < plan.call->force_count; ++i)
    if (!(keys.used >> i & 1))
      return fail(KILN_E_UNSUPPORTED, "%s: the forced key %s is not a variant of this call's functional on %s",
                  plan.operation->name, plan.call->force_keys[i],
                  plan.binding->family->table->packs[plan.binding->pack_number].target);
  return KILN_OK;
}

// The choice that is of the first value that fits, and the place of the next value to try; nullptr if there is none.
const kiln_choice_table* find_next(const Plan& plan, int32_t* number, int32_t* place) {
  const kiln_operation_table& op = *plan.operation->table;
  for (*number = 0; *number < op.choice_count; ++*number) {
    const kiln_choice_table& choice = op.choices[*number];
    if (choice.match != KILN_MATCH_FIRST_THAT_FITS) continue;
    const int32_t chosen = plan.chosen[*number];
    for (int32_t later = chosen + 1; later < choice.count; ++later)
      if ((*place = choice.served[later]) > chosen) return &choice;
  }
  return nullptr;
}

// Plans the kernels of the values that are chosen. kPassedOver: of one no implementation fits, or a forced key is none
// of theirs, and another value is there to be tried.
kiln_status plan_kernels(Plan& plan, uint64_t workspace, Keys* keys) {
  const kiln_operation_table& op = *plan.operation->table;
  int32_t number, place;
  const bool may_fail = find_next(plan, &number, &place) != nullptr;
  const int32_t before = plan.passed_count;
  plan.kernel_count = plan.descriptor_count = 0;
  if (keys) keys->used = 0;
  int32_t broken = 0;
  kiln_status status = place_workspaces(plan, workspace);
  if (status != KILN_OK) return status;
  uint64_t scratch = 0, align = kAlignment;
  for (int32_t i = 0, count; i < op.kernel_count; i += count) {
    const kiln_kernel_table& kernel = op.kernels[i];
    count = implementation_count(op, i);
    if (kernel.when) {
      bool wanted = kernel.when(plan.v, &broken) != 0;
      if (broken) return fault(plan, "the condition of kernel", kernel.name);
      if (!wanted) continue;
    }
    const int32_t passed = plan.passed_count;
    status = plan_kernel(plan, i, count, keys, may_fail);
    if (status == kPassedOver) {
      // Of what was passed over on the way only what decided is told, as far as there is room for it.
      plan.passed_count = before;
      for (int32_t k = passed; k < passed + count && before + count <= KILN_MAX_KERNELS; ++k) {
        plan.passed[plan.passed_count] = plan.passed[k];
        plan.passed[plan.passed_count++].instead = true;
      }
    }
    if (status != KILN_OK) return status;
    if ((status = add_scratch(plan, plan.kernels[plan.kernel_count - 1], &scratch, &align)) != KILN_OK) return status;
  }
  if (keys && may_fail && !all_used(plan, *keys)) {
    plan.passed_count = before;
    return kPassedOver;
  }
  if (keys && (status = check_used(plan, *keys)) != KILN_OK) return status;
  if (plan.kernel_count) {
    plan.kernels[0].first_passed -= before;
    plan.kernels[0].passed_count += before;
  }
  if (scratch) {
    // The workspace is aligned to kAlignment only; what a stricter image needs besides is asked for.
    uint64_t begin = workspace + plan.workspace_bytes;
    plan.scratch_address = (begin + align - 1) & ~(align - 1);
    plan.workspace_bytes += scratch + (align - kAlignment);
  }
  return KILN_OK;
}

}  // namespace

kiln_status dispatch(Plan& plan, uint64_t workspace) {
  const kiln_operation_table& op = *plan.operation->table;
  plan.kernel_count = plan.passed_count = plan.descriptor_count = 0;
  plan.workspace_bytes = 0;
  plan.scratch_address = 0;
  plan.binding = nullptr;
  plan.v[op.multiprocessors_index] = plan.device->multiprocessors;
  Keys keys;
  kiln_status status;
  if (plan.call->force_count && (status = read_keys(plan, keys)) != KILN_OK) return status;
  if ((status = define(plan)) != KILN_OK) return status;
  if ((status = choose(plan)) != KILN_OK) return status;
  for (;;) {
    int32_t broken = 0;
    if (op.skip_when) {
      bool skip = op.skip_when(plan.v, &broken) != 0;
      if (broken) return fault(plan, "skip_when", "");
      if (skip) return KILN_OK;
    }
    if (!plan.binding) {
      status = bind(*plan.operation->family, *plan.device, plan.call->force_target, &plan.binding);
      if (status != KILN_OK) return status;
    }
    status = plan_kernels(plan, workspace, plan.call->force_count ? &keys : nullptr);
    if (status != kPassedOver) return status;
    int32_t number, place;
    const kiln_choice_table* choice = find_next(plan, &number, &place);
    plan.chosen[number] = place;
    plan.v[choice->index] = choice->values[place];
  }
}

}  // namespace kiln
