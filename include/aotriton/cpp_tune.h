/* Kiln: AOTriton's interface, choices of its tuner. See flash.h. */
#ifndef AOTRITON_CPP_TUNE_H
#define AOTRITON_CPP_TUNE_H

#include <aotriton/config.h>

namespace AOTRITON_NS::v2 {

/* Empty, as it is in every AOTriton that was not built to be tuned. What Kiln would run, kiln_attn_fwd_explain and
 * kiln_attn_bwd_explain tell; force_keys of kiln/flash.h choose another. */
struct AOTRITON_API CppTune {};

enum CppTuneSpecialKernelIndex : int {
    kDefault = -1,
    kSkipGPUCall = -2,
};

}  // namespace AOTRITON_NS::v2

#endif
