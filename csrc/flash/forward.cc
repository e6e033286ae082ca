// kiln_attn_fwd and kiln_dropout_mask: parameters become calls of the recipe's operations.
#include "call.h"

namespace {

using namespace kiln_flash;

struct Forward {
  using Params = kiln_attn_fwd_params;
  static constexpr Params kDefaults = KILN_ATTN_FWD_PARAMS_INIT;
  static constexpr const char* kOperation = "flash.attn_fwd";
  static constexpr const char* kParams = "kiln_attn_fwd_params";

  static kiln_status check(const Params& params) {
    if (params.reserved0 || params.reserved1 || params.reserved2)
      return kiln_set_error(KILN_E_NEWER_CALLER, "a reserved field of kiln_attn_fwd_params is not zero");
    kiln_status status = check_dropout(params.dropout);
    return status == KILN_OK ? check_scores(params) : status;
  }

  static void add(const Params& params, Arguments* to) {
    to->tensors({params.q, params.k, params.v, params.out, params.lse, params.seed_out, params.offset_out});
    add_shared(params, to);
  }
};

struct DropoutMask {
  using Params = kiln_dropout_mask_params;
  static constexpr Params kDefaults = KILN_DROPOUT_MASK_PARAMS_INIT;
  static constexpr const char* kOperation = "flash.dropout_mask";
  static constexpr const char* kParams = "kiln_dropout_mask_params";

  static kiln_status check(const Params& params) {
    if (params.reserved0)
      return kiln_set_error(KILN_E_NEWER_CALLER, "a reserved field of kiln_dropout_mask_params is not zero");
    return check_dropout(params.dropout);
  }

  static void add(const Params& params, Arguments* to) {
    to->tensors({params.mask, params.seed, params.offset});
    to->integer(threshold_of(params.dropout));
    to->integer(params.seed_value);
    to->integer(params.offset_value);
  }
};

}  // namespace

extern "C" {

kiln_status kiln_attn_fwd(kiln_t kiln, const kiln_queue* queue, const kiln_attn_fwd_params* params) {
  return enter<Forward>(kiln, queue, params, kiln_launch);
}

kiln_status kiln_attn_fwd_workspace(kiln_t kiln, const kiln_queue* queue, const kiln_attn_fwd_params* params,
                                    uint64_t* bytes) {
  return enter<Forward>(kiln, queue, params, kiln_workspace_size, bytes);
}

kiln_status kiln_attn_fwd_prepare(kiln_t kiln, const kiln_queue* queue, const kiln_attn_fwd_params* params) {
  return enter<Forward>(kiln, queue, params, kiln_prepare);
}

kiln_status kiln_attn_fwd_explain(kiln_t kiln, const kiln_queue* queue, const kiln_attn_fwd_params* params,
                                  kiln_variant_fn visit, void* user) {
  return enter<Forward>(kiln, queue, params, kiln_explain, visit, user);
}

kiln_status kiln_dropout_mask(kiln_t kiln, const kiln_queue* queue, const kiln_dropout_mask_params* params) {
  return enter<DropoutMask>(kiln, queue, params, kiln_launch);
}

}  // extern "C"
