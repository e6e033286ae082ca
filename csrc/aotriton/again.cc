#include "again.h"

#include "errors.h"

namespace kiln_aotriton {
namespace {

// As if it were contiguous, with a width of its own. False: its elements have no number.
bool lay_out(const kiln_tensor& model, int64_t width, kiln_tensor* out, int64_t* elements) {
  *out = model;
  out->sizes[3] = width;
  *elements = 1;
  for (int i = 3; i >= 0; --i) {
    out->strides[i] = *elements;
    if (__builtin_mul_overflow(*elements, out->sizes[i], elements)) return false;
  }
  return true;
}

// Up to what other memory may begin at.
constexpr uint64_t rounded(uint64_t bytes) {
  return (bytes + KILN_WORKSPACE_ALIGNMENT - 1) & ~uint64_t{KILN_WORKSPACE_ALIGNMENT - 1};
}

}  // namespace

kiln_tensor all_lse(const kiln_tensor& q, void* anywhere) {
  const int64_t heads = q.sizes[1], rows = q.sizes[2];
  int64_t all;
  if (__builtin_mul_overflow(heads, rows, &all)) all = 0;  // libkiln refuses such a q
  return {anywhere, KILN_FP32, 3, {1, heads, rows}, {all, rows, 1}, {}};
}

hipError_t find_lse(const Session& session, const kiln_queue& queue, const kiln_attn_bwd_params& of, kiln_tensor* lse,
                    void** memory) {
  constexpr int64_t kMost = int64_t{1} << 56;  // elements; no device has so much memory
  kiln_tensor result;                          // not needed
  int64_t elements;
  if (!lay_out(*of.q, of.v->sizes[3], &result, &elements) || elements > kMost || lse->strides[0] > kMost)
    return refuse(KILN_E_RANGE, "aotriton: q has more rows than a backward can work out log-sum-exps of");
  const uint64_t lse_bytes = rounded(static_cast<uint64_t>(lse->strides[0]) * sizeof(float));
  const uint64_t element = of.q->dtype == KILN_FP32 ? 4 : 2;
  const Driver& driver = session.machine->driver;
  hipError_t error = allocate(driver, lse_bytes + static_cast<uint64_t>(elements) * element, queue.stream, memory);
  if (error) return error;
  lse->data = *memory;
  result.data = static_cast<char*>(*memory) + lse_bytes;
  kiln_attn_fwd_params params = KILN_ATTN_FWD_PARAMS_INIT;
  params.q = of.q;
  params.k = of.k;
  params.v = of.v;
  params.bias = of.bias;
  params.out = &result;
  params.lse = lse;
  params.cu_seqlens_q = of.cu_seqlens_q;
  params.cu_seqlens_k = of.cu_seqlens_k;
  params.seqused_q = of.seqused_q;
  params.seqused_k = of.seqused_k;
  params.max_seqlen_q = of.max_seqlen_q;
  params.max_seqlen_k = of.max_seqlen_k;
  params.window_left = of.window_left;
  params.window_right = of.window_right;
  params.bottom_right = of.bottom_right;
  params.sm_scale = of.sm_scale;
  error = error_of(kiln_attn_fwd(session.kiln, &queue, &params));
  return error ? release(driver, *memory, queue.stream, error) : hipSuccess;
}

}  // namespace kiln_aotriton
