"""What rounding adds to the sums of ds, taken out again by way of a mean key.

dq = ds k, and a row's ds sums to 0 (with a sink, to a known number), so an offset that all keys share is of no account.
With rounding the sum is off: delta is of an output that was rounded, and ds itself is rounded as a factor of the
product. Then dq has (what the sum is off by) * (what keys share), which is more than all of dq where keys have a large
mean beside their differences. That much of the mean key is subtracted. In words of attn_bwd.py, with delta = D + e and
P = sum of p = 1 - (the sink's weight):

    ds = p (dp - delta), whose sum is S = (1 - P) D - P e;   so D = S + P delta, which is delta + S without a sink
    dq = (rounded ds) k - (sum of rounded ds - (1 - P) D) * (mean key)

For the part of e the exact factor is the row's own mean key, sum of p k: another product. The mean of all keys is as
good while a row's weights depend little on what keys differ by. D is exact, and what the other kernels get.

A soft cap multiplies ds by its steepness s after all this, and e p with it: dq gets e P s of what keys share, s being
that of the mean key's own score, besides what rounding has added to s ds. (Sums of s p would be exact, but cost up to
1,000 bytes of spills a thread.)
"""

import triton
import triton.language as tl
from flags import SINKS, SOFTCAP
from rows import load_piece
from scores import LOG2E, squashed
from sequences import sequence


@triton.jit
def part_of(keys, PARTS: tl.constexpr):
    """How many keys a part has; the last has what is left."""
    return tl.cdiv(keys, PARTS)


