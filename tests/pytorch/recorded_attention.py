"""The attention that a model of Transformers calls for, recorded, as `kiln coverage` tells it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

NAME = "recorded"
_MASKED = -1e4  # what is added to a score that counts is above this


@dataclass(frozen=True)
class Call:
    """One call; `causal` is None where its mask does not tell: of a single row, or of rows beside other keys."""

    heads: int
    heads_kv: int
    head_dim: int
    head_dim_v: int
    causal: bool | None
    has_window: bool
    is_capped: bool
    has_sinks: bool
    has_bias: bool


class Recorder:
    """Calls in the order in which they first came, and what they are worth: softmax without any extra term."""

    def __init__(self) -> None:
        self.calls: dict[Call, None] = {}
        AttentionInterface.register(NAME, self._attend)
        AttentionMaskInterface.register(NAME, eager_mask)

    def _attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, **more: Any
    ) -> tuple[Tensor, None]:
        rows, keys = query.shape[2], key.shape[2]
        terms = None if mask is None else torch.zeros(()).masked_fill(~mask, -1e30) if _is_flags(mask) else mask
        if terms is not None:
            terms = terms[..., :keys]
        causal, narrow, has_bias = _seen(terms, rows, keys)
        if terms is None and rows == keys > 1:
            told = more.get("is_causal")
            causal = bool(getattr(module, "is_causal", True) if told is None else told)
        call = Call(
            query.shape[1], key.shape[1], query.shape[3], value.shape[3], causal,
            bool(more.get("sliding_window")) or narrow, bool(more.get("softcap")), more.get("s_aux") is not None,
            has_bias or _is_nonzero(more.get("position_bias")),
        )  # fmt: skip
        self.calls[call] = None
        group = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
        scores = query @ key.transpose(-1, -2) * (more.get("scaling") or query.shape[-1] ** -0.5)
        weights = torch.softmax(scores if terms is None else scores + terms, -1).to(value.dtype)
        return (weights @ value).transpose(1, 2).contiguous(), None


def _is_nonzero(bias: Tensor | None) -> bool:
    """T5 gives its attention to the encoder a bias too, of zeros."""
    return bias is not None and bool(bias.any())


def _is_flags(mask: Tensor) -> bool:
    return mask.dtype == torch.bool


def _seen(terms: Tensor | None, rows: int, keys: int) -> tuple[bool | None, bool, bool]:
    """Whether no row sees a key behind it; whether none sees all before it; whether more than a mask is added."""
    if terms is None or terms.dim() < 2 or terms.shape[-2] != rows:
        return None, False, False
    visible = terms > _MASKED
    has_bias = bool(((terms != 0) & visible).any())
    visible = visible.reshape(-1, rows, keys).any(0)
    if rows != keys or rows == 1:
        return None, False, has_bias
    distance = torch.arange(rows)[:, None] - torch.arange(keys)
    causal = not bool((visible & (distance < 0)).any())
    return causal, causal and not bool(visible[-1, 0]), has_bias
