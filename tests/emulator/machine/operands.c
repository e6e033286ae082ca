/* Sources fetched and results written, with all that an instruction's modifiers do to them. */
#include "rows.h"

#include "operands.h"

uint64_t emu_scalar(struct emu_wave* wave, const struct emu_operand* operand) {
  const uint32_t* s = wave->sgpr;
  switch (operand->kind) {
    case EMU_SGPR:
      if (operand->index == EMU_NULL) return 0;
      return operand->words > 1 ? emu_pair(wave, operand->index) : s[operand->index];
    case EMU_INTEGER:
    case EMU_FLOAT:
      return operand->bits;
    case EMU_SPECIAL: {
      uint64_t vcc = emu_pair(wave, EMU_VCC) & wave->machine->full;
      switch (operand->index) {
        case EMU_SCC:
          return wave->scc;
        case EMU_VCCZ:
          return vcc == 0;
        case EMU_EXECZ:
          return emu_exec(wave) == 0;
      }
    }
  }
  emu_fault(wave, EMU_UNKNOWN, -1, 0, "a scalar source of kind %d, which the executor does not know", operand->kind);
  return 0;
}

void emu_write_scalar(struct emu_wave* wave, const struct emu_operand* operand, uint64_t value) {
  if (operand->kind != EMU_SGPR || operand->index + operand->words > EMU_SGPRS) {
    emu_fault(wave, EMU_UNKNOWN, -1, 0, "a scalar result of kind %d, which the executor does not know", operand->kind);
    return;
  }
  if (operand->index == EMU_NULL) return;
  wave->sgpr[operand->index] = (uint32_t)value;
  if (operand->words > 1) wave->sgpr[operand->index + 1] = (uint32_t)(value >> 32);
}

static void fill(uint32_t* row, uint32_t value) { EMU_EACH row[i] = value; }

const uint32_t* emu_row(struct emu_wave* wave, const struct emu_operand* operand, unsigned k, uint32_t* scratch) {
  if (operand->kind == EMU_VGPR) return wave->vgpr[operand->index + k];
  uint32_t value = 0;
  if (operand->kind == EMU_SGPR && operand->index != EMU_NULL)
    value = wave->sgpr[operand->index + (k < operand->words ? k : 0)];
  else if (operand->kind != EMU_SGPR)
    value = (uint32_t)(emu_scalar(wave, operand) >> 32 * (k & 1));
  fill(scratch, value);
  return scratch;
}

void emu_write_row(struct emu_wave* wave, const struct emu_operand* operand, unsigned k, uint64_t mask,
                   const uint32_t* row) {
  if (operand->kind != EMU_VGPR) {
    emu_fault(wave, EMU_UNKNOWN, -1, 0, "a vector result of kind %d, which the executor does not know", operand->kind);
    return;
  }
  uint32_t* target = wave->vgpr[operand->index + k];
  if (mask == ~0ull) {
    memcpy(target, row, sizeof wave->vgpr[0]);
    return;
  }
  for (int half = 0; half < 2; half++) {
    uint32_t bits = (uint32_t)(mask >> 32 * half);
    if (!bits) continue;
    for (int i = 0; i < 32; i++) {
      uint32_t on = -(bits >> i & 1);
      target[32 * half + i] = (row[32 * half + i] & on) | (target[32 * half + i] & ~on);
    }
  }
}

void emu_spread(uint32_t* row, uint64_t mask) {
  for (int half = 0; half < 2; half++)
    for (int i = 0; i < 32; i++) row[32 * half + i] = (uint32_t)(mask >> 32 * half) >> i & 1;
}

uint64_t emu_gather(const uint32_t* row) {
  uint64_t mask = 0;
  for (int group = 0; group < EMU_LANES; group += 8) {
    /* Eight words of 0 or 1, shifted to their places and added: loops that become vectors. */
    uint32_t bits = 0;
    for (int i = 0; i < 8; i++) bits |= row[group + i] << i;
    mask |= (uint64_t)bits << group;
  }
  return mask;
}

/* ---- one source ------------------------------------------------------------------------------------------------- */

static int words_of(char letter) { return letter == 'q' || letter == 'd' || letter == 'P' ? 2 : 1; }

