/* Between matrix.c, which knows instructions, and matrix_math.c, which multiplies. */
#ifndef EMU_MATRIX_H
#define EMU_MATRIX_H

#include "convert.h"
#include "machine.h"

enum element { F32, F16, BF16, F64, I32, XF32, I8, IU8, IU4, FP8, BF8, FP6, BF6, FP4, NAMED };
enum layout { MFMA, MFMA_F64, WMMA };
enum { MOST_ELEMENTS = 32, MOST_K = 128, MOST_REGISTERS = 32 };

struct form {
  uint8_t m, n, k, blocks, a, b, d, layout;
};
/* Elements of A or B, unpacked: element by lane. */
union elements {
  float f[MOST_ELEMENTS][EMU_LANES];
  int32_t i[MOST_ELEMENTS][EMU_LANES];
  double d[1][EMU_LANES];
};

/* How elements are read: see the WMMA fields of struct emu_instruction. */
struct reading {
  bool fnuz, flush, is_signed, negate_even, negate_odd;
};

/* What an instruction is about to do: its form, with the formats that CBSZ and BLGP name put in. */
struct task {
  struct form form;
  bool gfx12, gfx11; /* WMMA */
  bool named;        /* f8f6f4: cbsz and blgp name formats */
  bool flush, fnuz;
  unsigned a_per_lane, b_per_lane;
  unsigned d_words;         /* registers of D */
  const uint32_t* scale[2]; /* e8m0 in a byte of each lane's word, or null */
  unsigned scale_shift[2];
};

/* Bits of an element. */
unsigned emu_matrix_bits(unsigned type);
/* Unpacks element e of every lane of `rows`. */
void emu_matrix_unpack(union elements* out, unsigned e, const uint32_t (*rows)[EMU_LANES], unsigned type,
                       struct reading how);
/* Zeros for subnormal f32, with their signs. */
void emu_matrix_flush(uint32_t (*rows)[EMU_LANES], unsigned count);
/* sum: D's registers as floats, doubles (two rows are one) or integers, with C in them. */
void emu_matrix_multiply(const struct task* task, const struct emu_instruction* instruction, const union elements* a,
                         const union elements* b, void* sum);

#endif
