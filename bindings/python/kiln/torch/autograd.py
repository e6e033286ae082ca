"""Gradients of torch.ops.kiln's operators."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import FunctionCtx
from torch.compiler import is_compiling

from kiln import _arguments
from kiln.errors import ArgumentError, UnsupportedError
from kiln.torch import native, operators

_Tensor, _Parameter = Tensor, torch.nn.Parameter
_FORWARD = _arguments.ARGUMENTS["attn_fwd"]
_BIAS, _SINKS, _RETURN_LSE = (_FORWARD.index(name) for name in ("bias", "sinks", "return_lse"))
_DETERMINISTIC = _arguments.ARGUMENTS["attn_bwd"].index("deterministic")
_NOTHING = (None,) * len(_FORWARD)
# What `Plain` takes besides q, k and v.
_plain_of = itemgetter(*map(_FORWARD.index, ("scale", "causal", "bottom_right", "rows_first")))
_RECORDED = native.RETURN_LSE + native.FOR_BACKWARD
_CAUSAL_TO_ROWS_FIRST = (native.CAUSAL, native.BOTTOM_RIGHT, native.ROWS_FIRST)


_PROBE = torch.empty(0)


def has_forward_level() -> bool:
    """Whether a level of forward-mode derivatives is open: where none is, nothing is unpacked of a tensor."""
    return forward_ad.unpack_dual(_PROBE).primal is not _PROBE


def is_real() -> bool:
    """Whether nothing traces or transforms what this thread calls: PyTorch's own tensors are what they seem."""
    return not native.is_watched() and not has_forward_level()


def _wants_gradient(args: tuple[object, ...]) -> bool:
    return torch.is_grad_enabled() and any(isinstance(arg, Tensor) and arg.requires_grad for arg in args)


def _are_ours(tensors: tuple[Any, ...]) -> bool:
    """Whether all are PyTorch's own, none of a subclass, and have memory. The first is there."""
    for tensor in tensors:
        if tensor is not None and type(tensor) is not _Tensor and type(tensor) is not _Parameter:
            return False
    return not tensors[0].is_meta


def _all_real(tensors: tuple[Any, ...]) -> bool:
    return _are_ours(tensors) and is_real()


# Within it a call of an operator goes to the dispatcher's next key.
_below_autograd = torch._C._AutoDispatchBelowAutograd


class Attention(torch.autograd.Function):
    """attn_fwd with all of its arguments; differentiable in q, k, v, bias and sinks.

    Of real tensors the engine is called at once, else the operator, so that what traces sees one call of it.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, *args: object) -> tuple[Tensor, Tensor | None]:
        ctx.set_materialize_grads(False)
        tensors, ctx.others = _arguments.split_forward(args)
        with_lse = (*args[:_RETURN_LSE], True, *args[_RETURN_LSE + 1 :])
        if _all_real(tensors):
            out, lse = operators.engine().attn_fwd(*with_lse, for_backward=True)
        else:
            out, lse = operators.attn_fwd(*with_lse)
        ctx.save_for_backward(*tensors, out, lse)
        if not args[_RETURN_LSE]:
            return out, None
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx: FunctionCtx, dout: Tensor | None, _dlse: None) -> tuple[Tensor | None, ...]:
        if dout is None:
            return _NOTHING
        *tensors, out, lse = ctx.saved_tensors
        needs = ctx.needs_input_grad
        arguments = _arguments.backward_of(
            tensors, ctx.others, dout=dout, out=out, lse=lse, need_dbias=needs[_BIAS], need_dsinks=needs[_SINKS]
        )
        if torch.are_deterministic_algorithms_enabled():
            arguments = (*arguments[:_DETERMINISTIC], True, *arguments[_DETERMINISTIC + 1 :])
        # Recorded, so that differentiating again is refused, where gradients of these are wanted.
        if is_compiling() or torch.is_grad_enabled() or not _all_real((dout, *tensors)):
            gradients = operators.attn_bwd(*arguments)
        else:
            gradients = operators.engine().attn_bwd(*arguments)
        return _arguments.gradients_of(*gradients)


class Plain(torch.autograd.Function):
    """attn_fwd of q, k and v alone, by the native engine: what training calls most often, in few steps."""

    @staticmethod
    def forward(ctx: FunctionCtx, q: Tensor, k: Tensor, v: Tensor, flags: int, scale: float) -> Tensor:
        try:
            out, lse, status = native.forward_op(q, k, v, native.NO_EXTRAS, 0, flags + _RECORDED, scale)
        except NotImplementedError:  # nested tensors
            status = native.REFIT
        if status:
            raise Refused(status)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.call = flags, scale
        return out

    @staticmethod
    def backward(ctx: FunctionCtx, dout: Tensor) -> tuple[Tensor | None, ...]:
        flags, scale = ctx.call
        causal, bottom_right, rows_first = (bool(flags & bit) for bit in _CAUSAL_TO_ROWS_FIRST)
        deterministic = torch.are_deterministic_algorithms_enabled()
        recorded = is_compiling() or torch.is_grad_enabled() or not _all_real((dout,))
        run: Callable = operators.attn_bwd if recorded else native.attn_bwd
        dq, dk, dv, _, _ = run(
            dout, *ctx.saved_tensors, scale=scale, causal=causal, bottom_right=bottom_right, rows_first=rows_first,
            deterministic=deterministic,
        )  # fmt: skip
        return dq, dk, dv, None, None


class Refused(Exception):
    """`Plain` was refused a call; `status` says why. Nothing was recorded, nothing runs."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


