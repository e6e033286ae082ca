/* Instructions between lanes, and between vector and scalar registers. */
#include "operands.h"
#include "rows.h"

static int lanes_of(const struct emu_wave* wave) { return (int)wave->machine->program->wave_size; }

static void readlane(struct emu_wave* wave, const struct emu_instruction* in) {
  uint32_t scratch[EMU_LANES], lane = (uint32_t)emu_scalar(wave, &in->operand[2]) & (lanes_of(wave) - 1);
  emu_write_scalar(wave, &in->operand[0], emu_row(wave, &in->operand[1], 0, scratch)[lane]);
}

/* The first lane that is on; lane 0 where none is. */
static void readfirstlane(struct emu_wave* wave, const struct emu_instruction* in) {
  uint32_t scratch[EMU_LANES];
  uint64_t exec = emu_exec(wave);
  int lane = exec ? __builtin_ctzll(exec) : 0;
  emu_write_scalar(wave, &in->operand[0], emu_row(wave, &in->operand[1], 0, scratch)[lane]);
}

static void writelane(struct emu_wave* wave, const struct emu_instruction* in) {
  uint32_t lane = (uint32_t)emu_scalar(wave, &in->operand[2]) & (lanes_of(wave) - 1);
  wave->vgpr[in->operand[0].index][lane] = (uint32_t)emu_scalar(wave, &in->operand[1]);
}

/* v_permlane16 and v_permlanex16: a lane reads, of its own row of 16 or of the other of its pair, the lane that four
   bits of the scalars name (the second source's for lanes 0 to 7, the third's for 8 to 15). op_sel's bits are fi and
   bound_ctrl. */
static void permute_rows(struct emu_wave* wave, const struct emu_instruction* in, int other) {
  uint64_t choice = (uint32_t)emu_scalar(wave, &in->operand[2]) | emu_scalar(wave, &in->operand[3]) << 32;
  uint32_t result[EMU_LANES], *target = wave->vgpr[in->operand[0].index];
  const uint32_t* from = wave->vgpr[in->operand[1].index];
  uint64_t exec = emu_exec(wave), mask = exec;
  bool fetches_invalid = in->op_sel & 1, bound_control = in->op_sel & 2;
  for (int i = 0; i < lanes_of(wave); i++) {
    int lane = ((i & ~15) ^ other) + (int)(choice >> 4 * (i & 15) & 15);
    bool valid = fetches_invalid || exec >> lane & 1;
    result[i] = valid ? from[lane] : 0;
    if (!valid && !bound_control) mask &= ~(1ull << i);
  }
  for (int i = 0; i < lanes_of(wave); i++)
    if (mask >> i & 1) target[i] = result[i];
}
static void permlane16(struct emu_wave* wave, const struct emu_instruction* in) { permute_rows(wave, in, 0); }
static void permlanex16(struct emu_wave* wave, const struct emu_instruction* in) { permute_rows(wave, in, 16); }

/* v_permlane64: the halves of a wave64 exchanged; nothing on a wave32. */
static void permlane64(struct emu_wave* wave, const struct emu_instruction* in) {
  uint32_t result[EMU_LANES];
  const uint32_t* from = wave->vgpr[in->operand[1].index];
  bool wide = lanes_of(wave) == 64;
  EMU_EACH result[i] = from[wide ? i ^ 32 : i];
  emu_write_row(wave, &in->operand[0], 0, emu_exec(wave), result);
}

/* gfx950: rows of the first register are exchanged with the row before of the second. */
static void swap_rows(struct emu_wave* wave, const struct emu_instruction* in, int rows) {
  uint32_t *first = wave->vgpr[in->operand[0].index], *second = wave->vgpr[in->operand[1].index];
  uint64_t exec = emu_exec(wave);
  for (int i = 0; i < EMU_LANES; i++) {
    if (!(i & rows)) continue;
    /* The upper half of the first, and the lower half of the second. */
    uint32_t upper = first[i], lower = second[i - rows];
    if (exec >> i & 1) first[i] = lower;
    if (exec >> (i - rows) & 1) second[i - rows] = upper;
  }
}
static void permlane16_swap(struct emu_wave* wave, const struct emu_instruction* in) { swap_rows(wave, in, 16); }
static void permlane32_swap(struct emu_wave* wave, const struct emu_instruction* in) { swap_rows(wave, in, 32); }

static void swap(struct emu_wave* wave, const struct emu_instruction* in) {
  uint32_t *first = wave->vgpr[in->operand[0].index], *second = wave->vgpr[in->operand[1].index], copy[EMU_LANES];
  uint64_t exec = emu_exec(wave);
  memcpy(copy, first, sizeof copy);
  emu_write_row(wave, &in->operand[0], 0, exec, second);
  emu_write_row(wave, &in->operand[1], 0, exec, copy);
}

/* v_mbcnt: bits of the mask for the lanes before this one, of the lower or the upper 32. */
static void count_before(struct emu_wave* wave, const struct emu_instruction* in, int first) {
  uint32_t scratch[2][EMU_LANES], result[EMU_LANES];
  const uint32_t* mask = emu_row(wave, &in->operand[1], 0, scratch[0]);
  const uint32_t* added = emu_row(wave, &in->operand[2], 0, scratch[1]);
  EMU_EACH {
    int before = i - first;
    uint32_t ones = before >= 32 ? ~0u : before > 0 ? (1u << before) - 1 : 0;
    result[i] = __builtin_popcount(mask[i] & ones) + added[i];
  }
  emu_write_row(wave, &in->operand[0], 0, emu_exec(wave), result);
}
static void mbcnt_lo(struct emu_wave* wave, const struct emu_instruction* in) { count_before(wave, in, 0); }
static void mbcnt_hi(struct emu_wave* wave, const struct emu_instruction* in) { count_before(wave, in, 32); }

static void nothing(struct emu_wave* wave, const struct emu_instruction* in) { (void)wave, (void)in; }

#define RUN(name, types, run, flags) {name, types, run, 0, flags, EMU_VALU, 0, 0}

const struct emu_op emu_vector_lane_ops[] = {
    RUN("v_readlane_b32", "s=us", readlane, EMU_IGNORES_EXEC | EMU_READS_LANE | EMU_SELECTS_LANE),
    RUN("v_readfirstlane_b32", "s=u", readfirstlane, EMU_IGNORES_EXEC | EMU_READS_LANE),
    RUN("v_writelane_b32", "u=ss", writelane, EMU_IGNORES_EXEC | EMU_READS_RESULT | EMU_SELECTS_LANE),
    RUN("v_permlane16_b32", "u=uss", permlane16, 0),
    RUN("v_permlanex16_b32", "u=uss", permlanex16, 0),
    RUN("v_permlane64_b32", "u=u", permlane64, 0),
    RUN("v_permlane16_swap_b32", "uu=", permlane16_swap, EMU_READS_RESULT),
    RUN("v_permlane32_swap_b32", "uu=", permlane32_swap, EMU_READS_RESULT),
    RUN("v_swap_b32", "uu=", swap, EMU_READS_RESULT),
    RUN("v_mbcnt_lo_u32_b32", "u=uu", mbcnt_lo, 0),
    RUN("v_mbcnt_hi_u32_b32", "u=uu", mbcnt_hi, 0),
    RUN("v_nop", "", nothing, 0),
    {0},
};
