/*
 * Matrix instructions: MFMA of gfx90a, gfx942 and gfx950, WMMA of gfx11 and gfx12.
 *
 * Layouts are those of AMD's Matrix Instruction Calculator (CDNA1 to 3, RDNA3 and 4) and, for gfx950, of AMD's CDNA4
 * guide. With p elements of a row of A in a lane, per block b:
 *
 *   A[i][k], MFMA:   element k % p of lane i + m * (b + blocks * (k / p)); B[k][j] the same with j and n
 *     f8f6f4, 8 bits: k lies as two halves: element k % 16 + 16 * (k / (K/2)) of lane i + m * (k % (K/2) / 16)
 *     WMMA of gfx12 as MFMA, but of 16 bits element k % 4 + 4 * (k / 8) of lane i + 16 * (k / 4 % 2); of gfx11 all k in
 *     lane i, and again in lane i + 16
 *   D[i][j], MFMA:   rows of four: with g = b * m/4 + i/4 and w = 64 / n, register 4 * (g / w) + i % 4, lane n * (g %
 * w) + j f64: registers 2 * (i / 4) up, lane 16 * (i % 4) + 4 * b + j WMMA of gfx11: register i / 2, lane 16 * (i % 2)
 * + j; of gfx12: register i % 8, lane 16 * (i / 8) + j
 *
 * CBSZ and ABID let 2^CBSZ blocks share block ABID of A; BLGP permutes the lanes of B, or negates f64 on gfx942. EXEC
 * does not matter.
 *
 * Arithmetic. Known: products of f16, bf16 and eight-bit formats are exact in f32; gfx90a takes subnormal f16 and bf16
 * sources, and subnormal sums with them, as zero; integers wrap, or saturate with clamp. Assumed, since AMD does not
 * publish it: sums go up in k, each step one fused multiply-add of f32 (f64) to nearest even, and subnormals are kept;
 * xf32 rounds its sources to ten bits of fraction, to nearest even; WMMA with f16 or bf16 results rounds once, at the
 * end. Two layouts of k that differ alike for A and B cannot be told apart but by the order of sums.
 */
#include "matrix.h"

#include "matrix_forms.h"
#include "operands.h"

#define FORM(name, m, n, k, blocks, a, b, d, layout, passes) {m, n, k, blocks, a, b, d, layout},
static const struct form forms[] = {EMU_MATRIX_FORMS(FORM)};

/* The lane of B that lane `l` of the multiplication reads. */
static unsigned permuted(unsigned blgp, unsigned l) {
  switch (blgp) {
    case 1:
      return l % 32;
    case 2:
      return 32 + l % 32;
    case 3:
      return (l + 16) % 64;
    case 4:
    case 5:
    case 6:
    case 7:
      return 16 * (blgp - 4) + l % 16;
    default:
      return l;
  }
}

/* C's words, in every lane: registers, or a constant of D's type. */
static void fetch_c(struct emu_wave* wave, const struct emu_operand* operand, unsigned type, unsigned words,
                    uint32_t (*c)[EMU_LANES]) {
  uint64_t bits = operand->bits;
  if (operand->kind == EMU_FLOAT) {
    uint32_t single = emu_bits32((float)operand->value);
    bits = type == F64    ? emu_bits64(operand->value)
           : type == F16  ? emu_bits16(operand->value) * 0x10001ull
           : type == BF16 ? emu_bf16_of_f32(single) * 0x10001ull
                          : single;
  }
  for (unsigned k = 0; k < words; k++) {
    if (operand->kind == EMU_VGPR)
      memcpy(c[k], wave->vgpr[operand->index + k], sizeof c[k]);
    else
      EMU_EACH c[k][i] = (uint32_t)(type == F64 && k % 2 ? bits >> 32 : bits);
  }
}

static bool refuse(struct emu_wave* wave, const char* why) {
  emu_fault(wave, EMU_UNKNOWN, -1, 0, "%s", why);
  return false;
}

