// kiln_native::attn_fwd and attn_bwd.
#include <atomic>

#include "call.h"
#include "layout.h"
#include "runtime.h"

namespace kiln_torch {
namespace {

constexpr int kExtras = AttnFwd::kExtras;
static_assert(static_cast<int>(AttnBwd::kExtras) == kExtras, "forward and backward have the same optional tensors");

// What both have in common: q, k, v and all that shapes scores.
struct Attention {
  int64_t flags;
  int32_t rank_q, rank_k, rank_v;
  kiln_tensor q, k, v;
  kiln_tensor tensors[kExtras];
  const kiln_tensor* extras[kExtras];
  kiln_tensor seed, offset;
  int64_t bias_sizes[4];  // as PyTorch has them

  bool has(int64_t flag) const { return flags & flag; }
  bool rows_first() const { return has(kRowsFirst); }
  int64_t batch() const {
    return extras[AttnFwd::kCuSeqlensQ] ? extras[AttnFwd::kCuSeqlensQ]->sizes[0] - 1 : q.sizes[0];
  }
  // There may be rows that belong to no sequence.
  bool loose_q() const { return extras[AttnFwd::kCuSeqlensQ] || extras[AttnFwd::kSequsedQ]; }
  bool loose_k() const { return extras[AttnFwd::kCuSeqlensK] || extras[AttnFwd::kSequsedK]; }
};

// The four-dimensional tensors, as the kernels count dimensions.
void reshape(Call* call, kiln_tensor* tensor, const char* name, bool rows_first) {
  if (call->status != KILN_OK) return;
  if (!to_logical(tensor, rows_first))
    return call->fail(fail(KILN_E_ARGUMENT,
                           "%s must have 4 dimensions, or 3 for sequences one after another, and has %d", name,
                           static_cast<int>(tensor->rank)));
  if (tensor->strides[3] != 1) call->fail(kRefit);
}

// Sizes of 1 stand for all; strides of 0 make it so.
void broadcast_bias(Call* call, Attention* a) {
  if (!a->extras[AttnFwd::kBias] || call->status != KILN_OK) return;
  kiln_tensor& bias = a->tensors[AttnFwd::kBias];
  if (bias.rank != 4)
    return call->fail(fail(KILN_E_ARGUMENT,
                           "bias must have the shape [batch, heads, rows, keys], of which batch, heads "
                           "and rows may be 1"));
  if (bias.sizes[3] > 1 && bias.strides[3] != 1) return call->fail(kRefit);
  if (bias.sizes[3] == 1) bias.strides[3] = 1;
  const int64_t wanted[] = {a->batch(), a->q.sizes[1], a->q.sizes[2]};
  for (int i = 0; i < 4; ++i) a->bias_sizes[i] = bias.sizes[i];
  for (int i = 0; i < 3; ++i) {
    if (bias.sizes[i] != 1 || wanted[i] == 1) continue;
    bias.sizes[i] = wanted[i];
    bias.strides[i] = 0;
  }
}

// Reads what forward and backward share: q, k and v from `at` on, and what lies behind the list of other tensors.
void read(Call* call, int at, int list, Attention* a) {
  a->flags = call->integer(list + AttnFwd::kFlags);
  call->tensor(at, "q", &a->q);
  call->tensor(at + 1, "k", &a->k);
  call->tensor(at + 2, "v", &a->v);
  call->extras<AttnFwd>(list, a->tensors, a->extras);
  a->rank_q = a->q.rank, a->rank_k = a->k.rank, a->rank_v = a->v.rank;
  if (a->has(kAlike) && (a->rank_q != a->rank_k || a->rank_q != a->rank_v)) call->fail(kRefit);
  reshape(call, &a->q, "q", a->rows_first());
  reshape(call, &a->k, "k", a->rows_first());
  reshape(call, &a->v, "v", a->rows_first());
  if (a->has(kEqualHeads) && a->q.sizes[1] != a->k.sizes[1]) call->fail(kRefit);
  broadcast_bias(call, a);
  if (a->extras[AttnFwd::kAlibiSlopes]) spread_slopes(&a->tensors[AttnFwd::kAlibiSlopes], a->batch());
  if (a->extras[AttnFwd::kRng]) call->split(a->tensors[AttnFwd::kRng], "rng", &a->seed, &a->offset);
}

template <typename Operator, typename Params>
void fill(const Call& call, int list, const Attention& a, Params* to) {
  Operator::fill(call, list, a.extras, to);
  to->q = &a.q, to->k = &a.k, to->v = &a.v;
  if (a.extras[AttnFwd::kRng]) to->seed = &a.seed, to->offset = &a.offset;
}

// What the forward gives the backward, for the question whether there is one. Only descriptions are looked at; where
// there is no log-sum-exp, q stands for its memory.
kiln_status plan_backward(kiln_t kiln, const kiln_queue* queue, const Call& call, const Attention& a,
                          const kiln_tensor& out) {
  kiln_attn_bwd_params params = KILN_ATTN_BWD_PARAMS_INIT;
  fill<AttnBwd>(call, AttnFwd::kExtrasPlace, a, &params);
  kiln_tensor lse = a.q;
  lse.dtype = KILN_FP32, lse.rank = 3, lse.strides[2] = 1;
  lse.strides[1] = kiln_layout::at_least_one(a.q.sizes[2]);
  lse.strides[0] = lse.strides[1] * kiln_layout::at_least_one(a.q.sizes[1]);
  const kiln_tensor dq = describe_like(a.q, a.q.sizes[3], a.rows_first());
  const kiln_tensor dk = describe_like(a.k, a.k.sizes[3], a.rows_first());
  const kiln_tensor dv = describe_like(a.v, a.v.sizes[3], a.rows_first());
  params.out = &out, params.dout = &out, params.lse = &lse;
  params.dq = &dq, params.dk = &dk, params.dv = &dv;
  uint64_t bytes;
  return kiln_attn_bwd_workspace(kiln, queue, &params, &bytes);
}

// Which images there are depends on what makes a functional, not on sizes; so what was once found is remembered. Sizes
// that one launch cannot do are then refused by the backward itself. 0: nothing; a number is never 0.
class Planned {
 public:
  static uint64_t number(const Call& call, const Attention& a) {
    uint64_t width = static_cast<uint64_t>(a.q.sizes[3]), width_v = static_cast<uint64_t>(a.v.sizes[3]);
    uint64_t extras = 0;
    for (int i = 0; i < kExtras; ++i) extras |= static_cast<uint64_t>(a.extras[i] != nullptr) << i;
    constexpr int kList = AttnFwd::kExtrasPlace;
    static_assert(kExtras + 3 <= 12, "the bits of extras reach the device's: shift call.device by more than 44");
    extras |= static_cast<uint64_t>(call.real(kList + AttnFwd::kScale) < 0.0f) << kExtras;
    extras |= static_cast<uint64_t>(call.real(kList + AttnFwd::kSoftcap) > 0.0f) << (kExtras + 1);
    extras |= static_cast<uint64_t>(call.real(kList + AttnFwd::kDropout) > 0.0f) << (kExtras + 2);
    if (width >= 4096 || width_v >= 4096) return 0;
    return 1 | static_cast<uint64_t>(a.q.dtype) << 1 | width << 8 | width_v << 20 | extras << 32 |
           static_cast<uint64_t>(call.device) << 44;
  }
  bool has(uint64_t number) const { return number && of(number).load(std::memory_order_relaxed) == number; }
  void add(uint64_t number) const { of(number).store(number, std::memory_order_relaxed); }

