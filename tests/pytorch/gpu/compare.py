"""Values and gradients against float64, in units of PyTorch's own error; see tests/gpu/judge.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from judge import Verdict
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import kiln.torch as kt

Function = Callable[..., Tensor]
DRAWS = 3


def served(q: Tensor, k: Tensor, v: Tensor, **call: object) -> bool:
    """Whether this release has images for it: of the core profile not all do, and fp16 and bf16 up to 128 must."""
    found = kt.explain(q, k, v, backward=True, **call)
    if not found:
        known = q.dtype in (torch.float16, torch.bfloat16) and max(q.shape[-1], v.shape[-1]) <= 128
        assert not known, f"{found}"
        assert type(found.error).__name__ == "UnsupportedError", f"{found}"
    return bool(found)


def with_gradients(function: Function, inputs: Sequence[Tensor | None], dout: Tensor) -> list[Tensor]:
    """The function's value, and its gradient in each input that is floating."""
    leaves = [x.detach().requires_grad_(x.is_floating_point()) if isinstance(x, Tensor) else x for x in inputs]
    out = function(*leaves)
    assert out.shape == dout.shape, f"{out.shape} is not {dout.shape}"
    wanted = [x for x in leaves if isinstance(x, Tensor) and x.requires_grad]
    return [out.detach(), *torch.autograd.grad(out, wanted, dout.to(out.dtype))]


def theirs(function: Function, inputs: Sequence[Tensor | None], dout: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """PyTorch's math attention, computed in `dtype` throughout."""
    before = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed(), torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)
    torch.backends.cuda.matmul.allow_tf32 = False
    cast = [x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x for x in inputs]
    try:
        with sdpa_kernel(SDPBackend.MATH):
            return with_gradients(function, cast, dout)
    finally:
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(before[0])
        torch.backends.cuda.matmul.allow_tf32 = before[1]


def compare(ours: Function, reference: Function, make: Callable[[], tuple[Sequence[Tensor | None], Tensor]]) -> Verdict:
    """Values and gradients of `ours` against those of `reference` in float64 and in the inputs' dtype.

    Args:
        make: draws inputs and the gradient of the output; again where few numbers were unlucky.
    """
    verdict = Verdict()
    for draw in range(DRAWS):
        inputs, dout = make()
        got = with_gradients(ours, inputs, dout)
        exact, low = theirs(reference, inputs, dout, torch.float64), theirs(reference, inputs, dout, inputs[0].dtype)
        one = Verdict()
        for name, values in zip(("out", *(f"gradient {i}" for i in range(9))), zip(got, exact, low)):
            one.compare(name, *values)
        if draw:
            verdict.merge(one)
        else:
            verdict = one
        if not verdict.wrong():
            break
    return verdict
