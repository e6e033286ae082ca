"""Attention backward of what is added to scores: the gradients of the bias and of the sinks (attn_bwd.py has the
words).

    dbias = ds, summed over what the bias is broadcast over,   dsink = -sum over rows of (exp(sink - lse) * D).

Each element is summed by one program in one order, as those of dq, dk and dv. So dbias computes scores and dp once more
instead of adding to memory from many programs: two products of seven, for the calls that want it.
"""

import triton
import triton.language as tl
from dropout import factors, seed_of
from rows import inner_in_chunks
from scores import LOG2E, slope_of
from sequences import lse_place, sequence
from softmax import shift_of, weights_of
from window import bounds, span


@triton.jit
def attn_bwd_dbias(
    q_ptr, k_ptr, v_ptr, bias_ptr, slopes_ptr, seed_ptr, offset_ptr, cu_q_ptr, cu_k_ptr, used_q_ptr, used_k_ptr,
    sm_scale, softcap, keep_scale, seed, offset, stride_qb, stride_qh, stride_qm, stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn, stride_bb, stride_bh, stride_bm, stride_sb,
    batches,  # noqa: ARG001  as the other kernels' arguments
    heads, heads_per_kv, seqlen_q, seqlen_k, width_qk, width_v, window_left, window_right, threshold, flags,
    dout_ptr, dbias_ptr, lse_ptr, delta_ptr, stride_gb, stride_gh, stride_gm, stride_eb, stride_eh, stride_em,
    stride_lb, stride_lh, stride_db, stride_dh, sums_b, sums_h,
    CHUNK: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """dbias [batch / sums_b, heads / sums_h, seqlen_q, seqlen_k] as q; its strides are e.

    The grid is (cdiv(seqlen_q, BLOCK_M) * cdiv(seqlen_k, BLOCK_N) * heads / sums_h * batch / sums_b,). Arguments as of
    attn_bwd_dq, which has left delta.

    Args:
        sums_b, sums_h: over how many batches and heads each element is summed: 1 or all.
    """
    EXACT: tl.constexpr = q_ptr.dtype.element_ty == tl.float32
    blocks_m = tl.cdiv(seqlen_q, BLOCK_M)
    blocks_n = tl.cdiv(seqlen_k, BLOCK_N)
    block = tl.program_id(0) % (blocks_m * blocks_n)
    plane_e = tl.program_id(0) // (blocks_m * blocks_n)
    first_row = block // blocks_n * BLOCK_M
    first_key = block % blocks_n * BLOCK_N
    planes_h = heads // sums_h
    plane_b = plane_e // planes_h
    plane_h = plane_e % planes_h
    local_q = tl.arange(0, BLOCK_M)
    local_k = tl.arange(0, BLOCK_N)
    rows = first_row + local_q
    keys = first_key + local_k
    seed, offset = seed_of(seed_ptr, offset_ptr, seed, offset, flags)
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for item in range(sums_b * sums_h):
        batch = plane_b * sums_b + item // sums_h
        head = plane_h * sums_h + item % sums_h
        head_kv = head // heads_per_kv
        batch_q, start_q, rows_q = sequence(batch, seqlen_q, cu_q_ptr, used_q_ptr, flags, False)
        batch_k, start_k, rows_k = sequence(batch, seqlen_k, cu_k_ptr, used_k_ptr, flags, True)
        inside_q = rows < rows_q
        inside_k = keys < rows_k
        shift, left, right = bounds(rows_q, rows_k, window_left, window_right, flags)
        first, last, begin, end, _whole_begin, _whole_end = span(
            first_row, first_row + BLOCK_M - 1, rows, shift, left, right, rows_k, BLOCK_N
        )
        last = tl.where(inside_q, last, -1)
        if (first_row < rows_q) & (first_key < end) & (first_key + BLOCK_N > begin):
            q_rows = q_ptr + batch_q * stride_qb + head.to(tl.int64) * stride_qh + (start_q + first_row) * stride_qm
            k_rows = k_ptr + batch_k * stride_kb + head_kv.to(tl.int64) * stride_kh + (start_k + first_key) * stride_kn
            v_rows = v_ptr + batch_k * stride_vb + head_kv.to(tl.int64) * stride_vh + (start_k + first_key) * stride_vn
            dout_rows = (
                dout_ptr + batch_q * stride_gb + head.to(tl.int64) * stride_gh + (start_q + first_row) * stride_gm
            )
            products = inner_in_chunks(
                q_rows, local_q * stride_qm, inside_q, k_rows, local_k * stride_kn, inside_k, width_qk, CHUNK
            )
            dp = inner_in_chunks(
                dout_rows, local_q * stride_gm, inside_q, v_rows, local_k * stride_vn, inside_k, width_v, CHUNK
            )
            delta_row = batch_q * stride_db + head.to(tl.int64) * stride_dh + start_q
            delta = tl.load(delta_ptr + delta_row + rows, mask=inside_q, other=0.0)
            batch_l, start_l = lse_place(batch, batch_q, start_q, flags)
            lse_row = batch_l * stride_lb + head.to(tl.int64) * stride_lh + start_l
            lse = tl.load(lse_ptr + lse_row + rows, mask=inside_q, other=0.0)
            seen = (keys[None, :] >= first[:, None]) & (keys[None, :] <= last[:, None])
            p, _ = weights_of(
                products, shift_of(lse, EXACT), sm_scale, softcap,
                bias_ptr + batch.to(tl.int64) * stride_bb + head.to(tl.int64) * stride_bh, stride_bm,
                slope_of(slopes_ptr, batch, stride_sb, head, flags, "any"), rows, keys, rows_k - rows_q,
                seen, seen, flags, EXACT, False, True, "any",
            )  # fmt: skip
            dp *= factors(
                keep_scale, seed, offset, threshold, batch * heads + head, rows, first_key, flags, BLOCK_N, "any"
            )
            total += p * (dp - delta[:, None])
    dbias_ptr += plane_b.to(tl.int64) * stride_eb + plane_h.to(tl.int64) * stride_eh
    tl.store(
        dbias_ptr + rows[:, None].to(tl.int64) * stride_em + keys[None, :], total.to(dbias_ptr.dtype.element_ty),
        mask=(rows < seqlen_q)[:, None] & (keys < seqlen_k)[None, :],
    )  # fmt: skip


@triton.jit
def attn_bwd_dsinks(
    sinks_ptr, dsinks_ptr, lse_ptr, delta_ptr, cu_q_ptr, used_q_ptr,
    stride_lb, stride_lh, stride_db, stride_dh, batches, seqlen_q, flags, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """dsinks [heads] fp32; the grid is (heads,). The other arguments are attn_bwd_dq's."""
    head = tl.program_id(0)
    sink = tl.load(sinks_ptr + head) * LOG2E
    total = tl.zeros([BLOCK_M], tl.float32)
    for batch in range(batches):
        batch_q, start, rows_q = sequence(batch, seqlen_q, cu_q_ptr, used_q_ptr, flags, False)
        batch_l, start_l = lse_place(batch, batch_q, start, flags)
        lse_rows = lse_ptr + batch_l * stride_lb + head.to(tl.int64) * stride_lh + start_l
        delta_rows = delta_ptr + batch_q * stride_db + head.to(tl.int64) * stride_dh + start
        for first_row in range(0, rows_q, BLOCK_M):
            rows = first_row + tl.arange(0, BLOCK_M)
            lse = tl.load(lse_rows + rows, mask=rows < rows_q, other=float("inf"))
            delta = tl.load(delta_rows + rows, mask=rows < rows_q, other=0.0)
            total -= tl.math.exp2(sink - shift_of(lse, False)) * delta
    tl.store(dsinks_ptr + head, tl.sum(total, 0))
