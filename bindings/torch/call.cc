#include "call.h"

#include <float.h>
#include <stdio.h>
#include <string.h>

#include "layout.h"
#include "numbers.h"
#include "runtime.h"

namespace kiln_torch {
namespace {

const char* place(int32_t type, int32_t index, char (&text)[32]) {
  if (type == numbers.cuda)
    snprintf(text, sizeof text, "cuda:%d", static_cast<int>(index));
  else
    snprintf(text, sizeof text, "%s", type == numbers.cpu ? "the CPU" : "another kind of device");
  return text;
}

}  // namespace

Call::~Call() {
  for (int i = 0; i < owned_count_; ++i) aoti_torch_delete_tensor_object(owned_[i]);
  if (guard_) aoti_torch_delete_device_guard(guard_);
}

float Call::real(int at) const {
  double value;
  memcpy(&value, &stack_[at], sizeof value);
  const float narrow = static_cast<float>(value);
  return narrow == 0.0f && value != 0.0 ? (value < 0.0 ? -FLT_MIN : FLT_MIN) : narrow;
}

AtenTensorHandle Call::take(StableIValue value) {
  AtenTensorHandle handle = reinterpret_cast<AtenTensorHandle>(value);
  owned_[owned_count_++] = handle;
  return handle;
}

void Call::read(AtenTensorHandle handle, const char* name, kiln_tensor* out) {
  memset(out, 0, sizeof *out);
  if (status != KILN_OK) return;
  int32_t layout = 0, dtype = 0, type = 0, index = 0;
  int64_t rank = 0, *sizes = nullptr, *strides = nullptr;
  if (aoti_torch_get_layout(handle, &layout) || layout != numbers.strided)
    return fail(kiln_torch::fail(KILN_E_ARGUMENT, "%s must be a dense tensor, neither sparse nor nested", name));
  if (aoti_torch_get_device_type(handle, &type) || aoti_torch_get_device_index(handle, &index) ||
      aoti_torch_get_dtype(handle, &dtype) || aoti_torch_get_dim(handle, &rank))
    return fail(kiln_torch::fail(KILN_E_ARGUMENT, "%s is a tensor that PyTorch tells nothing of", name));
  char text[32], other[32];
  if (type != numbers.cuda)
    return fail(kiln_torch::fail(KILN_E_ARGUMENT, "%s is on %s; all tensors must be on one CUDA or ROCm device", name,
                                 place(type, index, text)));
  if (!first_) {
    first_ = name;
    device = index;
  } else if (index != device) {
    return fail(kiln_torch::fail(KILN_E_ARGUMENT, "%s is on %s and %s on %s; all tensors must be on one device", name,
                                 place(type, index, text), first_, place(type, device, other)));
  }
  out->dtype = dtype_of(dtype);
  if (!out->dtype) return fail(kiln_torch::fail(KILN_E_ARGUMENT, "%s has a dtype that no kernel takes", name));
  if (rank > KILN_MAX_RANK)
    return fail(
        kiln_torch::fail(KILN_E_ARGUMENT, "%s has %d dimensions, which are too many", name, static_cast<int>(rank)));
  const void* data = nullptr;
  if (aoti_torch_get_sizes(handle, &sizes) || aoti_torch_get_strides(handle, &strides) ||
      torch_get_const_data_ptr(handle, &data))
    return fail(kiln_torch::fail(KILN_E_ARGUMENT, "%s has no memory that a kernel can read", name));
  out->data = const_cast<void*>(data);
  out->rank = static_cast<int32_t>(rank);
  for (int32_t i = 0; i < out->rank; ++i) {
    out->sizes[i] = sizes[i];
    out->strides[i] = strides[i];
  }
}

void Call::extras(int at, const char* const* names, int count, AtenTensorHandle* handles, kiln_tensor* tensors,
                  const kiln_tensor** slots) {
  const int64_t which = integer(at + 1);
  StableListHandle list = reinterpret_cast<StableListHandle>(stack_[at]);
  size_t size = 0;
  torch_list_size(list, &size);
  int given = 0;
  for (size_t i = 0; i < size; ++i) {
    StableIValue value = 0;
    if (torch_list_get_item(list, i, &value)) continue;
    if (given < count)
      handles[given++] = take(value);
    else
      aoti_torch_delete_tensor_object(reinterpret_cast<AtenTensorHandle>(value));
  }
  torch_delete_list(list);
  int next = 0;
  for (int n = 0; n < count; ++n) {
    slots[n] = nullptr;
    if (!(which >> n & 1)) continue;
    if (next < given) {
      read(handles[next], names[n], &tensors[n]);
      slots[n] = &tensors[n];
    }
    ++next;
  }
  if (next != given || size > static_cast<size_t>(given))
    fail(kiln_torch::fail(KILN_E_ARGUMENT, "the list of optional tensors has %d entries, and `which` names %d",
                          static_cast<int>(size), next));
}

void Call::split(const kiln_tensor& pair, const char* name, kiln_tensor* first, kiln_tensor* second) {
  if (status != KILN_OK) return;
  if (pair.rank != 1 || pair.sizes[0] != 2 || pair.strides[0] != 1 || pair.dtype != KILN_INT64)
    return fail(
        kiln_torch::fail(KILN_E_ARGUMENT, "%s must be a contiguous tensor of two int64: seed and offset", name));
  *first = pair;
  first->rank = 0;
  *second = *first;
  second->data = static_cast<int64_t*>(pair.data) + 1;
}

void Call::begin() {
  if (status != KILN_OK) return;
  int32_t current = -1;
  if (aoti_torch_get_current_device_index(&current) || current != device)
    if (aoti_torch_create_device_guard(device, &guard_))
      return fail(kiln_torch::fail(KILN_E_DRIVER, "PyTorch cannot make device %d current", static_cast<int>(device)));
  if ((status = current_queue(device, &queue_)) == KILN_OK) status = runtime(&kiln_);
}

kiln_status Call::renew() { return runtime(&kiln_, kiln_); }

AtenTensorHandle Call::make(int32_t rank, const int64_t* sizes, const int64_t* strides, kiln_dtype dtype, bool zero,
                            kiln_tensor* out) {
  if (status != KILN_OK) return nullptr;
  AtenTensorHandle handle = nullptr;
  if (aoti_torch_empty_strided(rank, sizes, strides, torch_dtype_of(dtype), numbers.cuda, device, &handle)) {
    status = kiln_torch::fail(KILN_E_OUT_OF_MEMORY, "PyTorch gives no memory on cuda:%d for a tensor of this call",
                              static_cast<int>(device));
    return nullptr;
  }
  if (zero && aoti_torch_zero_(handle))
    status = kiln_torch::fail(KILN_E_DRIVER, "PyTorch cannot set a tensor of this call to zero");
  memset(out, 0, sizeof *out);
  out->dtype = dtype;
  out->rank = rank;
  memcpy(out->sizes, sizes, sizeof *sizes * static_cast<size_t>(rank));
  memcpy(out->strides, strides, sizeof *strides * static_cast<size_t>(rank));
  torch_get_mutable_data_ptr(handle, &out->data);
  return handle;
}

void* Call::workspace(uint64_t bytes) {
  if (status != KILN_OK || !bytes) return nullptr;
  constexpr uint64_t kMask = KILN_WORKSPACE_ALIGNMENT - 1;
  // PyTorch's own allocator aligns by 512; another that was plugged in need not.
  int64_t size = static_cast<int64_t>(bytes + kMask), stride = 1;
  kiln_tensor memory;
  AtenTensorHandle handle = make(1, &size, &stride, KILN_UINT8, false, &memory);
  if (!handle) return nullptr;
  owned_[owned_count_++] = handle;
  return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(memory.data) + kMask) & ~static_cast<uintptr_t>(kMask));
}

