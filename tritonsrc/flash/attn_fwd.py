"""Attention forward: out = dropout(softmax(mask(score(q k^T)))) v, and the log-sum-exp of each row.

One program computes BLOCK_M rows of one head. It walks over the keys in blocks of BLOCK_N and keeps, for each row, the
largest score so far and the sum of exponentials relative to it: the online softmax (softmax.py) of FlashAttention-2
(Dao, 2023, arXiv:2307.08691, section 3.1, algorithm 1), whose output is divided once, at the end.

Which keys a row sees is a matter of numbers (window.py). Blocks that all rows see whole have a loop without masks; the
others, on both sides of these, share one with masks.

Offsets of pointers are 64 bits wide and made in three steps: the block's start, a row's offset, the column. So any
stride is right, and the columns become constants in the load instructions, which need no registers: that is what keeps
the images for unaligned tensors, whose loads are one element wide, from spilling.
"""

from typing import NamedTuple

import triton
import triton.language as tl
from dropout import factors, seed_of
from flags import LSE, SEED_OUT, SINKS
from rows import added, inner, inner_in_chunks, load_rows, scaled, store_rows, zeros
from scores import LOG2E, known, shaped, slope_of
from sequences import lse_place, place, sequence
from softmax import divisor_of, log_sum_exp, started, weighed, with_sink
from window import bounds, span


class Queries(NamedTuple):
    """A block of rows. q: [BLOCK_M, ...] pieces, or with CHUNK the address of the first; first, last: [BLOCK_M], the
    keys that each row sees."""

    q: tl.tensor
    stride: tl.tensor
    rows: tl.tensor
    inside: tl.tensor
    first: tl.tensor
    last: tl.tensor


class Keys(NamedTuple):
    """The keys and values of a sequence: `count` rows, of which width_qk and width_v columns count."""

    count: tl.tensor
    stride_k: tl.tensor
    stride_v: tl.tensor
    width_qk: tl.tensor
    width_v: tl.tensor


class Scores(NamedTuple):
    """What becomes of products (scores.shaped). scale is not negative where EXTRAS is "none" or "dropout"."""

    scale: tl.tensor
    softcap: tl.tensor
    bias_ptr: tl.tensor
    stride_bias: tl.tensor
    slope: tl.tensor
    distance: tl.tensor


class Dropout(NamedTuple):
    """What becomes of weights (dropout.factors)."""

    seed: tl.tensor
    offset: tl.tensor
    threshold: tl.tensor
    keep_scale: tl.tensor
    plane: tl.tensor


