"""Attention of new queries over cached keys: decoding, and prefill in chunks.

In decoding a head has one row, or a few, and all the time goes into reading keys and values: so each is read once, by
one program, and all multiprocessors read. Heads that share a key head are rows of one block: packed row r is row
r // group of head r % group of the key head's. And the keys are split over programs, each of which leaves the output
and the log-sum-exp of its part, which a second kernel combines: Flash-Decoding (Dao, Haziza, Massa, Sizov, 2023,
https://crfm.stanford.edu/2023/10/12/flashdecoding.html). Rows in plenty, a chunk of a prompt, fill the device by
themselves; then there is one split, and the output is written at once.

A cache of fp8 is multiplied in fp16, whatever q is: one instruction makes two elements of fp16 of two of fp8, and bf16
takes three; on an H200 that takes longer than reading them. Queries of bf16 become fp16 by a scale of each row.

The softmax is attn_fwd.py's, with its two loops. pages.py says where a key lies; keys that are not seen for leftpad are
skipped by beginning behind them. A row's own key is counted from the end of the keys.
"""

import triton
import triton.language as tl
from flags import ALIBI, BOTTOM_RIGHT, LSE, SCALES, SINKS, SOFTCAP
from pages import cached_keys, page_of
from rows import added, inner, largest, load_rows_at, scaled, signed, store_rows, zeros
from scores import LOG2E, squashed
from sequences import sequence
from softmax import divisor_of, log_sum_exp, started, weighed, with_sink
from window import bounds, span

# How far weights in fp16 may lie above 1, as a power of two: fp16 goes down to 2^-24 only, so they begin above 1. Not
# at its top, 2^15: the maximum of large scores is rounded when this is taken from it, by 8 where they are 2^27.
HEADROOM = tl.constexpr(8.0)


@triton.jit
def converted(rows, dtype: tl.constexpr, P1: tl.constexpr, P2: tl.constexpr):
    """The rows in another dtype."""
    if P2 > 0:
        return (rows[0].to(dtype), rows[1].to(dtype), rows[2].to(dtype))
    elif P1 > 0:
        return (rows[0].to(dtype), rows[1].to(dtype))
    else:
        return (rows[0].to(dtype),)


@triton.jit
def in_fp16(rows, P1: tl.constexpr, P2: tl.constexpr):
    """Rows of bf16 in fp16, each divided by a power of two; and these powers, fp32.

    A row's largest magnitude is in [2^14, 2^15) then. Exact for elements down to 2^-28 of that.
    """
    # A float's exponent alone is a power of two, and 254 less it that of the inverse: both of normal numbers.
    exponent = largest(rows, P1, P2).to(tl.int32, bitcast=True) & 0x7F800000
    unit = tl.minimum(tl.maximum(exponent, 15 << 23), 254 << 23) - (14 << 23)
    inverse = ((254 << 23) - unit).to(tl.float32, bitcast=True)
    rows = scaled(converted(rows, tl.float32, P1, P2), inverse, P1, P2)
    return converted(rows, tl.float16, P1, P2), unit.to(tl.float32, bitcast=True)


@triton.jit
def attend_cached(
    acc, row_max, row_sum, q, k_ptr, v_ptr, start, page, key, stride_kb, stride_kn, stride_vb, stride_vn,
    width_qk, width_v, rows, seqlen_k, first, last, unit, scale, softcap, slopes, distance, flags,
    MASKED: tl.constexpr, PADDED: tl.constexpr, EXTRAS: tl.constexpr, BLOCK_N: tl.constexpr,
    P0: tl.constexpr, P1: tl.constexpr, P2: tl.constexpr,
):  # fmt: skip
    """Adds a block of cached keys to the running softmax of a block of rows: as attend() of attn_fwd.py.

    Args:
        k_ptr, v_ptr: the key head's first key and value of page 0.
        start: the number of the block's first key, which counts from behind leftpad.
        page, key: [BLOCK_N], where the block's keys lie, as page_of() gives it.
        rows: [BLOCK_M], the number of each row in its sequence.
        unit: [BLOCK_M], what the rows of q were divided by, or None.
        slopes: [BLOCK_M], ALiBi's, if EXTRAS is "any".
    """
    keys = start + tl.arange(0, BLOCK_N)
    inside = keys < seqlen_k
    places = page * stride_kb + key * stride_kn
    k = load_rows_at(k_ptr, places, inside, width_qk, P0, P1, P2, True, MASKED, PADDED)
    scores = inner(q, converted(k, q[0].dtype, P1, P2), P1, P2)
    if unit is not None:
        scores *= unit[:, None]
    factor = scale * LOG2E
    if EXTRAS == "any":
        scores *= scale
        factor = LOG2E
        if flags & SOFTCAP:
            scores, _ = squashed(scores / softcap)
            scores *= softcap
        scores -= slopes[:, None] * tl.abs(rows[:, None] + distance - keys[None, :]).to(tl.float32)
    elif MASKED:
        # Scaled before it is masked, since -inf * 0 is NaN.
        scores *= factor
        factor = 1.0
    if MASKED:
        seen = (keys[None, :] >= first[:, None]) & (keys[None, :] <= last[:, None])
        scores = tl.where(seen, scores, float("-inf"))
    p, correction, row_max, row_sum = weighed(
        row_max, row_sum, scores, factor, MASKED or EXTRAS == "any", 0.0 if unit is None else HEADROOM
    )  # fmt: skip
    acc = scaled(acc, correction, P1, P2)
    places = page * stride_vb + key * stride_vn
    v = load_rows_at(v_ptr, places, inside, width_v, P0, P1, P2, False, MASKED, PADDED)
    acc = added(p.to(q[0].dtype), converted(v, q[0].dtype, P1, P2), acc, P1, P2)
    return acc, row_max, row_sum


