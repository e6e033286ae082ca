"""Tensors as callers have them: with strides, and other memory on both sides that a call must not touch."""

from __future__ import annotations

import math

import ffi
import torch

GUARD = 4096  # elements before and after each tensor
SENTINEL = -1216.0  # exact in every dtype

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32, "fp8e4m3": torch.float8_e4m3fn}
CODES = {
    torch.float32: ffi.FP32, torch.float16: ffi.FP16, torch.bfloat16: ffi.BF16, torch.float8_e4m3fn: ffi.FP8E4M3,
    torch.int32: ffi.INT32, torch.int64: ffi.INT64, torch.uint8: ffi.UINT8,
}  # fmt: skip

# How the rows of [batch, heads, rows, width] lie. In the last three no row, or not every row, begins at 16 bytes.
ALIGNED = ("contiguous", "rows", "packed", "padded", "broadcast", "reversed")
UNALIGNED = ("offset", "odd rows", "odd heads")


def _strides(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    _, h, s, d = shape
    return {
        "contiguous": (h * s * d, s * d, d),
        "reversed": (h * s * d, s * d, d),
        "offset": (h * s * d, s * d, d),
        "rows": (s * h * d, d, h * d),
        "packed": (s * 3 * h * d, d, 3 * h * d),  # one of several that lie side by side in each row
        "padded": (h * s * (d + 16), s * (d + 16), d + 16),
        "odd rows": (h * s * (d + 1), s * (d + 1), d + 1),
        "odd heads": (h * (s * d + 8), s * d + 8, d),
        "broadcast": (s * d, 0, d),
    }[layout]


def describe(tensor: torch.Tensor, sizes: tuple[int, ...] | None = None) -> ffi.Tensor:
    """The kiln_tensor of a view, which must be kept alive; `sizes`: expanded to these."""
    view = tensor if sizes is None else tensor.expand(sizes)
    return ffi.tensor(view.data_ptr(), CODES[view.dtype], tuple(view.shape), tuple(view.stride()))


class Storage:
    """A tensor [batch, heads, rows, width], or without the last dimension, inside memory that is `fill` elsewhere.

    In the layout "reversed" the last row lies first: its row stride is negative, which PyTorch's tensors cannot be.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        device: str,
        layout: str = "contiguous",
        fill: float = math.nan,
    ) -> None:
        full = shape if len(shape) == 4 else (*shape, 1)
        self.fill, self._is_reversed = fill, layout == "reversed"
        strides = _strides(full, layout)
        start = GUARD + (layout == "offset")
        span = sum((n - 1) * stride for n, stride in zip(full, strides) if n) + full[3]
        self.memory = torch.full((start + max(span, 0) + GUARD,), fill, dtype=dtype, device=device)
        self._place = (shape, (*strides, 1)[: len(shape)], start)

    def _logical(self, memory: torch.Tensor) -> torch.Tensor:
        view = memory.as_strided(*self._place)
        return view.flip(2) if self._is_reversed else view

    @property
    def values(self) -> torch.Tensor:
        """The tensor, rows in their order; a copy if they lie in reverse."""
        return self._logical(self.memory)

    def put(self, values: torch.Tensor | float, rows: torch.Tensor | None = None) -> Storage:
        """Writes all, or those rows that are true in [batch, rows]."""
        view = self.memory.as_strided(*self._place)
        if view.stride(1) == 0:
            view = view[:, :1]  # one head in memory stands for all
            values = values[:, :1] if isinstance(values, torch.Tensor) else values
        if isinstance(values, torch.Tensor) and self._is_reversed:
            values = values.flip(2)
        if rows is None:
            rows = torch.ones(view.shape[0], view.shape[2], dtype=torch.bool, device=view.device)
        mask = (rows.flip(1) if self._is_reversed else rows)[:, None, :]
        mask = mask if view.dim() == 3 else mask[..., None]
        if isinstance(values, torch.Tensor):
            view.copy_(torch.where(mask, values, view))
        else:
            view.masked_fill_(mask, values)
        return self

    def is_intact(self, rows: torch.Tensor | None = None) -> bool:
        """Whether everything is as filled, but for the tensor, or those of its rows that are true in [batch, rows]."""
        copy = Storage.__new__(Storage)
        copy.__dict__.update(self.__dict__, memory=self.memory.clone())
        copy.put(self.fill, rows)
        return bool((copy.memory == self.fill).all())

    def describe(self) -> ffi.Tensor:
        shape, strides, start = self._place
        if self._is_reversed and shape[2]:
            start, strides = start + (shape[2] - 1) * strides[2], (*strides[:2], -strides[2], *strides[3:])
        address = self.memory.data_ptr() + start * self.memory.element_size()
        return ffi.tensor(address, CODES[self.memory.dtype], shape, strides)
