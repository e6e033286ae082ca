"""Attention backward for Hopper, in Gluon: dq, dk and dv of what attn_bwd.py computes, with five products in place of
seven.

A tile is a block of keys of a head. A program, of which there is one a multiprocessor, takes one after another, and
walks over the rows that see it, of each query head that shares the head. A producer warp copies rows, and the next
tile's keys while the last one's results are written; two warpgroups of 64 keys each compute (FlashAttention-3: Shah et
al., 2024, arXiv:2407.08608). Scores are transposed, [keys, rows]: so weights and their gradients are factors of dv and
dk without leaving the registers. The gradients go through shared memory besides, and from there into dq: each
warpgroup multiplies half of it, and adds that to those of other tiles in global memory.

attn_bwd_ends.py has what comes before and after: the log-sum-exps and delta as initial values of products, which
leaves them no registers; sums of dq to add to; dq from these sums. Programs begin while the kernel before them ends,
and copy keys and values until it has; and the kernel behind them may begin once all of them have.
"""

from typing import NamedTuple

from attn_bwd_copies import produce
from attn_bwd_ends import LEAST_SCALE
from attn_bwd_order import add_half, add_in_turn
from attn_bwd_pieces import add_up, arrive, barriers, clear_beyond, nought, seen, write
from attn_bwd_tiles import Call, board, leave_work, next_place, next_work, section_of, work_of
from flags import CU_K, CU_Q, SUMS_K, SUMS_Q, USED_K, USED_Q
from hopper_pieces import reinterpreted
from scores import LOG2E
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_wait


class Shared(NamedTuple):
    """Tiles in shared memory, and the barriers that say whether they are full or may be filled anew. Keys, values and
    sums of dq are in halves, one for each consumer; so are ds and their sums (`surplus`), of two blocks of rows in
    turn. `work` is what the producer says of two tiles."""

    k: gl.shared_memory_descriptor
    v: gl.shared_memory_descriptor
    q: gl.shared_memory_descriptor
    dout: gl.shared_memory_descriptor
    lse: gl.shared_memory_descriptor
    delta: gl.shared_memory_descriptor
    ds: gl.shared_memory_descriptor
    dq: gl.shared_memory_descriptor
    surplus: gl.shared_memory_descriptor
    work: gl.shared_memory_descriptor
    work_full: gl.shared_memory_descriptor
    work_empty: gl.shared_memory_descriptor
    keys_full: gl.shared_memory_descriptor
    k_empty: gl.shared_memory_descriptor
    v_empty: gl.shared_memory_descriptor
    q_full: gl.shared_memory_descriptor
    q_empty: gl.shared_memory_descriptor
    dout_full: gl.shared_memory_descriptor
    dout_empty: gl.shared_memory_descriptor
    ds_full: gl.shared_memory_descriptor
    dq_full: gl.shared_memory_descriptor
    dq_empty: gl.shared_memory_descriptor


class Ends(NamedTuple):
    """What consumers read and write besides tiles."""

    dq_desc: tma.tensor_descriptor
    dk_desc: tma.tensor_descriptor
    dv_desc: tma.tensor_descriptor
    dk_ptr: gl.tensor
    dv_ptr: gl.tensor
    stride_dkb: gl.tensor
    stride_dkh: gl.tensor
    stride_dkn: gl.tensor
    stride_dvb: gl.tensor
    stride_dvh: gl.tensor
    stride_dvn: gl.tensor
    width_qk: gl.tensor
    width_v: gl.tensor
    terms_desc: tma.tensor_descriptor
    surplus_at: gl.tensor
    scale: gl.tensor
    order_ptr: gl.tensor
    arrivals_ptr: gl.tensor


