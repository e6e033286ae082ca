"""What Hopper's kernels have in common: what consumers of the forward ones do with a block's scores, and with a tile's
results; bytes of shared memory under another type; and the number of a key's page."""

from typing import NamedTuple

from flags import CU_Q, LSE, LSE_BY_SEQUENCE, SINKS, SUMS_Q, USED_Q
from hopper_tiles import TILE_ROWS
from scores import LOG2E
from softmax import LN2, divisor_of, with_sink
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma

# Triton 3.9 has another name for it.
IS_PUBLIC = gl.constexpr(hasattr(gl.shared_memory_descriptor, "reinterpret"))

# How much larger, in powers of two, a row's largest score may get before its output is multiplied anew. Its weights are
# up to 256 then, which any dtype of theirs holds.
SLACK = gl.constexpr(8.0)
# An output of 256 columns takes 128 registers of a thread; of each four, two are of a row and two of another. They are
# multiplied by factors of theirs, unless these are 1 in all of a warp.
WIDE = gl.constexpr(128)
RESCALE = gl.constexpr(
    "{ .reg .pred p, q; setp.neu.f32 p, $256, 0f3F800000; setp.neu.f32 q, $258, 0f3F800000; or.pred p, p, q;"
    " vote.sync.any.pred p, p, -1; @!p bra DONE;"
    + "".join(f" mul.f32 ${i}, ${i}, ${256 + i};" for i in range(128))
    + " DONE: }"
)
RESCALE_REGISTERS = gl.constexpr(",".join(["=f"] * 128 + [str(i) for i in range(128)] + ["f"] * 128))


class Results(NamedTuple):
    """Where results go."""

    out_desc: tma.tensor_descriptor
    out_ptr: gl.tensor
    stride_ob: gl.tensor
    stride_oh: gl.tensor
    stride_om: gl.tensor
    width_v: gl.tensor
    lse_ptr: gl.tensor
    stride_lb: gl.tensor
    stride_lh: gl.tensor


@gluon.jit
def reinterpreted(shared, dtype: gl.constexpr, shape: gl.constexpr, layout: gl.constexpr):
    """The same bytes of shared memory, seen otherwise."""
    if IS_PUBLIC:
        return shared.reinterpret(dtype, shape, layout)
    else:
        return shared._reinterpret(dtype, shape, layout)


@gluon.jit
def page_number(keys, factor, shift):
    """Which of a sequence's pages keys are in, as pages.page_of has it."""
    return (gl.umulhi(keys.to(gl.uint32) * 2, factor.to(gl.uint32)) >> shift.to(gl.uint32)).to(gl.int32)


