/* Scalar arithmetic: SOP1, SOP2, SOPC and SOPK. */
#include "operands.h"
#include "rows.h"

/* ---- functions of one or two sources ---------------------------------------------------------------------------- */

#define FUNCTION(name, ...)                                     \
  static uint64_t name(uint64_t x, uint64_t y, uint32_t* scc) { \
    uint32_t a = (uint32_t)x, b = (uint32_t)y;                  \
    (void)a, (void)b, (void)scc;                                \
    __VA_ARGS__                                                 \
  }
/* A value, with or without SCC := value is not zero. */
#define VALUE(name, value) FUNCTION(name, return (value);)
#define NONZERO32(name, value) FUNCTION(name, uint32_t r = (uint32_t)(value); *scc = r != 0; return r;)
#define NONZERO64(name, value) FUNCTION(name, uint64_t r = (value); *scc = r != 0; return r;)
#define COMPARE(name, condition) FUNCTION(name, *scc = (condition); return 0;)
#define SA ((int32_t)a)
#define SB ((int32_t)b)
#define SX ((int64_t)x)

FUNCTION(add_u32, uint64_t r = (uint64_t)a + b; *scc = r >> 32 != 0; return (uint32_t)r;)
FUNCTION(addc_u32, uint64_t r = (uint64_t)a + b + *scc; *scc = r >> 32 != 0; return (uint32_t)r;)
FUNCTION(sub_u32, *scc = b > a; return a - b;)
FUNCTION(subb_u32, uint64_t taken = (uint64_t)b + *scc; *scc = taken > a; return (uint32_t)(a - taken);)
FUNCTION(add_i32, int32_t r; *scc = __builtin_add_overflow(SA, SB, &r); return (uint32_t)r;)
FUNCTION(sub_i32, int32_t r; *scc = __builtin_sub_overflow(SA, SB, &r); return (uint32_t)r;)
FUNCTION(absdiff_i32, uint32_t r = SA > SB ? a - b : b - a; *scc = r != 0; return r;)
FUNCTION(min_i32, *scc = SA < SB; return SA < SB ? a : b;)
FUNCTION(max_i32, *scc = SA > SB; return SA > SB ? a : b;)
FUNCTION(min_u32, *scc = a < b; return a < b ? a : b;)
FUNCTION(max_u32, *scc = a > b; return a > b ? a : b;)
VALUE(select32, *scc ? a : b)
VALUE(select64, *scc ? x : y)
VALUE(same, x)
NONZERO32(and32, a& b)
NONZERO64(and64, x& y)
NONZERO32(or32, a | b)
NONZERO64(or64, x | y)
NONZERO32(xor32, a ^ b)
NONZERO64(xor64, x ^ y)
NONZERO32(andn2_32, a & ~b)
NONZERO64(andn2_64, x & ~y)
NONZERO32(orn2_32, a | ~b)
NONZERO64(orn2_64, x | ~y)
NONZERO32(not_and32, ~(a& b))
NONZERO64(not_and64, ~(x& y))
NONZERO32(nor32, ~(a | b))
NONZERO64(nor64, ~(x | y))
NONZERO32(xnor32, ~(a ^ b))
NONZERO64(xnor64, ~(x ^ y))
NONZERO32(not32, ~a)
NONZERO64(not64, ~x)
NONZERO32(lshl32, a << (b & 31))
NONZERO64(lshl64, x << (y & 63))
NONZERO32(lshr32, a >> (b & 31))
NONZERO64(lshr64, x >> (y & 63))
NONZERO32(ashr32, SA >> (b & 31))
NONZERO64(ashr64, (uint64_t)(SX >> (y & 63)))
VALUE(mul_i32, (uint32_t)(a * b))
VALUE(mul_u64, x* y)
VALUE(mul_hi_u32, (uint64_t)a* b >> 32)
VALUE(mul_hi_i32, (uint32_t)((int64_t)SA * SB >> 32))
VALUE(add_u64, x + y)
VALUE(sub_u64, x - y)
VALUE(bfm32, ((1u << (a & 31)) - 1) << (b & 31))
VALUE(bfm64, ((1ull << (x & 63)) - 1) << (y & 63))
VALUE(pack_ll, (a & 0xffff) | b << 16)
VALUE(pack_lh, (a & 0xffff) | (b & 0xffff0000u))
VALUE(pack_hh, a >> 16 | (b & 0xffff0000u))
VALUE(pack_hl, a >> 16 | b << 16)
NONZERO32(abs_i32, SA < 0 ? 0u - a : a)
VALUE(sext_i8, (uint32_t)(int8_t)a)
VALUE(sext_i16, (uint32_t)(int16_t)a)
FUNCTION(reverse32, uint32_t r = 0; for (int i = 0; i < 32; i++) r |= (a >> i & 1) << (31 - i); return r;)
NONZERO32(count1_32, __builtin_popcount(a))
NONZERO32(count1_64, __builtin_popcountll(x))
NONZERO32(count0_32, 32 - __builtin_popcount(a))
NONZERO32(count0_64, 64 - __builtin_popcountll(x))
VALUE(first1_32, a ? (uint32_t)__builtin_ctz(a) : ~0u)
VALUE(first1_64, x ? (uint32_t)__builtin_ctzll(x) : ~0u)
VALUE(first0_32, ~a ? (uint32_t)__builtin_ctz(~a) : ~0u)
VALUE(leading_32, a ? (uint32_t)__builtin_clz(a) : ~0u)
VALUE(leading_64, x ? (uint32_t)__builtin_clzll(x) : ~0u)

