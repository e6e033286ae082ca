#include "dispatch.h"

#include <float.h>

#include "sha256.h"

namespace kiln {
namespace {

kiln_status fault(const Plan& plan, const char* what, const char* name) {
  return fail(KILN_E_RANGE, "%s: %s%s%s of this call overflows or divides by zero", plan.operation->name, what,
              name[0] ? " " : "", name);
}

// Definitions, then requirements.
kiln_status define(Plan& plan) {
  const kiln_operation_table& op = *plan.operation->table;
  int32_t broken = 0;
  for (int32_t i = 0; i < op.definition_count; ++i) {
    plan.v[op.definitions[i].index] = op.definitions[i].value(plan.v, &broken);
    if (broken) return fault(plan, "the value", op.definitions[i].name);
  }
  for (int32_t i = 0; i < op.requirement_count; ++i) {
    bool holds = op.requirements[i].holds(plan.v, &broken) != 0;
    if (broken) return fault(plan, "what decides that", op.requirements[i].otherwise);
    if (!holds) return fail(KILN_E_ARGUMENT, "%s: %s", plan.operation->name, op.requirements[i].otherwise);
  }
  return KILN_OK;
}

// The index of the value that a call means, or -1.
int32_t match(const kiln_choice_table& choice, int64_t asked) {
  for (int32_t i = 0; i < choice.count; ++i)
    if (choice.match == KILN_MATCH_EXACT ? choice.values[i] == asked : choice.values[i] >= asked) return i;
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
  if (missing) return unsupported(plan, nullptr, nullptr);
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
      return fail(KILN_E_RANGE, "%s: the workspace %s of this call has no sensible size", plan.operation->name,
                  op.workspaces[i].name);
    plan.v[op.workspaces[i].index] = static_cast<int64_t>(at + used);
    used += (static_cast<uint64_t>(bytes) + kAlignment - 1) & ~(kAlignment - 1);
  }
  plan.workspace_bytes = used;
  return KILN_OK;
}

// The configuration that the look-up gives, or KILN_NO_CONFIGURATION.
kiln_status look_up(Plan& plan, const kiln_kernel_table& kernel, KernelPlan& out) {
  int64_t bin = 0;
  int64_t bins = 1;
  for (int32_t i = 0; i < kernel.bin_count; ++i) {
    const kiln_bin_table& table = kernel.bins[i];
    int32_t broken = 0;
    int64_t value = table.value(plan.v, &broken);
    if (broken) return fault(plan, "the bin", table.name);
    int32_t edge = 0;
    while (edge < table.edge_count && table.edges[edge] <= value) ++edge;
    bin = bin * (table.edge_count + 1) + edge;
    bins *= table.edge_count + 1;
  }
  out.configuration = out.bound->target->lookup[out.functional * bins + bin];
  return KILN_OK;
}

kiln_status out_of_range(const Plan& plan, const kiln_kernel_table& kernel, const kiln_parameter_table& parameter,
                         int64_t value) {
  static const char* const kTypes[] = {"pointer", "i1",  "i8",  "i16", "i32",  "i64",
                                       "u8",      "u16", "u32", "u64", "fp32", "fp64"};
  if (parameter.type == KILN_PARAMETER_FP32) {
    double real;
    memcpy(&real, &value, sizeof real);
    return fail(KILN_E_RANGE, "%s: the parameter %s of kernel %s is %g, which does not fit fp32", plan.operation->name,
                parameter.name, kernel.name, real);
  }
  return fail(KILN_E_RANGE, "%s: the parameter %s of kernel %s is %lld, which does not fit %s", plan.operation->name,
              parameter.name, kernel.name, static_cast<long long>(value), kTypes[parameter.type]);
}

// Turns a value into the bytes that the kernel takes; false if it does not fit.
bool encode(int32_t type, int64_t value, uint64_t* out) {
  *out = static_cast<uint64_t>(value);  // little-endian: a narrower parameter is the first bytes
  switch (type) {
    case KILN_PARAMETER_I1:
      return value == 0 || value == 1;
    case KILN_PARAMETER_I8:
      return value == static_cast<int8_t>(value);
    case KILN_PARAMETER_I16:
      return value == static_cast<int16_t>(value);
    case KILN_PARAMETER_I32:
      return value == static_cast<int32_t>(value);
    case KILN_PARAMETER_U8:
      return value == static_cast<uint8_t>(value);
    case KILN_PARAMETER_U16:
      return value == static_cast<uint16_t>(value);
    case KILN_PARAMETER_U32:
      return value == static_cast<uint32_t>(value);
    case KILN_PARAMETER_U64:
      return value >= 0;
    case KILN_PARAMETER_FP32: {
      double real;
      memcpy(&real, &value, sizeof real);
      float narrow = static_cast<float>(real);
      *out = 0;
      memcpy(out, &narrow, sizeof narrow);
      bool finite = real >= -DBL_MAX && real <= DBL_MAX;
      return !finite || (narrow >= -FLT_MAX && narrow <= FLT_MAX);
    }
    default:
      return true;
  }
}

// What specializations ask of parameters; bit i: parameter i.
struct Properties {
  uint64_t divisible_by_16 = 0, divisible_by_8 = 0, equal_to_one = 0;
};

// Evaluates all parameters into `values`.
kiln_status evaluate_parameters(Plan& plan, const kiln_kernel_table& kernel, int64_t* values, Properties* of) {
  for (int32_t i = 0; i < kernel.parameter_count; ++i) {
    int32_t broken = 0;
    values[i] = kernel.parameters[i].value(plan.v, &broken);
    if (broken) return fault(plan, "the parameter", kernel.parameters[i].name);
    of->divisible_by_16 |= static_cast<uint64_t>((values[i] & 15) == 0) << i;
    of->divisible_by_8 |= static_cast<uint64_t>((values[i] & 7) == 0) << i;
    of->equal_to_one |= static_cast<uint64_t>(values[i] == 1) << i;
  }
  return KILN_OK;
}

bool holds(const kiln_specialization_table& specialization, const Properties& of) {
  return !(specialization.divisible_by_16 & ~of.divisible_by_16) &&
         !(specialization.divisible_by_8 & ~of.divisible_by_8) && !(specialization.equal_to_one & ~of.equal_to_one);
}

// Lays the parameters out as the image takes them: those that are constants of it left out.
kiln_status place_parameters(Plan& plan, const kiln_kernel_table& kernel, const int64_t* values, KernelPlan& out) {
  uint64_t constant = kernel.specializations[out.specialization].equal_to_one;
  out.parameter_count = 0;
  for (int32_t i = 0; i < kernel.parameter_count; ++i) {
    const kiln_parameter_table& parameter = kernel.parameters[i];
    uint64_t encoded;
    if (!encode(parameter.type, values[i], &encoded)) return out_of_range(plan, kernel, parameter, values[i]);
    if (!(constant >> i & 1)) out.parameters[out.parameter_count++] = encoded;
  }
  return KILN_OK;
}

kiln_status evaluate_grid(Plan& plan, const kiln_kernel_table& kernel, KernelPlan& out) {
  out.empty = false;
  for (int i = 0; i < 3; ++i) {
    int32_t broken = 0;
    int64_t blocks = kernel.grid[i](plan.v, &broken);
    int64_t most = plan.device->max_grid[i];
    if (i == 0) {
      int64_t by_threads = plan.device->max_grid_threads / out.image->threads;
      most = (most < by_threads ? most : by_threads) / out.image->clusters;
    }
    if (broken || blocks < 0 || blocks > most)
      return fail(KILN_E_RANGE, "%s: grid dimension %d of kernel %s %s %lld; %s devices take 0 to %lld",
                  plan.operation->name, i, kernel.name, broken ? "overflows at" : "is", static_cast<long long>(blocks),
                  vendor_name(plan.device->vendor), static_cast<long long>(most));
    out.grid[i] = static_cast<uint32_t>(blocks);
    out.empty |= blocks == 0;
  }
  return KILN_OK;
}

kiln_status evaluate_zeros(Plan& plan, const kiln_kernel_table& kernel, KernelPlan& out) {
  out.zero_count = 0;
  for (int32_t i = 0; i < kernel.zero_count; ++i) {
    int32_t broken = 0;
    int64_t address = kernel.zeros[i].address(plan.v, &broken);
    int64_t bytes = kernel.zeros[i].bytes(plan.v, &broken);
    if (broken || bytes < 0 || (bytes > 0 && address == 0))
      return fail(KILN_E_RANGE, "%s: range %d that kernel %s wants zeroed has no sensible size or address",
                  plan.operation->name, i, kernel.name);
    if (bytes == 0) continue;
    out.zero_address[out.zero_count] = static_cast<uint64_t>(address);
    out.zero_bytes[out.zero_count++] = static_cast<uint64_t>(bytes);
  }
  return KILN_OK;
}

// The row of images that a slot leads to, or kNone.
uint32_t image_of(const Plan& plan, const SlotRow& slot) { return plan.binding->ptx ? slot.ptx : slot.image; }

// Why image_of() is kNone.
const char* reason_of(const Plan& plan, const SlotRow& slot) {
  if (const char* reason = plan.binding->pack->string(slot.reason)) return reason;
  return plan.binding->ptx ? "the pack has no PTX of it" : "the pack has no image of it";
}

// Why the look-up leads nowhere for a functional: what the first of its slots without an image says, or nullptr. Others
// may have one, for a configuration is only taken where every specialization is there.
const char* first_reason(const Plan& plan, const kiln_kernel_table& kernel, const KernelPlan& out) {
  const Pack& pack = *plan.binding->pack;
  int64_t variants = int64_t{out.bound->target->configuration_count} * kernel.specialization_count;
  const SlotRow* slots = pack.slots + out.bound->first_slot + out.functional * variants;
  for (int64_t i = 0; i < variants; ++i)
    if (image_of(plan, slots[i]) == kNone && slots[i].reason != kNone) return pack.string(slots[i].reason);
  return nullptr;
}

// The forced variant for this kernel and functional, if one of the call's keys is one: its configuration and
// specialization. Marks the key as used.
kiln_status apply_forced(Plan& plan, const kiln_kernel_table& kernel, const uint8_t (*keys)[32], uint64_t* used,
                         KernelPlan& out, bool* forced) {
  *forced = false;
  int32_t specializations = kernel.specialization_count;
  int32_t variants = out.bound->target->configuration_count * specializations;
  const SlotRow* slots =
      plan.binding->pack->slots + out.bound->first_slot + static_cast<int64_t>(out.functional) * variants;
  for (int32_t k = 0; k < plan.call->force_count; ++k) {
    for (int32_t i = 0; i < variants; ++i) {
      if (memcmp(slots[i].key, keys[k], 32) != 0) continue;
      if (*forced)
        return fail(KILN_E_ARGUMENT, "%s: two variants are forced for kernel %s; give at most one",
                    plan.operation->name, kernel.name);
      if (image_of(plan, slots[i]) == kNone)
        return fail(KILN_E_UNSUPPORTED, "%s: the variant %s forced for kernel %s is not there: %s",
                    plan.operation->name, plan.call->force_keys[k], kernel.name, reason_of(plan, slots[i]));
      *forced = true;
      *used |= 1ull << k;
      out.configuration = i / specializations;
      out.specialization = i % specializations;
      break;
    }
  }
  return KILN_OK;
}

kiln_status choose_image(Plan& plan, const kiln_kernel_table& kernel, KernelPlan& out) {
  const Pack& pack = *plan.binding->pack;
  const BoundKernel& bound = *out.bound;
  out.slot = bound.first_slot +
             static_cast<uint32_t>((out.functional * bound.target->configuration_count + out.configuration) *
                                       kernel.specialization_count +
                                   out.specialization);
  const SlotRow& slot = pack.slots[out.slot];
  uint32_t image = image_of(plan, slot);
  if (image == kNone) return unsupported(plan, &kernel, reason_of(plan, slot));
  out.image = &pack.images[image];
  uint32_t visible = static_cast<uint32_t>(out.parameter_count);
  if (out.image->descriptor_count() != static_cast<uint32_t>(kernel.descriptor_count))
    return fail(KILN_E_PACK_CORRUPT, "%s: %s takes %u descriptors, the tables of kernel %s give %d", pack.path,
                pack.string(out.image->symbol), out.image->descriptor_count(), kernel.name, kernel.descriptor_count);
  if (out.image->parameters < visible || out.image->parameters > visible + kHiddenParameters)
    return fail(KILN_E_PACK_CORRUPT, "%s: %s takes %u parameters, the tables of kernel %s give %u and up to two hidden",
                pack.path, pack.string(out.image->symbol), out.image->parameters, kernel.name, visible);
  if (out.image->scratch && out.image->parameters == visible)
    return fail(KILN_E_PACK_CORRUPT, "%s: %s wants scratch but takes no pointer to it", pack.path,
                pack.string(out.image->symbol));
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
                  kernel.table->name);
  if (bytes > *scratch_bytes) *scratch_bytes = bytes;
  if (image.scratch_align > *scratch_align) *scratch_align = image.scratch_align;
  return KILN_OK;
}

