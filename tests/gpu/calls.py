"""A call of attention, described; and its tensors, made as callers have them."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import torch
from storage import ALIGNED, DTYPES, Storage

SINKS = 16  # heads, at least: dsinks is one number for each, and of few the largest error is a matter of luck
SLACK = 3  # rows between sequences that are given by both cu_seqlens and seqused


# q, k, v and dout uniform in [0, 1), and how much is added to keys besides.
SHARED = {"uniform": 0.0, "keys + 5": 5.0, "keys + 50": 50.0}


class Segment(NamedTuple):
    """A sequence, or all of them where they are equally long: batches of the call, and where their rows lie."""

    batches: slice
    of_q: slice
    rows: slice
    of_k: slice
    keys: slice

    @property
    def q(self) -> tuple:
        return self.of_q, slice(None), self.rows

    @property
    def k(self) -> tuple:
        return self.of_k, slice(None), self.keys


class AnyCall:
    """What calls have in common, with a cache (decode_calls.py) and without."""

    width: int
    width_v: int
    sm_scale: float
    causal: bool
    left: int
    right: int
    number: int

    def __str__(self) -> str:
        """All that differs from the defaults, as it would be typed."""
        changed = [(f.name, getattr(self, f.name)) for f in fields(self) if getattr(self, f.name) != f.default]
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in changed)})"

    @property
    def out_width(self) -> int:
        return self.width_v or self.width

    @property
    def scale(self) -> float:
        return self.sm_scale or 1 / math.sqrt(self.width)

    @property
    def window(self) -> tuple[int, int]:
        """(left, right), as it counts."""
        return self.left, 0 if self.causal else self.right

    def redrawn(self, number: int):
        """The same with other values, for each number above 0."""
        return replace(self, number=self.number + 100_003 * number)


@dataclass(frozen=True)
class Call(AnyCall):
    """What is asked of attention, and the shapes.

    Attributes:
        rows, keys: of each sequence; with lengths_q and lengths_k, the most that any may have.
        width, width_v: head dimensions; width_v is 0 for the same.
        layout, layout_out: of storage.py; of q, k, v and their gradients, and of out and dout.
        left, right: windows, below 0 for none; with causal, right does not count.
        bias: over what it is broadcast: "" for no bias, "none", "batch", "heads", "both" or "rows"; "hides" is "both"
            with minus infinity in places.
        alibi: "", "heads" (the same in all batches) or "batch".
        varlen_q, varlen_k: how lengths are given: "" for none, "compact", "padded", "both" (cu_seqlens and seqused), or
            "sums" (cu_seqlens of padded sequences).
        lse_by_sequence: with "compact" or "both" rows, the log-sum-exp is [batch, heads, rows].
        seed, offset: of dropout; half of each lies in device memory if in_memory.
        sm_scale: 0 for 1 / sqrt(width).
        longest: with cu_seqlens, the longest sequence is told.
        inputs: "normal", "means" (large ones), "outliers" (100 times as large), "hot row", or of SHARED.
        number: other values for each.
    """

    dtype: str = "bf16"
    batch: int = 1
    heads: int = 2
    heads_kv: int = 2
    rows: int = 65
    keys: int = 65
    width: int = 64
    width_v: int = 0
    layout: str = "contiguous"
    layout_out: str = "contiguous"
    causal: bool = False
    bottom_right: bool = False
    left: int = -1
    right: int = -1
    bias: str = ""
    sinks: bool = False
    alibi: str = ""
    softcap: float = 0.0
    dropout: float = 0.0
    seed: int = 0x123456789ABCDEF
    offset: int = 0x300000007
    in_memory: bool = False
    varlen_q: str = ""
    varlen_k: str = ""
    lengths_q: tuple[int, ...] = ()
    lengths_k: tuple[int, ...] = ()
    sm_scale: float = 0.0
    inputs: str = "normal"
    want_lse: bool = True
    backward: bool = True
    deterministic: bool = False
    longest: bool = True
    lse_by_sequence: bool = False
    number: int = 0

    @property
    def has_scale_of_dq(self) -> bool:
        """Rows share an offset, and may see so many keys by so little else that dq is held to its own scale too."""
        visible = min(self.keys, self.rows) if self.causal and not self.bottom_right else self.keys
        others = (self.bias, self.sinks, self.alibi, self.softcap, self.dropout, self.varlen_q, self.varlen_k)
        is_open = max(self.left, self.right) < 0 and not self.sm_scale
        return self.inputs in SHARED and self.backward and is_open and not any(others) and visible >= 256

    @property
    def is_aligned(self) -> bool:
        """Whether all rows begin at 16 bytes, if head dimensions are multiples of 8 elements (4 of fp32)."""
        return self.layout in ALIGNED and self.layout_out in ALIGNED

    @property
    def scores(self) -> int:
        """How many there are: what a call costs."""
        pairs = zip(self.lengths_q or (self.rows,) * self.batch, self.lengths_k or (self.keys,) * self.batch)
        return self.heads * sum(rows * keys for rows, keys in pairs)

    def _lengths(self, of_keys: bool) -> tuple[str, tuple[int, ...], int]:
        if of_keys:
            return self.varlen_k, self.lengths_k or (self.keys,) * self.batch, self.keys
        return self.varlen_q, self.lengths_q or (self.rows,) * self.batch, self.rows

    def starts(self, of_keys: bool) -> list[int] | None:
        """cu_seqlens, or None."""
        mode, lengths, _ = self._lengths(of_keys)
        if mode not in ("compact", "both"):
            return None
        result = [0]
        for length in lengths:
            result.append(result[-1] + length + (SLACK if mode == "both" else 0))
        return result

    def sums(self, of_keys: bool) -> list[int] | None:
        """cu_seqlens that tell lengths alone, or None."""
        mode, lengths, _ = self._lengths(of_keys)
        return [5 + sum(lengths[:b]) for b in range(self.batch + 1)] if mode == "sums" else None

    def used(self, of_keys: bool) -> tuple[int, ...] | None:
        """seqused, or None."""
        mode, lengths, _ = self._lengths(of_keys)
        return lengths if mode in ("padded", "both") else None

    def shape(self, of_keys: bool, heads: int, width: int) -> tuple[int, int, int, int]:
        starts = self.starts(of_keys)
        batch, rows = (self.batch, self._lengths(of_keys)[2]) if starts is None else (1, starts[-1])
        return batch, heads, rows, width

    def segments(self) -> list[Segment]:
        if not self.varlen_q and not self.varlen_k:
            every = slice(0, self.batch)
            return [Segment(every, every, slice(0, self.rows), every, slice(0, self.keys))]
        result = []
        for b in range(self.batch):
            places = []
            for of_keys in (False, True):
                starts, length = self.starts(of_keys), self._lengths(of_keys)[1][b]
                begin = starts[b] if starts else 0
                places += [slice(0, 1) if starts else slice(b, b + 1), slice(begin, begin + length)]
            result.append(Segment(slice(b, b + 1), *places))
        return result

    @property
    def lse_shape(self) -> tuple[int, int, int]:
        return (self.batch, self.heads, self.rows) if self.lse_by_sequence else self.shape(False, self.heads, 1)[:3]

    def lse_place(self, segment: Segment) -> tuple:
        if not self.lse_by_sequence:
            return segment.q
        return segment.batches, slice(None), slice(0, segment.rows.stop - segment.rows.start)

    def lse_counting(self, device: str) -> torch.Tensor:
        """[batch, rows] of booleans: which of the log-sum-exps are of rows that belong to a sequence."""
        result = torch.zeros(self.lse_shape[0], self.lse_shape[2], dtype=torch.bool, device=device)
        for segment in self.segments():
            batch, _, rows = self.lse_place(segment)
            result[batch, rows] = True
        return result

    def counting(self, of_keys: bool, device: str) -> torch.Tensor:
        """[batch, rows] of booleans: which rows belong to a sequence."""
        batch, _, rows, _ = self.shape(of_keys, 1, 1)
        result = torch.zeros(batch, rows, dtype=torch.bool, device=device)
        for segment in self.segments():
            where = (segment.of_k, segment.keys) if of_keys else (segment.of_q, segment.rows)
            result[where] = True
        return result


def draw(shape: tuple[int, ...], inputs: str, generator: torch.Generator, mean: float = 3.0) -> torch.Tensor:
    """fp32 values [batch, heads, rows, width]. Outliers are of a smaller normal distribution, so that fp16 holds what
    comes of them."""
    device = generator.device
    if inputs in SHARED:
        return torch.rand(shape, generator=generator, device=device)
    values = torch.randn(shape, generator=generator, device=device)
    if inputs == "means":
        values += mean
    elif inputs == "outliers":
        values *= 0.25
        places = torch.rand(shape, generator=generator, device=device) < 1 / 256
        values = torch.where(places, values * 100, values)
    elif inputs == "hot row" and shape[2]:
        values[:, :, shape[2] // 3] *= 30
    return values


class Inputs:
    """The tensors of a call: q, k, v and dout in guarded memory that is NaN wherever no sequence lies."""

    def __init__(self, call: Call, device: str) -> None:
        self.call, self.device = call, device
        generator = torch.Generator(device).manual_seed(call.number * 7919 + 17)
        dtype = DTYPES[call.dtype]
        self.rows, self.keys = call.counting(False, device), call.counting(True, device)

        def tensor(of_keys: bool, heads: int, width: int, layout: str, inputs: str, offset: float = 0.0) -> Storage:
            shape = call.shape(of_keys, heads, width)
            values = draw(shape, inputs, generator)
            values += offset
            if layout == "broadcast":
                values = values[:, :1].expand(shape)
            return Storage(shape, dtype, device, layout).put(values.to(dtype), self.keys if of_keys else self.rows)

        # Nothing may be written through a stride of 0, and heads that are one would not be summed.
        of_q = "contiguous" if call.layout == "broadcast" else call.layout
        self.q = tensor(False, call.heads, call.width, of_q, "normal" if call.inputs == "hot row" else call.inputs)
        # What backward is not held to: it takes rowsum(dout * out) of an output that was rounded, which outliers and
        # hot rows of v make coarse, and a hot row of k multiplies (dp and that sum are nearly equal there). Of what
        # rows share, SHARED, it takes that out again. And fp32's log-sum-exp holds scores in the hundreds to 1e-5 or
        # so: backward's weights are no better, so in fp32 q alone has outliers. Forward is held to all of them.
        spared_k = call.inputs == "hot row" or (call.inputs == "outliers" and call.dtype == "fp32")
        of_k = "normal" if call.backward and spared_k else call.inputs
        self.k = tensor(True, call.heads_kv, call.width, call.layout, of_k, SHARED.get(call.inputs, 0.0))
        shares = call.inputs in SHARED
        of_v = "normal" if call.inputs == "hot row" or (call.backward and not shares) else call.inputs
        self.v = tensor(True, call.heads_kv, call.out_width, call.layout, of_v)
        of_out = call.inputs if shares else "normal"
        self.dout = tensor(False, call.heads, call.out_width, call.layout_out, of_out) if call.backward else None

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator, device=device)

        self.bias = self.sinks = self.slopes = None
        if call.bias:
            shape = (
                1 if call.bias in ("batch", "both", "hides") else call.batch,
                1 if call.bias in ("heads", "both", "hides") else call.heads,
                1 if call.bias == "rows" else call.rows, call.keys,
            )  # fmt: skip
            values = normal(*shape)
            if call.bias == "hides":
                values.masked_fill_(torch.rand(shape, generator=generator, device=device) < 0.3, -math.inf)
            self.bias = Storage(shape, dtype, device, "contiguous" if call.is_aligned else "odd rows").put(values)
        if call.sinks:
            self.sinks = normal(call.heads) * 2
        if call.alibi:
            slopes = 2.0 ** -torch.arange(1, 1 + call.heads, device=device).float()
            if call.alibi == "batch":
                slopes = slopes[None, :] * (1 + torch.arange(call.batch, device=device)[:, None] / 4)
            self.slopes = slopes.expand(call.batch, call.heads)

        def integers(values: list[int] | tuple[int, ...] | None) -> torch.Tensor | None:
            return None if values is None else torch.tensor(values, dtype=torch.int32, device=device)

        self.cu_q, self.cu_k = (integers(call.starts(of_keys) or call.sums(of_keys)) for of_keys in (False, True))
        self.used_q, self.used_k = integers(call.used(False)), integers(call.used(True))
        half_seed, half_offset = (call.seed // 2, call.offset // 2) if call.in_memory else (0, 0)
        self.seed_value, self.offset_value = call.seed - half_seed, call.offset - half_offset
        self.seed, self.offset = (
            torch.tensor(half, dtype=torch.int64, device=device) if call.in_memory else None
            for half in (half_seed, half_offset)
        )
