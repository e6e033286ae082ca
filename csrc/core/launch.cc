// The calls that run something, or say what would run.
#include "dispatch.h"

namespace kiln {
namespace {

// A call and its queue, read whole; the queue's device is current until the end of the block.
class Entered {
 public:
  Entered() : driver_(nullptr) {}
  ~Entered() {
    if (driver_) driver_->calls->leave(*driver_, scope);
  }
  Entered(const Entered&) = delete;
  Entered& operator=(const Entered&) = delete;

  kiln_status enter(kiln_runtime& runtime, const kiln_queue& queue) {
    Driver* driver;
    kiln_status status = get_driver(runtime, queue.vendor, &driver);
    if (status != KILN_OK) return status;
    status = driver->calls->enter(*driver, queue, &scope);
    if (status == KILN_OK) driver_ = driver;
    return status;
  }
  Driver& driver() { return *driver_; }

  Scope scope;

 private:
  Driver* driver_;
};

kiln_status read_queue(const kiln_queue* from, const char* name, kiln_queue* queue) {
  *queue = KILN_QUEUE_INIT(0, nullptr);
  return kiln_read_struct(queue, sizeof *queue, from, name);
}

kiln_status read_call(const kiln_call* from, kiln_call* call, kiln_queue* queue) {
  *call = KILN_CALL_INIT;
  kiln_status status = kiln_read_struct(call, sizeof *call, from, "kiln_call");
  if (status != KILN_OK) return status;
  if (!call->operation) return fail(KILN_E_ARGUMENT, "kiln_call.operation is NULL");
  status = check_runtime(call->operation->family->runtime);
  if (status != KILN_OK) return status;
  return read_queue(call->queue, "kiln_call.queue", queue);
}

// From a call to its plan.
kiln_status make_plan(const kiln_call& call, const kiln_queue& queue, uint64_t workspace, Entered& entered,
                      Plan& plan) {
  plan.operation = call.operation;
  plan.call = &call;
  kiln_status status = read_arguments(plan);
  if (status != KILN_OK) return status;
  status = entered.enter(*call.operation->family->runtime, queue);
  if (status != KILN_OK) return status;
  plan.device = entered.scope.device;
  return dispatch(plan, workspace);
}

kiln_status check_workspace(const Plan& plan) {
  const kiln_call& call = *plan.call;
  if (plan.workspace_bytes == 0) return KILN_OK;
  unsigned long long needed = plan.workspace_bytes, given = call.workspace_bytes;
  if (!call.workspace)
    return fail(KILN_E_WORKSPACE, "%s: this call needs %llu bytes of workspace and its workspace is NULL",
                plan.operation->name, needed);
  if (reinterpret_cast<uint64_t>(call.workspace) % kAlignment)
    return fail(KILN_E_WORKSPACE, "%s: the workspace is at %p, which is not a multiple of %d", plan.operation->name,
                call.workspace, KILN_WORKSPACE_ALIGNMENT);
  if (given < needed)
    return fail(KILN_E_WORKSPACE, "%s: this call needs %llu bytes of workspace and is given %llu", plan.operation->name,
                needed, given);
  return KILN_OK;
}

// A descriptor's parameters: the map, then the sizes and the strides. Returns behind the last.
void** add_descriptor(Descriptor& descriptor, void** to) {
  DescriptorKey& key = descriptor.key;
  *to++ = descriptor.map;
  for (int d = 0; d < key.rank; ++d) *to++ = &key.sizes[d];
  for (int d = 0; d < key.rank; ++d) *to++ = &key.strides[d];
  return to;
}

// The visible parameters of a kernel some of which are descriptors.
void** add_described(Plan& plan, KernelPlan& kernel, void** to) {
  Descriptor* descriptor = plan.descriptors + kernel.first_descriptor;
  for (int32_t i = 0; i < kernel.parameter_count; ++i) {
    if (kernel.described >> i & 1)
      to = add_descriptor(*descriptor++, to);
    else
      *to++ = &kernel.parameters[i];
  }
  return to;
}

constexpr int kMostParameters =
    KILN_MAX_PARAMETERS + KILN_MAX_DESCRIPTORS * 2 * KILN_MAX_DESCRIPTOR_RANK + kHiddenParameters;

kiln_status run_kernel(Entered& entered, Plan& plan, KernelPlan& kernel, const Loaded& image) {
  Driver& driver = entered.driver();
  for (int32_t i = 0; i < kernel.zero_count; ++i) {
    kiln_status status = driver.calls->zero(driver, entered.scope, kernel.zero_address[i], kernel.zero_bytes[i]);
    if (status != KILN_OK) return status;
  }
  if (kernel.empty) return KILN_OK;
  void* parameters[kMostParameters];
  void** end = parameters;
  if (kernel.described)
    end = add_described(plan, kernel, end);
  else
    for (int32_t i = 0; i < kernel.parameter_count; ++i) *end++ = &kernel.parameters[i];
  // The hidden ones: global scratch, then profile scratch, which no release has.
  uint64_t hidden[kHiddenParameters] = {image.row->scratch ? plan.scratch_address : 0, 0};
  for (int32_t i = 0; i < kernel.hidden_count; ++i) *end++ = &hidden[i];
  Launch launch = {&image,
                   {kernel.grid[0] * image.row->clusters, kernel.grid[1], kernel.grid[2]},
                   parameters,
                   kernel.table->overlaps != 0};
  return driver.calls->launch(driver, entered.scope, launch);
}

kiln_status encode_descriptors(Driver& driver, Plan& plan) {
  for (int32_t k = 0; k < plan.kernel_count; ++k) {
    const KernelPlan& kernel = plan.kernels[k];
    for (int32_t i = 0; i < kernel.table->descriptor_count && !kernel.empty; ++i) {
      const char* argument = kernel.table->descriptors[i].argument;
      kiln_status status = encode(driver, argument, plan.descriptors[kernel.first_descriptor + i]);
      if (status != KILN_OK) return status;
    }
  }
  return KILN_OK;
}

kiln_status run(const kiln_call* from, bool launch) {
  kiln_call call;
  kiln_queue queue;
  kiln_status status = read_call(from, &call, &queue);
  if (status != KILN_OK) return status;
  Entered entered;
  Plan plan;
  uint64_t workspace = launch && call.workspace ? reinterpret_cast<uint64_t>(call.workspace) : kAlignment;
  if ((status = make_plan(call, queue, workspace, entered, plan)) != KILN_OK) return status;
  if (launch && (status = check_workspace(plan)) != KILN_OK) return status;
  // Everything that can fail before the device is touched has failed by now, except for loading and for encoding: all
  // images and descriptors first.
  Loaded* images[KILN_MAX_KERNELS];
  for (int32_t i = 0; i < plan.kernel_count; ++i)
    if ((status = load_slot(*plan.binding, plan.kernels[i].slot, *plan.kernels[i].image, &images[i])) != KILN_OK)
      return status;
  if (!launch) return KILN_OK;
  if (plan.descriptor_count && (status = encode_descriptors(entered.driver(), plan)) != KILN_OK) return status;
  for (int32_t i = 0; i < plan.kernel_count; ++i)
    if ((status = run_kernel(entered, plan, plan.kernels[i], *images[i])) != KILN_OK) return status;
  return KILN_OK;
}

}  // namespace
}  // namespace kiln

