"""Decoding over short contexts for Hopper, in Gluon: the parts of attn_decode.py, by latency.

A call over a few thousand keys of a few sequences takes as long as one load after another, and as its instructions, of
which a warp issues one in a few cycles. So each warp has keys of its own, and loads them straight into the registers
from which the tensor cores take them, without shared memory; warps meet once, at the end. Keys' columns may come in any
order if those of the queries do, so a thread takes eight neighbours. Of values the tensor cores want two keys of a
column in a register, of which memory has two columns of a key: the compiler permutes bytes. Columns of the output are
put back into memory's order when they are written.

The kernel that combines the parts may begin before this one ends (attn_decode_combine.py).
"""

from flags import BOTTOM_RIGHT, CU_Q, PAGED
from hopper_pieces import page_number
from hopper_tiles import sequence
from pages import cached_keys
from scores import LOG2E
from softmax import divisor_of
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2
from triton.language.extra.cuda import gdc_launch_dependents
from window import bounds, span

# The rows of a block, as the tensor cores' instruction has them.
ROWS = gl.constexpr(16)


@gluon.constexpr_function
def of_values(warps, keys, width):
    """Values of each warp as memory has them, 16 bytes a thread: the tensor cores' operand but for the order of columns
    (put_back)."""
    registers = [[0, 0, 1], [0, 0, 2], [0, 0, 4], [0, 1, 0], [0, 8, 0]]
    registers += [[0, 0, 64]] if width == 128 else []
    registers += [[0, 16, 0]] if keys == 32 else []
    lanes = [[0, 2, 0], [0, 4, 0], [0, 0, 8], [0, 0, 16], [0, 0, 32]]
    which = [[n, 0, 0] for n in (1, 2, 4, 8) if n < warps]
    return gl.DistributedLinearLayout(registers, lanes, which, [], [warps, keys, width])


