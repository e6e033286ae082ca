// The errors of a call that nothing serves: why each implementation does not, or what was asked for and the nearest
// functional that exists; or what of it overflows.
#include "dispatch.h"

namespace kiln {
namespace {

constexpr int64_t kMostCombinations = 1 << 22;  // what an error may cost to word

// Whether images differ by the choice: of another all values have been tried.
bool is_of_images(const kiln_choice_table& choice) { return choice.match != KILN_MATCH_FIRST_THAT_FITS; }

// Whether a call can get an image of the kernel's functional: some bin of the look-up leads to a configuration that has
// one. An image that only a forced key leads to does not count.
bool exists(const Binding& binding, const kiln_operation_state& operation, int32_t number, int64_t functional) {
  const kiln_kernel_table& kernel = operation.table->kernels[number];
  const BoundKernel& bound = binding.kernels[operation.first_kernel + number];
  if (!bound.target || !drives(binding, kernel, bound)) return false;
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
    if (value == asked || !is_of_images(op.choices[i])) continue;
    ++d.differing;
    uint64_t apart = value > asked ? static_cast<uint64_t>(value) - static_cast<uint64_t>(asked)
                                   : static_cast<uint64_t>(asked) - static_cast<uint64_t>(value);
    if (__builtin_add_overflow(d.numeric, apart, &d.numeric)) d.numeric = UINT64_MAX;
  }
  return d;
}

// Implementations of one kernel: `count` of the operation's, from number `first` on.
struct Group {
  int32_t first, count;
};

// Whether the combination makes of each of the implementations, if any, what the call asks of it.
bool is_asked(const Plan& plan, Group group, const int32_t* candidate) {
  for (int32_t k = group.first; k < group.first + group.count; ++k) {
    const kiln_kernel_table& kernel = plan.operation->table->kernels[k];
    for (int32_t i = 0; i < kernel.choice_count; ++i)
      if (candidate[kernel.choices[i]] != plan.chosen[kernel.choices[i]]) return false;
  }
  return group.count > 0;
}

// Whether one of the implementations has an image for the combination.
bool any_exists(const Plan& plan, Group group, const int32_t* candidate) {
  const kiln_operation_table& op = *plan.operation->table;
  for (int32_t k = group.first; k < group.first + group.count; ++k) {
    const kiln_kernel_table& kernel = op.kernels[k];
    int64_t functional = 0;
    for (int32_t i = 0; i < kernel.choice_count; ++i)
      functional = functional * op.choices[kernel.choices[i]].count + candidate[kernel.choices[i]];
    if (exists(*plan.binding, *plan.operation, k, functional)) return true;
  }
  return false;
}

// The existing combination of the operation's choices that is nearest to what is asked; false if there is none. One
// that leads to the same functionals of the kernel that has no image would fail as the call does.
bool nearest(const Plan& plan, Group failed, int32_t* best) {
  const kiln_operation_table& op = *plan.operation->table;
  int64_t combinations = 1;
  for (int32_t i = 0; i < op.choice_count; ++i)
    if (is_of_images(op.choices[i]) &&
        (__builtin_mul_overflow(combinations, op.choices[i].count, &combinations) || combinations > kMostCombinations))
      return false;
  uint32_t wanted = wanted_kernels(plan);
  bool found = false;
  Distance least = {0, 0};
  int32_t candidate[KILN_MAX_VALUES];
  for (int64_t number = 0; number < combinations; ++number) {
    int64_t rest = number;
    for (int32_t i = op.choice_count - 1; i >= 0; --i) {
      if (!is_of_images(op.choices[i])) {
        candidate[i] = plan.chosen[i];
        continue;
      }
      candidate[i] = static_cast<int32_t>(rest % op.choices[i].count);
      rest /= op.choices[i].count;
    }
    Distance d = distance(plan, candidate);
    if ((found && !(d < least)) || is_asked(plan, failed, candidate)) continue;
    bool all = true;
    for (int32_t k = 0; k < op.kernel_count && all;) {
      Group group = {k, implementation_count(op, k)};
      all = !(wanted >> k & 1) || any_exists(plan, group, candidate);
      k += group.count;
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

// `failed`: the kernel that has no image, or none where a choice has no such value. `why` may be nullptr.
kiln_status unsupported(Plan& plan, Group failed, const char* why) {
  const kiln_operation_table& op = *plan.operation->table;
  if (!plan.binding) {
    kiln_status status = bind(*plan.operation->family, *plan.device, plan.call->force_target, &plan.binding);
    if (status != KILN_OK) return status;
  }
  FixedText<600> wanted, other;
  for (int32_t i = 0; i < op.choice_count; ++i) {
    if (!is_of_images(op.choices[i])) continue;
    wanted.add("%s%s=", wanted.length() ? " " : "", op.choices[i].name);
    spell(op, i, plan.asked[i], wanted);
  }
  const char* target = plan.binding->family->table->packs[plan.binding->pack_number].target;
  int32_t best[KILN_MAX_VALUES];
  if (!nearest(plan, failed, best))
    return fail(KILN_E_UNSUPPORTED, "%s has no image for %s on %s%s%s, nor for anything similar", plan.operation->name,
                wanted.c_str(), target, why ? ": " : "", why ? why : "");
  for (int32_t i = 0; i < op.choice_count; ++i)
    if (is_of_images(op.choices[i]))
      other.add("%s%s=%s", other.length() ? " " : "", op.choices[i].name, op.choices[i].spellings[best[i]]);
  return fail(KILN_E_UNSUPPORTED, "%s has no image for %s on %s%s%s; the nearest that exists is %s",
              plan.operation->name, wanted.c_str(), target, why ? ": " : "", why ? why : "", other.c_str());
}

const char* target_of(const Plan& plan) { return plan.binding->family->table->packs[plan.binding->pack_number].target; }

void word_lack(const Plan& plan, const PassedOver& passed, Text& text) {
  const kiln_kernel_table& kernel = *passed.table;
  const char* argument = passed.lack >= Lack::kAddress ? kernel.descriptors[passed.descriptor].argument : "";
  long long value = passed.value;
  int32_t version = plan.device->driver->version;
  switch (passed.lack) {
    case Lack::kTarget:
      return text.add("it is not for %s", target_of(plan));
    case Lack::kDriver:
      return text.add("it needs a driver for CUDA %lld.%lld or later; this one is for CUDA %d.%d", value / 1000,
                      value % 1000 / 10, version / 1000, version % 1000 / 10);
    case Lack::kDescriptors:
      if (plan.device->vendor == KILN_VENDOR_AMD)
        return text.add("it takes tensor descriptors, which AMD GPUs do not have");
      return text.add("it takes tensor descriptors, and this driver has no entry point cuTensorMapEncodeTiled");
    case Lack::kServes:
      return text.add("it serves calls with %s", kernel.serves_text);
    case Lack::kImage:
      return text.add("%s", passed.reason ? passed.reason : "it has no image for this call");
    case Lack::kAddress:
      return text.add("%s is at 0x%llx; its descriptor needs a multiple of 16", argument,
                      static_cast<unsigned long long>(value));
    case Lack::kSize:
      return text.add("size %d of %s is %lld; its descriptor takes 1 to 2147483647", passed.dimension, argument, value);
    case Lack::kInnerStride:
      return text.add("the last stride of %s is %lld; its descriptor needs 1", argument, value);
    case Lack::kInnerSize:
      return text.add("the last size of %s is %lld elements; its descriptor needs a multiple of 16 bytes", argument,
                      value);
    case Lack::kStride:
      return text.add("stride %d of %s is %lld elements; its descriptor needs a multiple of 16 bytes below 2^40",
                      passed.dimension, argument, value);
  }
}

}  // namespace

kiln_status fault(const Plan& plan, const char* what, const char* name) {
  return fail(KILN_E_RANGE, "%s: %s%s%s of this call overflows or divides by zero", plan.operation->name, what,
              name[0] ? " " : "", name);
}

void word(const Plan& plan, const PassedOver& passed, Text& text) {
  if (passed.instead)
    text.add("%s: ", FullName(*passed.table).c_str());
  else if (passed.table->implementation)
    text.add("%s: ", passed.table->implementation);
  word_lack(plan, passed, text);
}

kiln_status no_such_choice(Plan& plan) { return unsupported(plan, {0, 0}, nullptr); }

kiln_status none_fits(Plan& plan, int32_t first, int32_t count, bool forced) {
  const kiln_kernel_table& kernel = plan.operation->table->kernels[first];
  int32_t passed = forced ? 1 : count;
  const PassedOver* why = plan.passed + plan.passed_count - passed;
  bool images = true;  // are what is lacking
  FixedText<1200> lacks;
  for (int32_t i = 0; i < passed; ++i) {
    images &= why[i].lack == Lack::kTarget || why[i].lack == Lack::kImage;
    if (i) lacks.add("; ");
    word(plan, why[i], lacks);
  }
  if (forced)
    return fail(KILN_E_UNSUPPORTED, "%s: the variant forced for kernel %s does not take this call on %s: %s",
                plan.operation->name, kernel.name, target_of(plan), lacks.c_str());
  // The last implementation is what the others leave calls to: if it lacks an image, that is the reason.
  const PassedOver& last = why[passed - 1];
  if (last.lack == Lack::kImage) return unsupported(plan, {first, count}, last.reason);
  if (!images)
    return fail(KILN_E_UNSUPPORTED, "%s: kernel %s does not take this call on %s: %s", plan.operation->name,
                kernel.name, target_of(plan), lacks.c_str());
  return unsupported(plan, {first, count}, count > 1 ? lacks.c_str() : "its target has no such kernel");
}

}  // namespace kiln
