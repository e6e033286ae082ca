"""attn_bwd_hopper.py for heads above 128, whose sums of dk and dv fill the registers of two warpgroups with 64 keys.

One warpgroup computes weights, the other their gradients; each has half of the columns of dv, dk and dq. Weights and
gradients go through shared memory. The products of a block's gradients for dk and dq follow a block later, under the
next one's scores. Sums of ds, by which dq is corrected (means.py), are added up as there; so are those of dq, in any
order by the warpgroups themselves, or in a fixed one by a warp of its own (attn_bwd_wide_order.py).
"""

from typing import NamedTuple

from attn_bwd_ends import LEAST_SCALE
from attn_bwd_hopper import Ends
from attn_bwd_pieces import add_up, arrive, barriers, clear_beyond, nought, packed, seen, write
from attn_bwd_tiles import Call, block_of, next_place, place_of_row, span_of, tile_of
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
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

BLOCK = gl.constexpr(64)  # rows, and keys


class Shared(NamedTuple):
    """Tiles in shared memory, and the barriers that say whether they are full or may be filled anew. There are two
    blocks of q and ds, in turn, and a part of dq for each consumer."""

    k: gl.shared_memory_descriptor
    v: gl.shared_memory_descriptor
    q: gl.shared_memory_descriptor
    dout: gl.shared_memory_descriptor
    lse: gl.shared_memory_descriptor
    delta: gl.shared_memory_descriptor
    p: gl.shared_memory_descriptor
    ds: gl.shared_memory_descriptor
    dq: gl.shared_memory_descriptor
    surplus: gl.shared_memory_descriptor
    keys_full: gl.shared_memory_descriptor
    q_full: gl.shared_memory_descriptor
    q_empty: gl.shared_memory_descriptor
    dout_full: gl.shared_memory_descriptor
    dout_empty: gl.shared_memory_descriptor
    p_full: gl.shared_memory_descriptor
    p_empty: gl.shared_memory_descriptor
    ds_full: gl.shared_memory_descriptor
    ds_empty: gl.shared_memory_descriptor


@gluon.jit
def copy_keys(tile, k_desc, v_desc, shared):
    """Begins to copy a tile's keys and values."""
    key = tile.start_k + tile.first
    mbarrier.expect(shared.keys_full, k_desc.nbytes_per_cta + v_desc.nbytes_per_cta)
    tma.async_load(k_desc, [tile.batch_k, tile.head_kv, key, 0], shared.keys_full, shared.k.index(0))
    tma.async_load(v_desc, [tile.batch_k, tile.head_kv, key, 0], shared.keys_full, shared.v.index(0))


