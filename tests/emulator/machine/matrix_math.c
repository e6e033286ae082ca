/* Elements of matrices unpacked, multiplied and summed; matrix.c says by which layouts and with what arithmetic. */
#include "matrix.h"

#ifdef __FMA__
#include <immintrin.h>
#endif

unsigned emu_matrix_bits(unsigned type) {
  switch (type) {
    case F64:
      return 64;
    case F16:
    case BF16:
      return 16;
    case I8:
    case IU8:
    case FP8:
    case BF8:
      return 8;
    case FP6:
    case BF6:
      return 6;
    case IU4:
    case FP4:
      return 4;
    default:
      return 32;
  }
}

static struct emu_small small_format(unsigned type, bool fnuz) {
  switch (type) {
    case FP8:
      return fnuz ? emu_fp8_fnuz : emu_fp8;
    case BF8:
      return fnuz ? emu_bf8_fnuz : emu_bf8;
    case FP6:
      return emu_fp6;
    case BF6:
      return emu_bf6;
    default:
      return emu_fp4;
  }
}

static uint32_t without_subnormal(uint32_t f32) { return f32 & 0x7f800000 ? f32 : f32 & 0x80000000; }

void emu_matrix_flush(uint32_t (*rows)[EMU_LANES], unsigned count) {
  for (unsigned r = 0; r < count; r++) EMU_EACH rows[r][i] = without_subnormal(rows[r][i]);
}

