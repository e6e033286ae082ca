// The tables of a family for tests, written by hand as the generator writes them: two kernels, every kind of argument,
// choice, parameter and specialization. packs.py makes the packs that go with it; the two must agree.
//
//   mix(x, y, w?, n, big, flag, scale): x, y [rows, cols] fp16 or bf16; w [.] fp32
#include "kiln/family.h"

#ifndef TOY_NAME
#define TOY_NAME toy
#endif
#define TOY_TEXT_(x) #x
#define TOY_TEXT(x) TOY_TEXT_(x)
#define TOY_JOIN_(a, b, c) a##b##c
#define TOY_JOIN(a, b, c) TOY_JOIN_(a, b, c)

#ifdef TOY_DIGESTS
#include TOY_DIGESTS
#else
#define TOY_HAS_DIGEST 0
#define TOY_DIGEST_SM_80 {0}
#define TOY_DIGEST_SM_90 {0}
#define TOY_DIGEST_GFX942 {0}
#define TOY_DIGEST_GFX1100 {0}
#endif

// Tables read best a row a line; test_devices.py breaks them row by row.
// clang-format off
namespace {

// Places in v.
enum {
  X = 0, Y = 6, W = 12, N = 16, BIG = 17, FLAG = 18, SCALE = 19, MP = 20,
  C_DTYPE = 21, C_WIDTH = 22, C_FLAG = 23, D_ROWS = 24, D_AREA = 25, D_RATIO = 26, WS_PARTIAL = 27,
  CONFIG = 28, VALUES = 30
};

int64_t mul(int64_t a, int64_t b, int32_t* fault) {
  int64_t r;
  if (__builtin_mul_overflow(a, b, &r)) return *fault = 1, 0;
  return r;
}
int64_t floordiv(int64_t a, int64_t b, int32_t* fault) {
  if (b == 0 || (b == -1 && a == INT64_MIN)) return *fault = 1, 0;
  int64_t q = a / b;
  return q - (a % b != 0 && (a < 0) != (b < 0));
}
int64_t cdiv(int64_t a, int64_t b, int32_t* fault) {
  if (b == 0 || (b == -1 && a == INT64_MIN)) return *fault = 1, 0;
  return -floordiv(-a, b, fault);
}

#define E(name, body) \
  int64_t name(const int64_t* v, int32_t* fault) { (void)v, (void)fault; return body; }
E(x_data, v[X]) E(y_data, v[Y]) E(w_data, v[W]) E(dtype, v[X + 1]) E(cols, v[X + 3]) E(stride, v[X + 4])
E(n, v[N]) E(big, v[BIG]) E(flag, v[FLAG]) E(scale, v[SCALE]) E(rows, v[X + 2]) E(d_rows, v[D_ROWS])
E(area, mul(v[X + 2], v[BIG], fault)) E(ratio, floordiv(1000, v[N], fault))
E(same_rows, v[X + 2] == v[Y + 2]) E(no_rows, v[D_ROWS] == 0) E(partial, v[WS_PARTIAL])
E(partial_bytes, mul(v[D_ROWS], 4, fault)) E(occupancy, floordiv(v[D_ROWS], v[MP], fault))
E(grid_x, cdiv(v[D_ROWS], v[CONFIG], fault)) E(one, 1) E(many_rows, v[D_ROWS] > 128)

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

constexpr kiln_argument_table kArguments[] = {
    {"x", KILN_ARG_TENSOR, 2, -1, 0, X, 0},          {"y", KILN_ARG_TENSOR, 2, -1, 0, Y, 0},
    {"w", KILN_ARG_TENSOR, 1, KILN_FP32, 1, W, 0},   {"n", KILN_ARG_INT, 0, 0, 0, N, 32},
    {"big", KILN_ARG_INT, 0, 0, 0, BIG, 64},         {"flag", KILN_ARG_INT, 0, 0, 0, FLAG, 1},
    {"scale", KILN_ARG_FLOAT, 0, 0, 0, SCALE, 0}};

constexpr int64_t kDtypes[] = {KILN_FP16, KILN_BF16}, kWidths[] = {64, 128}, kFlags[] = {0, 1};
constexpr int32_t kItself[] = {0, 1};
constexpr const char* const kDtypeNames[] = {"fp16", "bf16"};
constexpr const char* const kWidthNames[] = {"64", "128"};
constexpr const char* const kFlagNames[] = {"false", "true"};
constexpr kiln_choice_table kChoices[] = {{"dtype", dtype, KILN_MATCH_EXACT, 2, kDtypes, kDtypeNames, kItself, C_DTYPE, 0},
                                          {"width", cols, KILN_MATCH_NEXT_LARGER, 2, kWidths, kWidthNames, kItself, C_WIDTH, 0},
                                          {"flag", flag, KILN_MATCH_EXACT, 2, kFlags, kFlagNames, kItself, C_FLAG, 0}};
constexpr const char* const kDefinitions[] = {"rows", "area", "ratio"};
int32_t define(int64_t* v, int32_t* fault) {
  v[D_ROWS] = rows(v, fault);
  v[D_AREA] = area(v, fault);
  if (*fault) return 1;
  v[D_RATIO] = ratio(v, fault);
  return *fault ? 2 : 3;
}
constexpr const char* const kRequirements[] = {"x and y must have the same number of rows"};
int32_t check(const int64_t* v, int32_t* fault) { return same_rows(v, fault) ? 1 : 0; }
constexpr kiln_workspace_table kWorkspaces[] = {{"partial", partial_bytes, WS_PARTIAL, 0}};

constexpr int32_t kMainChoices[] = {0, 1, 2}, kReduceChoices[] = {0};
constexpr kiln_parameter_table kMainParameters[] = {
    {"x_ptr", KILN_PARAMETER_POINTER, 0},  {"y_ptr", KILN_PARAMETER_POINTER, 0},
    {"w_ptr", KILN_PARAMETER_POINTER, 0},  {"partial_ptr", KILN_PARAMETER_POINTER, 0},
    {"scale", KILN_PARAMETER_FP32, 0},     {"rows", KILN_PARAMETER_I32, 0},
    {"stride", KILN_PARAMETER_I64, 0},     {"step", KILN_PARAMETER_I32, 0},
    {"flag", KILN_PARAMETER_I1, 0},        {"exact", KILN_PARAMETER_FP64, 0}};
constexpr kiln_parameters kMainValues = evaluate<x_data, y_data, w_data, partial, scale, d_rows, stride, n, flag, scale>;
constexpr kiln_parameter_table kReduceParameters[] = {{"partial_ptr", KILN_PARAMETER_POINTER, 0},
                                                      {"y_ptr", KILN_PARAMETER_POINTER, 0},
                                                      {"rows", KILN_PARAMETER_U32, 0}};
constexpr kiln_parameters kReduceValues = evaluate<partial, y_data, d_rows>;
constexpr kiln_specialization_table kMainSpecializations[] = {
    {"aligned", 1 << 0 | 1 << 1 | 1 << 6, 1 << 3, 1 << 7}, {"pointers", 1 << 0 | 1 << 1, 0, 0}, {"generic", 0, 0, 0}};
constexpr kiln_specialization_table kReduceSpecializations[] = {{"generic", 0, 0, 0}};
constexpr int64_t kRowEdges[] = {1024, 4096}, kOccupancyEdges[] = {4};
constexpr kiln_bin_table kBins[] = {{"rows", d_rows, kRowEdges, 2, 0}, {"occupancy", occupancy, kOccupancyEdges, 1, 0}};
constexpr kiln_zero_table kZeros[] = {{partial, partial_bytes}};

// [functional][bin]; 6 bins. packs.py: lookup().
struct Lookup {
  uint8_t rows[8 * 6];
};
constexpr Lookup make_lookup(int configurations, int missing) {
  Lookup lookup = {};
  for (int f = 0; f < 8; ++f)
    for (int b = 0; b < 6; ++b)
      lookup.rows[f * 6 + b] = static_cast<uint8_t>(f == missing ? KILN_NO_CONFIGURATION : (f + b) % configurations);
  return lookup;
}
constexpr Lookup kLookupTwo = make_lookup(2, 7), kLookupOne = make_lookup(1, -1);
constexpr uint8_t kReduceLookup[] = {0, 0};
constexpr int64_t kConfigurationsTwo[] = {64, 1, 128, 2}, kConfigurationsOne[] = {32, 1};
constexpr int64_t kReduceConfigurations[] = {128};
constexpr const char* const kNamesTwo[] = {"BLOCK=64 SPLIT=1", "BLOCK=128 SPLIT=2"};
constexpr const char* const kNamesOne[] = {"BLOCK=32 SPLIT=1"};
constexpr const char* const kReduceNames[] = {"BLOCK=128"};
#define LAYOUT_TWO {2, 2, 2}
#define LAYOUT_ONE {1, 1, 1}
#define LAYOUT_REDUCE {9}
constexpr kiln_kernel_target_table kMainTargets[] = {
    {"sm_80", 1, 0, kConfigurationsOne, kNamesOne, kLookupOne.rows, LAYOUT_ONE, 0, 0},
    {"sm_90", 2, 0, kConfigurationsTwo, kNamesTwo, kLookupTwo.rows, LAYOUT_TWO, 0, 0},
    {"gfx942", 1, 0, kConfigurationsOne, kNamesOne, kLookupOne.rows, LAYOUT_ONE, 0, 0}};
constexpr kiln_kernel_target_table kReduceTargets[] = {
    {"sm_80", 1, 0, kReduceConfigurations, kReduceNames, kReduceLookup, LAYOUT_REDUCE, 0, 0},
    {"sm_90", 1, 0, kReduceConfigurations, kReduceNames, kReduceLookup, LAYOUT_REDUCE, 0, 0},
    {"gfx942", 1, 0, kReduceConfigurations, kReduceNames, kReduceLookup, LAYOUT_REDUCE, 0, 0},
    {"gfx1100", 1, 0, kReduceConfigurations, kReduceNames, kReduceLookup, LAYOUT_REDUCE, 0, 0}};

constexpr kiln_kernel_table kKernels[] = {
    {"main", nullptr, nullptr, nullptr, nullptr, kMainChoices, kMainParameters, kMainValues, kMainSpecializations, kBins,
     kZeros, nullptr, kMainTargets, {grid_x, big, one}, 0, 3, 10, 3, 2, 1, 0, 3, CONFIG, 2, 0, 0},
    {"reduce", nullptr, many_rows, nullptr, nullptr, kReduceChoices, kReduceParameters, kReduceValues,
     kReduceSpecializations, nullptr, nullptr, nullptr, kReduceTargets, {grid_x, one, one}, 1, 1, 3, 1, 0, 0, 0, 4, CONFIG, 1, 1, 0}};
constexpr kiln_operation_table kOperations[] = {{"mix", no_rows, kArguments, kChoices, kDefinitions, define,
                                                 kRequirements, check, kWorkspaces, kKernels, 7, 3, 3, 1, 1, 2, MP, VALUES}};

constexpr const char* const kOn80[] = {"sm_80", "sm_86", nullptr};
constexpr const char* const kOn90[] = {"sm_90", nullptr};
constexpr const char* const kOn942[] = {"gfx942", nullptr};
constexpr const char* const kOn1100[] = {"gfx1100", nullptr};
constexpr kiln_pack_table kPacks[] = {
    {"nvidia-sm_80.pack", "sm_80", KILN_VENDOR_NVIDIA, TOY_HAS_DIGEST, kOn80, TOY_DIGEST_SM_80},
    {"nvidia-sm_90.pack", "sm_90", KILN_VENDOR_NVIDIA, TOY_HAS_DIGEST, kOn90, TOY_DIGEST_SM_90},
    {"amd-gfx942.pack", "gfx942", KILN_VENDOR_AMD, TOY_HAS_DIGEST, kOn942, TOY_DIGEST_GFX942},
    {"amd-gfx1100.pack", "gfx1100", KILN_VENDOR_AMD, TOY_HAS_DIGEST, kOn1100, TOY_DIGEST_GFX1100}};

constexpr kiln_family kFamily = {sizeof(kiln_family), KILN_FAMILY_ABI, 1, 4, 0, TOY_TEXT(TOY_NAME), "1.2.3",
                                 kOperations, kPacks};

}  // namespace

extern "C" KILN_API const kiln_family* TOY_JOIN(kiln_, TOY_NAME, _family)(void) { return &kFamily; }
