// From a call's arguments to one image for each kernel, or to one error.
#pragma once

#include "runtime.h"

namespace kiln {

constexpr uint64_t kAlignment = KILN_WORKSPACE_ALIGNMENT;

// What a call of one kernel comes to.
struct KernelPlan {
  const kiln_kernel_table* table;
  const BoundKernel* bound;
  const ImageRow* image;
  uint32_t slot;  // of the pack
  int32_t functional, configuration, specialization;
  int32_t zero_count, parameter_count;  // parameters: the visible ones, as the image takes them
  bool empty;                           // its grid has no block
  uint32_t grid[3];                     // clusters not counted in
  uint64_t zero_address[KILN_MAX_ZEROS], zero_bytes[KILN_MAX_ZEROS];
  uint64_t parameters[KILN_MAX_PARAMETERS + kHiddenParameters];
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
  KernelPlan kernels[KILN_MAX_KERNELS];
};

// Checks the arguments and puts them into plan.v. Needs no device.
kiln_status read_arguments(Plan& plan);

// The rest: device values, definitions, requirements, choices, images, grids and parameters. `workspace` is the address
// that the workspaces begin at; plan.workspace_bytes tells how much is needed there. plan.device is set.
kiln_status dispatch(Plan& plan, uint64_t workspace);

// KILN_E_UNSUPPORTED, naming the call's functional, why it is not there, and the nearest that is. `kernel`: the one
// that has no image, or nullptr where a choice has no such value. `why` may be nullptr.
kiln_status unsupported(Plan& plan, const kiln_kernel_table* kernel, const char* why);

// Shows the variants that a plan runs, one a kernel.
kiln_status explain(const Plan& plan, kiln_variant_fn visit, void* user);

inline int32_t functional_count(const kiln_operation_table& op, const kiln_kernel_table& kernel) {
  int32_t count = 1;
  for (int32_t i = 0; i < kernel.choice_count; ++i) count *= op.choices[kernel.choices[i]].count;
  return count;
}

}  // namespace kiln
