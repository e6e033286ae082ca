"""The attention that Transformers' modules call; imports that package."""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from kiln.errors import ArgumentError, UnsupportedError
from kiln.torch import routing
from kiln.torch.functions import attention, decode, unmoved
from kiln.torch.transformers_lazy import LazyMask, Pattern, added, pattern_of, seen_by

__all__ = ["attend", "attend_or_sdpa"]

FEW_ROWS = 16  # so few rows over many keys are decoding's

_LENGTHS = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
# Tensors that models hand on to whatever attention there is.
_NOT_READ = frozenset([
    "position_ids", "cache_position", "num_items_in_batch", "labels", "input_ids", "inputs_embeds", "token_type_ids",
])  # fmt: skip
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
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    indices: Tensor | None = None,
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
        is_causal: counts without a mask; None: no, or of packed sequences the module's own.
        s_aux: [heads], sinks.
        position_bias: added to scores, broadcast to [batch, heads, rows, keys] or more keys.
        indices: [batch, rows, some], the keys that each row sees of those that the mask lets it see.
        cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k: all four: packed sequences in all rows of all
            batches.
        others: what "eager" does not look at either; a sliding window is said by the mask.

    Returns:
        [batch, rows, heads, d], and None in place of the weights.
    """
    if others.get("output_attentions"):
        raise UnsupportedError(_NO_WEIGHTS)
    for name, other in others.items():
        if isinstance(other, Tensor) and name not in _NOT_READ:
            raise UnsupportedError(
                f'the model gives its attention {name}, which Kiln does not know; attn_implementation="eager" may'
            )
    call: dict[str, Any] = {"scale": scaling, "softcap": softcap or 0.0, "sinks": s_aux}
    lengths = (cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k)
    if indices is not None:
        attention_mask = _chosen(attention_mask, indices, key.shape[2], is_causal)
    pattern, keys = _pattern(module, query, key, attention_mask, is_causal, lengths)
    if pattern.packed and position_bias is None:
        if any(x is None for x in lengths):
            lengths = (pattern.cu_seqlens, pattern.cu_seqlens, pattern.longest, pattern.longest)
        if lengths[0] is not None:
            return _packed(query, key, value, pattern, lengths, dropout, call), None
    if pattern.packed and pattern.is_whole:
        raise UnsupportedError("packed sequences have a position bias, which would have to be packed as well")

    key, value = key[:, :, :keys], value[:, :, :keys]
    if position_bias is None and _can_decode(query, key, value, s_aux, dropout):
        seen = _cached(pattern)
        if seen is not None:
            q, k, v = _cast_together(query, key, value)
            return _rows_first(decode(q, k, v, **seen, **call)), None

    bias = _bias(attention_mask, pattern, query.dtype, keys)
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
    plain: dict[str, Any] = {"dropout": dropout, "scaling": scaling, "is_causal": is_causal}
    try:
        # PyTorch's attention is to draw what it would have drawn.
        draws = dropout and not torch.compiler.is_compiling()
        with unmoved(query.device) if draws else contextlib.nullcontext():
            return attend(module, query, key, value, attention_mask, **plain, **options)
    except routing.REFUSALS as error:
        if options.get("softcap") or options.get("s_aux") is not None:
            lacks = "soft cap" if options.get("softcap") else "sinks"
            raise UnsupportedError(f"{error}; and the fallback, PyTorch's attention, has no {lacks}")
        routing.count(str(error))
    lengths = tuple(options.get(name) for name in _LENGTHS)
    if options.get("indices") is not None:
        attention_mask = _chosen(attention_mask, options["indices"], key.shape[2], is_causal)
    pattern, keys = _pattern(module, query, key, attention_mask, is_causal, lengths)
    if pattern.packed and all(x is not None for x in lengths):
        attention_mask = _apart(query, key, pattern, lengths)
    elif pattern.is_whole:
        is_plain = pattern == Pattern(causal=pattern.causal)
        plain["is_causal"] = pattern.causal
        attention_mask = None if is_plain else seen_by(pattern, query.shape[2], keys, query.device)
    elif pattern.seen is not None:
        attention_mask = pattern.seen
    key, value = key[:, :, :keys], value[:, :, :keys]
    bias = options.get("position_bias")
    return sdpa_attention_forward(module, query, key, value, attention_mask, **plain, position_bias=bias)


def _chosen(mask: Tensor | None, indices: Tensor, keys: int, is_causal: bool | None) -> Tensor:
    """A mask, or without one what is_causal says, but that each row sees no other keys than those of its indices."""
    seen = indices.new_zeros((*indices.shape[:2], keys), dtype=torch.bool).scatter(-1, indices.long(), True)[:, None]
    if mask is None:
        rows = indices.shape[1]
        return seen & seen.new_ones(rows, keys).tril() if is_causal and rows > 1 else seen
    mask = mask[..., :keys]
    return mask & seen if mask.dtype == torch.bool else torch.where(seen, mask, torch.finfo(mask.dtype).min)


def _apart(query: Tensor, key: Tensor, pattern: Pattern, lengths: tuple) -> Tensor:
    """Sequences that lie one after another, as PyTorch's attention takes them: booleans, [batch, 1, rows, keys]."""
    places = []
    for x, begins in zip((query, key), lengths):
        place = torch.arange(x.shape[0] * x.shape[2], device=x.device).reshape(x.shape[0], x.shape[2])
        ends = begins[1:].to(place.dtype)
        number = torch.searchsorted(ends, place, right=True).clamp(max=ends.numel() - 1)
        places.append((place - ends[number], number))
    (row, row_of), (keyed, key_of) = places
    ahead = keyed[:, None, None, :] - row[:, None, :, None]
    seen = key_of[:, None, None, :] == row_of[:, None, :, None]
    if pattern.causal:
        seen = seen & (ahead <= 0)
    return seen & (ahead >= -pattern.window[0]) if pattern.window[0] >= 0 else seen


