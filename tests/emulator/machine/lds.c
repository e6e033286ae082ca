/*
 * LDS: reads, writes, atomics, and moves between lanes.
 *
 * Addresses are bytes from the work-group's allocation on. An access beyond it is a fault (the hardware reads 0 and
 * writes nothing), and so is one of a word or more that is not aligned to a word. Lanes go in order.
 */
#include <string.h>

#include "lds_forms.h"
#include "memory.h"

enum what {
  READ,
  READ2,
  READ2_64,
  READ_LANE,
  WRITE,
  WRITE2,
  WRITE2_64,
  WRITE_LANE,
  UPDATE,
  RETURN,
  PERMUTE,
  BPERMUTE,
  BPERMUTE_ALL,
  SWIZZLE,
  TRANSPOSE,
  NOTHING,
};

/* What the opcode of the same row of emu_lds_ops does. */
struct form {
  uint8_t what;
  struct emu_access access;
  uint8_t operation; /* enum emu_atomic; of TRANSPOSE the bits of an element */
};

#define EVERY(MOVE, PAIR, SWAP, LANES, NONE) \
  EMU_LDS_MOVES(MOVE) EMU_LDS_ATOMICS(PAIR) EMU_LDS_SWAPS(SWAP) EMU_LDS_LANES(LANES) NONE(ds_nop)