@gluon.jit
def copy_rows(i, done, tile, span, q_desc, dout_desc, terms_desc, shared, call):
    """Begins to copy the i-th block of rows of a tile, where room is; the producer has copied `done` before it."""
    stage = done % 2
    member, block = block_of(i, span, call, call.ordered)
    head = tile.head_kv * call.heads_per_kv + member
    row = tile.start_q + block * BLOCK
    place = place_of_row(tile, head, block * BLOCK, call)
    # Consumers leave the second stage once before anything is copied there: zeros of a block -1.
    mbarrier.wait(shared.q_empty.index(stage), (done // 2 & 1) ^ (1 - stage))
    mbarrier.expect(shared.q_full.index(stage), q_desc.nbytes_per_cta + terms_desc.nbytes_per_cta)
    tma.async_load(terms_desc, [place], shared.q_full.index(stage), shared.lse.index(stage))
    tma.async_load(q_desc, [tile.batch_q, head, row, 0], shared.q_full.index(stage), shared.q.index(stage))
    mbarrier.wait(shared.dout_empty, (done & 1) ^ 1)
    mbarrier.expect(shared.dout_full, dout_desc.nbytes_per_cta + terms_desc.nbytes_per_cta)
    delta_place = place + call.heads * call.places
    tma.async_load(terms_desc, [delta_place], shared.dout_full, shared.delta.index(0))
    tma.async_load(dout_desc, [tile.batch_q, head, row, 0], shared.dout_full, shared.dout.index(0))


@gluon.jit
def produce(q_desc, dout_desc, k_desc, v_desc, terms_desc, shared, call):
    """Copies the keys and values, and block by block the rows that see them, in the consumers' order."""
    tile = tile_of(gl.program_id(0), call, BLOCK)
    if tile.first < tile.rows_k:
        copy_keys(tile, k_desc, v_desc, shared)
        gdc_wait()
        gdc_launch_dependents()
        span = span_of(tile, call, BLOCK, BLOCK)
        for i in range((span.end - span.begin) * call.heads_per_kv):
            copy_rows(i, i, tile, span, q_desc, dout_desc, terms_desc, shared, call)
    else:
        gdc_wait()  # as in attn_bwd_hopper.produce


@gluon.jit
def begin_dk(dk, slot, stage, shared, INDEX: gl.constexpr, HEAD_DIM: gl.constexpr):
    """Begins the product of a block's ds with half of the columns of its rows."""
    HALF: gl.constexpr = HEAD_DIM // 2
    q = shared.q.index(stage).reshape([BLOCK, HEAD_DIM]).slice(INDEX * HALF, HALF, 1)
    return warpgroup_mma(shared.ds.index(slot), q, dk, is_async=True)


@gluon.jit
def begin_dq(slot, shared, INDEX: gl.constexpr, PART: gl.constexpr, HEAD_DIM: gl.constexpr):
    """Begins the product of a block's ds with a quarter of the columns of the keys: a consumer's first, or second."""
    QUARTER: gl.constexpr = HEAD_DIM // 4
    DQ: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, QUARTER, 16])
    k = shared.k.index(nought()).reshape([BLOCK, HEAD_DIM]).slice((2 * INDEX + PART) * QUARTER, QUARTER, 1)
    dq = gl.zeros([BLOCK, QUARTER], gl.float32, DQ)
    return warpgroup_mma(shared.ds.index(slot).permute((1, 0)), k, dq, use_acc=False, is_async=True)


@gluon.jit
def add_part(place, ends, shared, WHOSE: gl.constexpr, PART: gl.constexpr):
    """Begins to add a consumer's part of a block's dq to the sums of the rows at `place`."""
    tma.async_atomic_add(ends.dq_desc, [place, (2 * WHOSE + PART) * shared.dq.shape[2]], shared.dq.index(WHOSE))


@gluon.jit
def add_surplus(place, slot, ends, shared):
    """Begins to add the sums of ds of a block to those of the rows at `place`."""
    tma.async_atomic_add(ends.terms_desc, [ends.surplus_at + place], shared.surplus.index(slot))


@gluon.jit
def await_place(shared, INDEX: gl.constexpr, PART: gl.constexpr, ORDERED: gl.constexpr):
    """Waits until a consumer's place for dq is free for this part of a block."""
    if ORDERED:
        mbarrier.wait(shared.dq_empty.index(INDEX), 1 - PART)
    else:
        tma.store_wait(0)


@gluon.jit
def add_dq(dq, place, ends, shared, INDEX: gl.constexpr, PART: gl.constexpr, ORDERED: gl.constexpr):
    """Begins to add these columns of dq to the sums of the rows at `place`; in a fixed order, leaves them to the warp
    that does."""
    await_place(shared, INDEX, PART, ORDERED)
    shared.dq.index(INDEX).store(dq)
    fence_async_shared()
    if ORDERED:
        mbarrier.arrive(shared.dq_full.index(INDEX), count=1)
    else:
        gl.barrier()
        add_part(place, ends, shared, INDEX, PART)


