// Attention on tensors of PyTorch's C++ library: the C entries of kiln/flash.h on their memory and on PyTorch's stream.
//
// Exit code 0: the answer is PyTorch's. 1: it is not, or a call failed. 77: PyTorch has no GPU here.
#include <cstdio>
#include <cstdlib>
#include <initializer_list>

#include <torch/torch.h>

#include <kiln/flash.h>
#include <kiln/torch.h>

namespace {

constexpr int kNoGpu = 77;

void check(kiln_status status) {
  if (status == KILN_OK) return;
  std::fprintf(stderr, "%s\n", kiln_error());
  std::exit(1);
}

kiln_dtype dtype_of(const torch::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case torch::kHalf:
      return KILN_FP16;
    case torch::kBFloat16:
      return KILN_BF16;
    case torch::kFloat:
      return KILN_FP32;
    default:
      std::fprintf(stderr, "attention is for tensors of half, bfloat16 and float\n");
      std::exit(1);
  }
}

// What Kiln is told of a tensor. Its memory is borrowed: the tensor must live until the work is enqueued; PyTorch's
// allocator takes care of the rest, since the work is on its own stream.
kiln_tensor view(const torch::Tensor& tensor) {
  kiln_tensor result = {};
  result.data = tensor.data_ptr();
  result.dtype = dtype_of(tensor);
  result.rank = static_cast<int32_t>(tensor.dim());
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    result.sizes[i] = tensor.size(i);
    result.strides[i] = tensor.stride(i);
  }
  return result;
}

// [batch, heads, rows, head_dim], causal.
torch::Tensor attention(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v) {
  torch::Tensor out = torch::empty_like(q);
  kiln_t kiln;
  kiln_queue queue;
  check(kiln_torch_runtime(&kiln));
  check(kiln_torch_queue(q.device().index(), &queue));
  kiln_tensor views[] = {view(q), view(k), view(v), view(out)};
  kiln_attn_fwd_params params = KILN_ATTN_FWD_PARAMS_INIT;
  params.q = &views[0], params.k = &views[1], params.v = &views[2], params.out = &views[3];
  params.causal = 1;
  uint64_t bytes;
  check(kiln_attn_fwd_workspace(kiln, &queue, &params, &bytes));
  torch::Tensor workspace = torch::empty({static_cast<int64_t>(bytes)}, q.options().dtype(torch::kByte));
  params.workspace = workspace.data_ptr(), params.workspace_bytes = bytes;
  check(kiln_attn_fwd(kiln, &queue, &params));
  return out;
}

}  // namespace

int main() {
  if (!torch::cuda::is_available()) {
    std::printf("PyTorch has no GPU here\n");
    return kNoGpu;
  }
  torch::manual_seed(1);
  auto options = torch::dtype(torch::kBFloat16).device(torch::kCUDA);
  torch::Tensor q = torch::randn({2, 4, 300, 64}, options);
  torch::Tensor k = torch::randn({2, 4, 300, 64}, options), v = torch::randn({2, 4, 300, 64}, options);
  torch::Tensor exact = torch::scaled_dot_product_attention(q.to(torch::kDouble), k.to(torch::kDouble),
                                                            v.to(torch::kDouble), {}, 0.0, /*is_causal=*/true);
  double error = (attention(q, k, v).to(torch::kDouble) - exact).abs().max().item<double>();
  bool is_right = error < 0.02;
  std::printf("%s: the largest error is %.4f\n", is_right ? "right" : "WRONG", error);
  return is_right ? 0 : 1;
}
