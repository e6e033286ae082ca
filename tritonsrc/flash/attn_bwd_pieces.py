"""What attn_bwd_hopper.py and attn_bwd_wide.py do with single tiles in shared memory."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, mma_v2, tma


@gluon.jit
def barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr):
    """So many barriers, [COUNT, 1], or one, each passed by so many arrivals. Wants a fence behind it."""
    made = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for number in gl.static_range(COUNT):
        mbarrier.init(made.index(number), count=ARRIVALS)
    if COUNT == 1:
        return made.index(0)
    else:
        return made


@gluon.jit
def seen(first_key, first_row, tile, call, SCORES: gl.constexpr, ROWS: gl.constexpr):
    """Which of 64 keys and ROWS rows belong together, [64, ROWS]."""
    key = first_key + gl.arange(0, 64, gl.SliceLayout(1, SCORES))
    row = first_row + gl.arange(0, ROWS, gl.SliceLayout(0, SCORES))
    longest = gl.maximum(tile.rows_q, tile.rows_k)
    first = key - tile.shift - gl.minimum(call.right, longest)
    last = key - tile.shift + gl.minimum(call.left, longest)
    last = gl.where(key < tile.rows_k, last, -1)
    return (row[None, :] >= first[:, None]) & (row[None, :] <= last[:, None])


@gluon.jit
def clear_beyond(tile, count, ROWS: gl.constexpr, HEAD_DIM: gl.constexpr):
    """Makes zeros of a tile's rows from number `count` on: another sequence's, or whatever lies there, which a weight
    of 0 does not make 0 if it is no number. Each consumer does so for itself; they write the same."""
    ACROSS: gl.constexpr = HEAD_DIM // 8 if HEAD_DIM < 256 else 32
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [32 // ACROSS, ACROSS], [4, 1], [1, 0])
    inside = gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT)) < count
    tile.store(gl.where(inside[:, None], tile.load(LAYOUT), 0.0))
    fence_async_shared()
    gl.barrier()


@gluon.jit
def nought():
    """0, which the compiler does not know: what depends on it is computed anew in each step of a loop. Descriptors of
    products with tiles that stay would be computed before the loop otherwise, and spilled."""
    return gl.inline_asm_elementwise("mov.u32 $0, 0; // $1", "=r,r", [gl.to_tensor(0)], dtype=gl.int32, is_pure=False,
                                     pack=1)  # fmt: skip


@gluon.jit
def packed(values, dtype: gl.constexpr):
    """Values rounded to 16 bits, two in a register: taken apart again, each costs an instruction, where two conversions
    would."""
    if dtype == gl.bfloat16:
        return gl.inline_asm_elementwise("cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,r,r", [values], gl.bfloat16, True, 2)
    else:
        return gl.inline_asm_elementwise("cvt.rn.f16x2.f32 $0, $2, $1;", "=r,r,r", [values], gl.float16, True, 2)


@gluon.jit
def add_up(ds, staged, BLOCK_M: gl.constexpr, ONES: gl.constexpr):
    """Writes the sum of the ds of each row, [64 keys, rows] in shared memory, as they are rounded: what of it should
    not be there, dq has too much of the mean key (means.py). Keys are spread over threads; read back, a thread has
    several of a row.

    Args:
        ONES: rows are summed by a product with so many columns of ones; 0: one by one.
    """
    dtype: gl.constexpr = ds.dtype
    SMALL: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [4, 1], [16, 8])
    FACTOR: gl.constexpr = gl.DotOperandLayout(0, SMALL, 2)
    for part in gl.static_range(BLOCK_M // 64):
        factor = ds.slice(64 * part, 64, 1).permute((1, 0)).load(FACTOR)
        if ONES:
            ones = gl.full([64, ONES], 1.0, dtype, gl.DotOperandLayout(1, SMALL, 2))
            total = gl.max(mma_v2(factor, ones, gl.zeros([64, ONES], gl.float32, SMALL)), 1)
        else:
            total = gl.sum(factor.to(gl.float32), 1)
        staged.slice(64 * part, 64, 0).store(total)


@gluon.jit
def write(values, shared_tile, desc, ptr, stride_b, stride_h, stride_n, width, tile, first,
          COLUMN: gl.constexpr, WIDTH: gl.constexpr, WIDE: gl.constexpr):  # fmt: skip
    """Begins to write dk or dv of 64 keys from number `first` on: WIDTH columns from COLUMN on."""
    if first + 64 <= tile.rows_k:
        shared_tile.reshape([64, WIDTH]).store(values)
        fence_async_shared()
        gl.barrier()
        tma.async_store(desc, [tile.batch_k, tile.head_kv, tile.start_k + first, COLUMN], shared_tile)
    else:
        # Behind the last keys of a sequence lies the next, or what is not to be written.
        column = COLUMN + gl.arange(0, WIDTH, gl.SliceLayout(0, WIDE))
        key = first + gl.arange(0, 64, gl.SliceLayout(1, WIDE))
        at = ptr + tile.batch_k.to(gl.int64) * stride_b + tile.head_kv.to(gl.int64) * stride_h
        at += (tile.start_k + key)[:, None].to(gl.int64) * stride_n
        there = (key < tile.rows_k)[:, None] & (column < width)[None, :]
        gl.store(at + column[None, :], values, mask=there)


@gluon.jit
def arrive(arrivals_ptr, first, tile, call):
    """Counts this consumer, whose first key has the number `first`, among those that have added all that they add to dq
    of their heads, [batches, heads_kv], once that is there."""
    waited = gl.zeros([128], gl.int32, gl.BlockedLayout([1], [32], [4], [0]))
    if first + 64 <= tile.rows_k:  # dk and dv are the copy engine's last groups, and need not be there
        gl.inline_asm_elementwise("cp.async.bulk.wait_group 2; mov.u32 $0, $1;", "=r,r", [waited], gl.int32, False, 1)
    else:
        gl.inline_asm_elementwise("cp.async.bulk.wait_group 0; mov.u32 $0, $1;", "=r,r", [waited], gl.int32, False, 1)
    gl.barrier()
    gl.atomic_add(arrivals_ptr + tile.batch * (call.heads // call.heads_per_kv) + tile.head_kv, 1, sem="release")
