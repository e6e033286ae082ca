// kiln_attn_bwd: parameters become a call of the recipe's operation. `deterministic` is no argument: all kernels there
// are give equal bits for equal calls.
#include "call.h"

namespace {

using namespace kiln_flash;

using BackwardArguments = Arguments<33>;

kiln_status make_call(kiln_t kiln, const kiln_queue* queue, const kiln_attn_bwd_params* from,
                      BackwardArguments* arguments, kiln_call* call) {
  const char* const name = "flash.attn_bwd";
  kiln_attn_bwd_params params = KILN_ATTN_BWD_PARAMS_INIT;
  kiln_operation operation;
  kiln_status status = kiln_read_struct(&params, sizeof params, from, "kiln_attn_bwd_params");
  if (status != KILN_OK) return status;
  if (params.reserved1)
    return kiln_set_error(KILN_E_NEWER_CALLER, "a reserved field of kiln_attn_bwd_params is not zero");
  if ((status = check_dropout(params.dropout)) != KILN_OK) return status;
  if ((status = check_softcap(params.softcap)) != KILN_OK) return status;
  if ((status = find(kiln, name, &operation)) != KILN_OK) return status;
  const kiln_tensor* const tensors[] = {params.q,  params.k,  params.v,  params.out,   params.dout,  params.lse,
                                        params.dq, params.dk, params.dv, params.dbias, params.dsinks};
  for (const kiln_tensor* tensor : tensors) arguments->tensor(tensor);
  add_shared(params, arguments);
  fill(params, queue, operation, *arguments, call);
  return KILN_OK;
}

}  // namespace

extern "C" {

kiln_status kiln_attn_bwd(kiln_t kiln, const kiln_queue* queue, const kiln_attn_bwd_params* params) {
  BackwardArguments arguments;
  kiln_call call;
  kiln_status status = make_call(kiln, queue, params, &arguments, &call);
  return status == KILN_OK ? kiln_launch(&call) : status;
}

kiln_status kiln_attn_bwd_workspace(kiln_t kiln, const kiln_queue* queue, const kiln_attn_bwd_params* params,
                                    uint64_t* bytes) {
  BackwardArguments arguments;
  kiln_call call;
  kiln_status status = make_call(kiln, queue, params, &arguments, &call);
  return status == KILN_OK ? kiln_workspace_size(&call, bytes) : status;
}

}  // extern "C"