#define MOVE_FORM(name, what, bytes, half, is_signed) {what, {bytes, EMU_##half, is_signed}, 0},
#define PAIR_FORM(name, returning, bytes, operation) \
  {UPDATE, {bytes, EMU_WHOLE, false}, EMU_##operation}, {RETURN, {bytes, EMU_WHOLE, false}, EMU_##operation},
#define SWAP_FORM(name, bytes) {RETURN, {bytes, EMU_WHOLE, false}, EMU_SWAP},
#define LANES_FORM(name, what, bits) {what, {bits == 6 ? 12 : bits ? 8 : 4, EMU_WHOLE, false}, bits},
#define NONE_FORM(name) {NOTHING, {0, EMU_WHOLE, false}, 0},
static const struct form forms[] = {EVERY(MOVE_FORM, PAIR_FORM, SWAP_FORM, LANES_FORM, NONE_FORM)};

uint8_t* emu_lds_at(struct emu_wave* wave, int lane, uint32_t address, uint32_t bytes, bool write) {
  struct emu_machine* machine = wave->machine;
  if (address > machine->lds_size || bytes > machine->lds_size - address) {
    emu_fault(wave, EMU_ADDRESS, lane, address, "%s %u bytes of LDS at %u, of which %u bytes are allocated",
              write ? "writes" : "reads", bytes, address, machine->lds_size);
    return 0;
  }
  if (address % (bytes < 4 ? bytes : 4)) {
    emu_fault(wave, EMU_ADDRESS, lane, address, "%s %u bytes of LDS at %u, which is not aligned",
              write ? "writes" : "reads", bytes, address);
    return 0;
  }
  emu_hazards_lds(wave, lane, address, bytes, write);
  return machine->lds + address;
}

/* ---- moves ----------------------------------------------------------------------------------------------------------
 */

/* Elements of an instruction: one, or two. */
struct elements {
  unsigned count;
  unsigned row[2];    /* of the vector register file */
  uint32_t offset[2]; /* bytes */
  int address;        /* row of the lanes' addresses; -1: lanes lie one after the other from M0 on */
};

static void move(struct emu_wave* wave, const struct elements* elements, struct emu_access access, bool write) {
  uint64_t exec = emu_exec(wave);
  for (int lane = 0; exec; lane++, exec >>= 1) {
    if (!(exec & 1)) continue;
    uint32_t base = elements->address < 0 ? (wave->sgpr[EMU_M0] & 0xffff) + 4 * (uint32_t)lane
                                          : wave->vgpr[elements->address][lane];
    for (unsigned k = 0; k < elements->count; k++) {
      uint8_t* at = emu_lds_at(wave, lane, base + elements->offset[k], access.bytes, write);
      if (!at) return;
      if (write)
        emu_store_lane(wave, elements->row[k], lane, access, at);
      else
        emu_load_lane(wave, elements->row[k], lane, access, at);
    }
  }
}

static void run_move(struct emu_wave* wave, const struct emu_instruction* in, const struct form* form) {
  bool two = form->what == READ2 || form->what == READ2_64 || form->what == WRITE2 || form->what == WRITE2_64;
  bool write = form->what >= WRITE, by_lane = form->what == READ_LANE || form->what == WRITE_LANE;
  unsigned scale = !two ? 1 : form->access.bytes * (form->what == READ2_64 || form->what == WRITE2_64 ? 64 : 1);
  unsigned words = emu_access_words(form->access);
  struct elements elements = {.count = two ? 2 : 1, .address = -1};
  elements.offset[0] = (uint32_t)in->offset * scale, elements.offset[1] = (uint32_t)in->offset1 * scale;
  /* Reads: result, address. Writes: address, data, of two elements data twice. */
  unsigned address = write ? 0 : 1, data = write ? !by_lane : 0;
  unsigned operands = by_lane ? 1 : write && two ? 3 : 2;
  if (in->operands != operands) {
    emu_fault(wave, EMU_UNKNOWN, -1, 0, "an LDS instruction of %u operands, which has %u", in->operands, operands);
    return;
  }
  if (!by_lane) {
    if (!emu_vector_operand(wave, &in->operand[address], 1)) return;
    elements.address = in->operand[address].index;
  }
  if (!emu_vector_operand(wave, &in->operand[data], two && !write ? 2 * words : words)) return;
  elements.row[0] = in->operand[data].index, elements.row[1] = elements.row[0] + words;
  if (two && write) {
    if (!emu_vector_operand(wave, &in->operand[data + 1], words)) return;
    elements.row[1] = in->operand[data + 1].index;
  }
  move(wave, &elements, form->access, write);
}

/* ---- atomics --------------------------------------------------------------------------------------------------------
 */

static uint64_t value_of(const struct emu_wave* wave, unsigned row, int lane, unsigned bytes) {
  return wave->vgpr[row][lane] | (bytes == 8 ? (uint64_t)wave->vgpr[row + 1][lane] << 32 : 0);
}

/* Operands: [result] address data [data]. ds_cmpst compares with the first data, ds_cmpstore with the second. */
static void run_atomic(struct emu_wave* wave, const struct emu_instruction* in, const struct form* form) {
  unsigned bytes = form->access.bytes, words = bytes / 4;
  bool returns = form->what == RETURN, swaps = form->operation == EMU_COMPARE_SWAP;
  unsigned first = returns, data = first + 1, operands = data + 1 + swaps;
  if (in->operands != operands) {
    emu_fault(wave, EMU_UNKNOWN, -1, 0, "an LDS instruction of %u operands, which has %u", in->operands, operands);
    return;
  }
  if (!emu_vector_operand(wave, &in->operand[first], 1)) return;
  for (unsigned k = 0; k < operands; k++)
    if (k != first && !emu_vector_operand(wave, &in->operand[k], words)) return;
  unsigned stored = in->operand[data].index, compared = swaps ? in->operand[data + 1].index : stored;
  if (swaps && !strncmp(in->op->name, "ds_cmpst_", 9)) {
    compared = stored;
    stored = in->operand[data + 1].index;
  }
  uint64_t exec = emu_exec(wave);
  for (int lane = 0; exec; lane++, exec >>= 1) {
    if (!(exec & 1)) continue;
    uint32_t address = wave->vgpr[in->operand[first].index][lane] + (uint32_t)in->offset;
    uint8_t* at = emu_lds_at(wave, lane, address, bytes, true);
    if (!at) return;
    uint64_t old = 0;
    memcpy(&old, at, bytes);
    uint64_t value = emu_atomic((enum emu_atomic)form->operation, bytes, old, value_of(wave, stored, lane, bytes),
                                value_of(wave, compared, lane, bytes));
    memcpy(at, &value, bytes);
    for (unsigned k = 0; returns && k < words; k++)
      wave->vgpr[in->operand[0].index + k][lane] = (uint32_t)(old >> 32 * k);
  }
}

/* ---- moves between lanes --------------------------------------------------------------------------------------------
 */

/* The lane whose value lane i gets of ds_swizzle_b32, by the offset's bits. */
static unsigned swizzled(uint32_t offset, unsigned i) {
  if (offset >= 0xc000) { /* rotation within 32 lanes by bits 5:9, left or right by bit 10; bits 0:4 stay */
    unsigned by = offset >> 5 & 31, mask = offset & 31, turned = offset >> 10 & 1 ? i - by : i + by;
    return (i & 32) | (i & mask) | (turned & 31 & ~mask);
  }
  if (offset >= 0x8000) return (i & ~3u) | (offset >> 2 * (i & 3) & 3);
  return (i & 32) | ((((i & 31) & offset) | (offset >> 5 & 31)) ^ (offset >> 10 & 31));
}

static void run_permute(struct emu_wave* wave, const struct emu_instruction* in, const struct form* form) {
  unsigned lanes = wave->machine->program->wave_size;
  bool addressed = form->what != SWIZZLE;
  if (in->operands != 2u + addressed) {
    emu_fault(wave, EMU_UNKNOWN, -1, 0, "a permutation of %u operands, which has %u", in->operands, 2 + addressed);
    return;
  }
  for (unsigned k = 0; k < in->operands; k++)
    if (!emu_vector_operand(wave, &in->operand[k], 1)) return;
  if (!addressed && in->offset >= 0xe000) {
    emu_fault(wave, EMU_UNKNOWN, -1, 0, "ds_swizzle_b32 in its mode for Fourier transforms");
    return;
  }
  const uint32_t* address = wave->vgpr[in->operand[1].index];
  const uint32_t* data = wave->vgpr[in->operand[1 + addressed].index];
  uint64_t exec = emu_exec(wave);
  uint32_t result[EMU_LANES] = {0};
  for (unsigned i = 0; i < lanes; i++) {
    unsigned other = addressed ? (address[i] + (uint32_t)in->offset) / 4 % lanes : swizzled((uint32_t)in->offset, i);
    if (form->what == PERMUTE) {
      if (exec >> i & 1) result[other] = data[i];
    } else if (exec >> other & 1 || form->what == BPERMUTE_ALL) {
      result[i] = data[other];
    }
  }
  emu_write_row(wave, &in->operand[0], 0, exec, result);
}

/*
 * gfx950's transposed reads. Sixteen lanes read 64 bits each (96, of six bits), which are rows of sixteen elements one
 * after the other: four rows of 16 bits, eight of 8, sixteen of 4 or 6. Lane l of the sixteen gets column l, row 0
 * lowest.
 */
static void run_transpose(struct emu_wave* wave, const struct emu_instruction* in, const struct form* form) {
  unsigned bits = form->operation, bytes = form->access.bytes, words = bytes / 4, elements = 8 * bytes / bits;
  if (in->operands != 2 || !emu_vector_operand(wave, &in->operand[0], words) ||
      !emu_vector_operand(wave, &in->operand[1], 1))
    return;
  uint64_t exec = emu_exec(wave);
  uint8_t data[EMU_LANES][16] = {{0}};
  for (int lane = 0; lane < EMU_LANES; lane++) {
    uint64_t sixteen = exec >> (lane & ~15) & 0xffff;
    if (sixteen != 0 && sixteen != 0xffff) {
      emu_fault(wave, EMU_PROGRAM, lane, 0, "a transposed read where some of sixteen lanes are off");
      return;
    }
    if (!sixteen) continue;
    uint32_t address = wave->vgpr[in->operand[1].index][lane] + (uint32_t)in->offset;
    const uint8_t* at = emu_lds_at(wave, lane, address, bytes, false);
    if (!at) return;
    memcpy(data[lane], at, bytes);
  }
  for (int lane = 0; lane < EMU_LANES; lane++) {
    uint32_t result[4] = {0};
    if (!(exec >> lane & 1)) continue;
    for (unsigned row = 0; row < elements; row++) {
      unsigned place = 16 * row + lane % 16, first = place % elements * bits, into = row * bits;
      const uint8_t* from = data[(lane & ~15) + place / elements];
      for (unsigned bit = 0; bit < bits; bit++)
        result[(into + bit) / 32] |= (uint32_t)(from[(first + bit) / 8] >> (first + bit) % 8 & 1) << (into + bit) % 32;
    }
    for (unsigned k = 0; k < words; k++) wave->vgpr[in->operand[0].index + k][lane] = result[k];
  }
}

/* ---- opcodes --------------------------------------------------------------------------------------------------------
 */

static void run_lds(struct emu_wave* wave, const struct emu_instruction* in) {
  const struct form* form = &forms[in->op - emu_lds_ops];
  if (in->flags & EMU_GDS) {
    emu_fault(wave, EMU_UNKNOWN, -1, 0, "an instruction of global data share");
    return;
  }
  switch (form->what) {
    case UPDATE:
    case RETURN:
      run_atomic(wave, in, form);
      return;
    case PERMUTE:
    case BPERMUTE:
    case BPERMUTE_ALL:
    case SWIZZLE:
      run_permute(wave, in, form);
      return;
    case TRANSPOSE:
      run_transpose(wave, in, form);
      return;
    case NOTHING:
      return;
    default:
      run_move(wave, in, form);
  }
}

#define OP(name, flags) {name, "", run_lds, 0, EMU_LDS_COUNT | flags, EMU_LDS_ACCESS, 0, 0},
#define PART(half) (EMU_##half == EMU_WHOLE ? 0 : EMU_##half == EMU_LOW_HALF ? EMU_LOW_DATA : EMU_HIGH_DATA)
#define STORED(bytes, half) (EMU_##half == EMU_HIGH_HALF ? EMU_HIGH_DATA : bytes < 4 ? EMU_LOW_DATA : 0)
#define MOVE_FLAGS(what, bytes, half) \
  (what >= WRITE ? EMU_STORES | EMU_NO_RESULT | STORED(bytes, half) : EMU_LOADS | PART(half))
#define LANE_FLAGS(what) (what == READ_LANE || what == WRITE_LANE ? EMU_READS_M0 : 0)
#define MOVE_OP(name, what, bytes, half, is_signed) OP(#name, MOVE_FLAGS(what, bytes, half) | LANE_FLAGS(what))
#define PAIR_OP(name, returning, bytes, operation) OP(#name, EMU_STORES | EMU_NO_RESULT) OP(#returning, EMU_LOADS)
#define SWAP_OP(name, bytes) OP(#name, EMU_LOADS)
#define LANES_OP(name, what, bits) OP(#name, EMU_LOADS)
#define NONE_OP(name) {#name, "", run_lds, 0, EMU_NO_RESULT, EMU_LDS_ACCESS, 0, 0},
const struct emu_op emu_lds_ops[] = {EVERY(MOVE_OP, PAIR_OP, SWAP_OP, LANES_OP, NONE_OP){0}};
