/* What atomic instructions make of memory's value and the lane's. */
#include "convert.h"
#include "memory.h"

static int64_t extended(unsigned bytes, uint64_t value) { return bytes == 4 ? (int32_t)value : (int64_t)value; }

/* minimumNumber or maximumNumber, by the sign of `larger`: a number rather than a NaN. */
static uint64_t choose_float(unsigned bytes, uint64_t old, uint64_t data, bool larger) {
  if (bytes == 4) {
    float a = emu_f32((uint32_t)old), b = emu_f32((uint32_t)data);
    return emu_bits32(larger ? emu_max32(a, b) : emu_min32(a, b));
  }
  double a = emu_f64(old), b = emu_f64(data);
  return emu_bits64(larger ? emu_max64(a, b) : emu_min64(a, b));
}

static uint32_t add_halves(uint32_t old, uint32_t data, bool f16) {
  uint32_t sum = 0;
  for (unsigned shift = 0; shift < 32; shift += 16) {
    uint32_t a = old >> shift & 0xffff, b = data >> shift & 0xffff;
    if (f16)
      sum |= emu_bits16((double)emu_f16(a) + (double)emu_f16(b)) << shift;
    else
      sum |= emu_bf16_of_f32(emu_bits32(emu_f32(a << 16) + emu_f32(b << 16))) << shift;
  }
  return sum;
}

uint64_t emu_atomic(enum emu_atomic operation, unsigned bytes, uint64_t old, uint64_t data, uint64_t compare) {
  int64_t signed_old = extended(bytes, old), signed_data = extended(bytes, data);
  switch (operation) {
    case EMU_SWAP:
      return data;
    case EMU_COMPARE_SWAP:
      return old == compare ? data : old;
    case EMU_ADD:
      return old + data;
    case EMU_SUB:
      return old - data;
    case EMU_REVERSE_SUB:
      return data - old;
    case EMU_SMIN:
      return signed_data < signed_old ? data : old;
    case EMU_SMAX:
      return signed_data > signed_old ? data : old;
    case EMU_UMIN:
      return data < old ? data : old;
    case EMU_UMAX:
      return data > old ? data : old;
    case EMU_AND:
      return old & data;
    case EMU_OR:
      return old | data;
    case EMU_XOR:
      return old ^ data;
    case EMU_INC:
      return old >= data ? 0 : old + 1;
    case EMU_DEC:
      return old == 0 || old > data ? data : old - 1;
    case EMU_ADD_F:
      if (bytes == 4) return emu_bits32(emu_f32((uint32_t)old) + emu_f32((uint32_t)data));
      return emu_bits64(emu_f64(old) + emu_f64(data));
    case EMU_MIN_F:
      return choose_float(bytes, old, data, false);
    case EMU_MAX_F:
      return choose_float(bytes, old, data, true);
    case EMU_PK_ADD_F16:
      return add_halves((uint32_t)old, (uint32_t)data, true);
    case EMU_PK_ADD_BF16:
      return add_halves((uint32_t)old, (uint32_t)data, false);
  }
  return old;
}
