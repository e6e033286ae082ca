"""The consumers of attn_fwd_fp8.py for calls without a mask: three, of 64 rows each."""

from fp8_pieces import add_sums, factors, highest, in_fp8, product, scores_of, weigh_values
from hopper_pieces import finish
from hopper_tiles import tile_at
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma


@gluon.jit
def by_thread(p):
    """Sums of the weights of each row that a thread has."""
    return gl.sum(p.reshape([64, p.shape[1] // 8, 8]), 1)


@gluon.jit
def like(x, row_sum):
    """A factor of each row, for sums by thread."""
    return gl.convert_layout(x, gl.SliceLayout(1, row_sum.type.layout))[:, None]


@gluon.jit
def consume_unmasked(shared, call, scales, sinks_ptr, results, INDEX: gl.constexpr, HEAD_DIM: gl.constexpr,
                     BLOCK_N: gl.constexpr, STAGES: gl.constexpr, ROW_STAGES: gl.constexpr):  # fmt: skip
    """As attn_fwd_fp8.consume(), of tiles of 192 rows that see all keys. A consumer has one product under way: for two
    it lacks registers."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 32])
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_DIM, 32])
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, SUMS, 4)
    ROWS: gl.constexpr = gl.SliceLayout(1, SCORES)
    IS_FIRST: gl.constexpr = 1 if INDEX == 0 else 0
    NEXT: gl.constexpr = (INDEX + 1) % 3
    done = 0
    taken = 0
    turn = 0
    mbarrier.wait(shared.q_full.index(0), 0)
    tile = tile_at(shared.tiles, 0)
    while tile.rows_q > 0:
        rows = tile.first + 64 * INDEX + gl.arange(0, 64, ROWS)
        slot = taken % ROW_STAGES
        q = shared.q.index(slot * 3 + INDEX).reshape([64, HEAD_DIM])
        factor, v_scale = factors(tile, call, scales)
        row_max = gl.full([64], float("-inf"), gl.float32, ROWS)
        row_sum = by_thread(gl.zeros([64, BLOCK_N], gl.float32, SCORES))
        acc = gl.zeros([64, HEAD_DIM], gl.float32, SUMS)

        # The last block, of which not all keys may be there.
        products = product(q, shared, done, BLOCK_N, STAGES, SCORES)
        scores = scores_of(products, shared, done, STAGES)
        if tile.is_masked != 0:
            column = gl.arange(0, BLOCK_N, gl.SliceLayout(0, SCORES))
            scores = gl.where((column < tile.rows_k - tile.last * BLOCK_N)[None, :], scores, float("-inf"))
        # As any block, with zeros before it: if acc began as these products, ptxas 12.9 would spill in the loop, and
        # wait there for each instruction of the products.
        new_max = highest(row_max, scores, factor)
        # Of a sequence without keys it is -inf.
        shift = gl.where(new_max == float("-inf"), 0.0, new_max)
        correction = gl.exp2(row_max - shift)
        p = gl.exp2(scores * factor - shift[:, None])
        row_sum = row_sum * like(correction, row_sum) + by_thread(p)
        row_max = new_max
        sums = weigh_values(in_fp8(p, WEIGHTS), shared, done, HEAD_DIM, STAGES, SUMS)
        acc = add_sums(acc, sums, correction, shared, done, STAGES)
        done += 1

        # A turn: the product of weights and values, and the next one of rows and keys. Those of all consumers at once
        # would end together, and then all would compute weights.
        mbarrier.wait(shared.may_multiply.index(INDEX), (turn & 1) ^ IS_FIRST)
        turn += 1
        for _ in range(tile.middle):
            products = product(q, shared, done, BLOCK_N, STAGES, SCORES)
            mbarrier.arrive(shared.may_multiply.index(NEXT), count=1)
            scores = scores_of(products, shared, done, STAGES)
            new_max = highest(row_max, scores, factor)
            correction = gl.exp2(row_max - new_max)
            row_max = new_max
            p = gl.exp2(scores * factor - new_max[:, None])
            row_sum = row_sum * like(correction, row_sum) + by_thread(p)
            weights = in_fp8(p, WEIGHTS)
            mbarrier.wait(shared.may_multiply.index(INDEX), (turn & 1) ^ IS_FIRST)
            turn += 1
            sums = weigh_values(weights, shared, done, HEAD_DIM, STAGES, SUMS)
            acc = add_sums(acc, sums, correction, shared, done, STAGES)
            done += 1
        mbarrier.arrive(shared.may_multiply.index(NEXT), count=1)
        mbarrier.arrive(shared.q_empty.index(slot), count=1)

        # The last tile's results have been read by now.
        tma.store_wait(0)
        gl.barrier()
        finish(
            acc * v_scale, row_max, gl.convert_layout(gl.sum(row_sum, 1), ROWS), shared.out.index(INDEX), rows, tile,
            sinks_ptr, results, call.flags, INDEX, HEAD_DIM, ROWS, SUMS,
        )  # fmt: skip
        taken += 1
        mbarrier.wait(shared.q_full.index(taken % ROW_STAGES), taken // ROW_STAGES & 1)
        tile = tile_at(shared.tiles, taken % ROW_STAGES)
    tma.store_wait(0)