kiln_status plan_kernel(Plan& plan, const kiln_kernel_table& kernel, const uint8_t (*keys)[32], uint64_t* used) {
  KernelPlan& out = plan.kernels[plan.kernel_count];
  const kiln_operation_table& op = *plan.operation->table;
  out.table = &kernel;
  out.bound = &plan.binding->kernels[plan.operation->first_kernel + (&kernel - op.kernels)];
  if (!out.bound->target) return unsupported(plan, &kernel, "its target has no such kernel");
  out.functional = 0;
  for (int32_t i = 0; i < kernel.choice_count; ++i)
    out.functional = out.functional * op.choices[kernel.choices[i]].count + plan.chosen[kernel.choices[i]];
  bool forced = false;
  kiln_status status = KILN_OK;
  if (keys) status = apply_forced(plan, kernel, keys, used, out, &forced);
  if (status == KILN_OK && !forced) status = look_up(plan, kernel, out);
  if (status != KILN_OK) return status;
  if (out.configuration == KILN_NO_CONFIGURATION) return unsupported(plan, &kernel, first_reason(plan, kernel, out));
  if (kernel.configuration_value_count)
    memcpy(
        plan.v + kernel.configuration_index,
        out.bound->target->configurations + static_cast<int64_t>(out.configuration) * kernel.configuration_value_count,
        static_cast<size_t>(kernel.configuration_value_count) * sizeof plan.v[0]);
  int64_t values[KILN_MAX_PARAMETERS];
  Properties properties;
  if ((status = evaluate_parameters(plan, kernel, values, &properties)) != KILN_OK) return status;
  if (forced && !holds(kernel.specializations[out.specialization], properties))
    return fail(KILN_E_UNSUPPORTED,
                "%s: the variant forced for kernel %s is specialised (%s) for arguments that this "
                "call does not have",
                plan.operation->name, kernel.name, kernel.specializations[out.specialization].name);
  if (!forced) {
    out.specialization = 0;
    while (!holds(kernel.specializations[out.specialization], properties)) ++out.specialization;
  }
  if ((status = place_parameters(plan, kernel, values, out)) != KILN_OK) return status;
  if ((status = choose_image(plan, kernel, out)) != KILN_OK) return status;
  if ((status = evaluate_grid(plan, kernel, out)) != KILN_OK) return status;
  if ((status = evaluate_zeros(plan, kernel, out)) != KILN_OK) return status;
  ++plan.kernel_count;
  return KILN_OK;
}

