"""What a call of attention must give: the definition in float64, and the same formula in the call's own precision,
whose error is what a kernel's is measured by. PyTorch's own math attention is that formula where it can be."""

from __future__ import annotations

import math
from contextlib import contextmanager

import torch
from calls import Call, Inputs, Segment
from torch.nn.attention import SDPBackend, sdpa_kernel

Answers = dict[str, torch.Tensor]


@contextmanager
def honest_precision():
    """fp16 and bf16 stay what they are in math attention, and fp32 is no TF32."""
    before = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed(), torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)  # else it computes in fp32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(before[0])
        torch.backends.cuda.matmul.allow_tf32 = before[1]


def hidden_from(
    rows: int, keys: int, window: tuple[int, int], bottom_right: bool, device: torch.device, leftpad: int = 0
) -> torch.Tensor | None:
    """[rows, keys], true where a row does not see a key; None: each sees all."""
    left, right = window
    if left < 0 and right < 0 and not leftpad:
        return None
    i = torch.arange(rows, device=device)[:, None] + (keys - rows if bottom_right else 0)
    j = torch.arange(keys, device=device)[None, :]
    result = (j < leftpad) | torch.zeros_like(i, dtype=torch.bool)
    if left >= 0:
        result = result | (j < i - left)
    if right >= 0:
        result = result | (j > i + right)
    return result


def distances(rows: int, keys: int, device: torch.device) -> torch.Tensor:
    """[rows, keys], of ALiBi."""
    i, j = torch.arange(rows, device=device)[:, None], torch.arange(keys, device=device)[None, :]
    return (i + (keys - rows) - j).abs()


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, *, hidden: torch.Tensor | None = None,
    addend: torch.Tensor | None = None, softcap: float = 0.0, sinks: torch.Tensor | None = None,
    keep: torch.Tensor | None = None, dropout: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """The formula, step by step in q's dtype: (out, lse), lse in fp32 at least.

    Args:
        q, k, v: [batch, heads, rows, width]; heads of k and v divide those of q.
        hidden: [..., rows, keys], where nothing is seen.
        addend: [..., rows, keys], added to scores after the soft cap.
        sinks: [heads].
        keep: [batch, heads, rows, keys] of booleans.
    """
    group = q.shape[1] // max(k.shape[1], 1)
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    share = math.sqrt(abs(scale))  # as math attention divides it between q and k
    scores = (q * math.copysign(share, scale)) @ (k * share).mT
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if addend is not None:
        scores = scores + addend.to(scores.dtype)
    if hidden is not None:
        scores = scores.masked_fill(hidden, -math.inf)
    if sinks is not None:
        column = sinks.to(scores.dtype)[None, :, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, column], 3)
    blind = (scores == -math.inf).all(3, keepdim=True)  # also where there is no key at all
    lse = scores.detach().to(torch.promote_types(scores.dtype, torch.float32)).masked_fill(blind, 0.0)
    lse = lse.logsumexp(3, keepdim=True).masked_fill(blind, -math.inf).squeeze(3)
    weights = scores.masked_fill(blind, 0.0).softmax(3).masked_fill(blind, 0.0)[..., : k.shape[2]]
    if keep is not None:
        weights = torch.where(keep, weights / (1 - dropout), 0.0)
    return weights @ v, lse


def by_pytorch(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, call: Call, hidden: torch.Tensor | None,
    addend: torch.Tensor | None,
) -> torch.Tensor:  # fmt: skip
    """PyTorch's math attention; it has no soft cap, no sinks and no dropout that can be told what to keep."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    is_causal = addend is None and call.window == (-1, 0) and not call.bottom_right
    mask = None
    if addend is not None:
        mask = addend.to(q.dtype) if hidden is None else addend.to(q.dtype).masked_fill(hidden, -math.inf)
        mask = mask.expand(*q.shape[:3], k.shape[2])
    elif hidden is not None and not is_causal:
        mask = ~hidden
    attention = torch.nn.functional.scaled_dot_product_attention
    return attention(q, k, v, attn_mask=mask, is_causal=is_causal, scale=scale)


class Leaves:
    """What gradients are taken of, in one dtype."""

    def __init__(self, call: Call, inputs: Inputs, dtype: torch.dtype) -> None:
        def leaf(values: torch.Tensor) -> torch.Tensor:
            return values.detach().to(dtype).requires_grad_(call.backward)

        self.q, self.k, self.v = (leaf(storage.values) for storage in (inputs.q, inputs.k, inputs.v))
        self.bias = self.sinks = None
        if inputs.bias is not None:
            values = inputs.bias.values  # dbias has all rows, also where those of the bias are one
            self.bias = leaf(values.expand(*values.shape[:2], call.rows, call.keys).contiguous())
        if inputs.sinks is not None:
            self.sinks = leaf(inputs.sinks)

    def named(self) -> dict[str, torch.Tensor]:
        leaves = {"dq": self.q, "dk": self.k, "dv": self.v, "dbias": self.bias, "dsinks": self.sinks}
        return {name: leaf for name, leaf in leaves.items() if leaf is not None}


def _addend(
    call: Call, leaves: Leaves, inputs: Inputs, segment: Segment, rows: int, keys: int, dtype: torch.dtype
) -> torch.Tensor | None:
    """Bias and ALiBi together; ALiBi's products are fp32 at least, and rounded once, as a mask for PyTorch would be."""
    result = None
    if leaves.bias is not None:
        result = leaves.bias[..., :rows, :keys]
        result = result if result.shape[0] == 1 else result[segment.batches]
    if inputs.slopes is not None:
        wide = torch.promote_types(dtype, torch.float32)
        slopes = inputs.slopes[segment.batches].to(wide)[:, :, None, None]
        alibi = -slopes * distances(rows, keys, slopes.device)
        result = (alibi if result is None else result.to(wide) + alibi).to(dtype)
    return result


