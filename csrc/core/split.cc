#include "split.h"

#include <string.h>

namespace kiln {

namespace {

constexpr size_t kLongest = 4;  // words of a record
static_assert(4 * kLongest <= kJoinSlack, "a record is copied by its largest size");

uint32_t read_u32(const uint8_t* bytes) {
  uint32_t value;
  memcpy(&value, bytes, 4);
  return value;
}

// The first words of `n` records, `stride` bytes apart: all have `opcode` as byte `selector`, three planes the others.
void first_words(const uint8_t* planes, size_t n, uint32_t opcode, uint32_t selector, uint8_t* to, size_t stride) {
  const uint8_t *a = planes, *b = planes + n, *c = planes + 2 * n;
  uint32_t shift_a = selector == 0 ? 8 : 0, shift_b = selector <= 1 ? 16 : 8, shift_c = selector <= 2 ? 24 : 16;
  for (size_t i = 0; i < n; ++i) {
    uint32_t word =
        opcode << 8 * selector | uint32_t{a[i]} << shift_a | uint32_t{b[i]} << shift_b | uint32_t{c[i]} << shift_c;
    memcpy(to + i * stride, &word, 4);
  }
}

void later_words(const uint8_t* planes, size_t n, uint8_t* to, size_t stride) {
  const uint8_t *a = planes, *b = planes + n, *c = planes + 2 * n, *d = planes + 3 * n;
  for (size_t i = 0; i < n; ++i) {
    uint32_t word = uint32_t{a[i]} | uint32_t{b[i]} << 8 | uint32_t{c[i]} << 16 | uint32_t{d[i]} << 24;
    memcpy(to + i * stride, &word, 4);
  }
}

}  // namespace

// In two steps, each of which runs through memory in order: the planes of each opcode become its records in `work`;
// then the selectors say whose record comes next. A copy of a fixed size costs less than a branch on the size, which
// is mispredicted at every third instruction.
bool join(const uint8_t* frame, size_t frame_size, size_t size, uint8_t* work, uint8_t* out) {
  if (frame_size < kFrameHead) return false;
  uint32_t selector = read_u32(frame), count = read_u32(frame + 4), range_count = read_u32(frame + 8);
  const uint8_t* words = frame + 12;
  const uint8_t* ranges = frame + kFrameHead;
  const uint8_t* selectors = ranges + size_t{8} * range_count;
  if (selector > 3 || frame_size != kFrameHead + size_t{8} * range_count + size || count > size / 4) return false;

  uint32_t counts[256] = {};
  for (uint32_t i = 0; i < count; ++i) ++counts[selectors[i]];
  size_t records_size = 0;  // below 2^32 * 16
  for (uint32_t opcode = 0; opcode < 256; ++opcode) {
    if (counts[opcode] == 0) continue;
    if (words[opcode] == 0 || words[opcode] > kLongest) return false;
    records_size += size_t{4} * words[opcode] * counts[opcode];
  }
  if (records_size > size) return false;

  struct {
    const uint8_t* next;
    size_t size;
  } records[256];
  const uint8_t* planes = selectors + count;
  uint8_t* to = work;
  for (uint32_t opcode = 0; opcode < 256; ++opcode) {
    size_t n = counts[opcode], stride = size_t{4} * words[opcode];
    if (n == 0) continue;
    records[opcode] = {to, stride};
    first_words(planes, n, opcode, selector, to, stride);
    planes += 3 * n;
    for (size_t word = 1; word < words[opcode]; ++word, planes += 4 * n) later_words(planes, n, to + 4 * word, stride);
    to += n * stride;
  }

  const uint8_t* rest = planes;
  size_t rest_left = size - records_size, records_left = records_size;
  const uint8_t *next = selectors, *last = selectors + count;
  for (uint32_t i = 0; i < range_count; ++i) {
    size_t skip = read_u32(ranges + size_t{8} * i), range_size = read_u32(ranges + size_t{8} * i + 4);
    if (skip > rest_left || range_size > records_left) return false;
    memcpy(out, rest, skip);
    out += skip, rest += skip, rest_left -= skip, records_left -= range_size;
    const uint8_t* stop = out + range_size;
    while (out < stop && next < last) {
      auto& record = records[*next++];
      memcpy(out, record.next, 4 * kLongest);
      record.next += record.size;
      out += record.size;
    }
    if (out != stop) return false;  // it ends within a record
  }
  if (records_left != 0) return false;
  memcpy(out, rest, rest_left);
  return true;
}

}  // namespace kiln
