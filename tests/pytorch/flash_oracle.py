"""What the flash-attention functions must give, written down plainly: one sequence at a time, in any dtype. In float64
it is the definition; in the call's own dtype its error is what a kernel's is measured by."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Options:
    """The arguments that all of the functions share; `slopes` says of which shape ALiBi's are: "heads" or "batch"."""

    causal: bool = False
    window_size: tuple[int, int] = (-1, -1)
    softcap: float = 0.0
    softmax_scale: float | None = None
    dropout_p: float = 0.0
    slopes: str | None = None

    def scale(self, q: Tensor) -> float:
        return 1 / math.sqrt(q.shape[-1]) if self.softmax_scale is None else self.softmax_scale


def hidden(rows: int, keys: int, options: Options, first_key: int = 0) -> Tensor:
    """[rows, keys], true where a row does not see a key."""
    left, right = options.window_size
    i, j = torch.arange(rows)[:, None] + keys - rows, torch.arange(keys)[None, :]
    result = (j < first_key).expand(rows, keys).clone()
    if options.causal:
        result |= j > i
    elif right >= 0:
        result |= j - i > right
    if left >= 0:
        result |= i - j > left
    return result


def attend(
    q: Tensor, k: Tensor, v: Tensor, options: Options, slopes: Tensor | None = None, keep: Tensor | None = None,
    first_key: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """One sequence.

    Args:
        q: [rows, heads, d]; k, v: [keys, heads_kv, d].
        slopes: [heads]; keep: [heads, rows, keys], what dropout kept.

    Returns:
        out [rows, heads, d], lse [heads, rows], and the softmax's weights, [heads, rows, keys].
    """
    rows, keys, group = q.shape[0], k.shape[0], q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("ihd,jhd->hij", q, k) * options.scale(q)
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if options.softcap > 0:
        scores = options.softcap * torch.tanh(scores / options.softcap)
    if slopes is not None:
        i, j = torch.arange(rows, device=q.device)[:, None], torch.arange(keys, device=q.device)[None, :]
        scores = scores - slopes.to(scores.dtype)[:, None, None] * (i + keys - rows - j).abs()
    unseen = hidden(rows, keys, options, first_key).to(q.device)
    blind = unseen.all(1)  # of a row; so are all where there are no keys
    scores = scores.masked_fill(unseen & ~blind[:, None], -math.inf)
    weights = scores.softmax(2).masked_fill(blind[:, None], 0.0)
    lse = scores.logsumexp(2).masked_fill(blind, -math.inf)
    kept = weights if keep is None else torch.where(keep, weights / (1 - options.dropout_p), 0.0)
    return torch.einsum("hij,jhd->ihd", kept.to(q.dtype), v), lse, weights


def gradients(
    q: Tensor, k: Tensor, v: Tensor, dout: Tensor, options: Options, slopes: Tensor | None, keep: Tensor | None
) -> tuple[list[Tensor], list[Tensor]]:
    """dq, dk and dv of one sequence as all FlashAttentions have them: by the output as it was rounded, with products in
    float32. And of each element the size of the terms that it is the sum of."""
    group = q.shape[1] // k.shape[1]
    out, _, _ = attend(q, k, v, options, slopes, keep)
    wide = [x.float() for x in (q, k, v, dout)]
    q32, k32, v32, dout32 = wide[0], *(x.repeat_interleave(group, 1) for x in wide[1:3]), wide[3]
    _, _, weights = attend(*wide[:3], options, slopes)
    factor = torch.ones_like(weights) if keep is None else keep / (1 - options.dropout_p)
    dweights = torch.einsum("ihd,jhd->hij", dout32, v32) * factor
    delta = (dout32 * out.float()).sum(2).T[:, :, None]
    slope = torch.ones_like(weights)  # of the soft cap
    if options.softcap > 0:
        products = torch.einsum("ihd,jhd->hij", q32, k32) * options.scale(q)
        slope = 1 - torch.tanh(products / options.softcap).square()
    slope = slope * options.scale(q)
    dscores = (weights * (dweights - delta) * slope).to(q.dtype).float()
    sizes = weights * (dweights.abs() + delta.abs()) * slope

    def grouped(x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], k.shape[1], group, x.shape[2]).sum(2)

    dv = torch.einsum("hij,ihd->jhd", (weights * factor).to(q.dtype).float(), dout32)
    found = [
        torch.einsum("hij,jhd->ihd", dscores, k32),
        grouped(torch.einsum("hij,ihd->jhd", dscores, q32)),
        grouped(dv),
    ]
    terms = [
        torch.einsum("hij,jhd->ihd", sizes, k32.abs()),
        grouped(torch.einsum("hij,ihd->jhd", sizes, q32.abs())),
        grouped(torch.einsum("hij,ihd->jhd", weights * factor, dout32.abs())),
    ]
    return [x.to(q.dtype) for x in found], terms


def turned(x: Tensor, cos: Tensor, sin: Tensor, positions: list[int], interleaved: bool) -> Tensor:
    """Rotary embedding: x [rows, heads, d], row i by the angles of positions[i]."""
    half = cos.shape[1]
    cos, sin = (table[positions][:, None, :].to(x.dtype) for table in (cos, sin))
    first, second = slice(half), slice(half, 2 * half)
    if interleaved:
        first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    result = x.clone()
    result[..., first] = x[..., first] * cos - x[..., second] * sin
    result[..., second] = x[..., second] * cos + x[..., first] * sin
    return result


def compare(
    name: str, found: Tensor, exact: Tensor, own: Tensor, dtype: torch.dtype, size: float = 1.0, factor: float = 2.0
) -> None:
    """Fails unless `found` is no further from `exact` than `factor` times what `own`, the formula in `dtype`, is, and a
    few roundings of numbers of `size`, or of the largest."""
    assert found.shape == exact.shape, f"{name}: {tuple(found.shape)}, not {tuple(exact.shape)}"
    found, exact, own = (x.detach().double().cpu() for x in (found, exact, own))
    infinite = torch.isinf(exact)
    assert torch.equal(found[infinite], exact[infinite]), f"{name}: other infinities"
    found, exact, own = (x.masked_fill(infinite, 0.0) for x in (found, exact, own))
    if exact.numel():
        many = 16 if dtype == torch.float32 else 2
        roundings = many * torch.finfo(dtype).eps * max(float(exact.abs().max()), size)
        limit = factor * float((own - exact).abs().max()) + roundings
        error = float((found - exact).abs().max())
        assert error <= limit, f"{name}: off by {error:.3g}, more than {limit:.3g}"
