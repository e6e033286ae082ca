/* VOP3: three sources, wide products, and the steps of division. */
#include "rows.h"

EMU_ROW_F(fma_f32, fmaf(AF, BF, CF))
EMU_ROW_F(mad_f32, AF* BF + CF)
EMU_ROW_D(fma_f64, fma(AD, BD, CD))
EMU_ROW_F(max3_f32, emu_max32(emu_max32(AF, BF), CF))
EMU_ROW_F(min3_f32, emu_min32(emu_min32(AF, BF), CF))
EMU_ROW_F(maxmin_f32, emu_min32(emu_max32(AF, BF), CF))
EMU_ROW_F(minmax_f32, emu_max32(emu_min32(AF, BF), CF))
static inline float med3(float x, float y, float z) {
  if (x != x || y != y || z != z) return emu_min32(emu_min32(x, y), z);
  float largest = emu_max32(emu_max32(x, y), z);
  return largest == x ? emu_max32(y, z) : largest == y ? emu_max32(x, z) : emu_max32(x, y);
}
EMU_ROW_F(med3_f32, med3(AF, BF, CF))
#define MAX3(x, y, z) MAX2(MAX2(x, y), z)
#define MAX2(x, y) ((x) > (y) ? (x) : (y))
#define MIN3(x, y, z) MIN2(MIN2(x, y), z)
#define MIN2(x, y) ((x) < (y) ? (x) : (y))
EMU_ROW_U(max3_i32, MAX3(AI, BI, CI))
EMU_ROW_U(min3_i32, MIN3(AI, BI, CI))
EMU_ROW_U(max3_u32, MAX3(AU, BU, CU))
EMU_ROW_U(min3_u32, MIN3(AU, BU, CU))
EMU_ROW_U(med3_i32, MAX2(MIN2(AI, BI), MIN2(MAX2(AI, BI), CI)))
EMU_ROW_U(med3_u32, MAX2(MIN2(AU, BU), MIN2(MAX2(AU, BU), CU)))

EMU_ROW_H(max3_f16, emu_max64(emu_max64(AH, BH), CH))
EMU_ROW_H(min3_f16, emu_min64(emu_min64(AH, BH), CH))
EMU_ROW_U(pack_b32_f16, AU | BU << 16)

EMU_ROW_U(add3_u32, AU + BU + CU)
EMU_ROW_U(lshl_add_u32, (AU << (BU & 31)) + CU)
EMU_ROW_U(add_lshl_u32, (AU + BU) << (CU & 31))
EMU_ROW_U(lshl_or_b32, AU << (BU & 31) | CU)
EMU_ROW_U(and_or_b32, (AU & BU) | CU)
EMU_ROW_U(or3_b32, AU | BU | CU)
EMU_ROW_U(xor3_b32, AU ^ BU ^ CU)
EMU_ROW_U(xad_u32, (AU ^ BU) + CU)
EMU_ROW_Q(lshl_add_u64, (AQ << (BU & 7)) + CQ)
EMU_ROW_U(bfe_u32, AU >> (BU & 31) & ((1u << (CU & 31)) - 1))
static inline uint32_t bfe_signed(uint32_t x, uint32_t offset, uint32_t width) {
  if (width == 0) return 0;
  if (offset + width >= 32) return (uint32_t)((int32_t)x >> offset);
  return (uint32_t)((int32_t)(x << (32 - offset - width)) >> (32 - width));
}
EMU_ROW_U(bfe_i32, bfe_signed(AU, BU & 31, CU & 31))
EMU_ROW_U(bfi_b32, (AU & BU) | (~AU & CU))
EMU_ROW_U(alignbit_b32, ((uint64_t)AU << 32 | BU) >> (CU & 31))
EMU_ROW_U(alignbyte_b32, ((uint64_t)AU << 32 | BU) >> 8 * (CU & 3))
EMU_ROW_U(bfm_b32, ((1u << (AU & 31)) - 1) << (BU & 31))

/* A byte chosen of eight: the second source's are 0 to 3, the first's 4 to 7; 8 to 11 are the signs of halves, 12 is 0,
   above it 255. */
