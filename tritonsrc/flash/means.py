"""What rounding adds to the sums of ds, taken out again by way of a mean key.

dq = ds k, and a row's ds sums to 0 (with a sink, to a known number), so an offset that all keys share is of no account.
With rounding the sum is off: delta is of an output that was rounded, and ds itself is rounded as a factor of the
product. Then dq has (what the sum is off by) * (what keys share), which is more than all of dq where keys have a large
mean beside their differences. That much of the mean key is subtracted. In words of attn_bwd.py, with delta = D + e and
P = sum of p = 1 - (the sink's weight):

    ds = p (dp - delta), whose sum is S = (1 - P) D - P e;   so D = S + P delta, which is delta + S without a sink
    dq = (rounded ds) k - (sum of rounded ds - (1 - P) D) * (mean key)

For the part of e the exact factor is the row's own mean key, sum of p k: another product. The mean of keys, and what
leaning() adds, are as good while a row's weights depend little on what keys differ by. D is exact, and what the other
kernels get.

A soft cap multiplies ds by its steepness s after all this, and e p with it: dq gets e P s of what keys share, s being
that of the mean key's own score, besides what rounding has added to s ds. (Sums of s p would be exact, but cost up to
1,000 bytes of spills a thread.)
"""

import triton
import triton.language as tl
from flags import BIAS, CU_Q, SINKS, SOFTCAP
from rows import load_piece
from scores import LOG2E, squashed
from sequences import place, sequence
from window import bounds

SAMPLE = tl.constexpr(64)  # keys, by which a mean that may be of others is held
AT_ONCE = tl.constexpr(16)  # of them, and as many rows are asked: more take registers, and programs are many
HIDDEN = tl.constexpr(-1000.0)  # a bias of no more hides a key, as far as a mean is concerned


@triton.jit
def part_of(keys, PARTS: tl.constexpr):
    """How many keys a part has; the last has what is left."""
    return tl.cdiv(keys, PARTS)


