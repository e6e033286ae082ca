"""attn_bwd_wide.py with sums of dq in a fixed order: programs take tiles one after another, and a warp of each adds, as
of attn_bwd_hopper.py."""

from typing import NamedTuple

from attn_bwd_hopper import Ends
from attn_bwd_order import await_order, wait_for_adds
from attn_bwd_pieces import barriers
from attn_bwd_tiles import (
    Call,
    announce,
    announce_end,
    block_of,
    board,
    leave_work,
    next_turn,
    next_work,
    section_of,
    span_of,
    tile_of,
    turn_of,
    work_of,
)
from attn_bwd_wide import (
    BLOCK,
    add_part,
    add_surplus,
    begin_with_zeros,
    clear_keys,
    copy_keys,
    copy_rows,
    end_blocks,
    walk,
    write_sums,
)
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


class Shared(NamedTuple):
    """As attn_bwd_wide.Shared, and what is wanted for tiles one after another, and for dq in turn."""

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
    work: gl.shared_memory_descriptor
    work_full: gl.shared_memory_descriptor
    work_empty: gl.shared_memory_descriptor
    keys_full: gl.shared_memory_descriptor
    keys_empty: gl.shared_memory_descriptor
    q_full: gl.shared_memory_descriptor
    q_empty: gl.shared_memory_descriptor
    dout_full: gl.shared_memory_descriptor
    dout_empty: gl.shared_memory_descriptor
    p_full: gl.shared_memory_descriptor
    p_empty: gl.shared_memory_descriptor
    ds_full: gl.shared_memory_descriptor
    ds_empty: gl.shared_memory_descriptor
    dq_full: gl.shared_memory_descriptor
    dq_empty: gl.shared_memory_descriptor


@gluon.jit
def produce(q_desc, dout_desc, k_desc, v_desc, terms_desc, shared, taken_ptr, call):
    """Takes turns, and copies each tile's keys and values, and block by block the rows that see them, in the consumers'
    order."""
    gdc_wait()  # until then, the number of turns taken is what the last call left
    turn = next_turn(taken_ptr, call)
    told = 0
    done = 0
    while turn < call.tiles:
        tile = tile_of(turn, call, BLOCK)
        if tile.first < tile.rows_k:
            span = span_of(tile, call, BLOCK, BLOCK)
            announce(told, tile, span, call, shared)
            mbarrier.wait(shared.keys_empty, (told & 1) ^ 1)
            told += 1
            copy_keys(tile, k_desc, v_desc, shared)
            gdc_launch_dependents()
            for i in range((span.end - span.begin) * call.heads_per_kv):
                copy_rows(i, done, tile, span, q_desc, dout_desc, terms_desc, shared, call)
                done += 1
        turn = next_turn(taken_ptr, call)
    announce_end(told, shared)


