"""Attention forward for Hopper, in Gluon: what attn_fwd.py computes, of tiles that tensor descriptors copy.

A program is a producer warp and two consumers, warpgroups of 64 rows each, and works through many tiles: the producer
copies the next tile's rows and keys while consumers are still at the last. A consumer issues the product of its rows
with the next block of keys before that of the last block's weights with its values (FlashAttention-3: Shah et al.,
2024, arXiv:2407.08608, section 3.2), and while it computes weights, the other's products are under way (section 3.1).

Rows of up to 128 columns are held in registers: of what tensor cores read in a step, 192 bytes in 224 would come from
shared memory, whose rate they reach. The order of a tile's blocks of keys is Work's (hopper_tiles.py).
"""

from typing import NamedTuple

from flags import CU_Q, SUMS_Q, USED_Q
from hopper_order import Level, most_turns, ordered_rows, plain_call, planes_together
from hopper_pieces import (
    Results,
    after_wait,
    before_wait,
    finish,
    highest,
    mask,
    nearly_highest,
    rescaled,
    weigh,
)
from hopper_steps import added, half_weights, is_cut, leave_keys, product, scored, summed, whole_weights
from hopper_tiles import (
    CONSUMERS,
    FIELDS,
    TILE_ROWS,
    Call,
    announce,
    announce_end,
    block_of,
    pairs_of,
    rest_block,
    tile_at,
    tile_count,
    tile_rows,
    work_of,
)
from scores import LOG2E, slope_of
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma_wait


class Scores(NamedTuple):
    """What becomes of products (scores.shaped)."""

    scale: gl.tensor
    softcap: gl.tensor
    bias_ptr: gl.tensor
    stride_bb: gl.tensor
    stride_bh: gl.tensor
    stride_bm: gl.tensor
    slopes_ptr: gl.tensor
    stride_sb: gl.tensor
    sinks_ptr: gl.tensor


class Shared(NamedTuple):
    """What lies in shared memory: tiles (hopper_tiles.announce), their rows, keys and values, results; and the barriers
    that say whether these are there, or may be replaced.

    Results are put in their rows' place; or, of wide heads, which have no second place for the next tile's rows, in one
    of their own, half a row at a time. k_empty is used where there are as many stages of keys as of values. Where keys
    have one more, what the producer waited for before it copied the last values says that the stage for the next keys
    is free."""

    tiles: gl.shared_memory_descriptor
    q: gl.shared_memory_descriptor
    k: gl.shared_memory_descriptor
    v: gl.shared_memory_descriptor
    results: gl.shared_memory_descriptor
    q_full: gl.shared_memory_descriptor
    q_empty: gl.shared_memory_descriptor
    k_full: gl.shared_memory_descriptor
    k_empty: gl.shared_memory_descriptor
    v_full: gl.shared_memory_descriptor
    v_empty: gl.shared_memory_descriptor


