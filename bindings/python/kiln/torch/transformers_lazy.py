"""A mask of Hugging Face Transformers that exists only where somebody reads it.

Models whose attention is written out add the mask that "eager" gets to their scores: zeros, and the lowest number of
a dtype. `LazyMask` is that tensor for every operation of PyTorch, and Kiln's attention takes the `Pattern` that it
carries instead, so that rows times keys are neither computed nor stored where Kiln attends.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

__all__ = ["LazyMask", "Pattern", "added", "pattern_of", "seen_by"]

aten = torch.ops.aten


@dataclass
class Pattern:
    """What a mask says, in the terms of `kiln.torch.attention`.

    Attributes:
        causal, window, bottom_right, seqused_k: as there.
        keys: booleans, [batch, 1, 1, keys]: false where no row sees a key. None: as the rest says.
        packed: the mask is one of sequences that lie one after another, each of which sees itself alone. Their lengths
            are those that modules may be told, or else these.
        cu_seqlens, longest: where they begin in all rows of all batches, and the end; no sequence has more rows.
        span: two of int32, [batch], for a single row: it sees the keys from the first to before the second. That is
            all, whatever the rest says.
        is_whole: the rest says all that the mask does.
        seen: the mask in booleans where that is not so, or where there is a span; true where a row sees a key.
        version: PyTorch's number of the mask that this says something of, which rises when somebody writes to it.
        biases: what is added to scores, by dtype: made by the first layer, used by all.
    """

    causal: bool = False
    window: tuple[int, int] = (-1, -1)
    bottom_right: bool = False
    seqused_k: Tensor | None = None
    keys: Tensor | None = None
    packed: bool = False
    cu_seqlens: Tensor | None = None
    longest: int = 0
    span: tuple[Tensor, Tensor] | None = None
    is_whole: bool = True
    seen: Tensor | None = None
    version: int = 0
    biases: dict[torch.dtype, Tensor] = field(default_factory=dict)


def seen_by(pattern: Pattern, rows: int, keys: int, device: torch.device) -> Tensor:
    """What a whole pattern says, [batch or 1, 1, rows, keys], true where a row sees a key."""
    i = torch.arange(rows, device=device)[:, None]
    j = torch.arange(keys, device=device)[None, :]
    seen = torch.ones((), dtype=torch.bool, device=device)
    if pattern.seqused_k is not None:
        used = pattern.seqused_k[:, None, None, None]
        i, seen = i + (used - rows if pattern.bottom_right else 0), j < used
    elif pattern.bottom_right:
        i = i + (keys - rows)
    left, right = pattern.window
    right = 0 if pattern.causal else right
    if left >= 0:
        seen = seen & (j >= i - left)
    if right >= 0:
        seen = seen & (j <= i + right)
    if pattern.keys is not None:
        seen = seen & pattern.keys
    return seen.expand(seen.shape[0] if seen.dim() == 4 else 1, 1, rows, keys)


def added(seen: Tensor, dtype: torch.dtype, hidden: float | None = None) -> Tensor:
    """What is added to scores: 0 where a row sees a key, else `hidden`, or the dtype's lowest number as "eager" has."""
    hidden = torch.finfo(dtype).min if hidden is None else hidden
    return torch.zeros((), dtype=dtype, device=seen.device).where(seen, hidden)


def pattern_of(mask: Tensor) -> Pattern:
    """What a mask carries, unless it was written to since."""
    pattern = getattr(mask, "kiln", None)
    if pattern is None:
        return Pattern(is_whole=False)
    # Views share their base's number, and what was made of a lazy mask is a view of it.
    is_written = not is_compiling() and pattern.version != mask._version
    return Pattern(is_whole=False) if is_written else pattern


