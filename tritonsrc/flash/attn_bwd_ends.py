"""What comes before and after attn_bwd_hopper.py: its terms and sums, which lie in places of their own, a sequence's at
a multiple of SPAN rows; and dq from the sums.

The first kernel also sums keys, and the last computes mean keys: two kernels less than attn_bwd_sums and
attn_bwd_means, each of which would wait for the one before it.
"""

import triton
import triton.language as tl
from flags import CU_K, CU_Q, SINKS
from means import AT_ONCE, SAMPLE, held, in_parts, leaning, sampled
from scores import LOG2E
from sequences import lse_place, place, sequence
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from window import bounds

LEAST_SCALE = tl.constexpr(1e-20)  # what log-sum-exps are divided by, where the scale is less: all scores are as 0 then


@triton.jit
def rows_of(batch, head, start_q, first_row, seqlen_q, places, flags, SPAN: tl.constexpr):
    """Where a row has its terms and sums, of `places` of each head."""
    before = tl.where((flags & CU_Q) != 0, start_q // SPAN + batch, batch.to(tl.int64) * tl.cdiv(seqlen_q, SPAN))
    return head.to(tl.int64) * places + before * SPAN + first_row


@triton.jit
def part_of(keys, PARTS: tl.constexpr, SPAN: tl.constexpr):
    """How many keys a part has: of short sequences more than a sixteenth, as small parts take as long to sum."""
    return tl.maximum(tl.cdiv(keys, PARTS), SPAN)


@triton.jit
def sum_part(
    number, parts, k_ptr, cu_k_ptr, used_k_ptr, stride_kb, stride_kh, stride_kn, heads_kv, seqlen_k, width, flags,
    sums_ptr, PARTS: tl.constexpr, SPAN: tl.constexpr, BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr,
):  # fmt: skip
    """What attn_bwd_sums writes of a part of a sequence's keys; here of all columns."""
    part = number % parts
    head = number // parts % heads_kv
    batch = number // parts // heads_kv
    batch_k, start_k, keys = sequence(batch, seqlen_k, cu_k_ptr, used_k_ptr, flags, True)
    size = part_of(keys, PARTS, SPAN)
    begin = part * size
    end = tl.minimum(begin + size, keys)
    columns = tl.arange(0, HEAD_DIM)
    k_ptr += batch_k * stride_kb + head.to(tl.int64) * stride_kh + start_k * stride_kn
    total = tl.zeros([HEAD_DIM], tl.float32)
    squares = tl.zeros([HEAD_DIM], tl.float32)
    for start in tl.range(begin, end, BLOCK_N):
        rows = start + tl.arange(0, BLOCK_N)
        inside = (rows < end)[:, None] & (columns < width)[None, :]
        k = tl.load(k_ptr + rows[:, None] * stride_kn + columns[None, :], mask=inside, other=0.0).to(tl.float32)
        added = tl.sum(k, 0)
        total += added
        apart = tl.where(inside, k - (added / tl.minimum(end - start, BLOCK_N).to(tl.float32))[None, :], 0.0)
        squares += tl.sum(apart * apart, 0)
    sums_ptr += ((batch * heads_kv + head).to(tl.int64) * PARTS + part) * 2 * width
    tl.store(sums_ptr + columns, total, mask=columns < width)
    tl.store(sums_ptr + width + columns, squares, mask=columns < width)


@triton.jit
def attn_bwd_delta(
    k_ptr, out_ptr, dout_ptr, lse_ptr, cu_q_ptr, cu_k_ptr, used_q_ptr, used_k_ptr, sm_scale,
    stride_kb, stride_kh, stride_kn, stride_ob, stride_oh, stride_om, stride_gb, stride_gh, stride_gm,
    stride_lb, stride_lh, batches, heads, heads_kv, seqlen_q, seqlen_k, width_qk, width_v, flags,
    terms_ptr, dq_sums_ptr, sums_ptr, order_ptr, arrivals_ptr, places, is_ordered, tiles, parts,
    HEAD_DIM: tl.constexpr, PARTS: tl.constexpr, SPAN: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """The terms of rows, [2, heads, places] fp32: minus the log-sum-exp divided by the scale, and minus delta =
    rowsum(out * dout); and zeros for the sums of ds and dq, [2, heads, places] and [heads, places, HEAD_DIM] fp32,
    for the numbers of arrivals and of turns taken, [batches * heads_kv + 1], and if is_ordered for those of adds,
    order [heads, places / 64]. Besides, the sums of keys that attn_bwd_sums describes, of `parts` parts.

    Rows beyond a sequence, and those that see no key, get such terms that all their weights are 0. The first batches *
    heads_kv * parts programs sum keys, the others, SPAN / BLOCK_M for each of `tiles`, have rows; tiles as of
    sequences.place() with SPAN rows. Other arguments as of attn_bwd_dq.
    """
    gdc_launch_dependents()
    summing = batches * heads_kv * parts
    program = tl.program_id(0) - summing
    if program < 0:
        if program + summing == 0:
            tl.store(arrivals_ptr + batches * heads_kv, 0)
        sum_part(
            program + summing, parts, k_ptr, cu_k_ptr, used_k_ptr, stride_kb, stride_kh, stride_kn, heads_kv, seqlen_k,
            width_qk, flags, sums_ptr, PARTS, SPAN, BLOCK_M, HEAD_DIM,
        )  # fmt: skip
        return
    tile = program // (SPAN // BLOCK_M)
    batch, head, block = place(tile, tiles, heads, batches, seqlen_q, cu_q_ptr, flags, SPAN, False)
    batch_q, start_q, rows_q = sequence(batch, seqlen_q, cu_q_ptr, used_q_ptr, flags, False)
    if block * SPAN >= rows_q:
        return
    first_row = block * SPAN + program % (SPAN // BLOCK_M) * BLOCK_M
    if first_row == 0:  # several heads that share keys write the same
        tl.store(arrivals_ptr + batch * heads_kv + head // (heads // heads_kv), 0)
    local = tl.arange(0, BLOCK_M)
    first = rows_of(batch, head, start_q, first_row, seqlen_q, places, flags, SPAN)
    if is_ordered:
        tl.store(order_ptr + first // 64, 0)
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
def mean_of(
    q_ptr, k_ptr, sums_ptr, stride_qm, stride_kn, first_row, rows_q, keys, width, scale, left, right, flags,
    PARTS: tl.constexpr, SPAN: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """The mean key of BLOCK_M rows, as attn_bwd_means has it of SPAN.

    Args:
        q_ptr, k_ptr: the first row, and key, of the head and sequence.
        sums_ptr: the sums of its keys.
    """
    columns = tl.arange(0, HEAD_DIM)
    shift, left, right = bounds(rows_q, keys, left, right, flags)
    last_row = tl.minimum(first_row + BLOCK_M, rows_q) - 1
    # Some row sees one of [begin, end), and none beyond; all of them see all of [every_begin, every_end).
    begin = tl.minimum(tl.maximum(first_row + shift - left, 0), keys)
    end = tl.maximum(tl.minimum(last_row + shift + right + 1, keys), begin)
    every_begin = tl.maximum(last_row + shift - left, 0)
    every_end = tl.minimum(first_row + shift + right + 1, keys)
    size = part_of(keys, PARTS, SPAN)
    first_part = tl.cdiv(every_begin, size)
    after_parts = tl.where(every_end == keys, tl.cdiv(keys, size), every_end // size)
    is_safe = after_parts > first_part
    first_part = tl.where(is_safe, first_part, begin // size)
    after_parts = tl.where(is_safe, after_parts, tl.cdiv(end, size))
    count = tl.minimum(after_parts * size, keys) - first_part * size
    mean = in_parts(sums_ptr, first_part, after_parts, count, width, columns, PARTS)
    variance = in_parts(sums_ptr + width, first_part, after_parts, count, width, columns, PARTS)
    rows = first_row + tl.arange(0, AT_ONCE) * (BLOCK_M // AT_ONCE)
    mean += leaning(q_ptr, rows.to(tl.int64) * stride_qm, rows < rows_q, columns, width, scale, variance)
    if not is_safe:
        is_common = every_begin < every_end
        begin = tl.where(is_common, every_begin, begin)
        end = tl.where(is_common, every_end, end)
        step = tl.maximum((end - begin) // SAMPLE, 1)
        infinite = tl.full([HEAD_DIM], float("inf"), tl.float32)
        sample = (infinite, -infinite, tl.zeros([HEAD_DIM], tl.float32), tl.zeros([HEAD_DIM], tl.int32))
        for number in tl.range(0, SAMPLE, AT_ONCE):
            places = begin + (number + tl.arange(0, AT_ONCE)) * step
            seen = places < end
            wanted = seen[:, None] & (columns < width)[None, :]
            k = tl.load(k_ptr + places[:, None] * stride_kn + columns[None, :], mask=wanted, other=0.0)
            sample = sampled(sample, k, seen)
        mean = held(mean, sample, tl.minimum(width, HEAD_DIM).to(tl.float32))
    return mean


@triton.jit
def await_arrivals(arrivals_ptr, keys, BLOCK_N: tl.constexpr):
    """Waits until all programs of a head and sequence, of BLOCK_N keys each, have added what they add to its dq: each
    arrives twice."""
    while tl.load(arrivals_ptr, volatile=True) < 2 * tl.cdiv(keys, BLOCK_N):
        pass
    tl.atomic_add(arrivals_ptr, 0, sem="acquire")
    tl.debug_barrier()  # one thread acquires, for all


@triton.jit
def attn_bwd_finish(
    q_ptr, k_ptr, dq_ptr, lse_ptr, delta_ptr, sinks_ptr, cu_q_ptr, cu_k_ptr, used_q_ptr, used_k_ptr, sm_scale,
    stride_qb, stride_qh, stride_qm, stride_kb, stride_kh, stride_kn, stride_dqb, stride_dqh, stride_dqm,
    stride_lb, stride_lh, stride_db, stride_dh,
    batches, heads, heads_per_kv, seqlen_q, seqlen_k, width_qk, window_left, window_right, flags,
    terms_ptr, dq_sums_ptr, sums_ptr, arrivals_ptr, places, tiles,
    HEAD_DIM: tl.constexpr, PARTS: tl.constexpr, SPAN: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """dq, from the sums of ds k and of ds: less what the latter missed times the mean key (means.py). With sinks, also
    delta as it should be. Arguments as of attn_bwd_delta and attn_bwd_dq; SPAN / BLOCK_M programs for each tile.

    It begins when the last programs of the fused kernel have begun, where the driver can do that, and has the heads in
    their order: so it does most of its work on multiprocessors that those leave idle.

    Args:
        BLOCK_N: keys that a program of the fused kernel has.
    """
    program = tl.program_id(0)
    batch, head, block = place(
        program // (SPAN // BLOCK_M), tiles, heads, batches, seqlen_q, cu_q_ptr, flags, SPAN, False
    )
    batch_q, start_q, rows_q = sequence(batch, seqlen_q, cu_q_ptr, used_q_ptr, flags, False)
    batch_k, start_k, keys = sequence(batch, seqlen_k, cu_k_ptr, used_k_ptr, flags, True)
    first_row = block * SPAN + program % (SPAN // BLOCK_M) * BLOCK_M
    if first_row < rows_q:
        local = tl.arange(0, BLOCK_M)
        rows = first_row + local
        inside = rows < rows_q
        column = tl.arange(0, HEAD_DIM)
        head_kv = head // heads_per_kv
        plane = batch * (heads // heads_per_kv) + head_kv
        q_ptr += batch_q * stride_qb + head.to(tl.int64) * stride_qh + start_q * stride_qm
        k_ptr += batch_k * stride_kb + head_kv.to(tl.int64) * stride_kh + start_k * stride_kn
        sums_ptr += plane.to(tl.int64) * PARTS * 2 * width_qk
        mean = mean_of(
            q_ptr, k_ptr, sums_ptr, stride_qm, stride_kn, first_row, rows_q, keys, width_qk, sm_scale, window_left,
            window_right, flags, PARTS, SPAN, HEAD_DIM, BLOCK_M,
        )  # fmt: skip
        at = rows_of(batch, head, start_q, first_row, seqlen_q, places, flags, SPAN) + local
        # Keys that a length claims beyond the tensor have no program, and would be waited for without end.
        there = tl.where(flags & CU_K != 0, keys, tl.minimum(keys, seqlen_k))
        await_arrivals(arrivals_ptr + plane, there, BLOCK_N)
        dq = tl.load(dq_sums_ptr + at[:, None] * HEAD_DIM + column[None, :])
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
            delta_ptr += batch_q * stride_db + head.to(tl.int64) * stride_dh + start_q
            tl.store(delta_ptr + rows, delta, mask=inside)
        dq = (dq - surplus[:, None] * mean[None, :]) * sm_scale
        dq_ptr += batch_q * stride_dqb + head.to(tl.int64) * stride_dqh + start_q * stride_dqm
        wanted = inside[:, None] & (column < width_qk)[None, :]
        tl.store(dq_ptr + rows[:, None] * stride_dqm + column[None, :], dq.to(dq_ptr.dtype.element_ty), mask=wanted)
    if program == tl.num_programs(0) - 1:
        # What comes next on the stream may read all that the fused kernel writes. If others waited for its end as well,
        # they would keep those behind them from beginning.
        gdc_wait()
