"""How programs of attn_bwd_hopper.py add to dq: a consumer itself begins it; in a fixed order, a warp of its own."""

from attn_bwd_tiles import block_of, leave_work, next_work, turn_of
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton.language.extra.cuda import gdc_wait


@gluon.jit
def add_half(place, slot, ends, shared, call, WHOSE: gl.constexpr, HEAD_DIM: gl.constexpr, BLOCK_M: gl.constexpr):
    """Begins to add a consumer's part of a block's dq, and its sums of the ds in `slot`, to those at `place`."""
    ROW: gl.constexpr = 64 * WHOSE if BLOCK_M == 128 else 0
    COLUMN: gl.constexpr = 0 if BLOCK_M == 128 else HEAD_DIM * BLOCK_M // 128 * WHOSE
    tma.async_atomic_add(ends.dq_desc, [place + ROW, COLUMN], shared.dq.index(WHOSE))
    # Sums of ds of each consumer's keys have places of their own: nothing says which consumer comes first.
    sums_at = ends.surplus_at + WHOSE * call.heads * call.places
    tma.async_atomic_add(ends.terms_desc, [sums_at + place], shared.surplus.index(slot * 2 + WHOSE))


@gluon.jit
def await_order(added_ptr, turn):
    """Waits until so many tiles have been added to a block of rows."""
    while gl.load(added_ptr, volatile=True) < turn:
        pass
    gl.atomic_add(added_ptr, 0, sem="acquire")
    gl.barrier()


@gluon.jit
def wait_for_adds():
    """Waits until what this warp's copies add is there, and not only read."""
    waited = gl.zeros([32], gl.int32, gl.BlockedLayout([1], [32], [1], [0]))
    gl.inline_asm_elementwise("cp.async.bulk.wait_group 0; mov.u32 $0, $1;", "=r,r", [waited], gl.int32, False, 1)
    gl.barrier()


@gluon.jit
def add_in_turn(ends, shared, call, HEAD_DIM: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr):
    """Adds what the consumers leave of each block, after all tiles whose turn is before this one's. This warp waits for
    others, and until its own is there, so that the consumers need not."""
    gdc_wait()  # until then, numbers of adds are those that the last call left
    told = 0
    done = 0
    tile = next_work(told, shared, 1)
    while tile.rows_k > 0:
        for i in range((tile.end - tile.begin) * call.heads_per_kv):
            member, block = block_of(i, tile, call, True)
            place = tile.place + member * call.places + block * BLOCK_M
            await_order(ends.order_ptr + place // 64, turn_of(block, tile, call, BLOCK_M, BLOCK_N))
            mbarrier.wait(shared.dq_full.index(0), done & 1)
            add_half(place, (done + 1) % 2, ends, shared, call, 0, HEAD_DIM, BLOCK_M)
            mbarrier.wait(shared.dq_full.index(1), done & 1)
            add_half(place, (done + 1) % 2, ends, shared, call, 1, HEAD_DIM, BLOCK_M)
            tma.store_wait(0)
            mbarrier.arrive(shared.dq_empty.index(0), count=1)
            mbarrier.arrive(shared.dq_empty.index(1), count=1)
            wait_for_adds()
            gl.atomic_add(ends.order_ptr + place // 64, 1, sem="release")
            done += 1
        arrived = tile.batch * (call.heads // call.heads_per_kv) + tile.head_kv
        gl.atomic_add(ends.arrivals_ptr + arrived, 2, sem="release")
        leave_work(told, shared)
        told += 1
        tile = next_work(told, shared, 1)
