"""Attention of many rows over cached keys for Hopper, in Gluon: what attn_decode.py computes, of chunks of a prompt.

It is attn_fwd_hopper.py with other producers; its consumers multiply here too, and the schedule is hopper_tiles.py's.
Cached keys are copied in boxes, each of which is in one page, and which together make the block that the forward copies
at once: in shared memory a block consists of pieces of 64 columns, and in each the keys follow one another, so a box is
64 columns wide. What takes a producer's time is the number of boxes: those of 16 keys want two producers.
"""

from typing import NamedTuple

from attn_fwd_hopper import Scores, consume, shared_memory
from flags import BOTTOM_RIGHT, CACHE_BATCH, CU_Q, LEFTPAD, PAGED
from hopper_pieces import Results, page_number, reinterpreted
from hopper_tiles import (
    CONSUMERS,
    TILE_ROWS,
    Call,
    Rows,
    announce,
    announce_end,
    block_of,
    pairs_of,
    tile_count,
    tile_rows,
    work_of,
)
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma


class Cache(NamedTuple):
    """Where cached keys and values lie (pages.py)."""

    new_rows: gl.tensor
    cache_batch_ptr: gl.tensor
    leftpad_ptr: gl.tensor
    table_ptr: gl.tensor
    stride_tb: gl.tensor
    page_size: gl.tensor
    page_factor: gl.tensor
    page_shift: gl.tensor


@gluon.jit
def in_cache(rows, call, cache):
    """The Rows with what the cache says of their keys: start_k is how many at the beginning do not count."""
    batch_k = rows.batch
    leftpad = rows.batch * 0
    if call.flags & CACHE_BATCH:
        batch_k = gl.load(cache.cache_batch_ptr + rows.batch)
    if call.flags & LEFTPAD:
        leftpad = gl.load(cache.leftpad_ptr + rows.batch)
    rows_k = gl.maximum(gl.minimum(rows.rows_k + cache.new_rows, call.seqlen_k) - leftpad, 0)
    return Rows(rows.batch, rows.head, rows.first, rows.batch_q, rows.start_q, rows.rows_q, batch_k, leftpad, rows_k)