static void select_part(uint32_t* row, int part, bool sign_extended) {
  static const struct {
    int shift, bits;
  } parts[] = {[EMU_DWORD] = {0, 32},  [EMU_BYTE_0] = {0, 8},  [EMU_BYTE_1] = {8, 8},  [EMU_BYTE_2] = {16, 8},
               [EMU_BYTE_3] = {24, 8}, [EMU_WORD_0] = {0, 16}, [EMU_WORD_1] = {16, 16}};
  int left = 32 - parts[part].bits - parts[part].shift, right = 32 - parts[part].bits;
  if (sign_extended)
    EMU_EACH row[i] = (uint32_t)((int32_t)(row[i] << left) >> right);
  else
    EMU_EACH row[i] = row[i] << left >> right;
}

/* The lane that lane i reads under DPP, or -1 where there is none. */
static int dpp_lane(const struct emu_instruction* in, int i, int lanes) {
  int n = (int)in->dpp_value, row = i & ~15, place = i & 15;
  switch (in->dpp) {
    case EMU_QUAD_PERM:
      return (i & ~3) + (n >> 2 * (i & 3) & 3);
    case EMU_ROW_SHL:
      return place + n < 16 ? i + n : -1;
    case EMU_ROW_SHR:
      return place >= n ? i - n : -1;
    case EMU_ROW_ROR:
      return row + ((place - n) & 15);
    case EMU_WAVE_SHL:
      return i + 1 < lanes ? i + 1 : -1;
    case EMU_WAVE_SHR:
      return i - 1;
    case EMU_WAVE_ROL:
      return (i + 1) & (lanes - 1);
    case EMU_WAVE_ROR:
      return (i - 1) & (lanes - 1);
    case EMU_ROW_MIRROR:
      return row + 15 - place;
    case EMU_ROW_HALF_MIRROR:
      return (i & ~7) + 7 - (i & 7);
    case EMU_ROW_BCAST: /* the last lane of a row to the next row; lane 31 to all after it */
      return n == 15 ? row - 1 : i >= 32 ? 31 : -1;
    case EMU_ROW_NEWBCAST:
    case EMU_ROW_SHARE:
      return row + n;
    case EMU_ROW_XMASK:
      return i ^ n;
    case EMU_DPP8:
      return (i & ~7) + (n >> 3 * (i & 7) & 7);
  }
  return -1;
}

/* Moves the first source's lanes; takes the lanes that must not be written out of `mask`. */
static void move_lanes(struct emu_wave* wave, const struct emu_instruction* in, uint32_t* to, const uint32_t* from,
                       int words, uint64_t* mask) {
  int lanes = (int)wave->machine->program->wave_size;
  uint64_t exec = emu_exec(wave), valid = 0;
  for (int i = 0; i < lanes; i++) {
    int source = dpp_lane(in, i, lanes);
    /* DPP8 and permutations within a row reach lanes that are off only with fi:1. */
    bool reached = source >= 0 && (in->flags & EMU_FETCH_INVALID || exec >> source & 1);
    for (int k = 0; k < words; k++) to[EMU_LANES * k + i] = reached ? from[EMU_LANES * k + source] : 0;
    valid |= (uint64_t)reached << i;
    if (!(in->row_mask >> (i >> 4) & 1) || !(in->bank_mask >> (i >> 2 & 3) & 1)) *mask &= ~(1ull << i);
  }
  if (!(in->flags & EMU_BOUND_CTRL)) *mask &= in->dpp == EMU_DPP8 ? ~0ull : valid;
}

static void flip_signs(uint32_t* row, const struct emu_operand* operand, char letter) {
  uint32_t sign = letter == 'h' || letter == 'b' || letter == 'w' ? 0x8000u : 0x80000000u;
  if (operand->abs) EMU_EACH row[i] &= ~sign;
  if (operand->neg) EMU_EACH row[i] ^= sign;
}

