// kiln_native::attn_decode: q is [batch, heads, rows, head_dim], or with rows first [batch, rows, heads, head_dim], as
// all other tensors of four dimensions are then.
#include "call.h"
#include "runtime.h"

namespace kiln_torch {
namespace {

enum {
  kKNew,
  kVNew,
  kUsedK,
  kCuQ,
  kTable,
  kCacheBatch,
  kLeftpad,
  kCos,
  kSin,
  kKScale,
  kVScale,
  kSinks,
  kSlopes,
  kExtras
};
constexpr const char* kNames[kExtras] = {"k_new",       "v_new",   "seqused_k",   "cu_seqlens_q", "block_table",
                                         "cache_batch", "leftpad", "rotary_cos",  "rotary_sin",   "k_scale",
                                         "v_scale",     "sinks",   "alibi_slopes"};
static_assert(kExtras == kMostExtras, "");

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
  constexpr int shared = 4;
  kiln_tensor q, k_cache, v_cache, out, lse, tensors[kExtras];
  const kiln_tensor* extras[kExtras];
  call->tensor(0, "q", &q);
  call->tensor(1, "k_cache", &k_cache);
  call->tensor(2, "v_cache", &v_cache);
  call->tensor(3, "out", &out);
  int64_t flags = call->integer(shared + 2);
  call->extras(shared, call->integer(shared + 1), kNames, kExtras, tensors, extras);
  const bool rows_first = flags & kRowsFirst;
  const int32_t rank = q.rank;
  reshape(call, &q, "q", 0, rows_first, false);
  reshape(call, &k_cache, "k_cache", 4, rows_first, true);
  reshape(call, &v_cache, "v_cache", 4, rows_first, true);
  reshape(call, &out, "out", rank, rows_first, true);
  for (int i = kKNew; i <= kVNew; ++i)
    if (extras[i]) reshape(call, &tensors[i], kNames[i], 4, rows_first, false);
  if (extras[kSlopes]) spread_slopes(&tensors[kSlopes], extras[kCuQ] ? extras[kCuQ]->sizes[0] - 1 : q.sizes[0]);
  call->begin();
  if (call->status != KILN_OK) return;
  kiln_attn_decode_params params = KILN_ATTN_DECODE_PARAMS_INIT;
  if (flags & kReturnLse) results[0] = make_lse(call, q, rank, &lse);
  if (results[0]) params.lse = &lse;
  params.q = &q, params.k_cache = &k_cache, params.v_cache = &v_cache, params.out = &out;
  params.k_new = extras[kKNew], params.v_new = extras[kVNew];
  params.seqused_k = extras[kUsedK], params.cu_seqlens_q = extras[kCuQ];
  params.block_table = extras[kTable], params.cache_batch = extras[kCacheBatch], params.leftpad = extras[kLeftpad];
  params.rotary_cos = extras[kCos], params.rotary_sin = extras[kSin];
  params.k_scale = extras[kKScale], params.v_scale = extras[kVScale];
  params.sinks = extras[kSinks], params.alibi_slopes = extras[kSlopes];
  params.sm_scale = call->real(shared + 3);
  params.softcap = call->real(shared + 4);
  params.max_seqlen_q = call->integer(shared + 5);
  params.max_seqlen_k = call->integer(shared + 6);
  params.window_left = call->integer(shared + 7);
  params.window_right = call->integer(shared + 8);
  params.splits = call->integer(shared + 9);
  params.causal = (flags & kCausal) != 0;
  params.rotary_interleaved = (flags & kInterleaved) != 0;
  call->run([&](kiln_t kiln, const kiln_queue* queue) {
    kiln_status status = kiln_attn_decode_workspace(kiln, queue, &params, &params.workspace_bytes);
    if (status != KILN_OK) return status;
    params.workspace = call->workspace(params.workspace_bytes);
    return call->status == KILN_OK ? kiln_attn_decode(kiln, queue, &params) : call->status;
  });
}

}  // namespace

void attn_decode(StableIValue* stack, uint64_t, uint64_t) {
  Call call(stack);
  AtenTensorHandle results[1] = {};
  decode(&call, results);
  call.finish(results, 1);
}

}  // namespace kiln_torch
