/*
 * Conversions of the VALU, as functions over lanes. Stochastic rounding (v_cvt_sr_*) is not known.
 *
 * To integers: toward zero, saturated, NaN to 0. To f16 and bf16: to nearest even. Eight-bit formats: convert.h; their
 * overflow saturates with MODE.FP16_OVFL, bit 23.
 */
#include "convert.h"
#include "machine.h"

/* ---- integers and floats --------------------------------------------------------------------------------------------
 */

EMU_ROW_F(f32_of_i32, (float)AI)
EMU_ROW_F(f32_of_u32, (float)AU)
EMU_ROW_U(i32_of_f32, emu_i32_of_f32(AF))
EMU_ROW_U(u32_of_f32, emu_u32_of_f32(AF))
EMU_ROW_U(nearest_i32_of_f32, emu_i32_of_f32(floorf(AF + 0.5f)))
EMU_ROW_U(floor_i32_of_f32, emu_i32_of_f32(floorf(AF)))
EMU_ROW_F(f32_of_byte_0, (float)(AU & 0xff))
EMU_ROW_F(f32_of_byte_1, (float)(AU >> 8 & 0xff))
EMU_ROW_F(f32_of_byte_2, (float)(AU >> 16 & 0xff))
EMU_ROW_F(f32_of_byte_3, (float)(AU >> 24))
EMU_ROW_F(f32_of_i4, (float)((int32_t)(AU << 28) >> 28) * 0x1p-4f)

EMU_ROW_F(f32_of_f64, (float)AD)
EMU_ROW_D(f64_of_f32, (double)AF)
EMU_ROW_D(f64_of_i32, (double)AI)
EMU_ROW_D(f64_of_u32, (double)AU)
EMU_ROW_U(i32_of_f64, emu_i32_of_f64(AD))
EMU_ROW_U(u32_of_f64, emu_u32_of_f64(AD))

static int32_t saturated(int32_t value, int32_t low, int32_t high) {
  return value < low ? low : value > high ? high : value;
}
static uint32_t two(uint32_t low, uint32_t high) { return (low & 0xffff) | high << 16; }
static uint32_t least(uint32_t value, uint32_t most) { return value < most ? value : most; }

EMU_ROW_H(f16_of_i16, (double)(int16_t)AU)
EMU_ROW_H(f16_of_u16, (double)(uint16_t)AU)
EMU_ROW_U(i16_of_f16, saturated(emu_i32_of_f32(emu_f16(AU)), -32768, 32767) & 0xffff)
EMU_ROW_U(u16_of_f16, saturated(emu_i32_of_f32(emu_f16(AU)), 0, 65535))
EMU_ROW_U(i32_of_i16, (int32_t)(int16_t)AU)
EMU_ROW_U(u32_of_u16, AU & 0xffff)
EMU_ROW_U(pair_of_u32, two(least(AU, 0xffff), least(BU, 0xffff)))
EMU_ROW_U(pair_of_i32, two((uint32_t)saturated(AI, -32768, 32767), (uint32_t)saturated(BI, -32768, 32767)))

/* ---- f16 and bf16 ---------------------------------------------------------------------------------------------------
 */

EMU_ROW_F(f32_of_f16, emu_f16(AU))
EMU_ROW_H(f16_of_f32, (double)AF)
EMU_ROW_U(f32_of_bf16, emu_f32_of_bf16(AU & 0xffff))
EMU_ROW_U(truncated_f16, two(emu_f16_of_f32_truncated(AU), emu_f16_of_f32_truncated(BU)))
EMU_ROW_U(two_f16, two(emu_bits16((double)AF), emu_bits16((double)BF)))
EMU_ROW_U(two_bf16, two(emu_bf16_of_f32(AU), emu_bf16_of_f32(BU)))

/* ---- formats of eight bits ------------------------------------------------------------------------------------------
 */