@triton.jit
def attend(
    acc, row_max, row_sum, block, k_ptr, v_ptr, row_k, start, keys, score, drop, flags,
    MASKED: tl.constexpr, PADDED: tl.constexpr, EXTRAS: tl.constexpr, BLOCK_N: tl.constexpr,
    P0: tl.constexpr, P1: tl.constexpr, P2: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Adds BLOCK_N keys to the running softmax of a block of rows.

    Args:
        acc: [BLOCK_M, ...] fp32 pieces, the output so far, not yet divided by row_sum.
        row_max, row_sum: [BLOCK_M] fp32, the largest score (in base 2) and the sum of exponentials relative to it.
        block: Queries.
        k_ptr, v_ptr: the first key and its value are row_k rows behind them.
        start: the number of the first key.
        keys, score, drop: Keys, Scores, Dropout.
        MASKED: some key must be left out: beyond the last, or for a row that does not see it.
    """
    places = start + tl.arange(0, BLOCK_N)
    inside = places < keys.count
    if CHUNK:
        products = inner_in_chunks(
            block.q, tl.arange(0, block.rows.shape[0]) * block.stride, block.inside, k_ptr + row_k * keys.stride_k,
            tl.arange(0, BLOCK_N) * keys.stride_k, inside, keys.width_qk, CHUNK,
        )  # fmt: skip
    else:
        k = load_rows(k_ptr, row_k, keys.stride_k, inside, keys.width_qk, BLOCK_N, P0, P1, P2, True, MASKED, PADDED)
        products = inner(block.q, k, P1, P2)
    # Neither a bias nor a soft cap; as the scale is not negative, the largest score stays the largest.
    PLAIN: tl.constexpr = EXTRAS == "none" or EXTRAS == "dropout"
    if PLAIN:
        scores = products
        factor = score.scale * LOG2E
        if MASKED:
            # Scaled before it is masked, since -inf * 0 is NaN.
            scores *= factor
            factor = 1.0
    else:
        factor = LOG2E
        scores, _ = shaped(
            products, score.scale, score.softcap, score.bias_ptr, score.stride_bias, score.slope, block.rows, places,
            score.distance, (block.first <= block.last)[:, None] & inside[None, :], flags, EXTRAS,
        )  # fmt: skip
    if MASKED:
        seen = (places[None, :] >= block.first[:, None]) & (places[None, :] <= block.last[:, None])
        scores = tl.where(seen, scores, float("-inf"))
    p, correction, row_max, row_sum = weighed(row_max, row_sum, scores, factor, MASKED or not PLAIN)
    if EXTRAS == "dropout" or EXTRAS == "any":
        p *= factors(
            drop.keep_scale, drop.seed, drop.offset, drop.threshold, drop.plane, block.rows, start, flags, BLOCK_N,
            EXTRAS,
        )  # fmt: skip
    acc = scaled(acc, correction, P1, P2)
    v = load_rows(v_ptr, row_k, keys.stride_v, inside, keys.width_v, BLOCK_N, P0, P1, P2, False, MASKED, PADDED)
    acc = added(p.to(v[0].dtype), v, acc, P1, P2)
    return acc, row_max, row_sum


@triton.jit
def attn_fwd(
    q_ptr, k_ptr, v_ptr, bias_ptr, slopes_ptr, seed_ptr, offset_ptr, cu_q_ptr, cu_k_ptr, used_q_ptr, used_k_ptr,
    sm_scale, softcap, keep_scale, seed, offset, stride_qb, stride_qh, stride_qm, stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn, stride_bb, stride_bh, stride_bm, stride_sb,
    batches, heads, heads_per_kv, seqlen_q, seqlen_k, width_qk, width_v, window_left, window_right, threshold, flags,
    out_ptr, lse_ptr, sinks_ptr, seed_out_ptr, offset_out_ptr, stride_ob, stride_oh, stride_om, stride_lb, stride_lh,
    tiles,
    P0: tl.constexpr, P1: tl.constexpr, P2: tl.constexpr, EXTRAS: tl.constexpr, PADDED: tl.constexpr,
    UNMASKED_LOOP: tl.constexpr, CHUNK: tl.constexpr, ADVANCE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Attention forward: `tiles` blocks of rows (sequences.place), a program each.

    Shapes: q, out [batch, heads, seqlen_q, width]; k, v [batch, heads / heads_per_kv, seqlen_k, width]; lse [batch,
    heads, seqlen_q] fp32, natural logarithms. With the flag CU_Q or CU_K the batch of those tensors is 1, and sequences
    lie one after another in their rows (sequences.py); with LSE_BY_SEQUENCE not those of lse. Strides count elements
    and are 64 bits wide: of batch (b), head (h) and row (m, n, o); the last dimension is contiguous. A row that sees no
    key gets zeros and a log-sum-exp of -inf; rows beyond a sequence's length are not written.

    Args:
        sinks_ptr: [heads] fp32, with SINKS: the score of a key without a value, which each row sees besides.
        bias_ptr: [batch, heads, seqlen_q, seqlen_k] as q, with BIAS; its strides may be 0.
        slopes_ptr: fp32, of batch b and head h at b * stride_sb + h, with ALIBI.
        seed, offset: of dropout.py; with SEED or OFFSET, what lies at seed_ptr or offset_ptr is added. With SEED_OUT
            the sums are written to seed_out_ptr and offset_out_ptr, if EXTRAS is "dropout" or "any".
        keep_scale, threshold: 1 / (1 - probability) and 2^32 * probability of dropout.
        sm_scale: if it is below 0, EXTRAS is neither "none" nor "dropout".
        softcap: of the scores, with SOFTCAP, else anything but 0.
        window_left, window_right: how many keys before and after its own a row sees.
        EXTRAS: what may happen to scores (scores.py).
        PADDED: width_qk or width_v may be less than the pieces together.
        UNMASKED_LOOP: blocks of keys that need no mask have a loop of their own, for speed; without it, the code is
            half as long.
        CHUNK: columns at a time of rows that registers do not hold (rows.inner_in_chunks); 0: whole rows.
        ADVANCE: in the loop without masks the places of keys and values are summed up, block by block, not multiplied
            anew: fewer instructions, and a few registers more.
    """
    KNOWN: tl.constexpr = known(EXTRAS, q_ptr.dtype.element_ty, UNMASKED_LOOP)
    if KNOWN == "dropout" or KNOWN == "any":
        seed, offset = seed_of(seed_ptr, offset_ptr, seed, offset, flags)
        if (flags & SEED_OUT) != 0 and tl.program_id(0) == 0:
            tl.store(seed_out_ptr, seed)
            tl.store(offset_out_ptr, offset)
    batch, head, number = place(tl.program_id(0), tiles, heads, batches, seqlen_q, cu_q_ptr, flags, BLOCK_M, False)
    plane = batch * heads + head
    head_kv = head // heads_per_kv
    batch_q, start_q, rows_q = sequence(batch, seqlen_q, cu_q_ptr, used_q_ptr, flags, False)
    batch_k, start_k, rows_k = sequence(batch, seqlen_k, cu_k_ptr, used_k_ptr, flags, True)
    # Under a causal mask the last rows see most: longest first, so that the last to start are short.
    first_row = (tl.cdiv(rows_q, BLOCK_M) - 1 - number) * BLOCK_M
    if first_row >= 0:
        row_q = start_q + first_row
        q_ptr += batch_q * stride_qb + head.to(tl.int64) * stride_qh + row_q * stride_qm
        k_ptr += batch_k * stride_kb + head_kv.to(tl.int64) * stride_kh + start_k * stride_kn
        v_ptr += batch_k * stride_vb + head_kv.to(tl.int64) * stride_vh + start_k * stride_vn
        bias_ptr += batch.to(tl.int64) * stride_bb + head.to(tl.int64) * stride_bh

        column = tl.arange(0, BLOCK_M)
        rows = first_row + column
        inside = rows < rows_q
        if CHUNK:
            q = q_ptr
        else:
            q = load_rows(q_ptr, 0, stride_qm, inside, width_qk, BLOCK_M, P0, P1, P2, False, True, PADDED)
        slope = slope_of(slopes_ptr, batch, stride_sb, head, flags, KNOWN)

        acc = zeros(BLOCK_M, P0, P1, P2)
        row_max, row_sum = started(BLOCK_M)
        shift, left, right = bounds(rows_q, rows_k, window_left, window_right, flags)
        first, last, begin, end, whole_begin, whole_end = span(
            first_row, first_row + BLOCK_M - 1, rows, shift, left, right, rows_k, BLOCK_N
        )
        if KNOWN == "bias" or KNOWN == "any":
            last = tl.where(inside, last, -1)  # other rows have no bias
        block = Queries(q, stride_qm, rows, inside, first, last)
        keys = Keys(rows_k, stride_kn, stride_vn, width_qk, width_v)
        score = Scores(sm_scale, softcap, bias_ptr, stride_bm, slope, rows_k - rows_q)
        drop = Dropout(seed, offset, threshold, keep_scale, plane)
        if UNMASKED_LOOP:
            k_at = whole_begin * stride_kn
            v_at = whole_begin * stride_vn
            for start in tl.range(whole_begin, whole_end, BLOCK_N):
                acc, row_max, row_sum = attend(
                    acc, row_max, row_sum, block, k_ptr + k_at if ADVANCE else k_ptr,
                    v_ptr + v_at if ADVANCE else v_ptr, 0 if ADVANCE else start, start, keys, score, drop, flags,
                    False, PADDED, KNOWN, BLOCK_N, P0, P1, P2, CHUNK,
                )  # fmt: skip
                if ADVANCE:
                    k_at += BLOCK_N * stride_kn
                    v_at += BLOCK_N * stride_vn
        else:
            whole_end = whole_begin
        # The masked loop takes a step or two on each side. What a compiler moves out of it saves nothing, and holds
        # registers while the other loop runs.
        whole = whole_end - whole_begin
        for step in tl.range(begin, end - whole, BLOCK_N, disable_licm=True):
            start = tl.where(step < whole_begin, step, step + whole)
            acc, row_max, row_sum = attend(
                acc, row_max, row_sum, block, k_ptr, v_ptr, start, start, keys, score, drop, flags,
                True, PADDED, KNOWN, BLOCK_N, P0, P1, P2, CHUNK,
            )  # fmt: skip

        if flags & SINKS:
            correction, row_max, row_sum = with_sink(row_max, row_sum, tl.load(sinks_ptr + head) * LOG2E)
            acc = scaled(acc, correction, P1, P2)
        acc = scaled(acc, 1.0 / divisor_of(row_sum), P1, P2)
        # Where results go is computed here: addresses known before the loops hold registers in them.
        out_ptr += batch_q * stride_ob + head.to(tl.int64) * stride_oh + row_q * stride_om
        store_rows(out_ptr, column * stride_om, inside, width_v, acc, P0, P1, P2, PADDED)
        if flags & LSE:
            batch_l, start_l = lse_place(batch, batch_q, start_q, flags)
            lse_ptr += batch_l * stride_lb + head.to(tl.int64) * stride_lh + start_l + first_row
            tl.store(lse_ptr + column, log_sum_exp(row_max, row_sum), mask=inside)
