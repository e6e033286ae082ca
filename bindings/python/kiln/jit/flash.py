"""The attention family's typed layer on its recipe: what kiln.torch's operators call, run by kiln.jit.

Parameters become the recipe's arguments here as csrc/flash does it for the C interface, by the same table, and outputs
are allocated as kiln.torch.native does it. Shapes: torch tensors [batch, heads, rows, d], with rows_first [batch, rows,
heads, d]; packed ones without the batch, or with a batch of 1.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from copy import copy
from functools import partial
from typing import Any

import torch

from kiln import _arguments, layout
from kiln.jit import tensors
from kiln.jit.errors import ArgumentError
from kiln.jit.recipes import Operation, Recipe
from kiln_recipe.call.dispatch import Chosen
from kiln_recipe.call.evaluate import Tensor as Described


class Engine:
    """An engine for kiln.torch.operators.set_engine().

    Args:
        recipe: of the attention family, or of one that has its operations with their arguments.

    Raises:
        NotFoundError: the recipe lacks one of the operations.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self._operations: Mapping[str, Operation | _Explained] = {
            name: recipe.operation(name) for name in _arguments.ARGUMENTS
        }

    @property
    def name(self) -> str:
        """What explanations call it."""
        return "interpreter" if self.recipe.interpret else "jit"

    @property
    def devices(self) -> frozenset[str]:
        """The types of devices whose tensors it takes."""
        return frozenset({"cpu" if self.recipe.interpret else "cuda"})

    def attn_fwd(self, *args, for_backward=False, **named):
        """out, and the log-sum-exp of each row (fp32) if return_lse or for_backward, else None.

        Args:
            args, named: those of torch.ops.kiln.attn_fwd.
            for_backward: refuse what the backward cannot do.

        Raises:
            kiln.KilnError: as kiln.torch's own engine, with the same sentences.
        """
        given = _arguments.by_name("attn_fwd", args, named)
        q, rows_first = given["q"], given["rows_first"]
        heads_first = {name: _heads_first(given[name], rows_first) for name in ("q", "k", "v")}
        shared = _fields("attn_fwd", given, heads_first)
        out = layout.like(q, given["v"].shape[-1], rows_first, _is_loose(given, "q"))
        lse = layout.lse_of(q, rows_first, torch.float32) if given["return_lse"] or for_backward else None
        results = {"out": _heads_first(out, rows_first, written=True), "lse": _with_batch(lse)}
        if for_backward:
            self._check_backward({**_fields("attn_bwd", given, heads_first), **results}, heads_first)
        self._run("attn_fwd", {**shared, **results})
        return out, lse

    def attn_bwd(self, *args, **named):
        """dq, dk, dv, and dbias and dsinks (fp32) where they are needed, else None.

        Args:
            args, named: those of torch.ops.kiln.attn_bwd.
        """
        given = _arguments.by_name("attn_bwd", args, named)
        bias, sinks, rows_first = given["bias"], given["sinks"], given["rows_first"]
        heads_first = {name: _heads_first(given[name], rows_first) for name in ("dout", "q", "k", "v", "out")}
        fields = _fields("attn_bwd", given, {**heads_first, "lse": _with_batch(given["lse"])})
        grads = {
            f"d{name}": layout.like(given[name], given[name].shape[-1], rows_first, _is_loose(given, side))
            for name, side in (("q", "q"), ("k", "k"), ("v", "k"))
        }
        dbias = None
        if given["need_dbias"] and bias is not None:
            if bias.shape[2] != fields["bias"].shape[2]:
                raise ArgumentError(
                    "the gradient of a bias that all rows share is not available: expand it over rows first"
                )
            # What no row or key of a sequence leads to is not written.
            dbias = torch.zeros_like(bias, memory_format=torch.contiguous_format)
            fields["dbias"] = dbias.expand(*fields["bias"].shape[:2], -1, -1)
        dsinks = torch.empty_like(sinks, dtype=torch.float32) if given["need_dsinks"] and sinks is not None else None
        views = {name: _heads_first(grad, rows_first, written=True) for name, grad in grads.items()}
        self._run("attn_bwd", {**fields, **views, "dsinks": dsinks})
        return *grads.values(), dbias, dsinks

    def attn_decode(self, *args, **named):
        """Writes `out` and, where there are new keys, the caches; the log-sum-exp (fp32) if return_lse, else None.

        Args:
            args, named: those of torch.ops.kiln.attn_decode.
        """
        given = _arguments.by_name("attn_decode", args, named)
        q, rows_first = given["q"], given["rows_first"]
        written = ("k_cache", "v_cache", "out")  # no copy can stand for these
        rows = {name: given[name] for name in ("q", "k_new", "v_new", *written) if given[name] is not None}
        heads_first = {name: _heads_first(tensor, rows_first, name in written) for name, tensor in rows.items()}
        fields = _fields("attn_decode", given, heads_first)
        lse = layout.lse_of(q, rows_first, torch.float32) if given["return_lse"] else None
        self._run("attn_decode", {**fields, "lse": _with_batch(lse)})
        return lse

    def run(self, operation: str, *args: object, **named: object) -> Any:
        """Any other operation, with the arguments of the operator of torch.ops.kiln that has its name; the table of
        arguments tells its results."""
        given = _arguments.by_name(operation, args, named)
        results = layout.results_of(torch, operation, given)
        self._run(operation, {**_fields(operation, given, {}), **results})
        return layout.returned(results)

    def explain(self, function: str, *values: object, **named: object) -> tuple[Chosen, ...]:
        """The kernels that a call of one of the functions above would run, in their order; nothing runs.

            engine.explain("attn_fwd", q, k, v, causal=True)

        Args:
            function: its name, or that of an operation that run() takes; what follows is given to it.
        """
        found: list[Chosen] = []
        other = copy(self)
        other._operations = {name: _Explained(operation, found) for name, operation in self._operations.items()}
        call = partial(other.run, function) if function in _arguments.RESULTS else getattr(other, function)
        call(*values, **named)
        return tuple(found)

    def _run(self, operation: str, fields: Mapping[str, object]) -> None:
        """Runs an operation of the recipe; what its arguments are follows from the structure's fields."""
        self._operations[operation](**self._arguments_of(operation, fields))

    def _arguments_of(self, operation: str, fields: Mapping[str, object]) -> dict[str, object]:
        formulas, found = _arguments.RECIPE, {}
        for name in self.recipe.operation(operation).arguments:
            value = formulas[name](fields) if name in formulas else fields[name]
            found[name] = int(value) if isinstance(value, bool) else value
        return found

    def _check_backward(self, fields: dict[str, object], heads_first: Mapping[str, torch.Tensor]) -> None:
        """Raises what the backward of a forward call would raise, before anything runs."""

        def dense(tensor: torch.Tensor) -> Described:
            given, strides = tensors.describe("flash.attn_bwd", "q", tensor), [1]
            for size in reversed(tensor.shape[1:]):
                strides.insert(0, strides[0] * max(size, 1))
            return Described(given.data, given.dtype, given.sizes, tuple(strides))

        fields |= {f"d{name}": dense(heads_first[name]) for name in "qkv"}
        fields |= {"dout": dense(fields["out"]), "dbias": fields["bias"], "dsinks": fields["sinks"]}
        self._operations["attn_bwd"].explain(**self._arguments_of("attn_bwd", fields))