/* For each format: a byte as f32, two bytes as two f32, and two f32 as bytes, which may saturate. */
#define SMALL(name)                                                                                                 \
  EMU_ROW_U(f32_of_##name, emu_f32_of_small(emu_##name, AU & 0xff))                                                 \
  EMU_ROW(f32s_of_##name, d[i] = emu_f32_of_small(emu_##name, AU & 0xff);                                           \
          d[EMU_LANES + i] = emu_f32_of_small(emu_##name, AU >> 8 & 0xff))                                          \
  EMU_ROW_U(name##_of_f32s, emu_small_of_f32(emu_##name, AU, false) | emu_small_of_f32(emu_##name, BU, false) << 8) \
  EMU_ROW_U(name##_saturated, emu_small_of_f32(emu_##name, AU, true) | emu_small_of_f32(emu_##name, BU, true) << 8)
SMALL(fp8)
SMALL(bf8)
SMALL(fp8_fnuz)
SMALL(bf8_fnuz)

/*
 * gfx950's conversions with a scale, of which the exponent counts: from eight bits the values times 2^e, to eight bits
 * divided by it. The sources of 16 bits are two in a word.
 */
static float power(uint32_t scale) { return (scale >> 23 & 0xff) ? emu_f32(scale & 0x7f800000) : 0x1p-127f; }
#define SCALED(name)                                                                                             \
  EMU_ROW(scaled_f32_of_##name, d[i] = emu_bits32(emu_f32(emu_f32_of_small(emu_##name, AU & 0xff)) * power(BU)); \
          d[EMU_LANES + i] = emu_bits32(emu_f32(emu_f32_of_small(emu_##name, AU >> 8 & 0xff)) * power(BU)))      \
  EMU_ROW_U(scaled_f16_of_##name,                                                                                \
            two(emu_bits16((double)emu_f32(emu_f32_of_small(emu_##name, AU & 0xff)) * (double)power(BU)),        \
                emu_bits16((double)emu_f32(emu_f32_of_small(emu_##name, AU >> 8 & 0xff)) * (double)power(BU))))  \
  EMU_ROW_U(scaled_bf16_of_##name,                                                                               \
            two(emu_bf16_of_f32(emu_bits32(emu_f32(emu_f32_of_small(emu_##name, AU & 0xff)) * power(BU))),       \
                emu_bf16_of_f32(emu_bits32(emu_f32(emu_f32_of_small(emu_##name, AU >> 8 & 0xff)) * power(BU)))))
SCALED(fp8)
SCALED(bf8)

/* The functions of one opcode: OCP's format and fnuz, without saturation and with it. */
struct small_form {
  const char* name;
  emu_lanes *ocp[2], *fnuz[2];
};
static const struct small_form small_forms[] = {
    {"v_cvt_f32_fp8", {f32_of_fp8, f32_of_fp8}, {f32_of_fp8_fnuz, f32_of_fp8_fnuz}},
    {"v_cvt_f32_bf8", {f32_of_bf8, f32_of_bf8}, {f32_of_bf8_fnuz, f32_of_bf8_fnuz}},
    {"v_cvt_pk_f32_fp8", {f32s_of_fp8, f32s_of_fp8}, {f32s_of_fp8_fnuz, f32s_of_fp8_fnuz}},
    {"v_cvt_pk_f32_bf8", {f32s_of_bf8, f32s_of_bf8}, {f32s_of_bf8_fnuz, f32s_of_bf8_fnuz}},
    {"v_cvt_pk_fp8_f32", {fp8_of_f32s, fp8_saturated}, {fp8_fnuz_of_f32s, fp8_fnuz_saturated}},
    {"v_cvt_pk_bf8_f32", {bf8_of_f32s, bf8_saturated}, {bf8_fnuz_of_f32s, bf8_fnuz_saturated}},
    {"v_cvt_scalef32_pk_f32_fp8", {scaled_f32_of_fp8, scaled_f32_of_fp8}, {0}},
    {"v_cvt_scalef32_pk_f32_bf8", {scaled_f32_of_bf8, scaled_f32_of_bf8}, {0}},
    {"v_cvt_scalef32_pk_f16_fp8", {scaled_f16_of_fp8, scaled_f16_of_fp8}, {0}},
    {"v_cvt_scalef32_pk_f16_bf8", {scaled_f16_of_bf8, scaled_f16_of_bf8}, {0}},
    {"v_cvt_scalef32_pk_bf16_fp8", {scaled_bf16_of_fp8, scaled_bf16_of_fp8}, {0}},
    {"v_cvt_scalef32_pk_bf16_bf8", {scaled_bf16_of_bf8, scaled_bf16_of_bf8}, {0}},
};

static void run_small(struct emu_wave* wave, const struct emu_instruction* in) {
  const struct small_form* form = small_forms;
  while (strcmp(form->name, in->op->name)) form++;
  struct emu_instruction copy = *in;
  struct emu_op op = *in->op;
  bool saturate = wave->mode >> 23 & 1;
  op.lanes = (wave->machine->program->target == EMU_GFX942 ? form->fnuz : form->ocp)[saturate];
  copy.op = &op;
  /* Where SDWA does not choose the source's byte or half, op_sel does; byte_sel's two bits are there too. */
  bool bytes_read = strcmp(op.types, "w=ff"), pair = strncmp(op.name, "v_cvt_f32", 9);
  if (bytes_read && !(in->flags & EMU_SDWA))
    copy.operand[1].part = (uint8_t)(pair ? EMU_WORD_0 + (in->op_sel & 1) : EMU_BYTE_0 + (in->op_sel & 3));
  emu_valu(wave, &copy);
}

/* ---- opcodes --------------------------------------------------------------------------------------------------------
 */

#define OP(name, types, lanes) {name, types, emu_valu, lanes, 0, EMU_VALU, 0, 0}
#define SMALL_OP(name, types, flags) {name, types, run_small, f32_of_fp8, flags, EMU_VALU, 0, 0}
const struct emu_op emu_convert_ops[] = {
    OP("v_cvt_f32_i32", "f=i", f32_of_i32),
    OP("v_cvt_f32_u32", "f=u", f32_of_u32),
    OP("v_cvt_i32_f32", "i=f", i32_of_f32),
    OP("v_cvt_u32_f32", "u=f", u32_of_f32),
    OP("v_cvt_rpi_i32_f32", "i=f", nearest_i32_of_f32),
    OP("v_cvt_nearest_i32_f32", "i=f", nearest_i32_of_f32),
    OP("v_cvt_flr_i32_f32", "i=f", floor_i32_of_f32),
    OP("v_cvt_floor_i32_f32", "i=f", floor_i32_of_f32),
    OP("v_cvt_f32_ubyte0", "f=u", f32_of_byte_0),
    OP("v_cvt_f32_ubyte1", "f=u", f32_of_byte_1),
    OP("v_cvt_f32_ubyte2", "f=u", f32_of_byte_2),
    OP("v_cvt_f32_ubyte3", "f=u", f32_of_byte_3),
    OP("v_cvt_off_f32_i4", "f=u", f32_of_i4),
    OP("v_cvt_f32_f64", "f=d", f32_of_f64),
    OP("v_cvt_f64_f32", "d=f", f64_of_f32),
    OP("v_cvt_f64_i32", "d=i", f64_of_i32),
    OP("v_cvt_f64_u32", "d=u", f64_of_u32),
    OP("v_cvt_i32_f64", "i=d", i32_of_f64),
    OP("v_cvt_u32_f64", "u=d", u32_of_f64),
    OP("v_cvt_f16_i16", "h=w", f16_of_i16),
    OP("v_cvt_f16_u16", "h=w", f16_of_u16),
    OP("v_cvt_i16_f16", "w=h", i16_of_f16),
    OP("v_cvt_u16_f16", "w=h", u16_of_f16),
    OP("v_cvt_i32_i16", "i=w", i32_of_i16),
    OP("v_cvt_u32_u16", "u=w", u32_of_u16),
    OP("v_cvt_pk_u16_u32", "p=uu", pair_of_u32),
    OP("v_cvt_pk_i16_i32", "p=ii", pair_of_i32),
    OP("v_cvt_f32_f16", "f=h", f32_of_f16),
    OP("v_cvt_f16_f32", "h=f", f16_of_f32),
    OP("v_cvt_f32_bf16", "f=b", f32_of_bf16),
    OP("v_cvt_pkrtz_f16_f32", "p=ff", truncated_f16),
    OP("v_cvt_pk_f16_f32", "p=ff", two_f16),
    OP("v_cvt_pk_bf16_f32", "p=ff", two_bf16),
    SMALL_OP("v_cvt_f32_fp8", "f=u", 0),
    SMALL_OP("v_cvt_f32_bf8", "f=u", 0),
    SMALL_OP("v_cvt_pk_f32_fp8", "P=u", 0),
    SMALL_OP("v_cvt_pk_f32_bf8", "P=u", 0),
    SMALL_OP("v_cvt_pk_fp8_f32", "w=ff", EMU_KEEPS_HIGH),
    SMALL_OP("v_cvt_pk_bf8_f32", "w=ff", EMU_KEEPS_HIGH),
    SMALL_OP("v_cvt_scalef32_pk_f32_fp8", "P=uu", 0),
    SMALL_OP("v_cvt_scalef32_pk_f32_bf8", "P=uu", 0),
    SMALL_OP("v_cvt_scalef32_pk_f16_fp8", "u=uu", 0),
    SMALL_OP("v_cvt_scalef32_pk_f16_bf8", "u=uu", 0),
    SMALL_OP("v_cvt_scalef32_pk_bf16_fp8", "u=uu", 0),
    SMALL_OP("v_cvt_scalef32_pk_bf16_bf8", "u=uu", 0),
    {0},
};