constexpr int32_t kMostForced = KILN_MAX_KERNELS;

// What slots without a variant have in place of a key.
constexpr uint8_t kNoKey[32] = {};

kiln_status read_keys(const Plan& plan, uint8_t (*keys)[32]) {
  const kiln_call& call = *plan.call;
  if (call.force_count < 0 || call.force_count > kMostForced)
    return fail(KILN_E_ARGUMENT, "%s: force_count is %d; it must be 0 to %d", plan.operation->name, call.force_count,
                kMostForced);
  if (call.force_count && !call.force_keys)
    return fail(KILN_E_ARGUMENT, "%s: force_keys is NULL", plan.operation->name);
  for (int32_t i = 0; i < call.force_count; ++i) {
    const char* key = call.force_keys[i];
    if (!key || !from_hex(key, strnlen(key, 65), keys[i]))
      return fail(KILN_E_ARGUMENT, "%s: force_keys[%d] is no key of 64 hexadecimal digits", plan.operation->name, i);
    if (!memcmp(keys[i], kNoKey, sizeof kNoKey))
      return fail(KILN_E_ARGUMENT, "%s: force_keys[%d] is 0, which is no variant's key", plan.operation->name, i);
  }
  return KILN_OK;
}

kiln_status check_used(const Plan& plan, uint64_t used) {
  for (int32_t i = 0; i < plan.call->force_count; ++i)
    if (!(used >> i & 1))
      return fail(KILN_E_UNSUPPORTED, "%s: the forced key %s is no variant of this call's functional on %s",
                  plan.operation->name, plan.call->force_keys[i],
                  plan.binding->family->table->packs[plan.binding->pack_number].target);
  return KILN_OK;
}

}  // namespace

