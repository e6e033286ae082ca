// kiln_native::attn_decode: q is [batch, heads, rows, head_dim], or with rows first [batch, rows, heads, head_dim], as
// all other tensors of four dimensions are then.
#include "call.h"
#include "runtime.h"

namespace kiln_torch {
namespace {

// `rank`: the only one it may have, or 0 for 3 and 4.
void reshape(Call* call, kiln_tensor* tensor, const char* name, int32_t rank, bool rows_first, bool written) {
  if (call->status != KILN_OK) return;
  if ((rank && tensor->rank != rank) || !to_logical(tensor, rows_first))
    return call->fail(fail(KILN_E_ARGUMENT, "%s must have 4 dimensions%s, and has %d", name,
                           rank ? "" : ", or 3 for sequences one after another", static_cast<int>(tensor->rank)));
  if (tensor->strides[3] == 1) return;
  // A copy would be written in its place.
  if (written) return call->fail(fail(KILN_E_ARGUMENT, "the last dimension of %s must be contiguous (stride 1)", name));
  call->fail(kRefit);
}

void decode(Call* call, AtenTensorHandle* results) {
  using Decode = AttnDecode;
  kiln_tensor q, k_cache, v_cache, out, lse, tensors[Decode::kExtras];
  const kiln_tensor* extras[Decode::kExtras];
  call->tensor(Decode::kQPlace, "q", &q);
  call->tensor(Decode::kKCachePlace, "k_cache", &k_cache);
  call->tensor(Decode::kVCachePlace, "v_cache", &v_cache);
  call->tensor(Decode::kOutPlace, "out", &out);
  const int64_t flags = call->integer(Decode::kExtrasPlace + Decode::kFlags);
  call->extras<Decode>(Decode::kExtrasPlace, tensors, extras);
  const bool rows_first = flags & kRowsFirst;
  const int32_t rank = q.rank;
  reshape(call, &q, "q", 0, rows_first, false);
  reshape(call, &k_cache, "k_cache", 4, rows_first, true);
  reshape(call, &v_cache, "v_cache", 4, rows_first, true);
  reshape(call, &out, "out", rank, rows_first, true);
  for (int i = Decode::kKNew; i <= Decode::kVNew; ++i)
    if (extras[i]) reshape(call, &tensors[i], Decode::kNames[i], 4, rows_first, false);
  const kiln_tensor* sequences = extras[Decode::kCuSeqlensQ];
  if (extras[Decode::kAlibiSlopes])
    spread_slopes(&tensors[Decode::kAlibiSlopes], sequences ? sequences->sizes[0] - 1 : q.sizes[0]);
  call->begin();
  if (call->status != KILN_OK) return;
  kiln_attn_decode_params params = KILN_ATTN_DECODE_PARAMS_INIT;
  Decode::fill(*call, Decode::kExtrasPlace, extras, &params);
  if (flags & kReturnLse) results[0] = make_lse(call, q, rank, &lse);
  if (results[0]) params.lse = &lse;
  params.q = &q, params.k_cache = &k_cache, params.v_cache = &v_cache, params.out = &out;
  call->enqueue(kiln_attn_decode_workspace, kiln_attn_decode, &params);
}

}  // namespace

void attn_decode(StableIValue* stack, uint64_t, uint64_t) {
  Call call(stack);
  AtenTensorHandle results[1] = {};
  decode(&call, results);
  call.finish(results, 1);
}

}  // namespace kiln_torch