@gluon.jit
def clear_rows(stage, done, block, tile, call, shared, HEAD_DIM: gl.constexpr):
    """Makes zeros of rows beyond the sequence, where other sequences' may lie."""
    beyond = tile.rows_q - block * BLOCK
    is_ragged = ((call.flags & (CU_Q | SUMS_Q | USED_Q)) != 0) & (beyond < BLOCK)
    if is_ragged:
        mbarrier.wait(shared.q_full.index(stage), done // 2 & 1)
        mbarrier.wait(shared.dout_full, done & 1)
        clear_beyond(shared.q.index(stage).reshape([BLOCK, HEAD_DIM]), beyond, BLOCK, HEAD_DIM)
        clear_beyond(shared.dout.index(0).reshape([BLOCK, HEAD_DIM]), beyond, BLOCK, HEAD_DIM)


@gluon.jit
def weigh(dk, dv, done, before, block, tile, call, ends, shared, MASKED: gl.constexpr, HEAD_DIM: gl.constexpr,
          ORDERED: gl.constexpr):  # fmt: skip
    """What the first consumer adds to the first half of columns: of dv by the done-th block of rows, and of dk and dq
    by the one before, whose sums are at `before`. Leaves the block's weights for the other."""
    HALF: gl.constexpr = HEAD_DIM // 2
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK, 16])
    WIDE: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HALF, 16])
    COLUMNS: gl.constexpr = gl.SliceLayout(0, SCORES)
    dtype: gl.constexpr = shared.k.dtype
    stage = done % 2
    slot = done % 2  # of the block before
    k = shared.k.index(nought()).reshape([BLOCK, HEAD_DIM])
    q = shared.q.index(stage).reshape([BLOCK, HEAD_DIM])
    if MASKED:
        clear_rows(stage, done, block, tile, call, shared, HEAD_DIM)
    mbarrier.wait(shared.q_full.index(stage), done // 2 & 1)
    lse = shared.lse.index(stage).load(COLUMNS)[None, :].broadcast_to([BLOCK, BLOCK])
    scores = warpgroup_mma(k, q.permute((1, 0)), lse, is_async=True)
    mbarrier.wait(shared.ds_full.index(slot), done // 2 & 1)
    dk = begin_dk(dk, slot, 1 - stage, shared, 0, HEAD_DIM)
    dq = begin_dq(slot, shared, 0, 0, HEAD_DIM)
    scores = warpgroup_mma_wait(2, deps=[scores])
    p = gl.exp2(scores * (gl.maximum(ends.scale, LEAST_SCALE) * LOG2E))
    if MASKED:
        p = gl.where(seen(tile.first, block * BLOCK, tile, call, SCORES, BLOCK), p, 0.0)
    rounded = packed(p, dtype)
    mbarrier.wait(shared.p_empty, (done & 1) ^ 1)
    shared.p.store(rounded)
    mbarrier.arrive(shared.p_full, count=1)
    weights = gl.convert_layout(rounded, gl.DotOperandLayout(0, WIDE, 2))
    mbarrier.wait(shared.dout_full, done & 1)
    dout = shared.dout.index(nought()).reshape([BLOCK, HEAD_DIM]).slice(0, HALF, 1)
    dv = warpgroup_mma(weights, dout, dv, is_async=True)
    dk, dq = warpgroup_mma_wait(1, deps=[dk, dq])
    mbarrier.arrive(shared.q_empty.index(1 - stage), count=1)
    add_dq(dq, before, ends, shared, 0, 0, ORDERED)
    dq = begin_dq(slot, shared, 0, 1, HEAD_DIM)
    dv, weights, dq = warpgroup_mma_wait(0, deps=[dv, weights, dq])
    mbarrier.arrive(shared.dout_empty, count=1)
    mbarrier.arrive(shared.ds_empty.index(slot), count=1)
    add_dq(dq, before, ends, shared, 0, 1, ORDERED)
    return dk, dv


@gluon.jit
def differ(dk, dv, done, place, before, block, tile, call, ends, shared, MASKED: gl.constexpr, HEAD_DIM: gl.constexpr,
           ORDERED: gl.constexpr):  # fmt: skip
    """What the second consumer adds to the other half. Leaves the block's ds for the first, and adds their sums to
    those at `place`."""
    HALF: gl.constexpr = HEAD_DIM // 2
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK, 16])
    WIDE: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HALF, 16])
    COLUMNS: gl.constexpr = gl.SliceLayout(0, SCORES)
    dtype: gl.constexpr = shared.k.dtype
    stage = done % 2
    slot = (done + 1) % 2
    if MASKED:
        clear_rows(stage, done, block, tile, call, shared, HEAD_DIM)
    dk = begin_dk(dk, 1 - slot, 1 - stage, shared, 1, HEAD_DIM)
    dq = begin_dq(1 - slot, shared, 1, 0, HEAD_DIM)
    mbarrier.wait(shared.dout_full, done & 1)
    v = shared.v.index(nought()).reshape([BLOCK, HEAD_DIM])
    dout = shared.dout.index(nought()).reshape([BLOCK, HEAD_DIM])
    delta = shared.delta.index(0).load(COLUMNS)[None, :].broadcast_to([BLOCK, BLOCK])
    dp = warpgroup_mma(v, dout.permute((1, 0)), delta, is_async=True)
    dk, dq = warpgroup_mma_wait(1, deps=[dk, dq])
    mbarrier.arrive(shared.q_empty.index(1 - stage), count=1)
    add_dq(dq, before, ends, shared, 1, 0, ORDERED)
    mbarrier.wait(shared.p_full, done & 1)
    rounded = shared.p.load(SCORES)
    mbarrier.arrive(shared.p_empty, count=1)
    weights = gl.convert_layout(rounded, gl.DotOperandLayout(0, WIDE, 2))
    dp = warpgroup_mma_wait(0, deps=[dp])
    dv = warpgroup_mma(weights, dout.slice(HALF, HALF, 1), dv, is_async=True)
    ds = packed(rounded.to(gl.float32) * dp, dtype)
    mbarrier.wait(shared.ds_empty.index(slot), ((done + 1) // 2 & 1) ^ 1)
    shared.ds.index(slot).store(ds)
    fence_async_shared()
    mbarrier.arrive(shared.ds_full.index(slot), count=1)
    dq = begin_dq(1 - slot, shared, 1, 1, HEAD_DIM)
    dv, weights = warpgroup_mma_wait(1, deps=[dv, weights])
    mbarrier.arrive(shared.dout_empty, count=1)
    add_up(shared.ds.index(slot), shared.surplus.index(slot), BLOCK, 8)
    dq = warpgroup_mma_wait(0, deps=[dq])
    add_dq(dq, before, ends, shared, 1, 1, ORDERED)
    if not ORDERED:
        add_surplus(place, slot, ends, shared)
    mbarrier.wait(shared.q_full.index(stage), done // 2 & 1)  # of which dk is summed next
    return dk, dv


@gluon.jit
def begin_with_zeros(slot, stage, shared, HEAD_DIM: gl.constexpr):
    """Writes what stands for the block before a tile's first, of which both consumers sum dk and dq: zeros."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK, 16])
    ROWS: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [4, 1], [1, 0])
    dtype: gl.constexpr = shared.k.dtype
    shared.ds.index(slot).store(gl.zeros([BLOCK, BLOCK], dtype, SCORES))
    shared.q.index(stage).reshape([BLOCK, HEAD_DIM]).store(gl.zeros([BLOCK, HEAD_DIM], dtype, ROWS))
    fence_async_shared()


@gluon.jit
def clear_keys(tile, call, shared, HEAD_DIM: gl.constexpr):
    """Makes zeros of keys and values beyond the sequence, where other sequences' may lie."""
    inside = tile.rows_k - tile.first
    if ((call.flags & (CU_K | SUMS_K | USED_K)) != 0) & (inside < BLOCK):
        clear_beyond(shared.k.index(0).reshape([BLOCK, HEAD_DIM]), inside, BLOCK, HEAD_DIM)
        clear_beyond(shared.v.index(0).reshape([BLOCK, HEAD_DIM]), inside, BLOCK, HEAD_DIM)


@gluon.jit
def walk(dk, dv, done, before, span, first_place, tile, call, ends, shared, INDEX: gl.constexpr,
         HEAD_DIM: gl.constexpr, ORDERED: gl.constexpr):  # fmt: skip
    """Adds to dk and dv what the blocks of a Span give, in the order of block_of(). Returns both, how many blocks are
    done with these, and where the last has its sums.

    Args:
        before: where the block before has its sums.
        first_place: where the first row of the first head has them.
    """
    front = span.whole_begin - span.begin
    masked = front + span.end - span.whole_end
    for i in range(masked * call.heads_per_kv):
        number = i % masked
        block = gl.where(number < front, span.begin + number, span.whole_end + number - front)
        place = first_place + i // masked * call.places + block * BLOCK
        if INDEX == 0:
            dk, dv = weigh(dk, dv, done, before, block, tile, call, ends, shared, True, HEAD_DIM, ORDERED)
        else:
            dk, dv = differ(dk, dv, done, place, before, block, tile, call, ends, shared, True, HEAD_DIM, ORDERED)
        before = place
        done += 1
    place = first_place + span.whole_begin * BLOCK
    whole = span.whole_end - span.whole_begin
    left = whole
    for _ in range(whole * call.heads_per_kv):
        if INDEX == 0:
            dk, dv = weigh(dk, dv, done, before, 0, tile, call, ends, shared, False, HEAD_DIM, ORDERED)
        else:
            dk, dv = differ(dk, dv, done, place, before, 0, tile, call, ends, shared, False, HEAD_DIM, ORDERED)
        before = place
        done += 1
        place, left = next_place(place, left, whole, call.places, BLOCK)
    return dk, dv, done, before


@gluon.jit
def end_blocks(dk, done, before, ends, shared, INDEX: gl.constexpr, HEAD_DIM: gl.constexpr, ORDERED: gl.constexpr):
    """Returns dk with what a tile's last block adds, whose sums are at `before`, and does the same for dq."""
    slot = done % 2
    mbarrier.wait(shared.ds_full.index(slot), done // 2 & 1)
    dk = begin_dk(dk, slot, 1 - slot, shared, INDEX, HEAD_DIM)
    for part in gl.static_range(2):
        dq = begin_dq(slot, shared, INDEX, part, HEAD_DIM)
        dk, dq = warpgroup_mma_wait(0, deps=[dk, dq])
        add_dq(dq, before, ends, shared, INDEX, part, ORDERED)
    return dk


@gluon.jit
def write_sums(dk, dv, tile, ends, shared, INDEX: gl.constexpr, HEAD_DIM: gl.constexpr, ORDERED: gl.constexpr):
    """Begins to write half of the columns of dk and dv, through the place of dq."""
    HALF: gl.constexpr = HEAD_DIM // 2
    WIDE: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HALF, 16])
    dtype: gl.constexpr = shared.k.dtype
    free = reinterpreted(shared.dq.index(INDEX), dtype, [1, 1, 1, BLOCK, HALF], ends.dk_desc.layout).index(0)
    await_place(shared, INDEX, 0, ORDERED)
    write(
        dv.to(dtype), free, ends.dv_desc, ends.dv_ptr, ends.stride_dvb, ends.stride_dvh, ends.stride_dvn,
        ends.width_v, tile, tile.first, INDEX * HALF, HALF, WIDE,
    )  # fmt: skip
    tma.store_wait(0)
    write(
        (dk * ends.scale).to(dtype), free, ends.dk_desc, ends.dk_ptr, ends.stride_dkb, ends.stride_dkh,
        ends.stride_dkn, ends.width_qk, tile, tile.first, INDEX * HALF, HALF, WIDE,
    )  # fmt: skip


@gluon.jit
def consume(ends, shared, call, INDEX: gl.constexpr, HEAD_DIM: gl.constexpr):
    """Computes half of the columns of dk and dv of the keys, and of dq."""
    HALF: gl.constexpr = HEAD_DIM // 2
    WIDE: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HALF, 16])
    tile = tile_of(gl.program_id(0), call, BLOCK)
    if tile.first < tile.rows_k:
        span = span_of(tile, call, BLOCK, BLOCK)
        dk = gl.zeros([BLOCK, HALF], gl.float32, WIDE)
        dv = gl.zeros([BLOCK, HALF], gl.float32, WIDE)
        if INDEX == 1:
            begin_with_zeros(0, 1, shared, HEAD_DIM)
            gl.barrier()
            mbarrier.arrive(shared.ds_full.index(0), count=1)
        mbarrier.wait(shared.keys_full, 0)
        gdc_wait()
        clear_keys(tile, call, shared, HEAD_DIM)
        first_place = place_of_row(tile, tile.head_kv * call.heads_per_kv, 0, call)
        before = first_place + span.begin * BLOCK
        dk, dv, done, before = walk(
            dk, dv, gl.to_tensor(0), before, span, first_place, tile, call, ends, shared, INDEX, HEAD_DIM, False
        )  # fmt: skip
        if done > 0:
            dk = end_blocks(dk, done, before, ends, shared, INDEX, HEAD_DIM, False)
        write_sums(dk, dv, tile, ends, shared, INDEX, HEAD_DIM, False)
        arrive(ends.arrivals_ptr, tile.first, tile, call)
        tma.store_wait(0)


