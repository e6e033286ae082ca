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
    scale = 1 / math.sqrt(q.shape[2]) if options.softmax_scale is None else options.softmax_scale
    scores = torch.einsum("ihd,jhd->hij", q, k) * scale
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


def compare(name: str, found: Tensor, exact: Tensor, own: Tensor, dtype: torch.dtype, factor: float = 2.0) -> None:
    """Fails unless `found` is no further from `exact` than `factor` times what `own`, the formula in `dtype`, is, and a
    few roundings."""
    assert found.shape == exact.shape, f"{name}: {tuple(found.shape)}, not {tuple(exact.shape)}"
    found, exact, own = (x.detach().double().cpu() for x in (found, exact, own))
    infinite = torch.isinf(exact)
    assert torch.equal(found[infinite], exact[infinite]), f"{name}: other infinities"
    found, exact, own = (x.masked_fill(infinite, 0.0) for x in (found, exact, own))
    if exact.numel():
        # Of numbers about 1 or the largest: a gradient may be a small difference of such.
        many = 16 if dtype == torch.float32 else 4
        roundings = many * torch.finfo(dtype).eps * max(float(exact.abs().max()), 1.0)
        limit = factor * float((own - exact).abs().max()) + roundings
        error = float((found - exact).abs().max())
        assert error <= limit, f"{name}: off by {error:.3g}, more than {limit:.3g}"
