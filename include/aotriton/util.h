/* Kiln: AOTriton's interface, tensors and devices. See flash.h. */
#ifndef AOTRITON_UTIL_H
#define AOTRITON_UTIL_H

#include <stdint.h>

#include <array>
#include <functional>   /* this and the next: for callers who have them from here */
#include <string_view>
#include <type_traits>

#include <aotriton/config.h>
#include <aotriton/dtypes.h>
#include <aotriton/runtime.h>

namespace AOTRITON_NS {

/* ---- numbers ---------------------------------------------------------------------------------------------------- */

/* Numbers put together from narrower ones, the first on top. */
constexpr uint64_t CAT64(uint32_t high, uint32_t low) { return uint64_t{high} << 32 | low; }
constexpr uint32_t CAT32(uint16_t high, uint16_t low) { return uint32_t{high} << 16 | low; }
constexpr uint64_t TRICAT(uint16_t high, uint16_t mid, uint16_t low) { return uint64_t{CAT32(high, mid)} << 16 | low; }

/* How many times denominator, at most, makes up numerator. */
template <typename T>
constexpr T cdiv(T numerator, T denominator) {
    return (numerator + (denominator - 1)) / denominator;
}

/* ---- tensors ---------------------------------------------------------------------------------------------------- */

/* A view of device memory, borrowed until the launched work is done; sizes and strides count elements. One without
 * address, or of size 0, stands for an argument that is not given. A trivially copyable value of plain members: it may
 * be passed between libraries of different C++ runtimes. */
template <int Rank>
class AOTRITON_API TensorView {
public:
    TensorView() {}
    TensorView(intptr_t base, std::array<uint64_t, Rank> sizes, std::array<uint64_t, Rank> strides, DType dtype)
        : base_(reinterpret_cast<void*>(base)), dtype_(dtype) {
        for (int i = 0; i < Rank; ++i) {
            sizes_[i] = sizes[i];
            strides_[i] = strides[i];
        }
    }
    static TensorView get_null_tensor(DType dtype) { return TensorView(0, {}, {}, dtype); }

    operator bool() const { return base_ != nullptr; }
    uint64_t size(int i) const { return sizes_[i]; }
    uint64_t stride(int i) const { return strides_[i]; }
    std::array<uint64_t, Rank> sizes() const { return array(sizes_); }
    std::array<uint64_t, Rank> strides() const { return array(strides_); }
    const uint64_t* size_ptr() const { return sizes_; }
    const uint64_t* stride_ptr() const { return strides_; }
    void* data_ptr() const { return base_; }
    DType dtype() const { return dtype_; }

    /* Where the address, and a stride, lie: for launching kernels. */
    void* kparam_data_ptr() const { return const_cast<void**>(&base_); }
    void* kparam_stride(int i) const { return const_cast<uint64_t*>(&strides_[i]); }

private:
    static std::array<uint64_t, Rank> array(const uint64_t (&from)[Rank]) {
        std::array<uint64_t, Rank> to;
        for (int i = 0; i < Rank; ++i) to[i] = from[i];
        return to;
    }

    void* base_ = nullptr;
    uint64_t sizes_[Rank] = {};
    uint64_t strides_[Rank] = {};
    DType dtype_ = kUnknown;
};

/* A single element. */
template <>
class AOTRITON_API TensorView<0> {
public:
    TensorView() = default;
    TensorView(intptr_t base, DType dtype) : base_(reinterpret_cast<void*>(base)), dtype_(dtype) {}
    static TensorView get_null_tensor(DType dtype) { return TensorView(0, dtype); }

    operator bool() const { return base_ != nullptr; }
    uint64_t size(int i) const { return i == 0; }
    uint64_t stride(int i) const { return i == 0; }
    std::array<uint64_t, 0> sizes() const { return {}; }
    std::array<uint64_t, 0> strides() const { return {}; }
    void* data_ptr() const { return base_; }
    DType dtype() const { return dtype_; }
    void* kparam_data_ptr() const { return const_cast<void**>(&base_); }

private:
    void* base_ = nullptr;
    DType dtype_ = kUnknown;
};

static_assert(sizeof(TensorView<0>) == 16 && sizeof(TensorView<1>) == 32 && sizeof(TensorView<2>) == 48 &&
                  sizeof(TensorView<3>) == 64 && sizeof(TensorView<4>) == 80,
              "the layout that libaotriton_v2.so reads");
static_assert(std::is_trivially_copyable_v<TensorView<0>> && std::is_trivially_copyable_v<TensorView<4>> &&
                  std::is_standard_layout_v<TensorView<0>> && std::is_standard_layout_v<TensorView<4>>,
              "what is passed by value between libraries");

/* Memory that a caller makes only if it is asked for, by acquire(). This library has no need of it: it never calls
 * acquire. It calls free() once for a call, on the caller's thread, when the call's work is enqueued. */
template <int Rank>
struct LazyTensor {
#if AOTRITON_VERSION_MINOR >= 12
    using Given = LazyTensor;  /* what acquire and dispose are given: the LazyTensor, or its cookie */
#else
    using Given = void;
#endif
    void* cookie = nullptr;
    TensorView<Rank> (*acquire)(Given* given) = nullptr;
    void (*dispose)(Given* given) = nullptr;
#if AOTRITON_VERSION_MINOR >= 12
    TensorView<Rank> eager = {};  /* memory that is there already, in place of acquire */

