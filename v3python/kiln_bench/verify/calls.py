"""Calls of forward and backward: which may reach an image, their tensors, and what is right of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from kiln_bench.verify import formula, numbers
from kiln_bench.verify.arena import Arena, Tensor, bytes_of
from kiln_bench.verify.judge import Verdict
from kiln_recipe.selection import values_of

Array = np.ndarray[Any, Any]
SEED, OFFSET = 0x123456789ABCDEF, 0x300000007  # of dropout
SINKS = 16  # heads: dsinks is one number for each, and of few the largest error is a matter of luck
_OUTPUTS = ("out", "dq", "dk", "dv", "dbias", "dsinks")


@dataclass(frozen=True)
class Call:
    """What is asked, and the shapes.

    Attributes:
        lengths_q, lengths_k: of sequences that lie one after another; empty: `batch` of `rows` and `keys`.
        width_v: 0 for `width`.
        alibi, bias: whether there is one.
        layout: of arena.py, of all tensors with head dimensions.
        number: other values for each.
    """

    dtype: str = "bf16"
    batch: int = 1
    heads: int = 2
    heads_kv: int = 2
    rows: int = 70
    keys: int = 100
    width: int = 64
    width_v: int = 0
    lengths_q: tuple[int, ...] = ()
    lengths_k: tuple[int, ...] = ()
    causal: bool = False
    bottom_right: bool = False
    left: int = -1
    right: int = -1
    bias: bool = False
    alibi: bool = False
    softcap: float = 0.0
    dropout: float = 0.0
    sinks: bool = False
    layout: str = "contiguous"
    backward: bool = False
    deterministic: bool = False
    number: int = 0

    def __str__(self) -> str:
        """All that differs from the defaults."""
        changed = [(f.name, getattr(self, f.name)) for f in fields(self) if getattr(self, f.name) != f.default]
        return ", ".join(f"{name}={value}" for name, value in changed)

    def redrawn(self, number: int) -> Call:
        return replace(self, number=self.number + number)

    def parts(self) -> Iterator[tuple[int, slice, slice, slice]]:
        """Of each sequence, or of all at once where they have one length: its number, or 0, batches, rows and keys."""
        if not self.lengths_q:
            yield 0, slice(0, self.batch), slice(0, self.rows), slice(0, self.keys)
        row = key = 0
        for number, (rows, keys) in enumerate(zip(self.lengths_q, self.lengths_k)):
            yield number, slice(0, 1), slice(row, row + rows), slice(key, key + keys)
            row, key = row + rows, key + keys


def shapes_of(call: Call) -> dict[str, tuple[tuple[int, ...], str]]:
    """By name, what each tensor's shape and dtype is."""
    batch = 1 if call.lengths_q else call.batch
    rows, keys = sum(call.lengths_q) or call.rows, sum(call.lengths_k) or call.keys
    of_v = call.width_v or call.width
    q, k = (batch, call.heads, rows, call.width), (batch, call.heads_kv, keys, call.width)
    found = {"q": (q, call.dtype), "k": (k, call.dtype), "v": ((*k[:3], of_v), call.dtype),
             "out": ((*q[:3], of_v), call.dtype), "lse": (q[:3], "fp32")}  # fmt: skip
    if call.bias:
        found["bias"] = ((batch, call.heads, rows, keys), call.dtype)
    if call.alibi:
        found["alibi_slopes"] = ((len(call.lengths_q) or batch, call.heads), "fp32")
    if call.sinks:
        found["sinks"] = ((call.heads,), "fp32")
    if call.lengths_q:
        found |= {name: ((len(call.lengths_q) + 1,), "int32") for name in ("cu_seqlens_q", "cu_seqlens_k")}
    if call.backward:
        found |= {"dout": found["out"], "dq": found["q"], "dk": found["k"], "dv": found["v"]}
        found |= {f"d{name}": found[name] for name in ("bias", "sinks") if name in found}
    return found


