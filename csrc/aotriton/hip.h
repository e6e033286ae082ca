// HIP's types, of which hipError_t and hipStream_t are used. Its headers ask which platform they are for; AOTriton's,
// behind them, whether this is the library.
#pragma once

#define KILN_AOTRITON_LIBRARY

#ifndef __HIP_PLATFORM_AMD__
#define __HIP_PLATFORM_AMD__
#endif
#include <hip/hip_runtime.h>
