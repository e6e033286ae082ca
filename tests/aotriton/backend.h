// Attention as PyTorch's ROCm backend asks AOTriton for it: tensors of [batch, rows, heads, width], transposed into
// views; seeds in device memory, or those of a generator under capture; buffers made when they are asked for.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include <aotriton/config.h>
#include <aotriton/dtypes.h>
#include <aotriton/flash.h>
#include <aotriton/runtime.h>
#include <aotriton/util.h>

#if AOTRITON_VERSION_MAJOR * 100 + AOTRITON_VERSION_MINOR < 11
#error "this is of AOTriton 0.11 and later"
#endif

namespace backend {

using aotriton::TensorView;

// Bytes beside a structure that were written to, of all in this binary.
static int overwritten = 0;

// A structure between canaries: a constructor or a function of a larger one of the same name shows.
template <typename T>
class Guarded {
 public:
  Guarded() {
    std::memset(memory_, kCanary, sizeof memory_);
    made_ = new (memory_ + kGuard) T;
    count();  // what the constructor wrote
  }
  ~Guarded() { count(); }
  T& operator*() { return *made_; }

 private:
  static constexpr std::size_t kGuard = 512;
  static constexpr unsigned char kCanary = 0xC5;

  void count() {
    for (std::size_t i = 0; i < sizeof memory_; ++i) {
      if ((i < kGuard || i >= kGuard + sizeof(T)) && memory_[i] != kCanary) {
        memory_[i] = kCanary;
        ++overwritten;
      }
    }
  }

  alignas(16) unsigned char memory_[kGuard + sizeof(T) + kGuard];
  T* made_;
};

// A tensor that somebody else keeps.
struct Tensor {
  std::intptr_t data = 0;
  std::vector<std::int64_t> sizes, strides;
  aotriton::DType dtype = aotriton::kUnknown;

  bool defined() const { return data != 0; }
  std::int64_t size(int i) const { return sizes[static_cast<std::size_t>(i)]; }
  Tensor transposed(int a, int b) const {
    Tensor out = *this;
    std::swap(out.sizes[static_cast<std::size_t>(a)], out.sizes[static_cast<std::size_t>(b)]);
    std::swap(out.strides[static_cast<std::size_t>(a)], out.strides[static_cast<std::size_t>(b)]);
    return out;
  }
};

inline Tensor empty(std::intptr_t data, std::vector<std::int64_t> sizes, aotriton::DType dtype) {
  Tensor out{data, sizes, sizes, dtype};
  std::int64_t step = 1;
  for (std::size_t i = sizes.size(); i-- > 0; step *= sizes[i]) out.strides[i] = step;
  return out;
}

template <int Rank = 4>
TensorView<Rank> view(const Tensor& tensor) {
  std::array<std::uint64_t, Rank> sizes, strides;
  for (std::size_t i = 0; i < Rank; ++i) {
    sizes[i] = static_cast<std::uint64_t>(tensor.sizes[i]);
    strides[i] = static_cast<std::uint64_t>(tensor.strides[i]);
  }
  return TensorView<Rank>(tensor.data, sizes, strides, tensor.dtype);
}

template <int Rank>
TensorView<Rank> view_or_null(const std::optional<Tensor>& tensor, aotriton::DType dtype) {
  return tensor ? view<Rank>(*tensor) : TensorView<Rank>::get_null_tensor(dtype);
}

inline TensorView<0> scalar(const std::int64_t* address) {
  return TensorView<0>(reinterpret_cast<std::intptr_t>(address), aotriton::kUInt64);
}

// What a generator gives: outside of a capture a seed and an offset that lie in tensors; under one the addresses that a
// replay fills in, an offset within the graph, and tensors that the kernel writes what it used to.
struct Philox {
  bool captured = false;
  const std::int64_t *seed = nullptr, *offset = nullptr;
  std::uint64_t offset_in_graph = 0;
  Tensor seed_tensor, offset_tensor;

