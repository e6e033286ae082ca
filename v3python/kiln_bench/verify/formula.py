"""Attention by its definition: in float64, and step by step in a call's own precision, as PyTorch's math attention
computes it, whose error is what a kernel's is measured by (judge)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from kiln_bench.verify.numbers import rounded

Array = np.ndarray[Any, Any]


@dataclass
class Part:
    """What one sequence, or all of one length, asks for. Arrays are of float64.

    Attributes:
        q, k, v: [batch, heads, rows, width]; heads of k and v divide those of q.
        scale: of scores.
        hidden: [batch or 1, 1, rows, keys], true where a row does not see a key; None: each sees all.
        bias: [batch or 1, heads or 1, rows, keys]; None: there is none.
        distances: slopes times distances of ALiBi, subtracted; as bias.
        softcap: 0: none.
        sinks: [heads]; None: none.
        keep: [batch, heads, rows, keys] of booleans, which weights dropout keeps; None: all.
        dropout: the share that is dropped.
        dout: [batch, heads, rows, width of v]; None: no gradients are asked for.
    """

    q: Array
    k: Array
    v: Array
    scale: float
    hidden: Array | None = None
    bias: Array | None = None
    distances: Array | None = None
    softcap: float = 0.0
    sinks: Array | None = None
    keep: Array | None = None
    dropout: float = 0.0
    dout: Array | None = None


def solve(part: Part, dtype: str) -> dict[str, Array]:
    """out and lse, and with dout dq, dk, dv, dbias and dsinks, where there are such; rounded after each step to
    `dtype`, "fp64" for not at all. Products are summed in fp32, as PyTorch does; log-sum-exp is fp32 at least."""
    exact = dtype == "fp64"
    number: Any = np.float64 if exact else np.float32

    def r(values: Array) -> Array:
        return rounded(values, dtype)

    q, k, v = (r(t.astype(number)) for t in (part.q, part.k, part.v))
    group = q.shape[1] // max(k.shape[1], 1)
    k, v = k.repeat(group, 1), v.repeat(group, 1)
    share = number(math.sqrt(abs(part.scale)))  # divided between q and k, as math attention does
    scores = r(r(q * math.copysign(1.0, part.scale) * share) @ r(k * share).swapaxes(-1, -2))
    squeezed = None
    if part.softcap:
        squeezed = r(np.tanh(r(scores / number(part.softcap))))
        scores = r(number(part.softcap) * squeezed)
    if (addend := _addend(part, number)) is not None:
        scores = r(scores + r(addend))
    scores = _masked(part, scores, r)
    weights = r(_softmax(scores)[0])[..., : k.shape[2]]
    found = {"lse": _softmax(scores)[1] if exact else _lse(part)}
    factor = None if part.keep is None else np.where(part.keep, number(1 / (1 - part.dropout)), number(0))
    dropped = weights if factor is None else r(weights * factor)
    found["out"] = r(dropped @ v)
    if part.dout is None:
        return found
    dout = r(part.dout.astype(number))
    slopes = r(dout @ v.swapaxes(-1, -2))
    slopes = slopes if factor is None else r(slopes * factor)
    # A sink's weight is one more column, which has no value and so no slope.
    slopes = r(weights * (slopes - (weights * slopes).sum(-1, keepdims=True)))
    if part.sinks is not None:
        of_sink = np.exp(part.sinks.astype(number)[None, :, None] - found["lse"])
        found["dsinks"] = -(of_sink * (found["out"] * dout).sum(-1)).sum((0, 2))
    if part.bias is not None:
        axes = tuple(n for n in range(4) if part.bias.shape[n] == 1 and slopes.shape[n] != 1)
        found["dbias"] = r(slopes.sum(axes, keepdims=True) if axes else slopes)
    if squeezed is not None:
        slopes = r(slopes * r(1 - squeezed * squeezed))
    sign = number(math.copysign(1.0, part.scale))
    found["dq"] = r(r(slopes @ r(k * share)) * share * sign)
    found["dk"] = r(_summed(r(r(slopes.swapaxes(-1, -2) @ r(q * sign * share)) * share), group))
    found["dv"] = r(_summed(r(dropped.swapaxes(-1, -2) @ dout), group))
    return found


def _addend(part: Part, number: Any) -> Array | None:
    bias: Array | None = None if part.bias is None else part.bias.astype(number)
    if part.distances is None:
        return bias
    alibi: Array = part.distances.astype(number)
    return -alibi if bias is None else bias - alibi


def _masked(part: Part, scores: Array, r: Any) -> Array:
    """With minus infinity where nothing is seen, and the sinks as a last column."""
    if part.hidden is not None:
        scores = np.where(part.hidden, -np.inf, scores)
    if part.sinks is not None:
        column = r(part.sinks.astype(scores.dtype))[None, :, None, None]
        scores = np.concatenate([scores, np.broadcast_to(column, (*scores.shape[:3], 1))], 3)
    return scores


def _softmax(scores: Array) -> tuple[Array, Array]:
    """Weights, and the logarithm of their denominator; 0 and minus infinity of rows that see nothing."""
    most = scores.max(3, keepdims=True, initial=-np.inf)
    finite = np.where(np.isfinite(most), most, 0)
    weights = np.exp(scores - finite)
    total = weights.sum(3, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (np.log(total) + finite)[..., 0]
    return weights / np.where(total == 0, 1, total), lse


def _lse(part: Part) -> Array:
    """Of scores in fp32: log-sum-exp leaves a kernel in that, and so should scores that are not extreme."""
    scores = (part.q.astype(np.float32) * np.float32(part.scale)) @ part.k.astype(np.float32).repeat(
        part.q.shape[1] // max(part.k.shape[1], 1), 1
    ).swapaxes(-1, -2)
    if part.softcap:
        scores = np.float32(part.softcap) * np.tanh(scores / np.float32(part.softcap))
    if (addend := _addend(part, np.float32)) is not None:
        scores = scores + addend
    return _softmax(_masked(part, scores, lambda values: values))[1]


def _summed(gradient: Array, group: int) -> Array:
    """Over the query heads that share a head."""
    batch, heads, *rest = gradient.shape
    return gradient.reshape(batch, heads // group, group, *rest).sum(2)


def hidden_from(rows: int, keys: int, window: tuple[int, int], bottom_right: bool, leftpad: int = 0) -> Array | None:
    """[1, 1, rows, keys], true where a row does not see a key; None: each sees all.

    Args:
        window: (left, right), below 0 for none.
        leftpad: keys at the begin that nobody sees.
    """
    left, right = window
    if left < 0 and right < 0 and not leftpad:
        return None
    i: Array = np.arange(rows)[:, None] + (keys - rows if bottom_right else 0)
    j = np.arange(keys)[None, :]
    result = np.broadcast_to(j < leftpad, (rows, keys)).copy()
    if left >= 0:
        result |= j < i - left
    if right >= 0:
        result |= j > i + right
    return result[None, None]


def distances(rows: int, keys: int) -> Array:
    """[rows, keys], of ALiBi: how far each row is from each key, the last row and the last key being together."""
    return np.abs(np.arange(rows)[:, None] + (keys - rows) - np.arange(keys)[None, :])


def rotate(x: Array, cos: Array, sin: Array, interleaved: bool, dtype: str) -> Array:
    """x [..., rows, width] with its first columns turned by the angles [rows, half], in the precision of `dtype`."""

    def r(values: Array) -> Array:
        return rounded(values, dtype)

    half = cos.shape[1]
    turned, rest = x[..., : 2 * half], x[..., 2 * half :]
    one, other = (turned[..., 0::2], turned[..., 1::2]) if interleaved else (turned[..., :half], turned[..., half:])
    first, second = r(r(one * cos) - r(other * sin)), r(r(other * cos) + r(one * sin))
    both = np.stack([first, second], -1).reshape(turned.shape) if interleaved else np.concatenate([first, second], -1)
    return np.concatenate([both, rest], -1)
