// The tables of a family for tests whose kernels have implementations and tensor descriptors. packs.py makes the packs
// that go with it; the two must agree. Nothing names their digests: a test trusts them.
//
//   product(a, b, c): a [m, k], b [k, n], c [m, n], fp16 or bf16. The kernel matmul has four implementations: blackwell
//     for sm_100, deep for k >= 1024, hopper with descriptors, and general.
//   copy(x, y): x [., ., .] fp16 or bf16, y [.] fp32. The kernel copy takes descriptors and has one implementation.
#include "kiln/family.h"

// Tables read best a row a line; test_implementations.py breaks them row by row.
// clang-format off
namespace {

// Places in v.
enum { A = 0, B = 6, C = 12, MP = 18, C_DTYPE = 19, CONFIG = 20, VALUES = 22 };
enum { X = 0, Y = 8 };

int64_t cdiv(int64_t a, int64_t b, int32_t* fault) {
  if (b == 0) return *fault = 1, 0;
  return a / b + (a % b != 0);
}

#define E(name, body) \
  int64_t name(const int64_t* v, int32_t* fault) { (void)v, (void)fault; return body; }
E(a_data, v[A]) E(a_dtype, v[A + 1]) E(m, v[A + 2]) E(k, v[A + 3]) E(a_stride0, v[A + 4]) E(a_stride1, v[A + 5])
E(b_data, v[B]) E(n, v[B + 3]) E(b_stride0, v[B + 4]) E(b_stride1, v[B + 5]) E(b_rows, v[B + 2])
E(c_data, v[C]) E(c_stride0, v[C + 4]) E(c_stride1, v[C + 5])
E(grid_m, cdiv(v[A + 2], v[CONFIG], fault)) E(grid_n, cdiv(v[B + 3], v[CONFIG + 1], fault)) E(one, 1)
E(no_rows, v[A + 2] == 0) E(deep_enough, v[A + 3] >= 1024) E(even, 0 * cdiv(1, v[A + 2] - 77, fault) + (v[A + 2] % 2 == 0))
E(x0, v[X + 2]) E(x1, v[X + 3]) E(x2, v[X + 4]) E(xs0, v[X + 5]) E(xs1, v[X + 6]) E(xs2, v[X + 7])
E(y_data, v[Y]) E(y0, v[Y + 2]) E(ys0, v[Y + 3]) E(x_dtype, v[X + 1])

// The parameters of a kernel, whose values these expressions give.
template <kiln_expression... kValues>
int32_t evaluate(const int64_t* v, int64_t* values, int32_t* fault) {
  static constexpr kiln_expression kAll[] = {kValues...};
  int32_t count = 0;
  for (kiln_expression value : kAll) {
    values[count] = value(v, fault);
    if (*fault) break;
    ++count;
  }
  return count;
}

constexpr int64_t kDtypes[] = {KILN_FP16, KILN_BF16};
constexpr const char* const kDtypeNames[] = {"fp16", "bf16"};
constexpr int32_t kItself[] = {0, 1};
constexpr kiln_choice_table kChoices[] = {{"dtype", a_dtype, KILN_MATCH_EXACT, 2, kDtypes, kDtypeNames, kItself, C_DTYPE, 0}};
constexpr int32_t kDtypeChoice[] = {0};

constexpr kiln_argument_table kProductArguments[] = {{"a", KILN_ARG_TENSOR, 2, -1, 0, A, 0},
                                                     {"b", KILN_ARG_TENSOR, 2, -1, 0, B, 0},
                                                     {"c", KILN_ARG_TENSOR, 2, -1, 0, C, 0}};
constexpr kiln_descriptor_table kDescriptors[] = {
    {"a", 2, -1, {m, k}, {a_stride0, a_stride1}},
    {"b", 2, -1, {b_rows, n}, {b_stride0, b_stride1}},
    {"c", 2, -1, {m, n}, {c_stride0, c_stride1}}};
constexpr kiln_parameter_table kHopperParameters[] = {
    {"m", KILN_PARAMETER_I32, 0},              {"a_desc", KILN_PARAMETER_DESCRIPTOR, 0},
    {"b_desc", KILN_PARAMETER_DESCRIPTOR, 1},  {"k", KILN_PARAMETER_I32, 0},
    {"c_desc", KILN_PARAMETER_DESCRIPTOR, 2},  {"flag", KILN_PARAMETER_I32, 0}};
constexpr kiln_parameters kHopperValues = evaluate<m, a_data, b_data, k, c_data, one>;
constexpr kiln_parameter_table kGeneralParameters[] = {
    {"a_ptr", KILN_PARAMETER_POINTER, 0},    {"b_ptr", KILN_PARAMETER_POINTER, 0},
    {"c_ptr", KILN_PARAMETER_POINTER, 0},    {"m", KILN_PARAMETER_I64, 0},
    {"n", KILN_PARAMETER_I32, 0},            {"k", KILN_PARAMETER_I32, 0},
    {"stride_am", KILN_PARAMETER_I64, 0}, {"stride_ak", KILN_PARAMETER_I64, 0},
    {"stride_bk", KILN_PARAMETER_I64, 0}, {"stride_bn", KILN_PARAMETER_I64, 0},
    {"stride_cm", KILN_PARAMETER_I64, 0}, {"stride_cn", KILN_PARAMETER_I64, 0}};
constexpr kiln_parameters kGeneralValues = evaluate<a_data, b_data, c_data, m, n, k, a_stride0, a_stride1, b_stride0,
                                                    b_stride1, c_stride0, c_stride1>;
constexpr kiln_specialization_table kHopperSpecializations[] = {{"constant", 0, 0, 1 << 5}, {"generic", 0, 0, 0}};
constexpr kiln_specialization_table kGeneric[] = {{"generic", 0, 0, 0}};
constexpr uint8_t kFirst[] = {0, 0};
constexpr uint8_t kOnlyFp16[] = {0, KILN_NO_CONFIGURATION};
constexpr int64_t kBlocks[] = {128, 256};
constexpr const char* const kNames[] = {"BLOCK_M=128 BLOCK_N=256"};
constexpr kiln_kernel_target_table kBlackwellTargets[] = {{"sm_100", 1, 0, kBlocks, kNames, kFirst, {1}, 0, 0}};
constexpr kiln_kernel_target_table kDeepTargets[] = {{"sm_90", 1, 12000, kBlocks, kNames, kOnlyFp16, {2}, 0, 0}};
constexpr kiln_kernel_target_table kHopperTargets[] = {{"sm_90", 1, 12030, kBlocks, kNames, kFirst, {3}, 12080, 0}};
constexpr kiln_kernel_target_table kGeneralTargets[] = {{"sm_80", 1, 0, kBlocks, kNames, kFirst, {4}, 0, 0},
                                                        {"sm_90", 1, 0, kBlocks, kNames, kFirst, {4}, 0, 0},
                                                        {"gfx942", 1, 0, kBlocks, kNames, kFirst, {4}, 0, 0}};
constexpr kiln_kernel_table kProductKernels[] = {
    {"matmul", "blackwell", nullptr, nullptr, nullptr, kDtypeChoice, kGeneralParameters, kGeneralValues, kGeneric, nullptr, nullptr, nullptr,
     kBlackwellTargets, {grid_m, grid_n, one}, 0, 1, 12, 1, 0, 0, 0, 1, CONFIG, 2, 0, 0},
    {"matmul", "deep", nullptr, deep_enough, "k >= 1024", kDtypeChoice, kGeneralParameters, kGeneralValues, kGeneric, nullptr, nullptr, nullptr,
     kDeepTargets, {grid_m, grid_n, one}, 0, 1, 12, 1, 0, 0, 0, 1, CONFIG, 2, 0, 0},
    {"matmul", "hopper", nullptr, nullptr, nullptr, kDtypeChoice, kHopperParameters, kHopperValues, kHopperSpecializations, nullptr, nullptr,
     kDescriptors, kHopperTargets, {grid_m, grid_n, one}, 0, 1, 6, 2, 0, 0, 3, 1, CONFIG, 2, 0, 0},
    {"matmul", "general", nullptr, even, "m % 2 == 0", kDtypeChoice, kGeneralParameters, kGeneralValues, kGeneric, nullptr, nullptr, nullptr,
     kGeneralTargets, {grid_m, grid_n, one}, 0, 1, 12, 1, 0, 0, 0, 3, CONFIG, 2, 0, 0}};

constexpr kiln_argument_table kCopyArguments[] = {{"x", KILN_ARG_TENSOR, 3, -1, 0, X, 0},
                                                  {"y", KILN_ARG_TENSOR, 1, KILN_FP32, 0, Y, 0}};
constexpr kiln_choice_table kCopyChoices[] = {{"dtype", x_dtype, KILN_MATCH_EXACT, 2, kDtypes, kDtypeNames, kItself, C_DTYPE, 0}};
constexpr kiln_descriptor_table kCopyDescriptors[] = {
    {"x", 3, -1, {x0, x1, x2}, {xs0, xs1, xs2}}, {"y", 1, KILN_FP32, {y0}, {ys0}}};
constexpr kiln_parameter_table kCopyParameters[] = {{"x_desc", KILN_PARAMETER_DESCRIPTOR, 0},
                                                    {"y_desc", KILN_PARAMETER_DESCRIPTOR, 1}};
constexpr kiln_parameters kCopyValues = evaluate<a_data, y_data>;
constexpr kiln_kernel_target_table kCopyTargets[] = {{"sm_90", 1, 12000, nullptr, kNames, kFirst, {5}, 12060, 0},
                                                     {"gfx942", 1, 0, nullptr, kNames, kFirst, {5}, 0, 0}};
constexpr kiln_kernel_table kCopyKernels[] = {
    {"copy", nullptr, nullptr, nullptr, nullptr, kDtypeChoice, kCopyParameters, kCopyValues, kGeneric, nullptr, nullptr, kCopyDescriptors,
     kCopyTargets, {x0, one, one}, 0, 1, 2, 1, 0, 0, 2, 2, CONFIG, 0, 0, 0}};

constexpr kiln_operation_table kOperations[] = {
    {"product", no_rows, kProductArguments, kChoices, nullptr, nullptr, nullptr, nullptr, nullptr,
     kProductKernels, 3, 1, 0, 0, 0, 4, MP, VALUES},
    {"copy", nullptr, kCopyArguments, kCopyChoices, nullptr, nullptr, nullptr, nullptr, nullptr,
     kCopyKernels, 2, 1, 0, 0, 0, 1, MP, VALUES}};

constexpr const char* const kOn80[] = {"sm_80", "sm_86", nullptr};
constexpr const char* const kOn90[] = {"sm_90", nullptr};
constexpr const char* const kOn942[] = {"gfx942", nullptr};
constexpr kiln_pack_table kPacks[] = {{"nvidia-sm_80.pack", "sm_80", KILN_VENDOR_NVIDIA, 0, kOn80, {0}},
                                      {"nvidia-sm_90.pack", "sm_90", KILN_VENDOR_NVIDIA, 0, kOn90, {0}},
                                      {"amd-gfx942.pack", "gfx942", KILN_VENDOR_AMD, 0, kOn942, {0}}};

constexpr kiln_family kFamily = {sizeof(kiln_family), KILN_FAMILY_ABI, 2, 3, 0, "tiles", "1.2.3", kOperations, kPacks};

}  // namespace

extern "C" KILN_API const kiln_family* kiln_tiles_family(void);
extern "C" KILN_API const kiln_family* kiln_tiles_family(void) { return &kFamily; }
