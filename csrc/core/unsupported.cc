// The error of a call that no image serves: what it asked for, and the nearest functional that exists.
#include "dispatch.h"

namespace kiln {
namespace {

constexpr int64_t kMostCombinations = 1 << 22;  // what an error may cost to word

// Whether a call can get an image of the kernel's functional: some bin of the look-up leads to a configuration that has
// one. An image that only a forced key leads to does not count.
bool exists(const Binding& binding, const kiln_operation_state& operation, int32_t number, int64_t functional) {
  const kiln_kernel_table& kernel = operation.table->kernels[number];
  const BoundKernel& bound = binding.kernels[operation.first_kernel + number];
  if (!bound.target) return false;
  int64_t bins = 1;
  for (int32_t i = 0; i < kernel.bin_count; ++i) bins *= kernel.bins[i].edge_count + 1;
  bool reached[KILN_NO_CONFIGURATION + 1] = {};
  for (int64_t bin = 0; bin < bins; ++bin) reached[bound.target->lookup[functional * bins + bin]] = true;
  int64_t configurations = bound.target->configuration_count;
  const SlotRow* slot =
      binding.pack->slots + bound.first_slot + functional * configurations * kernel.specialization_count;
  for (int64_t configuration = 0; configuration < configurations; ++configuration)
    for (int32_t i = 0; i < kernel.specialization_count; ++i, ++slot)
      if (reached[configuration] && (binding.ptx ? slot->ptx : slot->image) != kNone) return true;
  return false;
}

// Which kernels the call would run, as far as that can be told.
uint32_t wanted_kernels(const Plan& plan) {
  const kiln_operation_table& op = *plan.operation->table;
  uint32_t wanted = 0;
  for (int32_t i = 0; i < op.kernel_count; ++i) {
    int32_t broken = 0;
    if (!op.kernels[i].when || op.kernels[i].when(plan.v, &broken) || broken) wanted |= 1u << i;
  }
  return wanted;
}

struct Distance {
  int32_t differing;
  uint64_t numeric;
  bool operator<(const Distance& other) const {
    return differing != other.differing ? differing < other.differing : numeric < other.numeric;
  }
};

Distance distance(const Plan& plan, const int32_t* candidate) {
  const kiln_operation_table& op = *plan.operation->table;
  Distance d = {0, 0};
  for (int32_t i = 0; i < op.choice_count; ++i) {
    int64_t value = op.choices[i].values[candidate[i]], asked = plan.asked[i];
    if (value == asked) continue;
    ++d.differing;
    uint64_t apart = value > asked ? static_cast<uint64_t>(value) - static_cast<uint64_t>(asked)
                                   : static_cast<uint64_t>(asked) - static_cast<uint64_t>(value);
    if (__builtin_add_overflow(d.numeric, apart, &d.numeric)) d.numeric = UINT64_MAX;
  }
  return d;
}

// Whether the combination makes of the kernel what the call asks of it.
bool is_asked(const Plan& plan, const kiln_kernel_table& kernel, const int32_t* candidate) {
  for (int32_t i = 0; i < kernel.choice_count; ++i)
    if (candidate[kernel.choices[i]] != plan.chosen[kernel.choices[i]]) return false;
  return true;
}

// The existing combination of the operation's choices that is nearest to what is asked; false if there is none. One
// that leads to the same functional of the kernel that has no image would fail as the call does.
bool nearest(const Plan& plan, const kiln_kernel_table* failed, int32_t* best) {
  const kiln_operation_table& op = *plan.operation->table;
  int64_t combinations = 1;
  for (int32_t i = 0; i < op.choice_count; ++i)
    if (__builtin_mul_overflow(combinations, op.choices[i].count, &combinations) || combinations > kMostCombinations)
      return false;
  uint32_t wanted = wanted_kernels(plan);
  bool found = false;
  Distance least = {0, 0};
  int32_t candidate[KILN_MAX_VALUES];
  for (int64_t number = 0; number < combinations; ++number) {
    int64_t rest = number;
    for (int32_t i = op.choice_count - 1; i >= 0; --i) {
      candidate[i] = static_cast<int32_t>(rest % op.choices[i].count);
      rest /= op.choices[i].count;
    }
    Distance d = distance(plan, candidate);
    if ((found && !(d < least)) || (failed && is_asked(plan, *failed, candidate))) continue;
    bool all = true;
    for (int32_t k = 0; k < op.kernel_count && all; ++k) {
      if (!(wanted >> k & 1)) continue;
      const kiln_kernel_table& kernel = op.kernels[k];
      int64_t functional = 0;
      for (int32_t i = 0; i < kernel.choice_count; ++i)
        functional = functional * op.choices[kernel.choices[i]].count + candidate[kernel.choices[i]];
      all = exists(*plan.binding, *plan.operation, k, functional);
    }
    if (!all) continue;
    found = true;
    least = d;
    memcpy(best, candidate, static_cast<size_t>(op.choice_count) * sizeof best[0]);
  }
  return found;
}

// A value that is asked for, as its choice spells it; a dtype by its name even where no choice has it.
void spell(const kiln_operation_table& op, int32_t number, int64_t value, Text& text) {
  const kiln_choice_table& choice = op.choices[number];
  for (int32_t i = 0; i < choice.count; ++i)
    if (choice.values[i] == value) return text.add("%s", choice.spellings[i]);
  for (int32_t i = 0; i < op.argument_count; ++i)
    if (op.arguments[i].kind == KILN_ARG_TENSOR && op.arguments[i].dtype == -1 - number && dtype_name(value))
      return text.add("%s", dtype_name(value));
  text.add("%lld", static_cast<long long>(value));
}

}  // namespace

kiln_status unsupported(Plan& plan, const kiln_kernel_table* kernel, const char* why) {
  const kiln_operation_table& op = *plan.operation->table;
  if (!plan.binding) {
    kiln_status status = bind(*plan.operation->family, *plan.device, plan.call->force_target, &plan.binding);
    if (status != KILN_OK) return status;
  }
  FixedText<600> wanted, other;
  for (int32_t i = 0; i < op.choice_count; ++i) {
    wanted.add("%s%s=", i ? " " : "", op.choices[i].name);
    spell(op, i, plan.asked[i], wanted);
  }
  const char* target = plan.binding->family->table->packs[plan.binding->pack_number].target;
  int32_t best[KILN_MAX_VALUES];
  if (!nearest(plan, kernel, best))
    return fail(KILN_E_UNSUPPORTED, "%s has no image for %s on %s%s%s, nor for anything near", plan.operation->name,
                wanted.c_str(), target, why ? ": " : "", why ? why : "");
  for (int32_t i = 0; i < op.choice_count; ++i)
    other.add("%s%s=%s", i ? " " : "", op.choices[i].name, op.choices[i].spellings[best[i]]);
  return fail(KILN_E_UNSUPPORTED, "%s has no image for %s on %s%s%s; the nearest that exists is %s",
              plan.operation->name, wanted.c_str(), target, why ? ": " : "", why ? why : "", other.c_str());
}

}  // namespace kiln