@gluon.jit
def add_in_turn(ends, shared, call):
    """As attn_bwd_order.add_in_turn. Consumers leave dq a block late, so first of a tile that of none."""
    gdc_wait()
    told = 0
    done = 0
    tile = next_work(told, shared, 1)
    while tile.rows_k > 0:
        count = (tile.end - tile.begin) * call.heads_per_kv
        if count > 0:
            for part in range(4):
                mbarrier.wait(shared.dq_full.index(part % 2), part // 2)
                mbarrier.arrive(shared.dq_empty.index(part % 2), count=1)
        for i in range(count):
            member, block = block_of(i, tile, call, True)
            place = tile.place + member * call.places + block * BLOCK
            await_order(ends.order_ptr + place // 64, turn_of(block, tile, call, BLOCK, BLOCK))
            for part in gl.static_range(2):
                for whose in gl.static_range(2):
                    mbarrier.wait(shared.dq_full.index(whose), part)
                    add_part(place, ends, shared, whose, part)
                if part == 0:
                    add_surplus(place, (done + 1) % 2, ends, shared)
                tma.store_wait(0)
                for whose in gl.static_range(2):
                    mbarrier.arrive(shared.dq_empty.index(whose), count=1)
            wait_for_adds()
            gl.atomic_add(ends.order_ptr + place // 64, 1, sem="release")
            done += 1
        arrived = tile.batch * (call.heads // call.heads_per_kv) + tile.head_kv
        gl.atomic_add(ends.arrivals_ptr + arrived, 2, sem="release")
        leave_work(told, shared)
        told += 1
        tile = next_work(told, shared, 1)


@gluon.jit
def meet():
    """Waits until both consumers are here. Nothing else uses the barrier 15."""
    gl.inline_asm_elementwise("barrier.sync 15, 256; mov.b32 $0, $1;", "=r,r", [gl.to_tensor(0)], dtype=gl.int32,
                              is_pure=False, pack=1)  # fmt: skip


@gluon.jit
def consume(ends, shared, call, INDEX: gl.constexpr, HEAD_DIM: gl.constexpr):
    """Computes half of the columns of dk and dv of the keys of each tile, and of dq."""
    HALF: gl.constexpr = HEAD_DIM // 2
    WIDE: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HALF, 16])
    if INDEX == 1:
        mbarrier.arrive(shared.ds_full.index(0), count=1)  # of the first block -1
    told = 0
    done = 0
    gdc_wait()
    tile = next_work(told, shared, 4)
    while tile.rows_k > 0:
        dk = gl.zeros([BLOCK, HALF], gl.float32, WIDE)
        dv = gl.zeros([BLOCK, HALF], gl.float32, WIDE)
        meet()  # both have read the tile before's last block, in whose place zeros come
        if INDEX == 1:
            begin_with_zeros(done % 2, (done + 1) % 2, shared, HEAD_DIM)
        meet()
        mbarrier.wait(shared.keys_full, told & 1)
        clear_keys(tile, call, shared, HEAD_DIM)
        before = tile.place + tile.begin * BLOCK
        for number in range(2):
            tile = work_of(told, shared, 4)  # here and behind the loops again, so that it takes no registers in them
            dk, dv, done, before = walk(
                dk, dv, done, before, section_of(number, tile), tile.place, tile, call, ends, shared, INDEX, HEAD_DIM,
                True,
            )  # fmt: skip
        if tile.end > tile.begin:
            dk = end_blocks(dk, done, before, ends, shared, INDEX, HEAD_DIM, True)
        tile = work_of(told, shared, 4)
        mbarrier.arrive(shared.keys_empty, count=1)
        write_sums(dk, dv, tile, ends, shared, INDEX, HEAD_DIM, True)
        tma.store_wait(0)
        leave_work(told, shared)
        told += 1
        tile = next_work(told, shared, 4)


@gluon.jit
def attn_bwd_wide_order(
    q_desc, dout_desc, k_desc, v_desc, dk_desc, dv_desc, dq_desc, terms_desc, dk_ptr, dv_ptr,
    cu_q_ptr, cu_k_ptr, used_q_ptr, used_k_ptr,
    stride_dkb, stride_dkh, stride_dkn, stride_dvb, stride_dvh, stride_dvn,
    sm_scale, batches, heads, heads_per_kv, seqlen_q, seqlen_k, width_qk, width_v, window_left, window_right, flags,
    tiles, places, order_ptr, arrivals_ptr,
    HEAD_DIM: gl.constexpr, REGISTERS: gl.constexpr, SPAN: gl.constexpr,
):  # fmt: skip
    """dk, dv, and sums for dq and of ds in a fixed order, of `tiles` tiles of 64 keys, by as many programs as there are
    multiprocessors, or tiles. Arguments as of attn_bwd_hopper; boxes as of attn_bwd_wide."""
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
        board(),
        barriers(2, 1),
        barriers(2, 3),
        barriers(1, 1),
        barriers(1, 2),
        barriers(2, 1),
        barriers(2, 2),
        barriers(1, 1),
        barriers(1, 2),
        barriers(1, 1),
        barriers(1, 1),
        barriers(2, 1),
        barriers(2, 1),
        barriers(2, 1),
        barriers(2, 1),
    )
    fence_async_shared()
    call = Call(
        batches, heads, heads_per_kv, seqlen_q, seqlen_k, window_left, window_right, flags, tiles, places, SPAN, True,
        cu_q_ptr, cu_k_ptr, used_q_ptr, used_k_ptr,
    )  # fmt: skip
    ends = Ends(
        dq_desc, dk_desc, dv_desc, dk_ptr, dv_ptr, stride_dkb, stride_dkh, stride_dkn, stride_dvb, stride_dvh,
        stride_dvn, width_qk, width_v, terms_desc, 2 * heads * places, sm_scale, order_ptr, arrivals_ptr,
    )  # fmt: skip
    taken_ptr = arrivals_ptr + batches * (heads // heads_per_kv)
    gl.warp_specialize([
        (consume, (ends, shared, call, 0, HEAD_DIM)),
        (consume, (ends, shared, call, 1, HEAD_DIM)),
        (produce, (q_desc, dout_desc, k_desc, v_desc, terms_desc, shared, taken_ptr, call)),
        (add_in_turn, (ends, shared, call)),
    ], [4, 1, 1], [REGISTERS, 24, 24])  # fmt: skip