@gluon.jit
def shared_memory(q_desc, out_desc, K_LAYOUT: gl.constexpr, V_LAYOUT: gl.constexpr, WIDTH_V: gl.constexpr,
                  BLOCK_N: gl.constexpr, KEY_STAGES: gl.constexpr, STAGES: gl.constexpr, ROW_STAGES: gl.constexpr,
                  PARTS: gl.constexpr, PRODUCERS: gl.constexpr):  # fmt: skip
    """Shared, with barriers at their beginning."""
    dtype: gl.constexpr = q_desc.dtype
    barrier: gl.constexpr = mbarrier.MBarrierLayout()
    COLUMNS: gl.constexpr = q_desc.block_shape[3]
    q = gl.allocate_shared_memory(dtype, [ROW_STAGES * CONSUMERS * PARTS, 1, 1, 64, COLUMNS], q_desc.layout)
    place = q
    if ROW_STAGES == 1:
        place = gl.allocate_shared_memory(dtype, [CONSUMERS, 1, 1, 64, WIDTH_V // 2], out_desc.layout)
    shared = Shared(
        gl.allocate_shared_memory(gl.int32, [ROW_STAGES * FIELDS, 1], gl.SwizzledSharedLayout(1, 1, 1, [0])),
        q,
        gl.allocate_shared_memory(dtype, [KEY_STAGES * PARTS, 1, 1, BLOCK_N, COLUMNS], K_LAYOUT),
        gl.allocate_shared_memory(dtype, [STAGES, 1, 1, BLOCK_N, WIDTH_V], V_LAYOUT),
        place,
        gl.allocate_shared_memory(gl.int64, [ROW_STAGES, 1], barrier),
        gl.allocate_shared_memory(gl.int64, [ROW_STAGES, 1], barrier),
        gl.allocate_shared_memory(gl.int64, [KEY_STAGES, 1], barrier),
        gl.allocate_shared_memory(gl.int64, [KEY_STAGES, 1], barrier),
        gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier),
        gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier),
    )
    for slot in gl.static_range(ROW_STAGES):
        mbarrier.init(shared.q_full.index(slot), count=1)
        mbarrier.init(shared.q_empty.index(slot), count=CONSUMERS)
    for stage in gl.static_range(KEY_STAGES):
        mbarrier.init(shared.k_full.index(stage), count=PRODUCERS)
        mbarrier.init(shared.k_empty.index(stage), count=CONSUMERS)
    for stage in gl.static_range(STAGES):
        mbarrier.init(shared.v_full.index(stage), count=PRODUCERS)
        mbarrier.init(shared.v_empty.index(stage), count=CONSUMERS)
    return shared