/* Fills `task`; false where no form fits the instruction, which is a fault then. */
static bool prepare(struct emu_wave* wave, const struct emu_instruction* instruction, struct task* task) {
  const struct emu_program* program = wave->machine->program;
  *task = (struct task){.form = forms[instruction->op - emu_matrix_ops]};
  struct form* form = &task->form;
  bool wmma = form->layout == WMMA;
  task->gfx11 = wmma && (program->target == EMU_GFX1100 || program->target == EMU_GFX1151);
  task->gfx12 = wmma && !task->gfx11;
  task->fnuz = program->target == EMU_GFX942;
  task->flush = program->target == EMU_GFX90A && (form->a == F16 || form->a == BF16);
  task->named = form->a == NAMED;
  if (wmma && program->wave_size != 32) return refuse(wave, "WMMA of waves of 64 lanes is not known");
  if (task->named) {
    static const uint8_t types[8] = {FP8, BF8, FP6, BF6, FP4, NAMED, NAMED, NAMED};
    form->a = types[instruction->cbsz % 8], form->b = types[instruction->blgp % 8];
    if (form->a == NAMED || form->b == NAMED) return refuse(wave, "cbsz and blgp of f8f6f4 name formats by 0 to 4");
  }
  unsigned lanes = wmma ? EMU_LANES / 2 : EMU_LANES, blocks = form->blocks;
  task->a_per_lane = task->gfx11 ? form->k : form->m * form->k * blocks / lanes;
  task->b_per_lane = task->gfx11 ? form->k : form->n * form->k * blocks / lanes;
  unsigned values = form->m * form->n * blocks / lanes, d_bits = emu_matrix_bits(form->d);
  task->d_words = d_bits == 64 ? 2 * values : d_bits == 16 && task->gfx12 ? values / 2 : values;
  const unsigned words[4] = {task->d_words, (task->a_per_lane * emu_matrix_bits(form->a) + 31) / 32,
                             (task->b_per_lane * emu_matrix_bits(form->b) + 31) / 32, task->d_words};
  for (unsigned k = 0; k < 4; k++) {
    const struct emu_operand* operand = &instruction->operand[k];
    if (k == 3 && (operand->kind == EMU_INTEGER || operand->kind == EMU_FLOAT)) continue;
    if (operand->kind == EMU_VGPR && operand->words == words[k] && operand->index + words[k] <= EMU_VGPRS) continue;
    emu_fault(wave, EMU_UNKNOWN, -1, 0, "operand %u of a matrix instruction is not a range of %u vector registers", k,
              words[k]);
    return false;
  }
  for (unsigned k = 0; instruction->operands > 4 && k < 2; k++) {
    unsigned low = instruction->op_sel >> k & 1;
    unsigned high = instruction->flags & EMU_OP_SEL_HI ? instruction->op_sel_hi >> k & 1 : 0;
    task->scale_shift[k] = 8 * (low + 2 * high);
  }
  return true;
}

/* gfx11 reads a row of A and a column of B out of either half of the wave: both must have it. */
static bool repeated(struct emu_wave* wave, const struct emu_operand* operand, char name) {
  for (unsigned k = 0; k < operand->words; k++) {
    const uint32_t* row = wave->vgpr[operand->index + k];
    for (int i = 0; i < 16; i++) {
      if (row[i] == row[i + 16]) continue;
      emu_fault(wave, EMU_PROGRAM, i + 16, 0, "%c of WMMA differs between lanes %d and %d in v%u: 0x%08x and 0x%08x",
                name, i, i + 16, operand->index + k, row[i], row[i + 16]);
      return false;
    }
  }
  return true;
}

/* Unpacks A (which = 0) or B. */
static void fetch_elements(struct emu_wave* wave, const struct emu_instruction* instruction, const struct task* task,
                           unsigned which, union elements* out) {
  const struct form* form = &task->form;
  bool low = instruction->neg_lo >> which & 1, high = instruction->neg_hi >> which & 1;
  bool wmma_integers = form->a == IU8 || form->a == IU4; /* neg_lo says that they have signs */
  struct reading how = {.fnuz = task->fnuz, .flush = task->flush, .is_signed = !wmma_integers || low};
  if (form->layout == WMMA && form->d != I32) how.negate_even = low, how.negate_odd = high;
  unsigned type = which ? form->b : form->a, count = which ? task->b_per_lane : task->a_per_lane;
  const uint32_t (*rows)[EMU_LANES] = (const uint32_t (*)[EMU_LANES])wave->vgpr + instruction->operand[1 + which].index;
  for (unsigned e = 0; e < count; e++) emu_matrix_unpack(out, e, rows, type, how);
  if (form->layout == MFMA_F64) {
    if (low) EMU_EACH out->d[0][i] = -out->d[0][i];
  } else if (which && instruction->blgp && !task->named) {
    union elements before = *out;
    for (unsigned e = 0; e < count; e++) EMU_EACH out->i[e][i] = before.i[e][permuted(instruction->blgp, i)];
  }
}

