/* VOP1 and VOP2 of f32, f64, integers and bits. */
#include "rows.h"

/* ---- f32 -------------------------------------------------------------------------------------------------------- */

EMU_ROW_F(add_f32, AF + BF)
EMU_ROW_F(sub_f32, AF - BF)
EMU_ROW_F(subrev_f32, BF - AF)
EMU_ROW_F(mul_f32, AF* BF)
/* DX9's product: 0 by anything is 0. */
EMU_ROW_F(mul_legacy_f32, AF == 0 || BF == 0 ? 0.0f : AF * BF)
EMU_ROW_F(min_f32, emu_min32(AF, BF))
EMU_ROW_F(max_f32, emu_max32(AF, BF))
EMU_ROW_F(fma_f32, fmaf(AF, BF, CF))
/* v_fmamk and v_fmaak are it too: their constant stands where it is multiplied or added. */
EMU_ROW_F(mad_f32, AF* BF + CF)
EMU_ROW_F(fract_f32, AF - floorf(AF))
EMU_ROW_F(trunc_f32, truncf(AF))
EMU_ROW_F(ceil_f32, ceilf(AF))
EMU_ROW_F(floor_f32, floorf(AF))
EMU_ROW_F(rndne_f32, rintf(AF))

/* The transcendental unit takes and gives no subnormal numbers, whatever MODE says. Its results are within one unit in
   the last place; these are the nearest. */
static inline float flushed(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x; }
EMU_ROW_F(exp_f32, flushed(exp2f(flushed(AF))))
EMU_ROW_F(log_f32, log2f(flushed(AF)))
EMU_ROW_F(rcp_f32, flushed(1 / flushed(AF)))
EMU_ROW_F(rsq_f32, (float)(1 / sqrt((double)flushed(AF))))
EMU_ROW_F(sqrt_f32, sqrtf(flushed(AF)))
EMU_ROW_F(sin_f32, (float)sin(2 * M_PI * (double)AF))
EMU_ROW_F(cos_f32, (float)cos(2 * M_PI * (double)AF))

static inline float ldexp_lane(float x, int32_t by) { return ldexpf(x, by > 400 ? 400 : by < -400 ? -400 : by); }
EMU_ROW_F(ldexp_f32, ldexp_lane(AF, BI))
EMU_ROW_F(frexp_mant_f32, isfinite(AF) ? frexpf(AF, &(int){0}) : AF)
static inline uint32_t exponent_of(float x) {
  int exponent = 0;
  if (isfinite(x) && x != 0) frexpf(x, &exponent);
  return (uint32_t)exponent;
}
EMU_ROW_U(frexp_exp_f32, exponent_of(AF))

/* ---- f64 -------------------------------------------------------------------------------------------------------- */

EMU_ROW_D(add_f64, AD + BD)
EMU_ROW_D(mul_f64, AD* BD)
EMU_ROW_D(min_f64, emu_min64(AD, BD))
EMU_ROW_D(max_f64, emu_max64(AD, BD))
EMU_ROW_D(fma_f64, fma(AD, BD, CD))
EMU_ROW_D(rcp_f64, 1 / AD)
EMU_ROW_D(rsq_f64, 1 / sqrt(AD))
EMU_ROW_D(sqrt_f64, sqrt(AD))
EMU_ROW_D(trunc_f64, trunc(AD))
EMU_ROW_D(ceil_f64, ceil(AD))
EMU_ROW_D(floor_f64, floor(AD))
EMU_ROW_D(rndne_f64, rint(AD))
EMU_ROW_D(fract_f64, AD - floor(AD))
EMU_ROW_D(ldexp_f64, ldexp(AD, BI > 4000 ? 4000 : BI < -4000 ? -4000 : BI))

/* ---- f16 -------------------------------------------------------------------------------------------------------- */

