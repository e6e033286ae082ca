/* Kiln: AOTriton's interface to the flash family, in libaotriton_v2.so. What was written for AOTriton compiles, links
 * and runs with it; HIP's headers must be at hand. It takes C++17 or later, and a compiler other than hipcc needs
 * -D__HIP_PLATFORM_AMD__ for HIP's headers. Documentation of what is not said here: kiln/flash.h.
 *
 * Versions. aotriton/config.h says whose interface this is: 0.11, 0.12, 0.13 or 0.14. Each has a library of its own,
 * whose file name ends in the version. Structures differ: a program runs with the library of its headers. Others'
 * parameters are refused by their params_version; those of 0.12 and 0.13 are the same, and 0.14 takes them too, as
 * AOTriton's does. A process may have several of these libraries, each loaded with RTLD_LOCAL by what was linked to it.
 *
 * Devices. The process has one kiln_t for all calls, opened at the first and never closed; the child of a fork opens
 * its own. Its devices are those of AMD, or if there are none, those of NVIDIA: a stream is then the CUDA driver's.
 * Packs are searched for in KILN_PACK_PATH, and beside the library, in kiln.images or aotriton.images.
 *
 * Threads. Every function may be called from any number of threads at once, and under a stream's capture (on NVIDIA
 * once a call with the same images was made outside of one). Nothing here throws or aborts, or changes the current
 * device; what a dispose of the caller's throws passes through.
 *
 * Ownership. Views are read before a function returns. The memory that they tell of is borrowed until the work, which
 * is enqueued on the stream, is done.
 *
 * Tensors. Four dimensions: batch, heads, rows (or keys), head dimension, the last contiguous, the others with any
 * strides; K and V may have fewer heads. dtypes: fp16, bf16 and fp32, one for the whole call. The log-sum-exp (L,
 * softmax_lse) has two dimensions, [batch * heads, at least rows], fp32, natural logarithms. With compact sequences of
 * several lengths it is [sequences * heads, at least the longest], or [heads, all rows]. A row that sees no key has
 * minus infinity there. What is given without address or size counts as not given.
 *
 * PyTorch passes [heads, Max_seqlen_q] of several compact sequences, fewer columns than there are rows, which cannot
 * hold the log-sum-exps. It is taken: a forward fills it with NaN, and a backward runs the forward once more, in memory
 * that it takes on the stream and gives back on it: 4 bytes for each row of each head, and as much as Out has.
 *
 * Dropout. Its seed is what lies at philox_seed, its offset what lies at philox_offset1 plus philox_offset2; int64 or
 * uint64. Memory is read only if dropout_p is above 0, else 0 stands for what lies there. philox_seed_output and
 * philox_offset_output, both or neither, get what was used. encoded_softmax, [batch, heads, rows, keys], gets +1 where
 * a weight is kept, and -1 where it is dropped, with dropout_p 0 too.
 *
 * Not needed, and left alone: atomic counters (atomic_for_causal, persistent_atomic_counter), delta, D, DQ_ACC, extra
 * arguments. A backward takes the memory that it works in (as much as kiln_attn_bwd_workspace() of kiln/flash.h asks
 * for) on the stream, by hipMallocAsync or cuMemAllocAsync, and gives it back on it.
 *
 * Errors. A result other than hipSuccess left a sentence for the calling thread in kiln_aotriton_error() (below).
 * Not every caller looks at the result, PyTorch does not. So a function that fails fills its outputs
 * with NaN: all bits of the elements of out, softmax_lse, encoded_softmax, dq, dk, dv and db are set, on the stream and
 * under its capture too, and no byte between them. Seeds and offsets are left alone. The sentence is written to stderr
 * as well, once for each function and sentence, 64 in a process at most. Where outputs cannot be filled (no driver, a
 * stream that cannot be used, a params_version that is not known, a driver that fails), the result is the same, and
 * the sentence says so. check_gpu has no outputs, and writes nothing.
 * The driver's own number is returned where a call for memory failed; besides:
 *
 *   hipErrorInvalidValue                 an argument that cannot be: a shape, a dtype, a stride, a probability
 *   hipErrorNotSupported                 no kernel for this call; a backend that there is not; ALiBi slopes (A); a
 *                                        window that no kernel takes; a driver without memory on streams
 *   hipErrorNoDevice                     no driver, or no device
 *   hipErrorNoBinaryForGpu               a device that the release has no images for
 *   hipErrorFileNotFound                 the pack with its images is not found
 *   hipErrorInvalidImage                 the pack is corrupt, or of another release
 *   hipErrorInvalidSymbol                params_version is not one that this library reads
 *   hipErrorInvalidHandle                the stream cannot be used
 *   hipErrorOutOfMemory                  of the host, or on the stream
 *   hipErrorLaunchOutOfResources         the device has less shared memory than the image needs
 *   hipErrorSharedObjectSymbolNotFound,  libkiln_flash.so is of another release
 *   hipErrorSharedObjectInitFailed
 *   hipErrorUnknown                      another call of the driver failed
 */
