// attn_bwd, under all its names.
#include "again.h"
#include "call.h"
#include "errors.h"
#include "prepare.h"
#include "refusal.h"

namespace kiln_aotriton {
namespace {

// Works in memory that is taken on the stream, and given back on it. With `again`, params->lse stands for what is
// worked out once more.
hipError_t run(const Session& session, const kiln_queue& queue, kiln_tensor* again, kiln_attn_bwd_params* params) {
  uint64_t needed;
  hipError_t error = error_of(kiln_attn_bwd_workspace(session.kiln, &queue, params, &needed));
  if (error) return error;
  params->workspace_bytes = needed;
  const Driver& driver = session.machine->driver;
  if (needed && (error = allocate(driver, needed, queue.stream, &params->workspace))) return error;
  void* lse = nullptr;
  if (again) error = find_lse(session, queue, *params, again, &lse);
  if (!error) {
    error = error_of(kiln_attn_bwd(session.kiln, &queue, params));
    if (lse) error = release(driver, lse, queue.stream, error);
  }
  return params->workspace ? release(driver, params->workspace, queue.stream, error) : error;
}

hipError_t prepare_and_run(const Backward& call, void* stream) {
  Prepared prepared;
  hipError_t error = prepare(call, &prepared);
  if (error) return error;
  const int64_t batch = prepared.sequences.batch;
  const Placed &rows = prepared.sequences.rows, &keys = prepared.sequences.keys;
  kiln_attn_bwd_params params = KILN_ATTN_BWD_PARAMS_INIT;
  params.deterministic = 1;  // as AOTriton's own attn_bwd is, whatever its options say
  fill(call, prepared, &params);
  kiln_tensor shaped[4], again;
  params.dout = shape(rows, batch, call.dout, &shaped[0]);
  params.dq = shape(rows, batch, call.dq, &shaped[1]);
  params.dk = shape(keys, batch, call.dk, &shaped[2]);
  params.dv = shape(keys, batch, call.dv, &shaped[3]);
  params.dbias = call.dbias;
  params.lse = call.lse ? &prepared.lse : nullptr;
  if (prepared.is_short) {
    again = all_lse(*params.q, call.lse->data);
    params.lse = &again;
  }
  Session session;
  if ((error = enter(&session))) return error;
  const kiln_queue queue = session.queue(stream);
  void* memory;
  if ((error = make_arrays(session, queue, &prepared.sequences, &memory))) return error;
  error = run(session, queue, prepared.is_short ? &again : nullptr, &params);
  return memory ? release(session.machine->driver, memory, stream, error) : error;
}

}  // namespace

hipError_t backward(const Backward& call, void* stream) {
  hipError_t error = prepare_and_run(call, stream);
  if (!error) return hipSuccess;
  const kiln_tensor* outputs[] = {call.dq, call.dk, call.dv, call.dbias};
  return give_up("attn_bwd", error, stream, outputs);
}

}  // namespace kiln_aotriton
