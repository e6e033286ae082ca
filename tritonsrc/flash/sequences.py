"""Where a sequence lies, how long it is, and which block of which sequence a program takes."""

import triton
import triton.language as tl
from flags import CU_K, CU_Q, LSE_BY_SEQUENCE, SUMS_K, SUMS_Q, USED_K, USED_Q


@triton.jit
def sequence(batch, length, cu_ptr, used_ptr, flags, KEYS: tl.constexpr):
    """(batch, row, rows): where a sequence's first row lies in its tensor, 64 bits wide, and how many rows it has.

    Args:
        length: rows of every sequence, where nothing else is known.
        cu_ptr: [batches + 1] int32, if one of its flags is set: with CU sequences lie one after another, in batch 0;
            with SUMS it only says how long they are.
        used_ptr: [batches] int32, if its flag is set: how many rows of each count.
        KEYS: of keys and values, not of queries.
    """
    CU: tl.constexpr = CU_K if KEYS else CU_Q
    SUMS: tl.constexpr = SUMS_K if KEYS else SUMS_Q
    USED: tl.constexpr = USED_K if KEYS else USED_Q
    # Triton's JIT makes constants of arguments that are 1; what branches assign to must be no constant.
    lies_in = tl.full([], 0, tl.int64) + batch
    length = tl.full([], 0, tl.int32) + length
    start = lies_in * 0
    if flags & (CU | SUMS):
        begin = tl.load(cu_ptr + batch)
        length = tl.load(cu_ptr + batch + 1) - begin
        if flags & CU:
            start = begin.to(tl.int64)
            lies_in *= 0
    if flags & USED:
        length = tl.load(used_ptr + batch)
    return lies_in, start, length


@triton.jit
def lse_place(batch, batch_q, start_q, flags):
    """(batch, row): where a sequence's first log-sum-exp lies, given where its first row does."""
    lies_in = tl.full([], 0, tl.int64) + batch_q
    start = tl.full([], 0, tl.int64) + start_q
    if flags & LSE_BY_SEQUENCE:
        lies_in = tl.full([], 0, tl.int64) + batch
        start *= 0
    return lies_in, start


@triton.jit
def place(tile, tiles, heads, batches, length, cu_ptr, flags, BLOCK: tl.constexpr, KEYS: tl.constexpr):
    """(batch, head, block) of the program, or tile, number `tile`: neighbours share a head, so its rows in the cache.

    Sequences that lie one after another may have any lengths: with as many blocks for each as the longest has, most
    programs could have nothing to do. Instead sequence b has the numbers from cu[b] // BLOCK + b on: cdiv(rows, BLOCK)
    of them at least, whatever its begin, and at most one more. The sequence is found by bisection.

    Args:
        tiles: of the whole launch: cdiv(length, BLOCK) * heads * batches, or with cu_ptr (cdiv(rows of all sequences,
            BLOCK) + batches) * heads.
    """
    CU: tl.constexpr = CU_K if KEYS else CU_Q
    blocks = tl.cdiv(length, BLOCK)
    block = tile % blocks
    head = tile // blocks % heads
    batch = tile // blocks // heads
    if flags & CU:
        each = tiles // heads
        head = tile // each
        number = tile % each
        batch = tile * 0
        beyond = batch + batches
        while beyond - batch > 1:
            middle = (batch + beyond) // 2
            is_there = tl.load(cu_ptr + middle) // BLOCK + middle <= number
            batch = tl.where(is_there, middle, batch)
            beyond = tl.where(is_there, beyond, middle)
        block = number - (tl.load(cu_ptr + batch) // BLOCK + batch)
    return batch, head, block
