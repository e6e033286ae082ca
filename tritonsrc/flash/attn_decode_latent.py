"""Decoding over latent keys for Hopper, in Gluon: what attn_decode.py computes, of one key head whose keys hold their
values: a key's first 512 columns of 576. So do DeepSeek's models decode (multi-head latent attention, absorbed:
DeepSeek-AI, 2024, arXiv:2405.04434, section 2.1), by 16 to 128 heads.

Products are transposed: the 64 rows of a tensor core's tile are keys, and its columns are heads, which may be as few as
16. In the output, [512, heads], columns of values are rows. Each key is copied into shared memory once, and both
products read it there. A block is copied while the one before it is worked at. cp.async copies rows one by one, so
pages may have any size.
"""

from flags import BOTTOM_RIGHT, CU_Q, LSE, SINKS
from hopper_tiles import sequence
from pages import cached_keys, page_of
from scores import LOG2E
from softmax import LN2, divisor_of, with_sink
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma, warpgroup_mma_wait
from triton.language.extra.cuda import gdc_launch_dependents
from window import bounds, span

# Columns of a key: those that are its value, and the rest (of DeepSeek's, those rotated by its position).
VALUE = gl.constexpr(512)
REST = gl.constexpr(64)


@gluon.jit
def copy_block(
    k_ptr, values, rest, start, leftpad, lies_in, table_ptr, rows_k, stride_kb, stride_kn,
    page_size, page_factor, page_shift, flags,
):  # fmt: skip
    """Copies the keys from `start` on into a block of shared memory; zeros behind the last."""
    BLOCK_N: gl.constexpr = values.shape[0]
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [gl.num_warps(), 1], [1, 0])
    keys = start + gl.arange(0, BLOCK_N, gl.SliceLayout(1, layout))
    there = keys < rows_k
    page, key = page_of(keys + leftpad, there, table_ptr, lies_in, page_size, page_factor, page_shift, flags)
    places = (page * stride_kb + key * stride_kn)[:, None]
    # The recipe sees to it that each row is aligned, whatever else of the call is.
    columns = gl.arange(0, VALUE, gl.SliceLayout(0, layout))[None, :]
    from_ptr = gl.multiple_of(k_ptr + places + columns, [1, 16])
    async_copy.async_load(values, from_ptr, mask=there[:, None] & (columns >= 0))
    columns = VALUE + gl.arange(0, REST, gl.SliceLayout(0, layout))[None, :]
    from_ptr = gl.multiple_of(k_ptr + places + columns, [1, 16])
    async_copy.async_load(rest, from_ptr, mask=there[:, None] & (columns >= 0))
    async_copy.commit_group()


