"""Which keys a program of attn_bwd_hopper.py has, which rows see them, and where those have their terms and sums."""

from typing import NamedTuple

from flags import BOTTOM_RIGHT, CU_K, CU_Q, SUMS_K, SUMS_Q, USED_K, USED_Q
from hopper_tiles import sequence
from sequences import place
from triton.experimental import gluon
from triton.experimental.gluon import language as gl


class Call(NamedTuple):
    """What all tiles have in common. ordered: programs add to dq in a fixed order (turn_of)."""

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


class Span(NamedTuple):
    """Which blocks of rows see a tile's keys, by number: some of [begin, end), and of [whole_begin, whole_end) all rows
    all keys."""

    begin: gl.tensor
    whole_begin: gl.tensor
    whole_end: gl.tensor
    end: gl.tensor


@gluon.jit
def program_of(call, BLOCK: gl.constexpr):
    """Which number this program has in the order of sequences.place. Where programs add to dq in a fixed order, and all
    of a head want the first block of rows first, those of eight heads are mixed: the next of a head begins when the one
    before has gone on."""
    program = gl.program_id(0)
    if call.ordered:
        blocks = gl.cdiv(call.seqlen_k, BLOCK)
        is_mixed = ((call.flags & CU_K) == 0) & (call.right >= call.seqlen_k)
        first = program // (8 * blocks) * 8
        planes = gl.minimum(call.tiles // blocks - first, 8)
        within = program - first * blocks
        program = gl.where(is_mixed, (first + within % planes) * blocks + within // planes, program)
    return program


@gluon.jit
def tile_of(call, BLOCK: gl.constexpr):
    """This program's Tile, by the order of sequences.place: programs side by side have tiles of one head, whose rows
    stay in the L2 cache; under a causal mask the first keys, which most rows see, come first, if not ordered."""
    flags = call.flags
    heads_kv = call.heads // call.heads_per_kv
    batch, head, number = place(
        program_of(call, BLOCK), call.tiles, heads_kv, call.batches, call.seqlen_k, call.cu_k_ptr, flags, BLOCK, True
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
def rows_of(tile, head, first_row, call):
    """Where a row has its terms and sums: each sequence begins at a multiple of call.span. As attn_bwd_ends.rows_of."""
    SPAN: gl.constexpr = call.span
    compact = tile.start_q // SPAN + tile.batch
    padded = tile.batch * gl.cdiv(call.seqlen_q, SPAN)
    spans = gl.where((call.flags & CU_Q) != 0, compact, padded)
    return head * call.places + spans * SPAN + first_row


@gluon.jit
def block_of(i, span, call):
    """The i-th block in the order of work, as (member, block): of each head that shares the keys those that need masks,
    then of each the others."""
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
def turn_of(block, tile, call, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr):
    """How many programs add to dq of a block of rows before the one with this tile: those that began before it, which
    have the later keys of the sequence. So none waits for one that has not begun. Rows see all keys before the last
    that they see: under a causal mask, programs that begin at the same time never want the same block at once."""
    right = gl.minimum(call.right, gl.maximum(tile.rows_q, tile.rows_k))
    last = ((block + 1) * BLOCK_M - 1 + tile.shift + right) // BLOCK_N
    return gl.minimum(last, gl.cdiv(tile.rows_k, BLOCK_N) - 1) - tile.first // BLOCK_N
