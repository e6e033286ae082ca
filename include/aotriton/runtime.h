/* Kiln: AOTriton's interface, streams. See flash.h. */
#ifndef AOTRITON_RUNTIME_H
#define AOTRITON_RUNTIME_H

#include <hip/hip_runtime.h>

#include <aotriton/config.h>

namespace AOTRITON_NS {

/* A driver's stream, borrowed; a value that converts from it. */
template <typename Native>
class AOTRITON_API StreamTemplate {
public:
    StreamTemplate() = default;
    StreamTemplate(Native stream) : native_(stream) {}

    Native native() const { return native_; }

private:
    Native native_ = nullptr;
};

/* On a machine without AMD devices it holds the CUstream of an NVIDIA device, cast to hipStream_t. */
using Stream = StreamTemplate<hipStream_t>;

}  // namespace AOTRITON_NS

#endif
