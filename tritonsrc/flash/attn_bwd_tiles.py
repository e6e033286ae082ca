"""Which keys the tiles of attn_bwd_hopper.py have, which rows see them, and where those have their terms and sums; how
a program's warps come to know which tile is next."""

from typing import NamedTuple

from flags import BOTTOM_RIGHT, CU_K, CU_Q, SUMS_K, SUMS_Q, USED_K, USED_Q
from hopper_tiles import sequence, write_field
from sequences import place
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier


class Call(NamedTuple):
    """What all tiles have in common. ordered: tiles are added to dq in a fixed order (turn_of)."""

    batches: gl.tensor
    heads: gl.tensor
    heads_per_kv: gl.tensor
    seqlen_q: gl.tensor
    seqlen_k: gl.tensor
    left: gl.tensor
    right: gl.tensor
    flags: gl.tensor
    tiles: gl.tensor
    places: gl.tensor
    span: gl.constexpr
    ordered: gl.constexpr
    cu_q_ptr: gl.tensor
    cu_k_ptr: gl.tensor
    used_q_ptr: gl.tensor
    used_k_ptr: gl.tensor


class Tile(NamedTuple):
    """Keys of a head, and the rows that may see them: where they lie, and how many there are. first: number of the
    first key in its sequence; keys beyond the sequence, and so a tile of none, are left out. Row i sees the keys around
    i + shift."""

    batch: gl.tensor
    head_kv: gl.tensor
    first: gl.tensor
    batch_q: gl.tensor
    start_q: gl.tensor
    rows_q: gl.tensor
    batch_k: gl.tensor
    start_k: gl.tensor
    rows_k: gl.tensor
    shift: gl.tensor


class Work(NamedTuple):
    """What consumers know of a Tile and its Span. place: where the first row of the first head has its terms and sums.
    rows_k is 0 where there are no more tiles."""

    batch: gl.tensor
    head_kv: gl.tensor
    first: gl.tensor
    batch_k: gl.tensor
    start_k: gl.tensor
    rows_q: gl.tensor
    rows_k: gl.tensor
    shift: gl.tensor
    begin: gl.tensor
    whole_begin: gl.tensor
    whole_end: gl.tensor
    end: gl.tensor
    place: gl.tensor


FIELDS = gl.constexpr(13)  # of a Work
ROWS_K = gl.constexpr(6)  # the number of rows_k among them
SLOTS = gl.constexpr(2)  # of a board


class Span(NamedTuple):
    """Which blocks of rows see a tile's keys, by number: some of [begin, end), and of [whole_begin, whole_end) all rows
    all keys."""

    begin: gl.tensor
    whole_begin: gl.tensor
    whole_end: gl.tensor
    end: gl.tensor


@gluon.jit
def next_turn(taken_ptr, call):
    """The turn that a program takes: the next that none has, so that all end at about the same time.

    Args:
        taken_ptr: how many have been taken, but for the first of each program if not call.ordered.
    """
    turn = gl.atomic_add(taken_ptr, 1, sem="relaxed")
    if not call.ordered:
        turn += gl.num_programs(0)
    return turn


