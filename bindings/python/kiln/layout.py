"""How results lie in memory, and which tensors a kernel takes as they are; bindings/layout.h has the same for C++.

Tensors are PyTorch's, [batch, heads, rows, d] or rows first, or without the batch; nothing of PyTorch is imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kiln import _arguments
from kiln.errors import ArgumentError


def like(model: Any, width: Any, rows_first: bool, zero: bool = False) -> Any:
    """A tensor of model's rows and `width` columns: dense, rows outside of heads if they come first or lie so.

    Args:
        zero: it is set to 0; else it is empty.
    """
    make = model.new_zeros if zero else model.new_empty
    if rows_first or model.dim() not in (3, 4) or not model.stride(-3) < model.stride(-2):
        return make((*model.shape[:-1], width))
    *batch, heads, rows, _ = model.shape
    return make((*batch, rows, heads, width)).transpose(-3, -2)


def lse_of(q: Any, rows_first: bool, dtype: Any) -> Any:
    """An empty log-sum-exp of q's rows: [batch, heads, rows] whatever q's layout, or [heads, rows]."""
    *batch, a, b = q.shape[:-1]
    return q.new_empty((*batch, b, a) if rows_first else (*batch, a, b), dtype=dtype)


def sizes_of(result: _arguments.Result, given: Mapping[str, Any]) -> tuple[int, ...]:
    """The shape of a result that the table of arguments tells.

    Args:
        given: arguments by name; arrays of any library.

    Raises:
        ArgumentError: an array has fewer dimensions than that takes.
    """
    try:
        return result.shape(given)
    except IndexError:
        raise ArgumentError(
            f"{result.field} has the shape {result.text}, and an array has fewer dimensions than that takes"
        ) from None


def dtype_of(result: _arguments.Result, operation: str, given: Mapping[str, Any]) -> str | None:
    """The dtype of a result that the table of arguments tells, as array APIs call it; None: the leading array's."""
    if result.like is None or _arguments.KINDS[operation].get(result.like) != "dtype":
        return result.dtype
    asked = given.get(result.like)
    return "uint8" if asked is None else str(asked).rpartition(".")[2]  # "torch.float16", "float16"


def results_of(torch: Any, operation: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Empty tensors, on the first argument's device, for the results of an operation that the table tells."""
    first, made = next(iter(given.values())), {}
    for result in _arguments.RESULTS[operation]:
        if result.like is None:
            dtype = getattr(torch, str(result.dtype))
        else:
            like = given[result.like]
            dtype = getattr(like, "dtype", like) or torch.uint8  # which an operator's schema has as the default
        made[result.field] = first.new_empty(sizes_of(result, given), dtype=dtype)
    return made


def returned(results: Mapping[str, Any]) -> Any:
    """What an operator returns: one result, or a tuple."""
    values = tuple(results.values())
    return values[0] if len(values) == 1 else values


def fits(tensor: Any) -> bool:
    """Whether its last dimension is contiguous, which every kernel wants."""
    return tensor.dim() == 0 or tensor.stride(-1) == 1 or tensor.shape[-1] < 2


def fitted(tensor: Any) -> Any:
    """A copy whose last dimension is contiguous; heads and rows lie in memory in the order that they had."""
    if not tensor.numel():
        return tensor.new_empty(tensor.shape)  # contiguous() takes an empty tensor's strides for what they are not
    if tensor.dim() < 3 or tensor.stride(-3) >= tensor.stride(-2):
        return tensor.contiguous()
    return tensor.transpose(-3, -2).contiguous().transpose(-3, -2)