EMU_ROW_H(add_f16, AH + BH)
EMU_ROW_H(sub_f16, AH - BH)
EMU_ROW_H(subrev_f16, BH - AH)
EMU_ROW_H(mul_f16, AH* BH)
EMU_ROW_H(min_f16, emu_min64(AH, BH))
EMU_ROW_H(max_f16, emu_max64(AH, BH))
EMU_ROW_H(fma_f16, fma(AH, BH, CH))
EMU_ROW_H(rcp_f16, 1 / AH)
EMU_ROW_H(rsq_f16, 1 / sqrt(AH))
EMU_ROW_H(sqrt_f16, sqrt(AH))
EMU_ROW_H(exp_f16, exp2(AH))
EMU_ROW_H(log_f16, log2(AH))
EMU_ROW_H(trunc_f16, trunc(AH))
EMU_ROW_H(ceil_f16, ceil(AH))
EMU_ROW_H(floor_f16, floor(AH))
EMU_ROW_H(rndne_f16, rint(AH))
EMU_ROW_H(ldexp_f16, ldexp(AH, (int16_t)BU))

/* ---- integers and bits ------------------------------------------------------------------------------------------ */

EMU_ROW_U(mov_b32, AU)
EMU_ROW_Q(mov_b64, AQ)
EMU_ROW_U(add_u32, AU + BU)
EMU_ROW_U(sub_u32, AU - BU)
EMU_ROW_U(subrev_u32, BU - AU)
EMU_ROW_U(and_b32, AU& BU)
EMU_ROW_U(or_b32, AU | BU)
EMU_ROW_U(xor_b32, AU ^ BU)
EMU_ROW_U(xnor_b32, ~(AU ^ BU))
EMU_ROW_U(not_b32, ~AU)
EMU_ROW_U(lshlrev_b32, BU << (AU & 31))
EMU_ROW_U(lshrrev_b32, BU >> (AU & 31))
EMU_ROW_U(ashrrev_i32, BI >> (AU & 31))
EMU_ROW_Q(lshlrev_b64, BQ << (AU & 63))
EMU_ROW_Q(lshrrev_b64, BQ >> (AU & 63))
EMU_ROW_Q(ashrrev_i64, (uint64_t)((int64_t)BQ >> (AU & 63)))
EMU_ROW_U(min_i32, AI < BI ? AI : BI)
EMU_ROW_U(max_i32, AI > BI ? AI : BI)
EMU_ROW_U(min_u32, AU < BU ? AU : BU)
EMU_ROW_U(max_u32, AU > BU ? AU : BU)
static inline int32_t signed24(uint32_t word) { return (int32_t)(word << 8) >> 8; }
EMU_ROW_U(mul_u32_u24, (AU & 0xffffff) * (BU & 0xffffff))
EMU_ROW_U(mul_i32_i24, (uint32_t)signed24(AU) * (uint32_t)signed24(BU))
EMU_ROW_U(mul_hi_u32_u24, (uint64_t)(AU & 0xffffff) * (BU & 0xffffff) >> 32)
static inline uint32_t reversed(uint32_t x) {
  x = (x & 0x55555555u) << 1 | (x >> 1 & 0x55555555u);
  x = (x & 0x33333333u) << 2 | (x >> 2 & 0x33333333u);
  x = (x & 0x0f0f0f0fu) << 4 | (x >> 4 & 0x0f0f0f0fu);
  return __builtin_bswap32(x);
}
EMU_ROW_U(bfrev_b32, reversed(AU))
EMU_ROW_U(clz_i32_u32, AU ? __builtin_clz(AU) : -1)
EMU_ROW_U(ctz_i32_b32, AU ? __builtin_ctz(AU) : -1)
EMU_ROW_U(cls_i32, AU == 0 || AU == ~0u ? -1 : __builtin_clrsb(AI) + 1)
EMU_ROW_U(bcnt_u32_b32, __builtin_popcount(AU) + BU)
EMU_ROW_U(cndmask_b32, CU ? BU : AU)
/* Sums with a carry: it goes out in the row after the result's, and comes in as the third source. */
EMU_ROW(add_co_u32, uint32_t sum = AU + BU; d[i] = sum; d[EMU_LANES + i] = sum < AU)
EMU_ROW(sub_co_u32, d[i] = AU - BU; d[EMU_LANES + i] = BU > AU)
EMU_ROW(subrev_co_u32, d[i] = BU - AU; d[EMU_LANES + i] = AU > BU)
EMU_ROW(addc_co_u32, uint64_t sum = (uint64_t)AU + BU + CU; d[i] = (uint32_t)sum; d[EMU_LANES + i] = sum >> 32 != 0)
EMU_ROW(subb_co_u32, uint64_t sum = (uint64_t)AU - BU - CU; d[i] = (uint32_t)sum; d[EMU_LANES + i] = sum >> 63)
EMU_ROW(subbrev_co_u32, uint64_t sum = (uint64_t)BU - AU - CU; d[i] = (uint32_t)sum; d[EMU_LANES + i] = sum >> 63)