@triton.jit
def attn_bwd_sums(
    k_ptr, cu_k_ptr, used_k_ptr, stride_kb, stride_kh, stride_kn, heads_kv, seqlen_k, width, flags, sums_ptr,
    PARTS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Of each of PARTS parts of a sequence's keys: their sum, and that of the squares of what they differ by from the
    mean of their block: sums [batch, heads_kv, PARTS, 2, width] fp32.

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
    total = tl.zeros([BLOCK_D], tl.float32)
    squares = tl.zeros([BLOCK_D], tl.float32)
    for start in tl.range(begin, end, BLOCK_N):
        rows = start + tl.arange(0, BLOCK_N)
        inside = (rows < end)[:, None] & (columns < width)[None, :]
        k = tl.load(k_ptr + rows[:, None] * stride_kn + columns[None, :], mask=inside, other=0.0).to(tl.float32)
        added = tl.sum(k, 0)
        total += added
        apart = tl.where(inside, k - (added / tl.minimum(end - start, BLOCK_N).to(tl.float32))[None, :], 0.0)
        squares += tl.sum(apart * apart, 0)
    sums_ptr += (tl.program_id(0).to(tl.int64) * PARTS + part) * 2 * width
    tl.store(sums_ptr + columns, total, mask=columns < width)
    tl.store(sums_ptr + width + columns, squares, mask=columns < width)


@triton.jit
def in_parts(sums_ptr, first, after, count, width, columns, PARTS: tl.constexpr):
    """The mean of the parts [first, after), which have `count` keys. A part where that is no number counts as zeros.
    sums of [PARTS, 2, width]."""
    parts = tl.arange(0, PARTS)
    chosen = ((parts >= first) & (parts < after))[:, None] & (columns < width)[None, :]
    # At once: one part after another, each would be waited for.
    found = tl.load(sums_ptr + parts[:, None] * (2 * width) + columns[None, :], mask=chosen, other=0.0)
    return tl.sum(tl.where(tl.abs(found) < float("inf"), found, 0.0), 0) / tl.maximum(count, 1).to(tl.float32)


@triton.jit
def leaning(q_ptr, places, inside, columns, width, scale, variance):
    """By how much rows' own mean keys differ from that of all, on average: the softmax's first order, its scale times
    the covariance of keys times q. Here of some rows, which lie at `places`, and of each column's variance alone; at
    most a deviation."""
    wanted = inside[:, None] & (columns < width)[None, :]
    q = tl.load(q_ptr + places[:, None] + columns[None, :], mask=wanted, other=0.0)
    q = tl.sum(q.to(tl.float32), 0) / tl.sum(inside.to(tl.float32), 0)
    most = tl.sqrt(variance)
    lean = scale * q * variance
    return tl.where(tl.abs(lean) < float("inf"), tl.minimum(tl.maximum(lean, -most), most), 0.0)


@triton.jit
def sampled(sample, k, seen):
    """A sample, (lowest, highest, sum, count), each [columns], and those rows of k that are `seen` and numbers."""
    k = k.to(tl.float32)
    counts = (tl.abs(k) < float("inf")) & seen[:, None]
    lowest = tl.minimum(sample[0], tl.min(tl.where(counts, k, float("inf")), 0))
    highest = tl.maximum(sample[1], tl.max(tl.where(counts, k, float("-inf")), 0))
    return lowest, highest, sample[2] + tl.sum(tl.where(counts, k, 0.0), 0), sample[3] + tl.sum(counts.to(tl.int32), 0)


@triton.jit
def held(mean, sample, columns):
    """A mean of keys, within what that of a sample may be off by: of one key, by as much as its columns are large.
    `columns` are these, all columns' number."""
    lowest, highest, total, count = sample
    number = tl.maximum(count, 1).to(tl.float32)
    middle = total / number
    size = tl.sqrt(tl.sum(middle * middle, 0) / columns)
    off = tl.where(count > 1, (highest - lowest) * tl.rsqrt(number), size)
    off = tl.where(count > 0, off, 0.0)
    return tl.minimum(tl.maximum(mean, middle - off), middle + off)


@triton.jit
def attn_bwd_means(
    q_ptr, k_ptr, bias_ptr, cu_q_ptr, cu_k_ptr, used_q_ptr, used_k_ptr, sm_scale,
    stride_qb, stride_qh, stride_qm, stride_kb, stride_kh, stride_kn, stride_bb, stride_bh, stride_bm,
    batches, groups, heads, heads_kv, seqlen_q, seqlen_k, width, window_left, window_right, flags,
    sums_ptr, means_ptr, tiles,
    PARTS: tl.constexpr, SPAN: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """A mean key for each SPAN of rows: means [spans, groups, width] fp32, in the places that mean_place() tells. What
    keys hold that the rows do not see must not matter.

    It is that of the parts of which all rows see all keys, leaning towards the rows. Where there is none, as in the
    first rows under a causal mask and in narrow windows, and with a bias, which may hide keys, it is that of all parts
    that the rows reach, but no farther from the mean of some keys that they see than that is likely to be off by.

    The grid is (tiles, cdiv(width, BLOCK_D)), tiles as of sequences.place() with SPAN rows and `groups` heads: those
    of q with a bias, else those of k. sums and PARTS as attn_bwd_sums has left them, other arguments as of attn_fwd.
    """
    batch, group, block = place(tl.program_id(0), tiles, groups, batches, seqlen_q, cu_q_ptr, flags, SPAN, False)
    batch_q, start_q, rows_q = sequence(batch, seqlen_q, cu_q_ptr, used_q_ptr, flags, False)
    batch_k, start_k, keys = sequence(batch, seqlen_k, cu_k_ptr, used_k_ptr, flags, True)
    first_row = block * SPAN
    if first_row >= rows_q:
        return
    head_kv = group // (groups // heads_kv)
    columns = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    shift, left, right = bounds(rows_q, keys, window_left, window_right, flags)
    last_row = tl.minimum(first_row + SPAN, rows_q) - 1
    # Some row sees one of [begin, end), and none beyond; all of them see all of [every_begin, every_end).
    begin = tl.minimum(tl.maximum(first_row + shift - left, 0), keys)
    end = tl.maximum(tl.minimum(last_row + shift + right + 1, keys), begin)
    every_begin = tl.maximum(last_row + shift - left, 0)
    every_end = tl.minimum(first_row + shift + right + 1, keys)
    size = tl.maximum(part_of(keys, PARTS), 1)
    first_part = tl.cdiv(every_begin, size)
    after_parts = tl.where(every_end == keys, tl.cdiv(keys, size), every_end // size)
    is_safe = (after_parts > first_part) & ((flags & BIAS) == 0)
    first_part = tl.where(is_safe, first_part, begin // size)
    after_parts = tl.where(is_safe, after_parts, tl.cdiv(end, size))
    count = tl.minimum(after_parts * size, keys) - first_part * size
    sums_ptr += (batch * heads_kv + head_kv).to(tl.int64) * PARTS * 2 * width
    mean = in_parts(sums_ptr, first_part, after_parts, count, width, columns, PARTS)
    rows = first_row + tl.arange(0, AT_ONCE) * (SPAN // AT_ONCE)
    inside = rows < rows_q
    if (flags & SOFTCAP) == 0:
        variance = in_parts(sums_ptr + width, first_part, after_parts, count, width, columns, PARTS)
        # Of each head in turn that shares the mean key.
        members = heads // groups
        head = group * members + tl.arange(0, AT_ONCE) % members
        places = batch_q * stride_qb + head.to(tl.int64) * stride_qh + (start_q + rows) * stride_qm
        mean += leaning(q_ptr, places, inside, columns, width, sm_scale, variance)
    if not is_safe:
        is_common = every_begin < every_end
        begin = tl.where(is_common, every_begin, begin)
        end = tl.where(is_common, every_end, end)
        step = tl.maximum((end - begin) // SAMPLE, 1)
        plane = bias_ptr + batch.to(tl.int64) * stride_bb + group.to(tl.int64) * stride_bh
        first_key = k_ptr + batch_k * stride_kb + head_kv.to(tl.int64) * stride_kh + start_k * stride_kn
        infinite = tl.full([BLOCK_D], float("inf"), tl.float32)
        sample = (infinite, -infinite, tl.zeros([BLOCK_D], tl.float32), tl.zeros([BLOCK_D], tl.int32))
        for number in tl.range(0, SAMPLE, AT_ONCE):
            places = begin + (number + tl.arange(0, AT_ONCE)) * step
            seen = places < end
            if (flags & BIAS) != 0:
                addresses = plane + rows[:, None].to(tl.int64) * stride_bm + places[None, :]
                there = inside[:, None] & seen[None, :]
                bias = tl.load(addresses, mask=there, other=float("-inf")).to(tl.float32)
                seen = seen & (tl.max(bias, 0) > HIDDEN)
            wanted = seen[:, None] & (columns < width)[None, :]
            k = tl.load(first_key + places[:, None] * stride_kn + columns[None, :], mask=wanted, other=0.0)
            sample = sampled(sample, k, seen)
        mean = held(mean, sample, tl.minimum(width - tl.program_id(1) * BLOCK_D, BLOCK_D).to(tl.float32))
    means_ptr += mean_place(batch, group, groups, start_q, first_row, seqlen_q, flags, SPAN) * width
    tl.store(means_ptr + columns, mean, mask=columns < width)


@triton.jit
def mean_place(batch, group, groups, start_q, first_row, seqlen_q, flags, SPAN: tl.constexpr):
    """The number of a row's mean key. Sequences that lie one after another have theirs as sequences.place() has blocks;
    start_q is 0 for others."""
    before = tl.where((flags & CU_Q) != 0, start_q // SPAN + batch, batch.to(tl.int64) * tl.cdiv(seqlen_q, SPAN))
    return (before + first_row // SPAN) * groups + group


@triton.jit
def mean_key(means_ptr, width, P0: tl.constexpr, P1: tl.constexpr, P2: tl.constexpr):
    """A mean key, in pieces."""
    columns = tl.arange(0, P0)
    first = tl.load(means_ptr + columns, mask=columns < width, other=0.0)
    if P2 > 0:
        columns1 = P0 + tl.arange(0, P1)
        columns2 = P0 + P1 + tl.arange(0, P2)
        return (
            first, tl.load(means_ptr + columns1, mask=columns1 < width, other=0.0),
            tl.load(means_ptr + columns2, mask=columns2 < width, other=0.0),
        )  # fmt: skip
    elif P1 > 0:
        columns1 = P0 + tl.arange(0, P1)
        return (first, tl.load(means_ptr + columns1, mask=columns1 < width, other=0.0))
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