static inline uint32_t chosen_byte(uint32_t high, uint32_t low, uint32_t which) {
  uint64_t both = (uint64_t)high << 32 | low;
  which &= 0xff;
  if (which < 8) return both >> 8 * which & 0xff;
  if (which < 12) return both >> (16 * (which - 8) + 15) & 1 ? 0xff : 0;
  return which == 12 ? 0 : 0xff;
}
EMU_ROW_U(perm_b32, chosen_byte(AU, BU, CU) | chosen_byte(AU, BU, CU >> 8) << 8 | chosen_byte(AU, BU, CU >> 16) << 16 |
                        chosen_byte(AU, BU, CU >> 24) << 24)

EMU_ROW_U(mul_lo_u32, AU* BU)
EMU_ROW_U(mul_hi_u32, (uint64_t)AU* BU >> 32)
EMU_ROW_U(mul_hi_i32, (uint64_t)((int64_t)AI * BI) >> 32)
EMU_ROW_U(mad_u32_u24, (AU & 0xffffff) * (BU & 0xffffff) + CU)
EMU_ROW_U(mad_i32_i24, (uint32_t)((int32_t)(AU << 8) >> 8) * (uint32_t)((int32_t)(BU << 8) >> 8) + CU)
EMU_ROW_U(mad_u32_u16, AU* BU + CU)
EMU_ROW_U(mad_u16, (AU * BU + CU) & 0xffff)
EMU_ROW(mad_u64_u32, uint64_t sum, product = (uint64_t)AU * BU;
        d[2 * EMU_LANES + i] = __builtin_add_overflow(product, CQ, &sum); emu_set_wide(d, i, sum))
EMU_ROW(mad_i64_i32, int64_t sum; d[2 * EMU_LANES + i] = __builtin_add_overflow((int64_t)AI * BI, (int64_t)CQ, &sum);
        emu_set_wide(d, i, (uint64_t)sum))
EMU_ROW_U(sad_u32, (AU > BU ? AU - BU : BU - AU) + CU)

/* ---- division: 24-bit and 53-bit quotients by v_div_scale, v_fma..., v_div_fmas, v_div_fixup -------------------- */

static inline int exponent32(float x) { return (int)(emu_bits32(x) >> 23 & 255); }
static inline int exponent64(double x) { return (int)(emu_bits64(x) >> 52 & 2047); }
static inline bool subnormal32(float x) { return x != 0 && fabsf(x) < 0x1p-126f; }
static inline bool subnormal64(double x) { return x != 0 && fabs(x) < 0x1p-1022; }

/* Scales `x`, which is the denominator or the numerator, so that no step between leaves the normal numbers; the flag
   says that v_div_fmas must scale back. */
static inline float scale32(float x, float denominator, float numerator, uint32_t* flag) {
  *flag = 0;
  if (numerator == 0 || denominator == 0) return NAN;
  double quotient = (double)numerator / denominator;
  bool tiny_inverse = isfinite(denominator) && fabs(1 / (double)denominator) < 0x1p-126;
  bool tiny_quotient = quotient != 0 && fabs(quotient) < 0x1p-126;
  if (exponent32(numerator) - exponent32(denominator) >= 96) {
    *flag = 1;
    return x == denominator ? ldexpf(x, 64) : x;
  }
  if (subnormal32(denominator)) return ldexpf(x, 64);
  if (tiny_inverse && tiny_quotient) {
    *flag = 1;
    return x == denominator ? ldexpf(x, -64) : x;
  }
  if (tiny_inverse) return ldexpf(x, -64);
  if (tiny_quotient) {
    *flag = 1;
    return x == numerator ? ldexpf(x, 64) : x;
  }
  return exponent32(numerator) <= 23 ? ldexpf(x, 64) : x;
}
static inline double scale64(double x, double denominator, double numerator, uint32_t* flag) {
  *flag = 0;
  if (numerator == 0 || denominator == 0) return NAN;
  bool tiny_inverse = isfinite(denominator) && subnormal64(1 / denominator);
  bool tiny_quotient = subnormal64(numerator / denominator);
  if (exponent64(numerator) - exponent64(denominator) >= 768) {
    *flag = 1;
    return x == denominator ? ldexp(x, 128) : x;
  }
  if (subnormal64(denominator)) return ldexp(x, 128);
  if (tiny_inverse && tiny_quotient) {
    *flag = 1;
    return x == denominator ? ldexp(x, -128) : x;
  }
  if (tiny_inverse) return ldexp(x, -128);
  if (tiny_quotient) {
    *flag = 1;
    return x == numerator ? ldexp(x, 128) : x;
  }
  return exponent64(numerator) <= 53 ? ldexp(x, 128) : x;
}
EMU_ROW(div_scale_f32, uint32_t flag; d[i] = emu_bits32(scale32(AF, BF, CF, &flag)); d[EMU_LANES + i] = flag)
EMU_ROW(div_scale_f64, uint32_t flag; emu_set_wide(d, i, emu_bits64(scale64(AD, BD, CD, &flag)));
        d[2 * EMU_LANES + i] = flag)

