"""Decoding over caches of fp8 for Hopper, in Gluon: what attn_decode.py computes, of few rows.

A program is one warp, which waits for no other; tensor descriptors copy its keys and values, 16 at a time, some blocks
ahead. The products are the tensor cores' of fp16, m16n8k16. Of the keys they take neighbours in a row, as memory has
them; of the values neighbours in a column, which of bytes no load from shared memory gives. So two bytes that are
neighbours in a row are loaded as one element, with a transposing load, and a permutation of bytes and two conversions
make of four elements of two rows those of the even column and those of the odd one. Columns are told apart as even and
odd until they are written.
"""

from attn_decode import HEADROOM
from flags import CACHE_BATCH, CU_Q, LEFTPAD, LSE, PAGED, SINKS, USED_K
from hopper_pieces import page_number, reinterpreted
from scores import LOG2E
from softmax import LN2
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton.language.extra.cuda import gdc_launch_dependents

# The rows of a block, as the tensor cores' instruction has them.
ROWS = gl.constexpr(16)


@gluon.jit
def in_fp16(q):
    """Rows of fp32 in fp16, each divided by a power of two; and these powers: as in attn_decode.py."""
    most = gl.max(gl.abs(q), 1)
    exponent = most.to(gl.int32, bitcast=True) & 0x7F800000
    unit = gl.minimum(gl.maximum(exponent, 15 << 23), 254 << 23) - (14 << 23)
    inverse = ((254 << 23) - unit).to(gl.float32, bitcast=True)
    return (q * inverse[:, None]).to(gl.float16), unit.to(gl.float32, bitcast=True)


@gluon.jit
def of_pairs(pairs):
    """Pairs of fp8 elements in fp16: the first of each, and the second."""
    return gl.inline_asm_elementwise(
        """
        {
        .reg .b32 bytes;
        .reg .b16 first, second;
        prmt.b32 bytes, $2, 0, 0x3120;
        mov.b32 {first, second}, bytes;
        cvt.rn.f16x2.e4m3x2 $0, first;
        cvt.rn.f16x2.e4m3x2 $1, second;
        }
        """,
        "=r,=r,r", [pairs], dtype=(gl.float16, gl.float16), is_pure=True, pack=2,
    )  # fmt: skip