 private:
  static std::atomic<uint64_t>& of(uint64_t number) { return known_[number * 0x9E3779B97F4A7C15u >> 58]; }
  static std::atomic<uint64_t> known_[64];
};
std::atomic<uint64_t> Planned::known_[64];

void forward(Call* call, AtenTensorHandle* results) {
  Attention a = {};
  read(call, AttnFwd::kQPlace, AttnFwd::kExtrasPlace, &a);
  call->begin();
  if (call->status != KILN_OK) return;
  kiln_tensor out, lse;
  results[0] = make_like(call, a.q, a.v.sizes[3], a.rank_q, a.rows_first(), a.loose_q(), &out);
  if (a.has(kReturnLse)) results[1] = make_lse(call, a.q, a.rank_q, &lse);
  kiln_attn_fwd_params params = KILN_ATTN_FWD_PARAMS_INIT;
  fill<AttnFwd>(*call, AttnFwd::kExtrasPlace, a, &params);
  params.out = &out;
  if (results[1]) params.lse = &lse;
  const Planned planned;
  const uint64_t number = a.has(kForBackward) ? Planned::number(*call, a) : 0;
  const bool plans = a.has(kForBackward) && !planned.has(number);
  call->run([&](kiln_t kiln, const kiln_queue* queue) {
    kiln_status status = plans ? plan_backward(kiln, queue, *call, a, out) : KILN_OK;
    return status == KILN_OK ? kiln_attn_fwd(kiln, queue, &params) : status;
  });
  if (plans && call->status == KILN_OK && number) planned.add(number);
}

// Of PyTorch's shape of bias, summed over what is 1 there.
AtenTensorHandle make_dbias(Call* call, const Attention& a, kiln_tensor* out) {
  const int64_t* sizes = a.bias_sizes;
  int64_t strides[4] = {0, 0, 0, 1};
  for (int i = 2; i >= 0; --i) strides[i] = strides[i + 1] * (sizes[i + 1] > 0 ? sizes[i + 1] : 1);
  const kiln_tensor& bias = a.tensors[AttnFwd::kBias];
  if (sizes[2] != bias.sizes[2]) {
    call->fail(
        fail(KILN_E_ARGUMENT, "the gradient of a bias that all rows share is not there: expand it over rows first"));
    return nullptr;
  }
  // Rows and keys beyond those of the call, or of no sequence, are not written.
  bool larger = sizes[2] > a.q.sizes[2] || sizes[3] > a.k.sizes[2];
  AtenTensorHandle handle = call->make(4, sizes, strides, bias.dtype, larger || a.loose_q() || a.loose_k(), out);
  for (int i = 0; i < 2; ++i)
    if (sizes[i] != bias.sizes[i]) out->sizes[i] = bias.sizes[i], out->strides[i] = 0;
  return handle;
}

void backward(Call* call, AtenTensorHandle* results) {
  Attention a = {};
  kiln_tensor dout, out, lse;
  call->tensor(AttnBwd::kDoutPlace, "dout", &dout);
  read(call, AttnBwd::kQPlace, AttnBwd::kExtrasPlace, &a);
  call->tensor(AttnBwd::kOutPlace, "out", &out);
  call->tensor(AttnBwd::kLsePlace, "lse", &lse);
  reshape(call, &dout, "dout", a.rows_first());
  reshape(call, &out, "out", a.rows_first());
  if (call->status == KILN_OK && lse.rank == 2) {
    lse.sizes[2] = lse.sizes[1], lse.strides[2] = lse.strides[1];
    lse.sizes[1] = lse.sizes[0], lse.strides[1] = lse.strides[0];
    lse.sizes[0] = 1, lse.strides[0] = lse.sizes[1] * lse.sizes[2];
    lse.rank = 3;
  }
  call->begin();
  if (call->status != KILN_OK) return;
  kiln_tensor dq, dk, dv, dbias, dsinks;
  results[0] = make_like(call, a.q, a.q.sizes[3], a.rank_q, a.rows_first(), a.loose_q(), &dq);
  results[1] = make_like(call, a.k, a.k.sizes[3], a.rank_k, a.rows_first(), a.loose_k(), &dk);
  results[2] = make_like(call, a.v, a.v.sizes[3], a.rank_v, a.rows_first(), a.loose_k(), &dv);
  if (a.has(kNeedDbias) && a.extras[AttnFwd::kBias]) results[3] = make_dbias(call, a, &dbias);
  const int64_t one = 1;
  if (a.has(kNeedDsinks) && a.extras[AttnFwd::kSinks])
    results[4] = call->make(1, a.tensors[AttnFwd::kSinks].sizes, &one, KILN_FP32, false, &dsinks);
  kiln_attn_bwd_params params = KILN_ATTN_BWD_PARAMS_INIT;
  fill<AttnBwd>(*call, AttnBwd::kExtrasPlace, a, &params);
  params.out = &out, params.dout = &dout, params.lse = &lse;
  params.dq = &dq, params.dk = &dk, params.dv = &dv;
  if (results[3]) params.dbias = &dbias;
  if (results[4]) params.dsinks = &dsinks;
  call->enqueue(kiln_attn_bwd_workspace, kiln_attn_bwd, &params);
}

}  // namespace

void attn_fwd(StableIValue* stack, uint64_t, uint64_t) {
  Call call(stack);
  AtenTensorHandle results[2] = {};
  forward(&call, results);
  call.finish(results, 2);
}

void attn_bwd(StableIValue* stack, uint64_t, uint64_t) {
  Call call(stack);
  AtenTensorHandle results[5] = {};
  backward(&call, results);
  call.finish(results, 5);
}

}  // namespace kiln_torch
