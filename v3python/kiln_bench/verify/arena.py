"""The tensors of one call, in one piece of memory that the host and the device have both.

Each has other memory on both sides. Everything begins as bits that are NaN in every dtype of floating point, and what a
call may write is known by element, so that what it writes besides is found.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kiln_bench.verify import numbers
from kiln_bench.verify.memory import Memory
from kiln_recipe.dtypes import DTYPE_BYTES

Array = np.ndarray[Any, Any]
GUARD, _POISON = 4096, 0xFF
_ALIGNMENT = 256


@dataclass(frozen=True)
class Tensor:
    """A tensor of the arena.

    Attributes:
        stored: its elements as they are held; see numbers.HELD.
        dtype: Kiln's name.
        offset: of its first element in the arena, in bytes.
        strides: in elements.
    """

    stored: Array
    dtype: str
    offset: int
    strides: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.stored.shape

    def put(self, values: Array | float) -> Tensor:
        """Rounds values to the dtype, and holds them."""
        self.stored[...] = numbers.held(np.asarray(values), self.dtype)
        return self

    @property
    def values(self) -> Array:
        """In float64; integers as they are."""
        return numbers.wide(self.stored, self.dtype)


class Arena:
    """Args:
    memory: of the device.
    """

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._host: Array = np.empty(0, np.uint8)
        self._address = self._size = self._used = 0
        self._workspace = (0, 0)  # address, bytes
        self._written: list[Tensor] = []

    def lay_out(self, count: int) -> None:
        """Begins another call, whose tensors take at most so many bytes; all earlier tensors are gone."""
        if count > self._size:
            if self._address:
                self._memory.free(self._address)
            self._size = max(count, 2 * self._size)
            self._address, self._host = self._memory.allocate(self._size), np.empty(self._size, np.uint8)
        self._host[: max(self._used, count)] = _POISON
        self._used, self._written = 0, []

    def tensor(
        self, shape: Sequence[int], dtype: str, layout: str = "contiguous", written: bool = False
    ) -> Tensor:  # fmt: skip
        """Args:
        layout: "contiguous"; "rows", of which heads follow one another in a row; "odd rows", whose rows do not begin
            at 16 bytes; "offset", whose first element does not.
        written: by the call.
        """
        strides = strides_of(tuple(shape), layout)
        width = DTYPE_BYTES[dtype]
        begin = -(-(self._used + GUARD) // _ALIGNMENT) * _ALIGNMENT + (width if layout == "offset" else 0)
        span = sum((n - 1) * stride for n, stride in zip(shape, strides) if n) + 1
        self._used = begin + span * width + GUARD
        assert self._used <= self._size, "a call has more tensors than were counted"
        base = self._host[begin : begin + span * width].view(numbers.HELD[dtype])
        stored = np.lib.stride_tricks.as_strided(base, tuple(shape), [s * width for s in strides])
        made = Tensor(stored, dtype, begin, strides)
        if written:
            self._written.append(made)
        return made

    def address(self, tensor: Tensor) -> int:
        """On the device."""
        return self._address + tensor.offset

    def run(self, launch: Callable[[int | None], None], workspace_bytes: int) -> bool:
        """Copies all to the device, launches with the address of a workspace, copies all back.

        Returns:
            whether nothing was written but what may be.
        """
        before = self._host[: self._used].copy()
        self._memory.write(self._address, self._host.ctypes.data, self._used)
        launch(self._workspace_of(workspace_bytes))
        self._memory.read(self._host.ctypes.data, self._address, self._used)
        changed = before != self._host[: self._used]
        for tensor in self._written:
            width = DTYPE_BYTES[tensor.dtype]
            place = np.lib.stride_tricks.as_strided(
                changed[tensor.offset :], (*tensor.shape, width), [*(s * width for s in tensor.strides), 1]
            )
            place[...] = False
        return not changed.any()

    def _workspace_of(self, count: int) -> int | None:
        if not count:
            return None
        if count > self._workspace[1]:
            if self._workspace[0]:
                self._memory.free(self._workspace[0])
            self._workspace = (self._memory.allocate(count), count)
        filling = (ctypes.c_ubyte * count).from_buffer(bytearray(b"\xff") * count)
        self._memory.write(self._workspace[0], ctypes.addressof(filling), count)
        return self._workspace[0]


def strides_of(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """In elements; layouts but "contiguous" and "offset" are of [batch, heads, rows, width]."""
    if layout in ("contiguous", "offset"):
        return tuple(int(np.prod(shape[n + 1 :], dtype=np.int64)) for n in range(len(shape)))
    _, heads, rows, width = shape
    if layout == "rows":
        return rows * heads * width, width, heads * width, 1
    return heads * rows * (width + 1), rows * (width + 1), width + 1, 1


def bytes_of(shape: Sequence[int], dtype: str) -> int:
    """That a tensor takes at most, in whatever layout."""
    wider = (*shape[:-1], shape[-1] + 1) if shape else shape
    return int(np.prod(wider, dtype=np.int64)) * DTYPE_BYTES[dtype] + 3 * GUARD