@triton.jit
def attn_decode(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, partial_ptr, partial_softmax_ptr, sinks_ptr, slopes_ptr,
    k_scale_ptr, v_scale_ptr, cu_q_ptr, used_k_ptr, table_ptr, cache_batch_ptr, leftpad_ptr, sm_scale, softcap,
    stride_qb, stride_qh, stride_qm, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    stride_ob, stride_oh, stride_om, stride_lb, stride_lh, stride_pm, stride_tb, stride_sb,
    splits, rows_head, rows_total, heads, heads_per_kv, seqlen_q, seqlen_k, new_rows,
    page_size, page_factor, page_shift, width_qk, width_v, window_left, window_right, flags,
    P0: tl.constexpr, P1: tl.constexpr, P2: tl.constexpr, EXTRAS: tl.constexpr, PADDED: tl.constexpr,
    UNMASKED_LOOP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Attention with a cache; the grid is
    (splits * cdiv(seqlen_q * heads_per_kv, BLOCK_M) * heads / heads_per_kv * batch,).

    Shapes: q, out [batch, heads, seqlen_q, width], lse [batch, heads, seqlen_q] fp32; with the flag CU_Q the batch of
    these is 1, and sequences lie one after another (sequences.py). k, v [pages, heads / heads_per_kv, page_size, width]
    (pages.py). Strides as in attn_fwd, b of k and v being that of a page. A sequence has used_k[batch] (with USED_K,
    else seqlen_k) + new_rows keys, of which the first seqlen_k count. A row that sees no key gets zeros and a
    log-sum-exp of -inf.

    If splits > 1, nothing is written to out and lse, but to partial [splits, rows_total, stride_pm] and partial_softmax
    [2, splits, rows_total], row_max and row_sum, all fp32: a log-sum-exp of a few hundreds, rounded, would be a weight
    that is off by 1e-5. Rows follow each other as in q, rows_head of each head.

    Args:
        sinks_ptr: [heads] fp32, with SINKS.
        slopes_ptr: fp32, of batch b and head h at b * stride_sb + h, with ALIBI.
        k_scale_ptr, v_scale_ptr: [heads / heads_per_kv] fp32, with SCALES: of what is cached.
        table_ptr: int32, the pages of sequence b from b * stride_tb on, with PAGED.
        page_factor, page_shift: how to divide by page_size (pages.py).
        cache_batch_ptr, leftpad_ptr: [batch] int32, with CACHE_BATCH and LEFTPAD (pages.py).
        softcap: of the scores, with SOFTCAP, else anything but 0.
        window_left, window_right: how many keys before and after its own a row sees.
        EXTRAS: "none", or "any": soft cap and ALiBi.
        PADDED, UNMASKED_LOOP: as in attn_fwd.
    """
    split = tl.program_id(0) % splits
    tile = tl.program_id(0) // splits
    blocks = tl.cdiv(seqlen_q * heads_per_kv, BLOCK_M)
    # The last rows see most keys: longest first.
    block = blocks - 1 - tile % blocks
    plane = tile // blocks
    heads_kv = heads // heads_per_kv
    batch = plane // heads_kv
    head_kv = plane % heads_kv
    batch_q, start_q, rows_q = sequence(batch, seqlen_q, cu_q_ptr, cu_q_ptr, flags, False)
    if block * BLOCK_M < rows_q * heads_per_kv:
        lies_in, rows_k, leftpad = cached_keys(batch, seqlen_k, used_k_ptr, cache_batch_ptr, leftpad_ptr, flags)
        rows_k = tl.maximum(tl.minimum(rows_k + new_rows, seqlen_k) - leftpad, 0)
        packed = block * BLOCK_M + tl.arange(0, BLOCK_M)
        rows = packed // heads_per_kv
        head = head_kv * heads_per_kv + packed % heads_per_kv
        inside = rows < rows_q
        row = start_q + rows
        head_64 = head.to(tl.int64)
        q_ptr += batch_q * stride_qb
        q = load_rows_at(
            q_ptr, row * stride_qm + head_64 * stride_qh, inside, width_qk, P0, P1, P2, False, True, PADDED
        )  # fmt: skip
        k_ptr += head_kv.to(tl.int64) * stride_kh
        v_ptr += head_kv.to(tl.int64) * stride_vh
        table_ptr += batch.to(tl.int64) * stride_tb
        has_scales = (flags & SCALES) != 0
        scale = sm_scale * tl.load(k_scale_ptr + head_kv, mask=has_scales, other=1.0)
        # The sign goes to the queries, so that a larger product is a larger score.
        q = signed(q, scale < 0, P1, P2)
        scale = tl.abs(scale)
        unit = None
        if q_ptr.dtype.element_ty == tl.bfloat16 and k_ptr.dtype.element_ty != tl.bfloat16:
            q, unit = in_fp16(q, P1, P2)
        slopes = 0.0
        if EXTRAS == "any":
            slopes_ptr += batch.to(tl.int64) * stride_sb
            slopes = tl.load(slopes_ptr + head, mask=inside & ((flags & ALIBI) != 0), other=0.0)

        acc = zeros(BLOCK_M, P0, P1, P2)
        row_max, row_sum = started(BLOCK_M)
        distance, left, right = bounds(rows_q, rows_k, window_left, window_right, flags | BOTTOM_RIGHT)
        first, last, begin, end, whole_begin, whole_end = span(
            block * BLOCK_M // heads_per_kv,
            tl.minimum((block * BLOCK_M + BLOCK_M - 1) // heads_per_kv, rows_q - 1),
            rows, distance, left, right, rows_k, BLOCK_N,
        )  # fmt: skip
        # The split's part of what these rows see.
        part = tl.cdiv(tl.cdiv(end - begin, BLOCK_N), splits) * BLOCK_N
        begin = tl.minimum(begin + split * part, end)
        end = tl.minimum(begin + part, end)
        whole_begin = tl.minimum(tl.maximum(whole_begin, begin), end)
        whole_end = tl.maximum(tl.minimum(whole_end, end), whole_begin)
        if UNMASKED_LOOP:
            # The table is read a block ahead of the keys, so that these can be fetched stages ahead of their use. A
            # compiler that finds a load that waits for a load in the same step halves the number of stages.
            keys = whole_begin + tl.arange(0, BLOCK_N)
            page, key = page_of(
                keys + leftpad, keys < rows_k, table_ptr, lies_in, page_size, page_factor, page_shift, flags
            )  # fmt: skip
            for start in tl.range(whole_begin, whole_end, BLOCK_N):
                keys = start + BLOCK_N + tl.arange(0, BLOCK_N)
                next_page, next_key = page_of(
                    keys + leftpad, keys < rows_k, table_ptr, lies_in, page_size, page_factor, page_shift, flags
                )  # fmt: skip
                acc, row_max, row_sum = attend_cached(
                    acc, row_max, row_sum, q, k_ptr, v_ptr, start, page, key,
                    stride_kb, stride_kn, stride_vb, stride_vn, width_qk, width_v,
                    rows, rows_k, first, last, unit, scale, softcap, slopes, distance, flags,
                    False, PADDED, EXTRAS, BLOCK_N, P0, P1, P2,
                )  # fmt: skip
                page = next_page
                key = next_key
        else:
            whole_end = whole_begin
        whole = whole_end - whole_begin
        # A step or two: nothing to fetch ahead, and nothing to hold in registers while the other loop runs.
        for step in tl.range(begin, end - whole, BLOCK_N, num_stages=1, disable_licm=True):
            start = tl.where(step < whole_begin, step, step + whole)
            keys = start + tl.arange(0, BLOCK_N)
            page, key = page_of(
                keys + leftpad, keys < rows_k, table_ptr, lies_in, page_size, page_factor, page_shift, flags
            )  # fmt: skip
            acc, row_max, row_sum = attend_cached(
                acc, row_max, row_sum, q, k_ptr, v_ptr, start, page, key, stride_kb, stride_kn, stride_vb, stride_vn,
                width_qk, width_v, rows, rows_k, first, last, unit, scale, softcap, slopes, distance, flags,
                True, PADDED, EXTRAS, BLOCK_N, P0, P1, P2,
            )  # fmt: skip

        factor = tl.full([BLOCK_M], 1.0, tl.float32) * tl.load(v_scale_ptr + head_kv, mask=has_scales, other=1.0)
        if splits == 1:
            sinks = tl.load(sinks_ptr + head, mask=inside & ((flags & SINKS) != 0), other=float("-inf")) * LOG2E
            correction, row_max, row_sum = with_sink(row_max, row_sum, sinks)
            factor *= correction
        acc = scaled(acc, factor / divisor_of(row_sum), P1, P2)
        if splits == 1:
            lse = log_sum_exp(row_max, row_sum)
            out_ptr += batch_q * stride_ob
            store_rows(out_ptr, row * stride_om + head_64 * stride_oh, inside, width_v, acc, P0, P1, P2, PADDED)
            lse_ptr += batch_q * stride_lb
            tl.store(lse_ptr + head_64 * stride_lh + row, lse, mask=inside & ((flags & LSE) != 0))
        else:
            place = split * rows_total + (batch_q * heads + head_64) * rows_head + row
            store_rows(partial_ptr, place * stride_pm, inside, width_v, acc, P0, P1, P2, PADDED)
            tl.store(partial_softmax_ptr + place, row_max, mask=inside)
            tl.store(partial_softmax_ptr + splits * rows_total + place, row_sum, mask=inside)


@triton.jit
def attn_decode_reduce(
    partial_ptr, partial_softmax_ptr, out_ptr, lse_ptr, sinks_ptr, cu_q_ptr,
    stride_pm, stride_ob, stride_oh, stride_om, stride_lb, stride_lh,
    splits, rows_head, rows_total, heads, seqlen_q, width_v, flags,
    BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr, MAX_SPLITS: tl.constexpr,
):  # fmt: skip
    """Combines the parts that attn_decode left: out is their mean, weighted by the sums of their exponentials.
    The grid is (seqlen_q * heads * batch, cdiv(width_v, BLOCK_D)), a program for each row; arguments as there.

    Args:
        BLOCK_S, BLOCK_D: how many parts are read at once, and how many of their columns.
        MAX_SPLITS: there are no more.
    """
    row = tl.program_id(0) % seqlen_q
    plane = tl.program_id(0) // seqlen_q
    head = plane % heads
    batch_q, start_q, rows_q = sequence(plane // heads, seqlen_q, cu_q_ptr, cu_q_ptr, flags, False)
    if row < rows_q:
        row_q = start_q + row
        place = (batch_q * heads + head) * rows_head + row_q
        every = tl.arange(0, MAX_SPLITS)
        sums_ptr = partial_softmax_ptr + splits * rows_total
        maxima = tl.load(partial_softmax_ptr + place + every * rows_total, mask=every < splits, other=float("-inf"))
        sums = tl.load(sums_ptr + place + every * rows_total, mask=every < splits, other=0.0)
        row_max = tl.max(maxima, 0)
        shift = tl.where(row_max == float("-inf"), 0.0, row_max)
        row_sum = tl.sum(sums * tl.math.exp2(maxima - shift), 0)
        sink = tl.load(sinks_ptr + head, mask=(flags & SINKS) != 0, other=float("-inf")) * LOG2E
        correction, row_max, row_sum = with_sink(row_max, row_sum, sink)
        factor = correction / divisor_of(row_sum)

        columns = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
        there = columns < width_v
        acc = tl.zeros([BLOCK_S, BLOCK_D], tl.float32)
        for first in tl.range(0, splits, BLOCK_S):
            parts = first + tl.arange(0, BLOCK_S)
            places = place + parts * rows_total
            largest = tl.load(partial_softmax_ptr + places, mask=parts < splits, other=float("-inf"))
            weight = tl.load(sums_ptr + places, mask=parts < splits, other=0.0) * tl.math.exp2(largest - shift) * factor
            addresses = partial_ptr + (places * stride_pm)[:, None] + columns[None, :]
            part = tl.load(addresses, mask=(weight != 0.0)[:, None] & there[None, :], other=0.0)
            acc += part * weight[:, None]
        out = tl.sum(acc, 0)
        out_ptr += batch_q * stride_ob + head.to(tl.int64) * stride_oh + row_q * stride_om
        tl.store(out_ptr + columns, out.to(out_ptr.dtype.element_ty), mask=there)
        if (flags & LSE) != 0 and tl.program_id(1) == 0:
            lse = log_sum_exp(row_max, row_sum)
            tl.store(lse_ptr + batch_q * stride_lb + head.to(tl.int64) * stride_lh + row_q, lse)