@gluon.jit
def put_back(x):
    """Swaps columns 8 i + j and 8 j + i of every 64."""
    planes: gl.constexpr = x.shape[0]
    rows: gl.constexpr = x.shape[1]
    width: gl.constexpr = x.shape[2]
    x = gl.permute(gl.reshape(x, [planes, rows, width // 64, 8, 8]), [0, 1, 2, 4, 3])
    return gl.reshape(x, [planes, rows, width])


@gluon.jit
def along(size: gl.constexpr, AXIS: gl.constexpr, layout: gl.constexpr):
    """The numbers from 0 to size - 1 along one of three axes."""
    if AXIS == 0:
        return gl.expand_dims(gl.expand_dims(gl.arange(0, size, gl.SliceLayout(1, gl.SliceLayout(2, layout))), 1), 2)
    elif AXIS == 1:
        return gl.expand_dims(gl.expand_dims(gl.arange(0, size, gl.SliceLayout(0, gl.SliceLayout(2, layout))), 0), 2)
    else:
        return gl.expand_dims(gl.expand_dims(gl.arange(0, size, gl.SliceLayout(0, gl.SliceLayout(1, layout))), 0), 1)


@gluon.jit
def attn_decode_short(
    q_ptr, k_ptr, v_ptr, partial_ptr, partial_softmax_ptr,
    cu_q_ptr, used_k_ptr, table_ptr, cache_batch_ptr, leftpad_ptr, sm_scale,
    stride_qb, stride_qh, stride_qm, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    stride_pm, stride_tb,
    splits, rows_head, rows_total, heads, heads_per_kv, seqlen_q, seqlen_k, new_rows,
    page_size, page_factor, page_shift, window_left, window_right, flags,
    HEAD_DIM: gl.constexpr, ROWS_USED: gl.constexpr, BLOCK_N: gl.constexpr,
):  # fmt: skip
    """The parts of attention with a cache; the grid is (splits * heads / heads_per_kv * batch,).

    Arguments are those of attn_decode.py, of splits above 1; queries, keys and values have HEAD_DIM columns, 64 or 128.

    Args:
        ROWS_USED: 8 or 16; the rows of all heads of a key head are no more.
        BLOCK_N: keys of a warp at a time, 16 or 32.
    """
    WARPS: gl.constexpr = gl.num_warps()
    mma: gl.constexpr = gl.NVMMADistributedLayout(version=[2, 0], warps_per_cta=[WARPS, 1, 1], instr_shape=[1, 16, 8])
    of_q: gl.constexpr = gl.DotOperandLayout(0, mma, k_width=8)
    of_k: gl.constexpr = gl.DotOperandLayout(1, mma, k_width=8)
    of_v: gl.constexpr = of_values(WARPS, BLOCK_N, HEAD_DIM)
    of_row: gl.constexpr = gl.SliceLayout(2, mma)
    dtype: gl.constexpr = q_ptr.dtype.element_ty

    gdc_launch_dependents()
    split = gl.program_id(0) % splits
    plane = gl.program_id(0) // splits
    heads_kv = heads // heads_per_kv
    batch = plane // heads_kv
    head_kv = plane % heads_kv
    lies, start_q, rows_q = sequence(batch, seqlen_q, cu_q_ptr, cu_q_ptr, flags, CU_Q, 0, 0)
    batch_q = lies.to(gl.int64)
    if rows_q > 0:
        lies_in, rows_k, leftpad = cached_keys(batch, seqlen_k, used_k_ptr, cache_batch_ptr, leftpad_ptr, flags)
        rows_k = gl.maximum(gl.minimum(rows_k + new_rows, seqlen_k) - leftpad, 0)
        table_ptr += batch.to(gl.int64) * stride_tb
        k_ptr += head_kv.to(gl.int64) * stride_kh
        v_ptr += head_kv.to(gl.int64) * stride_vh
        distance, left, right = bounds(rows_q, rows_k, window_left, window_right, flags | BOTTOM_RIGHT)
        rows = along(ROWS, 1, mma) // heads_per_kv
        first, last, begin, end, _, _ = span(
            0, gl.minimum((ROWS - 1) // heads_per_kv, rows_q - 1), rows, distance, left, right, rows_k, BLOCK_N
        )  # fmt: skip
        part = (((end - begin + BLOCK_N - 1) // BLOCK_N + splits - 1) // splits) * BLOCK_N
        begin = gl.minimum(begin + split * part, end)
        end = gl.minimum(begin + part, end)
        last = gl.minimum(last, end - 1)

        r = along(ROWS, 1, of_q)
        places_q = batch_q * stride_qb + (start_q + r // heads_per_kv) * stride_qm
        places_q += (head_kv * heads_per_kv + r % heads_per_kv).to(gl.int64) * stride_qh
        # All warps have all rows. The recipe sees to it that these, and those of keys and values, are aligned.
        rows_ptr = gl.multiple_of(q_ptr + (places_q + along(WARPS, 0, of_q) * 0) + along(HEAD_DIM, 2, of_q), [1, 1, 16])
        inside = (r < rows_q * heads_per_kv) & (along(WARPS, 0, of_q) >= 0) & (along(HEAD_DIM, 2, of_q) >= 0)
        q = gl.load(rows_ptr, mask=inside, other=0.0)

        factor = sm_scale * LOG2E
        acc = gl.full([WARPS, ROWS, HEAD_DIM], 0.0, gl.float32, mma)
        row_max = gl.full([WARPS, ROWS], float("-inf"), gl.float32, of_row)
        row_sum = gl.full([WARPS, ROWS], 0.0, gl.float32, of_row)
        for start in range(begin, end, BLOCK_N * WARPS):
            # Keys behind the last are this one again, whose weights are 0: with no load masked, and all pages known
            # before, keys and values are loaded at once.
            keys = gl.minimum(start + along(WARPS, 0, of_k) * BLOCK_N + along(BLOCK_N, 2, of_k), end - 1) + leftpad
            keys_v = gl.minimum(start + along(WARPS, 0, of_v) * BLOCK_N + along(BLOCK_N, 1, of_v), end - 1) + leftpad
            page = keys * 0 + lies_in
            page_v = keys_v * 0 + lies_in
            if flags & PAGED:
                number = page_number(keys, page_factor, page_shift)
                number_v = page_number(keys_v, page_factor, page_shift)
                page = gl.load(table_ptr + number)
                page_v = gl.load(table_ptr + number_v)
                keys -= number * page_size
                keys_v -= number_v * page_size
            places = page.to(gl.int64) * stride_kb + keys * stride_kn
            places_v = page_v.to(gl.int64) * stride_vb + keys_v * stride_vn
            k = gl.load(gl.multiple_of(k_ptr + places + along(HEAD_DIM, 1, of_k), [1, 16, 1]))
            v = gl.load(gl.multiple_of(v_ptr + places_v + along(HEAD_DIM, 2, of_v), [1, 1, 16]))
            scores = mma_v2(q, k, gl.full([WARPS, ROWS, BLOCK_N], 0.0, gl.float32, mma)) * factor
            columns = start + along(WARPS, 0, mma) * BLOCK_N + along(BLOCK_N, 2, mma)
            scores = gl.where((columns >= first) & (columns <= last), scores, float("-inf"))
            new_max = gl.maximum(row_max, gl.max(scores, 2))
            # A row that has seen no key yet: -inf - -inf would be NaN.
            shift = gl.where(new_max == float("-inf"), 0.0, new_max)
            p = gl.exp2(scores - gl.expand_dims(shift, 2))
            correction = gl.exp2(row_max - shift)
            row_sum = row_sum * correction + gl.sum(p, 2)
            row_max = new_max
            weights = gl.convert_layout(p.to(dtype), gl.DotOperandLayout(0, mma, k_width=2))
            v = gl.convert_layout(put_back(v), gl.DotOperandLayout(1, mma, k_width=2))
            acc = mma_v2(weights, v, acc * gl.expand_dims(correction, 2))

        if ROWS_USED == 8:
            acc, _ = gl.split(gl.permute(gl.reshape(acc, [WARPS, 2, 8, HEAD_DIM]), [0, 2, 3, 1]))
            row_max, _ = gl.split(gl.permute(gl.reshape(row_max, [WARPS, 2, 8]), [0, 2, 1]))
            row_sum, _ = gl.split(gl.permute(gl.reshape(row_sum, [WARPS, 2, 8]), [0, 2, 1]))
        # A thread has the same columns of all warps.
        gathered: gl.constexpr = gl.BlockedLayout(
            [WARPS, 1, 4], [1, 128 // HEAD_DIM, HEAD_DIM // 4], [1, WARPS, 1], [2, 1, 0]
        )  # fmt: skip
        of_out: gl.constexpr = gl.SliceLayout(0, gathered)
        of_packed: gl.constexpr = gl.SliceLayout(1, of_out)
        plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, order=[1, 0])
        accs = gl.allocate_shared_memory(
            gl.float32, [WARPS, ROWS_USED, HEAD_DIM], gl.SwizzledSharedLayout(4, 1, 8, order=[2, 1, 0]), put_back(acc)
        )  # fmt: skip
        maxima = gl.allocate_shared_memory(gl.float32, [WARPS, ROWS_USED], plain, row_max)
        maxima = maxima.load(gl.SliceLayout(2, gathered))
        sums = gl.allocate_shared_memory(gl.float32, [WARPS, ROWS_USED], plain, row_sum)
        sums = sums.load(gl.SliceLayout(2, gathered))
        row_max = gl.max(maxima, 0)
        shares = gl.exp2(maxima - gl.expand_dims(gl.where(row_max == float("-inf"), 0.0, row_max), 0))
        row_sum = gl.sum(sums * shares, 0)
        shares /= gl.expand_dims(divisor_of(row_sum), 0)
        out = gl.sum(accs.load(gathered) * gl.expand_dims(shares, 2), 0)

        packed = gl.arange(0, ROWS_USED, of_packed)
        head = (head_kv * heads_per_kv + packed % heads_per_kv).to(gl.int64)
        place = split * rows_total + (batch_q * heads + head) * rows_head + start_q + packed // heads_per_kv
        is_row = packed < rows_q * heads_per_kv
        of_head = gl.arange(0, HEAD_DIM, gl.SliceLayout(0, of_out))[None, :]
        to_ptr = gl.multiple_of(partial_ptr + (place * stride_pm)[:, None] + of_head, [1, 16])
        gl.store(to_ptr, out, mask=is_row[:, None] & (of_head >= 0))
        gl.store(partial_softmax_ptr + place, gl.convert_layout(row_max, of_packed), mask=is_row)
        gl.store(partial_softmax_ptr + splits * rows_total + place, gl.convert_layout(row_sum, of_packed), mask=is_row)
