/*
 * Scalar loads: from memory, and from buffers.
 *
 * Addresses of words and more have their lowest two bits cleared. What a buffer does not have reads as 0.
 */
#include <string.h>

#include "memory.h"

struct form {
  uint8_t bytes; /* 0: nothing to do */
  bool is_signed, buffer;
};

/* X(name, bytes, whether signed, whether of a buffer) */
#define EVERY(X)                      \
  X(s_load_dword, 4, 0, 0)            \
  X(s_load_dwordx2, 8, 0, 0)          \
  X(s_load_dwordx4, 16, 0, 0)         \
  X(s_load_dwordx8, 32, 0, 0)         \
  X(s_load_dwordx16, 64, 0, 0)        \
  X(s_load_b32, 4, 0, 0)              \
  X(s_load_b64, 8, 0, 0)              \
  X(s_load_b96, 12, 0, 0)             \
  X(s_load_b128, 16, 0, 0)            \
  X(s_load_b256, 32, 0, 0)            \
  X(s_load_b512, 64, 0, 0)            \
  X(s_load_u8, 1, 0, 0)               \
  X(s_load_i8, 1, 1, 0)               \
  X(s_load_u16, 2, 0, 0)              \
  X(s_load_i16, 2, 1, 0)              \
  X(s_buffer_load_dword, 4, 0, 1)     \
  X(s_buffer_load_dwordx2, 8, 0, 1)   \
  X(s_buffer_load_dwordx4, 16, 0, 1)  \
  X(s_buffer_load_dwordx8, 32, 0, 1)  \
  X(s_buffer_load_dwordx16, 64, 0, 1) \
  X(s_buffer_load_b32, 4, 0, 1)       \
  X(s_buffer_load_b64, 8, 0, 1)       \
  X(s_buffer_load_b96, 12, 0, 1)      \
  X(s_buffer_load_b128, 16, 0, 1)     \
  X(s_buffer_load_b256, 32, 0, 1)     \
  X(s_buffer_load_b512, 64, 0, 1)     \
  X(s_buffer_load_u8, 1, 0, 1)        \
  X(s_buffer_load_i8, 1, 1, 1)        \
  X(s_buffer_load_u16, 2, 0, 1)       \
  X(s_buffer_load_i16, 2, 1, 1)
#define CACHES(X)           \
  X(s_dcache_inv)           \
  X(s_dcache_wb)            \
  X(s_dcache_inv_vol)       \
  X(s_dcache_wb_vol)        \
  X(s_gl1_inv)              \
  X(s_prefetch_data)        \
  X(s_prefetch_data_pc_rel) \
  X(s_prefetch_inst)        \
  X(s_prefetch_inst_pc_rel) \
  X(s_buffer_prefetch_data)

#define FORM(name, bytes, is_signed, buffer) {bytes, is_signed, buffer},
#define NO_FORM(name) {0, 0, 0},
static const struct form forms[] = {EVERY(FORM) CACHES(NO_FORM)};

/* The bytes at `from` on: 0 in place of those that a buffer does not have. False: a fault. */
static bool read(struct emu_wave* wave, const struct form* form, const uint32_t* base, uint64_t offset,
                 uint8_t* bytes) {
  unsigned count = form->bytes;
  if (!form->buffer) {
    uint64_t address = (base[0] | (uint64_t)base[1] << 32) + offset;
    if (count >= 4) address &= ~3ull;
    const uint8_t* at = emu_memory_at(wave, -1, address, count, false);
    if (at) memcpy(bytes, at, count);
    return at;
  }
  struct emu_buffer buffer = emu_buffer_of(wave, base);
  uint64_t records = (uint64_t)buffer.records * (buffer.stride ? buffer.stride : 1);
  unsigned step = count < 4 ? count : 4;
  if (count >= 4) offset &= ~3ull;
  memset(bytes, 0, count);
  for (unsigned from = 0; from < count; from += step) {
    if (offset + from + step > records) continue;
    const uint8_t* at = emu_memory_at(wave, -1, buffer.base + offset + from, step, false);
    if (!at) return false;
    memcpy(bytes + from, at, step);
  }
  return true;
}

static void run_scalar_memory(struct emu_wave* wave, const struct emu_instruction* in) {
  const struct form* form = &forms[in->op - emu_scalar_memory_ops];
  if (!form->bytes) return;
  const struct emu_operand *result = &in->operand[0], *base = &in->operand[1];
  unsigned words = (form->bytes + 3u) / 4, base_words = form->buffer ? 4 : 2;
  if (in->operands != 3 || result->kind != EMU_SGPR || result->words != words || base->kind != EMU_SGPR ||
      base->words != base_words || base->index + base_words > EMU_SGPRS || result->index + words > EMU_SGPRS) {
    emu_fault(wave, EMU_UNKNOWN, -1, 0, "a scalar load of operands that the executor does not know");
    return;
  }
  /* A register's offset has no sign; a constant's has, except of a buffer. */
  const struct emu_operand* third = &in->operand[2];
  uint64_t offset = emu_scalar(wave, third);
  if (third->kind == EMU_SGPR) offset = (uint32_t)offset;
  offset += (uint64_t)(int64_t)in->offset;
  uint8_t bytes[64];
  if (!read(wave, form, &wave->sgpr[base->index], offset, bytes)) return;
  if (form->bytes < 4) {
    uint32_t value = bytes[0] | (form->bytes == 2 ? (uint32_t)bytes[1] << 8 : 0);
    if (form->is_signed) value = form->bytes == 1 ? (uint32_t)(int8_t)value : (uint32_t)(int16_t)value;
    wave->sgpr[result->index] = value;
  } else if (result->index != EMU_NULL) {
    memcpy(&wave->sgpr[result->index], bytes, form->bytes);
  }
}

#define OP(name, bytes, is_signed, buffer) \
  {#name, "", run_scalar_memory, 0, EMU_LOADS | EMU_SCALAR, EMU_SCALAR_MEMORY, 0, 0},
#define NO_OP(name) {#name, "", run_scalar_memory, 0, EMU_NO_RESULT, EMU_SCALAR_MEMORY, 0, 0},
const struct emu_op emu_scalar_memory_ops[] = {EVERY(OP) CACHES(NO_OP){0}};
