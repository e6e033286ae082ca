// DLPack's structures, versions 0 and 1, as its ABI has them: how arrays of different libraries share memory.
#ifndef KILN_BINDINGS_DLPACK_H
#define KILN_BINDINGS_DLPACK_H

#include <stddef.h>
#include <stdint.h>

namespace kiln_python {

enum : int32_t { kDlCpu = 1, kDlCuda = 2, kDlRocm = 10, kDlCudaManaged = 13 };
enum : uint8_t { kDlInt = 0, kDlFloat = 2, kDlBfloat = 4 };  // those that are named; dtypes.h has all
constexpr uint64_t kDlReadOnly = 1;
constexpr uint32_t kDlMajor = 1;

struct DlDevice {
  int32_t type, id;
};
struct DlDataType {
  uint8_t code, bits;
  uint16_t lanes;
};
struct DlTensor {
  void* data;
  DlDevice device;
  int32_t rank;
  DlDataType dtype;
  int64_t* sizes;
  int64_t* strides;  // elements; null: contiguous
  uint64_t byte_offset;
};
// What a capsule "dltensor" holds.
struct DlManaged {
  DlTensor tensor;
  void* context;
  void (*deleter)(DlManaged*);
};
// What a capsule "dltensor_versioned" holds. All that follows `deleter` may move in another major version.
struct DlVersioned {
  uint32_t major, minor;
  void* context;
  void (*deleter)(DlVersioned*);
  uint64_t flags;
  DlTensor tensor;
};
// What a library's array type has under __dlpack_c_exchange_api__, in a capsule kDlExchangeName (DLPack 1.3). All of it
// is called with the GIL, and sets a Python error where it returns another number than 0.
struct DlExchange {
  uint32_t major, minor;
  DlExchange* earlier;
  void* allocate;
  void* from_python;
  void* to_python;
  int (*view)(void* object, DlTensor* out);  // borrowed from the object; null: not offered
  int (*current_stream)(int32_t device_type, int32_t device_id, void** out);
};
constexpr const char *kDlExchangeAttribute = "__dlpack_c_exchange_api__", *kDlExchangeName = "dlpack_exchange_api";
static_assert(sizeof(DlExchange) == 56, "DLPack's ABI");
static_assert(sizeof(DlTensor) == 48 && sizeof(DlManaged) == 64 && offsetof(DlVersioned, tensor) == 32, "DLPack's ABI");

}  // namespace kiln_python

#endif
