"""Masks of Hugging Face Transformers in the form that Kiln takes most cheaply; imports that package.

A model has its masks made once for all its layers, by the function that is registered for its attention, and hands
them on to each. `make_mask` gives what "eager" gets: what is added to scores, or None where nothing is hidden. So a
model that computes attention in code of its own computes what it does with "eager". Each mask carries, as the
attribute `kiln`, a `Pattern`: what it says in the numbers and short tensors that kernels take; and where that is all
that it says, it is a `LazyMask`, which costs nothing until something else reads it. A tensor that a model derives from
it has no such attribute, and is then taken for what it is, element by element.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import masking_utils
from transformers.utils.import_utils import is_tracing

from kiln.torch.transformers_lazy import LazyMask, Pattern, added

if "q_length" not in inspect.signature(masking_utils.sdpa_mask).parameters:
    raise ImportError(f"{transformers.__version__} is installed, which does not tell masks their lengths")

__all__ = ["make_mask"]


def make_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable = masking_utils.causal_mask_function,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    dtype: torch.dtype = torch.float32,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    config: Any = None,
    **others: Any,
) -> Tensor | None:
    """The mask of the layers of one kind; the arguments are those of Transformers' own mask functions.

    Returns:
        [batch, 1, rows, keys] of `dtype`: 0 where a row sees a key, else the dtype's lowest number. None: all rows see
        all keys, and the model allows for it.
    """
    traced = is_tracing(attention_mask)
    shift = q_offset - kv_offset  # row i sits at key i + shift
    if isinstance(shift, Tensor) and not traced:
        shift = int(shift)
    is_causal = allow_is_causal_skip or mask_function is masking_utils.causal_mask_function
    is_open = allow_is_bidirectional_skip or mask_function is masking_utils.bidirectional_mask_function
    window = None if local_size is None else _window(local_size, config)
    visible = _visible(attention_mask, q_length + shift if is_causal else kv_length, kv_length, kv_offset, traced)

    pattern = None
    if is_causal and window != 0:
        pattern = _causal(q_length, kv_length, shift, window, batch_size, device)
    elif is_open and window != 0:
        pattern = _open(q_length, kv_length, shift, window)
        if allow_is_bidirectional_skip and visible is None and (local_size is None or kv_length < local_size):
            return None
    if pattern is not None and visible is not None:
        pattern.keys = visible[:, None, None, :]
    if pattern is not None and not traced and (visible is None or q_length > 1):
        shape = (batch_size, 1, q_length, kv_length)
        return LazyMask(pattern, shape, dtype, torch.empty((), device=device))
    with contextlib.nullcontext() if traced else torch.inference_mode(False):  # whose tensors tell of no writing
        seen = masking_utils.sdpa_mask(
            batch_size=batch_size, q_length=q_length, kv_length=kv_length, q_offset=q_offset, kv_offset=kv_offset,
            mask_function=mask_function, attention_mask=attention_mask, local_size=local_size,
            allow_is_causal_skip=False, allow_is_bidirectional_skip=False, use_vmap=use_vmap, device=device, **others,
        )  # fmt: skip
        mask = added(seen, dtype)
    if pattern is None and attention_mask is None:
        pattern = _maybe_packed(window, q_length, kv_length, use_vmap) if traced else _packed(mask_function)
    if pattern is None:
        pattern = Pattern(is_whole=False)
    pattern.seen = seen
    if not traced:
        pattern.span = _span(seen) if q_length == 1 else None
        pattern.version = mask._version
    mask.kiln = pattern
    return mask


def _window(local_size: int, config: Any) -> int:
    """The window that a mask's `local_size` is; 0: it is something else."""
    is_window = local_size == getattr(config, "sliding_window", None)
    return local_size if is_window and local_size != getattr(config, "attention_chunk_size", None) else 0


def _visible(
    attention_mask: Tensor | None, reach: int | Tensor, kv_length: int, kv_offset: int, traced: bool
) -> Tensor | None:
    """Of each key whether it is no padding, [batch, keys]; None: none is among the first `reach` keys."""
    if attention_mask is None:
        return None
    visible = masking_utils.prepare_padding_mask(attention_mask, kv_length, kv_offset)
    visible = visible[:, kv_offset : kv_offset + kv_length]
    return None if not traced and bool(visible[:, :reach].all()) else visible