@triton.jit
def attn_bwd_sums(
    k_ptr, cu_k_ptr, used_k_ptr, stride_kb, stride_kh, stride_kn, heads_kv, seqlen_k, width, flags, sums_ptr,
    PARTS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """The sums of each of PARTS parts of a sequence's keys: sums [batch, heads_kv, PARTS, width] fp32, for mean_key().

    The grid is (batch * heads_kv, PARTS, cdiv(width, BLOCK_D)). The other arguments are attn_bwd_dq's.
    """
    head = tl.program_id(0) % heads_kv
    batch = tl.program_id(0) // heads_kv
    part = tl.program_id(1)
    columns = tl.program_id(2) * BLOCK_D + tl.arange(0, BLOCK_D)
    batch_k, start_k, keys = sequence(batch, seqlen_k, cu_k_ptr, used_k_ptr, flags, True)
    begin = part * part_of(keys, PARTS)
    end = tl.minimum(begin + part_of(keys, PARTS), keys)
    k_ptr += batch_k * stride_kb + head.to(tl.int64) * stride_kh + start_k * stride_kn
    total = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    for start in tl.range(begin, end, BLOCK_N):
        rows = start + tl.arange(0, BLOCK_N)
        inside = (rows < end)[:, None] & (columns < width)[None, :]
        total += tl.load(k_ptr + rows[:, None] * stride_kn + columns[None, :], mask=inside, other=0.0).to(tl.float32)
    sums_ptr += (tl.program_id(0).to(tl.int64) * PARTS + part) * width
    tl.store(sums_ptr + columns, tl.sum(total, 0), mask=columns < width)


@triton.jit
def mean_key(sums_ptr, begin, end, keys, width, PARTS: tl.constexpr, BEGIN: tl.constexpr, SIZE: tl.constexpr):
    """The columns [BEGIN, BEGIN + SIZE) of the mean of those parts that have one of the keys [begin, end).

    Args:
        sums_ptr: of the head of keys.
        keys: of the sequence.
    """
    size = tl.maximum(part_of(keys, PARTS), 1)
    first = begin // size
    after = tl.cdiv(end, size)
    parts = tl.arange(0, PARTS)
    columns = BEGIN + tl.arange(0, SIZE)
    seen = ((parts >= first) & (parts < after))[:, None] & (columns < width)[None, :]
    # At once: one part after another, each would be waited for.
    total = tl.sum(tl.load(sums_ptr + parts[:, None] * width + columns[None, :], mask=seen, other=0.0), 0)
    mean = total / tl.maximum(tl.minimum(after * size, keys) - first * size, 1).to(tl.float32)
    # A key that is no number must reach only the rows that see it.
    return tl.where(tl.abs(mean) < float("inf"), mean, 0.0)


@triton.jit
def mean_keys(
    sums_ptr, begin, end, keys, width, PARTS: tl.constexpr, P0: tl.constexpr, P1: tl.constexpr, P2: tl.constexpr
):  # fmt: skip
    """mean_key() in pieces."""
    first = mean_key(sums_ptr, begin, end, keys, width, PARTS, 0, P0)
    if P2 > 0:
        return (
            first,
            mean_key(sums_ptr, begin, end, keys, width, PARTS, P0, P1),
            mean_key(sums_ptr, begin, end, keys, width, PARTS, P0 + P1, P2),
        )
    elif P1 > 0:
        return (first, mean_key(sums_ptr, begin, end, keys, width, PARTS, P0, P1))
    else:
        return (first,)


@triton.jit
def less_of_mean(rows, amount, mean, P1: tl.constexpr, P2: tl.constexpr):
    """Each row of dq less `amount`, [rows], times the mean key."""
    first = rows[0] - amount[:, None] * mean[0][None, :]
    if P2 > 0:
        return (first, rows[1] - amount[:, None] * mean[1][None, :], rows[2] - amount[:, None] * mean[2][None, :])
    elif P1 > 0:
        return (first, rows[1] - amount[:, None] * mean[1][None, :])
    else:
        return (first,)


@triton.jit
def steepness_of(
    mean, q_ptr, offsets, inside, width, scale, softcap, flags,
    P0: tl.constexpr, P1: tl.constexpr, P2: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """The soft cap's steepness where rows meet the mean key, [rows]; 1 without a soft cap. q as of load_piece()."""
    q = load_piece(q_ptr, offsets, inside, width, 0, P0, False, True, PADDED)
    score = tl.sum(q.to(tl.float32) * mean[0][None, :], 1)
    if P1 > 0:
        q = load_piece(q_ptr, offsets, inside, width, P0, P1, False, True, PADDED)
        score += tl.sum(q.to(tl.float32) * mean[1][None, :], 1)
    if P2 > 0:
        q = load_piece(q_ptr, offsets, inside, width, P0 + P1, P2, False, True, PADDED)
        score += tl.sum(q.to(tl.float32) * mean[2][None, :], 1)
    _, steepness = squashed(score * scale / softcap)
    return tl.where((flags & SOFTCAP) != 0, steepness, 1.0)


@triton.jit
def no_sums(ROWS: tl.constexpr, ONES: tl.constexpr, EXTRAS: tl.constexpr):
    """What is added to: (sums of the rounded ds,), or with a soft cap (sums of ds before it, what rounding has added to
    ds)."""
    if EXTRAS == "softcap" or EXTRAS == "any":
        return (tl.zeros([ROWS], tl.float32), tl.zeros([ROWS], tl.float32))
    elif ONES:
        return (tl.zeros([ROWS, ONES], tl.float32),)
    else:
        return (tl.zeros([ROWS], tl.float32),)


@triton.jit
def rounded_and_summed(sums, ds, steepness, dtype: tl.constexpr, ONES: tl.constexpr, EXTRAS: tl.constexpr):
    """ds, [rows, keys] fp32 before the soft cap, as it is multiplied by keys, and the sums with it.

    Args:
        ONES: rows of the rounded ds are summed by a product with so many columns of ones, where that is cheaper than to
            take 16-bit numbers apart again; 0: one by one.
    """
    if EXTRAS == "softcap" or EXTRAS == "any":
        before = sums[0] + tl.sum(ds, 1)
        ds *= steepness
        rounded = ds.to(dtype)
        return rounded, (before, sums[1] + tl.sum(rounded.to(tl.float32) - ds, 1))
    else:
        rounded = ds.to(dtype)
        if ONES:
            ones = tl.full([rounded.shape[1], ONES], 1.0, dtype)
            return rounded, (tl.dot(rounded, ones, sums[0]),)
        else:
            return rounded, (sums[0] + tl.sum(rounded.to(tl.float32), 1),)


@triton.jit
def missed(
    sums, delta, lse, sinks_ptr, head, flags, EXACT: tl.constexpr, ONES: tl.constexpr, EXTRAS: tl.constexpr
):  # fmt: skip
    """(D, by how much the sums of ds are more than they must be, P e), each [rows]. With a soft cap the second is
    without P e s, which the caller subtracts; else the third is of no use.

    Args:
        lse: as shift_of() gives it.
        sinks_ptr: [heads] fp32, with SINKS.
    """
    # Not by a branch, which costs registers in the loops.
    sink = tl.load(sinks_ptr + head, mask=(flags & SINKS) != 0, other=float("-inf"))
    if EXACT:
        sunk = tl.math.exp2((sink - lse) * LOG2E)  # 1 - P
    else:
        sunk = tl.math.exp2(sink * LOG2E - lse)
    total = sums[0]
    if EXTRAS == "softcap" or EXTRAS == "any":
        exact = total + (1.0 - sunk) * delta
        return exact, sums[1], (1.0 - sunk) * (delta - exact)
    else:
        if ONES:
            total = tl.sum(total, 1) / ONES
        exact = total + (1.0 - sunk) * delta
        return exact, total - sunk * exact, exact