  TensorView<0> seed_view() const {
    return captured ? scalar(seed) : TensorView<0>(seed_tensor.data, seed_tensor.dtype);
  }
  TensorView<0> offset_view() const {
    return captured ? scalar(offset) : TensorView<0>(offset_tensor.data, offset_tensor.dtype);
  }
  TensorView<0> seed_output() const {
    return scalar(captured ? reinterpret_cast<const std::int64_t*>(seed_tensor.data) : nullptr);
  }
  TensorView<0> offset_output() const {
    return scalar(captured ? reinterpret_cast<const std::int64_t*>(offset_tensor.data) : nullptr);
  }
};

struct Sequences {
  Tensor cu_q, cu_k;
  std::int32_t max_q, max_k;
};

// One layer's tensors: q, k, v, out of [batch, rows, heads, width], or packed [1, all rows, heads, width]; lse of two
// dimensions.
struct Layer {
  Tensor q, k, v, out, lse;
  std::optional<Tensor> bias;
  std::optional<Sequences> sequences;
  float scale = 0.125f, dropout = 0;
  bool causal = false;
  std::optional<std::int64_t> left, right;  // of a window
  Philox philox;
  Tensor mask;  // what dropout keeps; of no size if it is not wanted

  TensorView<4> q_view() const { return view(q.transposed(1, 2)); }
  TensorView<4> k_view() const { return view(k.transposed(1, 2)); }
  TensorView<4> v_view() const { return view(v.transposed(1, 2)); }
  TensorView<4> out_view() const { return view(out.transposed(1, 2)); }
  TensorView<4> bias_view() const { return bias ? view(*bias) : TensorView<4>(0, {0, 0, 0, 0}, {0, 0, 0, 0}, q.dtype); }
};

struct Gradients {
  Tensor dout, dq, dk, dv;
  std::optional<Tensor> dbias;
  Tensor delta;  // as lse

