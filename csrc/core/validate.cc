// A family's tables come from another library: everything that the dispatch relies on is checked once, here.
#include "runtime.h"

namespace kiln {
namespace {

constexpr int64_t kMostSlots = 1 << 26;

// Where in the tables the check is, for the sentence.
struct Place {
  const char* family;
  const char* operation;
  const char* kernel;
};

kiln_status malformed(const Place& place, const char* what) {
  return fail(KILN_E_FAMILY, "the tables of the family %s are malformed%s%s%s%s: %s", place.family,
              place.operation ? ", operation " : "", place.operation ? place.operation : "",
              place.kernel ? ", kernel " : "", place.kernel ? place.kernel : "", what);
}

template <typename T>
bool is_table(const T* rows, int32_t count, int32_t most) {
  return count >= 0 && count <= most && (rows || count == 0);
}

bool fits(const kiln_operation_table& op, int64_t index, int64_t count) {
  return index >= 0 && count >= 0 && index + count <= op.value_count;
}

bool is_name(const char* name) { return name && *name; }

const char* check_arguments(const kiln_operation_table& op) {
  for (int32_t i = 0; i < op.argument_count; ++i) {
    const kiln_argument_table& argument = op.arguments[i];
    if (!is_name(argument.name)) return "an argument has no name";
    if (argument.kind == KILN_ARG_TENSOR) {
      if (argument.rank < 0 || argument.rank > KILN_MAX_RANK) return "a tensor's rank is out of range";
      if (!fits(op, argument.index, 2 + 2 * argument.rank)) return "a tensor lies outside of the values";
      if (argument.dtype >= 0 ? dtype_bytes(argument.dtype) == 0 : -1 - argument.dtype >= op.choice_count)
        return "a tensor's dtype is unknown";
    } else if (argument.kind == KILN_ARG_INT || argument.kind == KILN_ARG_FLOAT) {
      if (!fits(op, argument.index, 1)) return "an argument lies outside of the values";
      if (argument.kind == KILN_ARG_INT && argument.integer_bits != 1 && argument.integer_bits != 32 &&
          argument.integer_bits != 64)
        return "an integer has neither 1, 32 nor 64 bits";
    } else {
      return "an argument is of an unknown kind";
    }
  }
  return nullptr;
}

const char* check_choices(const kiln_operation_table& op) {
  int32_t fitting = 0;
  for (int32_t i = 0; i < op.choice_count; ++i) {
    const kiln_choice_table& choice = op.choices[i];
    if (!is_name(choice.name) || !choice.value) return "a choice has no name or no expression";
    if (choice.match < KILN_MATCH_EXACT || choice.match > KILN_MATCH_FIRST_THAT_FITS)
      return "a choice has an unknown way to match";
    if (choice.match == KILN_MATCH_FIRST_THAT_FITS && fitting++) return "two choices are of the first value that fits";
    if (choice.count <= 0 || !choice.values || !choice.spellings || !choice.served) return "a choice has no values";
    if (!fits(op, choice.index, 1)) return "a choice lies outside of the values";
    for (int32_t j = 0; j < choice.count; ++j) {
      if (!choice.spellings[j]) return "a choice's value has no spelling";
      if (choice.served[j] < 0 || choice.served[j] >= choice.count)
        return "the value that serves another of a choice does not exist";
      if (j && choice.match == KILN_MATCH_NEXT_LARGER && choice.values[j] <= choice.values[j - 1])
        return "a choice's values do not ascend";
    }
  }
  return nullptr;
}

const char* check_operation(const kiln_operation_table& op) {
  constexpr int32_t kMost = KILN_MAX_VALUES;
  if (!is_table(op.arguments, op.argument_count, kMost) || !is_table(op.choices, op.choice_count, kMost) ||
      !is_table(op.definitions, op.definition_count, kMost) ||
      !is_table(op.requirements, op.requirement_count, kMost) || !is_table(op.workspaces, op.workspace_count, kMost))
    return "a table is missing or a count is out of range";
  if (!is_table(op.kernels, op.kernel_count, KILN_MAX_KERNELS) || op.kernel_count == 0)
    return "it must have 1 to KILN_MAX_KERNELS kernels";
  if (op.value_count <= 0 || op.value_count > KILN_MAX_VALUES) return "it needs more values than KILN_MAX_VALUES";
  if (!fits(op, op.multiprocessors_index, 1)) return "the multiprocessors lie outside of the values";
  if (const char* wrong = check_arguments(op)) return wrong;
  if (const char* wrong = check_choices(op)) return wrong;
  if ((op.definition_count && !op.define) || (op.requirement_count && !op.check))
    return "its definitions or its requirements have no function";
  for (int32_t i = 0; i < op.definition_count; ++i)
    if (!is_name(op.definitions[i])) return "a definition has no name";
  for (int32_t i = 0; i < op.requirement_count; ++i)
    if (!op.requirements[i]) return "a requirement has no sentence";
  for (int32_t i = 0; i < op.workspace_count; ++i)
    if (!is_name(op.workspaces[i].name) || !op.workspaces[i].bytes || !fits(op, op.workspaces[i].index, 1))
      return "a workspace has no name, no expression or no place in the values";
  return nullptr;
}

const char* check_descriptors(const kiln_operation_table& op, const kiln_kernel_table& kernel) {
  for (int32_t i = 0; i < kernel.descriptor_count; ++i) {
    const kiln_descriptor_table& descriptor = kernel.descriptors[i];
    if (!is_name(descriptor.argument)) return "a descriptor names no argument";
    if (descriptor.rank < 1 || descriptor.rank > KILN_MAX_DESCRIPTOR_RANK) return "a descriptor's rank is not 1 to 5";
    if (descriptor.dtype >= 0 ? dtype_bytes(descriptor.dtype) == 0 : -1 - descriptor.dtype >= op.choice_count)
      return "a descriptor's dtype is unknown";
    for (int32_t d = 0; d < descriptor.rank; ++d)
      if (!descriptor.sizes[d] || !descriptor.strides[d]) return "a descriptor has no sizes or no strides";
  }
  return nullptr;
}

const char* check_parameters(const kiln_kernel_table& kernel) {
  if (kernel.parameter_count && !kernel.evaluate) return "its parameters have no function";
  int32_t descriptors = 0;
  for (int32_t i = 0; i < kernel.parameter_count; ++i) {
    const kiln_parameter_table& parameter = kernel.parameters[i];
    if (parameter.type < KILN_PARAMETER_POINTER || parameter.type > KILN_PARAMETER_DESCRIPTOR)
      return "a parameter is of an unknown type";
    if (!is_name(parameter.name)) return "a parameter has no name";
    if (parameter.type == KILN_PARAMETER_DESCRIPTOR && parameter.descriptor != descriptors++)
      return "its descriptors are not in its parameters' order";
  }
  if (descriptors != kernel.descriptor_count) return "it does not take each of its descriptors";
  uint64_t real = kernel.parameter_count == 64 ? ~0ull : (1ull << kernel.parameter_count) - 1;
  uint64_t integral = 0;
  for (int32_t i = 0; i < kernel.parameter_count; ++i)
    if (kernel.parameters[i].type < KILN_PARAMETER_FP32) integral |= 1ull << i;
  for (int32_t i = 0; i < kernel.specialization_count; ++i) {
    const kiln_specialization_table& specialization = kernel.specializations[i];
    if (!is_name(specialization.name)) return "a specialization has no name";
    uint64_t named = specialization.divisible_by_16 | specialization.divisible_by_8 | specialization.equal_to_one;
    if (named & ~(real & integral))
      return "a specialization names a parameter that is not one of its integers or pointers";
    if (i == kernel.specialization_count - 1 && named) return "its last specialization does not always hold";
  }
  return nullptr;
}

const char* check_target(const kiln_kernel_table& kernel, const kiln_kernel_target_table& target, int64_t functionals,
                         int64_t bins) {
  if (!is_name(target.target)) return "a target has no name";
  int32_t count = target.configuration_count;
  if (count <= 0 || count >= KILN_NO_CONFIGURATION) return "a target must have 1 to 254 configurations";
  if (!target.configuration_names || !target.lookup) return "a target has no names or no look-up";
  if (!target.configurations && kernel.configuration_value_count) return "a target has no configurations";
  for (int32_t i = 0; i < count; ++i)
    if (!target.configuration_names[i]) return "a configuration has no name";
  if (functionals * count * kernel.specialization_count > kMostSlots) return "it has too many variants";
  for (int64_t i = 0; i < functionals * bins; ++i)
    if (target.lookup[i] != KILN_NO_CONFIGURATION && target.lookup[i] >= count)
      return "a look-up leads to a configuration that does not exist";
  return nullptr;
}

const char* check_kernel(const kiln_operation_table& op, const kiln_kernel_table& kernel) {
  if (!is_table(kernel.choices, kernel.choice_count, op.choice_count) ||
      !is_table(kernel.parameters, kernel.parameter_count, KILN_MAX_PARAMETERS) ||
      !is_table(kernel.bins, kernel.bin_count, KILN_MAX_BINS) ||
      !is_table(kernel.zeros, kernel.zero_count, KILN_MAX_ZEROS) ||
      !is_table(kernel.descriptors, kernel.descriptor_count, KILN_MAX_DESCRIPTORS) ||
      !is_table(kernel.targets, kernel.target_count, 1024))
    return "a table is missing or a count is out of range";
  if (!is_table(kernel.specializations, kernel.specialization_count, KILN_MAX_SPECIALIZATIONS) ||
      kernel.specialization_count == 0)
    return "it has no specializations";
  if (kernel.overlaps != 0 && kernel.overlaps != 1) return "it neither overlaps nor does not";
  if (!kernel.grid[0] || !kernel.grid[1] || !kernel.grid[2]) return "it has no grid";
  if (kernel.configuration_value_count < 0 || !fits(op, kernel.configuration_index, kernel.configuration_value_count))
    return "its configuration lies outside of the values";
  int64_t functionals = 1, bins = 1;
  for (int32_t i = 0; i < kernel.choice_count; ++i) {
    if (kernel.choices[i] < 0 || kernel.choices[i] >= op.choice_count)
      return "it depends on a choice that does not exist";
    functionals *= op.choices[kernel.choices[i]].count;
    if (functionals > kMostSlots) return "it has too many functionals";
  }
  for (int32_t i = 0; i < kernel.bin_count; ++i) {
    const kiln_bin_table& bin = kernel.bins[i];
    if (!is_name(bin.name) || !bin.value || !is_table(bin.edges, bin.edge_count, KILN_MAX_EDGES))
      return "a bin is malformed";
    bins *= bin.edge_count + 1;
    if (bins * functionals > kMostSlots) return "its look-up is too large";
  }
  for (int32_t i = 0; i < kernel.zero_count; ++i)
    if (!kernel.zeros[i].address || !kernel.zeros[i].bytes) return "a range to zero has no expression";
  if (kernel.serves && !kernel.serves_text) return "it does not say which calls it serves";
  if (const char* wrong = check_descriptors(op, kernel)) return wrong;
  if (const char* wrong = check_parameters(kernel)) return wrong;
  for (int32_t i = 0; i < kernel.target_count; ++i)
    if (const char* wrong = check_target(kernel, kernel.targets[i], functionals, bins)) return wrong;
  return nullptr;
}

// How the kernels of an operation stand: implementations of one together, told apart by their names.
const char* check_order(const kiln_operation_table& op, int32_t number) {
  const kiln_kernel_table& kernel = op.kernels[number];
  const kiln_kernel_table* before = number ? &op.kernels[number - 1] : nullptr;
  const kiln_kernel_table* after = number + 1 < op.kernel_count ? &op.kernels[number + 1] : nullptr;
  if (kernel.kernel != (before ? before->kernel : -1) + 1 && !(before && kernel.kernel == before->kernel))
    return "the numbers of the operation's kernels do not ascend one by one";
  bool first = !before || before->kernel != kernel.kernel;
  if ((!first || (after && after->kernel == kernel.kernel)) && !is_name(kernel.implementation))
    return "one of several implementations has no name";
  for (int32_t i = number - 1; i >= 0 && op.kernels[i].kernel == kernel.kernel; --i) {
    if (strcmp(op.kernels[i].name, kernel.name) != 0 || op.kernels[i].when != kernel.when)
      return "its implementations differ in its name or in when it runs";
    if (strcmp(op.kernels[i].implementation, kernel.implementation) == 0)
      return "two implementations have the same name";
  }
  return nullptr;
}

// The descriptors of a call, at most: of each kernel those of the implementation that has most.
int32_t most_descriptors(const kiln_operation_table& op) {
  int32_t all = 0, most = 0;
  for (int32_t i = 0; i < op.kernel_count; ++i) {
    if (i && op.kernels[i].kernel != op.kernels[i - 1].kernel) all += most, most = 0;
    if (op.kernels[i].descriptor_count > most) most = op.kernels[i].descriptor_count;
  }
  return all + most;
}

const char* check_pack(const kiln_pack_table& pack) {
  if (!is_name(pack.file) || strchr(pack.file, '/')) return "a pack's file is not a plain name";
  if (!is_name(pack.target)) return "a pack has no target";
  if (pack.vendor != KILN_VENDOR_NVIDIA && pack.vendor != KILN_VENDOR_AMD) return "a pack is of an unknown vendor";
  if (!pack.runs_on) return "a pack does not say what it runs on";
  return nullptr;
}

}  // namespace

kiln_status validate_family(const kiln_family* family) {
  if (!family) return fail(KILN_E_ARGUMENT, "the family is NULL");
  if (family->abi != KILN_FAMILY_ABI)
    return fail(KILN_E_FAMILY,
                "the family's tables are of ABI %d; Kiln %s reads ABI %d: use the core and the family "
                "of one release",
                family->abi, KILN_VERSION, KILN_FAMILY_ABI);
  Place place = {is_name(family->name) ? family->name : "?", nullptr, nullptr};
  if (family->size < sizeof(kiln_family)) return malformed(place, "its size is less than its ABI's");
  if (!is_name(family->name) || strchr(family->name, '.')) return malformed(place, "its name is empty or has a dot");
  if (!is_name(family->version)) return malformed(place, "it has no version");
  if (!is_table(family->operations, family->operation_count, 4096) ||
      !is_table(family->packs, family->pack_count, 1024))
    return malformed(place, "a table is missing or a count is out of range");
  for (int32_t i = 0; i < family->pack_count; ++i)
    if (const char* wrong = check_pack(family->packs[i])) return malformed(place, wrong);
  for (int32_t i = 0; i < family->operation_count; ++i) {
    const kiln_operation_table& op = family->operations[i];
    if (!is_name(op.name)) return malformed(place, "an operation has no name");
    place.operation = op.name;
    place.kernel = nullptr;
    if (const char* wrong = check_operation(op)) return malformed(place, wrong);
    for (int32_t k = 0; k < op.kernel_count; ++k) {
      if (!is_name(op.kernels[k].name)) return malformed(place, "a kernel has no name");
      place.kernel = op.kernels[k].name;
      if (const char* wrong = check_kernel(op, op.kernels[k])) return malformed(place, wrong);
      if (const char* wrong = check_order(op, k)) return malformed(place, wrong);
    }
    place.kernel = nullptr;
    if (most_descriptors(op) > KILN_MAX_CALL_DESCRIPTORS)
      return malformed(place, "its kernels have more descriptors than KILN_MAX_CALL_DESCRIPTORS");
  }
  return KILN_OK;
}

}  // namespace kiln