EMU_ROW_U(add_u16, (AU + BU) & 0xffff)
EMU_ROW_U(sub_u16, (AU - BU) & 0xffff)
EMU_ROW_U(subrev_u16, (BU - AU) & 0xffff)
EMU_ROW_U(mul_lo_u16, (AU * BU) & 0xffff)
EMU_ROW_U(lshlrev_b16, (BU << (AU & 15)) & 0xffff)
EMU_ROW_U(lshrrev_b16, BU >> (AU & 15))
EMU_ROW_U(ashrrev_i16, ((int16_t)BU >> (AU & 15)) & 0xffff)
EMU_ROW_U(min_u16, AU < BU ? AU : BU)
EMU_ROW_U(max_u16, AU > BU ? AU : BU)
EMU_ROW_U(min_i16, ((int16_t)AU < (int16_t)BU ? AU : BU))
EMU_ROW_U(max_i16, ((int16_t)AU > (int16_t)BU ? AU : BU))
EMU_ROW_U(same_b16, AU)
EMU_ROW_U(not_b16, ~AU & 0xffff)

#define V(name, types, lanes) {name, types, emu_valu, lanes, 0, EMU_VALU, 0, 0}
#define VF(name, types, lanes, flags) {name, types, emu_valu, lanes, flags, EMU_VALU, 0, 0}

