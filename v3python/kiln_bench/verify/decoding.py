"""Calls with a cache: which may reach an image, their tensors, and what is right of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from kiln_bench.verify import formula, numbers
from kiln_bench.verify.arena import Arena, Tensor, bytes_of
from kiln_bench.verify.judge import Verdict
from kiln_recipe.selection import values_of

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class DecodeCall:
    """What is asked, and the shapes.

    Attributes:
        rows: of each sequence.
        keys: how many the cache has room for; used: how many of each sequence it has before the call.
        page: keys of a page; 0: the cache is contiguous.
        new_rows: appended by the call.
        rotary: how many columns are turned, halves together; 0: none.
        fp8: whether the cache is, with scales.
        latent: values are the first columns of the keys.
        splits: of the keys; 0: as the release likes.
        number: other values for each.
    """

    dtype: str = "bf16"
    heads: int = 4
    heads_kv: int = 2
    rows: int = 1
    keys: int = 300
    used: tuple[int, ...] = (290, 11)
    width: int = 64
    width_v: int = 0
    page: int = 0
    new_rows: int = 0
    rotary: int = 0
    fp8: bool = False
    latent: bool = False
    causal: bool = False
    softcap: float = 0.0
    sinks: bool = False
    alibi: bool = False
    splits: int = 0
    layout: str = "contiguous"
    number: int = 0

    def __str__(self) -> str:
        """All that differs from the defaults."""
        changed = [(f.name, getattr(self, f.name)) for f in fields(self) if getattr(self, f.name) != f.default]
        return ", ".join(f"{name}={value}" for name, value in changed)

    def redrawn(self, number: int) -> DecodeCall:
        return replace(self, number=self.number + number)

    @property
    def batch(self) -> int:
        return len(self.used)


def shapes_of(call: DecodeCall) -> dict[str, tuple[tuple[int, ...], str]]:
    """By name, what each tensor's shape and dtype is."""
    of_v, held = call.width_v or call.width, "fp8e4m3" if call.fp8 else call.dtype
    q = (call.batch, call.heads, call.rows, call.width)
    pages = -(-call.keys // call.page) if call.page else 0
    cache = (call.batch * pages, call.heads_kv, call.page) if pages else (call.batch, call.heads_kv, call.keys)
    found = {
        "q": (q, call.dtype), "k_cache": ((*cache, call.width), held), "v_cache": ((*cache, of_v), held),
        "out": ((*q[:3], of_v), call.dtype), "lse": (q[:3], "fp32"), "seqused_k": ((call.batch,), "int32"),
    }  # fmt: skip
    if call.latent:
        del found["v_cache"]
    if call.new_rows:
        new = (call.batch, call.heads_kv, call.new_rows)
        found |= {"k_new": ((*new, call.width), call.dtype), "v_new": ((*new, of_v), call.dtype)}
    if call.page:
        found["block_table"] = ((call.batch, pages), "int32")
    if call.rotary:
        angles = (max(call.keys, pages * call.page) + call.rows, call.rotary // 2)
        found |= {"rotary_cos": (angles, call.dtype), "rotary_sin": (angles, call.dtype)}
    if call.fp8:
        found |= {"k_scale": ((call.heads_kv,), "fp32"), "v_scale": ((call.heads_kv,), "fp32")}
    if call.sinks:
        found["sinks"] = ((call.heads,), "fp32")
    if call.alibi:
        found["alibi_slopes"] = ((call.batch, call.heads), "fp32")
    return found


class DecodeProblem:
    """A call's tensors in an arena, and what is right of it. The arena has one problem at a time."""

    def __init__(self, call: DecodeCall, arena: Arena) -> None:
        self.call = call
        shapes = shapes_of(call)
        arena.lay_out(sum(bytes_of(*shape) for shape in shapes.values()))
        self._draw = np.random.default_rng([2027, call.number])
        writes_caches = bool(call.new_rows)
        self.tensors: dict[str, Tensor] = {}
        for name, (shape, dtype) in shapes.items():
            layout = call.layout if name in ("q", "out") else "contiguous"
            written = name in ("out", "lse") or (writes_caches and name.endswith("_cache"))
            self.tensors[name] = tensor = arena.tensor(shape, dtype, layout, written)
            if name not in ("out", "lse"):
                tensor.put(self._drawn(name, shape))
        if call.latent:
            whole = self.tensors["k_cache"]
            self.tensors["v_cache"] = replace(whole, stored=whole.stored[..., : call.width_v])
        self._places = self._draw.permutation(call.batch * max(1, -(-call.keys // (call.page or call.keys))))
        self._places = self._places if call.page else np.arange(call.batch)
        self._places = self._places.reshape(call.batch, -1)
        if call.page:
            self.tensors["block_table"].put(self._places)
        self._hide_unused()
        self.before = {name: self.tensors[name].stored.copy() for name in ("k_cache", "v_cache")}

    def _hide_unused(self) -> None:
        """Where no key lies yet is what is no number."""
        for which in ("k", "v"):
            cache = self.tensors[f"{which}_cache"]
            for b, used in enumerate(self.call.used):
                pages, slots = self._where(
                    b, np.arange(used, self._places.shape[1] * (self.call.page or self.call.keys))
                )
                cache.stored[pages, :, slots] = numbers.held(np.array(np.nan), cache.dtype)

    def _drawn(self, name: str, shape: tuple[int, ...]) -> Array | float:
        if name == "seqused_k":
            return np.array(self.call.used)
        if name == "block_table":
            return np.zeros(shape, np.int32)
        if name == "alibi_slopes":
            return 2.0 ** -np.arange(1, 1 + self.call.heads) / np.arange(1, 1 + self.call.batch)[:, None]
        if name.startswith("rotary"):
            angles = np.random.default_rng([2028, self.call.number]).random(shape) * 6.3
            return np.cos(angles) if name.endswith("cos") else np.sin(angles)
        if name.endswith("scale"):
            return 0.5 + self._draw.random(shape)
        return self._draw.standard_normal(shape)

    def values(self) -> dict[str, object]:
        """Of the parameters, besides tensors, by their names in flash.h."""
        return {"causal": int(self.call.causal), "softcap": self.call.softcap or None, "splits": self.call.splits}

    def judge(self, names: tuple[str, ...], is_clean: bool) -> Verdict:
        """As Problem's; the caches are looked at as well, whatever the names are."""
        del names
        verdict = Verdict()
        if not is_clean:
            verdict.faults.append("something was written beside the outputs")
        self._judge_caches(verdict)
        exact, low = self._solved("fp64"), self._solved(self.call.dtype)
        for name in ("out", "lse"):
            verdict.compare(name, self.tensors[name].values, exact[name], low[name])
        return verdict

    def _where(self, sequence: int, keys: Array) -> tuple[Array, Array]:
        size = self.call.page or self.call.keys
        return self._places[sequence, keys // size], keys % size

    def _appended(self, which: str, sequence: int, dtype: str) -> Array:
        """[heads_kv, new_rows, width], before it is held."""
        new = numbers.rounded(self.tensors[f"{which}_new"].values[sequence], dtype)
        if self.call.rotary and which == "k":
            first = self.call.used[sequence]
            new = self._turned(new, np.arange(first, first + self.call.new_rows), dtype)
        return new

    def _turned(self, x: Array, positions: Array, dtype: str) -> Array:
        cos, sin = (numbers.rounded(self.tensors[f"rotary_{name}"].values[positions], dtype) for name in ("cos", "sin"))
        return formula.rotate(x, cos, sin, False, dtype)

    def _judge_caches(self, verdict: Verdict) -> None:
        call = self.call
        for which in ("k", "v"):
            cache, expected = self.tensors[f"{which}_cache"], self.before[f"{which}_cache"]
            for b in range(call.batch if call.new_rows else 0):
                pages, slots = self._where(b, np.arange(call.used[b], call.used[b] + call.new_rows))
                exact, low = (self._appended(which, b, dtype) for dtype in ("fp64", call.dtype))
                if call.fp8:
                    scale = self.tensors[f"{which}_scale"].values[:, None, None]
                    exact, low = exact / scale, numbers.rounded(low / scale, "fp8e4m3")
                got = numbers.wide(cache.stored[pages, :, slots], cache.dtype).swapaxes(0, 1)
                if not call.fp8 and not (call.rotary and which == "k"):
                    if not np.array_equal(got, exact):
                        verdict.faults.append(f"{which}_cache: what was appended differs")
                else:
                    verdict.compare(f"{which}_cache", got, exact, low)
                expected[pages, :, slots] = cache.stored[pages, :, slots]
            if not np.array_equal(_bits(cache.stored), _bits(expected)):
                verdict.faults.append(f"{which}_cache: something was written beside what was appended")

    def _solved(self, dtype: str) -> dict[str, Array]:
        """out and lse of the caches as they are now."""
        call, found = self.call, {name: np.zeros(self.tensors[name].shape) for name in ("out", "lse")}
        for b in range(call.batch):
            q, total = self.tensors["q"].values[b], call.used[b] + call.new_rows
            if call.rotary:
                masked = np.arange(call.rows) if call.causal else np.zeros(call.rows, np.int64)
                q = self._turned(numbers.rounded(q, dtype), call.used[b] + masked, dtype)
            pages, slots = self._where(b, np.arange(total))
            k, v = (self._read(which, pages, slots) for which in ("k", "v"))
            slopes = None
            if call.alibi:
                own = self.tensors["alibi_slopes"].values[b][None, :, None, None]
                slopes = own * formula.distances(call.rows, total)
            hidden = formula.hidden_from(call.rows, total, (-1, 0 if call.causal else -1), True)
            sinks = self.tensors["sinks"].values if call.sinks else None
            part = formula.Part(
                q[None], k[None], v[None], call.width**-0.5, hidden, None, slopes, call.softcap, sinks
            )  # fmt: skip
            for name, values in formula.solve(part, dtype).items():
                found[name][b] = values[0]
        return found

    def _read(self, which: str, pages: Array, slots: Array) -> Array:
        """[heads_kv, keys, width], as what it stands for."""
        cache = self.tensors[f"{which}_cache"]
        values = numbers.wide(cache.stored[pages, :, slots], cache.dtype).swapaxes(0, 1)
        return values * self.tensors[f"{which}_scale"].values[:, None, None] if self.call.fp8 else values


def _bits(stored: Array) -> Array:
    """As integers, of which what is no number is equal to itself."""
    return np.ascontiguousarray(stored).view(f"u{stored.itemsize}")


_CALLS: tuple[Mapping[str, Any], ...] = (
    {"keys": 500, "used": (500, 0, 211), "splits": 4},
    {"keys": 500, "used": (490, 211), "splits": 4, "new_rows": 3, "rows": 3, "rotary": 16, "causal": True},
    {"rows": 70, "causal": True, "page": 64, "splits": 1},
    {"rows": 16, "new_rows": 1, "heads": 8, "heads_kv": 1, "page": 16},
    {"rows": 130, "causal": True, "page": 64, "splits": 1},
)
_EXTRAS: tuple[Mapping[str, Any], ...] = (
    {}, {"softcap": 20.0}, {"alibi": True}, {"sinks": True, "softcap": 20.0, "alibi": True},
)  # fmt: skip


def candidates(functional: str) -> Iterator[DecodeCall]:
    """Calls that may be of a functional, the likely ones first. Whether one is, only the release can say."""
    known = values_of(functional)
    width = int(known.get("head_dim", 64))
    widths = [{"width": width}, {"width": width - 8, "width_v": width}, {"width": width - 3, "width_v": width - 8}]
    calls = _CALLS
    if known.get("padded") == "true":
        widths.reverse()
    if width == 576:  # latent keys; turning columns of these would turn values too
        widths = [{"width": 576, "width_v": 512, "latent": True, "heads_kv": 1}]
        calls = tuple({**one, "rotary": 0, "new_rows": 0} for one in _CALLS)
    fp8s = (True, False) if "fp8" in functional or "e4m3" in functional else (False, True)
    dtypes = [known["dtype"]] if "dtype" in known else ["bf16", "fp16", "fp32"]
    for fp8, extra, layout, one, sizes, dtype in itertools.product(
        fp8s, _EXTRAS, ("contiguous", "odd rows"), calls, widths, dtypes
    ):
        if not (fp8 and dtype == "fp32"):
            yield DecodeCall(dtype=dtype, fp8=fp8, layout=layout, **{**one, **extra, **sizes})