#ifndef AOTRITON_FLASH_H
#define AOTRITON_FLASH_H

#include <aotriton/config.h>
#include <aotriton/cpp_tune.h>
#include <aotriton/runtime.h>
#include <aotriton/util.h>
#if AOTRITON_VERSION_MINOR < 13
#include <aotriton/v2/flash.h>
#endif

namespace AOTRITON_NS::v2::flash {

/* hipSuccess: there are images for the stream's device, and their pack is found. */
hipError_t AOTRITON_API check_gpu(AOTRITON_NS::Stream stream);

/* Writes what a forward with the same dropout writes to its encoded_softmax: r, [batch, heads, rows, keys]. */
hipError_t AOTRITON_API debug_simulate_encoded_softmax(AOTRITON_NS::TensorView<4> r, float dropout_p,
                                                       AOTRITON_NS::TensorView<0> philox_seed,
                                                       AOTRITON_NS::TensorView<0> philox_offset1,
                                                       uint64_t philox_offset2, AOTRITON_NS::Stream stream);

}  // namespace AOTRITON_NS::v2::flash

namespace AOTRITON_NS::v3::flash {

using T4 = AOTRITON_NS::TensorView<4>;
using T2 = AOTRITON_NS::TensorView<2>;
using T1 = AOTRITON_NS::TensorView<1>;
using T0 = AOTRITON_NS::TensorView<0>;
using LT2 = AOTRITON_NS::LazyTensor<2>;
using LT4 = AOTRITON_NS::LazyTensor<4>;

struct AOTRITON_API attn_options {
    int force_backend_index = -1; /* below 0: chosen by the library; 0: Kiln's kernels, and there are no others */
#if AOTRITON_VERSION_MINOR >= 12
    bool deterministic = false;   /* equal calls give equal bits, whatever it says */
#endif
};

struct AOTRITON_API CausalType {
    static constexpr int8_t None = 0;
    static constexpr int8_t WindowedAttention = 3; /* row i sees the keys from i - window_left to i + window_right */
};

/* Of window_left: no limit. Of window_right: the keys up to row i's own, where the first row and the first key belong
 * together, or the last of each. In sequences of several lengths: of each. */
struct AOTRITON_API WindowValue {
    static constexpr int32_t TopLeftAligned = -2147483647;
    static constexpr int32_t BottomRightAligned = -2147483646;
};

#if AOTRITON_VERSION_MINOR >= 14

/* How the sequences of one side, queries or keys, lie: VarlenMode. A dense side is all zeros.
 *
 * Stacked. BHSD: each in a batch of its own. THD: all in the rows of batch 0. */
struct AOTRITON_API VarlenStacked {
    static constexpr uint32_t BHSD = 0;
    static constexpr uint32_t THD = 1;
};

/* How long each is: as Max_seqlen says, or with BHSD as the tensor has rows; or by seqinfo_?0, int32. */
struct AOTRITON_API VarlenLength {
    static constexpr uint32_t MAX = 0;
    static constexpr uint32_t CUMULATIVE = 1; /* [sequences + 1]: the difference of two neighbours */
    static constexpr uint32_t INDIVIDUAL = 2; /* [sequences] */
};

/* Where each begins. */
struct AOTRITON_API VarlenPosition {
    static constexpr uint32_t IMPLIED = 0; /* BHSD: at the start of its batch. THD: at multiples of Max_seqlen */
    static constexpr uint32_t REUSE = 1;   /* THD: at seqinfo_?0, which is CUMULATIVE */
    static constexpr uint32_t ARRAY = 2;   /* THD: at seqinfo_?1, [sequences] or one more, int32; in ascending order, and
                                              no sequence reaches into the next */
};

/* How L lies: heads outside, or tokens outside, which is refused. */
struct AOTRITON_API VarlenLseLayout {
    static constexpr uint32_t HT = 0;
    static constexpr uint32_t TH = 1;
};

struct AOTRITON_API VarlenMode {
    uint8_t stacked : 1;
    uint8_t length : 2;
    uint8_t position : 2;
    uint8_t reserved : 3;      /* zero */
};

struct alignas(uint32_t) VarlenBits {
    VarlenMode qmode;
    VarlenMode kmode;
    uint16_t lse_layout : 2;
    uint16_t reserved : 14;    /* zero */
};
static_assert(sizeof(VarlenMode) == 1 && sizeof(VarlenBits) == 4, "the layout that libaotriton_v2.so reads");

#else

struct AOTRITON_API VarlenType {
    static constexpr int8_t None = 0;          /* with cu_seqlens_q: as CompactVarlen */
    static constexpr int8_t CompactVarlen = 1; /* sequences lie one after another; the batch of Q, K and V is 1. With
                                                  seq_strides_q: as StridedVarlen, where there is that */
    static constexpr int8_t PaddedVarlen = 2;  /* each lies at the start of its batch; cu_seqlens only tell lengths */
#if AOTRITON_VERSION_MINOR >= 12
    static constexpr int8_t StridedVarlen = 3; /* as CompactVarlen, with gaps: seq_strides tell where each begins, and
                                                  cu_seqlens how long it is */
#endif
};

#endif

/* ---- forward ---------------------------------------------------------------------------------------------------- */

struct AOTRITON_API attn_fwd_params {
    T4 Q;
    T4 K;
    T4 V;
    T4 B;                         /* bias [batch, heads, rows, keys] of the call's dtype; its strides may be 0 */
    T2 A;                         /* ALiBi slopes: refused, since the backward has none. Not given: none */
    float Sm_scale = 0;
    T2 L;
    T4 Out;
#if AOTRITON_VERSION_MINOR >= 14
    T1 seqinfo_q0;                /* lengths, as varlen_bits says */
    T1 seqinfo_k0;
#else
    T1 cu_seqlens_q;              /* [sequences + 1] int32; where each begins, and the end */
    T1 cu_seqlens_k;
#endif
    int32_t Max_seqlen_q = 0;     /* where lengths are given: no sequence is longer; 0: not known */
    int32_t Max_seqlen_k = 0;
#if AOTRITON_VERSION_MINOR >= 14
    T1 seqinfo_q1;                /* positions, as varlen_bits says */
    T1 seqinfo_k1;
#elif AOTRITON_VERSION_MINOR >= 12
    T1 seq_strides_q;             /* with StridedVarlen: [sequences] or one more, int32; where each begins, in ascending
                                     order, and none reaches into the next */
    T1 seq_strides_k;
#endif
    float dropout_p = 0;
    T0 philox_seed_ptr;
    T0 philox_offset1;
    uint64_t philox_offset2 = 0;
    T0 philox_seed_output;
    T0 philox_offset_output;
    T4 encoded_softmax;
    T0 persistent_atomic_counter;
    int8_t causal_type = CausalType::None;
#if AOTRITON_VERSION_MINOR < 14
    int8_t varlen_type = VarlenType::None;
#endif
    int32_t window_left = 0;      /* these two with CausalType::WindowedAttention: counts, or WindowValues. Counts below
                                     0 are taken where, counted from the last row and key, none is */
    int32_t window_right = 0;
#if AOTRITON_VERSION_MINOR >= 14
    VarlenBits varlen_bits = {};