void Call::finish(const AtenTensorHandle* results, int count) {
  for (int i = 0; i < count; ++i) {
    AtenTensorHandle result = results[i];
    if (result && status != KILN_OK) {
      aoti_torch_delete_tensor_object(result);
      result = nullptr;
    }
    if (!result) aoti_torch_new_uninitialized_tensor(&result);
    stack_[i] = reinterpret_cast<StableIValue>(result);
  }
  stack_[count] = static_cast<StableIValue>(static_cast<int64_t>(status));
}

bool to_logical(kiln_tensor* tensor, bool rows_first) {
  if (tensor->rank == 3) {
    for (int i = 3; i > 0; --i) {
      tensor->sizes[i] = tensor->sizes[i - 1];
      tensor->strides[i] = tensor->strides[i - 1];
    }
    tensor->sizes[0] = 1;
    tensor->strides[0] = 0;
    tensor->rank = 4;
  }
  if (tensor->rank != 4) return false;
  if (rows_first) {
    int64_t size = tensor->sizes[1], stride = tensor->strides[1];
    tensor->sizes[1] = tensor->sizes[2], tensor->strides[1] = tensor->strides[2];
    tensor->sizes[2] = size, tensor->strides[2] = stride;
  }
  if (tensor->sizes[3] == 1) tensor->strides[3] = 1;  // of one element any stride is right
  return true;
}

void spread_slopes(kiln_tensor* slopes, int64_t batch) {
  if (slopes->rank != 1) return;
  slopes->rank = 2;
  slopes->sizes[1] = slopes->sizes[0], slopes->strides[1] = slopes->strides[0];
  slopes->sizes[0] = batch, slopes->strides[0] = 0;
}

kiln_tensor describe_like(const kiln_tensor& model, int64_t width, bool rows_first) {
  return kiln_layout::result_like(model, width, rows_first);
}

AtenTensorHandle make_like(Call* call, const kiln_tensor& model, int64_t width, int32_t rank, bool rows_first,
                           bool zero, kiln_tensor* out) {
  *out = describe_like(model, width, rows_first);
  int64_t sizes[4], strides[4];
  kiln_layout::in_callers_order(out->sizes, rows_first, sizes);
  kiln_layout::in_callers_order(out->strides, rows_first, strides);
  const int first = 4 - rank;
  kiln_tensor made = {};
  AtenTensorHandle handle = call->make(rank, sizes + first, strides + first, model.dtype, zero, &made);
  out->data = made.data;
  return handle;
}

AtenTensorHandle make_lse(Call* call, const kiln_tensor& q, int32_t rank, kiln_tensor* out) {
  const int64_t heads = q.sizes[1], rows = q.sizes[2], sizes[] = {q.sizes[0], heads, rows};
  const int64_t inner = kiln_layout::at_least_one(rows);
  const int64_t strides[] = {inner * kiln_layout::at_least_one(heads), inner, 1};
  const int first = 4 - rank;
  AtenTensorHandle handle = call->make(rank - 1, sizes + first, strides + first, KILN_FP32, false, out);
  if (!handle) return nullptr;
  for (int i = 0; i < 3; ++i) out->sizes[i] = sizes[i], out->strides[i] = strides[i];
  out->rank = 3;
  return handle;
}

}  // namespace kiln_torch