/* Two halves chosen by op_sel and op_sel_hi, with the signs that neg_lo and neg_hi turn. */
static void choose_halves(const struct emu_instruction* in, int j, uint32_t* to, const uint32_t* from) {
  int low = in->op_sel >> j & 1 ? 16 : 0, high = in->op_sel_hi >> j & 1 ? 16 : 0;
  uint32_t signs = (in->neg_lo >> j & 1 ? 0x8000u : 0) | (in->neg_hi >> j & 1 ? 0x80000000u : 0);
  EMU_EACH to[i] = ((from[i] >> low & 0xffff) | from[i] >> high << 16) ^ signs;
}
static void choose_words(struct emu_wave* wave, const struct emu_instruction* in, int j,
                         const struct emu_operand* operand, uint32_t* to) {
  for (int k = 0; k < 2; k++) {
    uint32_t scratch[EMU_LANES];
    int which = (k ? in->op_sel_hi : in->op_sel) >> j & 1;
    const uint32_t* from = emu_row(wave, operand, which, scratch);
    uint32_t sign = (k ? in->neg_hi : in->neg_lo) >> j & 1 ? 0x80000000u : 0;
    EMU_EACH to[EMU_LANES * k + i] = from[i] ^ sign;
  }
}

/* Source j of the VALU: a row of the register file, or `scratch` (two rows). */
static const uint32_t* source(struct emu_wave* wave, const struct emu_instruction* in, int j,
                              const struct emu_operand* operand, char letter, uint32_t* scratch, uint64_t* mask) {
  if (letter == 'm') {
    emu_spread(scratch, emu_scalar(wave, operand));
    return scratch;
  }
  if (letter == 'P') {
    choose_words(wave, in, j, operand, scratch);
    return scratch;
  }
  int words = words_of(letter);
  const uint32_t* row = emu_row(wave, operand, 0, scratch);
  if (row == scratch && words > 1) emu_row(wave, operand, 1, scratch + EMU_LANES);
  if (letter == 'p') {
    choose_halves(in, j, scratch, row);
    return scratch;
  }
  bool halves = letter == 'h' || letter == 'b' || letter == 'w', constant = operand->kind > EMU_SGPR;
  bool moved = in->flags & EMU_DPP && j == 0;
  if (!(halves || moved || operand->neg || operand->abs || operand->part || operand->sext)) return row;
  if (moved) {
    uint32_t copy[2 * EMU_LANES];
    memcpy(copy, row, sizeof(uint32_t) * EMU_LANES * words);
    move_lanes(wave, in, scratch, copy, words, mask);
  } else if (row != scratch) {
    memcpy(scratch, row, sizeof(uint32_t) * EMU_LANES * words);
  }
  if (halves && !constant && !operand->part) select_part(scratch, in->op_sel >> j & 1 ? EMU_WORD_1 : EMU_WORD_0, false);
  if (operand->part) select_part(scratch, operand->part, operand->sext);
  flip_signs(scratch + EMU_LANES * (letter == 'd'), operand, letter);
  return scratch;
}

/* ---- results ---------------------------------------------------------------------------------------------------- */

static double scaled(const struct emu_instruction* in, double value) {
  static const double factors[] = {1, 2, 4, 0.5};
  return value * factors[in->omod];
}
static double clamped(const struct emu_instruction* in, double value) {
  /* Not a number becomes 0, as DX10_CLAMP asks, which compute programs set. */
  return !(in->flags & EMU_CLAMP) ? value : value > 1 ? 1 : value > 0 ? value : 0;
}

static void scale_and_clamp(struct emu_wave* wave, const struct emu_instruction* in, char letter, uint32_t* row) {
  switch (letter) {
    case 'P':
      EMU_EACH row[EMU_LANES + i] = emu_bits32((float)clamped(in, scaled(in, emu_f32(row[EMU_LANES + i]))));
      __attribute__((fallthrough)); /* the low words too */
    case 'f':
      EMU_EACH row[i] = emu_bits32((float)clamped(in, scaled(in, emu_f32(row[i]))));
      return;
    case 'h':
      EMU_EACH row[i] = emu_bits16(clamped(in, scaled(in, emu_f16(row[i]))));
      return;
    case 'd':
      EMU_EACH emu_set_wide(row, i, emu_bits64(clamped(in, scaled(in, emu_f64(emu_wide(row, i))))));
      return;
  }
  emu_fault(wave, EMU_UNKNOWN, -1, 0, "clamp or omod with a result of type %c, which the executor does not know",
            letter);
}

