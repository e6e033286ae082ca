"""The attention that Transformers' modules call; imports that package."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from kiln.errors import ArgumentError, UnsupportedError
from kiln.torch.functions import attention, decode
from kiln.torch.transformers_masks import Pattern, tells_window

__all__ = ["attend"]

FEW_ROWS = 16  # so few rows over many keys are decoding's


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | None = None,
    max_length_q: int | Tensor | None = None,
    max_length_k: int | Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention of one layer, with the arguments and results of Transformers' own.

    Args:
        query: [batch, heads, rows, d]; key, value: [batch, heads_kv, keys, d].
        attention_mask: of `make_mask`; or a model's own, booleans (true: seen) or what is added to scores, broadcast to
            [batch, heads, rows, keys]: it is then all that masks.
        is_causal, sliding_window: count without a mask; see `make_mask`. None: the module's own, no window.
        s_aux: [heads], sinks.
        position_bias: added to scores, broadcast to [batch, heads, rows, keys] or more keys.
        cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k: all four: packed sequences in all rows of all
            batches.
        others: not looked at, but for output_attentions.

    Returns:
        [batch, rows, heads, d], and None in place of the weights.
    """
    if others.get("output_attentions"):
        raise UnsupportedError(
            'output_attentions is set, but Kiln keeps no attention weights; use attn_implementation="eager" for them'
        )
    call = {"scale": scaling, "softcap": softcap or 0.0, "sinks": s_aux}
    lengths = (cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k)
    pattern = getattr(attention_mask, "kiln", None)
    if attention_mask is None:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        window = sliding_window if tells_window(getattr(module, "config", None)) else None
        pattern, keys = _unmasked(query.shape[2], key.shape[2], causal, window)
        key, value = key[:, :, :keys], value[:, :, :keys]
    if position_bias is not None:
        position_bias = position_bias[..., : key.shape[2]]

    packs = pattern is not None and (attention_mask is None or pattern.cu_seqlens is not None)
    if packs and position_bias is None and all(x is not None for x in lengths):
        return _packed(query, key, value, pattern, lengths, dropout, call), None
    if pattern is not None and pattern.cu_seqlens is not None and position_bias is None:
        lengths = (pattern.cu_seqlens, pattern.cu_seqlens, pattern.longest, pattern.longest)
        return _packed(query, key, value, pattern, lengths, dropout, call), None

    if pattern is not None and position_bias is None and _can_decode(query, key, value, s_aux, dropout):
        seen = _cached(pattern)
        if seen is not None:
            return _rows_first(decode(query, key, value, **seen, **call)), None

    bias = _bias(attention_mask, pattern, query.dtype)
    if position_bias is not None:
        bias = position_bias if bias is None else position_bias + bias
    if pattern is not None and pattern.is_whole and pattern.cu_seqlens is None:
        call.update(
            causal=pattern.causal, window=pattern.window, bottom_right=pattern.bottom_right, seqused_k=pattern.seqused_k
        )
    return _rows_first(attention(query, key, value, bias=bias, dropout=dropout, **call)), None


def _rows_first(out: Tensor) -> Tensor:
    return out.transpose(1, 2).contiguous()


def _unmasked(rows: int, keys: int, causal: bool, window: int | None) -> tuple[Pattern, int]:
    """What a mask of None says, and how many keys there are to see: a static cache has some that no row does."""
    if rows == 1:
        left = window - 1 if window is not None and window < keys else -1
        return Pattern(window=(left, -1), bottom_right=True), keys
    if not causal:
        return Pattern(), keys
    keys = min(rows, keys)
    left = window - 1 if window is not None and window < keys else -1
    return Pattern(causal=True, window=(left, -1)), keys


def _packed(
    query: Tensor, key: Tensor, value: Tensor, pattern: Pattern, lengths: tuple, dropout: float, call: dict[str, Any]
) -> Tensor:
    """Attention of sequences that lie one after another in all rows of all batches; [batch, rows, heads, d]."""
    begins_q, begins_k, longest_q, longest_k = lengths
    rows = [x[0].transpose(0, 1) if x.shape[0] == 1 else x.transpose(1, 2).flatten(0, 1) for x in (query, key, value)]
    out = attention(
        *rows, cu_seqlens_q=begins_q.to(torch.int32), cu_seqlens_k=begins_k.to(torch.int32),
        max_seqlen_q=int(longest_q), max_seqlen_k=int(longest_k), causal=pattern.causal, window=pattern.window,
        bottom_right=True, rows_first=True, dropout=dropout, **call,
    )  # fmt: skip
    return out.reshape(query.shape[0], query.shape[2], *out.shape[1:])


def _can_decode(query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None, dropout: float) -> bool:
    """Decoding is faster where rows are few; it has neither gradients nor dropout."""
    if dropout or query.shape[2] > FEW_ROWS:
        return False
    inputs = (query, key, value) if sinks is None else (query, key, value, sinks)
    return not (torch.is_grad_enabled() and any(x.requires_grad for x in inputs))


def _cached(pattern: Pattern) -> dict[str, Any] | None:
    """The arguments of `decode` that say what a pattern does, or None."""
    if pattern.span is not None:
        first, end = pattern.span
        return {"leftpad": first, "seqused_k": end}
    if not (pattern.is_whole and pattern.bottom_right and pattern.keys is None):
        return None
    return {"seqused_k": pattern.seqused_k, "causal": pattern.causal, "window": pattern.window}


def _bias(mask: Tensor | None, pattern: Pattern | None, dtype: torch.dtype) -> Tensor | None:
    """What is to be added to scores: of a mask, or of its pattern's keys alone."""
    told = mask
    if pattern is not None and pattern.is_whole and pattern.cu_seqlens is None:
        told = pattern.keys
    if told is None:
        return None
    if told.dtype.is_floating_point:
        return told
    if told.dtype != torch.bool:
        raise ArgumentError(f"attention_mask is of {told.dtype}; expected torch.bool, or what is added to scores")
    if pattern is None or torch.compiler.is_compiling():  # where a compiler finds what is computed twice
        return _added(told, dtype)
    if dtype not in pattern.biases:
        pattern.biases[dtype] = _added(told, dtype)
    return pattern.biases[dtype]


def _added(seen: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros((), dtype=dtype, device=seen.device).where(seen, -math.inf)
