/* Memory of tensors, kernel arguments and scratch: who has an address, and what a lane moves. */
#include "memory.h"

#include <string.h>

/* ---- regions --------------------------------------------------------------------------------------------------------
 */

/* The last region that begins at or below `address`, or null. */
static const struct emu_region* region_below(const struct emu_machine* machine, uint64_t address) {
  uint32_t low = 0, high = machine->region_count;
  while (low < high) {
    uint32_t middle = low + (high - low) / 2;
    if (machine->regions[middle].base <= address)
      low = middle + 1;
    else
      high = middle;
  }
  return low ? &machine->regions[low - 1] : 0;
}

static bool within(const struct emu_region* region, uint64_t address, uint32_t bytes) {
  return address >= region->base && address - region->base <= region->size &&
         bytes <= region->size - (address - region->base);
}

static void no_region(struct emu_wave* wave, int lane, uint64_t address, uint32_t bytes, const char* verb) {
  const struct emu_machine* machine = wave->machine;
  const struct emu_region* below = region_below(machine, address);
  const struct emu_region* above = below ? below + 1 : machine->regions;
  if (above == machine->regions + machine->region_count) above = 0;
  uint64_t past = below ? address - below->base : 0, before = above ? above->base - address : 0;
  if (below && past < below->size) {
    emu_fault(wave, EMU_ADDRESS, lane, address, "%s %u bytes from byte %llu of region %u on, which has %llu", verb,
              bytes, (unsigned long long)past, below->id, (unsigned long long)below->size);
  } else if (below && (!above || past - below->size < before)) {
    emu_fault(wave, EMU_ADDRESS, lane, address, "%s %u bytes that no region has, %llu bytes past the end of region %u",
              verb, bytes, (unsigned long long)(past - below->size), below->id);
  } else if (above) {
    emu_fault(wave, EMU_ADDRESS, lane, address, "%s %u bytes that no region has, %llu bytes before region %u", verb,
              bytes, (unsigned long long)before, above->id);
  } else {
    emu_fault(wave, EMU_ADDRESS, lane, address, "%s %u bytes; the launch has no region of memory", verb, bytes);
  }
}

uint8_t* emu_memory_at(struct emu_wave* wave, int lane, uint64_t address, uint32_t bytes, bool write) {
  struct emu_machine* machine = wave->machine;
  const struct emu_region* region = machine->last_region;
  if (!region || !within(region, address, bytes)) {
    region = region_below(machine, address);
    if (!region || !within(region, address, bytes)) {
      no_region(wave, lane, address, bytes, write ? "writes" : "reads");
      return 0;
    }
    machine->last_region = region;
  }
  if (write && !region->writable) {
    emu_fault(wave, EMU_ADDRESS, lane, address, "writes %u bytes from byte %llu of region %u on, which is read only",
              bytes, (unsigned long long)(address - region->base), region->id);
    return 0;
  }
  return (uint8_t*)(uintptr_t)address;
}

/* ---- one lane's data ------------------------------------------------------------------------------------------------
 */

bool emu_vector_operand(struct emu_wave* wave, const struct emu_operand* operand, unsigned words) {
  if (operand->kind == EMU_VGPR && operand->words == words && operand->index + words <= EMU_VGPRS) return true;
  emu_fault(wave, EMU_UNKNOWN, -1, 0, "a memory instruction whose operand is not a range of %u vector registers",
            words);
  return false;
}

void emu_load_lane(struct emu_wave* wave, unsigned row, int lane, struct emu_access access, const uint8_t* from) {
  if (access.bytes >= 4) {
    for (unsigned k = 0; k < access.bytes / 4u; k++) memcpy(&wave->vgpr[row + k][lane], from + 4 * k, 4);
    return;
  }
  uint32_t value = access.bytes == 1 ? from[0] : from[0] | (uint32_t)from[1] << 8;
  if (access.is_signed) value = access.bytes == 1 ? (uint32_t)(int8_t)value : (uint32_t)(int16_t)value;
  uint32_t* word = &wave->vgpr[row][lane];
  if (access.half == EMU_WHOLE) *word = value;
  if (access.half == EMU_LOW_HALF) *word = (*word & 0xffff0000u) | (value & 0xffff);
  if (access.half == EMU_HIGH_HALF) *word = (*word & 0xffff) | value << 16;
}

void emu_store_lane(const struct emu_wave* wave, unsigned row, int lane, struct emu_access access, uint8_t* to) {
  if (access.bytes >= 4) {
    for (unsigned k = 0; k < access.bytes / 4u; k++) memcpy(to + 4 * k, &wave->vgpr[row + k][lane], 4);
    return;
  }
  uint32_t value = wave->vgpr[row][lane] >> (access.half == EMU_HIGH_HALF ? 16 : 0);
  to[0] = (uint8_t)value;
  if (access.bytes == 2) to[1] = (uint8_t)(value >> 8);
}

uint8_t* emu_scratch_at(struct emu_wave* wave, int lane, uint64_t address, uint32_t bytes) {
  uint64_t size = wave->machine->program->scratch;
  if (address <= size && bytes <= size - address) return wave->scratch + size * (uint64_t)lane + address;
  emu_fault(wave, EMU_ADDRESS, lane, address, "accesses %u bytes of scratch, of which a lane has %llu", bytes,
            (unsigned long long)size);
  return 0;
}
