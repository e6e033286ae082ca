"""Attention backward for Hopper, in Gluon: dq, dk and dv of what attn_bwd.py computes, with five products in place of
seven.

A program has a block of keys of a head, and walks over the rows that see it, of each query head that shares the head. A
producer warp copies rows; two warpgroups of 64 keys each compute (FlashAttention-3: Shah et al., 2024,
arXiv:2407.08608). Scores are transposed, [keys, rows]: so weights and their gradients are factors of dv and dk without
leaving the registers. The gradients go through shared memory besides, and from there into dq: each warpgroup
multiplies half of it, and adds that to those of other programs in global memory.

attn_bwd_ends.py has what comes before and after: the log-sum-exps and delta as initial values of products, which
leaves them no registers; sums of dq to add to; dq from these sums. Programs begin while the kernel before them ends,
and copy keys and values until it has; and the kernel behind them may begin once all of them have.
"""

from typing import NamedTuple

from attn_bwd_pieces import add_up, arrive, barriers, clear_beyond, write
from attn_bwd_tiles import Call, block_of, rows_of, span_of, tile_of, turn_of
from flags import CU_K, CU_Q, SUMS_K, SUMS_Q, USED_K, USED_Q
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

LOG2E = gl.constexpr(1.4426950408889634)
LEAST_SCALE = gl.constexpr(1e-20)  # what log-sum-exps are divided by; attn_bwd_ends.py


class Shared(NamedTuple):
    """Tiles in shared memory, and the barriers that say whether they are full or may be filled anew. Keys, values, sums
    of dq and of ds (`surplus`) are in halves, one for each consumer; so is ds, of two blocks of rows in turn."""

    k: gl.shared_memory_descriptor
    v: gl.shared_memory_descriptor
    q: gl.shared_memory_descriptor
    dout: gl.shared_memory_descriptor
    lse: gl.shared_memory_descriptor
    delta: gl.shared_memory_descriptor
    ds: gl.shared_memory_descriptor
    dq: gl.shared_memory_descriptor
    surplus: gl.shared_memory_descriptor
    keys_full: gl.shared_memory_descriptor
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
    turns_ptr: gl.tensor
    arrivals_ptr: gl.tensor


