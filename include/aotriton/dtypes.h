/* Kiln: AOTriton's interface, types of elements. See flash.h. */
#ifndef AOTRITON_DTYPES_H
#define AOTRITON_DTYPES_H

#include <stdint.h>

#include <aotriton/config.h>

namespace AOTRITON_NS {

enum DType : int32_t {
    kUnknown = 0,
    kFloat32 = 1,
    kFloat16 = 2,
    kBFloat16 = 3,
    kInt8 = 10,
    kInt16 = 11,
    kInt32 = 12,
    kInt64 = 13,
    kUInt8 = 20,
    kUInt16 = 21,
    kUInt32 = 22,
    kUInt64 = 23,
};

}  // namespace AOTRITON_NS

#endif