@gluon.jit
def mixed(turn, call, BLOCK: gl.constexpr):
    """Which number a turn has in the order of sequences.place. Where programs add to dq in a fixed order, and all of a
    head want the first block of rows first, tiles of eight heads are mixed: the next of a head begins when the one
    before has gone on. Of many rows of heads above 128, whose tiles are half as many keys, only of two: what programs
    read and add to is in the L2 cache then."""
    if call.ordered:
        blocks = gl.cdiv(call.seqlen_k, BLOCK)
        is_mixed = ((call.flags & CU_K) == 0) & (call.right >= call.seqlen_k)
        heads = gl.to_tensor(8)
        if BLOCK == 64:
            heads = gl.where(call.seqlen_q > 2048, 2, 8)
        first = turn // (heads * blocks) * heads
        planes = gl.minimum(call.tiles // blocks - first, heads)
        within = turn - first * blocks
        turn = gl.where(is_mixed, (first + within % planes) * blocks + within // planes, turn)
    return turn


@gluon.jit
def tile_of(turn, call, BLOCK: gl.constexpr):
    """The Tile that comes at a turn, by the order of sequences.place: tiles worked at side by side are of one head,
    whose rows stay in the L2 cache; under a causal mask the first keys, which most rows see, come first, if not
    ordered."""
    flags = call.flags
    heads_kv = call.heads // call.heads_per_kv
    batch, head, number = place(
        mixed(turn, call, BLOCK), call.tiles, heads_kv, call.batches, call.seqlen_k, call.cu_k_ptr, flags, BLOCK, True
    )
    batch_q, start_q, rows_q = sequence(
        batch, call.seqlen_q, call.cu_q_ptr, call.used_q_ptr, flags, CU_Q, SUMS_Q, USED_Q
    )
    batch_k, start_k, rows_k = sequence(
        batch, call.seqlen_k, call.cu_k_ptr, call.used_k_ptr, flags, CU_K, SUMS_K, USED_K
    )
    shift = gl.where((flags & BOTTOM_RIGHT) != 0, rows_k - rows_q, 0)
    if call.ordered:
        count = gl.cdiv(rows_k, BLOCK)
        number = gl.where(number < count, count - 1 - number, number)
    return Tile(batch, head, number * BLOCK, batch_q, start_q, rows_q, batch_k, start_k, rows_k, shift)


@gluon.jit
def span_of(tile, call, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr):
    """The Span of a tile's keys. Rows beyond the sequence have a weight of 0 by their terms, so they need no mask;
    where others' rows lie there they must be made zeros, which blocks with a mask do."""
    longest = gl.maximum(tile.rows_q, tile.rows_k)
    left = gl.minimum(call.left, longest)
    right = gl.minimum(call.right, longest)
    blocks = gl.cdiv(tile.rows_q, BLOCK_M)
    highest = gl.minimum(tile.first + BLOCK_N, tile.rows_k) - 1
    begin = gl.minimum(gl.maximum(tile.first - tile.shift - right, 0) // BLOCK_M, blocks)
    end = gl.minimum(gl.cdiv(gl.maximum(highest - tile.shift + left + 1, 0), BLOCK_M), blocks)
    end = gl.maximum(end, begin)
    whole_begin = gl.cdiv(gl.maximum(highest - tile.shift - right, 0), BLOCK_M)
    seen = gl.maximum(tile.first - tile.shift + left + 1, 0)
    is_ragged = (call.flags & (CU_Q | SUMS_Q | USED_Q)) != 0
    every = gl.where((seen >= tile.rows_q) & (not is_ragged), blocks, gl.minimum(seen, tile.rows_q) // BLOCK_M)
    whole_begin = gl.minimum(gl.where(tile.first + BLOCK_N > tile.rows_k, end, gl.maximum(whole_begin, begin)), end)
    return Span(begin, whole_begin, gl.maximum(gl.minimum(every, end), whole_begin), end)


@gluon.jit
def place_of_row(tile, head, first_row, call):
    """Where a row has its terms and sums: each sequence begins at a multiple of call.span. As attn_bwd_ends.rows_of."""
    SPAN: gl.constexpr = call.span
    compact = tile.start_q // SPAN + tile.batch
    padded = tile.batch * gl.cdiv(call.seqlen_q, SPAN)
    spans = gl.where((call.flags & CU_Q) != 0, compact, padded)
    return head * call.places + spans * SPAN + first_row


@gluon.jit
def board():
    """Where the producer writes each Work for the other warps, in turn."""
    return gl.allocate_shared_memory(gl.int32, [SLOTS * FIELDS, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))


@gluon.jit
def announce(told, tile, span, call, shared):
    """Writes the told-th Work, once the others have left its slot."""
    slot = told % SLOTS
    work = Work(
        tile.batch, tile.head_kv, tile.first, tile.batch_k, tile.start_k, tile.rows_q, tile.rows_k, tile.shift,
        span.begin, span.whole_begin, span.whole_end, span.end,
        place_of_row(tile, tile.head_kv * call.heads_per_kv, 0, call),
    )  # fmt: skip
    mbarrier.wait(shared.work_empty.index(slot), (told // SLOTS & 1) ^ 1)
    for field in gl.static_range(FIELDS):
        write_field(shared.work, slot * FIELDS + field, work[field])
    mbarrier.arrive(shared.work_full.index(slot), count=1)


@gluon.jit
def announce_end(told, shared):
    """As announce(), of a Work that says that there are no more."""
    slot = told % SLOTS
    mbarrier.wait(shared.work_empty.index(slot), (told // SLOTS & 1) ^ 1)
    write_field(shared.work, slot * FIELDS + ROWS_K, 0)
    mbarrier.arrive(shared.work_full.index(slot), count=1)


@gluon.jit
def field_of(board, at, WARPS: gl.constexpr):
    return gl.max(board.index(at).load(gl.BlockedLayout([1], [32], [WARPS], [0])), 0)


@gluon.jit
def work_of(told, shared, WARPS: gl.constexpr):
    """The told-th Work, which announce() has written."""
    at = told % SLOTS * FIELDS
    return Work(
        field_of(shared.work, at, WARPS), field_of(shared.work, at + 1, WARPS), field_of(shared.work, at + 2, WARPS),
        field_of(shared.work, at + 3, WARPS), field_of(shared.work, at + 4, WARPS),
        field_of(shared.work, at + 5, WARPS), field_of(shared.work, at + ROWS_K, WARPS),
        field_of(shared.work, at + 7, WARPS), field_of(shared.work, at + 8, WARPS),
        field_of(shared.work, at + 9, WARPS), field_of(shared.work, at + 10, WARPS),
        field_of(shared.work, at + 11, WARPS), field_of(shared.work, at + 12, WARPS),
    )  # fmt: skip


@gluon.jit
def next_work(told, shared, WARPS: gl.constexpr):
    """The told-th Work, once it is there."""
    mbarrier.wait(shared.work_full.index(told % SLOTS), told // SLOTS & 1)
    return work_of(told, shared, WARPS)


@gluon.jit
def leave_work(told, shared):
    """This warp, or warpgroup, does not look at the told-th Work any more."""
    mbarrier.arrive(shared.work_empty.index(told % SLOTS), count=1)


@gluon.jit
def section_of(number, span):
    """The blocks of a Span up to the last whole one, or those behind it, as a Span. In windows a block of rows is the
    last that sees one tile when it is the first that sees another: in any other order programs that add in turn would
    wait for each other's ends."""
    is_first = number == 0
    return Span(
        gl.where(is_first, span.begin, span.whole_end),
        gl.where(is_first, span.whole_begin, span.end),
        gl.where(is_first, span.whole_end, span.end),
        gl.where(is_first, span.whole_end, span.end),
    )


@gluon.jit
def block_of(i, span, call, IN_SECTIONS: gl.constexpr):
    """The i-th block in the order of work, as (member, block): of each head that shares the keys those that need masks,
    then of each the others; IN_SECTIONS: so in each section."""
    if IN_SECTIONS:
        first = (span.whole_end - span.begin) * call.heads_per_kv
        span = section_of((i >= first).to(gl.int32), span)
        i -= gl.where(i >= first, first, 0)
    front = span.whole_begin - span.begin
    masked = front + span.end - span.whole_end
    whole = span.whole_end - span.whole_begin
    first_whole = masked * call.heads_per_kv
    is_whole = i >= first_whole
    each = gl.maximum(gl.where(is_whole, whole, masked), 1)
    i -= gl.where(is_whole, first_whole, 0)
    number = i % each
    block = gl.where(number < front, span.begin + number, span.whole_end + number - front)
    return i // each, gl.where(is_whole, span.whole_begin + number, block)


@gluon.jit
def next_place(place, left, whole, places, BLOCK: gl.constexpr):
    """(place, left) of the block behind one, of the next head behind a head's last. left: how many a head still has."""
    left -= 1
    place += gl.where(left == 0, places - (whole - 1) * BLOCK, BLOCK)
    return place, gl.where(left == 0, whole, left)


@gluon.jit
def turn_of(block, tile, call, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr):
    """How many tiles are added to dq of a block of rows before this one: those whose turns were taken before, which
    have the later keys of the sequence. So none waits for one that has not begun. Of those all see the block that have
    no keys behind the last that it sees. Under a causal mask and in windows, tiles that are begun at the same time
    never want the same block at once."""
    right = gl.minimum(call.right, gl.maximum(tile.rows_q, tile.rows_k))
    last = ((block + 1) * BLOCK_M - 1 + tile.shift + right) // BLOCK_N
    return gl.minimum(last, gl.cdiv(tile.rows_k, BLOCK_N) - 1) - tile.first // BLOCK_N
