"""Random calls of the typed entries, as fields of their structures: mostly calls that run, in any combination of what
they may have, some with a mistake. `rng` is a random.Random."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence

from kiln_recipe.call.evaluate import Tensor
from kiln_recipe.dtypes import DTYPES

BF16, FP16, FP32, FP8, INT32, INT64 = (DTYPES[name] for name in ("bf16", "fp16", "fp32", "fp8e4m3", "int32", "int64"))
LENGTHS = (1, 2, 15, 16, 17, 63, 64, 65, 127, 129, 511, 512, 513, 1024, 1025, 4096, 4097, 20000)
BYTES = {BF16: 2, FP16: 2, FP32: 4, FP8: 1, INT32: 4, INT64: 8}


class Drawn:
    """The fields of one call, tensors at addresses of their own."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.fields = rng, {}
        self.batch = rng.choice((1, 1, 2, 3, 7, 64, 0 if self.rarely() else 5))
        self.heads_kv = rng.choice((1, 2, 3, 8))
        self.heads = self.heads_kv * rng.choice((1, 1, 2, 4, 7))
        self.width = rng.choice((1, 17, 40, 48, 56, 60, 63, 80)) if self.chance(4) else 64
        self.width_v = rng.choice((8, 40, 64)) if self.chance(8) else self.width
        self.dtype = FP16 if self.chance(30) else BF16

    def chance(self, one_in: int) -> bool:
        return self.rng.randrange(one_in) == 0

    def rarely(self) -> bool:
        return self.chance(20)

    def length(self) -> int:
        if self.rarely():
            return 0
        return self.rng.choice(LENGTHS) if self.chance(2) else self.rng.randint(1, 3000)

    def address(self, dtype: int) -> int:
        place = (len(self.fields) + 1) << 40
        return place + (self.rng.randint(1, 7) * BYTES[dtype] if self.chance(12) else 16 * self.rng.randint(0, 99))

    def tensor(
        self, name: str, sizes: Sequence[int], dtype: int | None = None, broadcast: Sequence[int] = ()
    ) -> Tensor:
        """A tensor whose last dimension is contiguous, the others in any order, rows apart or not.

        Args:
            broadcast: dimensions whose stride may be 0.
        """
        dtype = self.dtype if dtype is None else dtype
        strides, step = [1] * len(sizes), 1
        outer = list(range(len(sizes) - 1))
        if self.chance(3):
            self.rng.shuffle(outer)
        gap = self.rng.choice((3, 8, 64)) if self.chance(6) else 0
        for place, axis in enumerate([len(sizes) - 1, *reversed(outer)][: len(sizes)]):
            strides[axis] = step
            step = step * max(sizes[axis], 1) + (gap if place == 0 else 0)
        for axis in broadcast:
            if self.chance(3):
                strides[axis] = 0
        data = 0 if 0 in sizes and self.chance(2) else self.address(dtype)
        self.fields[name] = made = Tensor(data, dtype, tuple(sizes), tuple(strides))
        return made

    def integers(self, name: str, count: int) -> None:
        self.tensor(name, (count,), INT32)

    def number(self, name: str, one_in: int, value: Callable[[], object]) -> None:
        if self.chance(one_in):
            self.fields[name] = value()

    def mask(self) -> None:
        self.number("causal", 3, lambda: self.rng.choice((1, -5)))
        for name in ("window_left", "window_right"):
            self.number(name, 3, lambda: self.rng.choice((-1, 0, 1, 128, 2**30, 2**40, self.rng.randint(0, 5000))))

    def scores(self) -> None:
        self.number("sm_scale", 2, lambda: self.rng.choice((0.125, 1.0, self.rng.uniform(0.01, 2.0))))
        self.number("softcap", 6, lambda: self.rng.choice((30.0, 1e30, self.rng.uniform(0.1, 50.0))))
        if self.chance(4):
            self.tensor("sinks", (self.heads,), FP32)
        if self.chance(6):
            self.tensor("alibi_slopes", (self.batch, self.heads), FP32, broadcast=(0,))

    def seeds(self) -> None:
        for name in ("seed", "offset"):
            if self.chance(2):
                self.tensor(name, (), INT64)
            self.number(f"{name}_value", 2, lambda: self.rng.choice((1, -1, 2**63 - 1, self.rng.getrandbits(60))))

    def dropout(self) -> None:
        self.number("dropout", 2, lambda: self.rng.choice((0.1, 0.5, 0.9999, 1e-9, self.rng.uniform(0.0, 0.9))))