const struct emu_op emu_vector_ops[] = {
    V("v_add_f32", "f=ff", add_f32),
    V("v_sub_f32", "f=ff", sub_f32),
    V("v_subrev_f32", "f=ff", subrev_f32),
    V("v_mul_f32", "f=ff", mul_f32),
    V("v_mul_legacy_f32", "f=ff", mul_legacy_f32),
    V("v_mul_dx9_zero_f32", "f=ff", mul_legacy_f32),
    V("v_min_f32", "f=ff", min_f32),
    V("v_max_f32", "f=ff", max_f32),
    VF("v_fmac_f32", "f=ff", fma_f32, EMU_READS_RESULT),
    VF("v_mac_f32", "f=ff", mad_f32, EMU_READS_RESULT),
    V("v_fmamk_f32", "f=fff", fma_f32),
    V("v_fmaak_f32", "f=fff", fma_f32),
    V("v_fract_f32", "f=f", fract_f32),
    V("v_trunc_f32", "f=f", trunc_f32),
    V("v_ceil_f32", "f=f", ceil_f32),
    V("v_floor_f32", "f=f", floor_f32),
    V("v_rndne_f32", "f=f", rndne_f32),
    VF("v_exp_f32", "f=f", exp_f32, EMU_TRANSCENDENTAL),
    VF("v_log_f32", "f=f", log_f32, EMU_TRANSCENDENTAL),
    VF("v_rcp_f32", "f=f", rcp_f32, EMU_TRANSCENDENTAL),
    VF("v_rcp_iflag_f32", "f=f", rcp_f32, EMU_TRANSCENDENTAL),
    VF("v_rsq_f32", "f=f", rsq_f32, EMU_TRANSCENDENTAL),
    VF("v_sqrt_f32", "f=f", sqrt_f32, EMU_TRANSCENDENTAL),
    VF("v_sin_f32", "f=f", sin_f32, EMU_TRANSCENDENTAL),
    VF("v_cos_f32", "f=f", cos_f32, EMU_TRANSCENDENTAL),
    /* gfx12: to and from scalar registers. */
    VF("v_s_exp_f32", "f=f", exp_f32, EMU_TRANSCENDENTAL | EMU_IGNORES_EXEC),
    VF("v_s_log_f32", "f=f", log_f32, EMU_TRANSCENDENTAL | EMU_IGNORES_EXEC),
    VF("v_s_rcp_f32", "f=f", rcp_f32, EMU_TRANSCENDENTAL | EMU_IGNORES_EXEC),
    VF("v_s_rsq_f32", "f=f", rsq_f32, EMU_TRANSCENDENTAL | EMU_IGNORES_EXEC),
    VF("v_s_sqrt_f32", "f=f", sqrt_f32, EMU_TRANSCENDENTAL | EMU_IGNORES_EXEC),
    V("v_ldexp_f32", "f=fi", ldexp_f32),
    V("v_frexp_mant_f32", "f=f", frexp_mant_f32),
    V("v_frexp_exp_i32_f32", "i=f", frexp_exp_f32),
    V("v_add_f64", "d=dd", add_f64),
    V("v_mul_f64", "d=dd", mul_f64),
    V("v_min_f64", "d=dd", min_f64),
    V("v_max_f64", "d=dd", max_f64),
    V("v_fma_f64", "d=ddd", fma_f64),
    VF("v_fmac_f64", "d=dd", fma_f64, EMU_READS_RESULT),
    VF("v_rcp_f64", "d=d", rcp_f64, EMU_TRANSCENDENTAL),
    VF("v_rsq_f64", "d=d", rsq_f64, EMU_TRANSCENDENTAL),
    VF("v_sqrt_f64", "d=d", sqrt_f64, EMU_TRANSCENDENTAL),
    V("v_trunc_f64", "d=d", trunc_f64),
    V("v_ceil_f64", "d=d", ceil_f64),
    V("v_floor_f64", "d=d", floor_f64),
    V("v_rndne_f64", "d=d", rndne_f64),
    V("v_fract_f64", "d=d", fract_f64),
    V("v_ldexp_f64", "d=di", ldexp_f64),
    V("v_add_f16", "h=hh", add_f16),
    V("v_sub_f16", "h=hh", sub_f16),
    V("v_subrev_f16", "h=hh", subrev_f16),
    V("v_mul_f16", "h=hh", mul_f16),
    V("v_min_f16", "h=hh", min_f16),
    V("v_max_f16", "h=hh", max_f16),
    V("v_fma_f16", "h=hhh", fma_f16),
    VF("v_fmac_f16", "h=hh", fma_f16, EMU_READS_RESULT),
    VF("v_rcp_f16", "h=h", rcp_f16, EMU_TRANSCENDENTAL),
    VF("v_rsq_f16", "h=h", rsq_f16, EMU_TRANSCENDENTAL),
    VF("v_sqrt_f16", "h=h", sqrt_f16, EMU_TRANSCENDENTAL),
    VF("v_exp_f16", "h=h", exp_f16, EMU_TRANSCENDENTAL),
    VF("v_log_f16", "h=h", log_f16, EMU_TRANSCENDENTAL),
    V("v_trunc_f16", "h=h", trunc_f16),
    V("v_ceil_f16", "h=h", ceil_f16),
    V("v_floor_f16", "h=h", floor_f16),
    V("v_rndne_f16", "h=h", rndne_f16),
    V("v_ldexp_f16", "h=hw", ldexp_f16),
    V("v_mov_b32", "u=u", mov_b32),
    V("v_mov_b64", "q=q", mov_b64),
    V("v_accvgpr_read_b32", "u=u", mov_b32),
    V("v_accvgpr_write_b32", "u=u", mov_b32),
    V("v_accvgpr_mov_b32", "u=u", mov_b32),
    V("v_add_u32", "u=uu", add_u32),
    V("v_add_i32", "u=uu", add_u32),
    V("v_sub_u32", "u=uu", sub_u32),
    V("v_sub_i32", "u=uu", sub_u32),
    V("v_subrev_u32", "u=uu", subrev_u32),
    V("v_and_b32", "u=uu", and_b32),
    V("v_or_b32", "u=uu", or_b32),
    V("v_xor_b32", "u=uu", xor_b32),
    V("v_xnor_b32", "u=uu", xnor_b32),
    V("v_not_b32", "u=u", not_b32),
    V("v_lshlrev_b32", "u=uu", lshlrev_b32),
    V("v_lshrrev_b32", "u=uu", lshrrev_b32),
    V("v_ashrrev_i32", "i=uu", ashrrev_i32),
    V("v_lshlrev_b64", "q=uq", lshlrev_b64),
    V("v_lshrrev_b64", "q=uq", lshrrev_b64),
    V("v_ashrrev_i64", "q=uq", ashrrev_i64),
    V("v_min_i32", "i=ii", min_i32),
    V("v_max_i32", "i=ii", max_i32),
    V("v_min_u32", "u=uu", min_u32),
    V("v_max_u32", "u=uu", max_u32),
    V("v_mul_u32_u24", "u=uu", mul_u32_u24),
    V("v_mul_i32_i24", "i=ii", mul_i32_i24),
    V("v_mul_hi_u32_u24", "u=uu", mul_hi_u32_u24),
    V("v_bfrev_b32", "u=u", bfrev_b32),
    V("v_clz_i32_u32", "i=u", clz_i32_u32),
    V("v_ctz_i32_b32", "i=u", ctz_i32_b32),
    V("v_ffbh_i32", "i=i", cls_i32),
    V("v_cls_i32", "i=i", cls_i32),
    V("v_bcnt_u32_b32", "u=uu", bcnt_u32_b32),
    V("v_cndmask_b32", "u=uum", cndmask_b32),
    V("v_cndmask_b16", "w=wwm", cndmask_b32),
    V("v_add_co_u32", "um=uu", add_co_u32),
    V("v_sub_co_u32", "um=uu", sub_co_u32),
    V("v_subrev_co_u32", "um=uu", subrev_co_u32),
    V("v_addc_co_u32", "um=uum", addc_co_u32),
    V("v_subb_co_u32", "um=uum", subb_co_u32),
    V("v_subbrev_co_u32", "um=uum", subbrev_co_u32),
    V("v_add_u16", "w=ww", add_u16),
    V("v_add_nc_u16", "w=ww", add_u16),
    V("v_sub_u16", "w=ww", sub_u16),
    V("v_sub_nc_u16", "w=ww", sub_u16),
    V("v_subrev_u16", "w=ww", subrev_u16),
    V("v_mul_lo_u16", "w=ww", mul_lo_u16),
    V("v_lshlrev_b16", "w=ww", lshlrev_b16),
    V("v_lshrrev_b16", "w=ww", lshrrev_b16),
    V("v_ashrrev_i16", "w=ww", ashrrev_i16),
    V("v_min_u16", "w=ww", min_u16),
    V("v_max_u16", "w=ww", max_u16),
    V("v_min_i16", "w=ww", min_i16),
    V("v_max_i16", "w=ww", max_i16),
    V("v_mov_b16", "w=w", same_b16),
    V("v_not_b16", "w=w", not_b16),
    V("v_and_b16", "w=ww", and_b32),
    V("v_or_b16", "w=ww", or_b32),
    V("v_xor_b16", "w=ww", xor_b32),
    {0},
};
