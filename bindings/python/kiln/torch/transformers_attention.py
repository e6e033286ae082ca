"""The attention that Transformers' modules call; imports that package."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from kiln.errors import ArgumentError, UnsupportedError
from kiln.torch import routing
from kiln.torch.functions import attention, decode
from kiln.torch.transformers_masks import Pattern, tells_window

__all__ = ["attend", "attend_or_sdpa"]

FEW_ROWS = 16  # so few rows over many keys are decoding's

_LENGTHS = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
_NO_WEIGHTS = 'output_attentions is set, but Kiln keeps no attention weights; attn_implementation="eager" does'


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
        raise UnsupportedError(_NO_WEIGHTS)
    call = {"scale": scaling, "softcap": softcap or 0.0, "sinks": s_aux}
    lengths = (cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k)
    if attention_mask is None:
        pattern, keys = _without_mask(module, query, key, is_causal, sliding_window)
        pattern.packed = all(x is not None for x in lengths)
    else:
        pattern, keys = _of_mask(attention_mask), key.shape[2]

    if pattern.packed and position_bias is None:
        if any(x is None for x in lengths):
            lengths = (pattern.cu_seqlens, pattern.cu_seqlens, pattern.longest, pattern.longest)
        if lengths[0] is not None:
            return _packed(query, key, value, pattern, lengths, dropout, call), None
    if attention_mask is None and pattern.packed:
        raise UnsupportedError("packed sequences have a position bias, which would have to be packed as well")

    key, value = key[:, :, :keys], value[:, :, :keys]
    if position_bias is None and _can_decode(query, key, value, s_aux, dropout):
        seen = _cached(pattern)
        if seen is not None:
            return _rows_first(decode(*_cast_together(query, key, value), **seen, **call)), None

    bias = _bias(pattern.keys if pattern.is_whole else attention_mask, pattern, query.dtype)
    if position_bias is not None:
        position_bias = position_bias[..., :keys]
        bias = position_bias if bias is None else position_bias + bias
    if pattern.is_whole:
        call.update(
            causal=pattern.causal, window=pattern.window, bottom_right=pattern.bottom_right, seqused_k=pattern.seqused_k
        )
    return _rows_first(attention(query, key, value, bias=bias, dropout=dropout, **call)), None


def attend_or_sdpa(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """`attend`, or where Kiln has no kernel PyTorch's attention, with the reason counted.

    Beneath torch.compile, whose graphs are made before anything is refused, a refused call raises.
    """
    if options.get("output_attentions"):
        raise UnsupportedError(_NO_WEIGHTS)
    plain = {"dropout": dropout, "scaling": scaling, "is_causal": is_causal}
    try:
        return attend(module, query, key, value, attention_mask, **plain, **options)
    except routing.REFUSALS as error:
        if options.get("softcap") or options.get("s_aux") is not None:
            lacks = "soft cap" if options.get("softcap") else "sinks"
            raise UnsupportedError(f"{error}; and the fallback, PyTorch's attention, has no {lacks}")
        routing.count(str(error))
    if attention_mask is None:
        attention_mask = _spelled(module, query, key, is_causal, options)
    bias = options.get("position_bias")
    return sdpa_attention_forward(module, query, key, value, attention_mask, **plain, position_bias=bias)


def _spelled(
    module: torch.nn.Module, query: Tensor, key: Tensor, is_causal: bool | None, options: dict[str, Any]
) -> Tensor | None:
    """What a mask of None says to `attend` and not to PyTorch's attention: booleans, [batch or 1, 1, rows, keys]."""
    pattern, _ = _without_mask(module, query, key, is_causal, options.get("sliding_window"))
    packs = all(options.get(name) is not None for name in _LENGTHS)
    if pattern.window[0] < 0 and not packs:
        return None
    places = []
    for x, name in ((query, "cu_seq_lens_q"), (key, "cu_seq_lens_k")):
        batch, rows = x.shape[0] if packs else 1, x.shape[2]
        place = torch.arange(batch * rows, device=x.device).reshape(batch, rows)
        if packs:
            ends = options[name][1:].to(place.dtype)
            number = torch.searchsorted(ends, place, right=True).clamp(max=ends.numel() - 1)
            places.append((place - ends[number], number))
        else:
            places.append((place - rows if pattern.bottom_right else place, None))
    (row, row_of), (keyed, key_of) = places
    ahead = keyed[:, None, None, :] - row[:, None, :, None]
    seen = ahead <= 0 if pattern.causal else torch.ones_like(ahead, dtype=torch.bool)
    if pattern.window[0] >= 0:
        seen = seen & (ahead >= -pattern.window[0])
    return seen & (key_of[:, None, None, :] == row_of[:, None, :, None]) if packs else seen


def _rows_first(out: Tensor) -> Tensor:
    return out.transpose(1, 2).contiguous()


def _without_mask(
    module: torch.nn.Module, query: Tensor, key: Tensor, is_causal: bool | None, sliding_window: int | None
) -> tuple[Pattern, int]:
    """What a mask of None says, and how many keys there are to see: a static cache has some that no row does."""
    rows, keys = query.shape[2], key.shape[2]
    is_causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    window = sliding_window if tells_window(getattr(module, "config", None)) else None
    if rows > 1:
        if not is_causal:
            return Pattern(), keys
        keys = min(rows, keys)
    left = window - 1 if window is not None and window < keys else -1
    return Pattern(causal=rows > 1, window=(left, -1), bottom_right=rows == 1), keys


def _of_mask(mask: Tensor) -> Pattern:
    """What a mask carries, unless it was written to since."""
    pattern = getattr(mask, "kiln", None)
    if pattern is None:
        return Pattern(is_whole=False)
    if pattern.version is not None and not torch.compiler.is_compiling() and pattern.version != mask._version:
        return Pattern(is_whole=False)
    return pattern


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


def _cast_together(*tensors: Tensor) -> tuple[Tensor, ...]:
    """What autocast makes of attention's inputs; that of a cache it leaves alone."""
    device = tensors[0].device.type
    if not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple(x.to(dtype) for x in tensors)


def _cached(pattern: Pattern) -> dict[str, Any] | None:
    """The arguments of `decode` that say what a pattern does, or None."""
    if pattern.span is not None:
        first, end = pattern.span
        return {"leftpad": first, "seqused_k": end}
    if not (pattern.is_whole and pattern.bottom_right and pattern.keys is None):
        return None
    return {"seqused_k": pattern.seqused_k, "causal": pattern.causal, "window": pattern.window}


def _bias(mask: Tensor | None, pattern: Pattern, dtype: torch.dtype) -> Tensor | None:
    """What is to be added to scores, of booleans or of what is added already."""
    if mask is None or mask.dtype.is_floating_point:
        return mask
    if mask.dtype != torch.bool:
        raise ArgumentError(f"attention_mask is of {mask.dtype}; expected torch.bool, or what is added to scores")
    if torch.compiler.is_compiling():  # a compiler finds what is computed twice
        return _added(mask, dtype)
    if dtype not in pattern.biases:
        pattern.biases[dtype] = _added(mask, dtype)
    return pattern.biases[dtype]


def _added(seen: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros((), dtype=dtype, device=seen.device).where(seen, -math.inf)