def attention(rng: random.Random) -> Drawn:
    """What forward and backward have in common."""
    drawn = Drawn(rng)
    rows, keys = drawn.length(), drawn.length()
    packed_q, packed_k, padded = drawn.chance(5), drawn.chance(5), drawn.chance(8)
    drawn.packed = packed_q and not padded
    if packed_q or packed_k or padded:
        if packed_q or (padded and drawn.chance(2)):
            drawn.integers("cu_seqlens_q", drawn.batch + 1)
        if packed_k or "cu_seqlens_q" not in drawn.fields:
            drawn.integers("cu_seqlens_k", drawn.batch + 1)
    if padded:
        drawn.fields["padded"] = rng.choice((1, -1))
    if packed_q and packed_k:  # else a length that is not a batch's own
        drawn.number("max_seqlen_q", 2, lambda: max(1, rows // rng.choice((1, 2, 5))))
        drawn.number("max_seqlen_k", 2, lambda: max(1, keys // rng.choice((1, 2, 5))))
    for name in ("seqused_q", "seqused_k"):
        if drawn.chance(6):
            drawn.integers(name, drawn.batch)
    q = (1 if drawn.packed else drawn.batch, drawn.heads, rows, drawn.width)
    k = (1 if packed_k and not padded else drawn.batch, drawn.heads_kv, keys, drawn.width)
    drawn.tensor("q", q)
    drawn.tensor("k", k)
    drawn.tensor("v", (*k[:3], drawn.width_v))
    drawn.tensor("out", (*q[:3], drawn.width_v))
    drawn.mask()
    drawn.number("bottom_right", 3, lambda: rng.choice((1, 7)))
    drawn.scores()
    if drawn.chance(9):
        drawn.fields["sm_scale"] = -0.25
    if drawn.chance(6):
        more = rng.choice((0, 0, 5))
        drawn.tensor("bias", (drawn.batch, drawn.heads, rows + more, keys + more), broadcast=(0, 1, 2))
    if drawn.chance(4):
        drawn.dropout()
    if drawn.chance(3):
        drawn.seeds()
    return drawn


def _lse(drawn: Drawn) -> None:
    q = drawn.fields["q"]
    if drawn.packed and drawn.chance(3):
        drawn.tensor("lse", (drawn.batch, drawn.heads, q.sizes[2] + drawn.rng.choice((0, 9))), FP32)
    else:
        drawn.tensor("lse", q.sizes[:3], FP32)


def attn_fwd(rng: random.Random) -> Drawn:
    drawn = attention(rng)
    if not drawn.chance(3):
        _lse(drawn)
    if drawn.chance(5):
        for name in ("seed_out", "offset_out"):
            drawn.tensor(name, (), INT64)
    drawn.number("batch_invariant", 5, lambda: rng.choice((1, -1)))
    return drawn


def dense(address: int, dtype: int, sizes: Sequence[int]) -> Tensor:
    strides = [1]
    for size in reversed(sizes[1:]):
        strides.insert(0, strides[0] * max(size, 1))
    return Tensor(address, dtype, tuple(sizes), tuple(strides))


def attn_fwd_fp8(rng: random.Random) -> Drawn:
    drawn = attention(rng)
    for name in ("softcap", "alibi_slopes", "bias", "dropout", "seed", "offset", "seed_value", "offset_value"):
        drawn.fields.pop(name, None)
    # Most are as tensor descriptors take them, which alone serve such a call.
    is_dense = not drawn.chance(6)
    for name, dtype in (("q", FP8), ("k", FP8), ("v", FP8), ("out", drawn.dtype)):
        sizes = drawn.fields[name].sizes
        if is_dense:
            drawn.fields[name] = dense((len(drawn.fields) + 1) << 40, dtype, (*sizes[:3], 64))
        elif dtype == FP8:
            drawn.tensor(name, sizes, FP8)
    if is_dense:
        drawn.fields.pop("sm_scale", None)
    if not drawn.chance(3):
        _lse(drawn)
    for name in ("q_descale", "k_descale", "v_descale"):
        if drawn.chance(2):
            drawn.tensor(name, (drawn.batch, drawn.heads_kv), FP32, broadcast=(0, 1))
    return drawn


def attn_bwd(rng: random.Random) -> Drawn:
    drawn = attention(rng)
    _lse(drawn)
    for name, of in (("dout", "out"), ("dq", "q"), ("dk", "k"), ("dv", "v")):
        drawn.tensor(name, drawn.fields[of].sizes)
    if "bias" in drawn.fields and drawn.chance(2):
        drawn.tensor("dbias", drawn.fields["bias"].sizes, broadcast=(0, 1))
    if "sinks" in drawn.fields and drawn.chance(2):
        drawn.tensor("dsinks", (drawn.heads,), FP32)
    drawn.number("deterministic", 3, lambda: 1)
    return drawn


def attn_decode(rng: random.Random) -> Drawn:
    drawn = Drawn(rng)
    rows, keys = rng.choice((1, 1, 1, 2, 16, 17, 300)), drawn.length()
    packed, paged, appends = drawn.chance(5), drawn.chance(4), drawn.chance(3)
    batches = drawn.batch + rng.choice((0, 0, 4))
    if packed:
        drawn.integers("cu_seqlens_q", drawn.batch + 1)
    q = (1 if packed else drawn.batch, drawn.heads, rows, drawn.width)
    k = (batches, drawn.heads_kv, keys, drawn.width)
    if paged:
        k = (99, drawn.heads_kv, rng.choice((1, 16, 48, 64, 256, 65536)), drawn.width)
        drawn.tensor("block_table", (drawn.batch, max(1, keys // k[2])), INT32)
    elif drawn.chance(6):
        drawn.integers("cache_batch", drawn.batch)
    if not paged and drawn.chance(6):
        drawn.integers("leftpad", drawn.batch)
    drawn.tensor("q", q)
    drawn.tensor("k_cache", k)
    drawn.tensor("v_cache", (*k[:3], drawn.width_v))
    drawn.tensor("out", (*q[:3], drawn.width_v))
    if drawn.chance(2):
        drawn.tensor("lse", q[:3], FP32)
    if paged or appends or drawn.chance(2):
        drawn.integers("seqused_k", drawn.batch)
    if appends and not packed:
        new = (drawn.batch, drawn.heads_kv, rng.choice((1, 1, 5)), drawn.width)
        drawn.tensor("k_new", new)
        drawn.tensor("v_new", (*new[:3], drawn.width_v))
        if drawn.chance(2):
            angles = (max(keys, k[2], 1) * rng.choice((1, 2)), rng.choice((0, 4, drawn.width // 2)))
            drawn.tensor("rotary_cos", angles)
            drawn.tensor("rotary_sin", angles)
            drawn.number("rotary_interleaved", 2, lambda: 3)
    drawn.mask()
    drawn.scores()
    drawn.number("splits", 3, lambda: rng.choice((1, 2, 7, 128)))
    drawn.number("max_seqlen_k", 3, lambda: max(1, keys // 2))
    if packed:
        drawn.number("max_seqlen_q", 2, lambda: max(1, rows // 2))
    drawn.number("batch_invariant", 5, lambda: 1)
    return drawn


def dropout_mask(rng: random.Random) -> Drawn:
    drawn = Drawn(rng)
    dtype = rng.choice([DTYPES[name] for name in ("uint8", "uint8", "fp16", "bf16", "fp32")])
    BYTES.setdefault(dtype, 1)
    drawn.tensor("mask", (drawn.batch, drawn.heads, drawn.length(), drawn.length()), dtype)
    drawn.seeds()
    drawn.dropout()
    return drawn


def seq_lengths_call(rng: random.Random) -> list[Tensor | int | None]:
    """The arguments of attention's operation without an entry; one in six may have a mistake."""
    drawn = Drawn(rng)
    batch = rng.choice((0, 1, 127, 128, 1000, 20000))
    lengths, begins = rng.choice(((True, True), (True, False), (False, True)))
    if lengths:
        drawn.tensor("lengths", (batch,), INT32)
        if drawn.chance(2):
            drawn.tensor("cu_seqlens", (batch + 1,), INT32)
    if begins:
        drawn.tensor("begins", (batch + rng.choice((0, 1, 7)),), INT32)
        drawn.tensor("begins_out", (batch + 1,), INT32)
    if drawn.chance(6):
        spoil(rng, drawn.fields)
    numbers = [
        rng.choice((0, 1, 2**31 - 1, -1 if drawn.rarely() else 77, 2**31 if drawn.rarely() else 88)) for _ in "mt"
    ]
    return [*map(drawn.fields.get, ("cu_seqlens", "begins", "lengths", "begins_out")), *numbers]


def norm_call(rng: random.Random) -> list[Tensor | float | None]:
    """The arguments of examples/family's operation; one in six may have a mistake."""
    drawn = Drawn(rng)
    rows, columns = drawn.length(), rng.choice((1, 16, 1000, 1024, 1025, 4096, 4096, 5000 if drawn.rarely() else 64))
    drawn.tensor("x", (rows, columns))
    if drawn.chance(4):
        drawn.fields["x"] = dataclasses.replace(drawn.fields["x"], strides=(2 * columns, 2))
    drawn.tensor("w", (columns,))
    drawn.tensor("out", (rows, columns))
    if drawn.chance(2):
        drawn.tensor("total", (1,), FP32)
    if drawn.chance(6):
        spoil(rng, drawn.fields)
    return [*map(drawn.fields.get, ("x", "w", "out", "total")), rng.uniform(0.0, 1.0)]


def matmul_call(rng: random.Random) -> list[Tensor]:
    """The arguments of examples/matmul's operation, of which some fit every implementation, and others the last alone:
    rows or columns that are contiguous, rows of and apart by multiples of 16 bytes or not, backwards, at odd addresses,
    depths that an implementation does not serve; one in six may have a mistake."""
    drawn = Drawn(rng)
    rows, columns, depth = drawn.length(), drawn.length(), drawn.length() if drawn.chance(3) else rng.choice((64, 128))
    columns = columns if drawn.chance(4) else -(-columns // 8) * 8
    for name, sizes in (("a", (rows, depth)), ("b", (columns, depth)), ("c", (rows, columns))):
        tensor = drawn.tensor(name, sizes)
        pitch = sizes[1] + rng.choice((0, 0, 8, 64, 3)) if drawn.chance(4) else -(-sizes[1] // 8) * 8
        strides = (pitch, 1)
        if drawn.chance(8):
            strides = rng.choice(((1, sizes[0]), (-pitch, 1), (pitch, 2), (2**40, 1), (0, 1)))
        drawn.fields[name] = dataclasses.replace(tensor, strides=strides)
    if drawn.chance(6):
        spoil(rng, drawn.fields)
    return [*map(drawn.fields.get, "abc")]


CALLS: Mapping[str, Callable[[random.Random], Drawn]] = {
    "attn_fwd": attn_fwd, "attn_fwd_fp8": attn_fwd_fp8, "attn_bwd": attn_bwd, "attn_decode": attn_decode,
    "dropout_mask": dropout_mask,
}  # fmt: skip


def spoil(rng: random.Random, fields: dict[str, object]) -> None:
    """One change of some tensor that may or may not be a mistake."""
    name = rng.choice([name for name, value in fields.items() if isinstance(value, Tensor)])
    tensor = fields[name]
    rank, ways = len(tensor.sizes), ["drop", "dtype", "data", "rank"] + ["sizes", "strides"] * 3
    way = rng.choice(ways if rank else ways[:4])
    axis = rng.randrange(rank) if rank else 0
    if way == "drop":
        del fields[name]
    elif way == "dtype":
        fields[name] = dataclasses.replace(tensor, dtype=rng.choice(list(DTYPES.values())))
    elif way == "data":
        fields[name] = dataclasses.replace(tensor, data=0)
    elif way == "rank":
        fields[name] = dataclasses.replace(tensor, sizes=(*tensor.sizes, 1), strides=(*tensor.strides, 1))
    else:
        values = list(getattr(tensor, way))
        others = (0, 1, values[axis] + 1, 2 * values[axis])
        values[axis] = rng.choice(others if way == "sizes" else (*others, -1, 2**40))
        fields[name] = dataclasses.replace(tensor, **{way: tuple(values)})


def drawn_fields(name: str, rng: random.Random) -> dict[str, object]:
    """The fields of a call of an entry; one in six may have a mistake."""
    fields = CALLS[name](rng).fields
    if rng.randrange(6) == 0:
        spoil(rng, fields)
    return fields