static void sum_f64(const struct emu_instruction* instruction, const struct task* task, const union elements* a,
                    const union elements* b, uint32_t (*c)[EMU_LANES]) {
  double sum[4][EMU_LANES];
  unsigned rows = task->d_words / 2;
  bool negate = instruction->neg_lo >> 2 & 1;
  for (unsigned r = 0; r < rows; r++) EMU_EACH {
      sum[r][i] = emu_f64(emu_wide(c[2 * r], i));
      if (negate) sum[r][i] = -sum[r][i];
    }
  emu_matrix_multiply(task, instruction, a, b, sum);
  for (unsigned r = 0; r < rows; r++) EMU_EACH emu_set_wide(c[2 * r], i, emu_bits64(sum[r][i]));
}

/* 16-bit sums of WMMA: gfx11 has one in each word, the upper half with op_sel; gfx12 has two rows of D in a word. */
static void sum_16(struct emu_wave* wave, const struct emu_instruction* instruction, const struct task* task,
                   const union elements* a, const union elements* b, uint32_t (*c)[EMU_LANES]) {
  float sum[8][EMU_LANES];
  bool f16 = task->form.d == F16;
  bool negate = instruction->neg_lo >> 2 & 1, absolute = instruction->neg_hi >> 2 & 1;
  unsigned shift = instruction->op_sel >> 2 & 1 ? 16 : 0;
  for (unsigned r = 0; r < 8; r++) {
    const uint32_t* row = c[task->gfx12 ? r / 2 : r];
    if (task->gfx12) shift = 16 * (r % 2);
    EMU_EACH {
      uint32_t half = row[i] >> shift & 0xffff;
      if (absolute) half &= 0x7fff;
      if (negate) half ^= 0x8000;
      sum[r][i] = f16 ? emu_f16(half) : emu_f32(half << 16);
    }
  }
  emu_matrix_multiply(task, instruction, a, b, sum);
  /* gfx11 leaves the other halves of D as they were. */
  if (task->gfx11) memcpy(c, wave->vgpr[instruction->operand[0].index], task->d_words * sizeof *c);
  for (unsigned r = 0; r < 8; r++) {
    uint32_t* row = c[task->gfx12 ? r / 2 : r];
    if (task->gfx12) shift = 16 * (r % 2);
    EMU_EACH {
      uint32_t half = f16 ? emu_bits16(sum[r][i]) : emu_bf16_of_f32(emu_bits32(sum[r][i]));
      row[i] = (row[i] & ~(0xffffu << shift)) | half << shift;
    }
  }
}

static void run_matrix(struct emu_wave* wave, const struct emu_instruction* instruction) {
  struct task task;
  if (!prepare(wave, instruction, &task)) return;
  const struct form* form = &task.form;
  const struct emu_operand* operand = instruction->operand;
  if (task.gfx11 && !(repeated(wave, &operand[1], 'A') && repeated(wave, &operand[2], 'B'))) return;
  emu_float_default(wave); /* whatever MODE says */
  uint32_t scales[2][EMU_LANES];
  for (unsigned k = 0; instruction->operands > 4 && k < 2; k++)
    task.scale[k] = emu_row(wave, &operand[4 + k], 0, scales[k]);
  union elements a, b;
  fetch_elements(wave, instruction, &task, 0, &a);
  fetch_elements(wave, instruction, &task, 1, &b);

  /* Sums are made apart from D, whose registers may be those of A, B or C. */
  uint32_t c[MOST_REGISTERS][EMU_LANES];
  fetch_c(wave, &operand[3], form->d, task.d_words, c);
  if (form->d == F64) {
    sum_f64(instruction, &task, &a, &b, c);
  } else if (form->d == F16 || form->d == BF16) {
    sum_16(wave, instruction, &task, &a, &b, c);
  } else {
    bool wmma_float = form->layout == WMMA && form->d == F32;
    uint32_t kept = wmma_float && instruction->neg_hi >> 2 & 1 ? 0x7fffffff : ~0u;
    uint32_t flipped = wmma_float && instruction->neg_lo >> 2 & 1 ? 0x80000000 : 0;
    for (unsigned r = 0; r < task.d_words; r++) EMU_EACH c[r][i] = (c[r][i] & kept) ^ flipped;
    if (task.flush) emu_matrix_flush(c, task.d_words);
    emu_matrix_multiply(&task, instruction, &a, &b, c);
    if (task.flush) emu_matrix_flush(c, task.d_words);
  }
  size_t lanes = form->layout == WMMA ? EMU_LANES / 2 : EMU_LANES;
  for (unsigned r = 0; r < task.d_words; r++) memcpy(wave->vgpr[operand[0].index + r], c[r], lanes * sizeof c[r][0]);
}

#define OP(name, m, n, k, blocks, a, b, d, layout, passes) \
  {#name, "", run_matrix, 0, EMU_IGNORES_EXEC, EMU_MATRIX, passes, 0},
const struct emu_op emu_matrix_ops[] = {EMU_MATRIX_FORMS(OP){0}};
