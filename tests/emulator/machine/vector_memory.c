/*
 * Vector memory instructions: global, flat, scratch and buffer.
 *
 * An access is done where it is issued; hazards.c says when its registers may be used. Lanes go in order, so that of
 * lanes that store to one place the last one wins, and atomics are added up from lane 0 on. The hardware does these in
 * any order. Misaligned accesses are done, as under HSA. Cache policies (sc0, nt, scope and the like) do not matter,
 * but for scratch that is read for the last time (gfx12): a cache may drop it, so other bytes stand there afterwards.
 */
#include <string.h>

#include "memory.h"
#include "memory_forms.h"

enum { LOST = 0xa5 }; /* each byte of what a cache dropped */
enum space { GLOBAL, FLAT, SCRATCH, BUFFER };
enum what { LOAD, STORE, COPY, ATOMIC, NOTHING };

/* What the opcode of the same row of emu_memory_ops does. */
struct form {
  uint8_t space, what;
  struct emu_access access;
  uint8_t operation; /* enum emu_atomic */
};

#define EVERY(LOADS, STORES, COPIES, ATOMICS, CACHES) \
  EMU_LOAD_FORMS(LOADS, global, GLOBAL)               \
  EMU_LOAD_FORMS(LOADS, flat, FLAT)                   \
  EMU_LOAD_FORMS(LOADS, scratch, SCRATCH)             \
  EMU_LOAD_FORMS(LOADS, buffer, BUFFER)               \
  EMU_STORE_FORMS(STORES, global, GLOBAL)             \
  EMU_STORE_FORMS(STORES, flat, FLAT)                 \
  EMU_STORE_FORMS(STORES, scratch, SCRATCH)           \
  EMU_STORE_FORMS(STORES, buffer, BUFFER)             \
  EMU_COPY_FORMS(COPIES, global, GLOBAL)              \
  EMU_ATOMIC_FORMS(ATOMICS, global, GLOBAL)           \
  EMU_ATOMIC_FORMS(ATOMICS, flat, FLAT)               \
  EMU_ATOMIC_FORMS(ATOMICS, buffer, BUFFER)           \
  EMU_CACHE_FORMS(CACHES)

#define LOAD_FORM(P, S, name, bytes, half, is_signed) {S, LOAD, {bytes, EMU_##half, is_signed}, 0},
#define STORE_FORM(P, S, name, bytes, half, is_signed) {S, STORE, {bytes, EMU_##half, is_signed}, 0},
#define COPY_FORM(P, S, name, bytes, half, is_signed) {S, COPY, {bytes, EMU_##half, is_signed}, 0},
#define ATOMIC_FORM(P, S, name, bytes, operation) {S, ATOMIC, {bytes, EMU_WHOLE, false}, EMU_##operation},
#define CACHE_FORM(name, counts) {GLOBAL, NOTHING, {0, EMU_WHOLE, false}, 0},
static const struct form forms[] = {EVERY(LOAD_FORM, STORE_FORM, COPY_FORM, ATOMIC_FORM, CACHE_FORM)};

/* ---- addresses ------------------------------------------------------------------------------------------------------
 */

struct address {
  enum space space;
  int vector, index; /* rows of the vector offset and of a buffer's index; -1: none */
  bool wide;         /* the vector offset has 64 bits */
  bool last_use;     /* scratch that nothing reads again */
  uint64_t fixed;    /* the scalar part, or a buffer's scalar offset */
  int32_t offset;    /* the instruction's */
  struct emu_buffer buffer;
};

static bool unknown(struct emu_wave* wave) {
  emu_fault(wave, EMU_UNKNOWN, -1, 0, "an address made of operands that the executor does not know");
  return false;
}

