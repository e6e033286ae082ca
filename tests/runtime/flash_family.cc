// Tables of a family `flash` as small as its typed entries allow, to test csrc/flash/attention.cc by: the arguments of
// tritonsrc/flash/recipe.yaml, one kernel that is handed all of them.
#include "kiln/flash.h"

#include "kiln/family.h"

namespace {

enum { Q = 0, K = 10, V = 20, OUT = 30, LSE = 40, SCALE = 48, CAUSAL = 49, MP = 50, DTYPE = 51, VALUES = 52 };

#define E(name, body)                        \
  int64_t name(const int64_t* v, int32_t*) { \
    (void)v;                                 \
    return body;                             \
  }
// clang-format off: to it, calls of a macro without semicolons are one long line
E(q, v[Q])
E(k, v[K])
E(value, v[V])
E(out, v[OUT])
E(lse, v[LSE])
E(scale, v[SCALE])
E(causal, v[CAUSAL])
E(dtype, v[Q + 1])
E(batch, v[Q + 2])
E(one, 1)
// clang-format on

constexpr kiln_argument_table kArguments[] = {{"q", KILN_ARG_TENSOR, 4, -1, 0, Q, 0},
                                              {"k", KILN_ARG_TENSOR, 4, -1, 0, K, 0},
                                              {"v", KILN_ARG_TENSOR, 4, -1, 0, V, 0},
                                              {"out", KILN_ARG_TENSOR, 4, -1, 0, OUT, 0},
                                              {"lse", KILN_ARG_TENSOR, 3, KILN_FP32, 1, LSE, 0},
                                              {"sm_scale", KILN_ARG_FLOAT, 0, 0, 0, SCALE, 0},
                                              {"causal", KILN_ARG_INT, 0, 0, 0, CAUSAL, 1}};
constexpr int64_t kDtypes[] = {KILN_FP16, KILN_BF16};
constexpr const char* const kDtypeNames[] = {"fp16", "bf16"};
constexpr kiln_choice_table kChoices[] = {{"dtype", dtype, KILN_MATCH_EXACT, 2, kDtypes, kDtypeNames, DTYPE, 0}};
constexpr int32_t kKernelChoices[] = {0};
constexpr kiln_parameter_table kParameters[] = {
    {"q_ptr", KILN_PARAMETER_POINTER, 0, q},     {"k_ptr", KILN_PARAMETER_POINTER, 0, k},
    {"v_ptr", KILN_PARAMETER_POINTER, 0, value}, {"out_ptr", KILN_PARAMETER_POINTER, 0, out},
    {"lse_ptr", KILN_PARAMETER_POINTER, 0, lse}, {"sm_scale", KILN_PARAMETER_FP32, 0, scale},
    {"causal", KILN_PARAMETER_I32, 0, causal}};
constexpr kiln_specialization_table kSpecializations[] = {{"generic", 0, 0}};
constexpr uint8_t kLookup[] = {0, 0};
constexpr const char* const kNames[] = {"num_warps=4"};
constexpr kiln_kernel_target_table kTargets[] = {{"sm_90", 1, 0, nullptr, kNames, kLookup, {5}}};
constexpr kiln_kernel_table kKernels[] = {{"attn_fwd",
                                           nullptr,
                                           kKernelChoices,
                                           kParameters,
                                           kSpecializations,
                                           nullptr,
                                           nullptr,
                                           kTargets,
                                           {batch, one, one},
                                           1,
                                           7,
                                           1,
                                           0,
                                           0,
                                           1,
                                           0,
                                           0}};
constexpr kiln_operation_table kOperations[] = {
    {"attn_fwd", nullptr, kArguments, kChoices, nullptr, nullptr, nullptr, kKernels, 7, 1, 0, 0, 0, 1, MP, VALUES}};
constexpr const char* const kOn90[] = {"sm_90", nullptr};
constexpr kiln_pack_table kPacks[] = {{"nvidia-sm_90.pack", "sm_90", KILN_VENDOR_NVIDIA, 0, kOn90, {0}}};
constexpr kiln_family kFamily = {sizeof(kiln_family), KILN_FAMILY_ABI, 1, 1, 0, "flash", "1.2.3", kOperations, kPacks};

}  // namespace

extern "C" const kiln_family* kiln_flash_family(void) { return &kFamily; }
