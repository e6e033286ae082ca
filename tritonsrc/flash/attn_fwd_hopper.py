"""Attention forward for Hopper, in Gluon: what attn_fwd.py computes, of tiles that tensor descriptors copy.

A program is a producer warp and two consumers, warpgroups of 64 rows each, and works through many tiles: the producer
copies the next tile's rows and keys while consumers are still at the last. A consumer issues the product of its rows
with the next block of keys before that of the last block's weights with its values (FlashAttention-3: Shah et al.,
2024, arXiv:2407.08608, section 3.2), and while it computes weights, the other's products are under way (section 3.1).

Rows of up to 128 columns are held in registers: of what tensor cores read in a step, 192 bytes in 224 would come from
shared memory, whose rate they reach. The order of a tile's blocks of keys is Work's (hopper_tiles.py).
"""

from typing import NamedTuple

from flags import CU_K, CU_Q, LSE, LSE_BY_SEQUENCE, SINKS, SUMS_K, SUMS_Q, USED_K, USED_Q
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
    rows_of,
    tile_at,
    turns_of,
    work_of,
)
from scores import LOG2E, shaped, slope_of
from softmax import LN2, divisor_of, with_sink
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)


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


class Results(NamedTuple):
    """Where results go."""

    out_desc: tma.tensor_descriptor
    out_ptr: gl.tensor
    stride_ob: gl.tensor
    stride_oh: gl.tensor
    stride_om: gl.tensor
    width_v: gl.tensor
    lse_ptr: gl.tensor
    stride_lb: gl.tensor
    stride_lh: gl.tensor


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
def produce(q_desc, k_desc, v_desc, shared, call, BLOCK_N: gl.constexpr, KEY_STAGES: gl.constexpr,
            STAGES: gl.constexpr, ROW_STAGES: gl.constexpr, PARTS: gl.constexpr):  # fmt: skip
    """Copies the rows of each tile, and block by block the keys and values that they see."""
    COLUMNS: gl.constexpr = q_desc.block_shape[3]
    done = 0
    taken = 0
    for turn in range(turns_of(call)):
        rows = rows_of(turn, call)
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
def product(q, place, shared, done, BLOCK_N: gl.constexpr, KEY_STAGES: gl.constexpr, PARTS: gl.constexpr,
            SCORES: gl.constexpr):  # fmt: skip
    """Begins the product of rows and the done-th block of keys, once that is there. Rows in parts lie from number
    `place` on; others are in q."""
    stage = done % KEY_STAGES
    mbarrier.wait(shared.k_full.index(stage), done // KEY_STAGES & 1)
    COLUMNS: gl.constexpr = shared.k.shape[4]
    scores = gl.zeros([64, BLOCK_N], gl.float32, SCORES)
    for part in gl.static_range(PARTS):
        if PARTS > 1:
            q = shared.q.index(place + part).reshape([64, COLUMNS])
        k = shared.k.index(stage * PARTS + part).reshape([BLOCK_N, COLUMNS])
        scores = warpgroup_mma(q, k.permute((1, 0)), scores, use_acc=part > 0, is_async=True)
    return scores


@gluon.jit
def leave_keys(shared, done, KEY_STAGES: gl.constexpr, STAGES: gl.constexpr):
    """The done-th keys may be replaced."""
    if KEY_STAGES == STAGES:
        mbarrier.arrive(shared.k_empty.index(done % KEY_STAGES), count=1)


@gluon.jit
def added(acc, weights, shared, done, BLOCK_N: gl.constexpr, STAGES: gl.constexpr):
    """Begins to add the weights times the done-th block of values, once that is there."""
    stage = done % STAGES
    mbarrier.wait(shared.v_full.index(stage), done // STAGES & 1)
    v = shared.v.index(stage).reshape([BLOCK_N, acc.shape[1]])
    return warpgroup_mma(weights, v, acc, is_async=True)


@gluon.jit
def summed(acc, weights, shared, done, STAGES: gl.constexpr):
    """The output once what added() began is done; the done-th values may be replaced then."""
    acc, weights = warpgroup_mma_wait(0, deps=[acc, weights])
    mbarrier.arrive(shared.v_empty.index(done % STAGES), count=1)
    return acc


@gluon.jit
def before_wait(x):
    """x, known before any wait that follows: a store that never happens, and that the assembler moves over no wait,
    reads it. Without it, the order of what a wait hides is a matter of chance, a tenth of the speed."""
    return gl.inline_asm_elementwise(
        "{ .reg .pred p; setp.eq.s32 p, $2, -7; @p st.shared.f32 [$2], $1; mov.b32 $0, $1; }", "=f,f,r",
        [x, x.to(gl.int32, bitcast=True)], dtype=gl.float32, is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def after_wait(x):
    """x, not known before any wait that precedes: see before_wait. The bits of -7 are a NaN that no operation makes."""
    return gl.inline_asm_elementwise(
        "{ .reg .pred p; setp.eq.s32 p, $2, -7; mov.b32 $0, $1; @p ld.shared.f32 $0, [$2]; }", "=f,f,r",
        [x, x.to(gl.int32, bitcast=True)], dtype=gl.float32, is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def scored(products, number, rows, tile, bias_ptr, slope, score, flags, EXTRAS: gl.constexpr, BLOCK_N: gl.constexpr,
           LAYOUT: gl.constexpr):  # fmt: skip
    """The scores of a block of keys, before its mask, for images with EXTRAS."""
    keys = number * BLOCK_N + gl.arange(0, BLOCK_N, gl.SliceLayout(0, LAYOUT))
    there = (rows < tile.rows_q)[:, None] & (keys < tile.rows_k)[None, :]
    scores, _ = shaped(products, score.scale, score.softcap, bias_ptr, score.stride_bm, slope, rows, keys,
                       tile.rows_k - tile.rows_q, there, flags, EXTRAS)  # fmt: skip
    return scores


@gluon.jit
def masked(scores, number, rows, tile, BLOCK_N: gl.constexpr, LAYOUT: gl.constexpr):
    """The scores of a block, with -inf where a row does not see a key."""
    column = gl.arange(0, BLOCK_N, gl.SliceLayout(0, LAYOUT))
    start = number * BLOCK_N
    last = gl.minimum(rows + tile.after, tile.rows_k - 1) - start
    scores = gl.where(column[None, :] <= last[:, None], scores, float("-inf"))
    if tile.first + TILE_ROWS - 1 + tile.before > start:
        first = rows + (tile.before - start)
        scores = gl.where(column[None, :] >= first[:, None], scores, float("-inf"))
    return scores


@gluon.jit
def highest(row_max, scores, factor):
    """The largest score of each row so far, in base 2."""
    return gl.maximum(row_max, gl.max(scores, 1) * factor)


@gluon.jit
def weighed(row_max, row_sum, new_max, scores, factor, MASKED: gl.constexpr):
    """softmax.weighed(), with the largest scores in new_max: weights, what to multiply the output by, and the sums."""
    shift = new_max
    if MASKED:
        # A row that has seen no key yet: -inf - -inf would be NaN.
        shift = gl.where(new_max == float("-inf"), 0.0, new_max)
    weights = gl.exp2(scores * factor - shift[:, None])
    correction = gl.exp2(row_max - shift)
    return weights, correction, row_sum * correction + gl.sum(weights, 1)


@gluon.jit
def clear_beyond(shared, done, count, BLOCK_N: gl.constexpr, WIDTH_V: gl.constexpr, STAGES: gl.constexpr):
    """Makes zeros of the values from number `count` of a block on: another sequence's, or whatever lies there, which a
    weight of 0 does not make 0 if it is no number. Each consumer does so for itself; they write the same."""
    LANES: gl.constexpr = min(WIDTH_V // 8, 32)
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [32 // LANES, LANES], [4, 1], [1, 0])
    stage = done % STAGES
    mbarrier.wait(shared.v_full.index(stage), done // STAGES & 1)
    tile = shared.v.index(stage).reshape([BLOCK_N, WIDTH_V])
    inside = gl.arange(0, BLOCK_N, gl.SliceLayout(1, LAYOUT)) < count
    tile.store(gl.where(inside[:, None], tile.load(LAYOUT), 0.0))
    fence_async_shared()
    gl.barrier()


@gluon.jit
def free_results():
    """Waits until results have been written from their place."""
    tma.store_wait(0)
    gl.barrier()


@gluon.jit
def put_results(values, place, desc, tile, row, column):
    """Begins to write results from `place`."""
    place.reshape(values.shape).store(values)
    fence_async_shared()
    gl.barrier()
    tma.async_store(desc, [tile.batch_q, tile.head, tile.start_q + row, column], place)


@gluon.jit
def finish(acc, row_max, row_sum, place, rows, tile, sinks_ptr, results, flags, INDEX: gl.constexpr,
           WIDTH_V: gl.constexpr, ROWS: gl.constexpr, SUMS: gl.constexpr):  # fmt: skip
    """Divides the output by the sum of weights, and begins to write it."""
    OUT_ROWS: gl.constexpr = gl.SliceLayout(1, SUMS)
    if flags & SINKS:
        correction, row_max, row_sum = with_sink(row_max, row_sum, gl.load(sinks_ptr + tile.head) * LOG2E)
        acc = acc * gl.convert_layout(correction, OUT_ROWS)[:, None]
    # A row that saw no key: zeros, whatever the values of the keys are that it was not to see.
    divisor = divisor_of(row_sum)
    inverse = gl.convert_layout(1.0 / divisor, OUT_ROWS)
    blind = gl.convert_layout(row_sum == 0.0, OUT_ROWS)
    acc = gl.where(blind[:, None], 0.0, acc * inverse[:, None]).to(place.dtype)
    first = tile.first + 64 * INDEX
    if ((flags & (CU_Q | SUMS_Q | USED_Q)) != 0) & (first + 64 > tile.rows_q):
        # Behind the last rows of a sequence lies the next, or what is not to be written.
        column = gl.arange(0, WIDTH_V, gl.SliceLayout(0, SUMS))
        row = first + gl.arange(0, 64, OUT_ROWS)
        at = results.out_ptr + tile.batch_q.to(gl.int64) * results.stride_ob
        at += tile.head.to(gl.int64) * results.stride_oh
        there = (row < tile.rows_q)[:, None] & (column < results.width_v)[None, :]
        gl.store(at + (tile.start_q + row)[:, None] * results.stride_om + column[None, :], acc, mask=there)
    elif place.shape[3] == WIDTH_V:
        put_results(acc, place, results.out_desc, tile, first, 0)
    else:
        left, right = gl.split(acc.reshape([64, 2, WIDTH_V // 2]).permute([0, 2, 1]))
        free_results()
        put_results(left, place, results.out_desc, tile, first, 0)
        free_results()
        put_results(right, place, results.out_desc, tile, first, WIDTH_V // 2)
    if flags & LSE:
        by_sequence = (flags & LSE_BY_SEQUENCE) != 0
        batch_l = gl.where(by_sequence, tile.batch, tile.batch_q).to(gl.int64)
        start_l = gl.where(by_sequence, 0, tile.start_q)
        lse = gl.fma(row_max, gl.full([64], LN2, gl.float32, ROWS), gl.log2(divisor) * LN2)
        lse_at = results.lse_ptr + batch_l * results.stride_lb + tile.head.to(gl.int64) * results.stride_lh + start_l
        gl.store(lse_at + rows, lse, mask=rows < tile.rows_q)


@gluon.jit
def consume(shared, call, score, results, INDEX: gl.constexpr, HEAD_DIM: gl.constexpr, WIDTH_V: gl.constexpr,
            EXTRAS: gl.constexpr, BLOCK_N: gl.constexpr, KEY_STAGES: gl.constexpr, STAGES: gl.constexpr,
            ROW_STAGES: gl.constexpr, PARTS: gl.constexpr):  # fmt: skip
    """Computes the rows [64 * INDEX, 64 * INDEX + 64) of each tile."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH_V, 16])
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, SUMS, 2)
    ROWS: gl.constexpr = gl.SliceLayout(1, SCORES)
    OUT_ROWS: gl.constexpr = gl.SliceLayout(1, SUMS)
    PLAIN: gl.constexpr = EXTRAS == "none"
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

        products = product(q, place, shared, done, BLOCK_N, KEY_STAGES, PARTS, SCORES)
        if ROW_STAGES > 1:
            # The last tile's results have been read by now from where its rows were.
            tma.store_wait(0)
            mbarrier.arrive(shared.q_empty.index((taken + 1) % ROW_STAGES), count=1, pred=taken > 0)
        scores = warpgroup_mma_wait(0, deps=[products])
        leave_keys(shared, done, KEY_STAGES, STAGES)
        if ROW_STAGES == 1:
            mbarrier.arrive(shared.q_empty.index(0), count=1, pred=tile.middle + tile.rest == 0)
        if not PLAIN:
            scores = scored(scores, tile.last, rows, tile, bias_ptr, slope, score, flags, EXTRAS, BLOCK_N, SCORES)
        if tile.is_masked != 0:
            scores = masked(scores, tile.last, rows, tile, BLOCK_N, SCORES)
            if ((flags & (CU_K | SUMS_K | USED_K)) != 0) & ((tile.last + 1) * BLOCK_N > tile.rows_k):
                clear_beyond(shared, done, tile.rows_k - tile.last * BLOCK_N, BLOCK_N, WIDTH_V, STAGES)
        new_max = highest(row_max, scores, factor)
        p, correction, row_sum = weighed(row_max, row_sum, new_max, scores, factor, True)
        row_max = new_max
        weights = gl.convert_layout(p.to(q.dtype), WEIGHTS)
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
            new_max = before_wait(highest(row_max, scores, factor))
            acc = summed(acc, weights, shared, done, STAGES)
            new_max = after_wait(new_max)
            p, correction, row_sum = weighed(row_max, row_sum, new_max, scores, factor, not PLAIN)
            row_max = new_max
            weights = gl.convert_layout(p.to(q.dtype), WEIGHTS)
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
            scores = masked(scores, number, rows, tile, BLOCK_N, SCORES)
            new_max = highest(row_max, scores, factor)
            p, correction, row_sum = weighed(row_max, row_sum, new_max, scores, factor, True)
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
    KEY_STAGES: gl.constexpr, STAGES: gl.constexpr, ROW_STAGES: gl.constexpr, REGISTERS: gl.constexpr,
):  # fmt: skip
    """Attention forward of `tiles` blocks of rows, by as many programs as there are multiprocessors, or blocks.

    Shapes and arguments are those of attn_fwd.py.

    Args:
        q_desc, out_desc: of [batch, heads, seqlen_q, width], in boxes of 64 rows. Where HEAD_DIM is no power of two,
            boxes of q and k have 64 columns; of results they have half of them if ROW_STAGES is 1.
        k_desc, v_desc: of [batch, heads / heads_per_kv, seqlen_k, width], in boxes of BLOCK_N keys. Columns from width
            to HEAD_DIM, or of values to WIDTH_V, are zeros.
        out_ptr: where out_desc is: rows that end within a box are written one by one.
        KEY_STAGES, STAGES: blocks of keys and of values in shared memory (Shared).
        ROW_STAGES: tiles of rows there: 2 where they fit, so that the next tile's are there when they are wanted.
        REGISTERS: of a consumer's thread.
    """
    dtype: gl.constexpr = q_desc.dtype
    barrier: gl.constexpr = mbarrier.MBarrierLayout()
    COLUMNS: gl.constexpr = q_desc.block_shape[3]
    PARTS: gl.constexpr = HEAD_DIM // COLUMNS
    q = gl.allocate_shared_memory(dtype, [ROW_STAGES * CONSUMERS * PARTS, 1, 1, 64, COLUMNS], q_desc.layout)
    place = q
    if ROW_STAGES == 1:
        place = gl.allocate_shared_memory(dtype, [CONSUMERS, 1, 1, 64, WIDTH_V // 2], out_desc.layout)
    shared = Shared(
        gl.allocate_shared_memory(gl.int32, [ROW_STAGES * FIELDS, 1], gl.SwizzledSharedLayout(1, 1, 1, [0])),
        q,
        gl.allocate_shared_memory(dtype, [KEY_STAGES * PARTS, 1, 1, BLOCK_N, COLUMNS], k_desc.layout),
        gl.allocate_shared_memory(dtype, [STAGES, 1, 1, BLOCK_N, WIDTH_V], v_desc.layout),
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
        mbarrier.init(shared.k_full.index(stage), count=1)
        mbarrier.init(shared.k_empty.index(stage), count=CONSUMERS)
    for stage in gl.static_range(STAGES):
        mbarrier.init(shared.v_full.index(stage), count=1)
        mbarrier.init(shared.v_empty.index(stage), count=CONSUMERS)
    blocks = gl.cdiv(seqlen_q, TILE_ROWS)
    pairs = gl.where((flags & (CU_Q | USED_Q)) != 0, 0, pairs_of(batches * heads, blocks))
    call = Call(batches, heads, heads_per_kv, pairs, blocks, tiles, seqlen_q, seqlen_k, window_left, window_right,
                flags, cu_q_ptr, cu_k_ptr, used_q_ptr, used_k_ptr)  # fmt: skip
    score = Scores(sm_scale, softcap, bias_ptr, stride_bb, stride_bh, stride_bm, slopes_ptr, stride_sb, sinks_ptr)
    results = Results(out_desc, out_ptr, stride_ob, stride_oh, stride_om, width_v, lse_ptr, stride_lb, stride_lh)
    gl.warp_specialize([
        (consume, (shared, call, score, results, 0, HEAD_DIM, WIDTH_V, EXTRAS, BLOCK_N, KEY_STAGES, STAGES, ROW_STAGES,
                   PARTS)),
        (consume, (shared, call, score, results, 1, HEAD_DIM, WIDTH_V, EXTRAS, BLOCK_N, KEY_STAGES, STAGES, ROW_STAGES,
                   PARTS)),
        (produce, (q_desc, k_desc, v_desc, shared, call, BLOCK_N, KEY_STAGES, STAGES, ROW_STAGES, PARTS)),
    ], [4, 1], [REGISTERS, 24])  # fmt: skip