@gluon.jit
def attn_bwd_wide(
    q_desc, dout_desc, k_desc, v_desc, dk_desc, dv_desc, dq_desc, terms_desc, dk_ptr, dv_ptr,
    cu_q_ptr, cu_k_ptr, used_q_ptr, used_k_ptr,
    stride_dkb, stride_dkh, stride_dkn, stride_dvb, stride_dvh, stride_dvn,
    sm_scale, batches, heads, heads_per_kv, seqlen_q, seqlen_k, width_qk, width_v, window_left, window_right, flags,
    tiles, places, arrivals_ptr,
    HEAD_DIM: gl.constexpr, REGISTERS: gl.constexpr, SPAN: gl.constexpr,
):  # fmt: skip
    """dk, dv, and sums for dq and of ds, by `tiles` programs of 64 keys each. Arguments as of attn_bwd_hopper; boxes
    have 64 rows, of dk and dv half of the columns, and of dq a quarter."""
    dtype: gl.constexpr = q_desc.dtype
    DS: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK, BLOCK], dtype)
    shared = Shared(
        gl.allocate_shared_memory(dtype, [1, 1, 1, BLOCK, HEAD_DIM], k_desc.layout),
        gl.allocate_shared_memory(dtype, [1, 1, 1, BLOCK, HEAD_DIM], v_desc.layout),
        gl.allocate_shared_memory(dtype, [2, 1, 1, BLOCK, HEAD_DIM], q_desc.layout),
        gl.allocate_shared_memory(dtype, [1, 1, 1, BLOCK, HEAD_DIM], dout_desc.layout),
        gl.allocate_shared_memory(gl.float32, [2, BLOCK], terms_desc.layout),
        gl.allocate_shared_memory(gl.float32, [1, BLOCK], terms_desc.layout),
        gl.allocate_shared_memory(dtype, [BLOCK, BLOCK], DS),
        gl.allocate_shared_memory(dtype, [2, BLOCK, BLOCK], DS),
        gl.allocate_shared_memory(gl.float32, [2, BLOCK, HEAD_DIM // 4], dq_desc.layout),
        gl.allocate_shared_memory(gl.float32, [2, BLOCK], terms_desc.layout),
        barriers(1, 1),
        barriers(2, 1),
        barriers(2, 2),
        barriers(1, 1),
        barriers(1, 2),
        barriers(1, 1),
        barriers(1, 1),
        barriers(2, 1),
        barriers(2, 1),
    )
    fence_async_shared()
    call = Call(
        batches, heads, heads_per_kv, seqlen_q, seqlen_k, window_left, window_right, flags, tiles, places, SPAN, False,
        cu_q_ptr, cu_k_ptr, used_q_ptr, used_k_ptr,
    )  # fmt: skip
    ends = Ends(
        dq_desc, dk_desc, dv_desc, dk_ptr, dv_ptr, stride_dkb, stride_dkh, stride_dkn, stride_dvb, stride_dvh,
        stride_dvn, width_qk, width_v, terms_desc, 2 * heads * places, sm_scale, dk_ptr, arrivals_ptr,
    )  # fmt: skip
    gl.warp_specialize([
        (consume, (ends, shared, call, 0, HEAD_DIM)),
        (consume, (ends, shared, call, 1, HEAD_DIM)),
        (produce, (q_desc, dout_desc, k_desc, v_desc, terms_desc, shared, call)),
    ], [4, 1], [REGISTERS, 24])  # fmt: skip