@gluon.jit
def copy_block(
    k_desc, v_desc, k_shared, v_shared, full, step, start, head_kv, leftpad, lies_in, table_ptr, keys,
    page_size, page_factor, page_shift, flags, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Copies the keys and values from `start` on, for the step with that number, box by box.

    Args:
        full: the barriers of the blocks in shared memory.
        keys: of the sequence, leftpad not counted.
        page_size: a multiple of a box, or larger than any cache.
    """
    box_keys: gl.constexpr = k_desc.block_type.shape[2]
    boxes: gl.constexpr = BLOCK_N // box_keys
    stage = step % STAGES
    mbarrier.expect(full.index(stage), 2 * BLOCK_N * k_desc.block_type.shape[3])
    for box in gl.static_range(boxes):
        key = start + leftpad + box * box_keys
        number = page_number(key, page_factor, page_shift)
        # The table may end before the block does: any page will do for keys that no row sees.
        page = gl.load(table_ptr + number, mask=((flags & PAGED) != 0) & (start + box * box_keys < keys), other=lies_in)
        key -= number * page_size
        tma.async_load(k_desc, [page, head_kv, key, 0], full.index(stage), k_shared.index(stage * boxes + box))
        tma.async_load(v_desc, [page, head_kv, key, 0], full.index(stage), v_shared.index(stage * boxes + box))


@gluon.jit
def attend(
    even, odd, row_max, row_sum, q, k_block, v_block, factor, start, first, last, rows_k,
    MASKED: gl.constexpr, HEADROOM: gl.constexpr,
):  # fmt: skip
    """Adds a block of keys to the running softmax, as attend_cached() of attn_decode.py.

    Args:
        even, odd: the output so far, its even columns and its odd ones.
        q: in fp16, a DotOperandLayout.
        factor: [rows], of the products, in base 2.
        first, last: the keys that each row sees; looked at if MASKED.
    """
    BLOCK_N: gl.constexpr = k_block.shape[0]
    mma: gl.constexpr = even.type.layout
    v_operand: gl.constexpr = gl.DotOperandLayout(1, mma, k_width=2)
    k = k_block.permute((1, 0)).load(gl.DotOperandLayout(1, mma, k_width=4)).to(gl.float16)
    scores = mma_v2(q, k, gl.full([ROWS, BLOCK_N], 0.0, gl.float32, mma))
    if MASKED:
        # Scaled before it is masked, since -inf * 0 is NaN.
        scores *= factor[:, None]
        keys = start + gl.arange(0, BLOCK_N, gl.SliceLayout(0, mma))
        seen = (keys[None, :] >= first[:, None]) & (keys[None, :] <= last[:, None])
        scores = gl.where(seen, scores, float("-inf"))
        new_max = gl.maximum(row_max, gl.max(scores, 1) - HEADROOM)
        # A row that has seen no key yet: -inf - -inf would be NaN.
        shift = gl.where(new_max == float("-inf"), 0.0, new_max)
        p = gl.exp2(scores - shift[:, None])
    else:
        new_max = gl.maximum(row_max, gl.max(scores, 1) * factor - HEADROOM)
        shift = new_max
        p = gl.exp2(scores * factor[:, None] - shift[:, None])
    correction = gl.exp2(row_max - shift)
    row_sum = row_sum * correction + gl.sum(p, 1)
    weights = gl.convert_layout(p.to(gl.float16), gl.DotOperandLayout(0, mma, k_width=2))
    pairs = v_block.load(v_operand)
    if MASKED:
        # What lies behind the last key may be NaN, and 0 * NaN is NaN.
        there = start + gl.arange(0, BLOCK_N, gl.SliceLayout(1, v_operand)) < rows_k
        pairs = gl.where(there[:, None], pairs, 0)
    v_even, v_odd = of_pairs(pairs)
    even = mma_v2(weights, v_even, even * correction[:, None])
    odd = mma_v2(weights, v_odd, odd * correction[:, None])
    return even, odd, new_max, row_sum


@gluon.jit
def attn_decode_hopper(
    q_ptr, k_desc, v_desc, out_ptr, lse_ptr, partial_ptr, partial_softmax_ptr, sinks_ptr,
    k_scale_ptr, v_scale_ptr, cu_q_ptr, used_k_ptr, table_ptr, cache_batch_ptr, leftpad_ptr, sm_scale,
    stride_qb, stride_qh, stride_qm, stride_ob, stride_oh, stride_om, stride_lb, stride_lh, stride_pm, stride_tb,
    splits, rows_head, rows_total, heads, heads_per_kv, seqlen_q, seqlen_k, new_rows,
    page_size, page_factor, page_shift, width_qk, width_v, window_left, window_right, flags,
    HEAD_DIM: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Attention with a cache of fp8; the grid is (splits * heads / heads_per_kv * batch,).

    Arguments are those of attn_decode.py; at most 16 rows, those of all heads of a key head together.

    Args:
        k_desc, v_desc: of [pages, heads / heads_per_kv, page_size, width], in boxes of 16 keys. Columns from width to
            HEAD_DIM are zeros.
        STAGES: blocks of BLOCK_N keys, and of values, in shared memory.
    """
    mma: gl.constexpr = gl.NVMMADistributedLayout(version=[2, 0], warps_per_cta=[1, 1], instr_shape=[16, 8])
    of_row: gl.constexpr = gl.SliceLayout(1, mma)
    # A thread has four neighbours of a row of keys, of 8 bits each; rows of q are laid out to match.
    q_operand: gl.constexpr = gl.DotOperandLayout(0, mma, k_width=4)
    loaded: gl.constexpr = gl.BlockedLayout([1, 4], [128 // HEAD_DIM, HEAD_DIM // 4], [1, 1], [1, 0])
    fp8: gl.constexpr = k_desc.dtype

    # Those of attn_decode_combine.py.
    gdc_launch_dependents()
    split = gl.program_id(0) % splits
    plane = gl.program_id(0) // splits
    heads_kv = heads // heads_per_kv
    batch = plane // heads_kv
    head_kv = plane % heads_kv
    batch_q = batch.to(gl.int64)
    start_q = batch * 0
    rows_q = seqlen_q
    if flags & CU_Q:
        start_q = gl.load(cu_q_ptr + batch)
        rows_q = gl.minimum(gl.load(cu_q_ptr + batch + 1) - start_q, seqlen_q)
        batch_q = batch_q * 0
    lies_in = batch
    rows_k = seqlen_k
    leftpad = batch * 0
    if flags & USED_K:
        rows_k = gl.load(used_k_ptr + batch)
    if flags & CACHE_BATCH:
        lies_in = gl.load(cache_batch_ptr + batch)
    if flags & LEFTPAD:
        leftpad = gl.load(leftpad_ptr + batch)
    if rows_q > 0:
        rows_k = gl.maximum(gl.minimum(rows_k + new_rows, seqlen_k) - leftpad, 0)
        table_ptr += batch.to(gl.int64) * stride_tb

        # What the rows see, as window.py has it: all are one block.
        rows = gl.arange(0, ROWS, of_row) // heads_per_kv
        lowest = rows_k - rows_q
        highest = gl.minimum(15 // heads_per_kv, rows_q - 1) + lowest
        longest = gl.maximum(rows_q, rows_k)
        left = gl.minimum(window_left, longest)
        right = gl.minimum(window_right, longest)
        first = gl.maximum(rows + (lowest - left), 0)
        last = gl.minimum(rows + (lowest + right), rows_k - 1)
        begin = gl.maximum(lowest - left, 0) // BLOCK_N * BLOCK_N
        end = gl.maximum(gl.minimum(highest + right + 1, rows_k), begin)
        whole_begin = gl.maximum(highest - left, 0)
        whole_end = gl.minimum(lowest + right + 1, rows_k)
        part = (((end - begin + BLOCK_N - 1) // BLOCK_N + splits - 1) // splits) * BLOCK_N
        begin = gl.minimum(begin + split * part, end)
        end = gl.minimum(begin + part, end)
        steps = (end - begin + BLOCK_N - 1) // BLOCK_N

        box: gl.constexpr = k_desc.block_type.shape[2]
        boxes: gl.constexpr = STAGES * BLOCK_N // box
        k_shared = gl.allocate_shared_memory(fp8, [boxes, 1, 1, box, HEAD_DIM], k_desc.layout)
        v_shared = gl.allocate_shared_memory(fp8, [boxes, 1, 1, box, HEAD_DIM], v_desc.layout)
        # The same bytes in blocks, since a box is a multiple of what swizzling permutes: 8 rows.
        swizzle: gl.constexpr = k_desc.layout.swizzle_byte_width
        of_bytes: gl.constexpr = gl.NVMMASharedLayout(swizzle, 8, rank=2)
        of_pairs_of_bytes: gl.constexpr = gl.NVMMASharedLayout(swizzle, 16, rank=2)
        k_blocks = reinterpreted(k_shared, fp8, [STAGES, BLOCK_N, HEAD_DIM], of_bytes)
        v_blocks = reinterpreted(v_shared, gl.int16, [STAGES, BLOCK_N, HEAD_DIM // 2], of_pairs_of_bytes)
        full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        for slot in gl.static_range(STAGES):
            mbarrier.init(full.index(slot), count=1)
        for ahead in gl.static_range(STAGES - 1):
            if ahead < steps:
                copy_block(
                    k_desc, v_desc, k_shared, v_shared, full, ahead, begin + ahead * BLOCK_N, head_kv, leftpad,
                    lies_in, table_ptr, rows_k, page_size, page_factor, page_shift, flags, BLOCK_N, STAGES,
                )  # fmt: skip

        q_rows = gl.arange(0, ROWS, gl.SliceLayout(1, loaded))
        columns = gl.arange(0, HEAD_DIM, gl.SliceLayout(0, loaded))
        head = head_kv * heads_per_kv + q_rows % heads_per_kv
        row = start_q + q_rows // heads_per_kv
        inside = q_rows < rows_q * heads_per_kv
        places = batch_q * stride_qb + row * stride_qm + head.to(gl.int64) * stride_qh
        q = gl.load(
            q_ptr + places[:, None] + columns[None, :], mask=inside[:, None] & (columns < width_qk)[None, :], other=0.0
        ).to(gl.float32)
        scale = sm_scale * gl.load(k_scale_ptr + head_kv)
        # The sign goes to the queries, so that a larger product is a larger score.
        q = gl.where(scale < 0, -q, q)
        scale = gl.abs(scale) * LOG2E
        # As in attn_decode.py: weights in fp16 begin above 1.
        headroom: gl.constexpr = HEADROOM if q_ptr.dtype.element_ty == gl.bfloat16 else 0.0
        if q_ptr.dtype.element_ty == gl.bfloat16:
            q_half, unit = in_fp16(q)
            factor = gl.convert_layout(unit, of_row) * scale
        else:
            q_half = q.to(gl.float16)
            factor = gl.full([ROWS], 1.0, gl.float32, of_row) * scale
        q_half = gl.convert_layout(q_half, q_operand)

        even = gl.full([ROWS, HEAD_DIM // 2], 0.0, gl.float32, mma)
        odd = gl.full([ROWS, HEAD_DIM // 2], 0.0, gl.float32, mma)
        row_max = gl.full([ROWS], float("-inf"), gl.float32, of_row)
        row_sum = gl.full([ROWS], 0.0, gl.float32, of_row)
        for step in range(steps):
            stage = step % STAGES
            start = begin + step * BLOCK_N
            if step + STAGES - 1 < steps:
                copy_block(
                    k_desc, v_desc, k_shared, v_shared, full, step + STAGES - 1, start + (STAGES - 1) * BLOCK_N,
                    head_kv, leftpad, lies_in, table_ptr, rows_k, page_size, page_factor, page_shift, flags,
                    BLOCK_N, STAGES,
                )  # fmt: skip
            mbarrier.wait(full.index(stage), (step // STAGES) & 1)
            if (start >= whole_begin) & (start + BLOCK_N <= whole_end):
                even, odd, row_max, row_sum = attend(
                    even, odd, row_max, row_sum, q_half, k_blocks.index(stage), v_blocks.index(stage), factor,
                    start, first, last, rows_k, False, headroom,
                )  # fmt: skip
            else:
                even, odd, row_max, row_sum = attend(
                    even, odd, row_max, row_sum, q_half, k_blocks.index(stage), v_blocks.index(stage), factor,
                    start, first, last, rows_k, True, headroom,
                )  # fmt: skip

        packed = gl.arange(0, ROWS, of_row)
        head = head_kv * heads_per_kv + packed % heads_per_kv
        row = start_q + packed // heads_per_kv
        inside = packed < rows_q * heads_per_kv
        factor = gl.full([ROWS], 1.0, gl.float32, of_row) * gl.load(v_scale_ptr + head_kv)
        if splits == 1:
            sinks = gl.load(sinks_ptr + head, mask=inside & ((flags & SINKS) != 0), other=float("-inf")) * LOG2E
            new_max = gl.maximum(row_max, sinks)
            shift = gl.where(new_max == float("-inf"), 0.0, new_max)
            correction = gl.exp2(row_max - shift)
            row_sum = row_sum * correction + gl.exp2(sinks - shift)
            row_max = new_max
            factor *= correction
        factor /= gl.where(row_sum == 0.0, 1.0, row_sum)
        out = gl.join(even * factor[:, None], odd * factor[:, None])
        out = gl.convert_layout(gl.reshape(out, [ROWS, HEAD_DIM]), loaded)
        there = (q_rows < rows_q * heads_per_kv)[:, None] & (columns < width_v)[None, :]
        head_at = (head_kv * heads_per_kv + q_rows % heads_per_kv).to(gl.int64)
        row_at = start_q + q_rows // heads_per_kv
        if splits == 1:
            places = batch_q * stride_ob + row_at * stride_om + head_at * stride_oh
            gl.store(out_ptr + places[:, None] + columns[None, :], out.to(out_ptr.dtype.element_ty), mask=there)
            lse = gl.fma(row_max, LN2, gl.log2(gl.where(row_sum == 0.0, 1.0, row_sum)) * LN2)
            lse_at = batch_q * stride_lb + head.to(gl.int64) * stride_lh + row
            gl.store(lse_ptr + lse_at, lse, mask=inside & ((flags & LSE) != 0))
        else:
            at = split * rows_total + (batch_q * heads + head_at) * rows_head + row_at
            gl.store(partial_ptr + (at * stride_pm)[:, None] + columns[None, :], out, mask=there)
            at = split * rows_total + (batch_q * heads + head) * rows_head + row
            gl.store(partial_softmax_ptr + at, row_max, mask=inside)
            gl.store(partial_softmax_ptr + splits * rows_total + at, row_sum, mask=inside)
