"""In which order the forward for Hopper takes tiles that hopper_tiles.tile_rows would give to programs unevenly.

In windows, a tile and its mirror image see as many keys as any other such pair only in the middle. Where few heads have
keys of their own, tiles go round by their numbers instead, those with the most keys first: programs side by side are
at the same keys of few heads, which stay in the L2 cache.

Sequences of different lengths come by their numbers of blocks, the longest first, and tiles go round programs, every
other time in reverse order: what is left at the end are short tiles, which differ little. In the order of sequences
some programs have many more long tiles than others. Under a causal mask a program takes a tile of a head together with
its mirror image in the next head, as in hopper_tiles.tile_rows. Nobody sorts: a producer goes from one number of blocks
to the next lower one that there is, and searches the sequences for those that have it.
"""

from typing import NamedTuple

from flags import CU_K, CU_Q, SUMS_K, SUMS_Q, USED_K, USED_Q
from hopper_tiles import TILE_ROWS, Call, Rows, pairs_of, sequence
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

ONE_WARP = gl.constexpr(gl.BlockedLayout([2], [32], [1], [0]))
AT_ONCE = gl.constexpr(64)  # sequences that a warp looks at


class Level(NamedTuple):
    """Sequences with equally many blocks of rows. A unit is one tile, or a pair: so many at a time go to a program.

    blocks: of each, 0 behind the last level; begin, end: numbers of their first unit, and of the first behind them."""

    blocks: gl.tensor
    begin: gl.tensor
    end: gl.tensor


@gluon.jit
def is_spread(planes, left, seqlen_k, heads_per_kv):
    """Whether tiles of a window go round by their numbers: 132 programs copy keys of up to 32 heads at a time."""
    return (left < seqlen_k) & (planes <= 32 * heads_per_kv)


@gluon.jit
def plain_call(call, WIDE: gl.constexpr):
    """A call of sequences of one length for hopper_tiles.tile_rows, which is compiled without the others then."""
    planes = call.batches * call.heads
    spread = is_spread(planes, call.left, call.seqlen_k, call.heads_per_kv)
    pairs = pairs_of(planes, call.blocks)
    if WIDE:
        # Where hardly more tiles were left than there are programs, some would have a pair and long tiles besides.
        most = pairs_of(planes, call.blocks, True)
        left = (planes - 2 * most) * call.blocks
        pairs = gl.where(2 * left >= 3 * gl.num_programs(0), most, pairs)
    pairs = gl.where(spread, 0, pairs)
    return Call(call.batches, call.heads, call.heads_per_kv, pairs, call.blocks, call.tiles, call.seqlen_q,
                call.seqlen_k, call.left, call.right, call.flags & ~(CU_Q | SUMS_Q | USED_Q), call.cu_q_ptr,
                call.cu_k_ptr, call.used_q_ptr, call.used_k_ptr)  # fmt: skip


@gluon.jit
def planes_together(call):
    """Of how many planes tiles are taken at a time, for hopper_tiles.tile_rows: of one, if all tiles of a plane see
    equally many keys, so that these stay in the L2 cache; else of all, so that the longest tiles come first."""
    is_even = (call.right >= call.seqlen_k) & (call.left >= call.seqlen_k)
    return gl.where(is_even, 1, call.batches * call.heads)


@gluon.jit
def blocks_of(first, call):
    """The sequences from number `first` on, and their blocks; -1 where there is no sequence."""
    batch = first + gl.arange(0, AT_ONCE, ONE_WARP)
    there = batch < call.batches
    is_used = (call.flags & USED_Q) != 0
    ends = gl.where(is_used, call.used_q_ptr, call.cu_q_ptr + 1)
    begin = gl.load(call.cu_q_ptr + batch, mask=there & (not is_used), other=0)
    rows = gl.load(ends + batch, mask=there, other=0) - begin
    return batch, gl.where(there, gl.cdiv(rows, TILE_ROWS), -1)


@gluon.jit
def next_level(level, groups, call):
    """The Level with the next lower number of blocks that there is, of `groups` of heads."""
    blocks = level.blocks * 0
    count = level.blocks * 0
    for first in range(0, call.batches, AT_ONCE):
        _, each = blocks_of(first, call)
        most = gl.max(gl.where(each < level.blocks, each, 0), 0)
        as_many = gl.sum((each == most).to(gl.int32), 0)
        count = gl.where(most > blocks, 0, count) + gl.where(most >= blocks, as_many, 0)
        blocks = gl.maximum(blocks, most)
    return Level(blocks, level.end, level.end + count * blocks * groups)


@gluon.jit
def plus(a, b):
    return a + b


@gluon.jit
def sequence_at(level, index, call):
    """Which sequence is number `index` of those of a Level."""
    first = index * 0
    _, each = blocks_of(first, call)
    count = gl.sum((each == level.blocks).to(gl.int32), 0)
    while (index >= count) & (first + AT_ONCE < call.batches):
        index -= count
        first += AT_ONCE
        _, each = blocks_of(first, call)
        count = gl.sum((each == level.blocks).to(gl.int32), 0)
    batch, each = blocks_of(first, call)
    number = gl.associative_scan((each == level.blocks).to(gl.int32), 0, plus)
    return gl.sum(gl.where((each == level.blocks) & (number == index + 1), batch, 0), 0)


@gluon.jit
def is_paired(call):
    """1 where a unit is a pair: tiles of a sequence see different numbers of keys. Else 0."""
    spread = is_spread(call.heads, call.left, call.seqlen_k, call.heads_per_kv)
    return ((call.right < call.seqlen_k) & (not spread)).to(gl.int32)


@gluon.jit
def most_turns(call):
    """How many tiles a program has at most: the launch counts more blocks than there may be."""
    paired = is_paired(call)
    units = call.tiles // call.heads * (call.heads + paired >> paired)
    return gl.cdiv(units, gl.num_programs(0)) << paired


@gluon.jit
def ordered_rows(turn, level, call):
    """The Rows of this program's tile number `turn`, and their Level, which is `level` or one of fewer blocks. No
    rows: behind the last tile, and where the last of an odd number of heads has no mirror image."""
    flags = call.flags
    program = gl.program_id(0)
    programs = gl.num_programs(0)
    spread = is_spread(call.heads, call.left, call.seqlen_k, call.heads_per_kv)
    paired = is_paired(call)
    groups = call.heads + paired >> paired
    round = turn >> paired
    unit = round * programs + gl.where(round % 2 == 0, program, programs - 1 - program)
    while (unit >= level.end) & (level.blocks > 0):
        level = next_level(level, groups, call)
    number = unit - level.begin
    blocks = gl.maximum(level.blocks, 1)
    index = number // (blocks * groups)
    batch = sequence_at(level, index, call)
    number -= index * blocks * groups
    period = gl.where(spread, groups, blocks)
    rest = number % period
    group = gl.where(spread, rest, number // period)
    number = gl.where(spread, number // period, rest)
    is_second = turn & paired
    head = (group << paired) + is_second
    number = gl.where(is_second == 0, blocks - 1 - number, number)
    number = gl.where((head < call.heads) & (level.blocks > 0), number, -1)
    batch_q, start_q, rows_q = sequence(
        batch, call.seqlen_q, call.cu_q_ptr, call.used_q_ptr, flags, CU_Q, SUMS_Q, USED_Q
    )
    batch_k, start_k, rows_k = sequence(
        batch, call.seqlen_k, call.cu_k_ptr, call.used_k_ptr, flags, CU_K, SUMS_K, USED_K
    )
    return Rows(batch, head, number * TILE_ROWS, batch_q, start_q, rows_q, batch_k, start_k, rows_k), level
