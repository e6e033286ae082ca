"""Transposes blocks of values of fp8 in shared memory, for attn_fwd_fp8.py.

Warps load two neighbours of a row as one element, by a transposing load, and permutations of bytes make of four keys'
elements those of the even column and those of the odd one (FlashAttention-3: Shah et al., 2024, arXiv:2407.08608,
section 3.3). Keys have another order in the block that they write: in each 16, 0 1 8 9, 2 3 10 11, 4 5 12 13,
6 7 14 15. So it comes from the transposing load, and so a thread has weights as a result of one product, four of which
lie side by side as factors of the next.
"""

from flags import CU_K, SUMS_K, USED_K
from hopper_pieces import reinterpreted
from hopper_tiles import FIELDS, ROWS_Q, Work, block_of
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier


@gluon.jit
def columns_of(pairs):
    """The even column and the odd one of pairs of bytes, of four keys each."""
    return gl.inline_asm_elementwise(
        "prmt.b32 $0, $2, $3, 0x6420; prmt.b32 $1, $2, $3, 0x7531;", "=&r,=r,r,r", [pairs], dtype=(gl.int8, gl.int8),
        is_pure=True, pack=4,
    )  # fmt: skip


@gluon.jit
def field_at(board, slot, FIELD: gl.constexpr):
    """A field of a Tile, as hopper_tiles.read_field(), for any number of warps."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    return gl.max(board.index(slot * FIELDS + FIELD).load(layout), 0)


@gluon.jit
def blocks_at(board, slot):
    """Of a tile: how many rows, and keys, its sequence has, and the Work."""
    work = Work(
        field_at(board, slot, 7), field_at(board, slot, 8), field_at(board, slot, 9), field_at(board, slot, 10),
        field_at(board, slot, 11), field_at(board, slot, 12), field_at(board, slot, 13), field_at(board, slot, 14),
        field_at(board, slot, 15),
    )  # fmt: skip
    return field_at(board, slot, ROWS_Q), field_at(board, slot, 6), work


@gluon.jit
def clear_beyond(pairs, count):
    """Makes zeros of the values from number `count` of a block on: another sequence's, or whatever lies there, which a
    weight of 0 does not make 0 if it is no number."""
    COLUMNS: gl.constexpr = pairs.shape[1]
    LANES: gl.constexpr = min(COLUMNS // 4, 32)
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 4], [32 // LANES, LANES], [gl.num_warps(), 1], [1, 0])
    PART: gl.constexpr = 32
    for part in gl.static_range(pairs.shape[0] // PART):
        tile = pairs.slice(part * PART, PART)
        inside = part * PART + gl.arange(0, PART, gl.SliceLayout(1, LAYOUT)) < count
        tile.store(gl.where(inside[:, None], tile.load(LAYOUT), 0))
    gl.barrier()


@gluon.jit
def transpose(shared, call, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr, STAGES: gl.constexpr,
              ROW_STAGES: gl.constexpr):  # fmt: skip
    """Writes each block of values as [columns, keys]."""
    # A thread has four keys of a pair of columns, 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 of 16; a warp all keys.
    PART: gl.constexpr = 32
    PAIRS: gl.constexpr = transposed_layout(PART, HEAD_DIM, gl.num_warps())
    OF_PAIRS: gl.constexpr = gl.NVMMASharedLayout(shared.v.layout.swizzle_byte_width, 16, rank=2)
    values = reinterpreted(shared.v, gl.int16, [STAGES, BLOCK_N, HEAD_DIM // 2], OF_PAIRS)
    done = 0
    taken = 0
    mbarrier.wait(shared.q_full.index(0), 0)
    rows_q, rows_k, work = blocks_at(shared.tiles, 0)
    while rows_q > 0:
        blocks = 1 + work.middle + work.rest
        ragged = (call.flags & (CU_K | SUMS_K | USED_K)) != 0
        for i in range(blocks):
            stage = done % STAGES
            phase = done // STAGES & 1
            mbarrier.wait(shared.v_full.index(stage), phase)
            there = rows_k - block_of(i, work) * BLOCK_N
            if ragged & (there < BLOCK_N):
                clear_beyond(values.index(stage), there)
            mbarrier.wait(shared.vt_empty.index(stage), phase ^ 1)
            for part in gl.static_range(BLOCK_N // PART):
                even, odd = columns_of(values.index(stage).slice(part * PART, PART).load(PAIRS))
                columns = gl.join(even, odd).reshape([PART // 16, 2, 4, 2, HEAD_DIM // 2, 2])
                columns = columns.permute((4, 5, 0, 2, 1, 3)).reshape([HEAD_DIM, PART])
                shared.vt.index(stage).slice(part * PART, PART, 1).store(columns)
            fence_async_shared()
            gl.barrier()
            mbarrier.arrive(shared.v_empty.index(stage), count=1)
            mbarrier.arrive(shared.vt_full.index(stage), count=1)
            done += 1
        mbarrier.arrive(shared.q_empty.index(taken % ROW_STAGES), count=1)
        taken += 1
        mbarrier.wait(shared.q_full.index(taken % ROW_STAGES), taken // ROW_STAGES & 1)
        rows_q, rows_k, work = blocks_at(shared.tiles, taken % ROW_STAGES)


@gluon.constexpr_function
def transposed_layout(keys, head_dim, warps):
    """How the threads of warps have a block of values, [keys, pairs of columns]."""
    registers = [[1, 0], [8, 0]] + [[16 << i, 0] for i in range((keys // 16).bit_length() - 1)]
    pairs = [[0, 1 << i] for i in range((head_dim // 2).bit_length() - 1)]
    registers += pairs[2 + warps.bit_length() :]
    lanes = [[2, 0], [4, 0], *pairs[:3]]
    return gl.DistributedLinearLayout(registers, lanes, pairs[3 : 2 + warps.bit_length()], [], [keys, head_dim // 2])