  TensorView<4> dbias_view(aotriton::DType dtype) const { return view_or_null<4>(dbias, dtype); }
};

// ---- flat arguments ------------------------------------------------------------------------------------------------

// AOTriton's own headers (AOTRITONS_OWN) have them up to 0.11 in a form that every compiler takes. COMMON_ALONE: only
// what all versions have.
#if AOTRITON_VERSION_MINOR < 12 || (AOTRITON_VERSION_MINOR < 13 && !defined(AOTRITONS_OWN))
#ifndef COMMON_ALONE
#define HAS_FLAT
#endif
#endif
#ifdef HAS_FLAT

inline hipError_t forward_v2(const Layer& layer, const Tensor& counter, hipStream_t stream) {
  const Philox& philox = layer.philox;
  TensorView<0> atomic(layer.causal ? counter.data : 0, aotriton::kInt32);
  if (layer.sequences)
    return aotriton::v2::flash::attn_fwd_compact_varlen(
        layer.q_view(), layer.k_view(), layer.v_view(), layer.bias_view(), view<1>(layer.sequences->cu_q),
        view<1>(layer.sequences->cu_k), layer.sequences->max_q, layer.sequences->max_k, layer.scale, view<2>(layer.lse),
        layer.out_view(), layer.dropout, philox.seed_view(), philox.offset_view(),
        static_cast<std::int64_t>(philox.offset_in_graph), philox.seed_output(), philox.offset_output(),
        view(layer.mask), layer.causal, atomic, stream);
  return aotriton::v2::flash::attn_fwd(layer.q_view(), layer.k_view(), layer.v_view(), layer.bias_view(), layer.scale,
                                       view<2>(layer.lse), layer.out_view(), layer.dropout, philox.seed_view(),
                                       philox.offset_view(), static_cast<std::int64_t>(philox.offset_in_graph),
                                       philox.seed_output(), philox.offset_output(), view(layer.mask), layer.causal,
                                       atomic, stream);
}

#ifndef AOTRITONS_OWN
// As it was called up to 0.8.
inline hipError_t forward_of_0_8(const Layer& layer, hipStream_t stream) {
  const Philox& philox = layer.philox;
  if (layer.sequences)
    return aotriton::v2::flash::attn_fwd_compact_varlen(
        layer.q_view(), layer.k_view(), layer.v_view(), layer.bias_view(), view<1>(layer.sequences->cu_q),
        view<1>(layer.sequences->cu_k), layer.sequences->max_q, layer.sequences->max_k, layer.scale, view<2>(layer.lse),
        layer.out_view(), layer.dropout, philox.seed_view(), philox.offset_view(), 0, philox.seed_output(),
        philox.offset_output(), view(layer.mask), layer.causal, stream);
  return aotriton::v2::flash::attn_fwd(layer.q_view(), layer.k_view(), layer.v_view(), layer.bias_view(), layer.scale,
                                       view<2>(layer.lse), layer.out_view(), layer.dropout, philox.seed_view(),
                                       philox.offset_view(), 0, philox.seed_output(), philox.offset_output(),
                                       view(layer.mask), layer.causal, stream);
}

#endif

// The backward reads the seed and the offset from the tensors that the forward left them in.
inline hipError_t backward_v2(const Layer& layer, const Gradients& to, bool fused, hipStream_t stream) {
  TensorView<0> seed(layer.philox.seed_tensor.data, layer.philox.seed_tensor.dtype);
  TensorView<0> offset(layer.philox.offset_tensor.data, layer.philox.offset_tensor.dtype);
  TensorView<4> dout = view(to.dout.transposed(1, 2)), dq = view(to.dq.transposed(1, 2));
  TensorView<4> dk = view(to.dk.transposed(1, 2)), dv = view(to.dv.transposed(1, 2));
  if (layer.sequences)
    return aotriton::v2::flash::attn_bwd_compact_varlen(
        layer.q_view(), layer.k_view(), layer.v_view(), view<1>(layer.sequences->cu_q), view<1>(layer.sequences->cu_k),
        layer.sequences->max_q, layer.sequences->max_k, layer.bias_view(), layer.scale, layer.out_view(), dout, dq, dk,
        dv, to.dbias_view(layer.q.dtype), view<2>(layer.lse), view<2>(to.delta), layer.dropout, seed, offset, 0,
        layer.causal, stream);
  if (fused)
    return aotriton::v2::flash::attn_bwd_fused(
        layer.q_view(), layer.k_view(), layer.v_view(), layer.bias_view(), layer.scale, layer.out_view(), dout, dq, dk,
        dv, to.dbias_view(layer.q.dtype), view<2>(layer.lse), layer.dropout, seed, offset, 0, layer.causal, stream);
  return aotriton::v2::flash::attn_bwd(layer.q_view(), layer.k_view(), layer.v_view(), layer.bias_view(), layer.scale,
                                       layer.out_view(), dout, dq, dk, dv, to.dbias_view(layer.q.dtype),
                                       view<2>(layer.lse), view<2>(to.delta), layer.dropout, seed, offset, 0,
                                       layer.causal, stream);
}

#endif

// ---- structures ----------------------------------------------------------------------------------------------------

#if AOTRITON_VERSION_MINOR >= 14
// One side of sequences that lie one after another.
inline aotriton::v3::flash::VarlenMode packed_mode() {
  aotriton::v3::flash::VarlenMode mode{};
  mode.stacked = aotriton::v3::flash::VarlenStacked::THD;
  mode.length = aotriton::v3::flash::VarlenLength::CUMULATIVE;
  mode.position = aotriton::v3::flash::VarlenPosition::REUSE;
  return mode;
}
#endif

// What forward and backward set alike.
template <typename Params>
void set_shared(const Layer& layer, Params* params) {
  using aotriton::v3::flash::CausalType;
  using aotriton::v3::flash::WindowValue;
  params->Q = layer.q_view();
  params->K = layer.k_view();
  params->V = layer.v_view();
  if (layer.bias) params->B = layer.bias_view();
  params->Sm_scale = layer.scale;
  params->L = view<2>(layer.lse);
  params->Out = layer.out_view();
  params->dropout_p = layer.dropout;
  bool window = layer.left || layer.right;
  std::int32_t rows = layer.sequences ? layer.sequences->max_q : static_cast<std::int32_t>(layer.q.size(1));
  std::int32_t keys = layer.sequences ? layer.sequences->max_k : static_cast<std::int32_t>(layer.k.size(1));
  params->window_left = layer.causal ? WindowValue::BottomRightAligned : rows;
  params->window_right = layer.causal ? WindowValue::BottomRightAligned : keys;
  if (layer.left) params->window_left = static_cast<std::int32_t>(*layer.left);
  if (layer.right) params->window_right = static_cast<std::int32_t>(*layer.right);
  params->causal_type = layer.causal || window ? CausalType::WindowedAttention : CausalType::None;
  params->Max_seqlen_q = rows;
  params->Max_seqlen_k = keys;
  if (!layer.sequences) return;
#if AOTRITON_VERSION_MINOR >= 14
  params->varlen_bits.qmode = params->varlen_bits.kmode = packed_mode();
  params->seqinfo_q0 = view<1>(layer.sequences->cu_q);
  params->seqinfo_k0 = view<1>(layer.sequences->cu_k);
#else
  params->varlen_type = aotriton::v3::flash::VarlenType::CompactVarlen;
  params->cu_seqlens_q = view<1>(layer.sequences->cu_q);
  params->cu_seqlens_k = view<1>(layer.sequences->cu_k);
#endif
}

// The version of a structure by its address: what is shared between binaries by the loader would be another's.
template <typename Params>
std::int32_t version_of() {
#ifdef AOTRITONS_OWN
  return Params::kVersion;
#else
  const std::int32_t* volatile address = &Params::kVersion;
  return *address;
#endif
}

inline hipError_t forward_v3(const Layer& layer, const Tensor& counter, hipStream_t stream) {
  Guarded<aotriton::v3::flash::attn_fwd_params> guarded;
  aotriton::v3::flash::attn_fwd_params& params = *guarded;
  set_shared(layer, &params);
  params.philox_seed_ptr = layer.philox.seed_view();
  params.philox_offset1 = layer.philox.offset_view();
  params.philox_offset2 = layer.philox.offset_in_graph;
  params.philox_seed_output = layer.philox.seed_output();
  params.philox_offset_output = layer.philox.offset_output();
  params.encoded_softmax = view(layer.mask);
  params.persistent_atomic_counter = TensorView<0>(layer.causal ? counter.data : 0, aotriton::kInt32);
  return aotriton::v3::flash::attn_fwd(params, version_of<aotriton::v3::flash::attn_fwd_params>(), stream);
}

// A tensor that is made when it is asked for.
struct Lazy {
  Tensor like;
  int made = 0;

#if AOTRITON_VERSION_MINOR >= 12
  template <int Rank>
  using Holder = aotriton::LazyTensor<Rank>;
  template <int Rank>
  static Lazy* self_of(Holder<Rank>* holder) {
    return static_cast<Lazy*>(holder->cookie);
  }
#else
  template <int>
  using Holder = void;
  template <int>
  static Lazy* self_of(void* cookie) {
    return static_cast<Lazy*>(cookie);
  }
#endif
  template <int Rank>
  static TensorView<Rank> acquire(Holder<Rank>* holder) {
    Lazy* self = self_of<Rank>(holder);
    ++self->made;
    return view<Rank>(self->like);
  }
  template <int Rank>
  static void dispose(Holder<Rank>*) {}