static float xf32(uint32_t bits) {
  if ((bits & 0x7f800000) == 0x7f800000) return emu_f32(bits);
  return emu_f32((bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu);
}

void emu_matrix_unpack(union elements* out, unsigned e, const uint32_t (*rows)[EMU_LANES], unsigned type,
                       struct reading how) {
  unsigned bits = emu_matrix_bits(type), first = e * bits, shift = first % 32;
  const uint32_t* row = rows[first / 32];
  float* f = out->f[e];
  int32_t* i = out->i[e];
  switch (type) {
    case F32:
      memcpy(f, row, sizeof out->f[e]);
      break;
    case XF32:
      for (int l = 0; l < EMU_LANES; l++) f[l] = xf32(row[l]);
      break;
    case F64:
      for (int l = 0; l < EMU_LANES; l++) out->d[0][l] = emu_f64(row[l] | (uint64_t)row[EMU_LANES + l] << 32);
      break;
    case F16:
      for (int l = 0; l < EMU_LANES; l++) f[l] = emu_f16(row[l] >> shift & 0xffff);
      if (how.flush)
        for (int l = 0; l < EMU_LANES; l++) f[l] = (row[l] >> shift & 0x7c00) ? f[l] : 0 * f[l];
      break;
    case BF16:
      for (int l = 0; l < EMU_LANES; l++) f[l] = emu_f32(row[l] >> shift << 16);
      if (how.flush)
        for (int l = 0; l < EMU_LANES; l++) f[l] = emu_f32(without_subnormal(emu_bits32(f[l])));
      break;
    case I8:
    case IU8:
    case IU4:
      for (int l = 0; l < EMU_LANES; l++) {
        uint32_t top = row[l] >> shift << (32 - bits);
        i[l] = how.is_signed ? (int32_t)top >> (32 - bits) : (int32_t)(top >> (32 - bits));
      }
      break;
    default: {
      float values[256];
      struct emu_small format = small_format(type, how.fnuz);
      for (unsigned code = 0; code < 1u << bits; code++) values[code] = emu_f32(emu_f32_of_small(format, code));
      const uint32_t* next = shift + bits > 32 ? row + EMU_LANES : row; /* six bits may lie across two words */
      for (int l = 0; l < EMU_LANES; l++) {
        uint64_t two = row[l] | (uint64_t)next[l] << 32;
        f[l] = values[two >> shift & ((1u << bits) - 1)];
      }
    }
  }
  if (e % 2 ? how.negate_odd : how.negate_even)
    for (int l = 0; l < EMU_LANES; l++) f[l] = -f[l];
}

/* Where row i of D's block lies. */
struct place {
  unsigned row, lane;
};

static struct place place_of(const struct form* form, bool gfx12, unsigned block, unsigned i) {
  if (form->layout == MFMA_F64) return (struct place){i / 4, 16 * (i % 4) + 4 * block};
  if (form->layout == WMMA) return gfx12 ? (struct place){i % 8, 16 * (i / 8)} : (struct place){i / 2, 16 * (i % 2)};
  unsigned across = EMU_LANES / form->n, group = block * (form->m / 4) + i / 4;
  return (struct place){4 * (group / across) + i % 4, form->n * (group % across)};
}

static size_t first_of(const struct task* task, unsigned block, unsigned i) {
  struct place at = place_of(&task->form, task->gfx12, block, i);
  return at.row * EMU_LANES + at.lane;
}

/* For each k: its element, and by how many lanes times m it lies beyond block 0. */
struct k_order {
  uint8_t element[MOST_K], group[MOST_K];
};

static void order_of(struct k_order* order, const struct task* task, unsigned type, unsigned per_lane) {
  bool halves = task->named && emu_matrix_bits(type) == 8, fours = task->gfx12 && emu_matrix_bits(type) == 16;
  unsigned half = task->form.k / 2;
  for (unsigned k = 0; k < task->form.k; k++) {
    order->element[k] = halves ? k % 16 + 16 * (k / half) : fours ? k % 4 + 4 * (k / 8) : k % per_lane;
    order->group[k] = halves ? k % half / 16 : fours ? k / 4 % 2 : k / per_lane;
  }
}

/* Eight or four columns at once: the compiler leaves loops of fmaf() to the library's function. */
typedef float eight __attribute__((vector_size(32), aligned(4)));
typedef float four __attribute__((vector_size(16), aligned(4)));

static inline eight fused(float a, eight b, eight c) {
#ifdef __FMA__
  return _mm256_fmadd_ps(_mm256_set1_ps(a), b, c);
#else
  for (int j = 0; j < 8; j++) c[j] = fmaf(a, b[j], c[j]);
  return c;
#endif
}

static inline four fused_four(float a, four b, four c) {
#ifdef __FMA__
  return _mm_fmadd_ps(_mm_set1_ps(a), b, c);
#else
  for (int j = 0; j < 4; j++) c[j] = fmaf(a, b[j], c[j]);
  return c;
#endif
}

/* A row of D, in groups of eight columns: d[j] += a[k] * b[k][j]. Inlined for each width, whose sums stay in registers.
 */
static inline __attribute__((always_inline)) void row_f32(float* d, const float* a, const float* const* b, unsigned k,
                                                          const unsigned groups) {
  eight sum[4];
  memcpy(sum, d, groups * sizeof *sum);
  for (unsigned step = 0; step < k; step++)
    for (unsigned j = 0; j < groups; j++) sum[j] = fused(a[step], ((const eight*)b[step])[j], sum[j]);
  memcpy(d, sum, groups * sizeof *sum);
}

static void row_of_four(float* d, const float* a, const float* const* b, unsigned k) {
  four sum;
  memcpy(&sum, d, sizeof sum);
  for (unsigned step = 0; step < k; step++) sum = fused_four(a[step], *(const four*)b[step], sum);
  memcpy(d, &sum, sizeof sum);
}

static float scale_of(const struct task* task, unsigned which, unsigned lane) {
  uint32_t code = task->scale[which][lane] >> task->scale_shift[which] & 0xff;
  if (code == 0xff) return emu_f32(0x7fc00000);
  return code ? emu_f32(code << 23) : 0x1p-127f;
}

/* One block: rows of A at a[k][i], of B at b[k][j], D's registers with C in them in `sum`. */
static void multiply_floats(const struct task* task, unsigned block, const float* const* a, const float* const* b,
                            float* sum) {
  const struct form* form = &task->form;
  for (unsigned i = 0; i < form->m; i++) {
    float row[MOST_K];
    for (unsigned k = 0; k < form->k; k++) row[k] = a[k][i];
    float* d = sum + first_of(task, block, i);
    if (form->n == 32)
      row_f32(d, row, b, form->k, 4);
    else if (form->n == 16)
      row_f32(d, row, b, form->k, 2);
    else
      row_of_four(d, row, b, form->k);
  }
}

static void multiply_doubles(const struct task* task, unsigned block, const double* const* a, const double* const* b,
                             double* sum) {
  const struct form* form = &task->form;
  for (unsigned i = 0; i < form->m; i++) {
    double* d = sum + first_of(task, block, i);
    for (unsigned k = 0; k < form->k; k++)
      for (unsigned j = 0; j < form->n; j++) d[j] = fma(a[k][i], b[k][j], d[j]);
  }
}

static void multiply_integers(const struct task* task, unsigned block, const int32_t* const* a, const int32_t* const* b,
                              int32_t* sum, bool saturate) {
  const struct form* form = &task->form;
  for (unsigned i = 0; i < form->m; i++) {
    int32_t* d = sum + first_of(task, block, i);
    for (unsigned j = 0; j < form->n; j++) {
      int64_t total = d[j];
      for (unsigned k = 0; k < form->k; k++) total += (int64_t)a[k][i] * b[k][j];
      if (saturate) total = total > INT32_MAX ? INT32_MAX : total < INT32_MIN ? INT32_MIN : total;
      d[j] = (int32_t)(uint32_t)total;
    }
  }
}

/* Rows of elements of one block, by k: those of A or of B, which begin `across` lanes after one another. */
union rows {
  const float* f[MOST_K];
  const int32_t* i[MOST_K];
  const double* d[MOST_K];
};

static void find_rows(union rows* rows, const struct task* task, const struct k_order* order,
                      const union elements* from, unsigned across, unsigned block) {
  for (unsigned k = 0; k < task->form.k; k++) {
    unsigned lane = across * (block + task->form.blocks * order->group[k]);
    if (task->form.d == F64)
      rows->d[k] = &from->d[0][lane];
    else if (task->form.d == I32)
      rows->i[k] = &from->i[order->element[k]][lane];
    else
      rows->f[k] = &from->f[order->element[k]][lane];
  }
}

/* The rows times their scales: one for each 32 of k, in lane i + across * (k / 32). */
static void scale_rows(union rows* rows, const struct task* task, unsigned which, unsigned across,
                       float (*scaled)[32]) {
  for (unsigned k = 0; k < task->form.k; k++) {
    for (unsigned i = 0; i < across; i++) scaled[k][i] = rows->f[k][i] * scale_of(task, which, i + across * (k / 32));
    rows->f[k] = scaled[k];
  }
}

void emu_matrix_multiply(const struct task* task, const struct emu_instruction* instruction, const union elements* a,
                         const union elements* b, void* sum) {
  const struct form* form = &task->form;
  struct k_order in_a, in_b;
  order_of(&in_a, task, form->a, task->a_per_lane);
  order_of(&in_b, task, form->b, task->b_per_lane);
  unsigned shared = form->blocks > 1 ? 1u << instruction->cbsz : 1;
  for (unsigned block = 0; block < form->blocks; block++) {
    unsigned a_block = block - block % shared + (shared > 1 ? instruction->abid % shared : 0);
    union rows rows_a, rows_b;
    find_rows(&rows_a, task, &in_a, a, form->m, a_block);
    find_rows(&rows_b, task, &in_b, b, form->n, block);
    if (task->scale[0]) {
      float scaled_a[MOST_K][32], scaled_b[MOST_K][32];
      scale_rows(&rows_a, task, 0, form->m, scaled_a);
      scale_rows(&rows_b, task, 1, form->n, scaled_b);
      multiply_floats(task, block, rows_a.f, rows_b.f, sum);
    } else if (form->d == F64) {
      multiply_doubles(task, block, rows_a.d, rows_b.d, sum);
    } else if (form->d == I32) {
      multiply_integers(task, block, rows_a.i, rows_b.i, sum, instruction->flags & EMU_CLAMP);
    } else {
      multiply_floats(task, block, rows_a.f, rows_b.f, sum);
    }
  }
}
