// kiln_attn_fwd and kiln_dropout_mask: parameters become calls of the recipe's operations.
#include "call.h"

namespace {

using namespace kiln_flash;

using ForwardArguments = Arguments<29>;

kiln_status make_call(kiln_t kiln, const kiln_queue* queue, const kiln_attn_fwd_params* from,
                      ForwardArguments* arguments, kiln_call* call) {
  const char* const name = "flash.attn_fwd";
  kiln_attn_fwd_params params = KILN_ATTN_FWD_PARAMS_INIT;
  kiln_operation operation;
  kiln_status status = kiln_read_struct(&params, sizeof params, from, "kiln_attn_fwd_params");
  if (status != KILN_OK) return status;
  if (params.reserved0 || params.reserved1)
    return kiln_set_error(KILN_E_NEWER_CALLER, "a reserved field of kiln_attn_fwd_params is not zero");
  if ((status = check_dropout(params.dropout)) != KILN_OK) return status;
  if ((status = check_softcap(params.softcap)) != KILN_OK) return status;
  if ((status = find(kiln, name, &operation)) != KILN_OK) return status;
  const kiln_tensor* const tensors[] = {params.q,   params.k,        params.v,         params.out,
                                        params.lse, params.seed_out, params.offset_out};
  for (const kiln_tensor* tensor : tensors) arguments->tensor(tensor);
  add_shared(params, arguments);
  fill(params, queue, operation, *arguments, call);
  return KILN_OK;
}

}  // namespace

extern "C" {

kiln_status kiln_attn_fwd(kiln_t kiln, const kiln_queue* queue, const kiln_attn_fwd_params* params) {
  ForwardArguments arguments;
  kiln_call call;
  kiln_status status = make_call(kiln, queue, params, &arguments, &call);
  return status == KILN_OK ? kiln_launch(&call) : status;
}

kiln_status kiln_attn_fwd_workspace(kiln_t kiln, const kiln_queue* queue, const kiln_attn_fwd_params* params,
                                    uint64_t* bytes) {
  ForwardArguments arguments;
  kiln_call call;
  kiln_status status = make_call(kiln, queue, params, &arguments, &call);
  return status == KILN_OK ? kiln_workspace_size(&call, bytes) : status;
}

kiln_status kiln_dropout_mask(kiln_t kiln, const kiln_queue* queue, const kiln_dropout_mask_params* from) {
  const char* const name = "flash.dropout_mask";
  kiln_dropout_mask_params params = KILN_DROPOUT_MASK_PARAMS_INIT;
  kiln_operation operation;
  kiln_status status = kiln_read_struct(&params, sizeof params, from, "kiln_dropout_mask_params");
  if (status != KILN_OK) return status;
  if (params.reserved0)
    return kiln_set_error(KILN_E_NEWER_CALLER, "a reserved field of kiln_dropout_mask_params is not zero");
  if ((status = check_dropout(params.dropout)) != KILN_OK) return status;
  if ((status = find(kiln, name, &operation)) != KILN_OK) return status;
  Arguments<6> arguments;
  arguments.tensor(params.mask);
  arguments.tensor(params.seed);
  arguments.tensor(params.offset);
  arguments.integer(threshold_of(params.dropout));
  arguments.integer(params.seed_value);
  arguments.integer(params.offset_value);
  kiln_call call = KILN_CALL_INIT;
  call.operation = operation;
  call.queue = queue;
  call.arguments = arguments.data();
  call.argument_count = arguments.count();
  call.force_target = params.force_target;
  return kiln_launch(&call);
}

}  // extern "C"
