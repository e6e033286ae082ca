"""What comes before and after attn_bwd_hopper.py: its terms and sums, which lie in places of their own, a sequence's at
a multiple of SPAN rows; and dq from the sums."""

import triton
import triton.language as tl
from flags import CU_Q, SINKS
from means import mean_place
from scores import LOG2E
from sequences import lse_place, place, sequence

LEAST_SCALE = tl.constexpr(1e-20)  # what log-sum-exps are divided by, where the scale is less: all scores are as 0 then


@triton.jit
def rows_of(batch, head, start_q, first_row, seqlen_q, places, flags, SPAN: tl.constexpr):
    """Where a row has its terms and sums, of `places` of each head."""
    before = tl.where((flags & CU_Q) != 0, start_q // SPAN + batch, batch.to(tl.int64) * tl.cdiv(seqlen_q, SPAN))
    return head.to(tl.int64) * places + before * SPAN + first_row


@triton.jit
def attn_bwd_delta(
    out_ptr, dout_ptr, lse_ptr, cu_q_ptr, used_q_ptr, sm_scale,
    stride_ob, stride_oh, stride_om, stride_gb, stride_gh, stride_gm, stride_lb, stride_lh,
    batches, heads, seqlen_q, width_v, flags, terms_ptr, dq_sums_ptr, turns_ptr, places,
    is_ordered, tiles, HEAD_DIM: tl.constexpr, SPAN: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """The terms of rows, [2, heads, places] fp32: minus the log-sum-exp divided by the scale, and minus delta =
    rowsum(out * dout); and zeros for the sums of ds and dq, [2, heads, places] and [heads, places, HEAD_DIM] fp32,
    and if is_ordered for turns, [heads, places / 64, 2].

    Rows beyond a sequence, and those that see no key, get such terms that all their weights are 0. The grid is (tiles,
    SPAN / BLOCK_M), tiles as of sequences.place() with SPAN rows. Other arguments as of attn_bwd_dq.
    """
    batch, head, block = place(tl.program_id(0), tiles, heads, batches, seqlen_q, cu_q_ptr, flags, SPAN, False)
    batch_q, start_q, rows_q = sequence(batch, seqlen_q, cu_q_ptr, used_q_ptr, flags, False)
    if block * SPAN >= rows_q:
        return
    first_row = block * SPAN + tl.program_id(1) * BLOCK_M
    local = tl.arange(0, BLOCK_M)
    first = rows_of(batch, head, start_q, first_row, seqlen_q, places, flags, SPAN)
    if is_ordered:
        for half in tl.static_range(BLOCK_M // 32):
            tl.store(turns_ptr + first // 32 + half, 0)
    rows = first_row + local
    inside = rows < rows_q
    column = tl.arange(0, HEAD_DIM)
    wanted = inside[:, None] & (column < width_v)[None, :]
    out_ptr += batch_q * stride_ob + head.to(tl.int64) * stride_oh + start_q * stride_om
    dout_ptr += batch_q * stride_gb + head.to(tl.int64) * stride_gh + start_q * stride_gm
    out = tl.load(out_ptr + rows[:, None] * stride_om + column[None, :], mask=wanted, other=0.0)
    dout = tl.load(dout_ptr + rows[:, None] * stride_gm + column[None, :], mask=wanted, other=0.0)
    delta = tl.sum(out.to(tl.float32) * dout.to(tl.float32), 1)
    batch_l, start_l = lse_place(batch, batch_q, start_q, flags)
    lse_ptr += batch_l * stride_lb + head.to(tl.int64) * stride_lh + start_l
    lse = tl.load(lse_ptr + rows, mask=inside, other=float("-inf"))
    lse = tl.where(lse == float("-inf"), float("inf"), lse)
    at = first + local
    tl.store(terms_ptr + at, -lse / tl.maximum(sm_scale, LEAST_SCALE))
    tl.store(terms_ptr + heads.to(tl.int64) * places + at, -delta)
    for part in tl.static_range(2):
        tl.store(terms_ptr + (2 + part) * heads.to(tl.int64) * places + at, tl.zeros([BLOCK_M], tl.float32))
    zeros = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    tl.store(dq_sums_ptr + at[:, None] * HEAD_DIM + column[None, :], zeros)


@triton.jit
def attn_bwd_finish(
    dq_ptr, lse_ptr, delta_ptr, sinks_ptr, cu_q_ptr, used_q_ptr, sm_scale,
    stride_dqb, stride_dqh, stride_dqm, stride_lb, stride_lh, stride_db, stride_dh,
    batches, heads, heads_per_kv, seqlen_q, width_qk, flags, terms_ptr, dq_sums_ptr, means_ptr, places,
    tiles, HEAD_DIM: tl.constexpr, SPAN: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """dq, from the sums of ds k and of ds: less what the latter missed times the mean key (means.py). With sinks, also
    delta as it should be. Arguments and grid as of attn_bwd_delta and attn_bwd_dq."""
    batch, head, block = place(tl.program_id(0), tiles, heads, batches, seqlen_q, cu_q_ptr, flags, SPAN, False)
    batch_q, start_q, rows_q = sequence(batch, seqlen_q, cu_q_ptr, used_q_ptr, flags, False)
    first_row = block * SPAN + tl.program_id(1) * BLOCK_M
    if first_row >= rows_q:
        return
    local = tl.arange(0, BLOCK_M)
    rows = first_row + local
    inside = rows < rows_q
    column = tl.arange(0, HEAD_DIM)
    at = rows_of(batch, head, start_q, first_row, seqlen_q, places, flags, SPAN) + local
    surplus = tl.load(terms_ptr + 2 * heads.to(tl.int64) * places + at)
    surplus += tl.load(terms_ptr + 3 * heads.to(tl.int64) * places + at)
    if flags & SINKS:
        delta = -tl.load(terms_ptr + heads.to(tl.int64) * places + at)
        batch_l, start_l = lse_place(batch, batch_q, start_q, flags)
        lse_ptr += batch_l * stride_lb + head.to(tl.int64) * stride_lh + start_l
        lse = tl.load(lse_ptr + rows, mask=inside, other=0.0)
        lse = tl.where(lse == float("-inf"), float("inf"), lse)
        sunk = tl.math.exp2(tl.load(sinks_ptr + head) * LOG2E - lse * LOG2E)
        delta = surplus + (1.0 - sunk) * delta
        surplus -= sunk * delta
        tl.store(delta_ptr + batch_q * stride_db + head.to(tl.int64) * stride_dh + start_q + rows, delta, mask=inside)
    head_kv = head // heads_per_kv
    heads_kv = heads // heads_per_kv
    means_ptr += mean_place(batch, head_kv, heads_kv, start_q, first_row, seqlen_q, flags, SPAN) * width_qk
    mean = tl.load(means_ptr + column, mask=column < width_qk, other=0.0)
    dq = tl.load(dq_sums_ptr + at[:, None] * HEAD_DIM + column[None, :])
    dq = (dq - surplus[:, None] * mean[None, :]) * sm_scale
    dq_ptr += batch_q * stride_dqb + head.to(tl.int64) * stride_dqh + start_q * stride_dqm
    wanted = inside[:, None] & (column < width_qk)[None, :]
    tl.store(dq_ptr + rows[:, None] * stride_dqm + column[None, :], dq.to(dq_ptr.dtype.element_ty), mask=wanted)
