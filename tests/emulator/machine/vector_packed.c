/* VOP3P: two elements at a time; sums of products; and mixed precision. */
#include "operands.h"
#include "rows.h"

/* Two f32, in two rows. */
#define PAIR(name, expression)                                                                      \
  static inline float name##_one(float x, float y, float z) {                                       \
    (void)x, (void)y, (void)z;                                                                      \
    return expression;                                                                              \
  }                                                                                                 \
  static void name(uint32_t* restrict d, const uint32_t* a, const uint32_t* b, const uint32_t* c) { \
    for (int i = 0; i < 2 * EMU_LANES; i++)                                                         \
      d[i] = emu_bits32(name##_one(emu_f32(a[i]), emu_f32(b[i]), emu_f32(c[i])));                   \
  }
PAIR(pk_add_f32, x + y)
PAIR(pk_mul_f32, x* y)
PAIR(pk_fma_f32, fmaf(x, y, z))

/* Two of 16 bits in a word. */
#define HALVES(name, type, expression)                        \
  static inline uint32_t name##_one(type x, type y, type z) { \
    (void)x, (void)y, (void)z;                                \
    return (expression) & 0xffff;                             \
  }
#define PACKED_FLOAT(name, expression)                                                           \
  HALVES(name, double, emu_bits16(expression))                                                   \
  EMU_ROW_U(name, name##_one(emu_f16(AU & 0xffff), emu_f16(BU & 0xffff), emu_f16(CU & 0xffff)) | \
                      name##_one(emu_f16(AU >> 16), emu_f16(BU >> 16), emu_f16(CU >> 16)) << 16)
#define PACKED_INTEGER(name, type, expression)               \
  HALVES(name, type, (uint32_t)(expression))                 \
  EMU_ROW_U(name, name##_one((type)AU, (type)BU, (type)CU) | \
                      name##_one((type)(AU >> 16), (type)(BU >> 16), (type)(CU >> 16)) << 16)

PACKED_FLOAT(pk_add_f16, x + y)
PACKED_FLOAT(pk_mul_f16, x* y)
PACKED_FLOAT(pk_fma_f16, fma(x, y, z))
PACKED_FLOAT(pk_min_f16, emu_min64(x, y))
PACKED_FLOAT(pk_max_f16, emu_max64(x, y))
PACKED_INTEGER(pk_add_u16, uint16_t, x + y)
PACKED_INTEGER(pk_sub_u16, uint16_t, x - y)
PACKED_INTEGER(pk_mul_lo_u16, uint16_t, (uint32_t)x* y)
PACKED_INTEGER(pk_mad_u16, uint16_t, (uint32_t)x* y + z)
PACKED_INTEGER(pk_min_u16, uint16_t, x < y ? x : y)
PACKED_INTEGER(pk_max_u16, uint16_t, x > y ? x : y)
PACKED_INTEGER(pk_min_i16, int16_t, x < y ? x : y)
PACKED_INTEGER(pk_max_i16, int16_t, x > y ? x : y)
PACKED_INTEGER(pk_lshlrev_b16, uint16_t, (uint32_t)y << (x & 15))
PACKED_INTEGER(pk_lshrrev_b16, uint16_t, y >> (x & 15))
PACKED_INTEGER(pk_ashrrev_i16, int16_t, y >> (x & 15))

/* Two products of f16 or bf16 and f32, added in f32. */
static inline float bf16(uint32_t half) { return emu_f32(half << 16); }
EMU_ROW_F(dot2_f32_f16,
          fmaf(emu_f16(AU >> 16), emu_f16(BU >> 16), fmaf(emu_f16(AU & 0xffff), emu_f16(BU & 0xffff), CF)))
EMU_ROW_F(dot2_f32_bf16, fmaf(bf16(AU >> 16), bf16(BU >> 16), fmaf(bf16(AU & 0xffff), bf16(BU & 0xffff), CF)))

/* v_pk_mov_b32: the low word is one of the first source's, the high word one of the second's. */
static void pk_mov(struct emu_wave* wave, const struct emu_instruction* in) {
  uint32_t scratch[2][EMU_LANES], low[EMU_LANES];
  const uint32_t* from = emu_row(wave, &in->operand[1], in->op_sel & 1, scratch[0]);
  memcpy(low, from, sizeof low);
  uint32_t high[EMU_LANES];
  memcpy(high, emu_row(wave, &in->operand[2], in->op_sel >> 1 & 1, scratch[1]), sizeof high);
  emu_write_row(wave, &in->operand[0], 0, emu_exec(wave), low);
  emu_write_row(wave, &in->operand[0], 1, emu_exec(wave), high);
}

/* v_fma_mix: each source is f32, or by op_sel_hi an f16, which op_sel takes from the upper half. */
static void mix_sources(struct emu_wave* wave, const struct emu_instruction* in, float row[3][EMU_LANES]) {
  for (int j = 0; j < 3; j++) {
    const struct emu_operand* operand = &in->operand[1 + j];
    uint32_t scratch[EMU_LANES];
    const uint32_t* from = emu_row(wave, operand, 0, scratch);
    bool half = in->op_sel_hi >> j & 1, high = in->op_sel >> j & 1;
    bool inlined = half && operand->kind == EMU_FLOAT; /* as f16 then, though its row is of f32 */
    EMU_EACH {
      uint32_t bits = inlined ? emu_bits16(emu_f32(from[i])) : high ? from[i] >> 16 : from[i] & 0xffff;
      float value = half ? emu_f16(bits) : emu_f32(from[i]);
      if (operand->abs || in->neg_hi >> j & 1) value = fabsf(value);
      row[j][i] = operand->neg || in->neg_lo >> j & 1 ? -value : value;
    }
  }
}
static void fma_mix(struct emu_wave* wave, const struct emu_instruction* in) {
  float row[3][EMU_LANES];
  uint32_t result[EMU_LANES];
  mix_sources(wave, in, row);
  emu_float_mode(wave, 'f');
  EMU_EACH {
    float value = fmaf(row[0][i], row[1][i], row[2][i]);
    if (in->flags & EMU_CLAMP) value = value > 1 ? 1 : value > 0 ? value : 0;
    result[i] = emu_bits32(value);
  }
  emu_write_row(wave, &in->operand[0], 0, emu_exec(wave), result);
}
static void fma_mix_half(struct emu_wave* wave, const struct emu_instruction* in, bool high) {
  float row[3][EMU_LANES];
  uint32_t result[EMU_LANES];
  const uint32_t* old = wave->vgpr[in->operand[0].index];
  mix_sources(wave, in, row);
  emu_float_mode(wave, 'h');
  EMU_EACH {
    double value = fma(row[0][i], row[1][i], row[2][i]);
    if (in->flags & EMU_CLAMP) value = value > 1 ? 1 : value > 0 ? value : 0;
    uint32_t half = emu_bits16(value);
    result[i] = high ? (old[i] & 0xffff) | half << 16 : (old[i] & 0xffff0000u) | half;
  }
  emu_write_row(wave, &in->operand[0], 0, emu_exec(wave), result);
}
static void fma_mixlo(struct emu_wave* wave, const struct emu_instruction* in) { fma_mix_half(wave, in, false); }
static void fma_mixhi(struct emu_wave* wave, const struct emu_instruction* in) { fma_mix_half(wave, in, true); }

#define V(name, types, lanes) {name, types, emu_valu, lanes, 0, EMU_VALU, 0, 0}

const struct emu_op emu_vector_packed_ops[] = {
    V("v_pk_add_f32", "P=PP", pk_add_f32),
    V("v_pk_mul_f32", "P=PP", pk_mul_f32),
    V("v_pk_fma_f32", "P=PPP", pk_fma_f32),
    V("v_pk_add_f16", "p=pp", pk_add_f16),
    V("v_pk_mul_f16", "p=pp", pk_mul_f16),
    V("v_pk_fma_f16", "p=ppp", pk_fma_f16),
    V("v_pk_min_f16", "p=pp", pk_min_f16),
    V("v_pk_max_f16", "p=pp", pk_max_f16),
    V("v_pk_add_u16", "p=pp", pk_add_u16),
    V("v_pk_add_i16", "p=pp", pk_add_u16),
    V("v_pk_sub_u16", "p=pp", pk_sub_u16),
    V("v_pk_sub_i16", "p=pp", pk_sub_u16),
    V("v_pk_mul_lo_u16", "p=pp", pk_mul_lo_u16),
    V("v_pk_mad_u16", "p=ppp", pk_mad_u16),
    V("v_pk_mad_i16", "p=ppp", pk_mad_u16),
    V("v_pk_min_u16", "p=pp", pk_min_u16),
    V("v_pk_max_u16", "p=pp", pk_max_u16),
    V("v_pk_min_i16", "p=pp", pk_min_i16),
    V("v_pk_max_i16", "p=pp", pk_max_i16),
    V("v_pk_lshlrev_b16", "p=pp", pk_lshlrev_b16),
    V("v_pk_lshrrev_b16", "p=pp", pk_lshrrev_b16),
    V("v_pk_ashrrev_i16", "p=pp", pk_ashrrev_i16),
    {"v_dot2_f32_f16", "f=ppf", emu_valu, dot2_f32_f16, EMU_DOT, EMU_VALU, 0, 0},
    {"v_dot2_f32_bf16", "f=ppf", emu_valu, dot2_f32_bf16, EMU_DOT, EMU_VALU, 0, 0},
    {"v_dot2c_f32_f16", "f=pp", emu_valu, dot2_f32_f16, EMU_READS_RESULT | EMU_DOT, EMU_VALU, 0, 0},
    {"v_dot2acc_f32_f16", "f=pp", emu_valu, dot2_f32_f16, EMU_READS_RESULT | EMU_DOT, EMU_VALU, 0, 0},
    {"v_dot2c_f32_bf16", "f=pp", emu_valu, dot2_f32_bf16, EMU_READS_RESULT | EMU_DOT, EMU_VALU, 0, 0},
    {"v_pk_mov_b32", "q=qq", pk_mov, 0, 0, EMU_VALU, 0, 0},
    {"v_fma_mix_f32", "f=fff", fma_mix, 0, 0, EMU_VALU, 0, 0},
    {"v_fma_mixlo_f16", "h=fff", fma_mixlo, 0, EMU_KEEPS_HIGH, EMU_VALU, 0, 0},
    {"v_fma_mixhi_f16", "h=fff", fma_mixhi, 0, EMU_KEEPS_HIGH, EMU_VALU, 0, 0},
    {0},
};