def _rows_first(out: Tensor) -> Tensor:
    return out.transpose(1, 2).contiguous()


def _pattern(
    module: torch.nn.Module, query: Tensor, key: Tensor, mask: Tensor | None, is_causal: bool | None, lengths: tuple
) -> tuple[Pattern, int]:
    """What masks a call, and how many of the keys there are to see: a static cache has some that no row does."""
    rows, keys = query.shape[2], key.shape[2]
    is_told = all(x is not None for x in lengths)
    if mask is None:
        if is_causal is None and is_told:  # of packed sequences there need not be a mask
            is_causal = getattr(module, "is_causal", True)
        pattern = Pattern(causal=bool(is_causal) and rows > 1, bottom_right=rows == 1)
    elif mask.dim() == 4 and mask.shape[2] == rows and mask.shape[3] == keys:
        pattern = pattern_of(mask)
    else:
        pattern = Pattern(is_whole=False)
    if pattern.is_whole and pattern.keys is None and pattern.seqused_k is None and not pattern.packed:
        if is_told:
            pattern = replace(pattern, packed=True)
        if pattern.causal and not pattern.bottom_right:
            keys = min(rows, keys)
    return pattern, keys


def _packed(
    query: Tensor, key: Tensor, value: Tensor, pattern: Pattern, lengths: tuple, dropout: float, call: dict[str, Any]
) -> Tensor:
    """Attention of sequences that lie one after another in all rows of all batches; [batch, rows, heads, d]."""
    begins_q, begins_k, longest_q, longest_k = lengths
    rows = [x[0].transpose(0, 1) if x.shape[0] == 1 else x.transpose(1, 2).flatten(0, 1) for x in (query, key, value)]
    out: Any = attention(
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


def _bias(mask: Tensor | None, pattern: Pattern, dtype: torch.dtype, keys: int) -> Tensor | None:
    """What is to be added to scores: of a pattern, or of a mask that has none. Rows that see no key get zeros."""
    seen = pattern.keys if pattern.is_whole else pattern.seen
    if seen is None:
        if mask is None or pattern.is_whole:
            return None
        mask = mask[..., :keys]
        if isinstance(mask, LazyMask) and not torch.compiler.is_compiling():
            mask = mask.spell()
        if mask.dtype.is_floating_point:
            return mask
        if mask.dtype != torch.bool:
            raise ArgumentError(f"attention_mask is of {mask.dtype}; expected torch.bool, or what is added to scores")
        return added(mask, dtype, -math.inf)
    if torch.compiler.is_compiling():  # a compiler finds what is computed twice
        return added(seen, dtype, -math.inf)
    if dtype not in pattern.biases:
        pattern.biases[dtype] = added(seen, dtype, -math.inf)
    return pattern.biases[dtype]
