"""The softmax's weights, which no kernel keeps: the third result of the flash-attention functions, for tests."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kiln.torch.functions import dropout_mask

__all__ = ["signed_weights"]


def signed_weights(q: Tensor, k: Tensor, rng: Tensor, call: dict[str, Any]) -> Tensor:
    """The softmax's weights; a dropped one is negative, also where it rounds to 0."""
    packed = "cu_seqlens_q" in call
    bounds = [call[f"cu_seqlens_{x}"].tolist() for x in "qk"] if packed else []
    batch = len(bounds[0]) - 1 if packed else q.shape[0]
    longest = (call["max_seqlen_q"], call["max_seqlen_k"]) if packed else (q.shape[1], k.shape[1])
    signs = dropout_mask(rng, batch, q.shape[-2], *longest, call["dropout"], dtype=q.dtype)
    weights = torch.zeros_like(signs)
    for b in range(batch):
        if packed:
            rows, keys = (slice(*at[b : b + 2]) for at in bounds)
            queries, keyed = q[rows], k[keys]
        else:
            queries, keyed = q[b], k[b]
        scores, hidden = _scores(queries, keyed, b, call)
        # Not by the call's log-sum-exps: of scores of a few hundred those are known to 1e-5, and no weight better.
        exact = scores.masked_fill(hidden, -torch.inf).softmax(2)
        exact = exact.masked_fill(hidden, 0.0).to(q.dtype)  # also of rows that see nothing
        place = (b, slice(None), slice(scores.shape[1]), slice(scores.shape[2]))
        dropped = (signs[place] < 0) & ~hidden
        weights[place] = torch.where(dropped, -exact.clamp(min=torch.finfo(q.dtype).tiny), exact)
    return weights


def _scores(q: Tensor, k: Tensor, batch: int, call: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Of one sequence, q [rows, heads, d] and k [keys, heads_kv, d]: scores [heads, rows, keys] in fp32, and where
    nothing is seen, [rows, keys]."""
    scale = q.shape[-1] ** -0.5 if call["scale"] is None else call["scale"]
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    scores = scale * torch.einsum("ihd,jhd->hij", q.float(), k.float())
    if call["softcap"]:
        scores = call["softcap"] * torch.tanh(scores / call["softcap"])
    ahead = torch.arange(q.shape[0], device=q.device)[:, None] + k.shape[0] - q.shape[0]
    ahead = torch.arange(k.shape[0], device=q.device)[None, :] - ahead  # how far a key lies behind the row's own
    if call["alibi_slopes"] is not None:
        slopes = call["alibi_slopes"].float()
        slopes = slopes[batch] if slopes.dim() == 2 else slopes
        scores = scores - slopes[:, None, None] * ahead.abs()
    left, right = call["window"]
    right = 0 if call["causal"] else right
    hidden = torch.zeros_like(ahead, dtype=torch.bool)
    if left >= 0:
        hidden |= ahead < -left
    if right >= 0:
        hidden |= ahead > right
    return scores, hidden