@gluon.jit
def attn_decode_latent(
    q_ptr, k_ptr, out_ptr, lse_ptr, partial_ptr, partial_softmax_ptr, sinks_ptr,
    cu_q_ptr, used_k_ptr, table_ptr, cache_batch_ptr, leftpad_ptr, sm_scale,
    stride_qb, stride_qh, stride_qm, stride_kb, stride_kh, stride_kn, stride_ob, stride_oh, stride_om,
    stride_lb, stride_lh, stride_pm, stride_tb,
    splits, rows_head, rows_total, heads, heads_per_kv, seqlen_q, seqlen_k, new_rows,
    page_size, page_factor, page_shift, window_left, window_right, flags,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
):  # fmt: skip
    """Attention over latent keys; the grid is
    (splits * cdiv(seqlen_q * heads_per_kv, BLOCK_M) * heads / heads_per_kv * batch,).

    Arguments are those of attn_decode.py; keys have 576 columns, values are the first 512 of them.
    """
    WARPS: gl.constexpr = gl.num_warps()
    # Products with keys are one tile of 64 rows, shared by its warpgroups; those with values have eight.
    of_scores: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, WARPS // 4], instr_shape=[16, BLOCK_M * 4 // WARPS, 16]
    )  # fmt: skip
    of_values: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[WARPS, 1], instr_shape=[16, BLOCK_M, 16]
    )  # fmt: skip
    loaded: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [WARPS, 1], [1, 0])
    of_column: gl.constexpr = gl.SliceLayout(0, of_scores)
    dtype: gl.constexpr = q_ptr.dtype.element_ty

    # Those of attn_decode_combine.py.
    gdc_launch_dependents()
    split = gl.program_id(0) % splits
    tile = gl.program_id(0) // splits
    blocks = (seqlen_q * heads_per_kv + BLOCK_M - 1) // BLOCK_M
    # The last rows see most keys: longest first.
    block = blocks - 1 - tile % blocks
    plane = tile // blocks
    heads_kv = heads // heads_per_kv
    batch = plane // heads_kv
    head_kv = plane % heads_kv
    lies, start_q, rows_q = sequence(batch, seqlen_q, cu_q_ptr, cu_q_ptr, flags, CU_Q, 0, 0)
    batch_q = lies.to(gl.int64)
    if block * BLOCK_M < rows_q * heads_per_kv:
        lies_in, rows_k, leftpad = cached_keys(batch, seqlen_k, used_k_ptr, cache_batch_ptr, leftpad_ptr, flags)
        rows_k = gl.maximum(gl.minimum(rows_k + new_rows, seqlen_k) - leftpad, 0)
        k_ptr += head_kv.to(gl.int64) * stride_kh
        table_ptr += batch.to(gl.int64) * stride_tb
        rows = (block * BLOCK_M + gl.arange(0, BLOCK_M, of_column)) // heads_per_kv
        distance, left, right = bounds(rows_q, rows_k, window_left, window_right, flags | BOTTOM_RIGHT)
        first, last, begin, end, _, _ = span(
            block * BLOCK_M // heads_per_kv,
            gl.minimum((block * BLOCK_M + BLOCK_M - 1) // heads_per_kv, rows_q - 1),
            rows, distance, left, right, rows_k, BLOCK_N,
        )  # fmt: skip
        part = (((end - begin + BLOCK_N - 1) // BLOCK_N + splits - 1) // splits) * BLOCK_N
        begin = gl.minimum(begin + split * part, end)
        end = gl.minimum(begin + part, end)

        of_wide: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_N, VALUE], dtype)
        of_rest: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_N, REST], dtype)
        values = gl.allocate_shared_memory(dtype, [2, BLOCK_N, VALUE], of_wide)
        rest = gl.allocate_shared_memory(dtype, [2, BLOCK_N, REST], of_rest)
        copy_block(
            k_ptr, values.index(0), rest.index(0), begin, leftpad, lies_in, table_ptr, rows_k, stride_kb, stride_kn,
            page_size, page_factor, page_shift, flags,
        )  # fmt: skip

        packed = block * BLOCK_M + gl.arange(0, BLOCK_M, gl.SliceLayout(1, loaded))
        head = head_kv * heads_per_kv + packed % heads_per_kv
        row = start_q + packed // heads_per_kv
        inside = packed < rows_q * heads_per_kv
        head_64 = head.to(gl.int64)
        places = (batch_q * stride_qb + row * stride_qm + head_64 * stride_qh)[:, None]
        columns = gl.arange(0, VALUE, gl.SliceLayout(0, loaded))[None, :]
        behind = VALUE + gl.arange(0, REST, gl.SliceLayout(0, loaded))[None, :]
        q_values = gl.allocate_shared_memory(
            dtype, [BLOCK_M, VALUE], gl.NVMMASharedLayout.get_default_for([BLOCK_M, VALUE], dtype),
            gl.load(q_ptr + places + columns, mask=inside[:, None] & (columns >= 0), other=0.0),
        )  # fmt: skip
        q_rest = gl.allocate_shared_memory(
            dtype, [BLOCK_M, REST], gl.NVMMASharedLayout.get_default_for([BLOCK_M, REST], dtype),
            gl.load(q_ptr + places + behind, mask=inside[:, None] & (behind >= 0), other=0.0),
        )  # fmt: skip
        weights = gl.allocate_shared_memory(
            dtype, [BLOCK_N, BLOCK_M], gl.NVMMASharedLayout.get_default_for([BLOCK_N, BLOCK_M], dtype)
        )  # fmt: skip

        factor = sm_scale * LOG2E
        acc = gl.full([VALUE, BLOCK_M], 0.0, gl.float32, of_values)
        row_max = gl.full([BLOCK_M], float("-inf"), gl.float32, of_column)
        row_sum = gl.full([BLOCK_M], 0.0, gl.float32, of_column)
        stage = begin * 0
        for start in range(begin, end, BLOCK_N):
            # What the next block goes to was read by the last step's products, and they are done.
            gl.barrier()
            copy_block(
                k_ptr, values.index(1 - stage), rest.index(1 - stage), start + BLOCK_N, leftpad, lies_in, table_ptr,
                gl.minimum(rows_k, end), stride_kb, stride_kn, page_size, page_factor, page_shift, flags,
            )  # fmt: skip
            async_copy.wait_group(1)
            fence_async_shared()
            gl.barrier()
            scores = gl.full([BLOCK_N, BLOCK_M], 0.0, gl.float32, of_scores)
            scores = warpgroup_mma(values.index(stage), q_values.permute((1, 0)), scores, is_async=True)
            scores = warpgroup_mma(rest.index(stage), q_rest.permute((1, 0)), scores, is_async=True)
            scores = warpgroup_mma_wait(0, deps=[scores]) * factor
            keys = start + gl.arange(0, BLOCK_N, gl.SliceLayout(1, of_scores))
            seen = (keys[:, None] >= first[None, :]) & (keys[:, None] <= last[None, :])
            scores = gl.where(seen, scores, float("-inf"))
            new_max = gl.maximum(row_max, gl.max(scores, 0))
            # A row that has seen no key yet: -inf - -inf would be NaN.
            shift = gl.where(new_max == float("-inf"), 0.0, new_max)
            p = gl.exp2(scores - shift[None, :])
            correction = gl.exp2(row_max - shift)
            row_sum = row_sum * correction + gl.sum(p, 0)
            row_max = new_max
            weights.store(p.to(dtype))
            fence_async_shared()
            acc *= gl.convert_layout(correction, gl.SliceLayout(0, of_values))[None, :]
            gl.barrier()
            acc = warpgroup_mma(values.index(stage).permute((1, 0)), weights, acc, is_async=True)
            acc = warpgroup_mma_wait(0, deps=[acc])
            stage = 1 - stage
        async_copy.wait_group(0)

        of_row: gl.constexpr = gl.SliceLayout(1, loaded)
        row_max = gl.convert_layout(row_max, of_row)
        row_sum = gl.convert_layout(row_sum, of_row)
        factor = gl.full([BLOCK_M], 1.0, gl.float32, of_row)
        if splits == 1:
            sinks = gl.load(sinks_ptr + head, mask=inside & ((flags & SINKS) != 0), other=float("-inf")) * LOG2E
            factor, row_max, row_sum = with_sink(row_max, row_sum, sinks)
        factor /= divisor_of(row_sum)
        out = gl.convert_layout(gl.permute(acc, (1, 0)), loaded) * factor[:, None]
        there = inside[:, None] & (columns >= 0)
        if splits == 1:
            at = (batch_q * stride_ob + row * stride_om + head_64 * stride_oh)[:, None]
            gl.store(out_ptr + at + columns, out.to(dtype), mask=there)
            lse = gl.fma(row_max, LN2, gl.log2(divisor_of(row_sum)) * LN2)
            gl.store(lse_ptr + batch_q * stride_lb + head_64 * stride_lh + row, lse, mask=inside & ((flags & LSE) != 0))
        else:
            place = split * rows_total + (batch_q * heads + head_64) * rows_head + row
            gl.store(partial_ptr + (place * stride_pm)[:, None] + columns, out, mask=there)
            gl.store(partial_softmax_ptr + place, row_max, mask=inside)
            gl.store(partial_softmax_ptr + splits * rows_total + place, row_sum, mask=inside)
