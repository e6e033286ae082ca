// attn_fwd, and what dropout keeps.
#include "call.h"
#include "errors.h"
#include "fill.h"
#include "prepare.h"
#include "refusal.h"

namespace kiln_aotriton {
namespace {

hipError_t write_mask(const Session& session, const kiln_queue& queue, const kiln_tensor* mask, const Dropout& from) {
  kiln_dropout_mask_params params = KILN_DROPOUT_MASK_PARAMS_INIT;
  params.mask = mask;
  if (!(from.probability <= 0.0f)) {
    params.seed = from.seed;
    params.offset = from.offset;
  }
  params.offset_value = from.offset_value;
  params.dropout = from.probability;
  return error_of(kiln_dropout_mask(session.kiln, &queue, &params));
}

hipError_t run(const Session& session, const kiln_queue& queue, const Forward& call, const Prepared& prepared) {
  kiln_attn_fwd_params params = KILN_ATTN_FWD_PARAMS_INIT;
  fill(call, prepared, &params);
  if (call.lse && !prepared.is_short) params.lse = &prepared.lse;
  params.seed_out = call.seed_out;
  params.offset_out = call.offset_out;
  hipError_t error = error_of(kiln_attn_fwd(session.kiln, &queue, &params));
  if (!error && prepared.is_short) error = fill_with_nan(session.machine->driver, *call.lse, queue.stream);
  if (error || !call.mask) return error;
  return write_mask(session, queue, call.mask, call.dropout);
}

hipError_t prepare_and_run(const Forward& call, void* stream) {
  if (call.slopes)
    return refuse(KILN_E_UNSUPPORTED, "aotriton: ALiBi slopes (A) are not supported: no backward has them");
  Prepared prepared;
  hipError_t error = prepare(call, &prepared);
  if (error) return error;
  Session session;
  if ((error = enter(&session))) return error;
  const kiln_queue queue = session.queue(stream);
  void* memory;
  if ((error = make_arrays(session, queue, &prepared.sequences, &memory))) return error;
  error = run(session, queue, call, prepared);
  return memory ? release(session.machine->driver, memory, stream, error) : error;
}

}  // namespace

hipError_t forward(const Forward& call, void* stream) {
  hipError_t error = prepare_and_run(call, stream);
  if (!error) return hipSuccess;
  const kiln_tensor* outputs[] = {call.out, call.lse, call.mask};
  return give_up("attn_fwd", error, stream, outputs);
}

hipError_t simulate(const kiln_tensor* mask, const Dropout& dropout, void* stream) {
  Session session;
  hipError_t error = enter(&session);
  if (!error) error = write_mask(session, session.queue(stream), mask, dropout);
  if (!error) return hipSuccess;
  const kiln_tensor* outputs[] = {mask};
  return give_up("debug_simulate_encoded_softmax", error, stream, outputs);
}

}  // namespace kiln_aotriton
