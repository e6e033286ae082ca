/*
 * Buffer descriptors, as the CDNA3 and RDNA3 guides have them.
 *
 *   bits 0:47 base, 48:61 stride; 62 (gfx9: caches only; gfx11, gfx12: with 63) and 63 swizzle; 64:95 records;
 *   115:116 element size 2, 4, 8, 16 (gfx9; gfx11 says 4, 8, 16 by its two swizzle bits); 117:118 index stride 8, 16,
 * 32, 64; 119 adds the lane to the index; 124:125 how ranges are checked (gfx11 and later)
 *
 * What is out of range reads as 0 and is not written.
 */
#include "memory.h"

struct emu_buffer emu_buffer_of(const struct emu_wave* wave, const uint32_t* words) {
  bool gfx9 = wave->machine->program->target < EMU_GFX1100;
  uint32_t swizzle = words[1] >> 30;
  struct emu_buffer buffer = {
      .base = words[0] | (uint64_t)(words[1] & 0xffff) << 32,
      .stride = words[1] >> 16 & 0x3fff,
      .records = words[2],
      .index_stride = 8u << (words[3] >> 21 & 3),
      .element = gfx9 ? 2u << (words[3] >> 19 & 3) : 2u << swizzle,
      .swizzled = gfx9 ? swizzle & 2 : swizzle != 0,
      .add_lane = words[3] >> 23 & 1,
  };
  /* With the lane added, gfx9 has the format's four bits (111:114) as the stride's highest. */
  if (gfx9 && buffer.add_lane) buffer.stride |= (words[3] >> 15 & 15) << 14;
  uint32_t check = words[3] >> 28 & 3; /* 0 index and offset, 1 index, 2 no records, 3 bytes */
  buffer.structured = gfx9 ? buffer.stride && buffer.swizzled : check < 2 && buffer.stride;
  return buffer;
}

bool emu_buffer_address(const struct emu_buffer* buffer, uint64_t index, uint64_t offset, uint32_t scalar,
                        uint32_t bytes, int lane, uint64_t* address) {
  if (buffer->add_lane) index += (uint64_t)lane;
  uint64_t place = index * buffer->stride + offset;
  if (buffer->structured ? index >= buffer->records : place + scalar + bytes > buffer->records) return false;
  if (buffer->swizzled) {
    uint64_t element = buffer->element, group = buffer->index_stride;
    place = (index / group * buffer->stride + offset / element * element) * group + index % group * element +
            offset % element;
  }
  *address = buffer->base + scalar + place;
  return true;
}
