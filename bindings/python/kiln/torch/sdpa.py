"""kiln.torch.scaled_dot_product_attention: PyTorch's function of that name, by Kiln's kernels."""

from __future__ import annotations

from numbers import Real
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.compiler import is_compiling

from kiln import _arguments
from kiln.arrays import shown
from kiln.errors import ArgumentError, UnsupportedError
from kiln.torch import autograd, explanation, functions, native, operators
from kiln.torch.autograd import is_real

_NUMBERS = (float, int)
# Of what has none of its own, among them the tensors of tracers.
_NO_FUNCTIONS = (torch.nn.Parameter.__torch_function__, Tensor.__torch_function__.__func__)
_TRACED = (FakeTensor, FunctionalTensor)


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """torch.nn.functional.scaled_dot_product_attention: same arguments, same meaning, same shapes.

    Args:
        query: [..., L, E]; float16, bfloat16 or float32.
        key, value: [..., S, E] and [..., S, Ev], what leads broadcasts; with enable_gqa the third dimension from the
            end may be a divisor of query's.
        attn_mask: broadcasts to [..., L, S]; bool: True takes part, else it is added to the scores, in query's dtype. A
            torch.nn.attention.bias.CausalBias costs nothing.
        dropout_p: the probability that a weight is dropped, whether a module trains or not; at most 0.9999.
        is_causal: row i sees keys up to i. Not with attn_mask.
        scale: None for 1 / sqrt(E).

    Returns:
        [..., L, Ev]. A row that sees no key is 0.

    Raises:
        ArgumentError: arguments that do not fit together.
        UnsupportedError: Kiln has no kernel for this call. Nothing falls back here; see kiln.torch.use().
    """
    if is_compiling():
        return torch.ops.kiln.scaled_dot_product_attention.default(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    out = plain(
        query, key, value, attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale,
        enable_gqa=enable_gqa,
    )  # fmt: skip
    if out is None:
        out = shortest(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    if out is not None:
        return out
    return attend(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


plain = native.shortcut.attention(
    native.plain_fields(scaled_dot_product_attention, ("query", "key", "value")), native.EQUAL_HEADS
)
"""The function, of plain calls alone: None of all others."""


def shortest(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, dropout_p: float, is_causal: bool,
    scale: float | None, enable_gqa: bool,
) -> Tensor | None:  # fmt: skip
    """The call of training, without a step too many, and of plain tensors that `plain` does not take as they lie.

    Returns:
        None: it is not that plain, for attend() to see to.

    Raises:
        KilnError: no kernel serves it.
    """
    if attn_mask is not None or type(dropout_p) not in _NUMBERS or dropout_p:
        return None
    flags = native.ALIKE
    if is_causal is True:
        flags += native.CAUSAL
    elif is_causal is not False:
        return None
    if enable_gqa is False:
        flags += native.EQUAL_HEADS
    elif enable_gqa is not True:
        return None
    if scale is None:
        scale = 0.0
    elif type(scale) is float:
        scale = functions.given_scale(scale)
    else:
        return None
    if not functions.is_plain(query, key, value):
        return None
    if functions.wants_gradient(query, key, value):
        return autograd.recorded_plain(query, key, value, flags, scale)
    try:
        out, _, status = native.forward_op(query, key, value, native.NO_EXTRAS, 0, flags, scale)
    except NotImplementedError:  # nested tensors
        return None
    if status in native.FINAL:
        native.fail(status)
    return out


def attend(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, dropout_p: float, is_causal: bool,
    scale: float | None, enable_gqa: bool,
) -> Tensor:  # fmt: skip
    """The function itself, for any tensors. Of fake ones it asks whether there are kernels before it returns."""
    _check(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    if operators.casts(query):
        device = query.device.type
        query, key, value = (operators.cast(tensor, device) for tensor in (query, key, value))
    if not query.dtype == key.dtype == value.dtype:
        raise ArgumentError(
            f"query, key and value must have one dtype; they have {query.dtype}, {key.dtype} and {value.dtype}"
        )
    q, k, v, shape = _shaped(query, key, value, enable_gqa)
    bottom_right, bias = False, None
    if is_causal_bias(attn_mask):
        is_causal, bottom_right = True, attn_mask.variant.name == "LOWER_RIGHT"
    elif attn_mask is not None:
        bias = _bias(attn_mask, shape, q, k)
    scale = functions.given_scale(None if scale is None else float(scale))
    dropout = functions.above_zero(float(dropout_p))
    # A refused call may go to PyTorch's attention, which is to draw what it would have drawn: so ask before drawing.
    if dropout or not is_real() or type(q) not in functions.PLAIN_TYPES:
        explanation.check(q, k, v, bias, scale, dropout, is_causal, bottom_right)
    with functions.drawn(q.device, dropout) as rng:
        given = _arguments.attn_fwd(
            q, k, v, bias, rng=rng, scale=scale, dropout=dropout, causal=is_causal, bottom_right=bottom_right
        )
        out, _ = functions.call(given)
    return out if query.dim() == 4 else out.reshape(*shape[:-1], value.shape[-1])


def has_own_way(tensor: object) -> bool:
    """Whether it is of a subclass of Tensor that has functions of PyTorch its own way."""
    if not isinstance(tensor, Tensor):
        return False
    function = type(tensor).__torch_function__
    return getattr(function, "__func__", function) not in _NO_FUNCTIONS


def is_causal_bias(mask: object) -> TypeGuard[Any]:
    """Whether it is a torch.nn.attention.bias.CausalBias. Who has one has imported that module, which takes seconds."""
    return type(mask).__name__ == "CausalBias" and type(mask).__module__ == "torch.nn.attention.bias"


def _check(query, key, value, attn_mask: Any, dropout_p: Any, is_causal, scale, enable_gqa) -> None:
    """Refuses what the function's own words do not allow."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if not isinstance(tensor, Tensor):
            raise ArgumentError(f"{name} must be a tensor, and is a {type(tensor).__name__}")
        if tensor.is_nested or tensor.layout != torch.strided:
            raise UnsupportedError(f"{name} is nested or sparse, which no kernel takes")
        if type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__ and not isinstance(tensor, _TRACED):
            raise UnsupportedError(f"{name} is a {type(tensor).__name__}, a subclass that no kernel takes")
        if tensor.dim() < 2:
            raise ArgumentError(f"{name} must have at least 2 dimensions, and has {tensor.dim()}")
    if not (attn_mask is None or isinstance(attn_mask, Tensor)):
        raise ArgumentError(f"attn_mask must be a tensor or None, and is a {type(attn_mask).__name__}")
    probability: Any = dropout_p
    if not isinstance(dropout_p, Real) or not 0.0 <= probability <= 1.0:
        raise ArgumentError(f"dropout_p must be a probability, and is {shown(dropout_p)}")
    if probability > 0.9999:
        raise UnsupportedError(f"dropout_p is {dropout_p!r}; kernels drop at most 0.9999 of the weights")
    if not (scale is None or isinstance(scale, Real)):
        raise ArgumentError(f"scale must be a number or None, and is {shown(scale)}")
    for name, flag in (("is_causal", is_causal), ("enable_gqa", enable_gqa)):
        if not isinstance(flag, bool):
            raise ArgumentError(f"{name} must be True or False, and is {shown(flag)}")
    if "cpu" not in operators.engine().devices:  # which the engine would refuse too, by its own names
        for name, tensor in (("query", query), ("key", key), ("value", value), ("attn_mask", attn_mask)):
            if tensor is not None and tensor.is_cpu and not is_causal_bias(tensor):
                raise ArgumentError(f"{name} is on the CPU; all tensors must be on one CUDA or ROCm device")
    if is_causal and attn_mask is not None:
        raise ArgumentError("attn_mask and is_causal exclude each other")
    if is_causal_bias(attn_mask):
        has, wants = (attn_mask.seq_len_q, attn_mask.seq_len_kv), (query.shape[-2], key.shape[-2])
        if has != wants:
            raise ArgumentError(f"attn_mask is of {has[0]} rows and {has[1]} keys; there are {wants[0]} and {wants[1]}")


def _shaped(
    query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool
) -> tuple[Tensor, Tensor, Tensor, tuple[int, ...]]:
    """The three as [batch, heads, rows, d], and the shape of the scores as the caller sees them, [..., L, S]."""
    leads = [tensor.shape[:-2] for tensor in (query, key, value)]
    if not leads[0] == leads[1] == leads[2]:
        heads: list[tuple[int, ...]] = [()] * 3
        if enable_gqa:
            heads, leads = [lead[-1:] for lead in leads], [lead[:-1] for lead in leads]
            if heads[1] != heads[2]:
                raise UnsupportedError("key and value have different numbers of heads, which no kernel takes")
        try:
            lead = torch.broadcast_shapes(*leads)
        except RuntimeError:
            raise ArgumentError(
                f"the leading dimensions of query {[*query.shape]}, key {[*key.shape]} and value {[*value.shape]} "
                "do not broadcast"
            ) from None
        query, key, value = (
            tensor.expand(*lead, *own, -1, -1) for tensor, own in zip((query, key, value), heads, strict=True)
        )
    shape = (*query.shape[:-1], key.shape[-2])
    return _four(query), _four(key), _four(value), shape


def _four(tensor: Tensor) -> Tensor:
    """Four dimensions: those that are missing are 1, of more the first ones become one."""
    if tensor.dim() == 4:
        return tensor
    return tensor.flatten(0, tensor.dim() - 4) if tensor.dim() > 4 else tensor[(None,) * (4 - tensor.dim())]


def _bias(mask: Tensor, shape: tuple[int, ...], q: Tensor, k: Tensor) -> Tensor:
    """A mask as a bias of four dimensions. What it broadcasts over batch, heads and rows costs no memory."""
    if not mask.is_floating_point() and mask.dtype != torch.bool:
        raise ArgumentError(f"attn_mask must be of bool or of a floating dtype; it is of {mask.dtype}")
    try:
        broadcasts = torch.broadcast_shapes(mask.shape, shape) == torch.Size(shape)
    except RuntimeError:
        broadcasts = False
    if not broadcasts:
        raise ArgumentError(f"attn_mask {[*mask.shape]} does not broadcast to {[*shape]}")
    if mask.dtype == torch.bool:
        mask = _narrowed(mask)
        mask = torch.full_like(mask, -torch.inf, dtype=q.dtype).masked_fill_(mask, 0.0)
    if len(shape) > 4 and any(size != 1 for size in mask.shape[:-3]):  # dimensions that become one in q
        mask = mask.expand(*shape[:-3], *mask.shape[-3:])
    return functions.spread_bias(_four(mask) if mask.dim() > 4 else mask, q.dtype, q.shape[2], k.shape[2])


def _narrowed(mask: Tensor) -> Tensor:
    """The mask without what only repeats: dimensions that were expanded."""
    for dim in range(mask.dim()):
        if mask.stride(dim) == 0 and mask.shape[dim] > 1:
            mask = mask.narrow(dim, 0, 1)
    return mask