@gluon.jit
def begin_dq(dq, slot, whose: gl.constexpr, shared, INDEX: gl.constexpr, HEAD_DIM: gl.constexpr, BLOCK_M: gl.constexpr,
             ADD: gl.constexpr):  # fmt: skip
    """Begins the product of the ds of 64 keys with them: of half of the rows, or if these are 64 of half of the
    columns, as then there are no halves of rows for tensor cores."""
    ds = shared.ds.index(slot * 2 + whose)
    k = shared.k.index(whose).reshape([64, HEAD_DIM])
    if BLOCK_M == 128:
        return warpgroup_mma(ds.slice(64 * INDEX, 64, 1).permute((1, 0)), k, dq, use_acc=ADD, is_async=True)
    else:
        HALF: gl.constexpr = HEAD_DIM // 2
        return warpgroup_mma(ds.permute((1, 0)), k.slice(INDEX * HALF, HALF, 1), dq, use_acc=ADD, is_async=True)


@gluon.jit
def begin_dq_before(done, shared, INDEX: gl.constexpr, HEAD_DIM: gl.constexpr, BLOCK_M: gl.constexpr):
    """Begins half of dq of the block before the done-th, once both consumers have written its ds."""
    HALF: gl.constexpr = HEAD_DIM * BLOCK_M // 128
    DQ: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HALF, 16])
    slot = done % 2
    mbarrier.wait(shared.ds_full.index(slot), done // 2 & 1)
    dq = gl.zeros([64, HALF], gl.float32, DQ)
    dq = begin_dq(dq, slot, INDEX, shared, INDEX, HEAD_DIM, BLOCK_M, False)
    return begin_dq(dq, slot, 1 - INDEX, shared, INDEX, HEAD_DIM, BLOCK_M, True)


@gluon.jit
def await_place(done, call, shared, INDEX: gl.constexpr):
    """Waits until the places are free that dq of the last block and sums of its ds had, of so many that are done."""
    if call.ordered:
        mbarrier.wait(shared.dq_empty.index(INDEX), (done & 1) ^ 1)
    else:
        tma.store_wait(0)


@gluon.jit
def add_dq(dq, number, place, call, ends, shared, INDEX: gl.constexpr, HEAD_DIM: gl.constexpr, BLOCK_M: gl.constexpr):
    """Begins to add half of dq of the number-th block, and sums of its ds, to those at `place`. In a fixed order it
    leaves both to the warp that does."""
    shared.dq.index(INDEX).store(dq)
    fence_async_shared()
    if call.ordered:
        mbarrier.arrive(shared.dq_full.index(INDEX), count=1)
    else:
        gl.barrier()
        add_half(place, (number + 1) % 2, ends, shared, call, INDEX, HEAD_DIM, BLOCK_M)


@gluon.jit
def add_rows(dk, dv, done, place, before, block, tile, call, ends, shared, INDEX: gl.constexpr, MASKED: gl.constexpr,
             HEAD_DIM: gl.constexpr, BLOCK_M: gl.constexpr, STAGES: gl.constexpr, ONES: gl.constexpr,
             BEHIND: gl.constexpr):  # fmt: skip
    """Adds what the done-th block of rows gives to dk and dv of 64 keys, and half of its dq to the sums.

    Args:
        place: where this block has its sums.
        before: where the block before has them, or -1.
        block: its number.
        ONES: as of add_up().
        BEHIND: adds dq of the block before: nothing waits for the other consumer's ds then.
    """
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_M, 16])
    WIDE: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_DIM, 16])
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, WIDE, 2)
    COLUMNS: gl.constexpr = gl.SliceLayout(0, SCORES)
    dtype: gl.constexpr = shared.k.dtype
    stage = done % STAGES
    phase = done // STAGES & 1
    k = shared.k.index(INDEX + nought()).reshape([64, HEAD_DIM])
    v = shared.v.index(INDEX + nought()).reshape([64, HEAD_DIM])
    q = shared.q.index(stage).reshape([BLOCK_M, HEAD_DIM])
    dout = shared.dout.index(stage).reshape([BLOCK_M, HEAD_DIM])
    mbarrier.wait(shared.q_full.index(stage), phase)
    if MASKED:
        beyond = tile.rows_q - block * BLOCK_M
        is_ragged = ((call.flags & (CU_Q | SUMS_Q | USED_Q)) != 0) & (beyond < BLOCK_M)
        if is_ragged:
            mbarrier.wait(shared.dout_full.index(stage), phase)
            clear_beyond(q, beyond, BLOCK_M, HEAD_DIM)
            clear_beyond(dout, beyond, BLOCK_M, HEAD_DIM)
    lse = shared.lse.index(stage).load(COLUMNS)[None, :].broadcast_to([64, BLOCK_M])
    scores = warpgroup_mma(k, q.permute((1, 0)), lse, is_async=True)
    mbarrier.wait(shared.dout_full.index(stage), phase)
    delta = shared.delta.index(stage).load(COLUMNS)[None, :].broadcast_to([64, BLOCK_M])
    dp = warpgroup_mma(v, dout.permute((1, 0)), delta, is_async=True)
    scores = warpgroup_mma_wait(1, deps=[scores])
    p = gl.exp2(scores * (gl.maximum(ends.scale, LEAST_SCALE) * LOG2E))
    if MASKED:
        p = gl.where(seen(tile.first + 64 * INDEX, block * BLOCK_M, tile, call, SCORES, BLOCK_M), p, 0.0)
    slot = (done + 1) % 2
    own = shared.ds.index(slot * 2 + INDEX)
    weights = gl.convert_layout(p.to(dtype), WEIGHTS)
    dp = warpgroup_mma_wait(0, deps=[dp])
    dv = warpgroup_mma(weights, dout, dv, is_async=True)
    ds = (p * dp).to(dtype)
    # The other consumer is done with what `own` held: it has written its ds of the block before since, or, where its dq
    # is behind, left the rows of that block.
    if BEHIND:
        dq = begin_dq_before(done, shared, INDEX, HEAD_DIM, BLOCK_M)
        last = done + STAGES - 1
        mbarrier.wait(shared.q_empty.index(last % STAGES), (last // STAGES & 1) ^ 1)
    own.store(ds)
    fence_async_shared()
    mbarrier.arrive(shared.ds_full.index(slot), count=1)
    factors = gl.convert_layout(ds, WEIGHTS)
    dk = warpgroup_mma(factors, q, dk, is_async=True)
    if BEHIND:
        await_place(done, call, shared, INDEX)
        add_up(own, shared.surplus.index(slot * 2 + INDEX), BLOCK_M, ONES)
        dv, weights, dq = warpgroup_mma_wait(1, deps=[dv, weights, dq])
        mbarrier.arrive(shared.dout_empty.index(stage), count=1)
        if before >= 0:
            add_dq(dq, done - 1, before, call, ends, shared, INDEX, HEAD_DIM, BLOCK_M)
        dk, factors = warpgroup_mma_wait(0, deps=[dk, factors])
        mbarrier.arrive(shared.q_empty.index(stage), count=1)
    else:
        HALF: gl.constexpr = HEAD_DIM * BLOCK_M // 128
        DQ: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HALF, 16])
        dq = gl.zeros([64, HALF], gl.float32, DQ)
        dq = begin_dq(dq, slot, INDEX, shared, INDEX, HEAD_DIM, BLOCK_M, False)
        await_place(done, call, shared, INDEX)
        add_up(own, shared.surplus.index(slot * 2 + INDEX), BLOCK_M, ONES)
        mbarrier.wait(shared.ds_full.index(slot), (done + 1) // 2 & 1)
        dq = begin_dq(dq, slot, 1 - INDEX, shared, INDEX, HEAD_DIM, BLOCK_M, True)
        dv, weights = warpgroup_mma_wait(3, deps=[dv, weights])
        mbarrier.arrive(shared.dout_empty.index(stage), count=1)
        dk, factors = warpgroup_mma_wait(2, deps=[dk, factors])
        mbarrier.arrive(shared.q_empty.index(stage), count=1)
        dq = warpgroup_mma_wait(0, deps=[dq])
        if not call.ordered:
            tma.store_wait(0)
        add_dq(dq, done, place, call, ends, shared, INDEX, HEAD_DIM, BLOCK_M)
    return dk, dv


@gluon.jit
def walk(dk, dv, done, before, span, tile, call, ends, shared, INDEX: gl.constexpr, HEAD_DIM: gl.constexpr,
         BLOCK_M: gl.constexpr, STAGES: gl.constexpr, ONES: gl.constexpr, BEHIND: gl.constexpr):  # fmt: skip
    """Adds to dk and dv what the blocks of a Span give, in the order of block_of(). Returns both, how many are done
    with these, and where the last has its sums."""
    front = span.whole_begin - span.begin
    masked = front + span.end - span.whole_end
    for i in range(masked * call.heads_per_kv):
        number = i % masked
        block = gl.where(number < front, span.begin + number, span.whole_end + number - front)
        place = tile.place + i // masked * call.places + block * BLOCK_M
        dk, dv = add_rows(
            dk, dv, done, place, before, block, tile, call, ends, shared, INDEX, True,
            HEAD_DIM, BLOCK_M, STAGES, ONES, BEHIND,
        )  # fmt: skip
        before = place
        done += 1
    place = tile.place + span.whole_begin * BLOCK_M
    whole = span.whole_end - span.whole_begin
    left = whole
    for _ in range(whole * call.heads_per_kv):
        dk, dv = add_rows(
            dk, dv, done, place, before, 0, tile, call, ends, shared, INDEX, False,
            HEAD_DIM, BLOCK_M, STAGES, ONES, BEHIND,
        )  # fmt: skip
        before = place
        done += 1
        place, left = next_place(place, left, whole, call.places, BLOCK_M)
    return dk, dv, done, before


@gluon.jit
def consume_tile(tile, told, done, ends, shared, call, INDEX: gl.constexpr, HEAD_DIM: gl.constexpr,
                 BLOCK_M: gl.constexpr, STAGES: gl.constexpr, ONES: gl.constexpr, BEHIND: gl.constexpr):  # fmt: skip
    """Computes dk and dv of the keys [64 * INDEX, 64 * INDEX + 64) of the told-th tile, and half of dq. Returns how
    many blocks are done with its own."""
    WIDE: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_DIM, 16])
    dtype: gl.constexpr = shared.k.dtype
    dk = gl.zeros([64, HEAD_DIM], gl.float32, WIDE)
    dv = gl.zeros([64, HEAD_DIM], gl.float32, WIDE)
    mbarrier.wait(shared.keys_full, told & 1)
    inside = tile.rows_k - tile.first - 64 * INDEX
    if ((call.flags & (CU_K | SUMS_K | USED_K)) != 0) & (inside < 64):
        clear_beyond(shared.k.index(INDEX).reshape([64, HEAD_DIM]), inside, 64, HEAD_DIM)
        clear_beyond(shared.v.index(INDEX).reshape([64, HEAD_DIM]), inside, 64, HEAD_DIM)
    before = gl.to_tensor(-1)
    if call.ordered:
        for number in range(2):
            tile = work_of(told, shared, 4)  # here and behind the loops again, so that it takes no registers in them
            dk, dv, done, before = walk(
                dk, dv, done, before, section_of(number, tile), tile, call, ends, shared, INDEX, HEAD_DIM, BLOCK_M,
                STAGES, ONES, BEHIND,
            )  # fmt: skip
    else:
        dk, dv, done, before = walk(
            dk, dv, done, before, tile, tile, call, ends, shared, INDEX, HEAD_DIM, BLOCK_M, STAGES, ONES,
            BEHIND,
        )  # fmt: skip
    tile = work_of(told, shared, 4)
    if BEHIND:  # noqa: SIM102 -- one is known to the compiler
        if before >= 0:
            dq = begin_dq_before(done, shared, INDEX, HEAD_DIM, BLOCK_M)
            await_place(done, call, shared, INDEX)
            dq = warpgroup_mma_wait(0, deps=[dq])
            gl.barrier()
            add_dq(dq, done - 1, before, call, ends, shared, INDEX, HEAD_DIM, BLOCK_M)
    mbarrier.arrive(shared.k_empty, count=1)
    # This consumer alone reads its values, and writes its part of dq.
    await_place(done, call, shared, INDEX)
    first = tile.first + 64 * INDEX
    write(
        dv.to(dtype), shared.v.index(INDEX), ends.dv_desc, ends.dv_ptr, ends.stride_dvb, ends.stride_dvh,
        ends.stride_dvn, ends.width_v, tile, first, 0, HEAD_DIM, WIDE,
    )  # fmt: skip
    free = reinterpreted(shared.dq.index(INDEX), dtype, [BLOCK_M // 64, 1, 1, 64, HEAD_DIM], ends.dk_desc.layout)
    write(
        (dk * ends.scale).to(dtype), free.index(0), ends.dk_desc, ends.dk_ptr, ends.stride_dkb, ends.stride_dkh,
        ends.stride_dkn, ends.width_qk, tile, first, 0, HEAD_DIM, WIDE,
    )  # fmt: skip
    tma.store_wait(0)
    mbarrier.arrive(shared.v_empty, count=1)
    if not call.ordered:
        arrive(ends.arrivals_ptr, first, tile, call)
    return done


@gluon.jit
def consume(ends, shared, call, INDEX: gl.constexpr, HEAD_DIM: gl.constexpr, BLOCK_M: gl.constexpr,
            STAGES: gl.constexpr, ONES: gl.constexpr, BEHIND: gl.constexpr):  # fmt: skip
    """A consumer's part of all tiles of this program."""
    mbarrier.arrive(shared.ds_full.index(0), count=1)  # of a block -1: ds of the first are in the second slot
    told = 0
    done = 0
    gdc_wait()
    tile = next_work(told, shared, 4)
    while tile.rows_k > 0:
        done = consume_tile(tile, told, done, ends, shared, call, INDEX, HEAD_DIM, BLOCK_M, STAGES, ONES, BEHIND)
        leave_work(told, shared)
        told += 1
        tile = next_work(told, shared, 4)


@gluon.jit
def attn_bwd_hopper(
    q_desc, dout_desc, k_desc, v_desc, dk_desc, dv_desc, dq_desc, terms_desc, dk_ptr, dv_ptr,
    cu_q_ptr, cu_k_ptr, used_q_ptr, used_k_ptr,
    stride_dkb, stride_dkh, stride_dkn, stride_dvb, stride_dvh, stride_dvn,
    sm_scale, batches, heads, heads_per_kv, seqlen_q, seqlen_k, width_qk, width_v, window_left, window_right, flags,
    tiles, places, order_ptr, arrivals_ptr,
    HEAD_DIM: gl.constexpr, BLOCK_M: gl.constexpr, STAGES: gl.constexpr, REGISTERS: gl.constexpr, SPAN: gl.constexpr,
    ONES: gl.constexpr, ORDERED: gl.constexpr,
):  # fmt: skip
    """dk, dv, and sums for dq and of ds, of `tiles` tiles (attn_bwd_tiles.tile_of) of 128 keys, by as many programs as
    there are multiprocessors, or tiles.

    Args:
        q_desc, dout_desc: of [batch, heads, seqlen_q, width], in boxes of BLOCK_M rows.
        k_desc, v_desc, dk_desc, dv_desc: of [batch, heads / heads_per_kv, seqlen_k, width], in boxes of 64 keys.
            Columns from width to HEAD_DIM are zeros.
        dq_desc: of [heads * places, HEAD_DIM] fp32, sums of ds k, to be added to, in boxes of 64 rows and HEAD_DIM *
            BLOCK_M / 128 columns.
        terms_desc: of [4, heads, places] fp32, as attn_bwd_delta has left them, in boxes of BLOCK_M; the last half are
            sums of ds, to be added to.
        places: of a head, in these; attn_bwd_tiles.place_of_row says which row has which.
        order_ptr: [heads, places / 64] int32, zeros: how many tiles have been added to a block of rows; looked at if
            ORDERED.
        arrivals_ptr: [batches * heads / heads_per_kv + 1] int32, zeros: of each head, how many consumers have added all
            that they add of a tile; and how many turns have been taken.
        STAGES: blocks of rows in shared memory.
        REGISTERS: of a thread of consumers.
    """
    dtype: gl.constexpr = q_desc.dtype
    BLOCK_N: gl.constexpr = 128
    DS: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, BLOCK_M], dtype)
    shared = Shared(
        gl.allocate_shared_memory(dtype, [2, 1, 1, 64, HEAD_DIM], k_desc.layout),
        gl.allocate_shared_memory(dtype, [2, 1, 1, 64, HEAD_DIM], v_desc.layout),
        gl.allocate_shared_memory(dtype, [STAGES, 1, 1, BLOCK_M, HEAD_DIM], q_desc.layout),
        gl.allocate_shared_memory(dtype, [STAGES, 1, 1, BLOCK_M, HEAD_DIM], dout_desc.layout),
        gl.allocate_shared_memory(gl.float32, [STAGES, BLOCK_M], terms_desc.layout),
        gl.allocate_shared_memory(gl.float32, [STAGES, BLOCK_M], terms_desc.layout),
        gl.allocate_shared_memory(dtype, [4, 64, BLOCK_M], DS),
        gl.allocate_shared_memory(gl.float32, [2, 64, HEAD_DIM * BLOCK_M // 128], dq_desc.layout),
        gl.allocate_shared_memory(gl.float32, [4, BLOCK_M], terms_desc.layout),
        board(),
        barriers(2, 1),
        barriers(2, 3 if ORDERED else 2),
        barriers(1, 1),
        barriers(1, 2),
        barriers(1, 2),
        barriers(STAGES, 1),
        barriers(STAGES, 2),
        barriers(STAGES, 1),
        barriers(STAGES, 2),
        barriers(2, 2),
        barriers(2, 1),
        barriers(2, 1),
    )
    fence_async_shared()
    call = Call(
        batches, heads, heads_per_kv, seqlen_q, seqlen_k, window_left, window_right, flags, tiles, places, SPAN,
        ORDERED, cu_q_ptr, cu_k_ptr, used_q_ptr, used_k_ptr,
    )  # fmt: skip
    ends = Ends(
        dq_desc, dk_desc, dv_desc, dk_ptr, dv_ptr, stride_dkb, stride_dkh, stride_dkn, stride_dvb, stride_dvh,
        stride_dvn, width_qk, width_v, terms_desc, 2 * heads * places, sm_scale, order_ptr, arrivals_ptr,
    )  # fmt: skip
    taken_ptr = arrivals_ptr + batches * (heads // heads_per_kv)
    if ORDERED:
        gl.warp_specialize([
            (consume, (ends, shared, call, 0, HEAD_DIM, BLOCK_M, STAGES, ONES, False)),
            (consume, (ends, shared, call, 1, HEAD_DIM, BLOCK_M, STAGES, ONES, False)),
            (produce, (q_desc, dout_desc, k_desc, v_desc, terms_desc, shared, taken_ptr, call, BLOCK_M, BLOCK_N,
                       STAGES)),
            (add_in_turn, (ends, shared, call, HEAD_DIM, BLOCK_M, BLOCK_N)),
        ], [4, 1, 1], [REGISTERS, 24, 40])  # fmt: skip
    else:
        # dq of the block before takes registers, which a fixed order and blocks of more rows do not leave.
        gl.warp_specialize([
            (consume, (ends, shared, call, 0, HEAD_DIM, BLOCK_M, STAGES, ONES, BLOCK_M == 64)),
            (consume, (ends, shared, call, 1, HEAD_DIM, BLOCK_M, STAGES, ONES, BLOCK_M == 64)),
            (produce, (q_desc, dout_desc, k_desc, v_desc, terms_desc, shared, taken_ptr, call, BLOCK_M, BLOCK_N,
                       STAGES)),
        ], [4, 1], [REGISTERS, 24])  # fmt: skip
