"""torch.ops.kiln: what PyTorch's dispatcher, autograd, autocast and torch.compile see of Kiln.

Each operator has kernels, registered below: for tensors on a device, which run the engine; for fake tensors, which
tell shapes; beneath autocast; and for autograd (autograd.py). They are opaque to whatever traces them.
`torch.library.Library` and no `custom_op`, whose wrappers cost ten times what a call of these does.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from typing import Any, Protocol

import torch
from torch import Tensor

from kiln import _arguments, layout
from kiln.errors import UnsupportedError
from kiln.torch import native


class Engine(Protocol):
    """What runs the operators: kiln.torch.native, or an object that kiln.jit gives. See native.py for the functions."""

    name: str
    devices: frozenset[str]

    def attn_fwd(self, *args, **kwargs) -> tuple[Tensor, Tensor | None]: ...
    def attn_bwd(self, *args, **kwargs) -> tuple[Tensor | None, ...]: ...
    def attn_decode(self, *args, **kwargs) -> Tensor | None: ...
    def run(self, operation: str, *args, **kwargs) -> Any: ...


_engine: Engine | ModuleType = native

state = uuid.uuid4().hex
"""Another text in each process and for each engine: what torch.compile decides by it is never taken from a cache."""


def engine() -> Engine | ModuleType:
    """What runs the operators now."""
    return _engine


def set_engine(new: Engine | None) -> Engine | ModuleType | None:
    """Has the operators run by `new` from now on, in the whole process.

    Args:
        new: None for what was compiled ahead.

    Returns:
        What ran them, to be given here again; None for what was compiled ahead.
    """
    global _engine, state
    before, _engine = _engine, native if new is None else new
    native.shortcut.is_open = _engine is native
    state = uuid.uuid4().hex
    return None if before is native else before


# ---- schemas --------------------------------------------------------------------------------------------------------

# Which result has which strides follows from those of the inputs, so a compiler must hand them on as they were.
_TAGS = (torch.Tag.pt2_compliant_tag, getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order))

library = torch.library.Library("kiln", "DEF")
for _name, _schema in _arguments.SCHEMAS.items():
    library.define(_name + _schema, tags=_TAGS)

attn_fwd = torch.ops.kiln.attn_fwd.default
attn_bwd = torch.ops.kiln.attn_bwd.default
attn_decode = torch.ops.kiln.attn_decode.default
SIMPLE: tuple[str, ...] = tuple(_arguments.RESULTS)
"""Operators of which the table of arguments tells all; `run` of an engine runs them."""

# Of all arguments of attn_fwd; the dispatcher leaves out those at the end.
FORWARD_NAMES = _arguments.ARGUMENTS["attn_fwd"]
FORWARD_DEFAULTS = _arguments.attn_fwd(None, None, None)
FORWARD_ARGUMENTS = len(FORWARD_NAMES)

# ---- tensors on a device --------------------------------------------------------------------------------------------

# Tensors of the CPU too: the interpreter takes them, and other engines refuse them in their words.
for _key in ("CUDA", "CPU"):
    library.impl("attn_fwd", native.shortcut.attend_or(lambda *args: _engine.attn_fwd(*args)), _key)
    library.impl("attn_bwd", lambda *args: _engine.attn_bwd(*args), _key)
    library.impl("attn_decode", lambda *args: _engine.attn_decode(*args), _key)
    for _name in SIMPLE:
        library.impl(_name, lambda *args, name=_name: _engine.run(name, *args), _key)


# ---- fake tensors ---------------------------------------------------------------------------------------------------


def _fake_fwd(given: dict) -> tuple[Tensor, Tensor | None]:
    q, rows_first = given["q"], given["rows_first"]
    lse = layout.lse_of(q, rows_first, torch.float32) if given["return_lse"] else None
    return layout.like(q, given["v"].shape[-1], rows_first), lse


def _fake_bwd(given: dict) -> tuple[Tensor | None, ...]:
    gradients = (layout.like(given[name], given[name].shape[-1], given["rows_first"]) for name in "qkv")
    bias = given["bias"] if given["need_dbias"] else None
    sinks = given["sinks"] if given["need_dsinks"] else None
    return (
        *gradients,
        None if bias is None else bias.new_empty(bias.shape),
        None if sinks is None else sinks.new_empty(sinks.shape, dtype=torch.float32),
    )


def _fake_decode(given: dict) -> Tensor | None:
    return layout.lse_of(given["q"], given["rows_first"], torch.float32) if given["return_lse"] else None


def _fake_simple(name: str, given: dict) -> Tensor | tuple[Tensor, ...]:
    return layout.returned(layout.results_of(torch, name, given))


def _register_fake(name: str, shapes: Callable[[dict], object]) -> None:
    """Has `shapes` tell an operator's results of its arguments by name."""

    def kernel(*args, **kwargs):
        return shapes(_arguments.by_name(name, args, kwargs))

    torch.library.register_fake(f"kiln::{name}", kernel, lib=library)


for _name, _shapes in (("attn_fwd", _fake_fwd), ("attn_bwd", _fake_bwd), ("attn_decode", _fake_decode)):
    _register_fake(_name, _shapes)
for _name in SIMPLE:
    _register_fake(_name, partial(_fake_simple, _name))


# ---- autocast -------------------------------------------------------------------------------------------------------


def casts(tensor: Tensor) -> bool:
    """Whether autocast is on for a tensor's device."""
    device = tensor.device.type
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def cast(value: object, device: str) -> object:
    """What autocast on a device makes of an argument: a tensor there of a floating dtype becomes one of its own."""
    if not isinstance(value, Tensor) or value.device.type != device:
        return value
    if not value.is_floating_point() or value.dtype == torch.float64:
        return value
    return value.to(torch.get_autocast_dtype(device))


def _autocast(op: Callable, device: str, places: Sequence[int]) -> Callable:
    """A kernel that casts the arguments of these places to autocast's dtype, as PyTorch does for its own attention."""

    def kernel(*args, **kwargs):
        args = tuple(cast(arg, device) if place in places else arg for place, arg in enumerate(args))
        torch.set_autocast_enabled(device, False)
        try:
            return op(*args, **kwargs)
        finally:
            torch.set_autocast_enabled(device, True)

    return kernel


_CASTS = [FORWARD_NAMES.index(name) for name in ("q", "k", "v", "bias")]
for _key, _device in (("AutocastCUDA", "cuda"), ("AutocastCPU", "cpu")):
    library.impl("attn_fwd", _autocast(attn_fwd, _device, _CASTS), _key)


# ---- vmap -----------------------------------------------------------------------------------------------------------


def _refuse_vmap(*_args, **_kwargs):
    raise UnsupportedError("Kiln's attention does not support torch.vmap; make the mapped dimension part of the batch")


for _name in _arguments.SCHEMAS:
    library.impl(_name, _refuse_vmap, "FuncTorchBatched")
