"""Which tiles the programs of Hopper's kernels take: together each one once, with the blocks that its rows see. The
producers themselves run, on the CPU, and what they would copy is noted (plain_gluon.py)."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plain_gluon import Nothing, Pointer, kernels, tensor

pytestmark = pytest.mark.slow(30)
CU_Q, CU_K, USED_Q, USED_K, BOTTOM_RIGHT, SUMS_Q, SUMS_K = 1, 2, 4, 8, 16, 1 << 20, 1 << 21
UNBOUNDED = 2**31 - 1
BLOCK_N = 128


@pytest.fixture(scope="module")
def flash():
    names = "attn_fwd_hopper", "attn_fwd_fp8", "hopper_tiles", "attn_bwd_tiles", "attn_bwd_ends"
    with kernels(*names) as (program, modules):
        yield SimpleNamespace(program=program, **dict(zip(names, modules)))


@dataclass(frozen=True)
class Sequences:
    """What a call says of its sequences, of queries or of keys.

    Attributes:
        rows: of each.
        lies: "padded", "compact" (one after another), "sums" (padded, and sums say how many count), "used".
    """

    rows: tuple[int, ...]
    lies: str

    @property
    def longest(self) -> int:
        return max(self.rows)

    @property
    def sums(self) -> Pointer:
        return Pointer(np.cumsum([0, *self.rows]).astype(np.int32) if self.lies in ("compact", "sums") else [])

    @property
    def used(self) -> Pointer:
        return Pointer(self.rows if self.lies == "used" else [])

    def place(self, number: int) -> tuple[int, int]:
        """In which batch of its tensor a sequence lies, and at which row."""
        return (0, sum(self.rows[:number])) if self.lies == "compact" else (number, 0)

    def tiles(self, block: int) -> int:
        """How many a launch counts of each head."""
        if self.lies == "compact":
            return -(-sum(self.rows) // block) + len(self.rows)
        return -(-self.longest // block) * len(self.rows)


@st.composite
def sequences(draw, batches: int, most: int):
    lies = draw(st.sampled_from(["padded", "compact", "sums", "used"]))
    lengths = st.integers(0, most) | st.sampled_from([0, 1, 64, 127, 128, 129, most])
    rows = draw(st.lists(lengths, min_size=batches, max_size=batches))
    if lies == "padded" or not any(rows):
        return Sequences((draw(st.integers(1, most)),) * batches, "padded")
    return Sequences(tuple(rows), lies)


def flags_of(queries: Sequences, keys: Sequences) -> int:
    bits = {"padded": (0, 0), "compact": (CU_Q, CU_K), "sums": (SUMS_Q, SUMS_K), "used": (USED_Q, USED_K)}
    return bits[queries.lies][0] | bits[keys.lies][1]


def forward_call(flash, queries: Sequences, keys: Sequences, heads: int, shared: int, window, flags: int, size: int):
    """The Call that a kernel of tiles of `size` rows makes of its arguments."""
    flags |= flags_of(queries, keys)
    blocks, planes = -(-queries.longest // size), len(queries.rows) * heads
    pairs = 0 if flags & (CU_Q | USED_Q) else flash.hopper_tiles.pairs_of(tensor(planes), tensor(blocks))
    numbers = (
        len(queries.rows), heads, shared, pairs, blocks, queries.tiles(size) * heads, queries.longest, keys.longest,
        *window, flags,
    )  # fmt: skip
    return flash.hopper_tiles.Call(*map(tensor, numbers), queries.sums, keys.sums, queries.used, keys.used)


def seen(rows, queries: int, keys: int, window, bottom_right: bool):
    """The keys [begin, end) that each row of a sequence sees."""
    at = rows.astype(np.int64) + (keys - queries if bottom_right else 0)
    return np.maximum(at - window[0], 0), np.maximum(np.minimum(at + window[1] + 1, keys), 0)


def noted(module, *arguments):
    """What a module's producer copies, in order: (descriptor, place), and the tiles that it announces."""
    loads, tiles = [], []
    module.tma.async_load = lambda descriptor, place, barrier, memory: loads.append((descriptor.name, *map(int, place)))
    module.announce = lambda board, slot, rows, work: (tiles.append((rows, work)), loads.append(("tile",)))
    module.produce(*arguments)
    return loads, tiles


def descriptor(name: str, columns: int = 64) -> SimpleNamespace:
    return SimpleNamespace(name=name, block_shape=[1, 1, 64, columns], nbytes_per_cta=0)