    operator bool() const { return eager || cookie || acquire || dispose; }
#else

    operator bool() const { return cookie || acquire || dispose; }
#endif

    /* Disposes of what the cookie stands for, once. */
    void free() {
        if (!dispose || !cookie) return;
#if AOTRITON_VERSION_MINOR >= 12
        dispose(this);
#else
        dispose(cookie);
#endif
        cookie = nullptr;
    }
};

/* ---- devices ---------------------------------------------------------------------------------------------------- */

/* As PCI numbers them. */
enum GpuVendor : uint16_t {
    kAMD = 0x1002,
    kNVIDIA = 0x10de,
    kINTEL = 0x8086,
};

/* Vendor, architecture and modification, 16 bits each. The architecture is what its name says in hexadecimal digits:
 * gfx90a, and for NVIDIA sm_90. A value that has no name here may be told too. */
enum Gpu : uint64_t {
    GPU_ARCH_UNKNOWN = 0,
    GPU_AMD_ARCH_GFX908_MOD0 = TRICAT(kAMD, 0x908, 0),
    GPU_AMD_ARCH_GFX90A_MOD0 = TRICAT(kAMD, 0x90a, 0),
    GPU_AMD_ARCH_GFX942_MOD0 = TRICAT(kAMD, 0x942, 0),
    GPU_AMD_ARCH_GFX942_MOD1 = TRICAT(kAMD, 0x942, 1),
    GPU_AMD_ARCH_GFX942_MOD2 = TRICAT(kAMD, 0x942, 2),
    GPU_AMD_ARCH_GFX950_MOD0 = TRICAT(kAMD, 0x950, 0),
    GPU_AMD_ARCH_GFX1100_MOD0 = TRICAT(kAMD, 0x1100, 0),
    GPU_AMD_ARCH_GFX1101_MOD0 = TRICAT(kAMD, 0x1101, 0),
    GPU_AMD_ARCH_GFX1102_MOD0 = TRICAT(kAMD, 0x1102, 0),
    GPU_AMD_ARCH_GFX1103_MOD0 = TRICAT(kAMD, 0x1103, 0),
    GPU_AMD_ARCH_GFX1150_MOD0 = TRICAT(kAMD, 0x1150, 0),
    GPU_AMD_ARCH_GFX1151_MOD0 = TRICAT(kAMD, 0x1151, 0),
    GPU_AMD_ARCH_GFX1152_MOD0 = TRICAT(kAMD, 0x1152, 0),
    GPU_AMD_ARCH_GFX1153_MOD0 = TRICAT(kAMD, 0x1153, 0),
    GPU_AMD_ARCH_GFX1200_MOD0 = TRICAT(kAMD, 0x1200, 0),
    GPU_AMD_ARCH_GFX1201_MOD0 = TRICAT(kAMD, 0x1201, 0),
    GPU_AMD_ARCH_GFX1250_MOD0 = TRICAT(kAMD, 0x1250, 0),
    GPU_NVIDIA_ARCH_SM80_MOD0 = TRICAT(kNVIDIA, 0x80, 0),
    GPU_NVIDIA_ARCH_SM90_MOD0 = TRICAT(kNVIDIA, 0x90, 0),
};

/* Vendor and architecture of a Gpu. */
inline uint32_t Gpu2VendorArch(uint64_t gpu) { return static_cast<uint32_t>(gpu >> 16); }

/* The device that a stream belongs to, the null stream to the current one; GPU_ARCH_UNKNOWN if that cannot be told. The
 * modification is always 0. */
Gpu AOTRITON_API getGpuFromStream(hipStream_t stream);

/* False: an architecture either has images in the release, or v2::flash::check_gpu() refuses it. */
bool AOTRITON_API isArchExperimentallySupported(hipStream_t stream);

#if AOTRITON_VERSION_MINOR >= 12
/* False, for the same reason. */
bool AOTRITON_API isArchTechPreview(hipStream_t stream);
#endif

/* Of the stream's device; 0 if that cannot be told. */
int AOTRITON_API getMultiProcessorCount(hipStream_t stream);

}  // namespace AOTRITON_NS

#endif
