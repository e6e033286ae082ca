"""Calls to test by: views at addresses that nothing lies at, and what became of them in a record."""

from __future__ import annotations

from aotriton_interface import BF16, FP32, INT32, INT64, UINT64, contiguous
from recorded import Launch, Record

STEP = 0x100000  # between addresses


def at(number: int, dtype: int, sizes: tuple[int, ...], is_transposed: bool = False) -> tuple:
    """A view at an address of its own; transposed: [batch, rows, heads, width] in memory, as PyTorch has it."""
    if not is_transposed:
        return (STEP * number, dtype, sizes, contiguous(sizes))
    batch, heads, rows, width = sizes
    first = contiguous((batch, rows, heads, width))
    return (STEP * number, dtype, sizes, (first[0], first[2], first[1], first[3]))


def tensors(shape: dict, dtype: int = BF16, is_transposed: bool = True) -> dict:
    """q, k, v, out and lse of a dense call of that shape."""
    batch, heads, kv, rows, keys, width, width_v = shape.values()
    q, k = (batch, heads, rows, width), (batch, kv, keys, width)
    v, out = (batch, kv, keys, width_v), (batch, heads, rows, width_v)
    made = {name: at(n, dtype, size, is_transposed) for n, (name, size) in
            enumerate({"q": q, "k": k, "v": v, "out": out}.items(), 1)}  # fmt: skip
    return made | {"lse": at(5, FP32, (batch * heads, rows))}


def gradients(call: dict) -> dict:
    """What a backward of a forward's tensors has besides."""
    like = {"dout": "out", "dq": "q", "dk": "k", "dv": "v"}
    return {name: (STEP * n, *call[of][1:]) for n, (name, of) in enumerate(like.items(), 20)}


SHAPE = {"batch": 2, "heads": 4, "kv": 2, "rows": 100, "keys": 120, "width": 64, "width_v": 56}
DENSE = tensors(SHAPE)
SEED = {"seed": (STEP * 40, UINT64), "offset1": (STEP * 41, INT64), "offset2": 5}
SEED_OUT = {"seed_out": (STEP * 42, UINT64), "offset_out": (STEP * 43, UINT64)}
EMPTY = (0, BF16, (0, 0, 0, 0), (0, 0, 0, 0))
PACKED = tensors(SHAPE | {"batch": 1, "rows": 250, "keys": 300}) | {
    "cu_q": at(50, INT32, (4,)), "cu_k": at(51, INT32, (4,)), "max_q": 100, "max_k": 120,
    "lse": at(5, FP32, (3 * 4, 100)),
}  # fmt: skip


def launches(record: Record) -> list[tuple]:
    """Launches and zeros in their order, without the numbers of images: two runtimes load them each."""
    return [
        (s.symbol, s.grid, s.block, s.shared, s.cluster, s.stream, s.device, s.arguments)
        if isinstance(s, Launch)
        else s
        for s in record.steps
    ]


OUTPUTS = ("out", "lse", "encoded", "dq", "dk", "dv", "db", "r")
INPUTS_OF_BACKWARD = ("out", "lse")
_BYTES = {1: 4, 2: 2, 3: 2, 10: 1, 11: 2, 12: 4, 13: 8, 20: 1, 21: 2, 22: 4, 23: 8}


def outputs(entry: str, call: dict) -> list[tuple]:
    """The views that a function writes to, but for seeds and offsets."""
    names = set(OUTPUTS) - (set(INPUTS_OF_BACKWARD) if "bwd" in entry else set())
    given = [call[name] for name in names if call.get(name)]
    return [view for view in given if view[0] and 0 not in view[2]]


def extents(views: list[tuple]) -> list[tuple[int, int]]:
    """The bytes of views' elements: where they begin and end, merged, in order."""
    runs = []
    for data, dtype, sizes, *strides in views:
        element = _BYTES[dtype]
        places = sorted(zip(strides[0] if strides else contiguous(sizes), sizes))
        places = [(step * element, size) for step, size in places if step and size > 1]
        run = element
        while places and places[0][0] == run:  # without gaps
            run *= places.pop(0)[1]
        starts = [data]
        for step, size in places:
            starts = [start + n * step for start in starts for n in range(size)]
        runs += [(start, start + run) for start in starts]
    return merged(runs)


def filled(record: Record) -> list[tuple[int, int]]:
    """The bytes that were set, in the same way."""
    rows = ((fill.address + n * fill.pitch, fill.bytes) for fill in record.fills for n in range(fill.rows))
    return merged([(begin, begin + size) for begin, size in rows])


def merged(runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    result: list[tuple[int, int]] = []
    for begin, end in sorted(runs):
        if result and begin <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((begin, end))
    return result
