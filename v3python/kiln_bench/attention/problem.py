"""The tensors of a call, the same for all sides, and which results of theirs are right."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from kiln_bench.attention import reference
from kiln_bench.shapes import Decoding, Training
from kiln_recipe.dtypes import TORCH_DTYPES

if TYPE_CHECKING:
    import torch

    from kiln_bench.timing import Work

SEED = 20260
WARM = 4  # caches together are so many times the L2 cache, so that each byte comes from memory
_MOST_CACHES = 64


@dataclass
class Prepared:
    """A side's call.

    Attributes:
        works: each enqueues it; of decoding one for each cache.
        results: of the last run, by name, with heads before rows: "out", or "dq", "dk", "dv".
        images: what a release runs, in lines.
        variants: the same, by the names of kiln_variant's fields.
        call: of a release, how it is spelled (release/called.py).
    """

    works: Sequence[Work]
    results: Callable[[], Mapping[str, torch.Tensor]]
    images: list[str] = field(default_factory=list)
    variants: list[dict[str, Any]] = field(default_factory=list)
    call: str = ""

    @property
    def run(self) -> Work:
        """The works in turns."""
        if len(self.works) == 1:
            return self.works[0]
        turns = itertools.cycle(self.works)
        return lambda: next(turns)()


class Side(Protocol):
    """Who computes attention. Both functions raise what they like where they refuse: the sentence is shown.

    Attributes:
        name: in results and options, "flash-attn".
        label: for people, "FlashAttention-2".
    """

    name: str
    label: str

    def training(self, problem: Problem, part: str) -> Prepared:
        """Forward or backward."""

    def decoding(self, problem: CacheProblem) -> Prepared:
        """One step."""


def dtype_of(name: str) -> torch.dtype:
    import torch

    return getattr(torch, TORCH_DTYPES[name])


class Problem:
    """The tensors of a call of training.

    Attributes:
        q, k, v, dout: [batch, heads, rows, head_dim].
        starts: int32, where each sequence begins, and the end; None: all have one length.
        sinks: fp32, [heads]; None: there are none.
    """

    def __init__(self, shape: Training, device: str = "cuda") -> None:
        import torch

        self.shape, self.device = shape, device
        draw = torch.Generator(device).manual_seed(SEED)

        def tensor(heads: int, head_dim: int) -> torch.Tensor:
            sizes = (shape.batch, shape.rows, heads) if shape.rows_first else (shape.batch, heads, shape.rows)
            drawn = torch.randn(*sizes, head_dim, dtype=torch.float32, device=device, generator=draw)
            drawn = drawn.to(dtype_of(shape.dtype))
            return drawn.transpose(1, 2) if shape.rows_first else drawn

        self.q = tensor(shape.heads, shape.head_dim)
        self.k = tensor(shape.heads_kv, shape.head_dim)
        self.v = tensor(shape.heads_kv, shape.head_dim_v)
        self.dout = tensor(shape.heads, shape.head_dim_v)
        ends = torch.tensor(shape.lengths, dtype=torch.int32, device=device).cumsum(0, dtype=torch.int32)
        self.starts = torch.nn.functional.pad(ends, (1, 0)) if shape.lengths else None
        self.sinks = torch.randn(shape.heads, device=device, generator=draw) if shape.sinks else None

    def flat(self, tensor: torch.Tensor) -> torch.Tensor:
        """[all rows, heads, head_dim]: what libraries with sequences one after another take. A view, for rows first."""
        return tensor.transpose(1, 2).flatten(0, 1)

    def unflat(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.view(self.shape.batch, self.shape.rows, *tensor.shape[1:]).transpose(1, 2)

    def samples(self, part: str) -> list[tuple[dict[str, Any], dict[str, torch.Tensor]]]:
        """What is looked at of each result, an index by its name, and what is right there: of the first head of the
        first sequence and the last of the last."""
        shape, group = self.shape, self.shape.heads // self.shape.heads_kv
        if self.starts is None:
            sequences = [(0, slice(None)), (shape.batch - 1, slice(None))]
        else:
            bounds = self.starts.tolist()
            sequences = [(0, slice(*bounds[:2])), (0, slice(*bounds[-2:]))]
        found = []
        for (batch, rows), head in zip(sequences, (0, shape.heads_kv - 1)):
            heads = slice(head * group, (head + 1) * group)
            dout = self.dout[batch, heads, rows] if part == "backward" else None
            given = (self.q[batch, heads, rows], self.k[batch, head, rows], self.v[batch, head, rows])
            sinks = None if self.sinks is None else self.sinks[heads]
            right = reference.exact(*given, dout, shape.causal, shape.window, shape.softcap, sinks)
            if dout is not None:
                del right["out"]
            places = {"out": (batch, heads, rows), "dq": (batch, heads, rows)}
            found.append(({name: places.get(name, (batch, head, rows)) for name in right}, right))
        return found


class CacheProblem:
    """The tensors of a call of decoding; `caches` of them, which are used in turns, so that none stays in the L2 cache.

    Attributes:
        q: [batch, heads, 1, head_dim].
        caches: keys and values, [batch, heads_kv, keys, head_dim], or [pages, heads_kv, page, head_dim].
        used: int32, the keys of each sequence.
        table: int32, the pages of each sequence, in random order; None: there are none.
        scales: of the heads of keys and values, of a cache in fp8; None: there are none.
    """

    def __init__(self, shape: Decoding, l2_bytes: int, device: str = "cuda") -> None:
        import torch

        self.shape, self.device = shape, device
        draw = torch.Generator(device).manual_seed(SEED)
        length = shape.page or shape.keys
        pieces = shape.batch * shape.keys // length
        sizes = (pieces, length, shape.heads_kv) if shape.rows_first else (pieces, shape.heads_kv, length)

        def cache() -> torch.Tensor:
            drawn = torch.randn(*sizes, shape.head_dim, dtype=torch.bfloat16, device=device, generator=draw)
            drawn = drawn.to(dtype_of(shape.cache_dtype))
            return drawn.transpose(1, 2) if shape.rows_first else drawn

        count = min(_MOST_CACHES, max(1, math.ceil(WARM * l2_bytes / shape.bytes)))
        self.caches = [(cache(), cache()) for _ in range(count)]
        rows = (shape.batch, shape.heads, 1, shape.head_dim)
        self.q = torch.randn(*rows, device=device, generator=draw).to(dtype_of(shape.dtype))
        self.used = torch.full((shape.batch,), shape.keys, dtype=torch.int32, device=device)
        self.table = self.scales = None
        if shape.page:
            order = torch.randperm(pieces, device=device, generator=draw)
            self.table = order.to(torch.int32).view(shape.batch, shape.keys // shape.page)
        if shape.cache_dtype == "fp8e4m3":
            self.scales = tuple(
                torch.rand(shape.heads_kv, device=device, generator=draw) + 0.5 for _ in ("keys", "values")
            )

    def samples(self, number: int) -> list[tuple[dict[str, Any], dict[str, torch.Tensor]]]:
        """As Problem's, of a cache: of the first head of the first sequence and the last of the last."""
        shape, group = self.shape, self.shape.heads // self.shape.heads_kv
        found = []
        for batch, head in ((0, 0), (shape.batch - 1, shape.heads_kv - 1)):
            heads = slice(head * group, (head + 1) * group)
            k, v = (self._cached(which, number, batch, head) for which in (0, 1))
            right = reference.exact(self.q[batch, heads], k, v, None)
            found.append(({"out": (batch, heads)}, right))
        return found

    def _cached(self, which: int, number: int, batch: int, head: int) -> torch.Tensor:
        """A sequence's keys or values of a head in fp32, [keys, head_dim]."""
        cache = self.caches[number][which]
        pieces = cache[batch : batch + 1] if self.table is None else cache[self.table[batch].long()]
        values = pieces[:, head].reshape(self.shape.keys, self.shape.head_dim).float()
        return values if self.scales is None else values * self.scales[which][head]


def wrongness(results: Mapping[str, torch.Tensor], samples: list) -> float:
    """The largest error at the samples; NaN if anything is there."""
    found = [
        reference.worst({name: results[name][place] for name, place in places.items()}, right)
        for places, right in samples
    ]
    return next((value for value in found if value != value), max(found))