/* Operands from `first` on: the vector offset, the descriptor, the scalar offset. */
static bool buffer_address(struct emu_wave* wave, const struct emu_instruction* in, unsigned first,
                           struct address* address) {
  const struct emu_operand *vector = &in->operand[first], *descriptor = vector + 1, *scalar = vector + 2;
  if (first + 3 != in->operands || descriptor->kind != EMU_SGPR || descriptor->words != 4) return unknown(wave);
  bool offset = in->flags & EMU_OFFEN, index = in->flags & EMU_IDXEN;
  if (offset || index) {
    if (!emu_vector_operand(wave, vector, offset + index)) return false;
    if (index) address->index = vector->index;
    if (offset) address->vector = vector->index + index;
  } else if (vector->kind != EMU_NONE) {
    return unknown(wave);
  }
  address->buffer = emu_buffer_of(wave, &wave->sgpr[descriptor->index]);
  address->fixed = (uint32_t)emu_scalar(wave, scalar);
  return true;
}

/* Reads the operands of the address; `vector` is its vector offset's, `scalar` its scalar's, which flat lacks. */
static bool address_of(struct emu_wave* wave, const struct emu_instruction* in, enum space space, unsigned vector,
                       unsigned scalar, struct address* address) {
  *address = (struct address){.space = space, .vector = -1, .index = -1, .offset = in->offset};
  address->last_use = space == SCRATCH && in->flags & EMU_LAST_USE;
  if (space == BUFFER) return buffer_address(wave, in, vector, address);
  if (in->operands != (space == FLAT ? scalar : scalar + 1)) return unknown(wave);
  bool has_scalar = space != FLAT && in->operand[scalar].kind == EMU_SGPR;
  if (space != FLAT && !has_scalar && in->operand[scalar].kind != EMU_NONE) return unknown(wave);
  address->wide = space == FLAT || (space == GLOBAL && !has_scalar);
  if (in->operand[vector].kind != EMU_NONE) {
    if (!emu_vector_operand(wave, &in->operand[vector], address->wide ? 2 : 1)) return false;
    address->vector = in->operand[vector].index;
  } else if (space != SCRATCH) {
    return unknown(wave);
  }
  if (has_scalar) address->fixed = emu_scalar(wave, &in->operand[scalar]);
  return true;
}

/* The bytes of a lane; null: a fault, or out of a buffer's range. */
static uint8_t* at(struct emu_wave* wave, const struct address* address, int lane, uint32_t from, uint32_t bytes,
                   bool write) {
  uint64_t value = address->vector < 0 ? 0 : wave->vgpr[address->vector][lane];
  if (address->space == BUFFER) {
    uint64_t index = address->index < 0 ? 0 : wave->vgpr[address->index][lane], found;
    value += (uint64_t)(int64_t)address->offset + from;
    if (!emu_buffer_address(&address->buffer, index, value, (uint32_t)address->fixed, bytes, lane, &found)) return 0;
    return emu_memory_at(wave, lane, found, bytes, write);
  }
  if (address->wide) value |= (uint64_t)wave->vgpr[address->vector + 1][lane] << 32;
  value += address->fixed + (uint64_t)(int64_t)address->offset + from;
  if (address->space == SCRATCH) return emu_scratch_at(wave, lane, (uint32_t)value, bytes);
  if (address->space == FLAT && value >> 32 == EMU_SHARED_APERTURE >> 32)
    return emu_lds_at(wave, lane, (uint32_t)value, bytes, write);
  if (address->space == FLAT && value >> 32 == EMU_PRIVATE_APERTURE >> 32)
    return emu_scratch_at(wave, lane, (uint32_t)value, bytes);
  return emu_memory_at(wave, lane, value, bytes, write);
}

/* ---- loads and stores -----------------------------------------------------------------------------------------------
 */

static bool faulty(const struct emu_wave* wave) { return wave->machine->report->fault.check != EMU_OK; }

/* How many bytes have a range check of their own: gfx9 checks each word of a raw buffer. */
static uint32_t step_of(const struct emu_wave* wave, const struct address* address, struct emu_access access) {
  bool by_word = address->space == BUFFER && wave->machine->program->target < EMU_GFX1100 && access.bytes > 4;
  return by_word ? 4 : access.bytes;
}

