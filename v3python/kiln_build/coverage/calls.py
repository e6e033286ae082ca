"""The calls of the attention family that a kind of attention makes: operations, and their arguments in the recipe's
order. Tensors have addresses that are apart, and lie as PyTorch's allocator would have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kiln_build.coverage.attention import DTYPES as PLAIN
from kiln_build.coverage.attention import Attention
from kiln_recipe.call.evaluate import Given, Tensor
from kiln_recipe.dtypes import DTYPES
from kiln_recipe.model import FAMILY, Operation, Recipe

_BATCH = 2  # sequences of an example call
_APART = 36  # bits between addresses


@dataclass(frozen=True)
class Example:
    """A call. `given` are the operation's arguments in its order; `note` says why it is this operation's, or ""."""

    operation: Operation
    given: tuple[Given, ...]
    note: str = ""

    @property
    def name(self) -> str:
        return f"{FAMILY}.{self.operation.name}"


class _Tensors:
    def __init__(self) -> None:
        self._count = 0

    def __call__(self, dtype: str, *sizes: int, broadcast: int = 0) -> Tensor:
        """A contiguous tensor; the strides of its first `broadcast` dimensions are 0."""
        self._count += 1
        strides: list[int] = []
        step = 1
        for size in reversed(sizes):
            strides.insert(0, step)
            step *= size
        strides[:broadcast] = [0] * broadcast
        return Tensor(self._count << _APART, DTYPES[dtype], sizes, tuple(strides))


def examples(recipe: Recipe, kind: Attention, use: str) -> tuple[Example, ...]:
    """The calls of a use, all of which must be served."""
    if use == "decode":
        if kind.bias:
            return (_forward(recipe, kind, 1, False, "attn_decode takes no bias"),)
        return (_decode(recipe, kind),)
    if use == "prefill":
        return (_forward(recipe, kind, kind.rows, False),)
    return (_forward(recipe, kind, kind.rows, True), _backward(recipe, kind))


def _forward(recipe: Recipe, kind: Attention, rows: int, training: bool, note: str = "") -> Example:
    made = _Tensors()
    tensors = _shared(made, kind, rows) | {"out": made(kind.dtype, _BATCH, kind.heads, rows, kind.head_dim_v)}
    if training:
        tensors["lse"] = made("fp32", _BATCH, kind.heads, rows)
    return _example(recipe, "attn_fwd", tensors, _scalars(kind, training, rows), note)


def _backward(recipe: Recipe, kind: Attention) -> Example:
    made, rows = _Tensors(), kind.rows
    tensors = _shared(made, kind, rows)
    for name in ("out", "dout"):
        tensors[name] = made(kind.dtype, _BATCH, kind.heads, rows, kind.head_dim_v)
    tensors["lse"] = made("fp32", _BATCH, kind.heads, rows)
    for name in ("q", "k", "v"):
        tensors[f"d{name}"] = made(kind.dtype, *tensors[name].sizes)
    if kind.bias:
        tensors["dbias"] = made(kind.dtype, *tensors["bias"].sizes, broadcast=1)
    if kind.sinks:
        tensors["dsinks"] = made("fp32", kind.heads)
    return _example(recipe, "attn_bwd", tensors, _scalars(kind, True, rows))


def _decode(recipe: Recipe, kind: Attention) -> Example:
    made = _Tensors()
    cache = kind.cache_dtype or kind.dtype
    keys = made(cache, _BATCH, kind.heads_kv, kind.keys, kind.head_dim)
    values = made(cache, _BATCH, kind.heads_kv, kind.keys, kind.head_dim_v)
    if kind.is_latent:
        values = Tensor(keys.data, keys.dtype, values.sizes, keys.strides)
    tensors = {
        "q": made(kind.dtype, _BATCH, kind.heads, 1, kind.head_dim),
        "k_cache": keys,
        "v_cache": values,
        "out": made(kind.dtype, _BATCH, kind.heads, 1, kind.head_dim_v),
        "seqused_k": made("int32", _BATCH),
    }
    if not kind.cross:
        tensors["k_new"] = made(kind.dtype, _BATCH, kind.heads_kv, 1, kind.head_dim)
        tensors["v_new"] = made(kind.dtype, _BATCH, kind.heads_kv, 1, kind.head_dim_v)
    if cache not in PLAIN:
        tensors["k_scale"], tensors["v_scale"] = made("fp32", kind.heads_kv), made("fp32", kind.heads_kv)
    return _example(recipe, "attn_decode", tensors | _terms(made, kind), _scalars(kind, False, 1))


def _shared(made: _Tensors, kind: Attention, rows: int) -> dict[str, Tensor]:
    tensors = {
        "q": made(kind.dtype, _BATCH, kind.heads, rows, kind.head_dim),
        "k": made(kind.dtype, _BATCH, kind.heads_kv, kind.keys, kind.head_dim),
        "v": made(kind.dtype, _BATCH, kind.heads_kv, kind.keys, kind.head_dim_v),
    }
    if kind.bias:
        tensors["bias"] = made(kind.dtype, _BATCH, kind.heads, rows, kind.keys, broadcast=1)
    return tensors | _terms(made, kind)


def _terms(made: _Tensors, kind: Attention) -> dict[str, Tensor]:
    terms = {"sinks": made("fp32", kind.heads)} if kind.sinks else {}
    return terms | ({"alibi_slopes": made("fp32", _BATCH, kind.heads, broadcast=1)} if kind.alibi else {})


def _scalars(kind: Attention, training: bool, rows: int) -> dict[str, int | float]:
    before = kind.window - 1 if kind.window else -1
    dropout = kind.dropout if training else 0.0
    return {
        "window_left": before,
        "window_right": 0 if kind.causal else before,
        "bottom_right": int(kind.causal and rows != kind.keys),
        "sm_scale": kind.head_dim**-0.5,
        "is_capped": int(kind.softcap > 0),
        "softcap": kind.softcap or 1.0,
        "threshold": int(dropout * 2**32),
        "keep_scale": 1 / (1 - dropout),
    }


def _example(
    recipe: Recipe, name: str, tensors: Mapping[str, Tensor], scalars: Mapping[str, int | float], note: str = ""
) -> Example:
    operation = next(one for one in recipe.operations if one.name == name)
    zeros = {"int": 0, "float": 0.0}
    given: Sequence[Given] = [
        tensors.get(argument.name) or scalars.get(argument.name, zeros.get(argument.kind))
        for argument in operation.arguments
    ]
    return Example(operation, tuple(given), note)