    KILN_AOTRITON_OWN static constexpr int32_t kVersion = 4;
#elif AOTRITON_VERSION_MINOR >= 12

    KILN_AOTRITON_OWN static constexpr int32_t kVersion = 3;
#else

    KILN_AOTRITON_OWN static constexpr int32_t kVersion = 1;
#endif
#ifdef KILN_AOTRITON_LIBRARY
    attn_fwd_params(); /* for programs that were compiled with AOTriton's own headers, which import it */
#else
    KILN_AOTRITON_OWN attn_fwd_params() {}
#endif
};

/* params_version: attn_fwd_params::kVersion of the headers that the caller was compiled with. */
hipError_t AOTRITON_API attn_fwd(const attn_fwd_params& params, int32_t params_version, AOTRITON_NS::Stream stream,
                                 const attn_options* options = nullptr);

/* ---- backward --------------------------------------------------------------------------------------------------- */

struct AOTRITON_API attn_bwd_params {
    T4 Q;
    T4 K;
    T4 V;
    T4 B;
    float Sm_scale = 0;
    T4 Out;                       /* of the forward, as L, and the seed and the offset */
    T4 DO;
    T4 DK;                        /* written, as DV and DQ */
    T4 DV;
    T4 DQ;
    T4 DB;                        /* as B, written; summed over what has stride 0. Not given: not wanted */
    T2 L;
    mutable LT2 D;                /* never acquired */
#if AOTRITON_VERSION_MINOR >= 14
    T1 seqinfo_q0;
    T1 seqinfo_k0;
#else
    T1 cu_seqlens_q;
    T1 cu_seqlens_k;
#endif
    int32_t Max_seqlen_q = 0;
    int32_t Max_seqlen_k = 0;
#if AOTRITON_VERSION_MINOR >= 14
    T1 seqinfo_q1;
    T1 seqinfo_k1;
#elif AOTRITON_VERSION_MINOR >= 12
    T1 seq_strides_q;
    T1 seq_strides_k;
#endif
    float dropout_p = 0;
    T0 philox_seed_ptr;
    T0 philox_offset1;
    uint64_t philox_offset2 = 0;
    int8_t causal_type = CausalType::None;
#if AOTRITON_VERSION_MINOR < 14
    int8_t varlen_type = VarlenType::None;
#endif
    int32_t window_left = 0;
    int32_t window_right = 0;
    mutable LT4 DQ_ACC;           /* never acquired */
#if AOTRITON_VERSION_MINOR >= 14
    VarlenBits varlen_bits = {};