kiln_status dispatch(Plan& plan, uint64_t workspace) {
  const kiln_operation_table& op = *plan.operation->table;
  plan.kernel_count = 0;
  plan.workspace_bytes = 0;
  plan.scratch_address = 0;
  plan.binding = nullptr;
  plan.v[op.multiprocessors_index] = plan.device->multiprocessors;
  uint8_t keys[kMostForced][32];
  kiln_status status;
  if (plan.call->force_count && (status = read_keys(plan, keys)) != KILN_OK) return status;
  if ((status = define(plan)) != KILN_OK) return status;
  if ((status = choose(plan)) != KILN_OK) return status;
  int32_t broken = 0;
  if (op.skip_when) {
    bool skip = op.skip_when(plan.v, &broken) != 0;
    if (broken) return fault(plan, "skip_when", "");
    if (skip) return KILN_OK;
  }
  status = bind(*plan.operation->family, *plan.device, plan.call->force_target, &plan.binding);
  if (status != KILN_OK) return status;
  if ((status = place_workspaces(plan, workspace)) != KILN_OK) return status;
  uint64_t used = 0, scratch = 0, align = kAlignment;
  for (int32_t i = 0; i < op.kernel_count; ++i) {
    const kiln_kernel_table& kernel = op.kernels[i];
    if (kernel.when) {
      bool wanted = kernel.when(plan.v, &broken) != 0;
      if (broken) return fault(plan, "the condition of kernel", kernel.name);
      if (!wanted) continue;
    }
    status = plan_kernel(plan, kernel, plan.call->force_count ? keys : nullptr, &used);
    if (status != KILN_OK) return status;
    if ((status = add_scratch(plan, plan.kernels[plan.kernel_count - 1], &scratch, &align)) != KILN_OK) return status;
  }
  if (plan.call->force_count && (status = check_used(plan, used)) != KILN_OK) return status;
  if (scratch) {
    // The workspace is aligned to kAlignment only; what a stricter image needs besides is asked for.
    uint64_t begin = workspace + plan.workspace_bytes;
    plan.scratch_address = (begin + align - 1) & ~(align - 1);
    plan.workspace_bytes += scratch + (align - kAlignment);
  }
  return KILN_OK;
}

}  // namespace kiln
