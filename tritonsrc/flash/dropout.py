"""Dropout: which weights are kept. A function of seed, offset and the weight's place alone, so that every kernel, block
size and target draws the same."""

import triton
import triton.language as tl
from flags import DROPOUT, OFFSET, SEED


@triton.jit
def kept(seed, offset, threshold, plane, rows, first_key, COLUMNS: tl.constexpr):
    """[rows, COLUMNS] of booleans: true with the probability 1 - threshold / 2^32.

    Philox4x32-10 (Salmon et al., Parallel random numbers: as easy as 1, 2, 3, SC 2011, section 3.3) with the key `seed`
    and the counter (key // 4, row, plane ^ offset / 2^32, offset mod 2^32); its four numbers are of four neighbours.

    Args:
        seed, offset: 64 bits.
        threshold: 32 bits; a weight is dropped where its number is below.
        plane: batch * heads + head.
        rows: [rows], their numbers in the sequence.
        first_key: of the block; a multiple of 4.
    """
    fours = first_key // 4 + tl.arange(0, COLUMNS // 4)
    high = (plane.to(tl.int64) ^ (offset >> 32)).to(tl.int32)
    low = offset.to(tl.int32)
    zero = (rows[:, None] + fours[None, :]) * 0
    a, b, c, d = tl.philox(seed, zero + fours[None, :], zero + rows[:, None], zero + high, zero + low)
    numbers = tl.join(tl.join(a, c), tl.join(b, d)).reshape([rows.shape[0], COLUMNS])
    return numbers.to(tl.uint32, bitcast=True) >= threshold.to(tl.uint32, bitcast=True)


@triton.jit
def factors(
    factor, seed, offset, threshold, plane, rows, first_key, flags, COLUMNS: tl.constexpr, EXTRAS: tl.constexpr
):  # fmt: skip
    """[rows, COLUMNS] fp32, what dropout multiplies weights by: `factor` where they are kept, else 0; 1 without
    dropout."""
    if EXTRAS == "dropout":
        return tl.where(kept(seed, offset, threshold, plane, rows, first_key, COLUMNS), factor, 0.0)
    else:
        result = tl.full([rows.shape[0], COLUMNS], 1.0, tl.float32)
        if flags & DROPOUT:
            result = tl.where(kept(seed, offset, threshold, plane, rows, first_key, COLUMNS), factor, 0.0)
        return result


@triton.jit
def seed_of(seed_ptr, offset_ptr, seed, offset, flags):
    """(seed, offset) of a call: by value, and what lies in device memory, where something does."""
    seed += tl.load(seed_ptr, mask=(flags & SEED) != 0, other=0)
    offset += tl.load(offset_ptr, mask=(flags & OFFSET) != 0, other=0)
    return seed, offset