static inline float fixup32(float quotient, float denominator, float numerator) {
  bool negative = signbit(denominator) != signbit(numerator);
  if (numerator != numerator) return numerator;
  if (denominator != denominator) return denominator;
  if ((denominator == 0 && numerator == 0) || (isinf(denominator) && isinf(numerator))) return -NAN;
  float magnitude = fabsf(quotient);
  if (denominator == 0 || isinf(numerator))
    magnitude = INFINITY;
  else if (isinf(denominator) || numerator == 0)
    magnitude = 0;
  else if (exponent32(numerator) - exponent32(denominator) < -150)
    magnitude = 0; /* what a number far below the smallest rounds to */
  return negative ? -magnitude : magnitude;
}
static inline double fixup64(double quotient, double denominator, double numerator) {
  bool negative = signbit(denominator) != signbit(numerator);
  if (numerator != numerator) return numerator;
  if (denominator != denominator) return denominator;
  if ((denominator == 0 && numerator == 0) || (isinf(denominator) && isinf(numerator))) return -NAN;
  double magnitude = fabs(quotient);
  if (denominator == 0 || isinf(numerator))
    magnitude = INFINITY;
  else if (isinf(denominator) || numerator == 0)
    magnitude = 0;
  else if (exponent64(numerator) - exponent64(denominator) < -1075)
    magnitude = 0;
  return negative ? -magnitude : magnitude;
}
EMU_ROW_F(div_fixup_f32, fixup32(AF, BF, CF))
EMU_ROW_D(div_fixup_f64, fixup64(AD, BD, CD))
EMU_ROW_H(div_fixup_f16, fixup64(AH, BH, CH))

/* v_div_fmas reads VCC: a fused product and sum, scaled back where v_div_scale's flag says so, upwards where the
   quotient is large. */
static void div_fmas(struct emu_wave* wave, const struct emu_instruction* in) {
  uint32_t mask[EMU_LANES];
  for (int i = 0; i < EMU_LANES; i++) mask[i] = (uint32_t)(emu_pair(wave, EMU_VCC) >> i) & 1;
  uint64_t exec = emu_exec(wave);
  bool wide = in->op->types[0] == 'd';
  uint32_t scratch[EMU_LANES], large[EMU_LANES];
  const uint32_t* third = emu_row(wave, &in->operand[3], wide, scratch);
  for (int i = 0; i < EMU_LANES; i++) large[i] = wide ? (third[i] >> 20 & 2047) > 1023 : (third[i] >> 23 & 255) > 127;
  emu_valu(wave, in);
  for (int i = 0; i < EMU_LANES; i++) {
    if (!mask[i] || !(exec >> i & 1)) continue;
    uint32_t* low = &wave->vgpr[in->operand[0].index][i];
    if (wide) {
      double value = ldexp(emu_f64(*low | (uint64_t)low[EMU_LANES] << 32), large[i] ? 128 : -128);
      *low = (uint32_t)emu_bits64(value);
      low[EMU_LANES] = (uint32_t)(emu_bits64(value) >> 32);
    } else {
      *low = emu_bits32(ldexpf(emu_f32(*low), large[i] ? 64 : -64));
    }
  }
}

/* v_bitop3_b32: bit (4a + 2b + c) of the immediate is the result's for source bits a, b, c. */
static void bitop3(struct emu_wave* wave, const struct emu_instruction* in) {
  uint32_t scratch[3][EMU_LANES], result[EMU_LANES] = {0};
  const uint32_t* row[3];
  for (int j = 0; j < 3; j++) row[j] = emu_row(wave, &in->operand[1 + j], 0, scratch[j]);
  for (int bits = 0; bits < 8; bits++) {
    if (!(in->immediate >> bits & 1)) continue;
    uint32_t a = bits & 4 ? 0 : ~0u, b = bits & 2 ? 0 : ~0u, c = bits & 1 ? 0 : ~0u;
    EMU_EACH result[i] |= (row[0][i] ^ a) & (row[1][i] ^ b) & (row[2][i] ^ c);
  }
  emu_write_row(wave, &in->operand[0], 0, emu_exec(wave), result);
}