class Problem:
    """A call's tensors in an arena, and what is right of it. The arena has one problem at a time."""

    def __init__(self, call: Call, arena: Arena) -> None:
        self.call = call
        shapes = shapes_of(call)
        arena.lay_out(sum(bytes_of(*shape) for shape in shapes.values()))
        draw = np.random.default_rng([2026, call.number])
        self.tensors: dict[str, Tensor] = {}
        for name, (shape, dtype) in shapes.items():
            layout = call.layout if len(shape) == 4 else "contiguous"
            written = name in (*_OUTPUTS, "lse")
            self.tensors[name] = tensor = arena.tensor(shape, dtype, layout, written)
            if name.startswith("cu_"):
                lengths = call.lengths_q if name.endswith("q") else call.lengths_k
                tensor.put(np.cumsum([0, *lengths]))
            elif name == "alibi_slopes":
                tensor.put(2.0 ** -np.arange(1, 1 + call.heads)[None, :])
            elif not written:
                tensor.put(draw.standard_normal(shape) * (2 if name == "sinks" else 1))

    def __getitem__(self, name: str) -> Array:
        return self.tensors[name].values

    def values(self) -> dict[str, object]:
        """Of the parameters, besides tensors, by their names in flash.h; those of backward too."""
        call = self.call
        found: dict[str, object] = {
            "causal": int(call.causal), "bottom_right": int(call.bottom_right), "window_left": call.left,
            "window_right": call.right, "softcap": call.softcap or None, "dropout": call.dropout or None,
        }  # fmt: skip
        if call.lengths_q:
            found |= {"max_seqlen_q": max(call.lengths_q), "max_seqlen_k": max(call.lengths_k)}
        if call.dropout:
            found |= {"seed_value": SEED, "offset_value": OFFSET}
        return found

    @cached_property
    def _answers(self) -> tuple[dict[str, Array], dict[str, Array]]:
        """In float64 and in the call's precision, laid out as the tensors."""
        return self._solved("fp64"), self._solved(self.call.dtype)

    def _solved(self, dtype: str) -> dict[str, Array]:
        call = self.call
        found = {name: np.zeros(self.tensors[name].shape) for name in (*_OUTPUTS, "lse") if name in self.tensors}
        for number, batch, rows, keys in call.parts():
            solved = formula.solve(self._part(number, batch, rows, keys), dtype)
            for name, values in solved.items():
                if name == "dsinks":
                    found[name] += values
                else:
                    of = keys if name in ("dk", "dv") else rows
                    found[name][batch, :, of] = values
        return found

    def _part(self, number: int, batch: slice, rows: slice, keys: slice) -> formula.Part:
        call, count = self.call, (rows.stop - rows.start, keys.stop - keys.start)
        q, k, v = self["q"][batch, :, rows], self["k"][batch, :, keys], self["v"][batch, :, keys]
        slopes = keep = None
        if call.alibi:
            own = self["alibi_slopes"][number : number + 1] if call.lengths_q else self["alibi_slopes"]
            slopes = own[:, :, None, None] * formula.distances(*count)
        if call.dropout:
            shape = (number + 1 if call.lengths_q else call.batch, call.heads, *count)
            keep = numbers.kept(SEED, OFFSET, call.dropout, shape)
            keep = keep[number:] if call.lengths_q else keep
        return formula.Part(
            q, k, v, call.width**-0.5,
            formula.hidden_from(*count, (call.left, 0 if call.causal else call.right), call.bottom_right),
            self["bias"] if call.bias else None, slopes, call.softcap, self["sinks"] if call.sinks else None, keep,
            float(np.float32(call.dropout)), self["dout"][batch, :, rows] if call.backward else None,
        )  # fmt: skip

    def judge(self, names: tuple[str, ...], is_clean: bool) -> Verdict:
        """Of what was written.

        Args:
            names: of the outputs to look at.
            is_clean: whether nothing else was written.
        """
        verdict = Verdict()
        if not is_clean:
            verdict.faults.append("something was written beside the outputs")
        exact, low = self._answers
        for name in names:
            if name in self.tensors:
                verdict.compare(name, self[name], exact[name], low[name], self._noise(name))
        return verdict

    def _noise(self, name: str) -> float:
        """The size of what cancels in a gradient: products of dout and v, for dq and dk times the other's elements."""
        if name not in ("dq", "dk", "dbias"):
            return 0.0
        products = np.linalg.norm(self["dout"], axis=3).max() * np.linalg.norm(self["v"], axis=3).max()
        if name == "dbias":
            return float(products)
        call = self.call
        sums = math.sqrt(call.rows * call.heads / call.heads_kv) if name == "dk" else 1.0
        return float(products * np.abs(self["k" if name == "dq" else "q"]).max() * call.width**-0.5 * sums)


_EXTRAS: Mapping[str, Mapping[str, Any]] = {
    "none": {}, "bias": {"bias": True, "alibi": True}, "softcap": {"softcap": 5.0}, "dropout": {"dropout": 0.3},
    "any": {"bias": True, "softcap": 20.0, "dropout": 0.2, "sinks": True, "heads": SINKS, "heads_kv": SINKS},
}  # fmt: skip
_SHAPES: tuple[Mapping[str, Any], ...] = (
    {"rows": 70, "keys": 100, "causal": True, "bottom_right": True},
    {"rows": 80, "keys": 45, "heads": 4, "left": 30, "right": 10, "bottom_right": True},
    {"rows": 1, "keys": 300, "heads": 8, "heads_kv": 8},
    {"lengths_q": (70, 0, 33), "lengths_k": (70, 20, 33), "causal": True},
    # Some images want more: of many rows, of many keys, of many programs.
    {"rows": 130, "keys": 190, "causal": True},
    {"rows": 600, "keys": 600, "heads": 4, "heads_kv": 4, "causal": True, "batch": 2},
    {"rows": 2500, "keys": 70, "heads": 1, "heads_kv": 1},
    {"rows": 70, "keys": 2500, "heads": 1, "heads_kv": 1},
)
_LAYOUTS = ("contiguous", "rows", "odd rows", "offset")


def candidates(operation: str, functional: str, kernel: str) -> Iterator[Call]:
    """Calls of "attn_fwd" or "attn_bwd" that may be of a functional, the likely ones first. Whether one is, only the
    release can say."""
    known = values_of(functional)
    width = int(known.get("head_dim", 64))
    widths = [{"width": width}, {"width": width - 8, "width_v": width}, {"width": width - 3, "width_v": width - 8}]
    if known.get("padded") == "true":
        widths.reverse()
    if kernel.endswith("hopper_narrow"):
        widths = [{"width": width, "width_v": 128}, {"width": width - 8, "width_v": 72}]
    likely = "any" if "sink" in kernel else "bias" if "bias" in kernel else known.get("extras")
    extras = sorted(_EXTRAS, key=lambda name: name != likely)
    dtypes = [known["dtype"]] if "dtype" in known else ["bf16", "fp16", "fp32"]
    for extra, shape, layout, sizes, dtype in itertools.product(extras, _SHAPES, _LAYOUTS, widths, dtypes):
        if "lengths_q" in shape and "bias" in _EXTRAS[extra]:
            continue  # of rows and keys that do not belong together nothing is said
        yield Call(
            dtype=dtype, layout=layout, backward=operation == "attn_bwd",
            deterministic=known.get("ordered") == "true", **{**sizes, **shape, **_EXTRAS[extra]},
        )  # fmt: skip
