// Devices, the templates that callers may import, and aotriton::v2::flash but for attention.
#define AOTRITON_V2_API_FLASH_ATTN_H
#include "../device.h"
#include "translate.h"

namespace AOTRITON_NS {

// Callers that were compiled with AOTriton's own headers import these where their compiler did not inline them.
#define KILN_VIEW(rank)                                                  \
  template TensorView<rank>::TensorView();                               \
  template TensorView<rank> TensorView<rank>::get_null_tensor(DType);    \
  template TensorView<rank>::operator bool() const;                      \
  template uint64_t TensorView<rank>::size(int) const;                   \
  template uint64_t TensorView<rank>::stride(int) const;                 \
  template std::array<uint64_t, rank> TensorView<rank>::sizes() const;   \
  template std::array<uint64_t, rank> TensorView<rank>::strides() const; \
  template const uint64_t* TensorView<rank>::size_ptr() const;           \
  template const uint64_t* TensorView<rank>::stride_ptr() const;         \
  template void* TensorView<rank>::data_ptr() const;                     \
  template DType TensorView<rank>::dtype() const;                        \
  template void* TensorView<rank>::kparam_data_ptr() const;              \
  template void* TensorView<rank>::kparam_stride(int) const;             \
  KILN_CONSTRUCTOR(rank, C1)                                             \
  KILN_CONSTRUCTOR(rank, C2)

// The constructor's name has std::array in it, and which one depends on the C++ library: callers have libstdc++'s, and
// a release's compiler has another. The two are passed alike.
#define KILN_CONSTRUCTOR(rank, kind)                                                                                 \
  extern "C" AOTRITON_API void kiln_view_##rank##_##kind(                                                            \
      TensorView<rank>* self, intptr_t base, Numbers<rank> sizes, Numbers<rank> strides,                             \
      DType dtype) __asm__("_ZN8aotriton10TensorViewILi" #rank "EE" #kind "ElSt5arrayImLm" #rank "EES3_NS_5DTypeE"); \
  void kiln_view_##rank##_##kind(TensorView<rank>* self, intptr_t base, Numbers<rank> sizes, Numbers<rank> strides,  \
                                 DType dtype) {                                                                      \
    std::array<uint64_t, rank> both[2];                                                                              \
    __builtin_memcpy(&both[0], &sizes, sizeof sizes);                                                                \
    __builtin_memcpy(&both[1], &strides, sizeof strides);                                                            \
    *self = TensorView<rank>(base, both[0], both[1], dtype);                                                         \
  }

// std::array<uint64_t, kCount> as a caller passes it.
template <int kCount>
struct Numbers {
  uint64_t numbers[kCount];
};

KILN_VIEW(1)
KILN_VIEW(2)
KILN_VIEW(3)
KILN_VIEW(4)

static_assert(kiln_aotriton::gpu_number(true, 0x90a) == GPU_AMD_ARCH_GFX90A_MOD0 &&
              kiln_aotriton::gpu_number(false, 0x90) == GPU_NVIDIA_ARCH_SM90_MOD0);

Gpu getGpuFromStream(hipStream_t stream) { return static_cast<Gpu>(kiln_aotriton::facts_of(stream).gpu); }

int getMultiProcessorCount(hipStream_t stream) { return kiln_aotriton::facts_of(stream).multiprocessors; }

bool isArchExperimentallySupported(hipStream_t) { return false; }

#if AOTRITON_VERSION_MINOR >= 12
bool isArchTechPreview(hipStream_t) { return false; }
#endif

}  // namespace AOTRITON_NS

namespace AOTRITON_NS::v2::flash {

hipError_t check_gpu(Stream stream) { return kiln_aotriton::check_device(stream.native()); }

hipError_t debug_simulate_encoded_softmax(TensorView<4> r, float dropout_p, TensorView<0> philox_seed,
                                          TensorView<0> philox_offset1, uint64_t philox_offset2, Stream stream) {
  kiln_aotriton::Slot mask, seed, offset;
  return kiln_aotriton::simulate(
      mask.given(r),
      {dropout_p, seed.number(philox_seed), offset.number(philox_offset1), static_cast<int64_t>(philox_offset2)},
      stream.native());
}

}  // namespace AOTRITON_NS::v2::flash

extern "C" const char* kiln_aotriton_error(void) { return kiln_error(); }
