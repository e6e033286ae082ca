"""Attention forward of fp8 (e4m3) for Hopper, in Gluon: attn_fwd_hopper.py, and warps that transpose values
(fp8_values.py): tensor cores take bytes from shared memory only where what is summed over is contiguous, keys as they
are, values transposed.

Tiles have 128 rows for two consumers, or where no row has a mask 192 for three (docs/attention.md says why).
"""

from flags import CU_Q, USED_Q
from fp8_pieces import Scales, Shared, add_sums, factors, highest, in_fp8, product, scores_of, weigh_values
from fp8_unmasked import consume_unmasked
from fp8_values import transpose
from hopper_pieces import Results, after_wait, before_wait, finish, mask, weigh
from hopper_tiles import (
    FIELDS,
    TILE_ROWS,
    Call,
    Rows,
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
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

TRANSPOSERS = gl.constexpr(2)  # warps


@gluon.jit
def with_rows_for(CONSUMERS: gl.constexpr, rows):
    """The tile of the same number, if tiles have 64 rows for each consumer."""
    if CONSUMERS == 2:
        return rows
    else:
        first = rows.first // TILE_ROWS * (64 * CONSUMERS)
        return Rows(rows.batch, rows.head, first, rows.batch_q, rows.start_q, rows.rows_q, rows.batch_k, rows.start_k,
                    rows.rows_k)  # fmt: skip


@gluon.jit
def produce(q_desc, k_desc, v_desc, shared, call, CONSUMERS: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
            ROW_STAGES: gl.constexpr):  # fmt: skip
    """Copies the rows of each tile, and block by block the keys and values that they see."""
    done = 0
    taken = 0
    for turn in range(tile_count(call)):
        rows = with_rows_for(CONSUMERS, tile_rows(turn, call))
        if (rows.first >= 0) & (rows.first < rows.rows_q):
            work = work_of(rows, call, BLOCK_N)
            head_kv = rows.head // call.heads_per_kv
            slot = taken % ROW_STAGES
            mbarrier.wait(shared.q_empty.index(slot), (taken // ROW_STAGES & 1) ^ 1)
            announce(shared.tiles, slot, rows, work)
            mbarrier.expect(shared.q_full.index(slot), CONSUMERS * q_desc.nbytes_per_cta)
            for c in gl.static_range(CONSUMERS):
                row = rows.start_q + rows.first + 64 * c
                tma.async_load(q_desc, [rows.batch_q, rows.head, row, 0], shared.q_full.index(slot),
                               shared.q.index(slot * CONSUMERS + c))  # fmt: skip
            for i in range(1 + work.middle + work.rest):
                key = rows.start_k + block_of(i, work) * BLOCK_N
                stage = done % STAGES
                turned = (done // STAGES & 1) ^ 1
                mbarrier.wait(shared.k_empty.index(stage), turned)
                mbarrier.expect(shared.k_full.index(stage), k_desc.nbytes_per_cta)
                tma.async_load(k_desc, [rows.batch_k, head_kv, key, 0], shared.k_full.index(stage),
                               shared.k.index(stage))  # fmt: skip
                mbarrier.wait(shared.v_empty.index(stage), turned)
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
def consume(shared, call, scales, sinks_ptr, results, INDEX: gl.constexpr, HEAD_DIM: gl.constexpr,
            BLOCK_N: gl.constexpr, STAGES: gl.constexpr, ROW_STAGES: gl.constexpr):  # fmt: skip
    """Computes the rows [64 * INDEX, 64 * INDEX + 64) of each tile of 128."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 32])
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_DIM, 32])
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, SUMS, 4)
    ROWS: gl.constexpr = gl.SliceLayout(1, SCORES)
    flags = call.flags
    done = 0
    taken = 0
    turn = 0
    mbarrier.wait(shared.q_full.index(0), 0)
    tile = tile_at(shared.tiles, 0)
    while tile.rows_q > 0:
        rows = tile.first + 64 * INDEX + gl.arange(0, 64, ROWS)
        slot = taken % ROW_STAGES
        q = shared.q.index(slot * 2 + INDEX).reshape([64, HEAD_DIM])
        factor, v_scale = factors(tile, call, scales)
        row_max = gl.full([64], float("-inf"), gl.float32, ROWS)
        row_sum = gl.zeros([64], gl.float32, ROWS)
        acc = gl.zeros([64, HEAD_DIM], gl.float32, SUMS)

        products = product(q, shared, done, BLOCK_N, STAGES, SCORES)
        scores = scores_of(products, shared, done, STAGES)
        if tile.is_masked != 0:
            scores = mask(scores, tile.last, rows, tile, BLOCK_N, SCORES)
        new_max = highest(row_max, scores, factor)
        for _ in range(tile.middle):
            p, correction, row_sum = weigh(row_max, row_sum, new_max, scores, factor, True)
            row_max = new_max
            # The consumers' products take turns: those of both at once end together, and then both compute weights.
            mbarrier.wait(shared.may_multiply.index(INDEX), (turn & 1) ^ (1 - INDEX))
            products = product(q, shared, done + 1, BLOCK_N, STAGES, SCORES)
            sums = weigh_values(in_fp8(p, WEIGHTS), shared, done, HEAD_DIM, STAGES, SUMS)
            scores = scores_of(products, shared, done + 1, STAGES, 1)
            new_max = before_wait(highest(row_max, scores, factor))
            acc = add_sums(acc, sums, correction, shared, done, STAGES)
            new_max = after_wait(new_max)
            mbarrier.arrive(shared.may_multiply.index(1 - INDEX), count=1)
            turn += 1
            done += 1

        p, correction, row_sum = weigh(row_max, row_sum, new_max, scores, factor, True)
        row_max = new_max
        sums = weigh_values(in_fp8(p, WEIGHTS), shared, done, HEAD_DIM, STAGES, SUMS)
        acc = add_sums(acc, sums, correction, shared, done, STAGES)
        done += 1

        # Other blocks with a mask: few, and each by itself. Scores that went from one loop to another would be moved in
        # each step.
        for i in range(tile.rest):
            products = product(q, shared, done, BLOCK_N, STAGES, SCORES)
            scores = scores_of(products, shared, done, STAGES)
            scores = mask(scores, rest_block(i, tile), rows, tile, BLOCK_N, SCORES)
            new_max = highest(row_max, scores, factor)
            p, correction, row_sum = weigh(row_max, row_sum, new_max, scores, factor, True)
            row_max = new_max
            sums = weigh_values(in_fp8(p, WEIGHTS), shared, done, HEAD_DIM, STAGES, SUMS)
            acc = add_sums(acc, sums, correction, shared, done, STAGES)
            done += 1
        mbarrier.arrive(shared.q_empty.index(slot), count=1)

        # The last tile's results have been read by now.
        tma.store_wait(0)
        gl.barrier()
        finish(
            acc * v_scale, row_max, row_sum, shared.out.index(INDEX), rows, tile, sinks_ptr, results, flags, INDEX,
            HEAD_DIM, ROWS, SUMS,
        )  # fmt: skip
        taken += 1
        mbarrier.wait(shared.q_full.index(taken % ROW_STAGES), taken // ROW_STAGES & 1)
        tile = tile_at(shared.tiles, taken % ROW_STAGES)
    tma.store_wait(0)


@gluon.jit
def attn_fwd_fp8(
    q_desc, k_desc, v_desc, out_desc, q_scale_ptr, k_scale_ptr, v_scale_ptr, cu_q_ptr, cu_k_ptr, used_q_ptr, used_k_ptr,
    sm_scale, stride_qsb, stride_qsh, stride_ksb, stride_ksh, stride_vsb, stride_vsh, batches, heads, heads_per_kv,
    seqlen_q, seqlen_k, width_v, window_left, window_right, flags, out_ptr, lse_ptr, sinks_ptr, stride_ob, stride_oh,
    stride_om, stride_lb, stride_lh, tiles, HEAD_DIM: gl.constexpr, CONSUMERS: gl.constexpr, BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr, ROW_STAGES: gl.constexpr, REGISTERS: gl.constexpr,
):  # fmt: skip
    """Attention forward of `tiles` blocks of rows, by as many programs as there are multiprocessors, or blocks.

    Shapes and arguments are those of attn_fwd_hopper.py, and

    Args:
        q_scale_ptr, k_scale_ptr, v_scale_ptr: what elements are multiplied by, of [batch, heads / heads_per_kv].
        CONSUMERS: warpgroups that compute 64 rows each: 2, or 3 for calls without a mask.
        STAGES: blocks of keys, of values, and of values transposed, in shared memory.
        REGISTERS: of a consumer's thread.
    """
    fp8: gl.constexpr = q_desc.dtype
    barrier: gl.constexpr = mbarrier.MBarrierLayout()
    shared = Shared(
        gl.allocate_shared_memory(gl.int32, [ROW_STAGES * FIELDS, 1], gl.SwizzledSharedLayout(1, 1, 1, [0])),
        gl.allocate_shared_memory(fp8, [ROW_STAGES * CONSUMERS, 1, 1, 64, HEAD_DIM], q_desc.layout),
        gl.allocate_shared_memory(out_desc.dtype, [CONSUMERS, 1, 1, 64, HEAD_DIM], out_desc.layout),
        gl.allocate_shared_memory(fp8, [STAGES, 1, 1, BLOCK_N, HEAD_DIM], k_desc.layout),
        gl.allocate_shared_memory(fp8, [STAGES, 1, 1, BLOCK_N, HEAD_DIM], v_desc.layout),
        gl.allocate_shared_memory(gl.int8, [STAGES, HEAD_DIM, BLOCK_N], gl.NVMMASharedLayout(128, 8, rank=2)),
        gl.allocate_shared_memory(gl.int64, [ROW_STAGES, 1], barrier),
        gl.allocate_shared_memory(gl.int64, [ROW_STAGES, 1], barrier),
        gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier),
        gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier),
        gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier),
        gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier),
        gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier),
        gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier),
        gl.allocate_shared_memory(gl.int64, [CONSUMERS, 1], barrier),
    )
    for consumer in gl.static_range(CONSUMERS):
        mbarrier.init(shared.may_multiply.index(consumer), count=1)
    for slot in gl.static_range(ROW_STAGES):
        mbarrier.init(shared.q_full.index(slot), count=1)
        mbarrier.init(shared.q_empty.index(slot), count=CONSUMERS + 1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(shared.k_full.index(stage), count=1)
        mbarrier.init(shared.k_empty.index(stage), count=CONSUMERS)
        mbarrier.init(shared.v_full.index(stage), count=1)
        mbarrier.init(shared.v_empty.index(stage), count=1)
        mbarrier.init(shared.vt_full.index(stage), count=1)
        mbarrier.init(shared.vt_empty.index(stage), count=CONSUMERS)
    blocks = gl.cdiv(seqlen_q, 64 * CONSUMERS)
    pairs = gl.where((flags & (CU_Q | USED_Q)) != 0, 0, pairs_of(batches * heads, blocks))
    call = Call(batches, heads, heads_per_kv, pairs, blocks, tiles, seqlen_q, seqlen_k, window_left, window_right,
                flags, cu_q_ptr, cu_k_ptr, used_q_ptr, used_k_ptr)  # fmt: skip
    scales = Scales(sm_scale, q_scale_ptr, k_scale_ptr, v_scale_ptr, stride_qsb, stride_qsh, stride_ksb, stride_ksh,
                    stride_vsb, stride_vsh)  # fmt: skip
    results = Results(out_desc, out_ptr, stride_ob, stride_oh, stride_om, width_v, lse_ptr, stride_lb, stride_lh)
    if CONSUMERS == 2:
        gl.warp_specialize([
            (consume, (shared, call, scales, sinks_ptr, results, 0, HEAD_DIM, BLOCK_N, STAGES, ROW_STAGES)),
            (consume, (shared, call, scales, sinks_ptr, results, 1, HEAD_DIM, BLOCK_N, STAGES, ROW_STAGES)),
            (transpose, (shared, call, BLOCK_N, HEAD_DIM, STAGES, ROW_STAGES)),
            (produce, (q_desc, k_desc, v_desc, shared, call, 2, BLOCK_N, STAGES, ROW_STAGES)),
        ], [4, TRANSPOSERS, 1], [REGISTERS, 40, 40])  # fmt: skip
    else:
        gl.warp_specialize([
            (consume_unmasked, (shared, call, scales, sinks_ptr, results, 0, HEAD_DIM, BLOCK_N, STAGES, ROW_STAGES)),
            (consume_unmasked, (shared, call, scales, sinks_ptr, results, 1, HEAD_DIM, BLOCK_N, STAGES, ROW_STAGES)),
            (consume_unmasked, (shared, call, scales, sinks_ptr, results, 2, HEAD_DIM, BLOCK_N, STAGES, ROW_STAGES)),
            (transpose, (shared, call, BLOCK_N, HEAD_DIM, STAGES, ROW_STAGES)),
            (produce, (q_desc, k_desc, v_desc, shared, call, 3, BLOCK_N, STAGES, ROW_STAGES)),
        ], [4, 4, TRANSPOSERS, 1], [REGISTERS, REGISTERS, 32, 32])  # fmt: skip
