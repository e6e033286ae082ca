"""Which tiles a program of a Hopper kernel works through, and how its producer tells the consumers.

A tile is a block of a head's rows. Programs are as many as there are multiprocessors, and each has a fixed list of
tiles: what the schedule says is a function of the program's number alone. The producer works it out and writes it
beside the rows in shared memory, so consumers divide nothing.
"""

from typing import NamedTuple

from flags import BOTTOM_RIGHT, CU_K, CU_Q, SUMS_K, SUMS_Q, USED_K, USED_Q
from sequences import place
from triton.experimental import gluon
from triton.experimental.gluon import language as gl


class Call(NamedTuple):
    """What all tiles have in common. pairs: see tile_rows."""

    batches: gl.tensor
    heads: gl.tensor
    heads_per_kv: gl.tensor
    pairs: gl.tensor
    blocks: gl.tensor
    tiles: gl.tensor
    seqlen_q: gl.tensor
    seqlen_k: gl.tensor
    left: gl.tensor
    right: gl.tensor
    flags: gl.tensor
    cu_q_ptr: gl.tensor
    cu_k_ptr: gl.tensor
    used_q_ptr: gl.tensor
    used_k_ptr: gl.tensor


class Rows(NamedTuple):
    """Rows of a head, and the sequence of keys that they may see: where they lie, and how many there are. first:
    number of the first row in its sequence; beyond the sequence, or below 0, where there are none."""

    batch: gl.tensor
    head: gl.tensor
    first: gl.tensor
    batch_q: gl.tensor
    start_q: gl.tensor
    rows_q: gl.tensor
    batch_k: gl.tensor
    start_k: gl.tensor
    rows_k: gl.tensor


class Work(NamedTuple):
    """A tile's blocks of keys, by number, in the order of work: `last`; `middle` whole ones from `top` - 1 down,
    which all rows see; then those that need masks, `behind` of them from last - 1 down, the others from `low` down,
    `rest` in all. Row r sees the keys from r + before to r + after, as far as there are any."""

    last: gl.tensor
    is_masked: gl.tensor
    top: gl.tensor
    middle: gl.tensor
    behind: gl.tensor
    low: gl.tensor
    rest: gl.tensor
    before: gl.tensor
    after: gl.tensor


class Tile(NamedTuple):
    """What a consumer knows of a tile: see Rows and Work. rows_q is 0 where there are no more tiles."""

    batch: gl.tensor
    head: gl.tensor
    first: gl.tensor
    batch_q: gl.tensor
    start_q: gl.tensor
    rows_q: gl.tensor
    rows_k: gl.tensor
    last: gl.tensor
    is_masked: gl.tensor
    top: gl.tensor
    middle: gl.tensor
    behind: gl.tensor
    low: gl.tensor
    rest: gl.tensor
    before: gl.tensor
    after: gl.tensor


CONSUMERS = gl.constexpr(2)
TILE_ROWS = gl.constexpr(128)  # 64 a consumer
FIELDS = gl.constexpr(16)  # of a Tile
ROWS_Q = gl.constexpr(5)  # the number of rows_q among them