# As Function.apply does it, which looks for functorch's transforms first; callers of this have done so.
plain = super(torch.autograd.Function, Plain).apply


def recorded_plain(q: Tensor, k: Tensor, v: Tensor, flags: int, scale: float) -> Tensor | None:
    """The plainest call whose gradients are wanted, of real tensors. None: it is not that plain; nothing was done.

    Raises:
        KilnError: no kernel serves it.
    """
    if operators.engine() is not native or not q.is_cuda:
        return None
    try:
        return plain(q, k, v, flags, scale)
    except Refused as refused:
        if refused.status in native.FINAL:
            native.fail(refused.status)
    return None


def recorded(args: tuple[Any, ...]) -> tuple[Tensor, Tensor | None]:
    """attn_fwd whose gradients are wanted, of real tensors and with all of its arguments, by the shortest way."""
    if _arguments.is_plain(args):
        (q, k, v, *_), (scale, *truths) = args, _plain_of(args)
        if (out := recorded_plain(q, k, v, native.flags_of(*truths), scale)) is not None:
            return out, None
    return Attention.apply(*args)


class _Backward(torch.autograd.Function):
    """attn_bwd, whose own gradients are refused when they are asked for."""

    @staticmethod
    def forward(_ctx: FunctionCtx, *args: object) -> tuple[Tensor | None, ...]:
        return operators.attn_bwd(*args)

    @staticmethod
    def backward(_ctx: FunctionCtx, *_gradients: Tensor | None) -> tuple[None, ...]:
        raise UnsupportedError(
            "Kiln's attention can be differentiated once, not twice; PyTorch's own can, with "
            "torch.nn.attention.sdpa_kernel(SDPBackend.MATH) and outside of kiln.torch.use()"
        )


def _refuse_transforms(args: tuple[object, ...]) -> None:
    """Refuses those whose derivatives would come out as nothing."""
    if native.is_watched() == native.TRANSFORMED:
        raise UnsupportedError(
            "Kiln's attention does not support torch.func's transforms; take its gradients by torch.autograd"
        )
    tensors = (arg for arg in args if isinstance(arg, Tensor))
    if has_forward_level() and any(forward_ad.unpack_dual(t).tangent is not None for t in tensors):
        raise UnsupportedError("Kiln's attention has no forward-mode derivatives; use backward mode")


def attention(*args: object) -> tuple[Tensor, Tensor | None]:
    """attn_fwd of any arguments that its schema allows, recorded where gradients are wanted."""
    for name, tensor in zip("qkv", args):
        if tensor is None:  # which a schema takes for a tensor
            raise ArgumentError(f"{name} must be a tensor, and is None")
    args = (*args, *operators.FORWARD_DEFAULTS[len(args) :])
    is_traced = not is_real()
    if is_traced:
        _refuse_transforms(args)
    is_ours = not is_traced and _are_ours(_arguments.split_forward(args)[0])
    if _wants_gradient(args):
        return recorded(args) if is_ours else Attention.apply(*args)
    if is_ours:
        return operators.engine().attn_fwd(*args)
    with _below_autograd():
        return operators.attn_fwd(*args)


def _backward(*args: object) -> tuple[Tensor | None, ...]:
    if _wants_gradient(args):
        return _Backward.apply(*args)
    with _below_autograd():
        return operators.attn_bwd(*args)


def decode(*args: object, run: Callable | None = None) -> Tensor | None:
    """attn_decode of any arguments that its schema allows.

    Args:
        run: what is called; None for the operator, by the dispatcher's next key.
    """
    if _wants_gradient(args):
        raise UnsupportedError(
            "decode() has no gradients, and an argument requires one; use attention(), or torch.no_grad()"
        )
    native.count_changes(args[1:4])
    if run is not None:
        return run(*args)
    with _below_autograd():
        return operators.attn_decode(*args)


def _without_gradients(name: str) -> Callable:
    """The kernel of an operator that has no gradients; what would come out as nothing is refused."""
    op = getattr(torch.ops.kiln, name).default

    def kernel(*args: object) -> object:
        if any(isinstance(arg, Tensor) and arg.is_floating_point() for arg in args):
            if not is_real():
                _refuse_transforms(args)
            if _wants_gradient(args):
                raise UnsupportedError(
                    f"{name} has no gradients, and an argument requires one; call it under torch.no_grad()"
                )
        with _below_autograd():
            return op(*args)

    return kernel


for _name, _kernel in (
    ("attn_fwd", native.shortcut.attend_or(attention)),
    ("attn_bwd", _backward),
    ("attn_decode", decode),
    *((name, _without_gradients(name)) for name in operators.SIMPLE),
):
    operators.library.impl(_name, _kernel, "Autograd")