/* A result of 16 bits goes into one half of its register. */
static void place_half(struct emu_wave* wave, const struct emu_instruction* in, const uint32_t* old, uint32_t* row) {
  bool high = in->operand[0].part == EMU_WORD_1 || in->op_sel >> in->sources & 1;
  bool keeps = in->op->flags & EMU_KEEPS_HIGH || wave->machine->program->target >= EMU_GFX1100;
  if (high)
    EMU_EACH row[i] = (old[i] & 0xffff) | row[i] << 16;
  else if (keeps)
    EMU_EACH row[i] = (old[i] & 0xffff0000u) | (row[i] & 0xffff);
  else
    EMU_EACH row[i] &= 0xffff;
}

static void place_part(const struct emu_instruction* in, const uint32_t* old, uint32_t* row) {
  if (in->dst_part == EMU_DWORD) return;
  bool word = in->dst_part >= EMU_WORD_0;
  int shift = word ? 16 * (in->dst_part - EMU_WORD_0) : 8 * (in->dst_part - EMU_BYTE_0);
  uint32_t ones = word ? 0xffff : 0xff;
  EMU_EACH {
    uint32_t value = (row[i] & ones) << shift;
    if (in->dst_unused == EMU_UNUSED_PRESERVE) value |= old[i] & ~(ones << shift);
    if (in->dst_unused == EMU_UNUSED_SEXT && row[i] & (ones ^ ones >> 1)) value |= ~0u << shift & ~(ones << shift);
    row[i] = value;
  }
}

void emu_valu(struct emu_wave* wave, const struct emu_instruction* in) {
  const struct emu_op* op = in->op;
  const char* letter = op->types + in->first_source;
  _Alignas(32) uint32_t scratch[3][2 * EMU_LANES], result[3 * EMU_LANES];
  const uint32_t* row[3] = {result, result, result};
  uint64_t exec = emu_exec(wave), mask = exec;
  int j = 0;
  for (; j < in->sources; j++)
    row[j] = source(wave, in, j, &in->operand[in->results + j], letter[j], scratch[j], &mask);
  if (op->flags & EMU_READS_RESULT) {
    struct emu_operand old = in->operand[0];
    old.neg = old.abs = 0;
    row[j] = source(wave, in, j, &old, op->types[0], scratch[j], &mask);
  }
  emu_float_mode(wave, in->precision);
  op->lanes(result, row[0], row[1], row[2]);
  char first = op->types[0];
  if (first == 'm') {
    uint64_t bits = emu_gather(result) & mask;
    if (in->results) emu_write_scalar(wave, &in->operand[0], bits);
    if (op->flags & EMU_WRITES_EXEC) {
      wave->sgpr[EMU_EXEC] = (uint32_t)bits;
      wave->sgpr[EMU_EXEC + 1] = (uint32_t)(bits >> 32);
    }
    return;
  }
  if (in->omod || in->flags & EMU_CLAMP) scale_and_clamp(wave, in, first, result);
  int words = words_of(first);
  if (in->operand[0].kind == EMU_SGPR) { /* gfx12's v_s_exp_f32 and its kin */
    emu_write_scalar(wave, &in->operand[0], result[0]);
    return;
  }
  if (in->operand[0].kind == EMU_VGPR) {
    const uint32_t* old = wave->vgpr[in->operand[0].index];
    if (in->flags & EMU_SDWA)
      place_part(in, old, result);
    else if (first == 'h' || first == 'b' || first == 'w')
      place_half(wave, in, old, result);
  }
  for (int k = 0; k < words; k++) emu_write_row(wave, &in->operand[0], k, mask, result + EMU_LANES * k);
  if (in->results > 1) emu_write_scalar(wave, &in->operand[1], emu_gather(result + EMU_LANES * words) & mask);
}

void emu_salu(struct emu_wave* wave, const struct emu_instruction* in) {
  const struct emu_operand* source = &in->operand[in->results];
  uint64_t a = in->sources > 0 ? emu_scalar(wave, &source[0]) : 0;
  uint64_t b = in->sources > 1 ? emu_scalar(wave, &source[1]) : 0;
  emu_float_mode(wave, in->precision);
  uint64_t value = in->op->scalar(a, b, &wave->scc);
  if (in->results) emu_write_scalar(wave, &in->operand[0], value);
}
