"""Attention forward: out = softmax(sm_scale * q k^T + mask) v, and the log-sum-exp of each row.

One program computes BLOCK_M rows of one head. It walks over the keys in blocks of BLOCK_N and keeps, for each row, the
largest score so far and the sum of exponentials relative to it: the online softmax of FlashAttention-2 (Dao, 2023,
arXiv:2307.08691, section 3.1, algorithm 1), whose output is divided once, at the end. Exponentials are taken in base 2:
exp(x) = exp2(x * log2(e)), and log2(e) is folded into the scale.

Offsets are 64 bits wide and made in three steps: the block's start, a row's offset, the column. So any stride is right,
and the columns become constants in the load instructions, which need no registers: that is what keeps the images for
unaligned tensors, whose loads are one element wide, from spilling.
"""

import triton
import triton.language as tl


@triton.jit
def attend_to_keys(
    acc, row_max, row_sum, q, k_ptr, v_ptr, stride_kn, stride_vn, begin, end, seqlen_k, rows, scale,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Adds the keys [begin, end) to the running softmax of a block of rows; returns it and the pointers to key `end`.

    Args:
        acc: [BLOCK_M, HEAD_DIM] fp32, the output so far, not yet divided by row_sum.
        row_max, row_sum: [BLOCK_M] fp32, the largest score (in base 2) and the sum of exponentials relative to it.
        q: [BLOCK_M, HEAD_DIM], the queries.
        k_ptr, v_ptr: key and value number `begin` of the head.
        rows: [BLOCK_M], the rows' numbers.
        scale: of the scores, in base 2; not negative.
        MASKED: some key of the range must be left out: beyond seqlen_k or, if CAUSAL, after its row.
    """
    dims = tl.arange(0, HEAD_DIM)
    keys = tl.arange(0, BLOCK_N)
    k_rows = keys[None, :] * stride_kn
    v_rows = keys[:, None] * stride_vn
    # Beside the other loop the masked one takes a step or two: what a compiler moves out of it saves nothing, and holds
    # registers while the other runs. Alone it keeps unaligned tensors' addresses out of registers, which are scarce.
    for start in tl.range(begin, end, BLOCK_N, disable_licm=MASKED):
        inside = start + keys < seqlen_k
        if MASKED:
            k = tl.load(k_ptr + k_rows + dims[:, None], mask=inside[None, :], other=0.0)
        else:
            k = tl.load(k_ptr + k_rows + dims[:, None])
        scores = tl.dot(q, k)
        if MASKED:
            seen = inside[None, :]
            if CAUSAL:
                seen = seen & ((start + keys)[None, :] <= rows[:, None])
            # Scaled before it is masked, since -inf * 0 is NaN. The maximum is never -inf, which would make NaN too:
            # the first block holds key 0, and every row sees that.
            scores = tl.where(seen, scores * scale, float("-inf"))
            new_max = tl.maximum(row_max, tl.max(scores, 1))
            p = tl.math.exp2(scores - new_max[:, None])
        else:
            # As the scale is not negative, the largest score stays the largest: scale and subtract in one operation.
            new_max = tl.maximum(row_max, tl.max(scores, 1) * scale)
            p = tl.math.exp2(scores * scale - new_max[:, None])
        correction = tl.math.exp2(row_max - new_max)
        row_max = new_max
        row_sum = row_sum * correction + tl.sum(p, 1)
        acc = acc * correction[:, None]
        if MASKED:
            v = tl.load(v_ptr + v_rows + dims[None, :], mask=inside[:, None], other=0.0)
        else:
            v = tl.load(v_ptr + v_rows + dims[None, :])
        acc = tl.dot(p.to(v.dtype), v, acc)
        k_ptr += BLOCK_N * stride_kn
        v_ptr += BLOCK_N * stride_vn
    return acc, row_max, row_sum, k_ptr, v_ptr


@triton.jit
def attn_fwd(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, sm_scale,
    stride_qb, stride_qh, stride_qm, stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn, stride_ob, stride_oh, stride_om,
    heads, heads_per_kv, seqlen_q, seqlen_k, want_lse,
    HEAD_DIM: tl.constexpr, CAUSAL: tl.constexpr, UNMASKED_LOOP: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Attention forward; the grid is (cdiv(seqlen_q, BLOCK_M) * heads * batch,).

    Shapes: q, out [batch, heads, seqlen_q, HEAD_DIM]; k, v [batch, heads / heads_per_kv, seqlen_k, HEAD_DIM]; lse
    [batch, heads, seqlen_q] fp32, contiguous, natural logarithms, written unless want_lse is 0. Strides count elements
    and are 64 bits wide: of batch (b), head (h) and row (m, n, o); the last dimension is contiguous. CAUSAL: row i sees
    the keys j <= i. A row that sees no key (seqlen_k is 0) gets zeros and a log-sum-exp of -inf. UNMASKED_LOOP: blocks
    of keys that need no mask have a loop of their own, for speed; without it, the code is half as long.
    """
    # A grid's first dimension takes 2^31 blocks, the others 65,535. Neighbours share a head, so its keys in the cache.
    blocks = tl.cdiv(seqlen_q, BLOCK_M)
    block = tl.program_id(0) % blocks
    plane = (tl.program_id(0) // blocks).to(tl.int64)
    if CAUSAL:
        block = blocks - 1 - block  # longest first, so that the last to start are short
    batch = plane // heads
    head = plane % heads
    head_kv = head // heads_per_kv

    first_row = block * BLOCK_M
    q_ptr += batch * stride_qb + head * stride_qh + first_row.to(tl.int64) * stride_qm
    k_ptr += batch * stride_kb + head_kv * stride_kh
    v_ptr += batch * stride_vb + head_kv * stride_vh
    out_ptr += batch * stride_ob + head * stride_oh + first_row.to(tl.int64) * stride_om

    dims = tl.arange(0, HEAD_DIM)
    tile_rows = tl.arange(0, BLOCK_M)
    rows = first_row + tile_rows
    inside = rows < seqlen_q
    q = tl.load(q_ptr + tile_rows[:, None] * stride_qm + dims[None, :], mask=inside[:, None], other=0.0)
    # The loops want a scale that is not negative; -scale * q k^T = scale * (-q) k^T, and negation is exact.
    q = q * tl.where(sm_scale < 0, -1.0, 1.0).to(q.dtype)
    scale = tl.abs(sm_scale) * 1.4426950408889634  # log2(e)

    acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)

    # [0, unmasked): blocks of keys that all rows see whole. [unmasked, end): the diagonal, the last block if not whole.
    unmasked = 0
    end = seqlen_k
    if CAUSAL:
        end = tl.minimum(end, first_row + BLOCK_M)
    if UNMASKED_LOOP:
        unmasked = seqlen_k // BLOCK_N * BLOCK_N
        if CAUSAL:
            unmasked = tl.minimum(unmasked, (first_row + 1) // BLOCK_N * BLOCK_N)
        acc, row_max, row_sum, k_ptr, v_ptr = attend_to_keys(
            acc, row_max, row_sum, q, k_ptr, v_ptr, stride_kn, stride_vn, 0, unmasked, seqlen_k, rows, scale,
            CAUSAL, False, HEAD_DIM, BLOCK_N,
        )  # fmt: skip
    acc, row_max, row_sum, k_ptr, v_ptr = attend_to_keys(
        acc, row_max, row_sum, q, k_ptr, v_ptr, stride_kn, stride_vn, unmasked, end, seqlen_k, rows, scale,
        CAUSAL, True, HEAD_DIM, BLOCK_N,
    )  # fmt: skip

    empty = row_sum == 0.0
    divisor = tl.where(empty, 1.0, row_sum)
    acc = acc * (1.0 / divisor)[:, None]
    tl.store(
        out_ptr + tile_rows[:, None] * stride_om + dims[None, :],
        acc.to(out_ptr.dtype.element_ty),
        mask=inside[:, None],
    )
    if want_lse:
        lse = tl.where(empty, float("-inf"), (row_max + tl.math.log2(divisor)) * 0.6931471805599453)  # ln(2)
        tl.store(lse_ptr + plane * seqlen_q + rows, lse, mask=inside)
