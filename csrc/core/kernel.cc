// From a call's values to what is launched of one kernel: the first of its implementations that fits, an image, a grid,
// parameters.
#include <float.h>

#include "dispatch.h"

namespace kiln {
namespace {

kiln_status pass_over(PassedOver& why, Lack lack, int64_t value = 0) {
  why.lack = lack;
  why.value = value;
  return kPassedOver;
}

// The configuration that the look-up gives, or KILN_NO_CONFIGURATION.
kiln_status look_up(const Plan& plan, KernelPlan& out) {
  const kiln_kernel_table& kernel = *out.table;
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

// What a parameter's type can hold, by KILN_PARAMETER_*. Floating numbers come as the bits of a double.
constexpr struct {
  const char* name;
  int64_t least, most;
} kTypes[] = {{"pointer", INT64_MIN, INT64_MAX},
              {"i1", 0, 1},
              {"i8", INT8_MIN, INT8_MAX},
              {"i16", INT16_MIN, INT16_MAX},
              {"i32", INT32_MIN, INT32_MAX},
              {"i64", INT64_MIN, INT64_MAX},
              {"u8", 0, UINT8_MAX},
              {"u16", 0, UINT16_MAX},
              {"u32", 0, UINT32_MAX},
              {"u64", 0, INT64_MAX},
              {"fp32", INT64_MIN, INT64_MAX},
              {"fp64", INT64_MIN, INT64_MAX},
              {"descriptor", INT64_MIN, INT64_MAX}};

kiln_status out_of_range(const Plan& plan, const kiln_kernel_table& kernel, const kiln_parameter_table& parameter,
                         int64_t value) {
  if (parameter.type == KILN_PARAMETER_FP32) {
    double real;
    memcpy(&real, &value, sizeof real);
    return fail(KILN_E_RANGE, "%s: the parameter %s of kernel %s is %g, which does not fit fp32", plan.operation->name,
                parameter.name, FullName(kernel).c_str(), real);
  }
  return fail(KILN_E_RANGE, "%s: the parameter %s of kernel %s is %lld, which does not fit %s", plan.operation->name,
              parameter.name, FullName(kernel).c_str(), static_cast<long long>(value), kTypes[parameter.type].name);
}

// The bits of a double become those of a float; false if it does not fit.
bool narrow(int64_t value, uint64_t* out) {
  double real;
  memcpy(&real, &value, sizeof real);
  const float narrowed = static_cast<float>(real);
  *out = 0;
  memcpy(out, &narrowed, sizeof narrowed);
  const bool finite = real >= -DBL_MAX && real <= DBL_MAX;
  return !finite || (narrowed >= -FLT_MAX && narrowed <= FLT_MAX);
}

// Turns a value into the bytes that the kernel takes; false if it does not fit.
bool encode(int32_t type, int64_t value, uint64_t* out) {
  if (type == KILN_PARAMETER_FP32) return narrow(value, out);
  *out = static_cast<uint64_t>(value);  // little-endian: a narrower parameter is the first bytes
  return value >= kTypes[type].least && value <= kTypes[type].most;
}

// Evaluates all parameters into `values`.
kiln_status evaluate_parameters(const Plan& plan, const kiln_kernel_table& kernel, int64_t* values) {
  if (!kernel.parameter_count) return KILN_OK;
  int32_t broken = 0;
  const int32_t evaluated = kernel.evaluate(plan.v, values, &broken);
  return broken ? fault(plan, "the parameter", kernel.parameters[evaluated].name) : KILN_OK;
}

// Whether each value in `which` (bit i: values[i]) is a multiple of `factor`, a power of two.
bool all_divisible(const int64_t* values, uint64_t which, int64_t factor) {
  int64_t ones = 0;
  for (; which; which &= which - 1) ones |= values[__builtin_ctzll(which)];
  return (ones & (factor - 1)) == 0;
}

bool all_one(const int64_t* values, uint64_t which) {
  for (; which; which &= which - 1)
    if (values[__builtin_ctzll(which)] != 1) return false;
  return true;
}

bool holds(const kiln_specialization_table& specialization, const int64_t* values) {
  return all_divisible(values, specialization.divisible_by_16, 16) &&
         all_divisible(values, specialization.divisible_by_8, 8) && all_one(values, specialization.equal_to_one);
}

// Marks the descriptors among the visible parameters; `constant` are none of these. How many more parameters they are
// to the image.
uint32_t mark_descriptors(const kiln_kernel_table& kernel, uint64_t constant, KernelPlan& out) {
  uint32_t more = 0;
  int32_t visible = 0;
  for (int32_t i = 0; i < kernel.parameter_count; ++i) {
    if (constant >> i & 1) continue;
    if (kernel.parameters[i].type == KILN_PARAMETER_DESCRIPTOR) {
      out.described |= 1ull << visible;
      more += 2 * static_cast<uint32_t>(kernel.descriptors[kernel.parameters[i].descriptor].rank);
    }
    ++visible;
  }
  return more;
}

// Lays the parameters out as the image takes them: those that are constants of it left out.
kiln_status place_parameters(const Plan& plan, const int64_t* values, KernelPlan& out) {
  const kiln_kernel_table& kernel = *out.table;
  uint64_t constant = kernel.specializations[out.specialization].equal_to_one;
  out.parameter_count = 0;
  for (int32_t i = 0; i < kernel.parameter_count; ++i) {
    const kiln_parameter_table& parameter = kernel.parameters[i];
    uint64_t encoded;
    if (!encode(parameter.type, values[i], &encoded)) return out_of_range(plan, kernel, parameter, values[i]);
    if (!(constant >> i & 1)) out.parameters[out.parameter_count++] = encoded;
  }
  out.described = 0;
  uint32_t visible = static_cast<uint32_t>(out.parameter_count);
  if (kernel.descriptor_count) visible += mark_descriptors(kernel, constant, out);
  const Pack& pack = *plan.binding->pack;
  const ImageRow& image = *out.image;
  if (image.parameters < visible || image.parameters > visible + kHiddenParameters)
    return fail(KILN_E_PACK_CORRUPT, "%s: %s takes %u parameters, the tables of kernel %s give %u and up to two hidden",
                pack.path, pack.string(image.symbol), image.parameters, FullName(kernel).c_str(), visible);
  if (image.scratch && image.parameters == visible)
    return fail(KILN_E_PACK_CORRUPT, "%s: %s needs scratch but takes no pointer to it", pack.path,
                pack.string(image.symbol));
  out.hidden_count = static_cast<int32_t>(image.parameters - visible);
  return KILN_OK;
}

kiln_status evaluate_grid(const Plan& plan, KernelPlan& out) {
  out.empty = false;
  for (int i = 0; i < 3; ++i) {
    int32_t broken = 0;
    int64_t blocks = out.table->grid[i](plan.v, &broken);
    int64_t most = plan.device->max_grid[i];
    if (i == 0) {
      int64_t by_threads = plan.device->max_grid_threads / out.image->threads;
      most = (most < by_threads ? most : by_threads) / out.image->clusters;
    }
    if (broken || blocks < 0 || blocks > most)
      return fail(KILN_E_RANGE, "%s: grid dimension %d of kernel %s %s %lld; %s devices take 0 to %lld",
                  plan.operation->name, i, FullName(*out.table).c_str(), broken ? "overflows at" : "is",
                  static_cast<long long>(blocks), vendor_name(plan.device->vendor), static_cast<long long>(most));
    out.grid[i] = static_cast<uint32_t>(blocks);
    out.empty |= blocks == 0;
  }
  return KILN_OK;
}

kiln_status evaluate_zeros(const Plan& plan, KernelPlan& out) {
  const kiln_kernel_table& kernel = *out.table;
  out.zero_count = 0;
  for (int32_t i = 0; i < kernel.zero_count; ++i) {
    int32_t broken = 0;
    int64_t address = kernel.zeros[i].address(plan.v, &broken);
    int64_t bytes = kernel.zeros[i].bytes(plan.v, &broken);
    if (broken || bytes < 0 || (bytes > 0 && address == 0))
      return fail(KILN_E_RANGE, "%s: range %d that kernel %s needs zeroed has an invalid size or address",
                  plan.operation->name, i, FullName(kernel).c_str());
    if (bytes == 0) continue;
    out.zero_address[out.zero_count] = static_cast<uint64_t>(address);
    out.zero_bytes[out.zero_count++] = static_cast<uint64_t>(bytes);
  }
  return KILN_OK;
}

// Why the image of a slot is not there.
const char* reason_of(const Plan& plan, const SlotRow& slot) {
  if (const char* reason = plan.binding->pack->string(slot.reason)) return reason;
  return plan.binding->ptx ? "the pack has no PTX of it" : "the pack has no image of it";
}

// The slots of the kernel's functional.
const SlotRow* slots_of(const Plan& plan, const KernelPlan& out) {
  int64_t variants = int64_t{out.bound->target->configuration_count} * out.table->specialization_count;
  return plan.binding->pack->slots + out.bound->first_slot + out.functional * variants;
}

// Why the look-up leads nowhere for a functional: what the first of its slots without an image says, or nullptr. Others
// may have one, for a configuration is only taken where every specialization is there.
const char* first_reason(const Plan& plan, const KernelPlan& out) {
  const SlotRow* slots = slots_of(plan, out);
  int32_t variants = out.bound->target->configuration_count * out.table->specialization_count;
  for (int32_t i = 0; i < variants; ++i)
    if (plan.binding->image_of(slots[i]) == kNone && slots[i].reason != kNone)
      return plan.binding->pack->string(slots[i].reason);
  return nullptr;
}

void set_functional(const Plan& plan, KernelPlan& out) {
  const kiln_operation_table& op = *plan.operation->table;
  out.functional = 0;
  for (int32_t i = 0; i < out.table->choice_count; ++i) {
    int32_t choice = out.table->choices[i];
    out.functional = out.functional * op.choices[choice].count + plan.chosen[choice];
  }
}

// Makes `out` the plan of an implementation that is still to be judged.
void begin(const Plan& plan, const kiln_kernel_table& kernel, KernelPlan& out) {
  out.table = &kernel;
  out.bound = &plan.binding->kernels[plan.operation->first_kernel + (&kernel - plan.operation->table->kernels)];
  set_functional(plan, out);
}

// A variant that the call forces on a kernel.
struct Forced {
  const kiln_kernel_table* table = nullptr;
  int32_t configuration = 0, specialization = 0;
};

// Finds the variant forced for an implementation and its functional, if one of the call's keys is one, and marks the
// key as used.
kiln_status match_keys(const Plan& plan, const KernelPlan& out, Keys& keys, Forced& forced) {
  const SlotRow* slots = slots_of(plan, out);
  int32_t variants = out.bound->target->configuration_count * out.table->specialization_count;
  for (int32_t k = 0; k < plan.call->force_count; ++k) {
    for (int32_t i = 0; i < variants; ++i) {
      if (memcmp(slots[i].key, keys.keys[k], 32) != 0) continue;
      if (forced.table)
        return fail(KILN_E_ARGUMENT, "%s: two variants are forced for kernel %s; give at most one",
                    plan.operation->name, out.table->name);
      if (plan.binding->image_of(slots[i]) == kNone)
        return fail(KILN_E_UNSUPPORTED, "%s: the variant %s forced for kernel %s is not available: %s",
                    plan.operation->name, plan.call->force_keys[k], FullName(*out.table).c_str(),
                    reason_of(plan, slots[i]));
      keys.used |= 1ull << k;
      forced = {out.table, i / out.table->specialization_count, i % out.table->specialization_count};
      break;
    }
  }
  return KILN_OK;
}

// The same for all of a kernel's implementations. `out` is where they are looked at.
kiln_status find_forced(const Plan& plan, const kiln_kernel_table* kernels, int32_t count, KernelPlan& out, Keys& keys,
                        Forced& forced) {
  for (int32_t i = 0; i < count; ++i) {
    begin(plan, kernels[i], out);
    if (!out.bound->target) continue;
    kiln_status status = match_keys(plan, out, keys, forced);
    if (status != KILN_OK) return status;
  }
  return KILN_OK;
}

// Whether the call and the driver are such as the implementation wants.
kiln_status qualify(const Plan& plan, const KernelPlan& out, PassedOver& why) {
  if (!out.bound->target) return pass_over(why, Lack::kTarget);
  if (!drives(*plan.binding, *out.table, *out.bound)) {
    bool describes = out.table->descriptor_count == 0 || plan.device->driver->has_descriptors;
    return pass_over(why, describes ? Lack::kDriver : Lack::kDescriptors, needed_driver(*plan.binding, *out.bound));
  }
  if (!out.table->serves) return KILN_OK;
  int32_t broken = 0;
  bool serves = out.table->serves(plan.v, &broken) != 0;
  if (broken) return fault(plan, "what decides whether it is served by kernel", FullName(*out.table).c_str());
  return serves ? KILN_OK : pass_over(why, Lack::kServes);
}

// Chooses the configuration and puts its values where the expressions read them.
kiln_status configure(Plan& plan, const Forced& forced, KernelPlan& out, PassedOver& why) {
  const kiln_kernel_table& kernel = *out.table;
  if (forced.table) {
    out.configuration = forced.configuration;
  } else {
    kiln_status status = look_up(plan, out);
    if (status != KILN_OK) return status;
    if (out.configuration == KILN_NO_CONFIGURATION) {
      why.reason = first_reason(plan, out);
      return pass_over(why, Lack::kImage);
    }
  }
  if (kernel.configuration_value_count)
    memcpy(
        plan.v + kernel.configuration_index,
        out.bound->target->configurations + static_cast<int64_t>(out.configuration) * kernel.configuration_value_count,
        static_cast<size_t>(kernel.configuration_value_count) * sizeof plan.v[0]);
  return KILN_OK;
}

kiln_status specialize(const Plan& plan, const Forced& forced, const int64_t* values, KernelPlan& out) {
  const kiln_kernel_table& kernel = *out.table;
  out.specialization = forced.specialization;
  if (!forced.table) {
    while (!holds(kernel.specializations[out.specialization], values)) ++out.specialization;
  } else if (!holds(kernel.specializations[out.specialization], values)) {
    return fail(KILN_E_UNSUPPORTED,
                "%s: the variant forced for kernel %s is specialised (%s) for arguments that this "
                "call does not have",
                plan.operation->name, FullName(kernel).c_str(), kernel.specializations[out.specialization].name);
  }
  return KILN_OK;
}

kiln_status choose_image(const Plan& plan, KernelPlan& out, PassedOver& why) {
  const SlotRow* slot = slots_of(plan, out) + out.configuration * out.table->specialization_count + out.specialization;
  uint32_t image = plan.binding->image_of(*slot);
  if (image == kNone) {
    why.reason = reason_of(plan, *slot);
    return pass_over(why, Lack::kImage);
  }
  out.slot = static_cast<uint32_t>(slot - plan.binding->pack->slots);
  out.image = &plan.binding->pack->images[image];
  return KILN_OK;
}

// Plans one implementation, begun by begin(). kPassedOver: it does not fit the call; `why` says why.
kiln_status plan_implementation(Plan& plan, const Forced& forced, KernelPlan& out, PassedOver& why) {
  kiln_status status = qualify(plan, out, why);
  if (status != KILN_OK) return status;
  if ((status = configure(plan, forced, out, why)) != KILN_OK) return status;
  int64_t values[KILN_MAX_PARAMETERS];
  if ((status = evaluate_parameters(plan, *out.table, values)) != KILN_OK) return status;
  if ((status = specialize(plan, forced, values, out)) != KILN_OK) return status;
  if ((status = choose_image(plan, out, why)) != KILN_OK) return status;
  out.first_descriptor = plan.descriptor_count;
  if (out.table->descriptor_count || out.image->descriptors)
    if ((status = describe(plan, out, values, why)) != KILN_OK) return status;
  if ((status = place_parameters(plan, values, out)) != KILN_OK) return status;
  if ((status = evaluate_grid(plan, out)) != KILN_OK) return status;
  return evaluate_zeros(plan, out);
}

}  // namespace

kiln_status plan_kernel(Plan& plan, int32_t first, int32_t count, Keys* keys, bool may_fail) {
  const kiln_kernel_table* kernels = plan.operation->table->kernels + first;
  KernelPlan& out = plan.kernels[plan.kernel_count];
  Forced forced;
  if (keys) {
    kiln_status status = find_forced(plan, kernels, count, out, *keys, forced);
    if (status != KILN_OK) return status;
  }
  out.first_passed = plan.passed_count;
  for (int32_t i = 0; i < count; ++i) {
    if (forced.table && forced.table != &kernels[i]) continue;
    PassedOver& why = plan.passed[plan.passed_count];
    begin(plan, kernels[i], out);
    kiln_status status = plan_implementation(plan, forced, out, why);
    if (status == KILN_OK) {
      out.passed_count = plan.passed_count - out.first_passed;
      plan.descriptor_count += kernels[i].descriptor_count;
      ++plan.kernel_count;
    }
    if (status != kPassedOver) return status;
    why.table = &kernels[i];
    why.instead = false;
    ++plan.passed_count;
  }
  return may_fail ? kPassedOver : none_fits(plan, first, count, forced.table != nullptr);
}

}  // namespace kiln