/* A lane's bytes of memory, 0 where they are out of a buffer's range. False: a fault. */
static bool gather(struct emu_wave* wave, const struct address* address, int lane, struct emu_access access,
                   uint8_t* bytes) {
  uint32_t step = step_of(wave, address, access);
  memset(bytes, 0, access.bytes);
  for (uint32_t from = 0; from < access.bytes; from += step) {
    uint8_t* source = at(wave, address, lane, from, step, false);
    if (!source && faulty(wave)) return false;
    if (!source) continue;
    memcpy(bytes + from, source, step);
    if (address->last_use) memset(source, LOST, step);
  }
  return true;
}

static void load(struct emu_wave* wave, const struct address* address, unsigned row, struct emu_access access) {
  uint64_t exec = emu_exec(wave);
  for (int lane = 0; exec; lane++, exec >>= 1) {
    uint8_t bytes[16];
    if (!(exec & 1)) continue;
    if (!gather(wave, address, lane, access, bytes)) return;
    emu_load_lane(wave, row, lane, access, bytes);
  }
}

static void store(struct emu_wave* wave, const struct address* address, unsigned row, struct emu_access access) {
  uint64_t exec = emu_exec(wave);
  uint32_t step = step_of(wave, address, access);
  for (int lane = 0; exec; lane++, exec >>= 1) {
    uint8_t bytes[16];
    if (!(exec & 1)) continue;
    emu_store_lane(wave, row, lane, access, bytes);
    for (uint32_t from = 0; from < access.bytes; from += step) {
      uint8_t* target = at(wave, address, lane, from, step, true);
      if (target)
        memcpy(target, bytes + from, step);
      else if (faulty(wave))
        return;
    }
  }
}

/* To LDS: from M0 and the offset on, lane after lane, a word for less than a word. */
static void copy(struct emu_wave* wave, const struct address* address, struct emu_access access) {
  uint64_t exec = emu_exec(wave);
  uint32_t first = (wave->sgpr[EMU_M0] & 0xffff) + (uint32_t)address->offset;
  uint32_t room = access.bytes < 4 ? 4 : access.bytes;
  for (int lane = 0; exec; lane++, exec >>= 1) {
    uint8_t bytes[16] = {0};
    if (!(exec & 1)) continue;
    if (!gather(wave, address, lane, access, bytes)) return;
    if (access.bytes < 4 && access.is_signed && bytes[access.bytes - 1] & 0x80)
      memset(bytes + access.bytes, 0xff, 4u - access.bytes);
    uint8_t* target = emu_lds_at(wave, lane, first + room * (uint32_t)lane, room, true);
    if (!target) return;
    memcpy(target, bytes, room);
  }
}

static uint64_t value_of(const struct emu_wave* wave, unsigned row, int lane, unsigned bytes) {
  return wave->vgpr[row][lane] | (bytes == 8 ? (uint64_t)wave->vgpr[row + 1][lane] << 32 : 0);
}

static void atomic(struct emu_wave* wave, const struct emu_instruction* in, const struct address* address,
                   const struct form* form, unsigned data) {
  uint64_t exec = emu_exec(wave);
  unsigned bytes = form->access.bytes;
  bool returns = in->flags & EMU_SC0;
  for (int lane = 0; exec; lane++, exec >>= 1) {
    if (!(exec & 1)) continue;
    uint64_t old = 0, mine = value_of(wave, data, lane, bytes), compare = 0;
    if (form->operation == EMU_COMPARE_SWAP) compare = value_of(wave, data + bytes / 4, lane, bytes);
    uint8_t* target = at(wave, address, lane, 0, bytes, true);
    if (!target && faulty(wave)) return;
    if (target) {
      memcpy(&old, target, bytes);
      uint64_t stored = emu_atomic((enum emu_atomic)form->operation, bytes, old, mine, compare);
      memcpy(target, &stored, bytes);
    }
    for (unsigned k = 0; returns && k < bytes / 4; k++)
      wave->vgpr[in->operand[0].index + k][lane] = (uint32_t)(old >> 32 * k);
  }
}