    KILN_AOTRITON_OWN static constexpr int32_t kVersion = 7;
#elif AOTRITON_VERSION_MINOR >= 12

    KILN_AOTRITON_OWN static constexpr int32_t kVersion = 6;
#else

    KILN_AOTRITON_OWN static constexpr int32_t kVersion = 3;
#endif
#ifdef KILN_AOTRITON_LIBRARY
    attn_bwd_params(); /* for programs that were compiled with AOTriton's own headers, which import it */
#else
    KILN_AOTRITON_OWN attn_bwd_params() {}
#endif
};

/* D and DQ_ACC are free()d whatever is returned, but for hipErrorInvalidSymbol. */
hipError_t AOTRITON_API attn_bwd(const attn_bwd_params& params, int32_t params_version, AOTRITON_NS::Stream stream,
                                 const attn_options* options = nullptr);

#if AOTRITON_VERSION_MINOR < 12
/* The same by another name. */
hipError_t AOTRITON_API aiter_bwd(const attn_bwd_params& params, int32_t params_version, AOTRITON_NS::Stream stream,
                                  const attn_options* options = nullptr);
#endif

}  // namespace AOTRITON_NS::v3::flash

/* Kiln's own: the last sentence that a function of this library left on the calling thread; never NULL, "" if none.
 * Owned by the thread: valid until its next call of this library. */
extern "C" AOTRITON_API const char* kiln_aotriton_error(void);

#endif
