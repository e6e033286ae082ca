#include "fill.h"

#include "errors.h"

namespace kiln_aotriton {
namespace {

// More calls of the driver are not made for one view: it has a row for each, and all of them far from each other.
constexpr uint64_t kMostCalls = uint64_t{1} << 20;

using Dimension = Pieces::Dimension;

uint64_t bytes_of(kiln_dtype dtype) {
  switch (dtype) {
    case KILN_INT8:
    case KILN_UINT8:
    case KILN_BOOL:
      return 1;
    case KILN_FP16:
    case KILN_BF16:
    case KILN_INT16:
    case KILN_UINT16:
      return 2;
    case KILN_FP32:
    case KILN_INT32:
    case KILN_UINT32:
      return 4;
    case KILN_FP64:
    case KILN_INT64:
    case KILN_UINT64:
      return 8;
    default:
      return 0;
  }
}

// Dimensions with more than one place, counted upwards from the lowest address, the shortest stride first. False: some
// place has no address.
bool sort_dimensions(const kiln_tensor& view, uint64_t element, uint64_t* lowest, Dimension* out, int* count) {
  uint64_t highest = element - 1;
  *lowest = reinterpret_cast<uintptr_t>(view.data);
  *count = 0;
  for (int i = 0; i < view.rank; ++i) {
    if (view.sizes[i] < 0) return false;
    if (view.sizes[i] == 1 || view.strides[i] == 0) continue;
    bool down = view.strides[i] < 0;
    uint64_t size = static_cast<uint64_t>(view.sizes[i]), stride = static_cast<uint64_t>(view.strides[i]), reach;
    if (__builtin_mul_overflow(down ? -stride : stride, element, &stride) ||
        __builtin_mul_overflow(size - 1, stride, &reach) || __builtin_add_overflow(highest, reach, &highest) ||
        (down && __builtin_sub_overflow(*lowest, reach, lowest)))
      return false;
    int place = (*count)++;
    for (; place > 0 && out[place - 1].stride > stride; --place) out[place] = out[place - 1];
    out[place] = {size, stride};
  }
  return !__builtin_add_overflow(*lowest, highest, &highest);
}

// Takes a dimension out of the list.
void remove(Dimension* dimensions, int* count, int which) {
  for (--*count; which < *count; ++which) dimensions[which] = dimensions[which + 1];
}

}  // namespace

bool find_pieces(const kiln_tensor& view, Pieces* out) {
  *out = {};
  for (int i = 0; i < view.rank; ++i)
    if (view.sizes[i] == 0) return true;
  const uint64_t element = bytes_of(view.dtype);
  Dimension* outer = out->outer;
  int& count = out->outer_count;
  if (!element || !sort_dimensions(view, element, &out->rows.address, outer, &count)) return false;
  out->rows.width = element;
  while (count && outer[0].stride <= out->rows.width) {  // without gaps
    out->rows.width += (outer[0].size - 1) * outer[0].stride;
    remove(outer, &count, 0);
  }
  for (int i = 0; i + 1 < count;) {  // one after another like one dimension
    if (outer[i + 1].stride != outer[i].size * outer[i].stride) {
      ++i;
      continue;
    }
    outer[i].size *= outer[i + 1].size;
    remove(outer, &count, i + 1);
  }
  out->rows.height = 1;
  int longest = 0;
  for (int i = 1; i < count; ++i)
    if (outer[i].size > outer[longest].size) longest = i;
  if (count) {
    out->rows.height = outer[longest].size;
    out->rows.pitch = outer[longest].stride;
    remove(outer, &count, longest);
  }
  uint64_t calls = 1;
  for (int i = 0; i < count; ++i)
    if (__builtin_mul_overflow(calls, outer[i].size, &calls) || calls > kMostCalls) return false;
  return true;
}

int fill(const Driver& driver, const Pieces& pieces, void* stream) {
  uint64_t at[KILN_MAX_RANK] = {};
  for (Rows rows = pieces.rows; rows.height;) {
    if (int result = set_bits(driver, rows, stream)) return result;
    int i = 0;
    for (; i < pieces.outer_count; ++i) {
      rows.address += pieces.outer[i].stride;
      if (++at[i] < pieces.outer[i].size) break;
      rows.address -= pieces.outer[i].size * pieces.outer[i].stride;
      at[i] = 0;
    }
    if (i == pieces.outer_count) break;
  }
  return 0;
}

hipError_t fill_with_nan(const Driver& driver, const kiln_tensor& view, void* stream) {
  Pieces pieces;
  if (!find_pieces(view, &pieces))
    return refuse(KILN_E_ARGUMENT, "aotriton: the log-sum-exp has invalid sizes or strides");
  int result = fill(driver, pieces, stream);
  return result ? failure(driver, "setting memory", result) : hipSuccess;
}

}  // namespace kiln_aotriton
