"""The right results, in fp32, of a part of a call: of one head of keys and values, and the query heads that share it.

How exact an answer is has tests of its own; here nothing shall be timed that computes something else. ||a - b|| / ||b||
of two right answers in bf16 is near 0.005, of a wrong one near 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

LARGEST_ERROR = 0.03
GRADIENTS = ("dq", "dk", "dv")
_SCORES = 1 << 28  # computed at once


def error(mine: torch.Tensor, right: torch.Tensor) -> float:
    """Of the norms; NaN if anything is."""
    import torch

    distance = torch.linalg.vector_norm(mine.float() - right.float())
    return (distance / torch.linalg.vector_norm(right.float())).item()


def worst(mine: Mapping[str, torch.Tensor], right: Mapping[str, torch.Tensor]) -> float:
    """The largest error of several results; NaN if one is."""
    found = [error(mine[name], right[name]) for name in right]
    return next((value for value in found if value != value), max(found))


def exact(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dout: torch.Tensor | None, causal: bool = False, window: int = 0,
    softcap: float = 0.0, sinks: torch.Tensor | None = None,
) -> dict[str, torch.Tensor]:  # fmt: skip
    """Attention of one head of keys: `out`, and with `dout` its gradients.

    Args:
        q, dout: [heads, rows, head_dim], of the query heads that share the head.
        k, v: [keys, head_dim].
        sinks: [heads].
    """
    import torch

    q, k, v = q.float(), k.float(), v.float()
    scale, keys = q.shape[-1] ** -0.5, k.shape[0]
    found = {"out": torch.empty(*q.shape[:2], v.shape[-1], dtype=torch.float32, device=q.device)}
    if dout is not None:
        found |= {"dq": torch.empty_like(q), "dk": torch.zeros_like(k), "dv": torch.zeros_like(v)}
    step = max(1, _SCORES // max(1, q.shape[0] * keys))
    for begin in range(0, q.shape[1], step):
        rows = slice(begin, min(begin + step, q.shape[1]))
        scores = q[:, rows] @ k.T * scale
        bent = torch.tanh(scores / softcap) if softcap else None
        scores = scores if bent is None else bent * softcap
        if causal:
            row = torch.arange(rows.start, rows.stop, device=q.device)[:, None]
            key = torch.arange(keys, device=q.device)[None]
            hidden = key > row
            if window:
                hidden |= key <= row - window
            scores.masked_fill_(hidden, -torch.inf)
        if sinks is not None:  # one more key, whose weight is left out
            sink = sinks[:, None, None].expand(*scores.shape[:2], 1)
            scores = torch.cat((scores, sink), -1)
        weights = torch.softmax(scores, -1)[..., :keys]
        found["out"][:, rows] = weights @ v
        if dout is None:
            continue
        given = dout[:, rows].float()
        slopes = given @ v.T
        slopes = weights * (slopes - (weights * slopes).sum(-1, keepdim=True)) * scale
        slopes = slopes if bent is None else slopes * (1 - bent**2)
        found["dq"][:, rows] = slopes @ k
        found["dk"] += torch.einsum("hrk,hrd->kd", slopes, q[:, rows])
        found["dv"] += torch.einsum("hrk,hrd->kd", weights, given)
    return found