class _Explained:
    """An operation whose calls tell what they would run."""

    def __init__(self, operation: Operation | _Explained, found: list[Chosen]) -> None:
        self.explain: Callable[..., tuple[Chosen, ...]] = operation.explain
        self.found = found

    def __call__(self, **arguments: object) -> None:
        self.found += self.explain(**arguments)


def _fields(operation: str, given: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """The fields of an operation's structure, as bindings/torch fills it, by an operator's arguments.

    Args:
        tensors: fields that are known already.
    """
    named = {field: given[name] for name, field in _arguments.FIELDS[operation].items() if name in given}
    fields = {**_arguments.DEFAULTS[operation], **named, **tensors}
    for field, least, most, must in _arguments.LIMITS:
        if field in fields:
            fields[field] = within(fields[field], least, most, must)
    for name, parts in _arguments.PARTS.items():
        if (pair := given.get(name)) is not None:
            fields.update(zip(parts, _split(name, pair)))
    q: Any = fields.get("q")
    sequences = given.get("cu_seqlens_q")
    batch: Any = sequences.shape[0] - 1 if sequences is not None else None if q is None else q.shape[0]
    slopes, bias = fields.get("alibi_slopes"), fields.get("bias")
    if slopes is not None and slopes.dim() == 1:
        fields["alibi_slopes"] = slopes.expand(batch, -1)
    if bias is not None:
        fields["bias"] = _broadcast(bias, (batch, *q.shape[1:3]))
    return fields


def _is_loose(given: Mapping[str, Any], side: str) -> bool:
    """Whether there may be rows ("q") or keys ("k") that belong to no sequence, and that no kernel writes."""
    return given[f"cu_seqlens_{side}"] is not None or given[f"seqused_{side}"] is not None


def within(value: float, least: float | None, most: float | None, must: str) -> float:
    """The number as fp32, if it is within limits.

    Raises:
        ArgumentError: it is not, or not finite.
    """
    number = _kept(value)
    if (
        not math.isfinite(number)
        or (least is not None and number < least)
        or (most is not None and number > _fp32(most))
    ):
        raise ArgumentError(f"flash: {must}")
    return number


def _fp32(value: float) -> float:
    """The nearest fp32; what is beyond all of them is infinite."""
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


def _kept(value: float) -> float:
    """As fp32, in which what is not 0 stays so: 0 means something else."""
    number = _fp32(value)
    return number if number or not value else math.copysign(2.0**-126, value)


def _split(name: str, pair: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Two integers that lie one behind the other: a seed and an offset."""
    if pair.dtype != torch.int64 or pair.shape != (2,) or pair.stride(0) != 1:
        raise ArgumentError(f"{name} must be a contiguous tensor of two int64: seed and offset")
    return pair[0], pair[1]


def _broadcast(bias: torch.Tensor, wanted: tuple[int, ...]) -> torch.Tensor:
    """A bias of which batch, heads and rows may be 1 for all, expanded over these."""
    if bias.dim() != 4:
        raise ArgumentError(
            "bias must have the shape [batch, heads, rows, keys], of which batch, heads and rows may be 1"
        )
    bias = _fitting(bias)
    return bias.expand(*(want if size == 1 else size for size, want in zip(bias.shape, wanted)), -1)


def _heads_first(tensor: torch.Tensor, rows_first: bool, written: bool = False) -> torch.Tensor:
    """[batch, heads, rows, d]: a view, unless its last dimension has a stride and it is not `written`. What has another
    rank than 3 or 4 stays as it is: the recipe refuses it."""
    tensor = tensor if written else _fitting(tensor)
    if tensor.dim() == 3:
        tensor = tensor[None]
    return tensor.transpose(1, 2) if rows_first and tensor.dim() == 4 else tensor


def _fitting(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if layout.fits(tensor) else layout.fitted(tensor)


def _with_batch(lse: torch.Tensor | None) -> torch.Tensor | None:
    """[batch, heads, rows]."""
    return lse[None] if lse is not None and lse.dim() == 2 else lse