WINDOWS = st.sampled_from(
    [(UNBOUNDED, UNBOUNDED), (UNBOUNDED, 0), (0, 0), (200, 0), (300, 300), (64, UNBOUNDED)]
) | st.tuples(
    st.sampled_from([62, 63, 64, 126, 127, 128, UNBOUNDED]), st.sampled_from([62, 63, 64, 126, 127, 128, UNBOUNDED])
)
KINDS = ("head_dim 64", "head_dim 128", "head_dim 256", "fp8", "fp8 without a mask")


@settings(max_examples=150, deadline=None)
@given(data=st.data(), kind=st.sampled_from(KINDS))
def test_forward(flash, data, kind):
    batches, groups = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 3))
    shared = data.draw(st.sampled_from([1, 2, 4]))
    heads = groups * shared
    size, window, bottom_right = 128, (UNBOUNDED, UNBOUNDED), False
    if kind == "fp8 without a mask":
        size = 192
        rows, count = data.draw(st.integers(1, 8)) * size, data.draw(st.integers(1, 8)) * BLOCK_N
        queries, keys = Sequences((rows,) * batches, "padded"), Sequences((count,) * batches, "padded")
    else:
        queries, keys = data.draw(sequences(batches, 1500)), data.draw(sequences(batches, 1200))
        window, bottom_right = data.draw(WINDOWS), data.draw(st.booleans())
    flags = BOTTOM_RIGHT if bottom_right else 0
    # The number of programs is known before the kernel works out its pairs.
    flash.program.count = tensor(min(queries.tiles(size) * heads, data.draw(st.sampled_from([1, 3, 7, 132]))))
    call = forward_call(flash, queries, keys, heads, shared, window, flags, size)
    arguments = [descriptor("q"), descriptor("k"), descriptor("v"), Nothing(), call]
    if kind.startswith("fp8"):
        module = flash.attn_fwd_fp8
        arguments += [size // 64, BLOCK_N, 2, 2]
    else:
        module, parts = flash.attn_fwd_hopper, int(kind.split()[1]) // 64
        arguments += [BLOCK_N, 3, 2, 2, parts, parts > 1]
    taken = []
    for number in range(int(flash.program.count)):
        flash.program.number = tensor(number)
        loads, tiles = noted(module, *arguments)
        starts = [place for place, load in enumerate(loads) if load == ("tile",)]
        assert starts[:1] in ([], [0])
        for (rows, work), begin, end in zip(tiles, starts, [*starts[1:], len(loads)]):
            taken.append(
                check_tile(rows, work, loads[begin + 1 : end], queries, keys, shared, window, bottom_right, size)
            )
    wanted = [
        (batch, head, first)
        for batch, count in enumerate(queries.rows) for head in range(heads) for first in range(0, count, size)
    ]  # fmt: skip
    assert sorted(taken) == wanted


def check_tile(rows, work, loads, queries, keys, shared, window, bottom_right, size) -> tuple[int, int, int]:
    """That a tile is what it should be, and its rows and keys are copied; gives its batch, head and first row."""
    batch, head, first = int(rows.batch), int(rows.head), int(rows.first)
    count_q, count_k = queries.rows[batch], keys.rows[batch]
    assert (int(rows.rows_q), int(rows.rows_k)) == (count_q, count_k)
    batch_q, start_q = queries.place(batch)
    batch_k, start_k = keys.place(batch)
    assert {load[1:4] for load in loads if load[0] == "q"} == {
        (batch_q, head, start_q + first + 64 * consumer) for consumer in range(size // 64)
    }
    blocks = [load[3] - start_k for load in loads if load[0] == "v"]
    assert len(set(blocks)) == len(blocks) and not any(block % BLOCK_N for block in blocks)
    assert {load[1:3] for load in loads if load[0] in "kv"} == {(batch_k, head // shared)}
    columns = max(load[4] for load in loads if load[0] == "k")
    assert [load[3] - start_k for load in loads if load[0] == "k" and load[4] == columns] == blocks
    copied = np.zeros(max([count_k, *(block + BLOCK_N for block in blocks)]), bool)
    for block in blocks:
        copied[block : block + BLOCK_N] = True
    # The first block is the last of the sequence's; what follows it are those that no row has masked keys in.
    assert blocks[0] == int(work.last) * BLOCK_N
    whole = blocks[1 : 1 + int(work.middle)] + ([] if int(work.is_masked) else blocks[:1])
    assert len(blocks) == 1 + int(work.middle) + int(work.rest)
    begin, end = seen(np.arange(first, min(first + size, count_q)), count_q, count_k, window, bottom_right)
    places = np.arange(len(copied))
    assert copied[((begin[:, None] <= places) & (places < end[:, None])).any(0)].all()
    assert all(begin.max() <= block and block + BLOCK_N <= end.min() for block in whole)
    return batch, head, first


@settings(max_examples=150, deadline=None)
@given(data=st.data(), kernel=st.sampled_from([(64, 128), (128, 128), (64, 64)]), ordered=st.booleans())
def test_backward(flash, data, kernel, ordered):
    block_m, block_n = kernel
    batches, shared = data.draw(st.integers(1, 4)), data.draw(st.sampled_from([1, 2, 3]))
    heads_kv = data.draw(st.sampled_from([1, 2, 9]))
    queries, keys = data.draw(sequences(batches, 700)), data.draw(sequences(batches, 700))
    window, bottom_right = data.draw(WINDOWS), data.draw(st.booleans())
    spans = queries.tiles(128)
    tiles = keys.tiles(block_n) * heads_kv
    flags = flags_of(queries, keys) | (BOTTOM_RIGHT if bottom_right else 0)
    numbers = (batches, heads_kv * shared, shared, queries.longest, keys.longest, *window, flags, tiles, spans * 128)
    pointers = (queries.sums, keys.sums, queries.used, keys.used)
    bwd = flash.attn_bwd_tiles
    call = bwd.Call(*map(tensor, numbers), 128, ordered, *pointers)
    taken, programs, whose = [], [], {}
    for turn in range(tiles):
        tile = bwd.tile_of(tensor(turn), call, block_n)
        if tile.first < tile.rows_k:
            taken.append((int(tile.batch), int(tile.head_kv), int(tile.first)))
            programs.append(check_keys(flash, tile, call, queries, keys, window, bottom_right, block_m, block_n, whose))
    assert sorted(taken) == [
        (batch, head, first)
        for batch, count in enumerate(keys.rows) for head in range(heads_kv) for first in range(0, count, block_n)
    ]  # fmt: skip
    if ordered:
        add_up(programs, data.draw(st.sampled_from([1, 2, 5, 132])))


def check_keys(flash, tile, call, queries, keys, window, bottom_right, block_m, block_n, whose):
    """That a tile of keys meets all rows that see it, each once, and that no other rows have their places; gives what
    is added to dq: (place, turn), in order."""
    bwd = flash.attn_bwd_tiles
    batch, first = int(tile.batch), int(tile.first)
    count_q, count_k, shared = queries.rows[batch], keys.rows[batch], int(call.heads_per_kv)
    assert (int(tile.rows_q), int(tile.rows_k)) == (count_q, count_k)
    assert (int(tile.batch_k), int(tile.start_k)) == keys.place(batch)
    assert (int(tile.batch_q), int(tile.start_q)) == queries.place(batch)
    span = bwd.span_of(tile, call, block_m, block_n)
    blocks = range(int(span.begin), int(span.end))
    order = [bwd.block_of(tensor(i), span, call, call.ordered) for i in range(len(blocks) * shared)]
    order = [(int(member), int(block)) for member, block in order]
    assert sorted(order) == [(member, block) for member in range(shared) for block in blocks]
    begin, end = seen(np.arange(count_q), count_q, count_k, window, bottom_right)
    meets = (begin < min(first + block_n, count_k)) & (end > first) & (begin < end)
    assert {row // block_m for row in np.flatnonzero(meets)} <= set(blocks)
    for block in range(int(span.whole_begin), int(span.whole_end)):
        rows = slice(block * block_m, (block + 1) * block_m)
        assert (begin[rows] <= first).all() and (end[rows] >= first + block_n).all()
    added = []
    for member, block in order:
        head = int(tile.head_kv) * shared + member
        place = int(bwd.place_of_row(tile, tensor(head), tensor(block * block_m), call))
        assert place == flash.attn_bwd_ends.rows_of(
            tile.batch, tensor(head), tile.start_q, tensor(block * block_m), call.seqlen_q, call.places, call.flags, 128
        )
        assert 0 <= place <= int(call.places) * int(call.heads) - block_m
        assert whose.setdefault(place // 64, (batch, head, block)) == (batch, head, block)
        added.append((place, int(bwd.turn_of(tensor(block), tile, call, block_m, block_n))))
    return added


def add_up(tiles, programs: int) -> None:
    """That programs which take the next tile when they are done with one, and wait at each block for the tiles whose
    turn is before, all come to an end, and add to each block in the order of its turns."""
    added: dict[int, int] = {}
    waiting = iter(tiles)
    work = [list(next(waiting, ())) for _ in range(programs)]
    goes_on = True
    while goes_on:
        goes_on = False
        for number, left in enumerate(work):
            while left and added.get(left[0][0], 0) >= left[0][1]:
                place, turn = left.pop(0)
                assert added.get(place, 0) == turn
                added[place] = turn + 1
                goes_on = True
            if not left and (more := next(waiting, None)) is not None:
                work[number] = list(more)
                goes_on = True
    assert not any(work), "programs wait for one another"