static void run_memory(struct emu_wave* wave, const struct emu_instruction* in) {
  struct form form = forms[in->op - emu_memory_ops];
  struct address address;
  if (form.what == NOTHING) return;
  if (in->flags & (EMU_GDS | EMU_TFE)) {
    emu_fault(wave, EMU_UNKNOWN, -1, 0, "a memory instruction with gds or tfe");
    return;
  }
  if (form.what == LOAD && in->flags & EMU_LDS) form.what = COPY;
  unsigned words = emu_access_words(form.access);
  /* Operands: [result] address [data] scalar; of buffers: data address descriptor scalar. */
  unsigned data, vector, scalar;
  if (form.space == BUFFER) {
    data = 0, vector = form.what == COPY ? 0 : 1, scalar = 0;
  } else {
    bool result = form.what == LOAD || (form.what == ATOMIC && in->flags & EMU_SC0);
    bool has_data = form.what == STORE || form.what == ATOMIC;
    vector = result, data = form.what == LOAD ? 0 : vector + 1, scalar = vector + 1 + has_data;
  }
  if (!address_of(wave, in, (enum space)form.space, vector, scalar, &address)) return;
  if (form.what == COPY) {
    copy(wave, &address, form.access);
    return;
  }
  unsigned data_words = form.what == ATOMIC && form.operation == EMU_COMPARE_SWAP ? 2 * words : words;
  if (!emu_vector_operand(wave, &in->operand[data], data_words)) return;
  unsigned row = in->operand[data].index;
  if (form.what == LOAD) load(wave, &address, row, form.access);
  if (form.what == STORE) store(wave, &address, row, form.access);
  if (form.what == ATOMIC) {
    if (data && in->flags & EMU_SC0 && !emu_vector_operand(wave, &in->operand[0], words)) return;
    atomic(wave, in, &address, &form, row);
  }
}

/* ---- opcodes --------------------------------------------------------------------------------------------------------
 */

#define FLAT_COUNTS(S) (S == FLAT ? EMU_FLAT : 0)
#define PART(half) (EMU_##half == EMU_WHOLE ? 0 : EMU_##half == EMU_LOW_HALF ? EMU_LOW_DATA : EMU_HIGH_DATA)
#define STORED(bytes, half) (EMU_##half == EMU_HIGH_HALF ? EMU_HIGH_DATA : bytes < 4 ? EMU_LOW_DATA : 0)
#define OP(name, flags) {name, "", run_memory, 0, flags, EMU_VECTOR_MEMORY, 0, 0},
#define LOAD_OP(P, S, name, bytes, half, is_signed) OP(#P "_" #name, EMU_LOADS | FLAT_COUNTS(S) | PART(half))
#define STORE_OP(P, S, name, bytes, half, is_signed) \
  OP(#P "_" #name, EMU_STORES | EMU_NO_RESULT | FLAT_COUNTS(S) | STORED(bytes, half))
#define COPY_OP(P, S, name, bytes, half, is_signed) OP(#P "_" #name, EMU_LOADS | EMU_NO_RESULT | EMU_READS_M0)
#define ATOMIC_OP(P, S, name, bytes, operation) \
  OP(#P "_" #name, EMU_ATOMIC | FLAT_COUNTS(S) | (S == BUFFER ? EMU_READS_RESULT : 0))
#define CACHE_OP(name, counts) OP(#name, EMU_NO_RESULT | counts)
const struct emu_op emu_memory_ops[] = {EVERY(LOAD_OP, STORE_OP, COPY_OP, ATOMIC_OP, CACHE_OP){0}};
