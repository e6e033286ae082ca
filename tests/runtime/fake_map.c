/* Tensor maps: what cuTensorMapEncodeTiled accepts, and what it makes of it. The 128 bytes are fake_driver.h's Map, not
 * the device's: all that was encoded can be read from them. */
#include "fake_internal.h"

enum { INVALID_VALUE = 1, TYPES = 13, SWIZZLES = 4, PROMOTIONS = 4 };

static const unsigned element_bytes[TYPES] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};
static const unsigned spans[SWIZZLES] = {~0u, 32, 64, 128}; /* bytes that may be swizzled */

static uint32_t checksum(Map map) {
  map.layout &= ~FAKE_SMALL_TENSOR, map.checksum = 0;
  uint32_t sum = 2166136261u;
  for (size_t i = 0; i < sizeof map; ++i) sum = (sum ^ ((const unsigned char*)&map)[i]) * 16777619u;
  return sum;
}

static void note_numbers(const char* name, const uint64_t* numbers, unsigned count) {
  char text[128];
  int at = 0;
  for (unsigned i = 0; i < count; ++i)
    at += snprintf(text + at, sizeof text - (size_t)at, "%s%llu", i ? ", " : "", (unsigned long long)numbers[i]);
  fake_note("\"%s\": [%.*s]", name, at, text);
}

static int is_tensor(const Map* map, unsigned rank, const uint64_t* sizes, const uint64_t* strides) {
  for (unsigned d = 0; d < rank; ++d)
    if (sizes[d] < 1 || sizes[d] > 1ull << 32) return 0;
  for (unsigned d = 0; d + 1 < rank; ++d)
    if (strides[d] % 16 || strides[d] >= 1ull << 40) return 0;
  return map->address % 16 == 0;
}

static int is_box(unsigned rank, const unsigned* box, const unsigned* steps, int type, int swizzle) {
  for (unsigned d = 0; d < rank; ++d)
    if (box[d] < 1 || box[d] > 256 || steps[d] < 1 || steps[d] > 8) return 0;
  unsigned inner = box[0] * element_bytes[type];
  return inner % 16 == 0 && inner <= spans[swizzle];
}

int fake_encode(Map* map, int type, unsigned rank, uint64_t address, const uint64_t* sizes, const uint64_t* strides,
                const unsigned* box, const unsigned* steps, int interleave, int swizzle, int promotion, int fill) {
  enum { ALIGNMENT = 64 };
  Map made = {.magic = FAKE_MAP, .address = address};
  if ((uintptr_t)map % ALIGNMENT || type < 0 || type >= TYPES || rank < 1 || rank > FAKE_RANK) return INVALID_VALUE;
  if (interleave || swizzle < 0 || swizzle >= SWIZZLES || promotion < 0 || promotion >= PROMOTIONS || fill)
    return INVALID_VALUE;
  if (!is_tensor(&made, rank, sizes, strides) || !is_box(rank, box, steps, type, swizzle)) return INVALID_VALUE;
  uint64_t sides[FAKE_RANK], step[FAKE_RANK];
  for (unsigned d = 0; d < rank; ++d) {
    made.sizes[d] = sizes[d], sides[d] = box[d], step[d] = steps[d];
    made.box[d] = (uint16_t)box[d];
    if (d + 1 < rank) made.strides[d] = strides[d];
  }
  made.layout = rank | (uint64_t)type << 8 | (uint64_t)swizzle << 16 | FAKE_SMALL_TENSOR | (uint64_t)promotion << 24;
  made.checksum = checksum(made);
  *map = made;
  fake_note("\"address\": %llu, \"element_type\": %d, \"swizzle\": %d, \"promotion\": %d", (unsigned long long)address,
            type, swizzle, promotion);
  note_numbers("sizes", sizes, rank), note_numbers("strides", strides, rank - 1);
  note_numbers("box", sides, rank), note_numbers("steps", step, rank);
  return 0;
}

/* Whether the parameters behind a map are its tensor's sizes and strides, as images take them. */
static int is_followed(const Map* map, const Parameter* parameters, int count, const void* const* arguments) {
  int rank = (int)(map->layout & 0xFF);
  unsigned element = element_bytes[map->layout >> 8 & 0xFF];
  if (count < 2 * rank) return 0;
  for (int d = 0; d < rank; ++d) {
    int inner = rank - 1 - d; /* as the driver counts */
    int32_t size;
    int64_t stride, expected = inner ? (int64_t)map->strides[inner - 1] : element;
    if (parameters[d].size != sizeof size || parameters[rank + d].size != sizeof stride) return 0;
    memcpy(&size, arguments[d], sizeof size), memcpy(&stride, arguments[rank + d], sizeof stride);
    if ((uint64_t)size != map->sizes[inner] || stride * element != expected) return 0;
  }
  return 1;
}

int fake_check_maps(const Image* image, const void* const* arguments) {
  for (int i = 0; i < image->count; ++i) {
    Map map;
    if (image->parameters[i].size != sizeof map) continue;
    memcpy(&map, arguments[i], sizeof map);
    if (memcmp(map.magic, FAKE_MAP, sizeof map.magic) != 0 || map.checksum != checksum(map)) return 0;
    if (!is_followed(&map, image->parameters + i + 1, image->count - i - 1, arguments + i + 1)) return 0;
  }
  return 1;
}