#define V(name, types, lanes) {name, types, emu_valu, lanes, 0, EMU_VALU, 0, 0}

const struct emu_op emu_vector3_ops[] = {
    V("v_fma_f32", "f=fff", fma_f32),
    V("v_mad_f32", "f=fff", mad_f32),
    V("v_max3_f32", "f=fff", max3_f32),
    V("v_min3_f32", "f=fff", min3_f32),
    V("v_med3_f32", "f=fff", med3_f32),
    V("v_med3_num_f32", "f=fff", med3_f32),
    V("v_maxmin_f32", "f=fff", maxmin_f32),
    V("v_minmax_f32", "f=fff", minmax_f32),
    V("v_maxmin_num_f32", "f=fff", maxmin_f32),
    V("v_minmax_num_f32", "f=fff", minmax_f32),
    V("v_max3_f16", "h=hhh", max3_f16),
    V("v_min3_f16", "h=hhh", min3_f16),
    V("v_max3_num_f16", "h=hhh", max3_f16),
    V("v_min3_num_f16", "h=hhh", min3_f16),
    V("v_pack_b32_f16", "u=hh", pack_b32_f16),
    V("v_max3_i32", "i=iii", max3_i32),
    V("v_min3_i32", "i=iii", min3_i32),
    V("v_med3_i32", "i=iii", med3_i32),
    V("v_max3_u32", "u=uuu", max3_u32),
    V("v_min3_u32", "u=uuu", min3_u32),
    V("v_med3_u32", "u=uuu", med3_u32),
    V("v_add3_u32", "u=uuu", add3_u32),
    V("v_lshl_add_u32", "u=uuu", lshl_add_u32),
    V("v_add_lshl_u32", "u=uuu", add_lshl_u32),
    V("v_lshl_or_b32", "u=uuu", lshl_or_b32),
    V("v_and_or_b32", "u=uuu", and_or_b32),
    V("v_or3_b32", "u=uuu", or3_b32),
    V("v_xor3_b32", "u=uuu", xor3_b32),
    V("v_xad_u32", "u=uuu", xad_u32),
    V("v_lshl_add_u64", "q=quq", lshl_add_u64),
    V("v_bfe_u32", "u=uuu", bfe_u32),
    V("v_bfe_i32", "i=uuu", bfe_i32),
    V("v_bfi_b32", "u=uuu", bfi_b32),
    V("v_bfm_b32", "u=uu", bfm_b32),
    V("v_alignbit_b32", "u=uuu", alignbit_b32),
    V("v_alignbyte_b32", "u=uuu", alignbyte_b32),
    V("v_perm_b32", "u=uuu", perm_b32),
    V("v_mul_lo_u32", "u=uu", mul_lo_u32),
    V("v_mul_hi_u32", "u=uu", mul_hi_u32),
    V("v_mul_hi_i32", "i=ii", mul_hi_i32),
    V("v_mad_u32_u24", "u=uuu", mad_u32_u24),
    V("v_mad_i32_i24", "i=iii", mad_i32_i24),
    V("v_mad_u32_u16", "u=wwu", mad_u32_u16),
    V("v_mad_u16", "w=www", mad_u16),
    V("v_mad_u64_u32", "qm=uuq", mad_u64_u32),
    V("v_mad_i64_i32", "qm=iiq", mad_i64_i32),
    V("v_sad_u32", "u=uuu", sad_u32),
    V("v_div_scale_f32", "fm=fff", div_scale_f32),
    V("v_div_scale_f64", "dm=ddd", div_scale_f64),
    V("v_div_fixup_f32", "f=fff", div_fixup_f32),
    V("v_div_fixup_f64", "d=ddd", div_fixup_f64),
    V("v_div_fixup_f16", "h=hhh", div_fixup_f16),
    {"v_div_fmas_f32", "f=fff", div_fmas, fma_f32, EMU_READS_VCC, EMU_VALU, 0, 0},
    {"v_div_fmas_f64", "d=ddd", div_fmas, fma_f64, EMU_READS_VCC, EMU_VALU, 0, 0},
    {"v_bitop3_b32", "u=uuu", bitop3, 0, 0, EMU_VALU, 0, 0},
    {0},
};
