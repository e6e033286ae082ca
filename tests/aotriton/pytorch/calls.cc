// The calls of PyTorch's ROCm backend, through the headers of a PyTorch: tensors become views by its
// aotriton_adapter.h, and structures are filled as its version knows how to.
//
//   calls <driver> <vendor>    the stand-in's path; 1 for NVIDIA, 2 for AMD
//
// Prints a line for each call, its name and its hipError_t, which stands in the record as a mark before it.
#include <dlfcn.h>

#include <cstdio>
#include <optional>

#include "aten.h"
// PyTorch's.
#include <ATen/native/transformers/hip/aotriton_adapter.h>
#include <ATen/native/transformers/hip/aotriton_versions.h>
// AOTriton's, behind them as there.
#include <aotriton/flash.h>
#include <aotriton/runtime.h>

#if AOTRITON_VERSION_MINOR >= 14 && !defined(AOTRITON_VARLEN_BITS_API)
#error "this PyTorch fills cu_seqlens_q and varlen_type, which this AOTriton does not have"
#endif

namespace {

using namespace sdp::aotriton_adapter;
using at::Tensor;
namespace v3 = aotriton::v3::flash;

constexpr std::intptr_t kStep = 0x100000;
constexpr int kBatch = 2, kHeads = 4, kHeadsKv = 2, kRows = 100, kKeys = 120, kWidth = 64, kWidthV = 56;

Tensor at_number(int number, std::vector<std::int64_t> sizes, at::ScalarType type = at::kBFloat16) {
  return at::at_address(kStep * number, std::move(sizes), type);
}

struct Layer {
  Tensor q = at_number(1, {kBatch, kRows, kHeads, kWidth});
  Tensor k = at_number(2, {kBatch, kKeys, kHeadsKv, kWidth});
  Tensor v = at_number(3, {kBatch, kKeys, kHeadsKv, kWidthV});
  Tensor out = at_number(4, {kBatch, kRows, kHeads, kWidthV});
  Tensor lse = at_number(5, {kBatch * kHeads, kRows}, at::kFloat);
  Tensor seed = at_number(40, {}, at::kLong), offset = at_number(41, {}, at::kLong);
  std::optional<Tensor> cu_q, cu_k;
  int rows = kRows, keys = kKeys;
  float dropout = 0;
  bool is_causal = false, is_captured = false;
  std::optional<std::int64_t> left, right;
};

Layer packed() {
  Layer layer;
  layer.q = at_number(1, {1, 250, kHeads, kWidth});
  layer.k = at_number(2, {1, 300, kHeadsKv, kWidth});
  layer.v = at_number(3, {1, 300, kHeadsKv, kWidthV});
  layer.out = at_number(4, {1, 250, kHeads, kWidthV});
  layer.lse = at_number(5, {3 * kHeads, kRows}, at::kFloat);
  layer.cu_q = at_number(50, {4}, at::kInt);
  layer.cu_k = at_number(51, {4}, at::kInt);
  return layer;
}

// 2.15 tells tensors that are read from those that are written.
template <int kRank = 4>
auto read(const Tensor& tensor, const char* name) {
#ifdef AOTRITON_VARLEN_BITS_API
  return mk_input_aotensor<kRank>(tensor, name);
#else
  return mk_aotensor<kRank>(tensor, name);
#endif
}
template <int kRank = 4>
auto written(const Tensor& tensor, const char* name) {
#ifdef AOTRITON_VARLEN_BITS_API
  return mk_output_aotensor<kRank>(tensor, name);
#else
  return mk_aotensor<kRank>(tensor, name);
#endif
}

template <typename Params>
void set_shared(const Layer& layer, Params* params) {
  params->Q = read(layer.q.transpose(1, 2), "q");
  params->K = read(layer.k.transpose(1, 2), "k");
  params->V = read(layer.v.transpose(1, 2), "v");
  params->Sm_scale = 0.125f;
  params->L = written<2>(layer.lse, "M");
  params->Out = written(layer.out.transpose(1, 2), "Out");
  params->Max_seqlen_q = layer.rows;
  params->Max_seqlen_k = layer.keys;
  params->dropout_p = layer.dropout;
  params->causal_type = v3::CausalType::None;
  params->window_left = params->window_right = 0;
  if (layer.is_causal) {
    params->causal_type = v3::CausalType::WindowedAttention;
    params->window_left = params->window_right = v3::WindowValue::BottomRightAligned;
  } else if (layer.left || layer.right) {
    params->causal_type = v3::CausalType::WindowedAttention;
    params->window_left = static_cast<int>(layer.left.value_or(layer.rows));
    params->window_right = static_cast<int>(layer.right.value_or(layer.keys));
  }
#if defined(AOTRITON_VARLEN_BITS_API) && AOTRITON_VARLEN_BITS_API
  if (layer.cu_q) {
    params->varlen_bits = mk_varlen_bits_packed();
    params->seqinfo_q0 = read<1>(*layer.cu_q, "cu_seqlens_q");
    params->seqinfo_k0 = read<1>(*layer.cu_k, "cu_seqlens_k");
  }
#else
  params->varlen_type = v3::VarlenType::None;
  if (layer.cu_q) {
    params->varlen_type = v3::VarlenType::CompactVarlen;
    params->cu_seqlens_q = read<1>(*layer.cu_q, "cu_seqlens_q");
    params->cu_seqlens_k = read<1>(*layer.cu_k, "cu_seqlens_k");
  }
#endif
}

hipError_t forward(const Layer& layer, hipStream_t stream) {
  v3::attn_fwd_params params;
  set_shared(layer, &params);
  const auto pointer = [](int number) { return reinterpret_cast<const std::int64_t*>(kStep * number); };
  if (layer.is_captured) {
    params.philox_seed_ptr = mk_philoxtensor(pointer(44));
    params.philox_offset1 = mk_philoxtensor(pointer(45));
    params.philox_offset2 = 5;
    params.philox_seed_output = mk_philoxtensor(pointer(40));
    params.philox_offset_output = mk_philoxtensor(pointer(41));
  } else {
    params.philox_seed_ptr = mk_aoscalartensor(layer.seed);
    params.philox_offset1 = mk_aoscalartensor(layer.offset);
    params.philox_offset2 = 0;
    params.philox_seed_output = mk_philoxtensor(nullptr);
    params.philox_offset_output = mk_philoxtensor(nullptr);
  }
  params.persistent_atomic_counter =
      mk_atomictensor(reinterpret_cast<const std::int32_t*>(layer.is_causal ? kStep * 60 : 0));
  return v3::attn_fwd(params, v3::attn_fwd_params::kVersion, stream);
}

hipError_t backward(const Layer& layer, hipStream_t stream) {
  const auto like = [](int number, const Tensor& tensor) { return at_number(number, tensor.shape, tensor.type); };
  v3::attn_bwd_params params;
  set_shared(layer, &params);
  params.DO = read(like(20, layer.out).transpose(1, 2), "dout");
  params.DQ = written(like(21, layer.q).transpose(1, 2), "dq");
  params.DK = written(like(22, layer.k).transpose(1, 2), "dk");
  params.DV = written(like(23, layer.v).transpose(1, 2), "dv");
  params.philox_seed_ptr = mk_aoscalartensor(layer.seed);
  params.philox_offset1 = mk_aoscalartensor(layer.offset);
  params.philox_offset2 = 0;
  LazyTensorContext delta{layer.lse, "delta", {}}, dq_acc{layer.q, "dq_acc", {}};
  params.D = mklazy_empty_like<2>(&delta);
  params.DQ_ACC = mklazy_fp32zeros<4>(&dq_acc);
#if AOTRITON_VERSION_MINOR >= 12
  v3::attn_options options;
  options.deterministic = true;
  return v3::attn_bwd(params, v3::attn_bwd_params::kVersion, stream, &options);
#else
  return v3::attn_bwd(params, v3::attn_bwd_params::kVersion, stream);
#endif
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  void* driver = dlopen(argv[1], RTLD_NOW);
  if (!driver) return 3;
  const int vendor = std::atoi(argv[2]);
  auto make_stream = reinterpret_cast<void* (*)(std::int32_t, int, int)>(dlsym(driver, "fake_stream"));
  auto mark = reinterpret_cast<void (*)(const char*)>(dlsym(driver, "fake_mark"));
  if (!make_stream || !mark) return 3;
  const hipStream_t stream = static_cast<hipStream_t>(make_stream(vendor, 0, 1));
  Layer dense, causal, window, sequences = packed();
  causal.is_causal = true;
  window.left = 8;
  sequences.right = 3;
  sequences.dropout = 0.25f;
  sequences.is_captured = true;
  const struct {
    const char* name;
    const Layer* layer;
    bool is_backward;
  } calls[] = {
      {"v3 forward", &dense, false},
      {"v3 backward", &dense, true},
      {"v3 forward, causal", &causal, false},
      {"v3 backward, causal", &causal, true},
      {"v3 forward, window", &window, false},
      {"v3 backward, window", &window, true},
      {"v3 forward, packed", &sequences, false},
      {"v3 backward, packed", &sequences, true},
  };
  bool failed = false;
  for (const auto& call : calls) {
    mark(call.name);
    const hipError_t error = call.is_backward ? backward(*call.layer, stream) : forward(*call.layer, stream);
    std::printf("%s\t%d\n", call.name, static_cast<int>(error));
    failed |= error != hipSuccess;
  }
  mark("end");
  return failed || at::made != 0;  // no lazy tensor is made
}
