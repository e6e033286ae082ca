"""Device functions of flash's kernels as functions of numpy, one program at a time and without Triton: what they work
out in whole numbers, such as which tile comes next. Copies and barriers are a test's own.

Numbers are 32 bits wide and overflow as on a GPU, and division rounds towards 0 as there.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

KERNELS = Path(__file__).resolve().parents[1] / "tritonsrc" / "flash"


class Nothing:
    """What programs here do not need: layouts, barriers, shared memory, and modules of such."""

    def __init__(self, **known: Any) -> None:
        self.__dict__.update(known)

    def __getattr__(self, name: str) -> Nothing:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing()

    def __call__(self, *_: Any, **__: Any) -> Nothing:
        return self

    def __bool__(self) -> bool:
        raise TypeError("a kernel decides by what nothing stands for here; add it to plain_gluon.py")


class Tensor(np.ndarray):
    """A tensor of any shape, numbers included."""

    def to(self, dtype: Any) -> Tensor:
        return self.astype(dtype)

    def __floordiv__(self, other: Any) -> Tensor:
        quotient = abs(np.asarray(self)) // abs(np.asarray(other))
        return tensor(np.where((self < 0) != (np.asarray(other) < 0), -quotient, quotient), self.dtype)

    def __rfloordiv__(self, other: Any) -> Tensor:
        return tensor(other, self.dtype) // self

    def __mod__(self, other: Any) -> Tensor:
        return self - self // other * other

    def __rmod__(self, other: Any) -> Tensor:
        return tensor(other, self.dtype) % self


class Pointer:
    """A pointer into an array of numbers, or tensor of such. What is read beyond the array fails."""

    def __init__(self, array: Any, at: Any = 0) -> None:
        self.array, self.at = np.asarray(array), at

    def __add__(self, more: Any) -> Pointer:
        return Pointer(self.array, self.at + np.asarray(more))


def tensor(value: Any, dtype: Any = np.int32) -> Tensor:
    return np.asarray(value, dtype).view(Tensor)


def _load(pointer: Pointer, mask: Any = True, other: Any = 0) -> Tensor:
    mask, at = np.broadcast_arrays(np.asarray(mask), np.asarray(pointer.at))
    assert (at[mask] >= 0).all() and (at[mask] < len(pointer.array)).all(), "reads beyond the tensor"
    return tensor(np.where(mask, pointer.array[np.where(mask, at, 0)] if len(pointer.array) else 0, other))


def _where(mask: Any, a: Any, b: Any) -> Any:
    if isinstance(a, Pointer):
        return a if mask else b
    return tensor(np.where(mask, a, b))


def _cdiv(a: Any, b: Any) -> Any:
    return (a + (b - 1)) // b


class Program:
    """The program that runs, of how many."""

    def __init__(self) -> None:
        self.number, self.count = tensor(0), tensor(1)


def _language(program: Program) -> Nothing:
    """What stands for gluon.language, and for triton.language."""
    language = Nothing()
    language.constexpr = lambda value: value
    language.to_tensor = tensor
    language.int32, language.int64, language.int1 = np.int32, np.int64, np.bool_
    language.program_id = lambda axis: program.number
    language.num_programs = lambda axis: program.count
    language.static_range = language.range = range
    language.cdiv = _cdiv
    language.load = _load
    language.arange = lambda begin, end, layout=None: tensor(np.arange(begin, end))
    language.full = lambda shape, value, dtype, layout=None: tensor(np.full(shape, value), dtype)
    language.where = _where
    language.minimum = lambda a, b: tensor(np.minimum(a, b))
    language.maximum = lambda a, b: tensor(np.maximum(a, b))
    language.sum = lambda values, axis: tensor(np.sum(values, axis))
    language.max = lambda values, axis: tensor(np.max(values, axis))
    language.associative_scan = lambda values, axis, function: tensor(list(accumulate(values, function)))
    return language


@contextmanager
def kernels(*names: str) -> Iterator[tuple[Program, list[Any]]]:
    """The Program, and modules of flash that can be called as it; another's state of imports is left as it was."""
    program = Program()
    language = _language(program)
    jit = Nothing(jit=lambda function: function, language=language)
    found = {
        "triton": jit, "triton.language": language, "triton.experimental": Nothing(gluon=jit),
        "triton.experimental.gluon": jit, "triton.experimental.gluon.language": language,
    }  # fmt: skip
    for name in ("nvidia", "nvidia.hopper", "nvidia.ampere"):
        found["triton.experimental.gluon.language." + name] = Nothing()
    for name in ("triton.language.extra", "triton.language.extra.cuda"):
        found[name] = Nothing()
    with patch.dict(sys.modules, found), patch.object(sys, "path", [str(KERNELS), *sys.path]):
        for path in KERNELS.glob("*.py"):
            sys.modules.pop(path.stem, None)
        yield program, [importlib.import_module(name) for name in names]
