"""c = a b^T for Hopper: a producer warp copies tiles by the tensor memory accelerator, two warpgroups multiply them."""

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
def tile_of(rows, columns, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, GROUP: gl.constexpr):
    """The tile of this program. Programs with neighbouring numbers work on GROUP tiles of rows together, so that the
    rows of `a` and of `b` that they share stay in the L2 cache."""
    program = gl.program_id(0)
    tiles_n = gl.cdiv(columns, BLOCK_N)
    group = program // (GROUP * tiles_n)
    height = gl.minimum(gl.cdiv(rows, BLOCK_M) - group * GROUP, GROUP)
    within = program % (GROUP * tiles_n)
    return group * GROUP + within % height, within // height


@gluon.jit
def produce(a_desc, b_desc, a_tiles, b_tiles, full, empty, row, column, steps,
            BLOCK_K: gl.constexpr, STAGES: gl.constexpr):  # fmt: skip
    """Copies the tiles of `a` and `b`, step by step, into the next stage that both consumers have left."""
    for step in range(steps):
        stage = step % STAGES
        mbarrier.wait(empty.index(stage), (step // STAGES & 1) ^ 1)
        # A tile that reaches beyond its tensor arrives whole too: the rest of it is zeros.
        mbarrier.expect(full.index(stage), 2 * a_desc.nbytes_per_cta + b_desc.nbytes_per_cta)
        for half in gl.static_range(2):
            first = row + half * a_desc.block_shape[0]
            tma.async_load(a_desc, [first, step * BLOCK_K], full.index(stage), a_tiles.index(2 * stage + half))
        tma.async_load(b_desc, [column, step * BLOCK_K], full.index(stage), b_tiles.index(stage))


@gluon.jit
def consume(c_desc, a_tiles, b_tiles, c_tiles, full, empty, row, column, steps, HALF: gl.constexpr,
            ROWS: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr):  # fmt: skip
    """Multiplies its half of the tile's rows, and writes it."""
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    sums = gl.zeros([ROWS, BLOCK_N], gl.float32, layout)
    for step in range(steps):
        stage = step % STAGES
        mbarrier.wait(full.index(stage), step // STAGES & 1)
        right = b_tiles.index(stage).permute((1, 0))
        sums = warpgroup_mma(a_tiles.index(2 * stage + HALF), right, sums, is_async=True)
        # One product stays in flight; the one before it has read its stage.
        sums = warpgroup_mma_wait(1, deps=[sums])
        mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), count=1, pred=step > 0)
    sums = warpgroup_mma_wait(0, deps=[sums])
    tile = c_tiles.index(HALF)
    tile.store(sums.to(c_desc.dtype))
    fence_async_shared()
    gl.barrier()
    tma.async_store(c_desc, [row + HALF * ROWS, column], tile)
    tma.store_wait(0)


@gluon.jit
def matmul_hopper(a_desc, b_desc, c_desc, rows, columns, depth, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
                  BLOCK_K: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr):  # fmt: skip
    """One tile [BLOCK_M, BLOCK_N] of c = a b^T: two consumer warpgroups of BLOCK_M / 2 rows, and one producer warp.

    Args:
        a_desc: a [rows, depth] in boxes [BLOCK_M / 2, BLOCK_K].
        b_desc: b [columns, depth] in boxes [BLOCK_N, BLOCK_K].
        c_desc: c [rows, columns] in boxes [BLOCK_M / 2, BLOCK_N].
    """
    dtype: gl.constexpr = a_desc.dtype
    half: gl.constexpr = BLOCK_M // 2
    a_tiles = gl.allocate_shared_memory(dtype, [2 * STAGES, half, BLOCK_K], a_desc.layout)
    b_tiles = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_N, BLOCK_K], b_desc.layout)
    c_tiles = gl.allocate_shared_memory(dtype, [2, half, BLOCK_N], c_desc.layout)
    barrier: gl.constexpr = mbarrier.MBarrierLayout()
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=2)
    tile_m, tile_n = tile_of(rows, columns, BLOCK_M, BLOCK_N, GROUP)
    row, column, steps = tile_m * BLOCK_M, tile_n * BLOCK_N, gl.cdiv(depth, BLOCK_K)
    gl.warp_specialize([
        (consume, (c_desc, a_tiles, b_tiles, c_tiles, full, empty, row, column, steps, 0, half, BLOCK_N, STAGES)),
        (consume, (c_desc, a_tiles, b_tiles, c_tiles, full, empty, row, column, steps, 1, half, BLOCK_N, STAGES)),
        (produce, (a_desc, b_desc, a_tiles, b_tiles, full, empty, row, column, steps, BLOCK_K, STAGES)),
    ], [4, 1], [240, 24])  # fmt: skip
