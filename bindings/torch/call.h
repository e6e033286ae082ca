// One call of a boxed kernel: its arguments become Kiln's, its results PyTorch's.
//
// Every kernel ends in a status, its last result, since no C++ exception may cross: 0, a kiln_status, or kRefit. Then
// the other results are undefined tensors, which are None in Python.
#pragma once

#include "flags.h"
#include "kiln/flash.h"
#include "shim.h"

namespace kiln_torch {

// The tensors mean something plain that no kernel takes as it is: a last dimension with a stride, say. The caller makes
// them fit and calls again. No sentence is left.
constexpr kiln_status kRefit = -1;

using namespace kiln_flags;

class Call {
 public:
  explicit Call(StableIValue* stack) : stack_(stack) {}
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  kiln_status status = KILN_OK;
  int32_t device = -1;

  // Reads an argument that is a tensor of up to KILN_MAX_RANK dimensions, and checks that all are on one device.
  void tensor(int at, const char* name, kiln_tensor* out) { read(take(stack_[at]), name, out); }
  // The same of the optional tensors of an operator. They come in one list, which lies at `at`, and a number behind it
  // whose bit n says that the n-th of them is there: libtorch passes optional values in cells that it allocates and
  // whose release differs between its versions. Tensor n goes to slots[n] if bit n is set, else that is NULL.
  template <typename Operator>
  void extras(int at, kiln_tensor* tensors, const kiln_tensor** slots) {
    AtenTensorHandle handles[Operator::kExtras];
    extras(at, Operator::kNames, Operator::kExtras, handles, tensors, slots);
  }
  // Two tensors of rank 0, of a pair of integers that lie one behind the other.
  void split(const kiln_tensor& pair, const char* name, kiln_tensor* first, kiln_tensor* second);
  int64_t integer(int at) const { return static_cast<int64_t>(stack_[at]); }
  // As fp32; what is 0 there alone becomes the smallest of its sign, since a 0 means something else: the usual scale,
  // no softcap, no dropout.
  float real(int at) const;
  // Only after the arguments were read: makes their device current, and finds the runtime and PyTorch's stream.
  void begin();

  // A fresh tensor on the call's device; zeroes it if asked. NULL if it failed; `out` describes it.
  AtenTensorHandle make(int32_t rank, const int64_t* sizes, const int64_t* strides, kiln_dtype dtype, bool zero,
                        kiln_tensor* out);
  // Device memory until the kernels of this call are enqueued, which is as long as PyTorch's allocator needs it.
  void* workspace(uint64_t bytes);
  // Calls again after a fork; `enter` gets the runtime and the queue.
  template <typename Enter>
  void run(Enter enter) {
    if (status != KILN_OK) return;
    status = enter(kiln_, &queue_);
    if (status != KILN_E_FORKED || (status = renew()) != KILN_OK) return;
    status = enter(kiln_, &queue_);
  }
  // The same of a typed entry, with the workspace that `size` says it needs.
  template <typename Params>
  void enqueue(kiln_status (*size)(kiln_t, const kiln_queue*, const Params*, uint64_t*),
               kiln_status (*entry)(kiln_t, const kiln_queue*, const Params*), Params* params) {
    run([&](kiln_t kiln, const kiln_queue* queue) {
      kiln_status sized = size(kiln, queue, params, &params->workspace_bytes);
      if (sized != KILN_OK) return sized;
      params->workspace = workspace(params->workspace_bytes);
      return status == KILN_OK ? entry(kiln, queue, params) : status;
    });
  }
  void fail(kiln_status why) {
    if (status == KILN_OK) status = why;
  }
  // Leaves the results and the status on the stack. Tensors that are NULL, or all of a failed call, become undefined.
  void finish(const AtenTensorHandle* results, int count);

  // How many tensors of PyTorch's a call may hold. The generated operators assert that theirs fit.
  static constexpr int kMostOwned = 32;

 private:
  void extras(int at, const char* const* names, int count, AtenTensorHandle* handles, kiln_tensor* tensors,
              const kiln_tensor** slots);
  AtenTensorHandle take(StableIValue value);
  void read(AtenTensorHandle handle, const char* name, kiln_tensor* out);
  kiln_status renew();

  StableIValue* stack_;
  AtenTensorHandle owned_[kMostOwned];
  int owned_count_ = 0;
  const char* first_ = nullptr;  // the argument that set the device
  DeviceGuardHandle guard_ = nullptr;
  kiln_t kiln_ = nullptr;
  kiln_queue queue_ = KILN_QUEUE_INIT(0, nullptr);
};

// ---- layouts: [batch, heads, rows, width], however PyTorch's tensor has it ----------------------------------------

// From what PyTorch has: rows before heads, rank 3 for sequences one after another. False: neither.
bool to_logical(kiln_tensor* tensor, bool rows_first);

// A fresh tensor of the rows of `model` and of `width` columns, as kiln_layout::result_like has it. What PyTorch sees
// has the rank and the order that the caller's tensor had.
AtenTensorHandle make_like(Call* call, const kiln_tensor& model, int64_t width, int32_t rank, bool rows_first,
                           bool zero, kiln_tensor* out);

// Its description alone.
kiln_tensor describe_like(const kiln_tensor& model, int64_t width, bool rows_first);

// ALiBi's slopes of heads alone are those of each of `batch` sequences.
void spread_slopes(kiln_tensor* slopes, int64_t batch);
// A fresh log-sum-exp: [batch, heads, rows] of q, which is logical and has `rank` dimensions in PyTorch; of 3 [heads,
// rows] is what PyTorch sees. NULL if it failed.
AtenTensorHandle make_lse(Call* call, const kiln_tensor& q, int32_t rank, kiln_tensor* out);

// The kernels that are written by hand, for library.cc; arguments.h has the others.
void attn_fwd(StableIValue* stack, uint64_t, uint64_t);
void attn_bwd(StableIValue* stack, uint64_t, uint64_t);
void attn_decode(StableIValue* stack, uint64_t, uint64_t);

}  // namespace kiln_torch

// Generated from the table of arguments: a type for each operator, with its schema, its optional tensors and the places
// of its arguments, and what fills the parameters of its typed entry.
#include "arguments.h"