def _causal(
    q_length: int, kv_length: int, shift: int | Tensor, window: int | None, batch: int, device: torch.device | str
) -> Pattern | None:
    """Row i sees the keys up to i + shift, and of those no more than `window`."""
    reach: Any = shift + q_length
    pattern = Pattern(causal=True)
    if isinstance(shift, Tensor):
        pattern.seqused_k = reach.to(device=device, dtype=torch.int32).reshape(1).repeat(batch)
    elif shift < 0:
        return None
    elif reach < kv_length and shift > 0:
        pattern.seqused_k = torch.full((batch,), reach, dtype=torch.int32, device=device)
    pattern.bottom_right = pattern.seqused_k is not None or (reach == kv_length and (shift > 0 or q_length == 1))
    if window is not None and (isinstance(reach, Tensor) or reach > window):
        pattern.window = (window - 1, -1)
    return pattern


def _open(q_length: int, kv_length: int, shift: int | Tensor, window: int | None) -> Pattern | None:
    """Row i sees all keys, or those at most `window` before and behind i."""
    if window is None or max(q_length, kv_length) <= window:
        return Pattern()
    if isinstance(shift, Tensor) or shift != 0:
        return None
    return Pattern(window=(window, window))


def _span(mask: Tensor) -> tuple[Tensor, Tensor] | None:
    """The first key that each batch's single row sees, and the one behind the last; None: not all between are seen."""
    seen = mask[:, 0, 0].to(torch.int32)
    count = seen.sum(1, dtype=torch.int32)
    first = seen.argmax(1).to(torch.int32)
    end = first + count
    last = (seen.shape[1] - seen.flip(1).argmax(1)).to(torch.int32)
    whole = (end == last) | (count == 0)
    return (first, end) if bool(whole.all()) else None


_AND_CODE = masking_utils.and_masks().__code__
_PACKED_CODE = masking_utils.packed_sequence_mask_function(None).__code__
_WINDOW_CODE = masking_utils.sliding_window_overlay(1).__code__
# Of Transformers that have masks ask for positions within each sequence: within one they count on from key to key, so
# that causality and windows are what they were.
_REMAP = getattr(masking_utils, "remap_positions_for_packed_sequence", None)
_REMAPPED_CODE = None if _REMAP is None else _REMAP(None, None).__code__


def _packed(mask_function: Callable) -> Pattern | None:
    """Of a mask of packed sequences, causal and maybe within a window, and nothing else."""
    base, packed = _parts(mask_function)
    if _REMAPPED_CODE is not None and getattr(packed, "__code__", None) is _REMAPPED_CODE:
        base, packed = _held(packed, of="mask_function"), base
    if getattr(packed, "__code__", None) is not _PACKED_CODE:
        return None
    pattern = Pattern(causal=True, packed=True, is_whole=False)
    if base is not masking_utils.causal_mask_function:
        window, causal = _parts(base)
        if getattr(window, "__code__", None) is not _WINDOW_CODE or causal is not masking_utils.causal_mask_function:
            return None
        pattern.window = (_held(window) - 1, -1)
    numbers = _held(packed)  # [batch, rows]: the number of the sequence in its batch
    begins = torch.ones_like(numbers, dtype=torch.bool)
    begins[:, 1:] = numbers[:, 1:] != numbers[:, :-1]
    begins = begins.flatten().nonzero().flatten()
    end = begins.new_full((1,), numbers.numel())
    pattern.cu_seqlens = torch.cat([begins, end]).to(torch.int32)
    pattern.longest = int(pattern.cu_seqlens.diff().max())
    return pattern


def _maybe_packed(window: int | None, q_length: int, kv_length: int, use_vmap: bool) -> Pattern | None:
    """Of a mask that is traced: Transformers then takes all sequences for packed ones, and its functions hold nothing
    that can be looked at. Who tells modules lengths says that they are."""
    if use_vmap or window == 0 or q_length != kv_length:
        return None
    left = -1 if window is None else window - 1
    return Pattern(causal=True, window=(left, -1), packed=True, is_whole=False)


def _parts(mask_function: Any) -> tuple[Any, Any]:
    """The two masks that one consists of by `and_masks`."""
    if getattr(mask_function, "__code__", None) is not _AND_CODE:
        return None, None
    parts = _held(mask_function)
    return parts if len(parts) == 2 else (None, None)


def _held(function: Any, of: str | None = None) -> Any:
    """What the only variable that a function closes over holds, or the one of a name; None: there is none."""
    cells = [cell for name, cell in zip(function.__code__.co_freevars, function.__closure__) if of in (None, name)]
    return cells[0].cell_contents if len(cells) == 1 else None
