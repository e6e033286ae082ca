/* Elements of matrices unpacked, multiplied and summed; matrix.c says by which layouts and with what arithmetic. */
#include "matrix.h"

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

/* For each k: its element, and by how many lanes times m it lies beyond block 0. */
struct k_order {
  uint8_t element[MOST_K], group[MOST_K];
};

static void order_of(struct k_order* order, const struct task* task, unsigned type, unsigned per_lane) {
  bool halves = task->named && emu_matrix_bits(type) == 8;
  unsigned half = task->form.k / 2;
  for (unsigned k = 0; k < task->form.k; k++) {
    order->element[k] = halves ? k % 16 + 16 * (k / half) : k % per_lane;
    order->group[k] = halves ? k % half / 16 : k / per_lane;
  }
}

/* One row of D: d[j] += sum of a[k] * b[k][j]. Inlined for each n, whose sums then stay in registers. */
static inline __attribute__((always_inline)) void row_f32(float* d, const float* a, const float* const* b, unsigned k,
                                                          const unsigned n) {
  float sum[32];
  memcpy(sum, d, n * sizeof *sum);
  for (unsigned step = 0; step < k; step++)
    for (unsigned j = 0; j < n; j++) sum[j] = __builtin_fmaf(a[step], b[step][j], sum[j]);
  memcpy(d, sum, n * sizeof *sum);
}

static void row_f64(double* d, const double* a, const double* const* b, unsigned k, unsigned n) {
  for (unsigned step = 0; step < k; step++)
    for (unsigned j = 0; j < n; j++) d[j] = fma(a[step], b[step][j], d[j]);
}

static void row_i32(int32_t* d, const int32_t* a, const int32_t* const* b, unsigned k, unsigned n, bool saturate) {
  for (unsigned j = 0; j < n; j++) {
    int64_t sum = d[j];
    for (unsigned step = 0; step < k; step++) sum += (int64_t)a[step] * b[step][j];
    if (saturate) sum = sum > INT32_MAX ? INT32_MAX : sum < INT32_MIN ? INT32_MIN : sum;
    d[j] = (int32_t)(uint32_t)sum;
  }
}

static float scale_of(const struct task* task, unsigned which, unsigned lane) {
  if (!task->scale[which]) return 1;
  uint32_t code = task->scale[which][lane] >> task->scale_shift[which] & 0xff;
  if (code == 0xff) return emu_f32(0x7fc00000);
  return code ? emu_f32(code << 23) : 0x1p-127f;
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
    const void* b_row[MOST_K];
    float scaled[MOST_K][32];
    for (unsigned k = 0; k < form->k; k++) {
      unsigned lane = form->n * (block + form->blocks * in_b.group[k]);
      b_row[k] = form->d == F64 ? (const void*)&b->d[0][lane] : (const void*)&b->f[in_b.element[k]][lane];
      if (task->scale[1]) {
        for (unsigned j = 0; j < form->n; j++)
          scaled[k][j] = ((const float*)b_row[k])[j] * scale_of(task, 1, j + form->n * (k / 32));
        b_row[k] = scaled[k];
      }
    }
    for (unsigned i = 0; i < form->m; i++) {
      struct place at = place_of(form, task->gfx12, block, i);
      union {
        float f[MOST_K];
        int32_t i[MOST_K];
        double d[MOST_K];
      } row;
      for (unsigned k = 0; k < form->k; k++) {
        unsigned lane = i + form->m * (a_block + form->blocks * in_a.group[k]);
        if (form->d == F64)
          row.d[k] = a->d[0][lane];
        else if (form->d == I32)
          row.i[k] = a->i[in_a.element[k]][lane];
        else
          row.f[k] = a->f[in_a.element[k]][lane];
        if (task->scale[0]) row.f[k] *= scale_of(task, 0, i + form->m * (k / 32));
      }
      size_t first = at.row * EMU_LANES + at.lane;
      if (form->d == F64) {
        row_f64((double*)sum + first, row.d, (const double* const*)b_row, form->k, form->n);
      } else if (form->d == I32) {
        bool saturate = instruction->flags & EMU_CLAMP;
        row_i32((int32_t*)sum + first, row.i, (const int32_t* const*)b_row, form->k, form->n, saturate);
      } else {
        float* d = (float*)sum + first;
        const float* const* rows = (const float* const*)b_row;
        if (form->n == 32)
          row_f32(d, row.f, rows, form->k, 32);
        else if (form->n == 16)
          row_f32(d, row.f, rows, form->k, 16);
        else
          row_f32(d, row.f, rows, form->k, 4);
      }
    }
  }
}
