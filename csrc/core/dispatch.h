// From a call's arguments to one image for each kernel, or to one error.
#pragma once

#include "descriptor.h"
#include "runtime.h"

namespace kiln {

constexpr uint64_t kAlignment = KILN_WORKSPACE_ALIGNMENT;

// Why an implementation is not the one that a call runs.
enum class Lack {
  kTarget,       // it is not for the target
  kDriver,       // the driver is too old for its images
  kDescriptors,  // the driver cannot make tensor descriptors
  kServes,       // it does not serve such calls
  kImage,        // it has no image for the functional
  // A descriptor cannot describe its tensor:
  kAddress,
  kSize,
  kInnerStride,
  kInnerSize,
  kStride,
};

// Besides a kiln_status: an implementation does not fit the call; a PassedOver says why.
constexpr kiln_status kPassedOver = -1;

// An implementation that a call passed over.
struct PassedOver {
  const kiln_kernel_table* table;
  Lack lack;
  int32_t descriptor, dimension;  // where a descriptor cannot
  int64_t value;                  // that address, size or stride
  const char* reason;             // for kImage: the pack's, or nullptr
  bool instead;  // the call does not run the kernel at all, but what another value of a choice makes it
};

// What a call of one kernel comes to.
struct KernelPlan {
  const kiln_kernel_table* table;  // of the implementation that is taken
  const BoundKernel* bound;
  const ImageRow* image;
  uint32_t slot;  // of the pack
  int32_t functional, configuration, specialization;
  int32_t first_passed, passed_count;  // of plan.passed: the implementations before it
  int32_t first_descriptor;            // of plan.descriptors; table->descriptor_count of them
  int32_t zero_count, hidden_count;
  int32_t parameter_count;  // the visible ones, those left out that are constants of the image
  uint64_t described;       // bit i: visible parameter i is a descriptor
  bool empty;               // its grid has no block
  uint32_t grid[3];         // clusters not counted in
  uint64_t zero_address[KILN_MAX_ZEROS], zero_bytes[KILN_MAX_ZEROS];
  uint64_t parameters[KILN_MAX_PARAMETERS];
};

// What a call comes to. Lives on the caller's stack and is not cleared: only what is counted is valid.
struct Plan {
  const kiln_operation_state* operation;
  const kiln_call* call;
  Device* device;
  Binding* binding;
  int32_t kernel_count;
  uint64_t workspace_bytes;  // all of it: the operation's workspaces, then the kernels' shared scratch
  uint64_t scratch_address;
  int64_t v[KILN_MAX_VALUES];
  int64_t asked[KILN_MAX_VALUES];   // by choice, the value that the call wants: that of its own, whatever serves it
  int32_t chosen[KILN_MAX_VALUES];  // by choice, the index of the value that serves it, or -1
  int32_t passed_count, descriptor_count;
  KernelPlan kernels[KILN_MAX_KERNELS];
  PassedOver passed[2 * KILN_MAX_KERNELS];  // of the last value of a choice that is tried, and what decided before
  Descriptor descriptors[KILN_MAX_CALL_DESCRIPTORS];
};

// The keys that a call forces; bit i of `used`: key i is some kernel's.
struct Keys {
  uint8_t keys[KILN_MAX_KERNELS][32];
  uint64_t used;
};

// Checks the arguments and puts them into plan.v. Needs no device.
kiln_status read_arguments(Plan& plan);

// The rest: device values, definitions, requirements, choices, images, grids and parameters. `workspace` is the address
// that the workspaces begin at; plan.workspace_bytes tells how much is needed there. plan.device is set.
kiln_status dispatch(Plan& plan, uint64_t workspace);

// Adds the plan of a kernel, whose `count` implementations begin at the operation's number `first`. `keys` may be
// nullptr. Where none fits, kPassedOver if that may be.
kiln_status plan_kernel(Plan& plan, int32_t first, int32_t count, Keys* keys, bool may_fail);

// Evaluates the descriptors of a kernel's image into plan.descriptors, from kernel.first_descriptor on; they are not
// encoded. `values`: of the kernel's parameters. kPassedOver: one cannot describe its tensor.
kiln_status describe(Plan& plan, const KernelPlan& kernel, const int64_t* values, PassedOver& why);

// KILN_E_RANGE: what the call is to give overflows.
kiln_status fault(const Plan& plan, const char* what, const char* name);

// KILN_E_UNSUPPORTED, naming the call's functional and the nearest that has images: a choice has no such value.
kiln_status no_such_choice(Plan& plan);

// KILN_E_UNSUPPORTED, saying why none of a kernel's implementations fits: all of them, or the one whose variant is
// `forced`, are the last of plan.passed.
kiln_status none_fits(Plan& plan, int32_t first, int32_t count, bool forced);

// Why an implementation was passed over, as a sentence.
void word(const Plan& plan, const PassedOver& passed, Text& text);

// Shows the variants that a plan runs, one a kernel.
kiln_status explain(const Plan& plan, kiln_variant_fn visit, void* user);

// How many implementations the kernel has whose first is the operation's number `first`.
inline int32_t implementation_count(const kiln_operation_table& op, int32_t first) {
  int32_t count = 1;
  while (first + count < op.kernel_count && op.kernels[first + count].kernel == op.kernels[first].kernel) ++count;
  return count;
}

inline int32_t functional_count(const kiln_operation_table& op, const kiln_kernel_table& kernel) {
  int32_t count = 1;
  for (int32_t i = 0; i < kernel.choice_count; ++i) count *= op.choices[kernel.choices[i]].count;
  return count;
}

}  // namespace kiln
