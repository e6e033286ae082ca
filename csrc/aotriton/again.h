// The log-sum-exps of compact sequences, worked out once more: PyTorch keeps memory between a forward and its backward
// that cannot hold them (is_short in prepare.h).
#pragma once

#include "open.h"

namespace kiln_aotriton {

// Those of all rows, by heads. No address yet: `anywhere` stands for it.
kiln_tensor all_lse(const kiln_tensor& q, void* anywhere);

// Runs the forward of a backward, without its dropout, and leaves `lse`, which all_lse() made, in memory that is taken
// on the stream and is the caller's to release. The backward's parameters are known to be good. A failure leaves a
// sentence and no memory.
hipError_t find_lse(const Session& session, const kiln_queue& queue, const kiln_attn_bwd_params& of, kiln_tensor* lse,
                    void** memory);

}  // namespace kiln_aotriton
