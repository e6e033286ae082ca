// kiln_attn_bwd: parameters become a call of the recipe's operation. `deterministic` is no argument: all kernels there
// are give equal bits for equal calls.
#include "call.h"

namespace {

using namespace kiln_flash;

struct Backward {
  using Params = kiln_attn_bwd_params;
  static constexpr Params kDefaults = KILN_ATTN_BWD_PARAMS_INIT;
  static constexpr const char* kOperation = "flash.attn_bwd";
  static constexpr const char* kParams = "kiln_attn_bwd_params";

  static kiln_status check(const Params& params) {
    if (params.reserved1 || params.reserved2)
      return kiln_set_error(KILN_E_NEWER_CALLER, "a reserved field of kiln_attn_bwd_params is not zero");
    kiln_status status = check_dropout(params.dropout);
    return status == KILN_OK ? check_scores(params) : status;
  }

  static void add(const Params& params, Arguments* to) {
    to->tensors({params.q, params.k, params.v, params.out, params.dout, params.lse, params.dq, params.dk, params.dv,
                 params.dbias, params.dsinks});
    add_shared(params, to);
  }
};

}  // namespace

extern "C" {

kiln_status kiln_attn_bwd(kiln_t kiln, const kiln_queue* queue, const kiln_attn_bwd_params* params) {
  return enter<Backward>(kiln, queue, params, kiln_launch);
}

kiln_status kiln_attn_bwd_workspace(kiln_t kiln, const kiln_queue* queue, const kiln_attn_bwd_params* params,
                                    uint64_t* bytes) {
  return enter<Backward>(kiln, queue, params, kiln_workspace_size, bytes);
}

kiln_status kiln_attn_bwd_prepare(kiln_t kiln, const kiln_queue* queue, const kiln_attn_bwd_params* params) {
  return enter<Backward>(kiln, queue, params, kiln_prepare);
}

kiln_status kiln_attn_bwd_explain(kiln_t kiln, const kiln_queue* queue, const kiln_attn_bwd_params* params,
                                  kiln_variant_fn visit, void* user) {
  return enter<Backward>(kiln, queue, params, kiln_explain, visit, user);
}

}  // extern "C"