using namespace kiln;

extern "C" {

kiln_status kiln_launch(const kiln_call* call) { return run(call, true); }

kiln_status kiln_prepare(const kiln_call* call) { return run(call, false); }

kiln_status kiln_synchronize(kiln_t kiln, const kiln_queue* from) {
  kiln_status status = check_runtime(kiln);
  if (status != KILN_OK) return status;
  kiln_queue queue;
  if ((status = read_queue(from, "kiln_queue", &queue)) != KILN_OK) return status;
  Entered entered;
  if ((status = entered.enter(*kiln, queue)) != KILN_OK) return status;
  return entered.driver().calls->wait(entered.driver(), entered.scope);
}

kiln_status kiln_workspace_size(const kiln_call* from, uint64_t* bytes) {
  if (!bytes) return fail(KILN_E_ARGUMENT, "kiln_workspace_size: bytes is NULL");
  *bytes = 0;
  kiln_call call;
  kiln_queue queue;
  kiln_status status = read_call(from, &call, &queue);
  if (status != KILN_OK) return status;
  Entered entered;
  Plan plan;
  status = make_plan(call, queue, kAlignment, entered, plan);
  if (status == KILN_OK) *bytes = plan.workspace_bytes;
  return status;
}

kiln_status kiln_explain(const kiln_call* from, kiln_variant_fn visit, void* user) {
  if (!visit) return fail(KILN_E_ARGUMENT, "kiln_explain: visit is NULL");
  kiln_call call;
  kiln_queue queue;
  kiln_status status = read_call(from, &call, &queue);
  if (status != KILN_OK) return status;
  Plan plan;
  {
    Entered entered;  // not while the caller's function runs
    status = make_plan(call, queue, kAlignment, entered, plan);
  }
  return status == KILN_OK ? explain(plan, visit, user) : status;
}

}  // extern "C"
