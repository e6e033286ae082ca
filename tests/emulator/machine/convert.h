/*
 * Conversions between number formats, on bits: the host's own rounding mode and flags never matter.
 *
 *   f16   1 sign, 5 exponent (bias 15), 10 fraction        bf16  1, 8 (127), 7
 *   fp8   e4m3: OCP (bias 7, no infinity, NaN 0x7f) or fnuz (bias 8, no infinity, NaN and no negative zero: 0x80)
 *   bf8   e5m2: OCP (bias 15, as f16) or fnuz (bias 16, NaN 0x80)
 *   fp6   e2m3 (bias 1), bf6 e3m2 (bias 3), fp4 e2m1 (bias 1): no infinity, no NaN; e8m0: a power of two, NaN 0xff
 *
 * gfx942 has the fnuz formats; gfx950 and gfx12 have OCP's. All round to nearest, ties to even, where a name does not
 * say otherwise. The formats of eight bits and fewer are those of OCP's "8-bit Floating Point Specification" and
 * "Microscaling Formats Specification", and of AMD's CDNA3 instruction set guide.
 */
#ifndef EMU_CONVERT_H
#define EMU_CONVERT_H

#include <stdbool.h>
#include <stdint.h>

#include "rows.h"

/* f32 to f16 toward zero; what is too large becomes the largest finite number, infinity stays. */
static inline uint32_t emu_f16_of_f32_truncated(uint32_t bits) {
  uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7e00 | (magnitude >> 13 & 0x3ff);
  if (magnitude == 0x7f800000) return sign | 0x7c00;
  if (magnitude >= 0x47800000) return sign | 0x7bff;
  if (magnitude >= 0x38800000) return sign | (magnitude - (112u << 23)) >> 13;
  return sign | (uint32_t)(emu_f32(magnitude) * 0x1p24f);
}

static inline uint32_t emu_f32_of_bf16(uint32_t bits) { return bits << 16; }

/* f32 to bf16, to nearest even; NaN stays NaN, made quiet. */
static inline uint32_t emu_bf16_of_f32(uint32_t bits) {
  uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  return (bits & 0x7fffffff) > 0x7f800000 ? bits >> 16 | 0x40 : rounded;
}

/* A float format of eight bits or fewer. */
struct emu_small {
  uint8_t exponent, fraction; /* bits */
  uint8_t bias;
  uint8_t specials; /* enum emu_specials */
};
enum emu_specials { EMU_FINITE, EMU_OCP_NAN, EMU_IEEE, EMU_FNUZ };

static const struct emu_small emu_fp8 = {4, 3, 7, EMU_OCP_NAN}, emu_bf8 = {5, 2, 15, EMU_IEEE};
static const struct emu_small emu_fp8_fnuz = {4, 3, 8, EMU_FNUZ}, emu_bf8_fnuz = {5, 2, 16, EMU_FNUZ};
static const struct emu_small emu_fp6 = {2, 3, 1, EMU_FINITE}, emu_bf6 = {3, 2, 3, EMU_FINITE};
static const struct emu_small emu_fp4 = {2, 1, 1, EMU_FINITE};

/* A number of a small format, as f32: exact. */
static inline uint32_t emu_f32_of_small(struct emu_small format, uint32_t code) {
  unsigned fraction_bits = format.fraction, magnitude_bits = format.exponent + fraction_bits;
  uint32_t sign = code >> magnitude_bits & 1, magnitude = code & ((1u << magnitude_bits) - 1);
  uint32_t top = (1u << format.exponent) - 1, exponent = magnitude >> fraction_bits;
  uint32_t fraction = magnitude & ((1u << fraction_bits) - 1);
  if (format.specials == EMU_FNUZ && sign && magnitude == 0) return 0x7fc00000;
  if (format.specials == EMU_OCP_NAN && magnitude == (1u << magnitude_bits) - 1) return sign << 31 | 0x7fc00000;
  if (format.specials == EMU_IEEE && exponent == top)
    return sign << 31 | 0x7f800000 | (fraction ? 0x00400000 | fraction << (23 - fraction_bits) : 0);
  if (exponent) return sign << 31 | (exponent + 127 - format.bias) << 23 | fraction << (23 - fraction_bits);
  /* Subnormal: fraction times 2^(1 - bias - fraction_bits), which f32 has as a normal number. */
  float unit = emu_f32((uint32_t)(127 + 1 - format.bias - (int)fraction_bits) << 23);
  return sign << 31 | emu_bits32((float)fraction * unit);
}

/*
 * f32 to a small format, to nearest even. What rounds beyond the largest finite number becomes that number where
 * `saturate` says so (MODE.FP16_OVFL, or a format without specials), else NaN, or infinity in OCP's e5m2. An infinite
 * source saturates as well.
 */
static inline uint32_t emu_small_of_f32(struct emu_small format, uint32_t bits, bool saturate) {
  unsigned fraction_bits = format.fraction, magnitude_bits = format.exponent + fraction_bits;
  uint32_t sign = bits >> 31 << magnitude_bits, magnitude = bits & 0x7fffffff;
  uint32_t all = (1u << magnitude_bits) - 1, infinity = ((1u << format.exponent) - 1) << fraction_bits;
  uint32_t nan = format.specials == EMU_FNUZ ? 1u << magnitude_bits : all | sign;
  uint32_t largest = format.specials == EMU_OCP_NAN ? all - 1 : format.specials == EMU_IEEE ? infinity - 1 : all;
  uint32_t beyond = saturate || format.specials == EMU_FINITE ? largest | sign
                    : format.specials == EMU_IEEE             ? infinity | sign
                                                              : nan;
  if (magnitude > 0x7f800000) return format.specials == EMU_FINITE ? largest | sign : nan;
  if (magnitude == 0x7f800000) return beyond;
  int exponent = (int)(magnitude >> 23) - 127, lowest = 1 - format.bias; /* of the smallest normal number */
  if (exponent < lowest - (int)fraction_bits - 1) return format.specials == EMU_FNUZ ? 0 : sign;
  uint32_t significand = (magnitude & 0x7fffff) | 0x800000;
  unsigned drop = 23 - fraction_bits + (exponent < lowest ? (unsigned)(lowest - exponent) : 0);
  uint32_t kept = significand >> drop, rest = significand & ((1u << drop) - 1), half = 1u << (drop - 1);
  kept += rest > half || (rest == half && (kept & 1));
  /* `kept` has the leading one of a normal number, which adds one to the exponent field; a carry adds another. */
  uint32_t code = kept + (exponent < lowest ? 0 : (uint32_t)(exponent - lowest) << fraction_bits);
  if (code > largest) return beyond;
  return format.specials == EMU_FNUZ && code == 0 ? 0 : sign | code;
}

/* f32 to integers: toward zero, saturated; NaN is 0. */
static inline int32_t emu_i32_of_f32(float value) {
  if (!(value == value)) return 0;
  return value >= 0x1p31f ? INT32_MAX : value < -0x1p31f ? INT32_MIN : (int32_t)value;
}

static inline uint32_t emu_u32_of_f32(float value) {
  if (!(value > 0)) return 0;
  return value >= 0x1p32f ? UINT32_MAX : (uint32_t)value;
}

static inline int32_t emu_i32_of_f64(double value) {
  if (!(value == value)) return 0;
  return value >= 0x1p31 ? INT32_MAX : value <= -0x1p31 ? INT32_MIN : (int32_t)value;
}

static inline uint32_t emu_u32_of_f64(double value) {
  if (!(value > 0)) return 0;
  return value >= 0x1p32 ? UINT32_MAX : (uint32_t)value;
}

#endif