@gluon.jit
def produce(q_desc, k_desc, v_desc, shared, call, BLOCK_N: gl.constexpr, KEY_STAGES: gl.constexpr,
            STAGES: gl.constexpr, ROW_STAGES: gl.constexpr, PARTS: gl.constexpr, ORDERED: gl.constexpr):  # fmt: skip
    """Copies the rows of each tile, and block by block the keys and values that they see.

    ORDERED: tiles of windows, and of sequences of different lengths, in the order of hopper_order.py."""
    COLUMNS: gl.constexpr = q_desc.block_shape[3]
    done = 0
    taken = 0
    if ORDERED:
        plain = plain_call(call, PARTS * COLUMNS > 128)
        together = planes_together(call)
        is_ordered = (call.flags & (CU_Q | SUMS_Q | USED_Q)) != 0
        turns = gl.where(is_ordered, most_turns(call), tile_count(plain))
        level = Level(call.tiles + 1, call.tiles * 0, call.tiles * 0)
    else:
        turns = tile_count(call)
    for turn in range(turns):
        if ORDERED:
            if is_ordered:
                rows, level = ordered_rows(turn, level, call)
            else:
                rows = tile_rows(turn, plain, together)
        else:
            rows = tile_rows(turn, call)
        if (rows.first >= 0) & (rows.first < rows.rows_q):
            work = work_of(rows, call, BLOCK_N)
            head_kv = rows.head // call.heads_per_kv
            slot = taken % ROW_STAGES
            mbarrier.wait(shared.q_empty.index(slot), (taken // ROW_STAGES & 1) ^ 1)
            announce(shared.tiles, slot, rows, work)
            mbarrier.expect(shared.q_full.index(slot), CONSUMERS * PARTS * q_desc.nbytes_per_cta)
            for c in gl.static_range(CONSUMERS):
                row = rows.start_q + rows.first + 64 * c
                for part in gl.static_range(PARTS):
                    tma.async_load(q_desc, [rows.batch_q, rows.head, row, part * COLUMNS], shared.q_full.index(slot),
                                   shared.q.index((slot * CONSUMERS + c) * PARTS + part))  # fmt: skip
            for i in range(1 + work.middle + work.rest):
                key = rows.start_k + block_of(i, work) * BLOCK_N
                stage = done % KEY_STAGES
                if KEY_STAGES == STAGES:
                    mbarrier.wait(shared.k_empty.index(stage), (done // KEY_STAGES & 1) ^ 1)
                mbarrier.expect(shared.k_full.index(stage), PARTS * k_desc.nbytes_per_cta)
                for part in gl.static_range(PARTS):
                    tma.async_load(k_desc, [rows.batch_k, head_kv, key, part * COLUMNS], shared.k_full.index(stage),
                                   shared.k.index(stage * PARTS + part))  # fmt: skip
                stage = done % STAGES
                mbarrier.wait(shared.v_empty.index(stage), (done // STAGES & 1) ^ 1)
                mbarrier.expect(shared.v_full.index(stage), v_desc.nbytes_per_cta)
                tma.async_load(v_desc, [rows.batch_k, head_kv, key, 0], shared.v_full.index(stage),
                               shared.v.index(stage))  # fmt: skip
                done += 1
            taken += 1
    slot = taken % ROW_STAGES
    mbarrier.wait(shared.q_empty.index(slot), (taken // ROW_STAGES & 1) ^ 1)
    announce_end(shared.tiles, slot)
    mbarrier.arrive(shared.q_full.index(slot), count=1)


@gluon.jit
def consume(shared, call, score, results, INDEX: gl.constexpr, HEAD_DIM: gl.constexpr, WIDTH_V: gl.constexpr,
            EXTRAS: gl.constexpr, BLOCK_N: gl.constexpr, KEY_STAGES: gl.constexpr, STAGES: gl.constexpr,
            ROW_STAGES: gl.constexpr, PARTS: gl.constexpr, TRIMMED: gl.constexpr = False):  # fmt: skip
    """Computes the rows [64 * INDEX, 64 * INDEX + 64) of each tile."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH_V, 16])
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, SUMS, 2)
    ROWS: gl.constexpr = gl.SliceLayout(1, SCORES)
    OUT_ROWS: gl.constexpr = gl.SliceLayout(1, SUMS)
    PLAIN: gl.constexpr = EXTRAS == "none"
    # To multiply a wide head's output takes as many instructions as a block's weights. At 128 it gains nothing to leave
    # that out, and at 64 the branch costs 4 % of the speed.
    LAZY: gl.constexpr = WIDTH_V > 128
    # Not 0, of which -inf would be no multiple: a scale of 0 makes all scores alike, and so does this.
    factor = gl.maximum(score.scale, 1.2e-38) * LOG2E if PLAIN else LOG2E
    flags = call.flags
    done = 0
    taken = 0
    mbarrier.wait(shared.q_full.index(0), 0)
    tile = tile_at(shared.tiles, 0)
    while tile.rows_q > 0:
        rows = tile.first + 64 * INDEX + gl.arange(0, 64, ROWS)
        slot = taken % ROW_STAGES
        place = (slot * CONSUMERS + INDEX) * PARTS
        q = shared.q.index(place)
        results_place = q if ROW_STAGES > 1 else shared.results.index(INDEX)
        if PARTS == 1:
            q = q.reshape([64, HEAD_DIM])
        if HEAD_DIM <= 128:
            q = q.load(gl.DotOperandLayout(0, SCORES, 2))
        bias_ptr = score.bias_ptr + tile.batch.to(gl.int64) * score.stride_bb + tile.head.to(gl.int64) * score.stride_bh
        slope = slope_of(score.slopes_ptr, tile.batch, score.stride_sb, tile.head, flags, EXTRAS)
        row_max = gl.full([64], float("-inf"), gl.float32, ROWS)
        row_sum = gl.zeros([64], gl.float32, ROWS)
        acc = gl.zeros([64, WIDTH_V], gl.float32, SUMS)
        if TRIMMED and INDEX == 0:
            is_half = tile.first + 63 + tile.after < tile.last * BLOCK_N + BLOCK_N // 2
            if is_half & (not is_cut(tile, flags, BLOCK_N)):
                weights, row_max, row_sum = half_weights(
                    q, place, shared, done, taken, rows, tile, row_max, row_sum, factor, HEAD_DIM, BLOCK_N, KEY_STAGES,
                    STAGES, ROW_STAGES, PARTS, ROWS, WEIGHTS)  # fmt: skip
            else:
                weights, row_max, row_sum = whole_weights(
                    q, place, shared, done, taken, rows, tile, row_max, row_sum, factor, bias_ptr, slope, score, flags,
                    INDEX, HEAD_DIM, WIDTH_V, EXTRAS, BLOCK_N, KEY_STAGES, STAGES, ROW_STAGES, PARTS, SCORES, WEIGHTS,
                )  # fmt: skip
        else:
            weights, row_max, row_sum = whole_weights(
                q, place, shared, done, taken, rows, tile, row_max, row_sum, factor, bias_ptr, slope, score, flags,
                INDEX, HEAD_DIM, WIDTH_V, EXTRAS, BLOCK_N, KEY_STAGES, STAGES, ROW_STAGES, PARTS, SCORES, WEIGHTS,
            )  # fmt: skip
        for step in range(tile.middle):
            products = product(q, place, shared, done + 1, BLOCK_N, KEY_STAGES, PARTS, SCORES)
            acc = added(acc, weights, shared, done, BLOCK_N, STAGES)
            scores = warpgroup_mma_wait(1, deps=[products])
            leave_keys(shared, done + 1, KEY_STAGES, STAGES)
            if ROW_STAGES == 1:
                is_last = (step == tile.middle - 1) & (tile.rest == 0)
                mbarrier.arrive(shared.q_empty.index(0), count=1, pred=is_last)
            if not PLAIN:
                number = tile.top - 1 - step
                scores = scored(scores, number, rows, tile, bias_ptr, slope, score, flags, EXTRAS, BLOCK_N, SCORES)
            if LAZY:
                new_max = before_wait(nearly_highest(row_max, scores, factor))
            else:
                new_max = before_wait(highest(row_max, scores, factor))
            acc = summed(acc, weights, shared, done, STAGES)
            new_max = after_wait(new_max)
            p, correction, row_sum = weigh(row_max, row_sum, new_max, scores, factor, not PLAIN)
            row_max = new_max
            weights = gl.convert_layout(p.to(q.dtype), WEIGHTS)
            if LAZY:
                acc = rescaled(acc, gl.convert_layout(correction, OUT_ROWS))
            else:
                acc = acc * gl.convert_layout(correction, OUT_ROWS)[:, None]
            done += 1
        acc = added(acc, weights, shared, done, BLOCK_N, STAGES)
        acc = summed(acc, weights, shared, done, STAGES)
        done += 1

        # Other blocks with a mask: few, and each by itself. Weights that went from one loop to another would be
        # taken apart and put together again in each step.
        for i in range(tile.rest):
            products = product(q, place, shared, done, BLOCK_N, KEY_STAGES, PARTS, SCORES)
            scores = warpgroup_mma_wait(0, deps=[products])
            leave_keys(shared, done, KEY_STAGES, STAGES)
            if ROW_STAGES == 1:
                mbarrier.arrive(shared.q_empty.index(0), count=1, pred=i == tile.rest - 1)
            number = rest_block(i, tile)
            if not PLAIN:
                scores = scored(scores, number, rows, tile, bias_ptr, slope, score, flags, EXTRAS, BLOCK_N, SCORES)
            scores = mask(scores, number, rows, tile, BLOCK_N, SCORES, HEAD_DIM > 64)
            new_max = highest(row_max, scores, factor)
            p, correction, row_sum = weigh(row_max, row_sum, new_max, scores, factor, True)
            row_max = new_max
            weights = gl.convert_layout(p.to(q.dtype), WEIGHTS)
            acc = acc * gl.convert_layout(correction, OUT_ROWS)[:, None]
            acc = added(acc, weights, shared, done, BLOCK_N, STAGES)
            acc = summed(acc, weights, shared, done, STAGES)
            done += 1

        finish(acc, row_max, row_sum, results_place, rows, tile, score.sinks_ptr, results, flags, INDEX, WIDTH_V, ROWS,
               SUMS)  # fmt: skip
        taken += 1
        mbarrier.wait(shared.q_full.index(taken % ROW_STAGES), taken // ROW_STAGES & 1)
        tile = tile_at(shared.tiles, taken % ROW_STAGES)
    tma.store_wait(0)


@gluon.jit
def attn_fwd_hopper(
    q_desc, k_desc, v_desc, out_desc, bias_ptr, slopes_ptr, cu_q_ptr, cu_k_ptr, used_q_ptr, used_k_ptr, sm_scale,
    softcap, stride_bb, stride_bh, stride_bm, stride_sb, batches, heads, heads_per_kv, seqlen_q, seqlen_k, width_v,
    window_left, window_right, flags, out_ptr, lse_ptr, sinks_ptr, stride_ob, stride_oh, stride_om, stride_lb,
    stride_lh, tiles, HEAD_DIM: gl.constexpr, WIDTH_V: gl.constexpr, EXTRAS: gl.constexpr, BLOCK_N: gl.constexpr,
    TRIMMED: gl.constexpr, KEY_STAGES: gl.constexpr, STAGES: gl.constexpr, ROW_STAGES: gl.constexpr,
    REGISTERS: gl.constexpr,
):  # fmt: skip
    """Attention forward of `tiles` blocks of rows, by as many programs as there are multiprocessors, or blocks.

    Shapes and arguments are those of attn_fwd.py.

    Args:
        q_desc, out_desc: of [batch, heads, seqlen_q, width], in boxes of 64 rows. Where HEAD_DIM is no power of two,
            boxes of q and k have 64 columns; of results they have half of them if ROW_STAGES is 1.
        k_desc, v_desc: of [batch, heads / heads_per_kv, seqlen_k, width], in boxes of BLOCK_N keys. Columns from width
            to HEAD_DIM, or of values to WIDTH_V, are zeros.
        out_ptr: where out_desc is: rows that end within a box are written one by one.
        TRIMMED: the lower half of a tile's rows leaves out half of the last block where it sees nothing of that half.
        KEY_STAGES, STAGES: blocks of keys and of values in shared memory (Shared).
        ROW_STAGES: tiles of rows there: 2 where they fit, so that the next tile's are there when they are wanted.
        REGISTERS: of a consumer's thread.
    """
    PARTS: gl.constexpr = HEAD_DIM // q_desc.block_shape[3]
    shared = shared_memory(q_desc, out_desc, k_desc.layout, v_desc.layout, WIDTH_V, BLOCK_N, KEY_STAGES, STAGES,
                           ROW_STAGES, PARTS, 1)  # fmt: skip
    blocks = gl.cdiv(seqlen_q, TILE_ROWS)
    # Of heads up to 64, and with what is done to scores, calls are too few, or gain too little, for larger images.
    ORDERED: gl.constexpr = EXTRAS == "none" and HEAD_DIM > 64
    pairs = gl.where((flags & (CU_Q | USED_Q)) != 0, 0, pairs_of(batches * heads, blocks))
    call = Call(batches, heads, heads_per_kv, pairs, blocks, tiles, seqlen_q, seqlen_k, window_left, window_right,
                flags, cu_q_ptr, cu_k_ptr, used_q_ptr, used_k_ptr)  # fmt: skip
    score = Scores(sm_scale, softcap, bias_ptr, stride_bb, stride_bh, stride_bm, slopes_ptr, stride_sb, sinks_ptr)
    results = Results(out_desc, out_ptr, stride_ob, stride_oh, stride_om, width_v, lse_ptr, stride_lb, stride_lh)
    gl.warp_specialize([
        (consume, (shared, call, score, results, 0, HEAD_DIM, WIDTH_V, EXTRAS, BLOCK_N, KEY_STAGES, STAGES, ROW_STAGES,
                   PARTS, TRIMMED)),
        (consume, (shared, call, score, results, 1, HEAD_DIM, WIDTH_V, EXTRAS, BLOCK_N, KEY_STAGES, STAGES, ROW_STAGES,
                   PARTS, TRIMMED)),
        (produce, (q_desc, k_desc, v_desc, shared, call, BLOCK_N, KEY_STAGES, STAGES, ROW_STAGES, PARTS,
                   ORDERED)),
    ], [4, 1], [REGISTERS, 24])  # fmt: skip