def solve(call: Call, inputs: Inputs, dtype: torch.dtype, keep: torch.Tensor | None = None) -> Answers:
    """All outputs of a call, computed in `dtype`: out, lse and the gradients, each as one row of numbers that has only
    what counts (see `counted`).

    Args:
        keep: [batch, heads, rows, keys] of booleans, with dropout.
    """
    leaves = Leaves(call, inputs, dtype)
    outs, lses, cotangents, sink_gradient = [], [], [], 0.0
    plain = dtype != torch.float64 and not (call.softcap or call.sinks or call.dropout)
    with honest_precision():
        for segment in call.segments():
            q, k, v = leaves.q[segment.q], leaves.k[segment.k], leaves.v[segment.k]
            rows, keys = q.shape[2], k.shape[2]
            hidden = hidden_from(rows, keys, call.window, call.bottom_right, q.device)
            addend = _addend(call, leaves, inputs, segment, rows, keys, dtype)
            kept = None if keep is None else keep[segment.batches, :, :rows, :keys]
            with torch.set_grad_enabled(call.backward and not plain):
                out, lse = attend(
                    q, k, v, call.scale, hidden=hidden, addend=addend, softcap=call.softcap, sinks=leaves.sinks,
                    keep=kept, dropout=call.dropout,
                )  # fmt: skip
            if plain and rows and keys:
                out = by_pytorch(q, k, v, call.scale, call, hidden, addend)
            if dtype in (torch.float16, torch.bfloat16) and call.inputs == "normal":
                # No more is asked for: log-sum-exp leaves a kernel in fp32, and scores that are not extreme should too.
                wide = _addend(call, leaves, inputs, segment, rows, keys, torch.float32)
                with torch.no_grad():
                    _, lse = attend(
                        q.float(), k.float(), v.float(), call.scale, hidden=hidden, addend=wide, softcap=call.softcap,
                        sinks=leaves.sinks,
                    )  # fmt: skip
            outs.append(out)
            lses.append(lse)
            if call.backward:
                cotangents.append(inputs.dout.values[segment.q].to(dtype))
                if call.sinks and dtype != torch.float64:
                    sink_gradient = sink_gradient + _of_sinks(leaves.sinks, lse, out, cotangents[-1])
        answers = {
            "out": torch.cat([out.detach().reshape(-1) for out in outs]),
            "lse": torch.cat([lse.reshape(-1) for lse in lses]),
        }
        if call.backward:
            named = leaves.named()
            pairs = [(out, given) for out, given in zip(outs, cotangents) if out.requires_grad]
            gradients = [None] * len(named)
            if pairs:
                given_outs, cotangents = map(list, zip(*pairs))
                gradients = torch.autograd.grad(given_outs, list(named.values()), cotangents, allow_unused=True)
            for (name, leaf), gradient in zip(named.items(), gradients):
                answers[name] = counted(call, name, torch.zeros_like(leaf) if gradient is None else gradient)
            if call.sinks and dtype != torch.float64:
                answers["dsinks"] = sink_gradient
    return answers


def _of_sinks(sinks: torch.Tensor, lse: torch.Tensor, out: torch.Tensor, dout: torch.Tensor) -> torch.Tensor:
    """What sinks' gradient is in a precision that PyTorch has no sinks for: the formula of all FlashAttentions, in
    which the output is the rounded one."""
    weights = (sinks.detach().float()[None, :, None] - lse.detach().float()).exp()
    return -(weights * (out.detach().float() * dout.float()).sum(-1)).sum((0, 2))


def counted(call: Call, name: str, tensor: torch.Tensor, is_written: bool = False) -> torch.Tensor:
    """Of an output, in one row, what belongs to sequences. All of dbias: it is 0 where no sequence reaches.

    Args:
        is_written: by a kernel, so that its log-sum-exps lie as the call has them; else as q's rows.
    """
    if name in ("dbias", "dsinks"):
        return tensor.reshape(-1)

    def place(segment: Segment) -> tuple:
        if name == "lse" and is_written:
            return call.lse_place(segment)
        return segment.k if name in ("dk", "dv") else segment.q

    return torch.cat([tensor[place(segment)].reshape(-1) for segment in call.segments()])