@gluon.jit
def produce(q_desc, dout_desc, k_desc, v_desc, terms_desc, shared, call, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
            STAGES: gl.constexpr):  # fmt: skip
    """Copies the keys and values, and block by block the rows that see them, in the consumers' order."""
    tile = tile_of(call, BLOCK_N)
    if tile.first < tile.rows_k:
        mbarrier.expect(shared.keys_full, 2 * (k_desc.nbytes_per_cta + v_desc.nbytes_per_cta))
        for half in gl.static_range(2):
            key = tile.start_k + tile.first + 64 * half
            tma.async_load(k_desc, [tile.batch_k, tile.head_kv, key, 0], shared.keys_full, shared.k.index(half))
            tma.async_load(v_desc, [tile.batch_k, tile.head_kv, key, 0], shared.keys_full, shared.v.index(half))
        gdc_wait()
        gdc_launch_dependents()
        span = span_of(tile, call, BLOCK_M, BLOCK_N)
        for i in range((span.end - span.begin) * call.heads_per_kv):
            stage = i % STAGES
            phase = (i // STAGES & 1) ^ 1
            member, block = block_of(i, span, call)
            head = tile.head_kv * call.heads_per_kv + member
            row = tile.start_q + block * BLOCK_M
            place = rows_of(tile, head, block * BLOCK_M, call)
            mbarrier.wait(shared.q_empty.index(stage), phase)
            mbarrier.expect(shared.q_full.index(stage), q_desc.nbytes_per_cta + terms_desc.nbytes_per_cta)
            tma.async_load(terms_desc, [place], shared.q_full.index(stage), shared.lse.index(stage))
            tma.async_load(q_desc, [tile.batch_q, head, row, 0], shared.q_full.index(stage), shared.q.index(stage))
            mbarrier.wait(shared.dout_empty.index(stage), phase)
            mbarrier.expect(shared.dout_full.index(stage), dout_desc.nbytes_per_cta + terms_desc.nbytes_per_cta)
            tma.async_load(
                terms_desc, [place + call.heads * call.places], shared.dout_full.index(stage), shared.delta.index(stage)
            )
            tma.async_load(
                dout_desc, [tile.batch_q, head, row, 0], shared.dout_full.index(stage), shared.dout.index(stage)
            )
    else:
        # This program's end is a reason for the next kernel to begin, which reads what the one before it writes.
        gdc_wait()


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
def add_half(place, ends, shared, call, WHOSE: gl.constexpr, HEAD_DIM: gl.constexpr, BLOCK_M: gl.constexpr):
    """Begins to add a consumer's part of a block's dq, and its sums of ds, to those at `place`."""
    ROW: gl.constexpr = 64 * WHOSE if BLOCK_M == 128 else 0
    COLUMN: gl.constexpr = 0 if BLOCK_M == 128 else HEAD_DIM * BLOCK_M // 128 * WHOSE
    tma.async_atomic_add(ends.dq_desc, [place + ROW, COLUMN], shared.dq.index(WHOSE))
    # Sums of ds of each consumer's keys have places of their own: nothing says which consumer comes first.
    sums_at = ends.surplus_at + WHOSE * call.heads * call.places
    tma.async_atomic_add(ends.terms_desc, [sums_at + place], shared.surplus.index(WHOSE))


@gluon.jit
def wait_for_adds():
    """Waits until what this warp's copies add is there, and not only read."""
    waited = gl.zeros([32], gl.int32, gl.BlockedLayout([1], [32], [1], [0]))
    gl.inline_asm_elementwise("cp.async.bulk.wait_group 0; mov.u32 $0, $1;", "=r,r", [waited], gl.int32, False, 1)
    gl.barrier()


@gluon.jit
def add_in_turn(ends, shared, call, HEAD_DIM: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr):
    """Adds what the consumers leave of each block, after all programs whose turn is before this one's. This warp waits
    for others, and until its own is there, so that the consumers need not."""
    tile = tile_of(call, BLOCK_N)
    if tile.first < tile.rows_k:
        gdc_wait()  # until then, turns are those that the last call left
        span = span_of(tile, call, BLOCK_M, BLOCK_N)
        for i in range((span.end - span.begin) * call.heads_per_kv):
            member, block = block_of(i, span, call)
            place = rows_of(tile, tile.head_kv * call.heads_per_kv + member, block * BLOCK_M, call)
            added = ends.turns_ptr + place // 64
            while gl.load(added, volatile=True) < turn_of(block, tile, call, BLOCK_M, BLOCK_N):
                pass
            gl.atomic_add(added, 0, sem="acquire")
            gl.barrier()
            mbarrier.wait(shared.dq_full.index(0), i & 1)
            add_half(place, ends, shared, call, 0, HEAD_DIM, BLOCK_M)
            mbarrier.wait(shared.dq_full.index(1), i & 1)
            add_half(place, ends, shared, call, 1, HEAD_DIM, BLOCK_M)
            tma.store_wait(0)
            mbarrier.arrive(shared.dq_empty.index(0), count=1)
            mbarrier.arrive(shared.dq_empty.index(1), count=1)
            wait_for_adds()
            gl.atomic_add(added, 1, sem="release")
        arrived = tile.batch * (call.heads // call.heads_per_kv) + tile.head_kv
        gl.atomic_add(ends.arrivals_ptr + arrived, 2, sem="release")


@gluon.jit
def add_rows(dk, dv, done, place, block, tile, call, ends, shared, INDEX: gl.constexpr, MASKED: gl.constexpr,
             HEAD_DIM: gl.constexpr, BLOCK_M: gl.constexpr, STAGES: gl.constexpr, ONES: gl.constexpr):  # fmt: skip
    """Adds what the done-th block of rows gives to dk and dv of 64 keys, and to half of its dq.

    Args:
        place: where this block has its sums.
        block: its number.
        ONES: as of add_up().
    """
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_M, 16])
    WIDE: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_DIM, 16])
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, WIDE, 2)
    COLUMNS: gl.constexpr = gl.SliceLayout(0, SCORES)
    dtype: gl.constexpr = shared.k.dtype
    stage = done % STAGES
    phase = done // STAGES & 1
    k = shared.k.index(INDEX).reshape([64, HEAD_DIM])
    v = shared.v.index(INDEX).reshape([64, HEAD_DIM])
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
        key = tile.first + 64 * INDEX + gl.arange(0, 64, gl.SliceLayout(1, SCORES))
        row = block * BLOCK_M + gl.arange(0, BLOCK_M, COLUMNS)
        longest = gl.maximum(tile.rows_q, tile.rows_k)
        first = key - tile.shift - gl.minimum(call.right, longest)
        last = key - tile.shift + gl.minimum(call.left, longest)
        last = gl.where(key < tile.rows_k, last, -1)
        seen = (row[None, :] >= first[:, None]) & (row[None, :] <= last[:, None])
        p = gl.where(seen, p, 0.0)
    slot = (done + 1) % 2
    own = shared.ds.index(slot * 2 + INDEX)
    DQ_ROWS: gl.constexpr = 64
    DQ_COLUMNS: gl.constexpr = HEAD_DIM * BLOCK_M // 128
    DQ: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, DQ_COLUMNS, 16])
    weights = gl.convert_layout(p.to(dtype), WEIGHTS)
    dp = warpgroup_mma_wait(0, deps=[dp])
    dv = warpgroup_mma(weights, dout, dv, is_async=True)
    ds = (p * dp).to(dtype)
    # The other consumer is done with what this held: it has written its ds of the block before since.
    own.store(ds)
    fence_async_shared()
    mbarrier.arrive(shared.ds_full.index(slot), count=1)
    factors = gl.convert_layout(ds, WEIGHTS)
    dk = warpgroup_mma(factors, q, dk, is_async=True)
    dq = gl.zeros([DQ_ROWS, DQ_COLUMNS], gl.float32, DQ)
    dq = begin_dq(dq, slot, INDEX, shared, INDEX, HEAD_DIM, BLOCK_M, False)
    if call.ordered:
        mbarrier.wait(shared.dq_empty.index(INDEX), (done & 1) ^ 1)
    else:
        tma.store_wait(0)
    add_up(own, shared.surplus.index(INDEX), BLOCK_M, ONES)
    mbarrier.wait(shared.ds_full.index(slot), (done + 1) // 2 & 1)
    dq = begin_dq(dq, slot, 1 - INDEX, shared, INDEX, HEAD_DIM, BLOCK_M, True)
    dv, weights = warpgroup_mma_wait(3, deps=[dv, weights])
    mbarrier.arrive(shared.dout_empty.index(stage), count=1)
    dk, factors = warpgroup_mma_wait(2, deps=[dk, factors])
    mbarrier.arrive(shared.q_empty.index(stage), count=1)
    dq = warpgroup_mma_wait(0, deps=[dq])
    if call.ordered:
        shared.dq.index(INDEX).store(dq)
        fence_async_shared()
        mbarrier.arrive(shared.dq_full.index(INDEX), count=1)
    else:
        tma.store_wait(0)
        shared.dq.index(INDEX).store(dq)
        fence_async_shared()
        gl.barrier()
        add_half(place, ends, shared, call, INDEX, HEAD_DIM, BLOCK_M)
    return dk, dv


@gluon.jit
def consume(ends, shared, call, INDEX: gl.constexpr, HEAD_DIM: gl.constexpr, BLOCK_M: gl.constexpr,
            BLOCK_N: gl.constexpr, STAGES: gl.constexpr, ONES: gl.constexpr):  # fmt: skip
    """Computes dk and dv of the keys [64 * INDEX, 64 * INDEX + 64) of the block, and half of dq."""
    WIDE: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_DIM, 16])
    dtype: gl.constexpr = shared.k.dtype
    tile = tile_of(call, BLOCK_N)
    if tile.first < tile.rows_k:
        span = span_of(tile, call, BLOCK_M, BLOCK_N)
        front = span.whole_begin - span.begin
        masked = front + span.end - span.whole_end
        dk = gl.zeros([64, HEAD_DIM], gl.float32, WIDE)
        dv = gl.zeros([64, HEAD_DIM], gl.float32, WIDE)
        mbarrier.wait(shared.keys_full, 0)
        gdc_wait()
        inside = tile.rows_k - tile.first - 64 * INDEX
        if ((call.flags & (CU_K | SUMS_K | USED_K)) != 0) & (inside < 64):
            clear_beyond(shared.k.index(INDEX).reshape([64, HEAD_DIM]), inside, 64, HEAD_DIM)
            clear_beyond(shared.v.index(INDEX).reshape([64, HEAD_DIM]), inside, 64, HEAD_DIM)
        first_place = rows_of(tile, tile.head_kv * call.heads_per_kv, 0, call)
        mbarrier.arrive(shared.ds_full.index(0), count=1)  # of a block -1: ds of the first are in the second slot
        done = 0
        for i in range(masked * call.heads_per_kv):
            number = i % masked
            block = gl.where(number < front, span.begin + number, span.whole_end + number - front)
            place = first_place + i // masked * call.places + block * BLOCK_M
            dk, dv = add_rows(
                dk, dv, done, place, block, tile, call, ends, shared, INDEX, True,
                HEAD_DIM, BLOCK_M, STAGES, ONES,
            )  # fmt: skip
            done += 1
        place = first_place + span.whole_begin * BLOCK_M
        whole = span.whole_end - span.whole_begin
        left = whole
        for _ in range(whole * call.heads_per_kv):
            dk, dv = add_rows(
                dk, dv, done, place, span.whole_end - left, tile, call, ends, shared, INDEX, False,
                HEAD_DIM, BLOCK_M, STAGES, ONES,
            )  # fmt: skip
            done += 1
            left -= 1
            place += gl.where(left == 0, call.places - (whole - 1) * BLOCK_M, BLOCK_M)
            left = gl.where(left == 0, whole, left)
        # This consumer alone reads its values, and writes its part of dq.
        if call.ordered:
            mbarrier.wait(shared.dq_empty.index(INDEX), (done & 1) ^ 1)
        else:
            tma.store_wait(0)
        first = tile.first + 64 * INDEX
        write(
            dv.to(dtype), shared.v.index(INDEX), ends.dv_desc, ends.dv_ptr, ends.stride_dvb, ends.stride_dvh,
            ends.stride_dvn, ends.width_v, tile, first, 0, HEAD_DIM, WIDE,
        )  # fmt: skip
        free = (
            shared.dq.index(INDEX)
            ._reinterpret(dtype, [BLOCK_M // 64, 1, 1, 64, HEAD_DIM], ends.dk_desc.layout)
            .index(0)
        )
        write(
            (dk * ends.scale).to(dtype), free, ends.dk_desc, ends.dk_ptr, ends.stride_dkb, ends.stride_dkh,
            ends.stride_dkn, ends.width_qk, tile, first, 0, HEAD_DIM, WIDE,
        )  # fmt: skip
        if not call.ordered:
            arrive(ends.arrivals_ptr, first, tile, call)
        tma.store_wait(0)


@gluon.jit
def attn_bwd_hopper(
    q_desc, dout_desc, k_desc, v_desc, dk_desc, dv_desc, dq_desc, terms_desc, dk_ptr, dv_ptr,
    cu_q_ptr, cu_k_ptr, used_q_ptr, used_k_ptr,
    stride_dkb, stride_dkh, stride_dkn, stride_dvb, stride_dvh, stride_dvn,
    sm_scale, batches, heads, heads_per_kv, seqlen_q, seqlen_k, width_qk, width_v, window_left, window_right, flags,
    tiles, places, turns_ptr, arrivals_ptr,
    HEAD_DIM: gl.constexpr, BLOCK_M: gl.constexpr, STAGES: gl.constexpr, REGISTERS: gl.constexpr, SPAN: gl.constexpr,
    ONES: gl.constexpr, ORDERED: gl.constexpr,
):  # fmt: skip
    """dk, dv, and sums for dq and of ds, by `tiles` programs (attn_bwd_tiles.tile_of), of 128 keys each.

    Args:
        q_desc, dout_desc: of [batch, heads, seqlen_q, width], in boxes of BLOCK_M rows.
        k_desc, v_desc, dk_desc, dv_desc: of [batch, heads / heads_per_kv, seqlen_k, width], in boxes of 64 keys.
            Columns from width to HEAD_DIM are zeros.
        dq_desc: of [heads * places, HEAD_DIM] fp32, sums of ds k, to be added to, in boxes of 64 rows and HEAD_DIM *
            BLOCK_M / 128 columns.
        terms_desc: of [4, heads, places] fp32, as attn_bwd_delta has left them, in boxes of BLOCK_M; the last half are
            sums of ds, to be added to.
        places: of a head, in these; attn_bwd_tiles.rows_of says which row has which.
        turns_ptr: [heads, places / 64] int32, zeros: how many programs have added to a block of rows; looked at if
            ORDERED.
        arrivals_ptr: [batches, heads / heads_per_kv] int32, zeros: how many consumers have added all that they add.
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
        gl.allocate_shared_memory(gl.float32, [2, BLOCK_M], terms_desc.layout),
        barriers(1, 1),
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
        stride_dvn, width_qk, width_v, terms_desc, 2 * heads * places, sm_scale, turns_ptr, arrivals_ptr,
    )  # fmt: skip
    if ORDERED:
        gl.warp_specialize([
            (consume, (ends, shared, call, 0, HEAD_DIM, BLOCK_M, BLOCK_N, STAGES, ONES)),
            (consume, (ends, shared, call, 1, HEAD_DIM, BLOCK_M, BLOCK_N, STAGES, ONES)),
            (produce, (q_desc, dout_desc, k_desc, v_desc, terms_desc, shared, call, BLOCK_M, BLOCK_N, STAGES)),
            (add_in_turn, (ends, shared, call, HEAD_DIM, BLOCK_M, BLOCK_N)),
        ], [4, 1, 1], [REGISTERS, 24, 24])  # fmt: skip
    else:
        gl.warp_specialize([
            (consume, (ends, shared, call, 0, HEAD_DIM, BLOCK_M, BLOCK_N, STAGES, ONES)),
            (consume, (ends, shared, call, 1, HEAD_DIM, BLOCK_M, BLOCK_N, STAGES, ONES)),
            (produce, (q_desc, dout_desc, k_desc, v_desc, terms_desc, shared, call, BLOCK_M, BLOCK_N, STAGES)),
        ], [4, 1], [REGISTERS, 24])  # fmt: skip
