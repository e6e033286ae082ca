// Tensor descriptors: what a kernel is told of a tensor that it moves by the device's copy engine.
#pragma once

#include "driver.h"

namespace kiln {

constexpr size_t kMapBytes = 128;  // of a CUtensorMap, which is aligned to 64

// All that an encoded descriptor depends on. Dimensions from the outermost; what is behind the rank is zero.
struct DescriptorKey {
  uint64_t address;
  int64_t strides[KILN_MAX_DESCRIPTOR_RANK];  // elements
  int32_t sizes[KILN_MAX_DESCRIPTOR_RANK];
  int32_t device;  // the ordinal
  uint16_t box[KILN_MAX_DESCRIPTOR_RANK];
  uint8_t rank, element_type, swizzle;
  uint8_t zero[3];
};
static_assert(sizeof(DescriptorKey) == 88, "it is compared byte by byte, and so has no padding");

struct alignas(64) Descriptor {
  uint8_t map[kMapBytes];
  DescriptorKey key;
};

// Fills in the map by the key: by this thread's cache, else by the driver. `argument` is the tensor's name.
kiln_status encode(Driver& driver, const char* argument, Descriptor& descriptor);

}  // namespace kiln