class LazyMask(Tensor):
    """[batch, 1, rows, keys], of which there is nothing but a whole pattern until an operation reads it.

    What an operation makes of it is an ordinary tensor, which carries no pattern. Only what changes nothing, such as a
    slice of everything, and what moves it to another device, gives another of these.
    """

    kiln: Pattern
    anchor: Tensor
    """Nothing but a device, which a compiler knows."""
    base: LazyMask
    """The one that holds `spelled`, for itself and for all that share its memory."""
    spelled: Tensor | None
    """The tensor itself, once something has read it."""

    __torch_function__ = torch.nn.Parameter.__torch_function__  # none of its own

    @staticmethod
    def __new__(cls, pattern: Pattern, shape: Any, dtype: torch.dtype, anchor: Tensor) -> LazyMask:  # noqa: PYI034
        with (
            contextlib.nullcontext() if is_compiling() else torch.inference_mode(False)
        ):  # whose tensors have no number
            mask = Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=anchor.device)
        mask.kiln, mask.anchor, mask.base, mask.spelled = pattern, anchor, mask, None
        return mask

    def spell(self) -> Tensor:
        """The tensor, which is one and the same each time: views of it may be written to."""
        base = self.base
        if base.spelled is None:
            seen = seen_by(self.kiln, self.shape[2], self.shape[3], self.device)
            base.spelled = added(seen, self.dtype).expand(self.shape).contiguous()
        return base.spelled

    def alias(self) -> LazyMask:
        """Another tensor of the same memory."""
        other = LazyMask(self.kiln, self.shape, self.dtype, self.anchor)
        other.base = self.base
        return other

    def moved(self, device: torch.device) -> LazyMask:
        pattern = replace(self.kiln, biases={}, version=0)
        for name in _TENSORS:
            tensor = getattr(pattern, name)
            setattr(pattern, name, None if tensor is None else tensor.to(device))
        return LazyMask(pattern, self.shape, self.dtype, self.anchor.to(device))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        mask = args[0] if args else None
        is_lazy = isinstance(mask, LazyMask) and mask.base.spelled is None
        if is_lazy and (out := _unchanged(func, mask, args, kwargs)) is not None:
            return out
        with torch.inference_mode(False) if func.is_view else contextlib.nullcontext():  # else no view of the mask
            result = func(*_spelled(args), **_spelled(kwargs))
        return mask if isinstance(mask, LazyMask) and result is mask.base.spelled else result

    def __tensor_flatten__(self) -> tuple[list[str], tuple]:
        p = self.kiln
        if not p.is_whole or (self.base.spelled is not None and p.version != self._version):
            self.spelled = self.spell()
            return ["spelled"], (self.dtype, False, (-1, -1), False, False)
        self.inner_seqused_k, self.inner_keys = p.seqused_k, p.keys
        inner = [to for name, to in _TENSORS.items() if getattr(p, name) is not None]
        return ["anchor", *inner], (self.dtype, p.causal, p.window, p.bottom_right, True)

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], context: tuple, size: Any, stride: Any) -> LazyMask:
        dtype, causal, window, bottom_right, is_whole = context
        tensors: dict[str, Any] = {name: inner.get(known) for name, known in _TENSORS.items()}
        pattern = Pattern(causal, window, bottom_right, **tensors, is_whole=is_whole)
        mask = LazyMask(pattern, size, dtype, inner["anchor" if is_whole else "spelled"])
        mask.spelled = inner.get("spelled")
        return mask

    def __deepcopy__(self, memo: dict) -> Tensor:
        return self.moved(self.device) if self.base.spelled is None else self.spell().clone()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.spell().__reduce_ex__(protocol)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"LazyMask({self.kiln}, {[*self.shape]}, {self.dtype}, {self.device})"


# Of a pattern, and what a compiler knows them as: it takes names of a Tensor's and a dict's own for those.
_TENSORS = {"seqused_k": "inner_seqused_k", "keys": "inner_keys"}


def _spelled(tree: Any) -> Any:
    if isinstance(tree, LazyMask):
        return tree.spell()
    if isinstance(tree, dict):
        return {name: _spelled(value) for name, value in tree.items()}
    return type(tree)(map(_spelled, tree)) if isinstance(tree, (tuple, list)) else tree


def _unchanged(func: Any, mask: LazyMask, args: tuple, kwargs: dict[str, Any]) -> LazyMask | None:
    """The result of an operation that leaves all elements where they are and what they are; None: of another one."""
    if func in (aten.detach.default, aten.alias.default):
        return mask.alias()
    if func is aten.slice.Tensor:
        given: tuple[Any, ...] = (*args[1:], *(0, None, None, 1)[len(args) - 1 :])
        dim, start, end, step = given
        is_all = not start and (end is None or end >= mask.shape[dim]) and step == 1
        return mask.alias() if is_all else None
    is_move = func is aten._to_copy.default and not {*kwargs} - {"dtype", "device", "non_blocking"}
    if is_move and kwargs.get("dtype") in (None, mask.dtype):
        return mask.moved(torch.device(kwargs.get("device") or mask.device))
    return None
