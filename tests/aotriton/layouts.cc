// Prints the layout of AOTriton's public structures: sizes, alignments, where each field lies, and constants. Compiled
// against the headers of an interface, Kiln's or AOTriton's own.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include <aotriton/config.h>
#include <aotriton/dtypes.h>
#include <aotriton/flash.h>
#include <aotriton/util.h>

namespace {

using namespace aotriton;
using namespace aotriton::v3::flash;

void print_size(const char* structure, std::size_t size, std::size_t alignment) {
  std::printf("struct %s: %zu bytes, aligned to %zu\n", structure, size, alignment);
}

void print_field(const char* structure, const char* name, std::size_t offset, std::size_t size) {
  std::printf("  %s.%s at %zu, %zu bytes\n", structure, name, offset, size);
}

#define STRUCT(...) print_size(#__VA_ARGS__, sizeof(__VA_ARGS__), alignof(__VA_ARGS__))
#define FIELD(structure, name) \
  print_field(#structure, #name, offsetof(structure, name), sizeof(static_cast<structure*>(nullptr)->name))
#define CONSTANT(name) std::printf("constant %s = %lld\n", #name, static_cast<long long>(name))

#define IN_HEX(name) std::printf("constant %s = 0x%llx\n", #name, static_cast<unsigned long long>(name))

std::size_t offset_of(const void* structure, const void* field) {
  return static_cast<std::size_t>(static_cast<const char*>(field) - static_cast<const char*>(structure));
}

// Fields of a view are private; its functions tell where they lie, and a value of its own where the dtype does.
template <int Rank>
void print_view() {
  constexpr auto kValue = DType::kUInt64;
  TensorView<Rank> view = TensorView<Rank>::get_null_tensor(kValue);
  char name[32];
  std::snprintf(name, sizeof name, "TensorView<%d>", Rank);
  print_size(name, sizeof view, alignof(TensorView<Rank>));
  print_field(name, "base", offset_of(&view, view.kparam_data_ptr()), sizeof view.data_ptr());
  if constexpr (Rank > 0) {
    print_field(name, "sizes", offset_of(&view, view.size_ptr()), sizeof *view.size_ptr() * Rank);
    print_field(name, "strides", offset_of(&view, view.stride_ptr()), sizeof *view.stride_ptr() * Rank);
  }
  for (std::size_t at = 0; at + sizeof kValue <= sizeof view; at += sizeof kValue) {
    if (std::memcmp(reinterpret_cast<const char*>(&view) + at, &kValue, sizeof kValue) == 0)
      print_field(name, "dtype", at, sizeof kValue);
  }
}

template <int Rank>
void print_lazy() {
  using Lazy = LazyTensor<Rank>;
  char name[32];
  std::snprintf(name, sizeof name, "LazyTensor<%d>", Rank);
  print_size(name, sizeof(Lazy), alignof(Lazy));
  print_field(name, "cookie", offsetof(Lazy, cookie), sizeof(void*));
  print_field(name, "acquire", offsetof(Lazy, acquire), sizeof(void*));
  print_field(name, "dispose", offsetof(Lazy, dispose), sizeof(void*));
#if AOTRITON_VERSION_MINOR >= 12
  print_field(name, "eager", offsetof(Lazy, eager), sizeof(TensorView<Rank>));
#endif
}

#if AOTRITON_VERSION_MINOR >= 14
// Bits by what is set in the whole when all of a field's are.
#define BITS(structure, field)                                         \
  do {                                                                 \
    structure whole = {};                                              \
    whole.field = static_cast<decltype(whole.field)>(-1);              \
    unsigned long long bits = 0;                                       \
    std::memcpy(&bits, &whole, sizeof whole);                          \
    std::printf("  %s.%s in bits 0x%llx\n", #structure, #field, bits); \
  } while (0)

void print_bits() {
  STRUCT(VarlenMode);
  BITS(VarlenMode, stacked);
  BITS(VarlenMode, length);
  BITS(VarlenMode, position);
  BITS(VarlenMode, reserved);
  STRUCT(VarlenBits);
  FIELD(VarlenBits, qmode);
  FIELD(VarlenBits, kmode);
  BITS(VarlenBits, lse_layout);
  BITS(VarlenBits, reserved);
  CONSTANT(VarlenStacked::BHSD);
  CONSTANT(VarlenStacked::THD);
  CONSTANT(VarlenLength::MAX);
  CONSTANT(VarlenLength::CUMULATIVE);
  CONSTANT(VarlenLength::INDIVIDUAL);
  CONSTANT(VarlenPosition::IMPLIED);
  CONSTANT(VarlenPosition::REUSE);
  CONSTANT(VarlenPosition::ARRAY);
  CONSTANT(VarlenLseLayout::HT);
  CONSTANT(VarlenLseLayout::TH);
}
#define SEQUENCES(structure)      \
  FIELD(structure, seqinfo_q0);   \
  FIELD(structure, seqinfo_k0);   \
  FIELD(structure, Max_seqlen_q); \
  FIELD(structure, Max_seqlen_k); \
  FIELD(structure, seqinfo_q1);   \
  FIELD(structure, seqinfo_k1)
#else
void print_bits() {
  CONSTANT(VarlenType::None);
  CONSTANT(VarlenType::CompactVarlen);
  CONSTANT(VarlenType::PaddedVarlen);
#if AOTRITON_VERSION_MINOR >= 12
  CONSTANT(VarlenType::StridedVarlen);
#endif
}
#define OLD_SEQUENCES(structure)  \
  FIELD(structure, cu_seqlens_q); \
  FIELD(structure, cu_seqlens_k); \
  FIELD(structure, Max_seqlen_q); \
  FIELD(structure, Max_seqlen_k)
#if AOTRITON_VERSION_MINOR >= 12
#define SEQUENCES(structure)       \
  OLD_SEQUENCES(structure);        \
  FIELD(structure, seq_strides_q); \
  FIELD(structure, seq_strides_k)
#else
#define SEQUENCES(structure) OLD_SEQUENCES(structure)
#endif
#endif

void print_types() {
  CONSTANT(DType::kUnknown);
  CONSTANT(DType::kFloat32);
  CONSTANT(DType::kFloat16);
  CONSTANT(DType::kBFloat16);
  CONSTANT(DType::kInt8);
  CONSTANT(DType::kInt16);
  CONSTANT(DType::kInt32);
  CONSTANT(DType::kInt64);
  CONSTANT(DType::kUInt8);
  CONSTANT(DType::kUInt16);
  CONSTANT(DType::kUInt32);
  CONSTANT(DType::kUInt64);
}

// Those that AOTriton has; Kiln's headers name some more.
void print_gpus() {
  IN_HEX(GpuVendor::kAMD);
  IN_HEX(GpuVendor::kNVIDIA);
  IN_HEX(GpuVendor::kINTEL);
  IN_HEX(GPU_ARCH_UNKNOWN);
  IN_HEX(GPU_AMD_ARCH_GFX90A_MOD0);
  IN_HEX(GPU_AMD_ARCH_GFX942_MOD0);
  IN_HEX(GPU_AMD_ARCH_GFX942_MOD1);
  IN_HEX(GPU_AMD_ARCH_GFX942_MOD2);
  IN_HEX(GPU_AMD_ARCH_GFX950_MOD0);
  IN_HEX(GPU_AMD_ARCH_GFX1100_MOD0);
  IN_HEX(GPU_AMD_ARCH_GFX1101_MOD0);
  IN_HEX(GPU_AMD_ARCH_GFX1102_MOD0);
  IN_HEX(GPU_AMD_ARCH_GFX1103_MOD0);
  IN_HEX(GPU_AMD_ARCH_GFX1150_MOD0);
  IN_HEX(GPU_AMD_ARCH_GFX1151_MOD0);
  IN_HEX(GPU_AMD_ARCH_GFX1152_MOD0);
  IN_HEX(GPU_AMD_ARCH_GFX1153_MOD0);
  IN_HEX(GPU_AMD_ARCH_GFX1200_MOD0);
  IN_HEX(GPU_AMD_ARCH_GFX1201_MOD0);
  IN_HEX(GPU_AMD_ARCH_GFX1250_MOD0);
#if AOTRITON_VERSION_MINOR < 13
  CONSTANT(v2::CppTuneSpecialKernelIndex::kDefault);
  CONSTANT(v2::CppTuneSpecialKernelIndex::kSkipGPUCall);
#endif
}

void print_forward() {
  STRUCT(attn_fwd_params);
  FIELD(attn_fwd_params, Q);
  FIELD(attn_fwd_params, K);
  FIELD(attn_fwd_params, V);
  FIELD(attn_fwd_params, B);
  FIELD(attn_fwd_params, A);
  FIELD(attn_fwd_params, Sm_scale);
  FIELD(attn_fwd_params, L);
  FIELD(attn_fwd_params, Out);
  SEQUENCES(attn_fwd_params);
  FIELD(attn_fwd_params, dropout_p);
  FIELD(attn_fwd_params, philox_seed_ptr);
  FIELD(attn_fwd_params, philox_offset1);
  FIELD(attn_fwd_params, philox_offset2);
  FIELD(attn_fwd_params, philox_seed_output);
  FIELD(attn_fwd_params, philox_offset_output);
  FIELD(attn_fwd_params, encoded_softmax);
  FIELD(attn_fwd_params, persistent_atomic_counter);
  FIELD(attn_fwd_params, causal_type);
#if AOTRITON_VERSION_MINOR < 14
  FIELD(attn_fwd_params, varlen_type);
#endif
  FIELD(attn_fwd_params, window_left);
  FIELD(attn_fwd_params, window_right);
#if AOTRITON_VERSION_MINOR >= 14
  FIELD(attn_fwd_params, varlen_bits);
#endif
  CONSTANT(attn_fwd_params::kVersion);
}

void print_backward() {
  STRUCT(attn_bwd_params);
  FIELD(attn_bwd_params, Q);
  FIELD(attn_bwd_params, K);
  FIELD(attn_bwd_params, V);
  FIELD(attn_bwd_params, B);
  FIELD(attn_bwd_params, Sm_scale);
  FIELD(attn_bwd_params, Out);
  FIELD(attn_bwd_params, DO);
  FIELD(attn_bwd_params, DK);
  FIELD(attn_bwd_params, DV);
  FIELD(attn_bwd_params, DQ);
  FIELD(attn_bwd_params, DB);
  FIELD(attn_bwd_params, L);
  FIELD(attn_bwd_params, D);
  SEQUENCES(attn_bwd_params);
  FIELD(attn_bwd_params, dropout_p);
  FIELD(attn_bwd_params, philox_seed_ptr);
  FIELD(attn_bwd_params, philox_offset1);
  FIELD(attn_bwd_params, philox_offset2);
  FIELD(attn_bwd_params, causal_type);
#if AOTRITON_VERSION_MINOR < 14
  FIELD(attn_bwd_params, varlen_type);
#endif
  FIELD(attn_bwd_params, window_left);
  FIELD(attn_bwd_params, window_right);
  FIELD(attn_bwd_params, DQ_ACC);
#if AOTRITON_VERSION_MINOR >= 14
  FIELD(attn_bwd_params, varlen_bits);
#endif
  CONSTANT(attn_bwd_params::kVersion);
}

}  // namespace

int main() {
  print_types();
  print_gpus();
  print_view<0>();
  print_view<1>();
  print_view<2>();
  print_view<3>();
  print_view<4>();
  print_lazy<2>();
  print_lazy<4>();
  STRUCT(attn_options);
  FIELD(attn_options, force_backend_index);
#if AOTRITON_VERSION_MINOR >= 12
  FIELD(attn_options, deterministic);
#endif
  CONSTANT(CausalType::None);
  CONSTANT(CausalType::WindowedAttention);
  CONSTANT(WindowValue::TopLeftAligned);
  CONSTANT(WindowValue::BottomRightAligned);
  print_bits();
  print_forward();
  print_backward();
}
