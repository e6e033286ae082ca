// The operators of kiln_native, registered when the library is loaded: torch.ops.load_library, and a C++ program that
// loads it, expect them to be there then. So this is the one library of Kiln's with an initialiser.
#include <dlfcn.h>

#include "call.h"
#include "numbers.h"

namespace kiln_torch {

Numbers numbers;

void ask_numbers() {
  numbers.cpu = aoti_torch_device_type_cpu();
  numbers.cuda = aoti_torch_device_type_cuda();
  numbers.strided = aoti_torch_layout_strided();
#define ASK(number, name, code, bits, torch) aoti_torch_dtype_##torch,
  int32_t (*const kAsk[kDtypes])() = {KILN_DTYPES(ASK)};
#undef ASK
  for (int i = 0; i < kDtypes; ++i) numbers.torch_dtypes[i] = kAsk[i]();
}

namespace {

struct Operator {
  const char* name;
  const char* schema;
  void (*kernel)(StableIValue*, uint64_t, uint64_t);
};

// Whether something sees the operators that this thread calls, or transforms what they are given: that has a kernel of
// its own, which native.py registers for each key of the dispatcher's under which such a thing runs.
void is_watched(StableIValue* stack, uint64_t, uint64_t) { stack[0] = 0; }

constexpr Operator kOperators[] = {
#define OPERATOR(Type, name) {#name, Type::kSchema, name},
    KILN_NATIVE_OPERATORS(OPERATOR)
#undef OPERATOR
        {"is_watched", "is_watched() -> int", is_watched},
};

// Tensors of every kind and device come here, those that no kernel takes to be refused in our words.
constexpr const char* kKey = "CompositeExplicitAutograd";

int32_t failed;  // registrations

void register_all() {
  ask_numbers();
  TorchLibraryHandle schemas, kernels;
  // Never given back: they must be there as long as libtorch is.
  failed += aoti_torch_library_init_def("kiln_native", __FILE__, __LINE__, &schemas) != 0;
  failed += aoti_torch_library_init_impl("kiln_native", kKey, __FILE__, __LINE__, &kernels) != 0;
  if (failed) return;
  for (const Operator& each : kOperators) {
    failed += aoti_torch_library_def(schemas, each.schema) != 0;
    failed += torch_library_impl(kernels, each.name, each.kernel, kBuildVersion) != 0;
  }
}

// libtorch keeps the kernels' addresses, so the library must not be unloaded.
void stay() {
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(&stay), &info)) dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
}

__attribute__((constructor)) void load() {
  stay();
  register_all();
}

}  // namespace

}  // namespace kiln_torch

// Not 0 where something has the operators of this thread: what kiln_native::is_watched says, at less than half of its
// price from Python. With the GIL.
extern "C" KILN_API int32_t kiln_torch_is_watched() {
  StableIValue said = 0;
  const bool failed = torch_call_dispatcher("kiln_native::is_watched", "", &said, kiln_torch::kBuildVersion);
  return failed ? 1 : static_cast<int32_t>(said);
}

// How many of the operators could not be registered: 0, unless this PyTorch has another copy of the library already.
extern "C" KILN_API int32_t kiln_torch_failed() { return kiln_torch::failed; }
