"""What consumers of the forward for Hopper do with a block of keys: products, and the weights of a tile's first."""

from flags import CU_K, SUMS_K, USED_K
from hopper_pieces import highest, mask, weigh
from scores import shaped
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)


@gluon.jit
def product(q, place, shared, done, COUNT: gl.constexpr, KEY_STAGES: gl.constexpr, PARTS: gl.constexpr,
            SCORES: gl.constexpr):  # fmt: skip
    """Begins the product of rows and the first COUNT keys of the done-th block, once that is there. Rows in parts lie
    from number `place` on; others are in q."""
    stage = done % KEY_STAGES
    mbarrier.wait(shared.k_full.index(stage), done // KEY_STAGES & 1)
    COLUMNS: gl.constexpr = shared.k.shape[4]
    BLOCK_N: gl.constexpr = shared.k.shape[3]
    scores = gl.zeros([64, COUNT], gl.float32, SCORES)
    for part in gl.static_range(PARTS):
        if PARTS > 1:
            q = shared.q.index(place + part).reshape([64, COLUMNS])
        k = shared.k.index(stage * PARTS + part).reshape([BLOCK_N, COLUMNS])
        if COUNT < BLOCK_N:
            k = k.slice(0, COUNT, dim=0)
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
def scored(products, number, rows, tile, bias_ptr, slope, score, flags, EXTRAS: gl.constexpr, BLOCK_N: gl.constexpr,
           LAYOUT: gl.constexpr):  # fmt: skip
    """The scores of a block of keys, before its mask, for images with EXTRAS."""
    keys = number * BLOCK_N + gl.arange(0, BLOCK_N, gl.SliceLayout(0, LAYOUT))
    there = (rows < tile.rows_q)[:, None] & (keys < tile.rows_k)[None, :]
    scores, _ = shaped(products, score.scale, score.softcap, bias_ptr, score.stride_bm, slope, rows, keys,
                       tile.rows_k - tile.rows_q, there, flags, EXTRAS)  # fmt: skip
    return scores


@gluon.jit
def is_cut(tile, flags, BLOCK_N: gl.constexpr):
    """Whether a tile's last block has values of no key of its sequence."""
    return ((flags & (CU_K | SUMS_K | USED_K)) != 0) & ((tile.last + 1) * BLOCK_N > tile.rows_k)


@gluon.jit
def meet():
    """Waits until both consumers are here. Nothing else uses the barrier 15."""
    gl.inline_asm_elementwise("barrier.sync 15, 256; mov.b32 $0, $1;", "=r,r", [gl.to_tensor(0)], dtype=gl.int32,
                              is_pure=False, pack=1)  # fmt: skip


@gluon.jit
def clear_beyond(shared, done, count, INDEX: gl.constexpr, BLOCK_N: gl.constexpr, WIDTH_V: gl.constexpr,
                 STAGES: gl.constexpr):  # fmt: skip
    """Makes zeros of the values from number `count` of a block on: another sequence's, or whatever lies there, which a
    weight of 0 does not make 0 if it is no number. Each consumer does so for half of the block, and both read all."""
    HALF: gl.constexpr = BLOCK_N // 2
    LANES: gl.constexpr = min(WIDTH_V // 8, 32)
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [32 // LANES, LANES], [4, 1], [1, 0])
    stage = done % STAGES
    mbarrier.wait(shared.v_full.index(stage), done // STAGES & 1)
    half = shared.v.index(stage).reshape([BLOCK_N, WIDTH_V]).slice(INDEX * HALF, HALF, dim=0)
    inside = INDEX * HALF + gl.arange(0, HALF, gl.SliceLayout(1, LAYOUT)) < count
    half.store(gl.where(inside[:, None], half.load(LAYOUT), 0.0))
    fence_async_shared()
    meet()


@gluon.jit
def leave_rows(shared, taken, ROW_STAGES: gl.constexpr):
    """The place of the last tile's rows may be replaced: once its results have been read from there."""
    tma.store_wait(0)
    mbarrier.arrive(shared.q_empty.index((taken + 1) % ROW_STAGES), count=1, pred=taken > 0)


@gluon.jit
def whole_weights(
    q, place, shared, done, taken, rows, tile, row_max, row_sum, factor, bias_ptr, slope, score, flags,
    INDEX: gl.constexpr, HEAD_DIM: gl.constexpr, WIDTH_V: gl.constexpr, EXTRAS: gl.constexpr, BLOCK_N: gl.constexpr,
    KEY_STAGES: gl.constexpr, STAGES: gl.constexpr, ROW_STAGES: gl.constexpr, PARTS: gl.constexpr,
    SCORES: gl.constexpr, WEIGHTS: gl.constexpr,
):  # fmt: skip
    """The weights of a tile's first block of keys, its largest scores and sums of weights."""
    products = product(q, place, shared, done, BLOCK_N, KEY_STAGES, PARTS, SCORES)
    if ROW_STAGES > 1:
        leave_rows(shared, taken, ROW_STAGES)
    scores = warpgroup_mma_wait(0, deps=[products])
    leave_keys(shared, done, KEY_STAGES, STAGES)
    if ROW_STAGES == 1:
        mbarrier.arrive(shared.q_empty.index(0), count=1, pred=tile.middle + tile.rest == 0)
    if EXTRAS != "none":
        scores = scored(scores, tile.last, rows, tile, bias_ptr, slope, score, flags, EXTRAS, BLOCK_N, SCORES)
    if tile.is_masked != 0:
        scores = mask(scores, tile.last, rows, tile, BLOCK_N, SCORES, HEAD_DIM > 64)
        if is_cut(tile, flags, BLOCK_N):
            clear_beyond(shared, done, tile.rows_k - tile.last * BLOCK_N, INDEX, BLOCK_N, WIDTH_V, STAGES)
    new_max = highest(row_max, scores, factor)
    p, _, row_sum = weigh(row_max, row_sum, new_max, scores, factor, True)
    return gl.convert_layout(p.to(shared.q.dtype), WEIGHTS), new_max, row_sum


@gluon.jit
def half_weights(q, place, shared, done, taken, rows, tile, row_max, row_sum, factor, HEAD_DIM: gl.constexpr,
                 BLOCK_N: gl.constexpr, KEY_STAGES: gl.constexpr, STAGES: gl.constexpr, ROW_STAGES: gl.constexpr,
                 PARTS: gl.constexpr, ROWS: gl.constexpr, WEIGHTS: gl.constexpr):  # fmt: skip
    """whole_weights() of rows in registers that see nothing of the block's second half, whose weights are zeros."""
    HALF: gl.constexpr = BLOCK_N // 2
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HALF, 16])
    HALF_ROWS: gl.constexpr = gl.SliceLayout(1, SCORES)
    q = gl.convert_layout(q, gl.DotOperandLayout(0, SCORES, 2))
    products = product(q, place, shared, done, HALF, KEY_STAGES, PARTS, SCORES)
    leave_rows(shared, taken, ROW_STAGES)
    scores = warpgroup_mma_wait(0, deps=[products])
    leave_keys(shared, done, KEY_STAGES, STAGES)
    scores = mask(scores, 2 * tile.last, gl.convert_layout(rows, HALF_ROWS), tile, HALF, SCORES, HEAD_DIM > 64)
    row_max = gl.convert_layout(row_max, HALF_ROWS)
    new_max = highest(row_max, scores, factor)
    p, _, row_sum = weigh(row_max, gl.convert_layout(row_sum, HALF_ROWS), new_max, scores, factor, True)
    p = p.to(shared.q.dtype)
    weights = gl.join(p, gl.zeros_like(p)).permute([0, 2, 1]).reshape([64, BLOCK_N])
    return gl.convert_layout(weights, WEIGHTS), gl.convert_layout(new_max, ROWS), gl.convert_layout(row_sum, ROWS)
