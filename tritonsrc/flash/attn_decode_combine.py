"""Combines the parts that decoding left: attn_decode_reduce of attn_decode.py for Hopper, where it may begin early.

Launched as a dependent of the kernel before it, a program is there before that has ended, and waits for its end. So the
time of a launch is hidden, and what is loaded first follows at once. Loads do not wait for each other: those of a
program's first parts are issued before the weights are known.
"""

import triton
import triton.language as tl
from flags import LSE, SINKS
from scores import LOG2E
from sequences import sequence
from softmax import divisor_of, log_sum_exp, with_sink
from triton.language.extra.cuda import gdc_wait


@triton.jit
def parts_at(partial_ptr, partial_softmax_ptr, sums_ptr, parts, splits, place, rows_total, stride_pm, columns, there):
    """Of the parts with these numbers: what they hold, [parts, columns], their largest scores, and their sums."""
    inside = parts < splits
    places = place + parts * rows_total
    addresses = partial_ptr + (places * stride_pm)[:, None] + columns[None, :]
    held = tl.load(addresses, mask=inside[:, None] & there[None, :], other=0.0)
    largest = tl.load(partial_softmax_ptr + places, mask=inside, other=float("-inf"))
    return held, largest, tl.load(sums_ptr + places, mask=inside, other=0.0)


@triton.jit
def weighted(held, weight):
    """Parts times their weights. One of weight 0 counts for nothing, whatever it holds."""
    return tl.where((weight != 0.0)[:, None], held, 0.0) * weight[:, None]


@triton.jit
def attn_decode_combine(
    partial_ptr, partial_softmax_ptr, out_ptr, lse_ptr, sinks_ptr, cu_q_ptr,
    stride_pm, stride_ob, stride_oh, stride_om, stride_lb, stride_lh,
    splits, rows_head, rows_total, heads, seqlen_q, width_v, flags,
    BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr, MAX_SPLITS: tl.constexpr,
):  # fmt: skip
    """Arguments and grid are those of attn_decode_reduce."""
    row = tl.program_id(0) % seqlen_q
    plane = tl.program_id(0) // seqlen_q
    head = plane % heads
    # The call's own tensors may have been written by whatever ran before it, too.
    gdc_wait()
    batch_q, start_q, rows_q = sequence(plane // heads, seqlen_q, cu_q_ptr, cu_q_ptr, flags, False)
    if row < rows_q:
        row_q = start_q + row
        place = (batch_q * heads + head) * rows_head + row_q
        sums_ptr = partial_softmax_ptr + splits * rows_total
        columns = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
        there = columns < width_v
        held, largest, weight = parts_at(
            partial_ptr, partial_softmax_ptr, sums_ptr, tl.arange(0, BLOCK_S), splits, place, rows_total, stride_pm,
            columns, there,
        )  # fmt: skip
        every = tl.arange(0, MAX_SPLITS)
        maxima = tl.load(partial_softmax_ptr + place + every * rows_total, mask=every < splits, other=float("-inf"))
        sums = tl.load(sums_ptr + place + every * rows_total, mask=every < splits, other=0.0)
        row_max = tl.max(maxima, 0)
        shift = tl.where(row_max == float("-inf"), 0.0, row_max)
        row_sum = tl.sum(sums * tl.math.exp2(maxima - shift), 0)
        sink = tl.load(sinks_ptr + head, mask=(flags & SINKS) != 0, other=float("-inf")) * LOG2E
        correction, row_max, row_sum = with_sink(row_max, row_sum, sink)
        factor = correction / divisor_of(row_sum)
        acc = weighted(held, weight * tl.math.exp2(largest - shift) * factor)
        for first in tl.range(BLOCK_S, splits, BLOCK_S):
            held, largest, weight = parts_at(
                partial_ptr, partial_softmax_ptr, sums_ptr, first + tl.arange(0, BLOCK_S), splits, place, rows_total,
                stride_pm, columns, there,
            )  # fmt: skip
            acc += weighted(held, weight * tl.math.exp2(largest - shift) * factor)
        out = tl.sum(acc, 0)
        out_ptr += batch_q * stride_ob + head.to(tl.int64) * stride_oh + row_q * stride_om
        tl.store(out_ptr + columns, out.to(out_ptr.dtype.element_ty), mask=there)
        if (flags & LSE) != 0 and tl.program_id(1) == 0:
            lse = log_sum_exp(row_max, row_sum)
            tl.store(lse_ptr + batch_q * stride_lb + head.to(tl.int64) * stride_lh + row_q, lse)
