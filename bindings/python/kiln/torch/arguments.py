"""What a call's arguments are, looked at once the call has failed: a call that works costs one frame more."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch.compiler import is_compiling

from kiln import _arguments
from kiln.arrays import shown, shown_type
from kiln.errors import ArgumentError, KilnError

F = TypeVar("F", bound=Callable)

# What Python, PyTorch and kiln._core raise of a value of another kind than they take.
_MISFITS = (TypeError, AttributeError, RuntimeError, ValueError, KeyError, OverflowError)

_INTEGERS = frozenset({
    torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16, torch.int32, torch.int64,
})  # fmt: skip
# The arguments that hold places and lengths, of attention and decode, and of the functions of flash_attn.
_PLACES = _arguments.INT32 | {"cu_seqlens", "cache_seqlens", "cache_batch_idx", "cache_leftpad"}


def named(function: F) -> F:
    """Has a failed call of a function say which argument is not of its declared kind."""
    return done_by(function)(function)


def done_by(run: Callable, shortest: Callable[[Callable], Callable] | None = None) -> Callable[[F], F]:
    """Has another function do what is called, which gets the arguments that are given, and no defaults. The function
    itself has the signature and says what it means; a failed call says which argument is not of its declared kind.

    Args:
        shortest: makes of the function one that is tried first, except by tracers; None of it: `run` has to see to it.
    """

    def replace(function: F) -> F:
        first = None if shortest is None else shortest(function)

        @functools.wraps(function)
        def call(*args: object, **kwargs: object) -> object:
            try:
                if first is not None and not is_compiling() and (made := first(*args, **kwargs)) is not None:
                    return made
                return run(*args, **kwargs)
            except _MISFITS as error:
                if not is_compiling():
                    _check(error, function, args, kwargs)
                raise

        return cast(F, call)

    return replace


def defaults_of(function: Callable) -> dict[str, object]:
    """The defaults of a function's arguments by name."""
    return {name: p.default for name, p in inspect.signature(function).parameters.items() if p.default is not p.empty}


def as_of(other: Callable) -> Callable[[F], F]:
    """Gives a function that hands on the arguments of another the signature of that, and its own behind it."""

    def sign(function: F) -> F:
        of, own = inspect.signature(other), inspect.signature(function)
        added = [p for name, p in own.parameters.items() if name not in of.parameters and p.kind is not p.VAR_KEYWORD]
        signed: Any = function
        signed.__signature__ = of.replace(parameters=[*of.parameters.values(), *added],
                                          return_annotation=own.return_annotation)  # fmt: skip
        return function

    return sign


def _check(error: Exception, function: Callable, args: tuple, kwargs: dict[str, object]) -> None:
    """Beneath the `except` clause above: raises ArgumentError if an argument is of another kind than its annotation.

    What is refused with another class than ArgumentError is refused for what it is. An ArgumentError may be of a
    function beneath, whose arguments have other names.
    """
    if isinstance(error, KilnError) and type(error) is not ArgumentError:
        return
    signature = inspect.signature(function)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as misnamed:
        raise TypeError(f"{function.__name__}() {misnamed}") from None
    bound.apply_defaults()
    for name, parameter in signature.parameters.items():
        value, kind = bound.arguments[name], parameter.annotation
        holds, wanted = _KINDS[kind]
        if not holds(value):
            is_object = kind.startswith("Tensor") or isinstance(value, Tensor)
            raise ArgumentError(
                f"{name} must be {wanted}, and is {shown_type(value) if is_object else shown(value)}"
            ) from None
        if isinstance(value, Tensor) and (value.is_nested or value.layout != torch.strided):
            raise ArgumentError(f"{name} must be a dense tensor, neither sparse nor nested") from None
        if name in _PLACES and isinstance(value, Tensor) and value.dtype not in _INTEGERS:
            raise _not_integers(name, value) from None


def int32(name: str, tensor: Tensor) -> Tensor:
    """Places or lengths of a dtype other than int32, in int32.

    Raises:
        ArgumentError: they are not integers, and a cast would round them in silence.
    """
    if tensor.dtype not in _INTEGERS:
        raise _not_integers(name, tensor)
    return tensor.to(torch.int32)


def _not_integers(name: str, tensor: Tensor) -> ArgumentError:
    return ArgumentError(f"{name} must be of an integer dtype, int32 at best, and is of {tensor.dtype}")


def _is_tensor(value: object) -> bool:
    return isinstance(value, Tensor)


def _is_number(value: object) -> bool:
    return isinstance(value, (Real, torch.SymFloat, torch.SymInt)) and not _is_huge(value)


def _is_integer(value: object) -> bool:
    return isinstance(value, (Integral, torch.SymInt)) and not _is_huge(value)


def _is_huge(value: object) -> bool:
    """Whether it is an integer of more than 64 bits."""
    return isinstance(value, int) and not -(2**63) <= value < 2**63


def _is_flag(value: object) -> bool:
    # 0 and 1 have always done; NumPy's own class is called bool_ before its release 2.
    if isinstance(value, int):
        return value in (0, 1)
    return isinstance(value, torch.SymBool) or type(value).__name__ in ("bool", "bool_")


def _is_pair(value: Any) -> bool:
    try:
        left, right = value
    except (TypeError, ValueError):
        return False
    return _is_integer(left) and _is_integer(right)


def _or_none(holds: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or holds(value)


# By annotation: whether a value is of that kind, and the kind in words.
_KINDS: dict[str, tuple[Callable[[object], bool], str]] = {
    "Tensor": (_is_tensor, "a tensor"),
    "Tensor | None": (_or_none(_is_tensor), "a tensor or None"),
    "int": (_is_integer, "an integer"),
    "int | Tensor": (lambda value: _is_integer(value) or _is_tensor(value), "an integer or a tensor of one"),
    "int | Tensor | None": (
        _or_none(lambda value: _is_integer(value) or _is_tensor(value)), "an integer, a tensor or None"
    ),
    "float": (_is_number, "a number"),
    "float | None": (_or_none(_is_number), "a number or None"),
    "bool": (_is_flag, "True or False"),
    "str | None": (_or_none(lambda value: isinstance(value, str)), "a text or None"),
    "tuple[int, int]": (_is_pair, "two integers, (left, right)"),
    "torch.dtype": (lambda value: isinstance(value, torch.dtype), "a torch.dtype"),
}  # fmt: skip
