// Machine code that was sorted by opcode before it was compressed: kiln/split.py, which says why and how, writes it.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace kiln {

// A frame has this many bytes more than what it is a frame of.
constexpr size_t kFrameHead = 264;
// Bytes that `join` may write beyond the end of its buffers, so that it can copy records of any size alike.
constexpr size_t kJoinSlack = 16;

// Puts the `size` bytes that `frame` holds back in their order. `frame` has size + kFrameHead bytes, `work` and `out`
// have room for size + kJoinSlack each. False if the frame is malformed, with `out` then worth nothing: whatever the
// frame says, nothing outside of the three is touched.
bool join(const uint8_t* frame, size_t size, uint8_t* work, uint8_t* out);

}  // namespace kiln
