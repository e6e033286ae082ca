/* VOPC: comparisons, whose result is a mask of lanes; v_cmpx writes EXEC as well. */
#include "rows.h"

/* Every condition of a floating-point type. */
#define FLOAT_CONDITIONS(type, x, y)          \
  EMU_ROW_U(lt_##type, x < y)                 \
  EMU_ROW_U(eq_##type, x == y)                \
  EMU_ROW_U(le_##type, x <= y)                \
  EMU_ROW_U(gt_##type, x > y)                 \
  EMU_ROW_U(lg_##type, (x < y) | (x > y))     \
  EMU_ROW_U(ge_##type, x >= y)                \
  EMU_ROW_U(o_##type, (x == x) & (y == y))    \
  EMU_ROW_U(u_##type, (x != x) | (y != y))    \
  EMU_ROW_U(nge_##type, !(x >= y))            \
  EMU_ROW_U(nlg_##type, !((x < y) | (x > y))) \
  EMU_ROW_U(ngt_##type, !(x > y))             \
  EMU_ROW_U(nle_##type, !(x <= y))            \
  EMU_ROW_U(neq_##type, !(x == y))            \
  EMU_ROW_U(nlt_##type, !(x < y))
#define INTEGER_CONDITIONS(type, x, y) \
  EMU_ROW_U(lt_##type, x < y)          \
  EMU_ROW_U(eq_##type, x == y)         \
  EMU_ROW_U(le_##type, x <= y)         \
  EMU_ROW_U(gt_##type, x > y)          \
  EMU_ROW_U(ne_##type, x != y)         \
  EMU_ROW_U(ge_##type, x >= y)

FLOAT_CONDITIONS(f16, AH, BH)
FLOAT_CONDITIONS(f32, AF, BF)
FLOAT_CONDITIONS(f64, AD, BD)
INTEGER_CONDITIONS(i16, (int16_t)AU, (int16_t)BU)
INTEGER_CONDITIONS(u16, (uint16_t)AU, (uint16_t)BU)
INTEGER_CONDITIONS(i32, AI, BI)
INTEGER_CONDITIONS(u32, AU, BU)
INTEGER_CONDITIONS(i64, (int64_t)AQ, (int64_t)BQ)
INTEGER_CONDITIONS(u64, AQ, BQ)

/* v_cmp_class: bits of the second source ask for signaling NaN, quiet NaN, -inf, -normal, -subnormal, -0, +0,
   +subnormal, +normal, +inf. */
static inline uint32_t class_of(uint64_t bits, int exponent_bits, int fraction_bits) {
  uint64_t fraction = bits & ((1ull << fraction_bits) - 1);
  uint32_t top = (1u << exponent_bits) - 1, exponent = (uint32_t)(bits >> fraction_bits) & top;
  bool negative = bits >> (exponent_bits + fraction_bits) & 1;
  if (exponent == top && fraction) return fraction >> (fraction_bits - 1) & 1 ? 2 : 1;
  int kind = exponent == top ? 3 : exponent ? 2 : fraction ? 1 : 0; /* inf, normal, subnormal, 0 */
  return negative ? 1u << (5 - kind) : 1u << (6 + kind);
}
EMU_ROW_U(class_f16, (class_of(AU, 5, 10) & BU) != 0)
EMU_ROW_U(class_f32, (class_of(AU, 8, 23) & BU) != 0)
EMU_ROW_U(class_f64, (class_of(AQ, 11, 52) & BU) != 0)

#define ONE(condition, type, types)                                                        \
  {"v_cmp_" #condition "_" #type, types, emu_valu, condition##_##type, 0, EMU_VALU, 0, 0}, \
      {"v_cmpx_" #condition "_" #type, types, emu_valu, condition##_##type, EMU_WRITES_EXEC, EMU_VALU, 0, 0}
#define FLOATS(type, types)                                                                                         \
  ONE(lt, type, types), ONE(eq, type, types), ONE(le, type, types), ONE(gt, type, types), ONE(lg, type, types),     \
      ONE(ge, type, types), ONE(o, type, types), ONE(u, type, types), ONE(nge, type, types), ONE(nlg, type, types), \
      ONE(ngt, type, types), ONE(nle, type, types), ONE(neq, type, types), ONE(nlt, type, types)
#define INTEGERS(type, types)                                                                                   \
  ONE(lt, type, types), ONE(eq, type, types), ONE(le, type, types), ONE(gt, type, types), ONE(ne, type, types), \
      ONE(ge, type, types)

const struct emu_op emu_vector_compare_ops[] = {
    FLOATS(f16, "m=hh"),
    FLOATS(f32, "m=ff"),
    FLOATS(f64, "m=dd"),
    INTEGERS(i16, "m=ww"),
    INTEGERS(u16, "m=ww"),
    INTEGERS(i32, "m=ii"),
    INTEGERS(u32, "m=uu"),
    INTEGERS(i64, "m=qq"),
    INTEGERS(u64, "m=qq"),
    ONE(class, f16, "m=hu"),
    ONE(class, f32, "m=fu"),
    ONE(class, f64, "m=du"),
    {0},
};