@gluon.jit
def before_wait(x):
    """x, known before any wait that follows: a store that never happens, and that the assembler moves over no wait,
    reads it. Without it, the order of what a wait hides is a matter of chance, a tenth of the speed."""
    return gl.inline_asm_elementwise(
        "{ .reg .pred p; setp.eq.s32 p, $2, -7; @p st.shared.f32 [$2], $1; mov.b32 $0, $1; }", "=f,f,r",
        [x, x.to(gl.int32, bitcast=True)], dtype=gl.float32, is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def after_wait(x):
    """x, not known before any wait that precedes: see before_wait. The bits of -7 are a NaN that no operation makes."""
    return gl.inline_asm_elementwise(
        "{ .reg .pred p; setp.eq.s32 p, $2, -7; mov.b32 $0, $1; @p ld.shared.f32 $0, [$2]; }", "=f,f,r",
        [x, x.to(gl.int32, bitcast=True)], dtype=gl.float32, is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def mask(scores, number, rows, tile, BLOCK_N: gl.constexpr, LAYOUT: gl.constexpr, BY_LANES: gl.constexpr = False):
    """The scores of a block, with -inf where a row does not see a key.

    A thread has columns 8 apart, in pairs. BY_LANES: what is the same in all of them, the lane's part, is taken from
    the row's side of the comparison, so that the other side is a constant and takes no register."""
    column = gl.arange(0, BLOCK_N, gl.SliceLayout(0, LAYOUT))
    if BY_LANES:
        lane = column & 6
        column = column & -7
    start = number * BLOCK_N
    last = gl.minimum(rows + tile.after, tile.rows_k - 1) - start
    if BY_LANES:
        scores = gl.where(column[None, :] <= last[:, None] - lane[None, :], scores, float("-inf"))
    else:
        scores = gl.where(column[None, :] <= last[:, None], scores, float("-inf"))
    if tile.first + TILE_ROWS - 1 + tile.before > start:
        first = rows + (tile.before - start)
        if BY_LANES:
            scores = gl.where(column[None, :] >= first[:, None] - lane[None, :], scores, float("-inf"))
        else:
            scores = gl.where(column[None, :] >= first[:, None], scores, float("-inf"))
    return scores


@gluon.jit
def highest(row_max, scores, factor):
    """The largest score of each row so far, in base 2."""
    return gl.maximum(row_max, gl.max(scores, 1) * factor)


@gluon.jit
def weigh(row_max, row_sum, new_max, scores, factor, MASKED: gl.constexpr):
    """softmax.weighed(), with the largest scores in new_max: weights, what to multiply the output by, and the sums."""
    shift = new_max
    if MASKED:
        # A row that has seen no key yet: -inf - -inf would be NaN.
        shift = gl.where(new_max == float("-inf"), 0.0, new_max)
    weights = gl.exp2(scores * factor - shift[:, None])
    correction = gl.exp2(row_max - shift)
    return weights, correction, row_sum * correction + gl.sum(weights, 1)


@gluon.jit
def nearly_highest(row_max, scores, factor):
    """highest(), or row_max where that is hardly lower, so that the output may stay as it is (FlashAttention-4,
    https://www.together.ai/blog/flashattention-4, does so)."""
    new_max = highest(row_max, scores, factor)
    return gl.where(new_max - row_max > SLACK, new_max, row_max)


@gluon.jit
def rescaled(acc, correction):
    """An output of 256 columns times what belongs to its rows; a warp for whose rows that is 1 leaves it alone."""
    gl.static_assert(acc.shape[1] == 2 * WIDE)
    factors = correction[:, None].broadcast_to(acc.shape)
    return gl.inline_asm_elementwise(RESCALE, RESCALE_REGISTERS, [acc, factors], gl.float32, True, WIDE)


@gluon.jit
def free_results():
    """Waits until results have been written from their place."""
    tma.store_wait(0)
    gl.barrier()


@gluon.jit
def put_results(values, place, desc, tile, row, column):
    """Begins to write results from `place`."""
    place.reshape(values.shape).store(values)
    fence_async_shared()
    gl.barrier()
    tma.async_store(desc, [tile.batch_q, tile.head, tile.start_q + row, column], place)


@gluon.jit
def finish(acc, row_max, row_sum, place, rows, tile, sinks_ptr, results, flags, INDEX: gl.constexpr,
           WIDTH_V: gl.constexpr, ROWS: gl.constexpr, SUMS: gl.constexpr):  # fmt: skip
    """Divides the output by the sum of weights, and begins to write it."""
    OUT_ROWS: gl.constexpr = gl.SliceLayout(1, SUMS)
    if flags & SINKS:
        correction, row_max, row_sum = with_sink(row_max, row_sum, gl.load(sinks_ptr + tile.head) * LOG2E)
        acc = acc * gl.convert_layout(correction, OUT_ROWS)[:, None]
    # A row that saw no key: zeros, whatever the values of the keys are that it was not to see.
    divisor = divisor_of(row_sum)
    inverse = gl.convert_layout(1.0 / divisor, OUT_ROWS)
    blind = gl.convert_layout(row_sum == 0.0, OUT_ROWS)
    acc = gl.where(blind[:, None], 0.0, acc * inverse[:, None]).to(place.dtype)
    first = tile.first + 64 * INDEX
    if ((flags & (CU_Q | SUMS_Q | USED_Q)) != 0) & (first + 64 > tile.rows_q):
        # Behind the last rows of a sequence lies the next, or what is not to be written.
        column = gl.arange(0, WIDTH_V, gl.SliceLayout(0, SUMS))
        row = first + gl.arange(0, 64, OUT_ROWS)
        at = results.out_ptr + tile.batch_q.to(gl.int64) * results.stride_ob
        at += tile.head.to(gl.int64) * results.stride_oh
        there = (row < tile.rows_q)[:, None] & (column < results.width_v)[None, :]
        gl.store(at + (tile.start_q + row)[:, None] * results.stride_om + column[None, :], acc, mask=there)
    elif place.shape[3] == WIDTH_V:
        put_results(acc, place, results.out_desc, tile, first, 0)
    else:
        left, right = gl.split(acc.reshape([64, 2, WIDTH_V // 2]).permute([0, 2, 1]))
        free_results()
        put_results(left, place, results.out_desc, tile, first, 0)
        free_results()
        put_results(right, place, results.out_desc, tile, first, WIDTH_V // 2)
    if flags & LSE:
        by_sequence = (flags & LSE_BY_SEQUENCE) != 0
        batch_l = gl.where(by_sequence, tile.batch, tile.batch_q).to(gl.int64)
        start_l = gl.where(by_sequence, 0, tile.start_q)
        lse = gl.fma(row_max, gl.full([64], LN2, gl.float32, ROWS), gl.log2(divisor) * LN2)
        lse_at = results.lse_ptr + batch_l * results.stride_lb + tile.head.to(gl.int64) * results.stride_lh + start_l
        gl.store(lse_at + rows, lse, mask=rows < tile.rows_q)