@gluon.jit
def pairs_of(planes, blocks, WIDE: gl.constexpr = False):
    """How many pairs of planes are worked at by pairs of tiles (tile_rows): so many that each program has as many pairs
    as any other, or one less; some tiles remain that fill the gaps. Of WIDE heads with few rows as few as can be, as
    the L2 cache would not hold their keys and values."""
    programs = gl.num_programs(0)
    rounds = planes // 2 * blocks // programs
    if WIDE:
        rounds -= (blocks > 8).to(gl.int32)
    else:
        rounds -= 1
    rounds = gl.maximum(rounds, 0)
    return gl.minimum(planes // 2, rounds * programs // blocks)


@gluon.jit
def sequence(batch, length, cu_ptr, used_ptr, flags, CU: gl.constexpr, SUMS: gl.constexpr, USED: gl.constexpr):
    """sequences.sequence, in Gluon, with 32 bits: a descriptor has no more rows."""
    start = batch * 0
    lies_in = batch
    rows = length + start
    if flags & (CU | SUMS):
        begin = gl.load(cu_ptr + batch)
        rows = gl.load(cu_ptr + batch + 1) - begin
        if flags & CU:
            start = begin
            lies_in = batch * 0
    if flags & USED:
        rows = gl.load(used_ptr + batch)
    return lies_in, start, rows


@gluon.jit
def tile_count(call):
    """How many tiles this program has."""
    program = gl.program_id(0)
    programs = gl.num_programs(0)
    paired = gl.cdiv(gl.maximum(call.pairs * call.blocks - program, 0), programs)
    single = call.tiles - 2 * call.pairs * call.blocks
    rounds = single // programs
    last = rounds * programs + gl.where(rounds % 2 == 0, programs - 1 - program, program)
    return 2 * paired + rounds + (last < single).to(gl.int32)


@gluon.jit
def tile_rows(turn, call, together=None):
    """Where this program's tile number `turn` lies. A plane is a head of a batch.

    Programs take equally long for pairs of tiles: one of a plane's tiles and its mirror image in the next plane, which
    under a causal mask see as many keys together as any such pair. Programs side by side have tiles of one plane,
    whose keys and values stay in the L2 cache. The planes that pairs_of() leaves come at last, longest tiles first, and
    every other time in reverse order; `together` of them at a time, if that is given. Sequences that lie one after
    another have no pairs, and the order of sequences.place.
    """
    flags = call.flags
    program = gl.program_id(0)
    programs = gl.num_programs(0)
    units = call.pairs * call.blocks
    paired = 2 * gl.cdiv(gl.maximum(units - program, 0), programs)
    if turn < paired:
        unit = turn // 2 * programs + program
        is_second = turn % 2
        plane = 2 * (unit // call.blocks) + is_second
        number = gl.where(is_second == 0, call.blocks - 1 - unit % call.blocks, unit % call.blocks)
        batch = plane // call.heads
        head = plane % call.heads
    else:
        round = turn - paired
        single = round * programs + gl.where(round % 2 == 0, programs - 1 - program, program)
        if flags & CU_Q:
            batch, head, number = place(
                single, call.tiles, call.heads, call.batches, 1, call.cu_q_ptr, flags, TILE_ROWS, False
            )
        else:
            planes = call.batches * call.heads - 2 * call.pairs
            before = 0
            if together is not None:
                before = single // (together * call.blocks) * together
                single -= before * call.blocks
                planes = gl.minimum(planes - before, together)
            plane = 2 * call.pairs + before + single % planes
            number = call.blocks - 1 - single // planes
            batch = plane // call.heads
            head = plane % call.heads
    batch_q, start_q, rows_q = sequence(
        batch, call.seqlen_q, call.cu_q_ptr, call.used_q_ptr, flags, CU_Q, SUMS_Q, USED_Q
    )
    batch_k, start_k, rows_k = sequence(
        batch, call.seqlen_k, call.cu_k_ptr, call.used_k_ptr, flags, CU_K, SUMS_K, USED_K
    )
    if flags & CU_Q:
        number = gl.cdiv(rows_q, TILE_ROWS) - 1 - number
    return Rows(batch, head, number * TILE_ROWS, batch_q, start_q, rows_q, batch_k, start_k, rows_k)


@gluon.jit
def work_of(rows, call, BLOCK_N: gl.constexpr):
    """The Work of a tile's rows: one block at least."""
    longest = gl.maximum(rows.rows_q, rows.rows_k)
    offset = gl.where((call.flags & BOTTOM_RIGHT) != 0, rows.rows_k - rows.rows_q, 0)
    before = offset - gl.minimum(call.left, longest)
    after = offset + gl.minimum(call.right, longest)
    highest = gl.minimum(rows.first + TILE_ROWS, rows.rows_q) - 1
    # Some of the blocks [begin, end) are seen, and of [whole_begin, whole_end) all keys by all rows.
    begin = gl.minimum(gl.maximum(rows.first + before, 0) // BLOCK_N, gl.maximum(gl.cdiv(rows.rows_k, BLOCK_N) - 1, 0))
    end = gl.cdiv(gl.maximum(gl.minimum(highest + after + 1, rows.rows_k), 0), BLOCK_N)
    end = gl.maximum(end, begin + 1)
    whole_begin = gl.minimum(gl.cdiv(gl.maximum(highest + before, 0), BLOCK_N), end)
    whole_end = gl.maximum(gl.minimum(rows.first + after + 1, rows.rows_k), 0) // BLOCK_N
    whole_end = gl.maximum(whole_end, whole_begin)
    is_masked = (whole_begin >= end) | (whole_end < end)
    middle = gl.maximum(gl.minimum(whole_end, end - 1) - whole_begin, 0)
    top = gl.where(middle > 0, gl.minimum(whole_end, end - 1), end - 1)
    return Work(
        end - 1, is_masked.to(gl.int32), top, middle, end - 1 - top, top - middle - 1, end - begin - 1 - middle, before,
        after,
    )  # fmt: skip


@gluon.jit
def rest_block(i, work):
    """The number of the i-th of the blocks that follow the whole ones."""
    return gl.where(i < work.behind, work.last - 1 - i, work.low - (i - work.behind))


@gluon.jit
def block_of(i, work):
    """The number of the i-th block in the order of work."""
    number = gl.where(i <= work.middle, work.top - i, rest_block(i - 1 - work.middle, work))
    return gl.where(i == 0, work.last, number)


@gluon.jit
def write_field(board, field, value):
    board.index(field).store(gl.full([1], value, gl.int32, gl.BlockedLayout([1], [32], [1], [0])))


@gluon.jit
def read_field(board, field):
    """A field, as a number."""
    return gl.max(board.index(field).load(gl.BlockedLayout([1], [32], [4], [0])), 0)


@gluon.jit
def announce(board, slot, rows, work):
    """Writes a Tile where consumers read it: once they have left the slot, and before its barrier completes."""
    at = slot * FIELDS
    write_field(board, at, rows.batch)
    write_field(board, at + 1, rows.head)
    write_field(board, at + 2, rows.first)
    write_field(board, at + 3, rows.batch_q)
    write_field(board, at + 4, rows.start_q)
    write_field(board, at + ROWS_Q, rows.rows_q)
    write_field(board, at + 6, rows.rows_k)
    for i in gl.static_range(9):
        write_field(board, at + 7 + i, work[i])


@gluon.jit
def announce_end(board, slot):
    """As announce(), of a Tile that says that there are no more."""
    write_field(board, slot * FIELDS + ROWS_Q, 0)


@gluon.jit
def tile_at(board, slot):
    """The Tile that announce() wrote."""
    at = slot * FIELDS
    return Tile(
        read_field(board, at), read_field(board, at + 1), read_field(board, at + 2), read_field(board, at + 3),
        read_field(board, at + 4), read_field(board, at + ROWS_Q), read_field(board, at + 6), read_field(board, at + 7),
        read_field(board, at + 8), read_field(board, at + 9), read_field(board, at + 10), read_field(board, at + 11),
        read_field(board, at + 12), read_field(board, at + 13), read_field(board, at + 14), read_field(board, at + 15),
    )  # fmt: skip
