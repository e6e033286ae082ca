// Machine code that was sorted by opcode before it was compressed: kiln/split.py, which says why and how, writes it.
//
//   frame   = selector:u32 records:u32 ranges:u32 words:byte[256] range* selectors:byte[records] plane* rest
//   range   = skip:u32 size:u32     ; so many bytes of the rest, then so many of records
//   record  = words[s] words of 4 bytes, s being byte `selector` of the first
//   plane   = for each s ascending, for each byte of a record of s but the selector: that byte of all such records
//   rest    = what is in no record, as it is
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace kiln {

// Bytes of a frame before its ranges.
constexpr size_t kFrameHead = 268;
// Bytes that `join` may write beyond the end of its buffers, so that it can copy records of any size alike.
constexpr size_t kJoinSlack = 16;

// The most bytes of a frame of `size` bytes: a range takes eight and has a record of four or more.
constexpr size_t largest_frame(size_t size) { return kFrameHead + 3 * size; }

// Puts the `size` bytes that `frame` holds back in their order. `work` and `out` have room for size + kJoinSlack each.
// False if the frame is malformed, with `out` then worth nothing: whatever the frame says, nothing outside of the three
// is touched.
bool join(const uint8_t* frame, size_t frame_size, size_t size, uint8_t* work, uint8_t* out);

}  // namespace kiln
