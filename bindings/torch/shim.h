// What Kiln takes of libtorch: C functions of its stable interface, all of which PyTorch 2.10 and every later release
// has. They are declared here, so that one binary is built without PyTorch and serves every PyTorch from 2.10 on;
// tests/pytorch/test_shim.py compares the declarations with PyTorch's own headers, and libtorch.symbols with this list.
//
// None of them lets a C++ exception out: each returns 0, or has reported what happened and returns another number.
#pragma once

#include <stdint.h>

#include "dtypes.h"

extern "C" {

struct AtenTensorOpaque;
using AtenTensorHandle = AtenTensorOpaque*;  // owned by the code that got it from a call, or from a kernel's stack
class TorchLibraryOpaque;
using TorchLibraryHandle = TorchLibraryOpaque*;
struct StableListOpaque;
using StableListHandle = StableListOpaque*;
struct DeviceGuardOpaque;
using DeviceGuardHandle = DeviceGuardOpaque*;
using AOTITorchError = int32_t;

// One argument or result of a boxed kernel: a tensor is its handle, which belongs to the kernel (of an argument) or to
// libtorch (of a result); a list likewise; an integer, a truth value and a double lie in its bytes.
using StableIValue = uint64_t;

// Registration.
AOTITorchError aoti_torch_library_init_def(const char* ns, const char* file, uint32_t line, TorchLibraryHandle* out);
AOTITorchError aoti_torch_library_init_impl(const char* ns, const char* key, const char* file, uint32_t line,
                                            TorchLibraryHandle* out);
AOTITorchError aoti_torch_library_def(TorchLibraryHandle library, const char* schema);
AOTITorchError torch_library_impl(TorchLibraryHandle library, const char* name,
                                  void (*kernel)(StableIValue*, uint64_t, uint64_t), uint64_t extension_build_version);

// Calls an operator; its results take the place of its arguments.
AOTITorchError torch_call_dispatcher(const char* name, const char* overload, StableIValue* stack,
                                     uint64_t extension_build_version);

// Lists.
AOTITorchError torch_list_size(StableListHandle list, size_t* size);
AOTITorchError torch_list_get_item(StableListHandle list, size_t index, StableIValue* element);
AOTITorchError torch_delete_list(StableListHandle list);  // not what its elements own

// Tensors. Sizes and strides are borrowed.
AOTITorchError aoti_torch_get_dim(AtenTensorHandle tensor, int64_t* dim);
AOTITorchError aoti_torch_get_sizes(AtenTensorHandle tensor, int64_t** sizes);
AOTITorchError aoti_torch_get_strides(AtenTensorHandle tensor, int64_t** strides);
AOTITorchError aoti_torch_get_dtype(AtenTensorHandle tensor, int32_t* dtype);
AOTITorchError aoti_torch_get_layout(AtenTensorHandle tensor, int32_t* layout);
AOTITorchError aoti_torch_get_device_type(AtenTensorHandle tensor, int32_t* type);
AOTITorchError aoti_torch_get_device_index(AtenTensorHandle tensor, int32_t* index);
AOTITorchError torch_get_const_data_ptr(AtenTensorHandle tensor, const void** data);
AOTITorchError torch_get_mutable_data_ptr(AtenTensorHandle tensor, void** data);
AOTITorchError aoti_torch_zero_(AtenTensorHandle tensor);
AOTITorchError aoti_torch_empty_strided(int64_t dim, const int64_t* sizes, const int64_t* strides, int32_t dtype,
                                        int32_t device_type, int32_t device_index, AtenTensorHandle* out);
AOTITorchError aoti_torch_new_uninitialized_tensor(AtenTensorHandle* out);  // Python's None
AOTITorchError aoti_torch_delete_tensor_object(AtenTensorHandle tensor);

// Devices.
AOTITorchError aoti_torch_get_current_device_index(int32_t* index);
AOTITorchError aoti_torch_create_device_guard(int32_t index, DeviceGuardHandle* out);
AOTITorchError aoti_torch_delete_device_guard(DeviceGuardHandle guard);

// Numbers that libtorch does not promise to keep.
int32_t aoti_torch_layout_strided();
int32_t aoti_torch_device_type_cpu();
int32_t aoti_torch_device_type_cuda();
#define DECLARE(number, name, code, bits, torch) int32_t aoti_torch_dtype_##torch();
KILN_DTYPES(DECLARE)
#undef DECLARE

}  // extern "C"

namespace kiln_torch {

// Of libtorch_cuda.so or libtorch_hip.so, whichever the process has; looked up when a call needs it (runtime.cc).
using GetCurrentStream = AOTITorchError (*)(int32_t device_index, void** stream);
constexpr const char* kGetCurrentStream = "aoti_torch_get_current_cuda_stream";

// The release whose conventions for StableIValue are followed here: 2.10.0.
constexpr uint64_t kBuildVersion = (uint64_t{2} << 56) | (uint64_t{10} << 48);

}  // namespace kiln_torch
