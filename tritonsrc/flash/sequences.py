"""Where a sequence lies, and how long it is."""

import triton
import triton.language as tl
from flags import CU_K, CU_Q, USED_K, USED_Q


@triton.jit
def sequence(batch, length, cu_ptr, used_ptr, flags, KEYS: tl.constexpr):
    """(batch, row, rows): where a sequence's first row lies in its tensor, 64 bits wide, and how many rows it has.

    Args:
        length: rows of every sequence, where nothing else is known.
        cu_ptr: [batches + 1] int32, if its flag is set: sequences lie one after another, in batch 0.
        used_ptr: [batches] int32, if its flag is set: how many rows of each count.
        KEYS: of keys and values, not of queries.
    """
    CU: tl.constexpr = CU_K if KEYS else CU_Q
    USED: tl.constexpr = USED_K if KEYS else USED_Q
    lies_in = tl.full([], 0, tl.int64) + batch
    start = lies_in * 0
    if flags & CU:
        begin = tl.load(cu_ptr + batch)
        length = tl.load(cu_ptr + batch + 1) - begin
        start = begin.to(tl.int64)
        lies_in *= 0
    if flags & USED:
        length = tl.load(used_ptr + batch)
    return lies_in, start, length