/* An expanded field: bits 4:0 of b its offset, 22:16 its width. */
static uint64_t field_u64(uint64_t x, unsigned offset, unsigned width) {
  return width == 0 ? 0 : x >> offset & (width >= 64 ? ~0ull : (1ull << width) - 1);
}
static uint64_t field_i64(uint64_t x, unsigned offset, unsigned width, unsigned bits) {
  if (width == 0) return 0;
  unsigned kept = offset + width > bits ? bits - offset : width;
  return (uint64_t)((int64_t)(x << (64 - offset - kept)) >> (64 - kept));
}
NONZERO32(bfe_u32, field_u64(a, b & 31, b >> 16 & 127))
NONZERO32(bfe_i32, field_i64(a, b & 31, b >> 16 & 127, 32))
NONZERO64(bfe_u64, field_u64(x, b & 63, b >> 16 & 127))
NONZERO64(bfe_i64, field_i64(x, b & 63, b >> 16 & 127, 64))

#define SHIFT_ADD(n) \
  FUNCTION(shift##n##_add, uint64_t r = ((uint64_t)a << n) + b; *scc = r >> 32 != 0; return (uint32_t)r;)
SHIFT_ADD(1)
SHIFT_ADD(2)
SHIFT_ADD(3)
SHIFT_ADD(4)

COMPARE(eq_u32, a == b)
COMPARE(lg_u32, a != b)
COMPARE(lt_u32, a < b)
COMPARE(le_u32, a <= b)
COMPARE(gt_u32, a > b)
COMPARE(ge_u32, a >= b)
COMPARE(lt_i32, SA < SB)
COMPARE(le_i32, SA <= SB)
COMPARE(gt_i32, SA > SB)
COMPARE(ge_i32, SA >= SB)
COMPARE(eq_u64, x == y)
COMPARE(lg_u64, x != y)
COMPARE(bit0_32, !(a >> (b & 31) & 1))
COMPARE(bit1_32, a >> (b & 31) & 1)
COMPARE(bit0_64, !(x >> (y & 63) & 1))
COMPARE(bit1_64, x >> (y & 63) & 1)

/* gfx11.5 and gfx12: scalar floating point. */
#define FA emu_f32(a)
#define FB emu_f32(b)
VALUE(add_f32, emu_bits32(FA + FB))
VALUE(sub_f32, emu_bits32(FA - FB))
VALUE(mul_f32, emu_bits32(FA* FB))
VALUE(min_f32, emu_bits32(emu_min32(FA, FB)))
VALUE(max_f32, emu_bits32(emu_max32(FA, FB)))
VALUE(float_of_i32, emu_bits32((float)SA))
VALUE(float_of_u32, emu_bits32((float)a))
VALUE(i32_of_float, (uint32_t)(FA != FA ? 0 : FA >= 0x1p31f ? INT32_MAX : FA <= -0x1p31f ? INT32_MIN : (int32_t)FA))
VALUE(u32_of_float, FA >= 0x1p32f ? UINT32_MAX : FA > 0 ? (uint32_t)FA : 0)
COMPARE(eq_f32, FA == FB)
COMPARE(lg_f32, FA<FB || FA> FB)
COMPARE(neq_f32, !(FA == FB))
COMPARE(lt_f32, FA < FB)
COMPARE(le_f32, FA <= FB)
COMPARE(gt_f32, FA > FB)
COMPARE(ge_f32, FA >= FB)
COMPARE(o_f32, FA == FA && FB == FB)
COMPARE(u_f32, FA != FA || FB != FB)
COMPARE(nlt_f32, !(FA < FB))
COMPARE(nle_f32, !(FA <= FB))
COMPARE(ngt_f32, !(FA > FB))
COMPARE(nge_f32, !(FA >= FB))

/* ---- those that touch more than their operands ------------------------------------------------------------------ */

/* s_<op>_saveexec: EXEC goes to the result, and is then combined with the source. */
static void save_exec(struct emu_wave* wave, const struct emu_instruction* in) {
  bool wide = in->operand[0].words == 2;
  uint64_t source = emu_scalar(wave, &in->operand[1]);
  uint64_t exec = wide ? emu_pair(wave, EMU_EXEC) : wave->sgpr[EMU_EXEC];
  uint64_t value = in->op->scalar(source, exec, &wave->scc);
  if (!wide) value = (uint32_t)value;
  wave->scc = value != 0;
  emu_write_scalar(wave, &in->operand[0], exec);
  wave->sgpr[EMU_EXEC] = (uint32_t)value;
  if (wide) wave->sgpr[EMU_EXEC + 1] = (uint32_t)(value >> 32);
}
VALUE(and_not0, ~x& y)
VALUE(or_not0, ~x | y)

/* s_addk_i32, s_mulk_i32 and s_cmovk: the result is the first source. */
static void with_result(struct emu_wave* wave, const struct emu_instruction* in) {
  uint64_t old = emu_scalar(wave, &in->operand[0]), value = emu_scalar(wave, &in->operand[1]);
  emu_write_scalar(wave, &in->operand[0], in->op->scalar(old, value, &wave->scc));
}
static void move_if(struct emu_wave* wave, const struct emu_instruction* in) {
  if (wave->scc) emu_write_scalar(wave, &in->operand[0], emu_scalar(wave, &in->operand[1]));
}
static void set_bit(struct emu_wave* wave, const struct emu_instruction* in) {
  uint64_t bit = 1ull << (emu_scalar(wave, &in->operand[1]) & (in->operand[0].words == 2 ? 63 : 31));
  uint64_t old = emu_scalar(wave, &in->operand[0]);
  emu_write_scalar(wave, &in->operand[0], in->op->scalar(old, bit, &wave->scc));
}
VALUE(bits_or, x | y)
VALUE(bits_and_not, x & ~y)

/* s_fmac_f32 and s_fmamk, s_fmaak of gfx12. */
static void fused(struct emu_wave* wave, const struct emu_instruction* in) {
  float a = emu_f32((uint32_t)emu_scalar(wave, &in->operand[1])),
        b = emu_f32((uint32_t)emu_scalar(wave, &in->operand[2]));
  float c = emu_f32((uint32_t)emu_scalar(wave, &in->operand[in->operands > 3 ? 3 : 0]));
  emu_float_mode(wave, 'f');
  emu_write_scalar(wave, &in->operand[0], emu_bits32(fmaf(a, b, c)));
}

/* hwreg(id, offset, size): MODE is what programs set; of the others only what is known is read. */
enum { HWREG_MODE = 1 };
static void setreg(struct emu_wave* wave, const struct emu_instruction* in) {
  int id = in->immediate & 63, offset = in->immediate >> 6 & 31, size = (in->immediate >> 11 & 31) + 1;
  if (id != HWREG_MODE) {
    emu_fault(wave, EMU_UNKNOWN, -1, 0, "s_setreg of hardware register %d, which the executor does not know", id);
    return;
  }
  uint32_t ones = (uint32_t)((1ull << size) - 1) << offset;
  wave->mode = (wave->mode & ~ones) | ((uint32_t)emu_scalar(wave, &in->operand[0]) << offset & ones);
}
static void getreg(struct emu_wave* wave, const struct emu_instruction* in) {
  int id = in->immediate & 63, offset = in->immediate >> 6 & 31, size = (in->immediate >> 11 & 31) + 1;
  if (id != HWREG_MODE) {
    emu_fault(wave, EMU_UNKNOWN, -1, 0, "s_getreg of hardware register %d, which the executor does not know", id);
    return;
  }
  emu_write_scalar(wave, &in->operand[0], wave->mode >> offset & ((1ull << size) - 1));
}

#define S2(name, types, function, flags) {name, types, emu_salu, 0, flags, EMU_SALU, 0, function}
#define RUN(name, types, run, function, flags) {name, types, run, 0, flags, EMU_SALU, 0, function}
#define WS EMU_WRITES_SCC
#define RS EMU_READS_SCC

const struct emu_op emu_scalar_ops[] = {
    S2("s_mov_b32", "s=s", same, 0),
    S2("s_mov_b64", "S=S", same, 0),
    S2("s_movk_i32", "s=k", same, 0),
    S2("s_add_u32", "s=ss", add_u32, WS),
    S2("s_addc_u32", "s=ss", addc_u32, WS | RS),
    S2("s_sub_u32", "s=ss", sub_u32, WS),
    S2("s_subb_u32", "s=ss", subb_u32, WS | RS),
    S2("s_add_i32", "s=ss", add_i32, WS),
    S2("s_sub_i32", "s=ss", sub_i32, WS),
    S2("s_absdiff_i32", "s=ss", absdiff_i32, WS),
    S2("s_min_i32", "s=ss", min_i32, WS),
    S2("s_max_i32", "s=ss", max_i32, WS),
    S2("s_min_u32", "s=ss", min_u32, WS),
    S2("s_max_u32", "s=ss", max_u32, WS),
    S2("s_cselect_b32", "s=ss", select32, RS),
    S2("s_cselect_b64", "S=SS", select64, RS),
    S2("s_and_b32", "s=ss", and32, WS),
    S2("s_and_b64", "S=SS", and64, WS),
    S2("s_or_b32", "s=ss", or32, WS),
    S2("s_or_b64", "S=SS", or64, WS),
    S2("s_xor_b32", "s=ss", xor32, WS),
    S2("s_xor_b64", "S=SS", xor64, WS),
    S2("s_andn2_b32", "s=ss", andn2_32, WS),
    S2("s_andn2_b64", "S=SS", andn2_64, WS),
    S2("s_orn2_b32", "s=ss", orn2_32, WS),
    S2("s_orn2_b64", "S=SS", orn2_64, WS),
    S2("s_nand_b32", "s=ss", not_and32, WS),
    S2("s_nand_b64", "S=SS", not_and64, WS),
    S2("s_nor_b32", "s=ss", nor32, WS),
    S2("s_nor_b64", "S=SS", nor64, WS),
    S2("s_xnor_b32", "s=ss", xnor32, WS),
    S2("s_xnor_b64", "S=SS", xnor64, WS),
    S2("s_not_b32", "s=s", not32, WS),
    S2("s_not_b64", "S=S", not64, WS),
    S2("s_lshl_b32", "s=ss", lshl32, WS),
    S2("s_lshl_b64", "S=Ss", lshl64, WS),
    S2("s_lshr_b32", "s=ss", lshr32, WS),
    S2("s_lshr_b64", "S=Ss", lshr64, WS),
    S2("s_ashr_i32", "s=ss", ashr32, WS),
    S2("s_ashr_i64", "S=Ss", ashr64, WS),
    S2("s_lshl1_add_u32", "s=ss", shift1_add, WS),
    S2("s_lshl2_add_u32", "s=ss", shift2_add, WS),
    S2("s_lshl3_add_u32", "s=ss", shift3_add, WS),
    S2("s_lshl4_add_u32", "s=ss", shift4_add, WS),
    S2("s_bfm_b32", "s=ss", bfm32, 0),
    S2("s_bfm_b64", "S=ss", bfm64, 0),
    S2("s_mul_i32", "s=ss", mul_i32, 0),
    S2("s_mul_u64", "S=SS", mul_u64, 0),
    S2("s_mul_hi_u32", "s=ss", mul_hi_u32, 0),
    S2("s_mul_hi_i32", "s=ss", mul_hi_i32, 0),
    S2("s_add_nc_u64", "S=SS", add_u64, 0),
    S2("s_sub_nc_u64", "S=SS", sub_u64, 0),
    S2("s_bfe_u32", "s=ss", bfe_u32, WS),
    S2("s_bfe_i32", "s=ss", bfe_i32, WS),
    S2("s_bfe_u64", "S=Ss", bfe_u64, WS),
    S2("s_bfe_i64", "S=Ss", bfe_i64, WS),
    S2("s_pack_ll_b32_b16", "s=ss", pack_ll, 0),
    S2("s_pack_lh_b32_b16", "s=ss", pack_lh, 0),
    S2("s_pack_hh_b32_b16", "s=ss", pack_hh, 0),
    S2("s_pack_hl_b32_b16", "s=ss", pack_hl, 0),
    S2("s_abs_i32", "s=s", abs_i32, WS),
    S2("s_sext_i32_i8", "s=s", sext_i8, 0),
    S2("s_sext_i32_i16", "s=s", sext_i16, 0),
    S2("s_brev_b32", "s=s", reverse32, 0),
    S2("s_bcnt1_i32_b32", "s=s", count1_32, WS),
    S2("s_bcnt1_i32_b64", "s=S", count1_64, WS),
    S2("s_bcnt0_i32_b32", "s=s", count0_32, WS),
    S2("s_bcnt0_i32_b64", "s=S", count0_64, WS),
    S2("s_ff1_i32_b32", "s=s", first1_32, 0),
    S2("s_ff1_i32_b64", "s=S", first1_64, 0),
    S2("s_ff0_i32_b32", "s=s", first0_32, 0),
    S2("s_flbit_i32_b32", "s=s", leading_32, 0),
    S2("s_flbit_i32_b64", "s=S", leading_64, 0),
    S2("s_cmp_eq_u32", "=ss", eq_u32, WS),
    S2("s_cmp_eq_i32", "=ss", eq_u32, WS),
    S2("s_cmp_lg_u32", "=ss", lg_u32, WS),
    S2("s_cmp_lg_i32", "=ss", lg_u32, WS),
    S2("s_cmp_lt_u32", "=ss", lt_u32, WS),
    S2("s_cmp_le_u32", "=ss", le_u32, WS),
    S2("s_cmp_gt_u32", "=ss", gt_u32, WS),
    S2("s_cmp_ge_u32", "=ss", ge_u32, WS),
    S2("s_cmp_lt_i32", "=ss", lt_i32, WS),
    S2("s_cmp_le_i32", "=ss", le_i32, WS),
    S2("s_cmp_gt_i32", "=ss", gt_i32, WS),
    S2("s_cmp_ge_i32", "=ss", ge_i32, WS),
    S2("s_cmp_eq_u64", "=SS", eq_u64, WS),
    S2("s_cmp_lg_u64", "=SS", lg_u64, WS),
    S2("s_cmpk_eq_u32", "=ss", eq_u32, WS),
    S2("s_cmpk_eq_i32", "=sk", eq_u32, WS),
    S2("s_cmpk_lg_u32", "=ss", lg_u32, WS),
    S2("s_cmpk_lg_i32", "=sk", lg_u32, WS),
    S2("s_cmpk_lt_u32", "=ss", lt_u32, WS),
    S2("s_cmpk_le_u32", "=ss", le_u32, WS),
    S2("s_cmpk_gt_u32", "=ss", gt_u32, WS),
    S2("s_cmpk_ge_u32", "=ss", ge_u32, WS),
    S2("s_cmpk_lt_i32", "=sk", lt_i32, WS),
    S2("s_cmpk_le_i32", "=sk", le_i32, WS),
    S2("s_cmpk_gt_i32", "=sk", gt_i32, WS),
    S2("s_cmpk_ge_i32", "=sk", ge_i32, WS),
    S2("s_bitcmp0_b32", "=ss", bit0_32, WS),
    S2("s_bitcmp1_b32", "=ss", bit1_32, WS),
    S2("s_bitcmp0_b64", "=Ss", bit0_64, WS),
    S2("s_bitcmp1_b64", "=Ss", bit1_64, WS),
    S2("s_add_f32", "f=ff", add_f32, 0),
    S2("s_sub_f32", "f=ff", sub_f32, 0),
    S2("s_mul_f32", "f=ff", mul_f32, 0),
    S2("s_min_f32", "f=ff", min_f32, 0),
    S2("s_max_f32", "f=ff", max_f32, 0),
    S2("s_cvt_f32_i32", "f=s", float_of_i32, 0),
    S2("s_cvt_f32_u32", "f=s", float_of_u32, 0),
    S2("s_cvt_i32_f32", "s=f", i32_of_float, 0),
    S2("s_cvt_u32_f32", "s=f", u32_of_float, 0),
    S2("s_cmp_eq_f32", "=ff", eq_f32, WS),
    S2("s_cmp_lg_f32", "=ff", lg_f32, WS),
    S2("s_cmp_neq_f32", "=ff", neq_f32, WS),
    S2("s_cmp_lt_f32", "=ff", lt_f32, WS),
    S2("s_cmp_le_f32", "=ff", le_f32, WS),
    S2("s_cmp_gt_f32", "=ff", gt_f32, WS),
    S2("s_cmp_ge_f32", "=ff", ge_f32, WS),
    S2("s_cmp_o_f32", "=ff", o_f32, WS),
    S2("s_cmp_u_f32", "=ff", u_f32, WS),
    S2("s_cmp_nlt_f32", "=ff", nlt_f32, WS),
    S2("s_cmp_nle_f32", "=ff", nle_f32, WS),
    S2("s_cmp_ngt_f32", "=ff", ngt_f32, WS),
    S2("s_cmp_nge_f32", "=ff", nge_f32, WS),
    RUN("s_fmac_f32", "f=ff", fused, 0, EMU_READS_RESULT),
    RUN("s_fmamk_f32", "f=fff", fused, 0, 0),
    RUN("s_fmaak_f32", "f=fff", fused, 0, 0),
    RUN("s_and_saveexec_b32", "s=s", save_exec, and32, WS | EMU_WRITES_EXEC),
    RUN("s_and_saveexec_b64", "S=S", save_exec, and64, WS | EMU_WRITES_EXEC),
    RUN("s_or_saveexec_b32", "s=s", save_exec, or32, WS | EMU_WRITES_EXEC),
    RUN("s_or_saveexec_b64", "S=S", save_exec, or64, WS | EMU_WRITES_EXEC),
    RUN("s_xor_saveexec_b32", "s=s", save_exec, xor32, WS | EMU_WRITES_EXEC),
    RUN("s_xor_saveexec_b64", "S=S", save_exec, xor64, WS | EMU_WRITES_EXEC),
    RUN("s_andn2_saveexec_b32", "s=s", save_exec, andn2_32, WS | EMU_WRITES_EXEC),
    RUN("s_andn2_saveexec_b64", "S=S", save_exec, andn2_64, WS | EMU_WRITES_EXEC),
    RUN("s_orn2_saveexec_b32", "s=s", save_exec, orn2_32, WS | EMU_WRITES_EXEC),
    RUN("s_orn2_saveexec_b64", "S=S", save_exec, orn2_64, WS | EMU_WRITES_EXEC),
    RUN("s_andn1_saveexec_b32", "s=s", save_exec, and_not0, WS | EMU_WRITES_EXEC),
    RUN("s_andn1_saveexec_b64", "S=S", save_exec, and_not0, WS | EMU_WRITES_EXEC),
    RUN("s_orn1_saveexec_b32", "s=s", save_exec, or_not0, WS | EMU_WRITES_EXEC),
    RUN("s_orn1_saveexec_b64", "S=S", save_exec, or_not0, WS | EMU_WRITES_EXEC),
    RUN("s_addk_i32", "s=k", with_result, add_i32, WS | EMU_READS_RESULT),
    RUN("s_mulk_i32", "s=k", with_result, mul_i32, EMU_READS_RESULT),
    RUN("s_cmov_b32", "s=s", move_if, 0, RS | EMU_READS_RESULT),
    RUN("s_cmov_b64", "S=S", move_if, 0, RS | EMU_READS_RESULT),
    RUN("s_cmovk_i32", "s=k", move_if, 0, RS | EMU_READS_RESULT),
    RUN("s_bitset0_b32", "s=s", set_bit, bits_and_not, EMU_READS_RESULT),
    RUN("s_bitset1_b32", "s=s", set_bit, bits_or, EMU_READS_RESULT),
    RUN("s_bitset0_b64", "S=s", set_bit, bits_and_not, EMU_READS_RESULT),
    RUN("s_bitset1_b64", "S=s", set_bit, bits_or, EMU_READS_RESULT),
    RUN("s_setreg_b32", "=s", setreg, 0, 0),
    RUN("s_setreg_imm32_b32", "=s", setreg, 0, 0),
    RUN("s_getreg_b32", "s=", getreg, 0, 0),
    {0},
};