  template <int Rank>
  aotriton::LazyTensor<Rank> tensor() {
#if __cplusplus >= 202002L
    return aotriton::LazyTensor<Rank>{.cookie = this, .acquire = &Lazy::acquire<Rank>, .dispose = &Lazy::dispose<Rank>};
#else
    return aotriton::LazyTensor<Rank>{this, &Lazy::acquire<Rank>, &Lazy::dispose<Rank>};
#endif
  }
};

// aiter_bwd: by that name in 0.11, and with options in later versions.
enum class Name { attn_bwd, aiter_bwd };

inline hipError_t backward_v3(const Layer& layer, const Gradients& to, Name name, Lazy* delta, Lazy* dq_acc,
                              hipStream_t stream) {
  using aotriton::v3::flash::attn_bwd_params;
  Guarded<attn_bwd_params> guarded;
  attn_bwd_params& params = *guarded;
  set_shared(layer, &params);
  params.DO = view(to.dout.transposed(1, 2));
  params.DQ = view(to.dq.transposed(1, 2));
  params.DK = view(to.dk.transposed(1, 2));
  params.DV = view(to.dv.transposed(1, 2));
  params.DB = to.dbias_view(layer.q.dtype);
  params.philox_seed_ptr = TensorView<0>(layer.philox.seed_tensor.data, layer.philox.seed_tensor.dtype);
  params.philox_offset1 = TensorView<0>(layer.philox.offset_tensor.data, layer.philox.offset_tensor.dtype);
  params.philox_offset2 = 0;
  params.D = delta->tensor<2>();
  params.DQ_ACC = dq_acc->tensor<4>();
  if (name == Name::aiter_bwd) {
    Guarded<aotriton::v3::flash::attn_options> guarded_options;
    aotriton::v3::flash::attn_options& options = *guarded_options;
#if AOTRITON_VERSION_MINOR >= 12
    options.deterministic = true;
#endif
#if AOTRITON_VERSION_MINOR >= 12 || defined(COMMON_ALONE)
    return aotriton::v3::flash::attn_bwd(params, version_of<attn_bwd_params>(), stream, &options);
#else
    return aotriton::v3::flash::aiter_bwd(params, version_of<attn_bwd_params>(), stream, &options);
#endif
  }
  return aotriton::v3::flash::attn_bwd(params, version_of<attn_bwd_params>(), stream);
}

}  // namespace backend