@gluon.jit
def copy_block(desc, boxes, stage, full, start, head_kv, rows, call, cache, BLOCK_N: gl.constexpr, WIDTH: gl.constexpr,
               PRODUCER: gl.constexpr, PRODUCERS: gl.constexpr):  # fmt: skip
    """Copies a producer's part of a block of keys, or of values.

    Args:
        boxes: shared memory of all stages, in boxes.
        start: the number of the block's first key in the sequence.
        WIDTH: columns of a row.
    """
    BOX: gl.constexpr = desc.block_shape[2]
    COUNT: gl.constexpr = BLOCK_N // BOX
    COLUMNS: gl.constexpr = WIDTH // desc.block_shape[3]
    table_ptr = cache.table_ptr + rows.batch.to(gl.int64) * cache.stride_tb
    is_paged = (call.flags & PAGED) != 0
    mbarrier.expect(full.index(stage), COUNT // PRODUCERS * COLUMNS * desc.nbytes_per_cta)
    for box in gl.static_range(COUNT * PRODUCER // PRODUCERS, COUNT * (PRODUCER + 1) // PRODUCERS):
        key = rows.start_k + start + box * BOX
        number = page_number(key, cache.page_factor, cache.page_shift)
        # The table may end before the block does: any page will do for keys that no row sees.
        page = gl.load(table_ptr + number, mask=is_paged & (start + box * BOX < rows.rows_k), other=rows.batch_k)
        key -= number * cache.page_size
        for column in gl.static_range(COLUMNS):
            tma.async_load(desc, [page, head_kv, key, column * desc.block_shape[3]], full.index(stage),
                           boxes.index((stage * COLUMNS + column) * COUNT + box))  # fmt: skip


@gluon.jit
def produce(q_desc, k_desc, v_desc, shared, call, cache, HEAD_DIM: gl.constexpr, WIDTH_V: gl.constexpr,
            BLOCK_N: gl.constexpr, KEY_STAGES: gl.constexpr, STAGES: gl.constexpr, ROW_STAGES: gl.constexpr,
            PRODUCER: gl.constexpr, PRODUCERS: gl.constexpr):  # fmt: skip
    """attn_fwd_hopper.produce(), of cached keys; of several producers the first copies the rows as well."""
    dtype: gl.constexpr = k_desc.dtype
    BOX: gl.constexpr = k_desc.block_shape[2]
    COLUMNS: gl.constexpr = k_desc.block_shape[3]
    BOXES: gl.constexpr = BLOCK_N // BOX
    K_BOXES: gl.constexpr = KEY_STAGES * BOXES * HEAD_DIM // COLUMNS
    V_BOXES: gl.constexpr = STAGES * BOXES * WIDTH_V // COLUMNS
    k_boxes = reinterpreted(shared.k, dtype, [K_BOXES, 1, 1, BOX, COLUMNS], k_desc.layout)
    v_boxes = reinterpreted(shared.v, dtype, [V_BOXES, 1, 1, BOX, COLUMNS], v_desc.layout)
    ROW_COLUMNS: gl.constexpr = q_desc.block_shape[3]
    PARTS: gl.constexpr = HEAD_DIM // ROW_COLUMNS
    done = 0
    taken = 0
    for turn in range(tile_count(call)):
        rows = tile_rows(turn, call)
        if (rows.first >= 0) & (rows.first < rows.rows_q):
            rows = in_cache(rows, call, cache)
            work = work_of(rows, call, BLOCK_N)
            head_kv = rows.head // call.heads_per_kv
            if PRODUCER == 0:
                slot = taken % ROW_STAGES
                mbarrier.wait(shared.q_empty.index(slot), (taken // ROW_STAGES & 1) ^ 1)
                announce(shared.tiles, slot, rows, work)
                mbarrier.expect(shared.q_full.index(slot), CONSUMERS * PARTS * q_desc.nbytes_per_cta)
                for c in gl.static_range(CONSUMERS):
                    row = rows.start_q + rows.first + 64 * c
                    for part in gl.static_range(PARTS):
                        tma.async_load(q_desc, [rows.batch_q, rows.head, row, part * ROW_COLUMNS],
                                       shared.q_full.index(slot),
                                       shared.q.index((slot * CONSUMERS + c) * PARTS + part))  # fmt: skip
            for i in range(1 + work.middle + work.rest):
                start = block_of(i, work) * BLOCK_N
                stage = done % KEY_STAGES
                if KEY_STAGES == STAGES:
                    mbarrier.wait(shared.k_empty.index(stage), (done // KEY_STAGES & 1) ^ 1)
                copy_block(k_desc, k_boxes, stage, shared.k_full, start, head_kv, rows, call, cache, BLOCK_N, HEAD_DIM,
                           PRODUCER, PRODUCERS)  # fmt: skip
                stage = done % STAGES
                mbarrier.wait(shared.v_empty.index(stage), (done // STAGES & 1) ^ 1)
                copy_block(v_desc, v_boxes, stage, shared.v_full, start, head_kv, rows, call, cache, BLOCK_N, WIDTH_V,
                           PRODUCER, PRODUCERS)  # fmt: skip
                done += 1
            taken += 1
    if PRODUCER == 0:
        slot = taken % ROW_STAGES
        mbarrier.wait(shared.q_empty.index(slot), (taken // ROW_STAGES & 1) ^ 1)
        announce_end(shared.tiles, slot)
        mbarrier.arrive(shared.q_full.index(slot), count=1)


@gluon.jit
def attn_prefill_hopper(
    q_desc, k_desc, v_desc, out_desc, cu_q_ptr, used_k_ptr, table_ptr, cache_batch_ptr, leftpad_ptr, sm_scale,
    batches, heads, heads_per_kv, seqlen_q, seqlen_k, new_rows, stride_tb, page_size, page_factor, page_shift, width_v,
    window_left, window_right, flags, out_ptr, lse_ptr, sinks_ptr, stride_ob, stride_oh, stride_om, stride_lb,
    stride_lh, tiles, HEAD_DIM: gl.constexpr, WIDTH_V: gl.constexpr, BOX: gl.constexpr, BLOCK_N: gl.constexpr,
    KEY_STAGES: gl.constexpr, STAGES: gl.constexpr, ROW_STAGES: gl.constexpr, REGISTERS: gl.constexpr,
    PRODUCERS: gl.constexpr,
):  # fmt: skip
    """Attention of `tiles` blocks of rows with a cache, by as many programs as there are multiprocessors, or blocks.

    Shapes and arguments are those of attn_decode.py; the scale is not negative.

    Args:
        q_desc, out_desc, out_ptr: as in attn_fwd_hopper, and so is what has no line here.
        k_desc, v_desc: of [pages, heads / heads_per_kv, page_size, width], in boxes of BOX keys and 64 columns; BOX
            divides page_size. Columns from width to HEAD_DIM, or of values to WIDTH_V, are zeros.
        PRODUCERS: 1 or 2.
    """
    gl.static_assert(k_desc.block_shape[2] == BOX)
    PARTS: gl.constexpr = HEAD_DIM // q_desc.block_shape[3]
    shared = shared_memory(q_desc, out_desc, k_desc.layout, v_desc.layout, WIDTH_V, BLOCK_N, KEY_STAGES, STAGES,
                           ROW_STAGES, PARTS, PRODUCERS)  # fmt: skip
    flags |= BOTTOM_RIGHT
    blocks = gl.cdiv(seqlen_q, TILE_ROWS)
    pairs = gl.where((flags & CU_Q) != 0, 0, pairs_of(batches * heads, blocks))
    call = Call(batches, heads, heads_per_kv, pairs, blocks, tiles, seqlen_q, seqlen_k, window_left, window_right,
                flags, cu_q_ptr, cu_q_ptr, cu_q_ptr, used_k_ptr)  # fmt: skip
    cache = Cache(new_rows, cache_batch_ptr, leftpad_ptr, table_ptr, stride_tb, page_size, page_factor, page_shift)
    # There is neither a bias nor slopes.
    score = Scores(sm_scale, 1.0, lse_ptr, 0, 0, 0, lse_ptr, 0, sinks_ptr)
    results = Results(out_desc, out_ptr, stride_ob, stride_oh, stride_om, width_v, lse_ptr, stride_lb, stride_lh)
    if PRODUCERS == 1:
        gl.warp_specialize([
            (consume, (shared, call, score, results, 0, HEAD_DIM, WIDTH_V, "none", BLOCK_N, KEY_STAGES, STAGES,
                       ROW_STAGES, PARTS)),
            (consume, (shared, call, score, results, 1, HEAD_DIM, WIDTH_V, "none", BLOCK_N, KEY_STAGES, STAGES,
                       ROW_STAGES, PARTS)),
            (produce, (q_desc, k_desc, v_desc, shared, call, cache, HEAD_DIM, WIDTH_V, BLOCK_N, KEY_STAGES, STAGES,
                       ROW_STAGES, 0, 1)),
        ], [4, 1], [REGISTERS, 24])  # fmt: skip
    else:
        gl.warp_specialize([
            (consume, (shared, call, score, results, 0, HEAD_DIM, WIDTH_V, "none", BLOCK_N, KEY_STAGES, STAGES,
                       ROW_STAGES, PARTS)),
            (consume, (shared, call, score, results, 1, HEAD_DIM, WIDTH_V, "none", BLOCK_N, KEY_STAGES, STAGES,
                       ROW_STAGES, PARTS)),
            (produce, (q_desc, k_desc, v_desc, shared, call, cache, HEAD_DIM, WIDTH_V, BLOCK_N, KEY_STAGES, STAGES,
                       ROW_STAGES, 0, 2)),
            (produce, (q_desc, k_desc, v_desc, shared, call, cache, HEAD_DIM, WIDTH_V, BLOCK_N, KEY_STAGES, STAGES,
                       ROW_STAGES, 1, 2)),
        ], [4, 1, 1], [REGISTERS, 24, 24])  # fmt: skip
