/* For the files that compute over rows of lanes: words seen as other types, loops over the lanes. */
#ifndef EMU_ROWS_H
#define EMU_ROWS_H

#include <math.h>
#include <string.h>

#include "machine.h"

static inline float emu_f32(uint32_t word) {
  float value;
  memcpy(&value, &word, 4);
  return value;
}
static inline uint32_t emu_bits32(float value) {
  uint32_t word;
  memcpy(&word, &value, 4);
  return word;
}
static inline double emu_f64(uint64_t words) {
  double value;
  memcpy(&value, &words, 8);
  return value;
}
static inline uint64_t emu_bits64(double value) {
  uint64_t words;
  memcpy(&words, &value, 8);
  return words;
}
/* An element of 64 bits: its words lie in two rows. */
static inline uint64_t emu_wide(const uint32_t* row, int lane) {
  return row[lane] | (uint64_t)row[EMU_LANES + lane] << 32;
}
static inline void emu_set_wide(uint32_t* row, int lane, uint64_t value) {
  row[lane] = (uint32_t)value;
  row[EMU_LANES + lane] = (uint32_t)(value >> 32);
}
/* f16 as a float, exactly; NaN keeps its payload. */
static inline float emu_f16(uint32_t half) {
  uint32_t sign = (half & 0x8000u) << 16, rest = half & 0x7fffu;
  if (rest >= 0x7c00u) return emu_f32(sign | 0x7f800000u | rest << 13);
  /* Shifted into place, the exponent is 112 too small: a product with 2^112 mends it, of subnormal ones too. */
  return emu_f32(sign | emu_bits32(emu_f32((rest << 13) + (rest < 0x400 ? 0x38800000u : 0x38000000u)) -
                                   (rest < 0x400 ? 0x1p-14f : 0.0f)));
}
/* A double as f16, to the nearest, ties to even. A double holds products and sums of f16 exactly or with all bits that
   the rounding asks for. */
static inline uint32_t emu_bits16(double value) {
  uint64_t bits = emu_bits64(value);
  uint32_t sign = (uint32_t)(bits >> 48) & 0x8000u;
  double magnitude = fabs(value);
  if (magnitude != magnitude) return sign | 0x7e00u | (uint32_t)(bits >> 42 & 0x1ff);
  if (magnitude >= 65520.0) return sign | 0x7c00u;
  if (magnitude < 0x1p-14) return sign | (uint32_t)nearbyint(magnitude * 0x1p24); /* 1024 is the smallest normal */
  uint64_t rest = (bits & 0x7fffffffffffffffu) - ((uint64_t)(1023 - 15) << 52);
  uint64_t low = rest & ((1ull << 42) - 1), half = 1ull << 41;
  return sign | ((uint32_t)(rest >> 42) + (low > half || (low == half && (rest >> 42 & 1))));
}

/* Loops over the lanes of a row function's sources a, b, c. */
#define EMU_EACH for (int i = 0; i < EMU_LANES; i++)

#define EMU_ROW(name, ...)                                                                          \
  static void name(uint32_t* restrict d, const uint32_t* a, const uint32_t* b, const uint32_t* c) { \
    (void)a, (void)b, (void)c;                                                                      \
    EMU_EACH { __VA_ARGS__; }                                                                       \
  }
/* Results of u32, f32, f16, f64 and 64 bits by an expression of the lane's sources. */
#define EMU_ROW_U(name, value) EMU_ROW(name, d[i] = (uint32_t)(value))
#define EMU_ROW_F(name, value) EMU_ROW(name, d[i] = emu_bits32(value))
#define EMU_ROW_H(name, value) EMU_ROW(name, d[i] = emu_bits16(value))
#define EMU_ROW_D(name, value) EMU_ROW(name, emu_set_wide(d, i, emu_bits64(value)))
#define EMU_ROW_Q(name, value) EMU_ROW(name, emu_set_wide(d, i, value))

/* A lane's sources, as the types say. */
#define AU a[i]
#define BU b[i]
#define CU c[i]
#define AI ((int32_t)a[i])
#define BI ((int32_t)b[i])
#define CI ((int32_t)c[i])
#define AF emu_f32(a[i])
#define BF emu_f32(b[i])
#define CF emu_f32(c[i])
#define AH ((double)emu_f16(a[i]))
#define BH ((double)emu_f16(b[i]))
#define CH ((double)emu_f16(c[i]))
#define AD emu_f64(emu_wide(a, i))
#define BD emu_f64(emu_wide(b, i))
#define CD emu_f64(emu_wide(c, i))
#define AQ emu_wide(a, i)
#define BQ emu_wide(b, i)
#define CQ emu_wide(c, i)

/* The larger and the smaller as IEEE's maxNum: a number rather than a NaN, +0 above -0. */
static inline float emu_max32(float x, float y) {
  float larger = x > y || y != y ? x : y;
  return x == y ? emu_f32(emu_bits32(x) & emu_bits32(y)) : larger;
}
static inline float emu_min32(float x, float y) {
  float smaller = x < y || y != y ? x : y;
  return x == y ? emu_f32(emu_bits32(x) | emu_bits32(y)) : smaller;
}
static inline double emu_max64(double x, double y) {
  double larger = x > y || y != y ? x : y;
  return x == y ? emu_f64(emu_bits64(x) & emu_bits64(y)) : larger;
}
static inline double emu_min64(double x, double y) {
  double smaller = x < y || y != y ? x : y;
  return x == y ? emu_f64(emu_bits64(x) | emu_bits64(y)) : smaller;
}

#endif
