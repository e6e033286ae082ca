"""The functions of the flash-attention package (2.x) under their names, with their arguments in their order:

    from kiln.torch.flash_attn import flash_attn_func

What all of them share:

dropout_p          the probability that a weight is dropped, at most 0.9999; give 0.0 where nothing is trained. Drawn
                   from PyTorch's generator of the device, so that `torch.manual_seed` fixes it.
softmax_scale      what products of q and k are multiplied by; None: 1 / sqrt(headdim).
causal             row i sees no key behind i + keys - rows: the last row and the last key belong together. A row that
                   sees no key gets zeros.
window_size        (left, right): row i sees the keys from i + keys - rows - left to i + keys - rows + right. A negative
                   number: no end on that side.
softcap            above 0: scores become softcap * tanh(score / softcap); with dropout as well.
alibi_slopes       fp32, [heads] or [batch, heads]: slope * |i + keys - rows - j| is taken from the score of row i
                   and key j.
deterministic      equal calls give equal bits, of gradients too; of what is not a gradient they always do.
return_attn_probs  returns (out, softmax_lse, S_dmask). softmax_lse: fp32, the natural logarithm of each row's sum of
                   exponentials, minus infinity for a row that sees no key; no gradient flows through it. S_dmask with
                   dropout: the softmax's weights in q's dtype, negative where a weight was dropped; they are computed
                   again by PyTorch, all of them, so this is for tests of short sequences. Without dropout it is empty.

The heads of q are a multiple of those of k and v; head j of q sees head j // (heads / heads_kv). dtypes are fp16, bf16
and fp32, one for a call; headdim is 1 to 512, that of v may differ. Gradients flow to q, k and v.

A call that Kiln has no kernel for raises `kiln.errors.UnsupportedError`, one whose arguments do not fit together
`kiln.errors.ArgumentError`.
"""

from __future__ import annotations

from numbers import Integral
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from kiln.errors import ArgumentError, UnsupportedError
from kiln.torch import flash_attn_calls as calls
from kiln.torch.autograd import is_real
from kiln.torch.flash_attn_weights import signed_weights
from kiln.torch.functions import attention, decode, draw_rng

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]


@calls.flash_attn_func
def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Tensor | tuple[Tensor, Tensor, Tensor]:
    """Attention of sequences of one length.

    Args:
        q: [batch, rows, heads, headdim].
        k, v: [batch, keys, heads_kv, headdim].
        others: see the module.

    Returns:
        out [batch, rows, heads, headdim]; with return_attn_probs also softmax_lse [batch, heads, rows] and S_dmask
        [batch, heads, rows, keys].
    """
    _check_ranks(4, q=q, k=k, v=v)
    call = _options(dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes)
    call.update(deterministic=deterministic)
    if not return_attn_probs:
        return attention(q, k, v, **call)
    return _with_weights(q, k, v, call)


@calls.flash_attn_kvpacked_func
def flash_attn_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Tensor | tuple[Tensor, Tensor, Tensor]:
    """`flash_attn_func` of keys and values in one tensor.

    Args:
        q: [batch, rows, heads, headdim].
        kv: [batch, keys, 2, heads_kv, headdim].
        others: see the module.

    Returns:
        As `flash_attn_func`.
    """
    k, v = _unpacked("kv", kv, 5, 2)
    return flash_attn_func(
        q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
        return_attn_probs,
    )  # fmt: skip


@calls.flash_attn_qkvpacked_func
def flash_attn_qkvpacked_func(
    qkv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Tensor | tuple[Tensor, Tensor, Tensor]:
    """`flash_attn_func` of queries, keys and values in one tensor.

    Args:
        qkv: [batch, rows, 3, heads, headdim].
        others: see the module.

    Returns:
        As `flash_attn_func`.
    """
    q, k, v = _unpacked("qkv", qkv, 5, 3)
    return flash_attn_func(
        q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
        return_attn_probs,
    )  # fmt: skip


@calls.flash_attn_varlen_func
def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int | Tensor,
    max_seqlen_k: int | Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor, Tensor]:
    """Attention of sequences of several lengths that lie one after another.

    Args:
        q: [all rows, heads, headdim].
        k, v: [all keys, heads_kv, headdim]; with block_table [pages, page_size, heads_kv, headdim], of any page size.
        cu_seqlens_q, cu_seqlens_k: int32, [batch + 1]: where each sequence begins, and the end. With block_table only
            the differences of cu_seqlens_k count.
        max_seqlen_q, max_seqlen_k: no sequence is longer.
        block_table: int32, [batch, pages of the longest sequence]: which pages each sequence's keys lie in. No
            dropout, and no gradient flows through the result.
        others: see the module.

    Returns:
        out [all rows, heads, headdim]; with return_attn_probs also softmax_lse [heads, all rows] and S_dmask [batch,
        heads, max_seqlen_q, max_seqlen_k].
    """
    _check_ranks(3, q=q)
    _check_ranks(3 if block_table is None else 4, k=k, v=v)
    call = _options(dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes)
    call.update(cu_seqlens_q=cu_seqlens_q, max_seqlen_q=_length(max_seqlen_q), max_seqlen_k=_length(max_seqlen_k))
    if block_table is not None:
        if call.pop("dropout"):
            raise UnsupportedError("dropout_p is not 0 with a block_table: attention over pages has no dropout")
        del call["bottom_right"]  # as decode() is
        used = cu_seqlens_k[1:] - cu_seqlens_k[:-1]
        with torch.no_grad():
            results = decode(
                q, k, v, seqused_k=used, block_table=block_table.contiguous(), return_lse=return_attn_probs, **call
            )
        return (*results, q.new_empty(0)) if return_attn_probs else results
    call.update(cu_seqlens_k=cu_seqlens_k, deterministic=deterministic)
    if not return_attn_probs:
        return attention(q, k, v, **call)
    return _with_weights(q, k, v, call)


@calls.flash_attn_varlen_kvpacked_func
def flash_attn_varlen_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int | Tensor,
    max_seqlen_k: int | Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Tensor | tuple[Tensor, Tensor, Tensor]:
    """`flash_attn_varlen_func` of keys and values in one tensor.

    Args:
        q: [all rows, heads, headdim].
        kv: [all keys, 2, heads_kv, headdim].
        others: as of `flash_attn_varlen_func`; see the module.

    Returns:
        As `flash_attn_varlen_func`.
    """
    k, v = _unpacked("kv", kv, 4, 2)
    return flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal,
        window_size, softcap, alibi_slopes, deterministic, return_attn_probs,
    )  # fmt: skip


@calls.flash_attn_varlen_qkvpacked_func
def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int | Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Tensor | tuple[Tensor, Tensor, Tensor]:
    """`flash_attn_varlen_func` of queries, keys and values in one tensor.

    Args:
        qkv: [all rows, 3, heads, headdim].
        cu_seqlens: int32, [batch + 1]: where each sequence begins, and the end.
        max_seqlen: no sequence is longer.
        others: see the module.

    Returns:
        As `flash_attn_varlen_func`.
    """
    q, k, v = _unpacked("qkv", qkv, 4, 3)
    return flash_attn_varlen_func(
        q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, dropout_p, softmax_scale, causal, window_size,
        softcap, alibi_slopes, deterministic, return_attn_probs,
    )  # fmt: skip


@calls.flash_attn_with_kvcache
def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    block_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention over cached keys and values, to which those of this call are appended first, in place.

    The result has no gradient, as in the flash-attention package.

    Args:
        q: [batch, rows, heads, headdim].
        k_cache, v_cache: [batches, keys, heads_kv, headdim]; with block_table [pages, page_size, heads_kv, headdim], of
            any page size. The last dimension is contiguous.
        k, v: [batch, new_rows, heads_kv, headdim]: written behind the keys that the cache has; what does not fit is
            neither written nor seen. Both or neither; cache_seqlens is then needed.
        rotary_cos, rotary_sin: of q's dtype, [positions, rotary_dim / 2]; k's row i is turned by the angles of position
            cache_seqlens + i, and q's row i by those of the same position if causal or within a window, else all of
            q's rows by those of cache_seqlens. They need k and v.
        cache_seqlens: how many keys the cache has, for all sequences or, int32, [batch]; None: it is full. Numbers on
            a GPU are not looked at: keys behind the last page, or the end of the cache, are not seen.
        cache_batch_idx: int32, [batch]: which batch of the cache each sequence has; None: its own number. Not with
            block_table.
        cache_leftpad: int32, [batch]: how many keys at the start of the cache are not seen. Not with block_table.
        block_table: int32, [batch, pages of the longest sequence].
        rotary_interleaved: elements 2 c and 2 c + 1 make a pair, else c and c + rotary_dim / 2.
        num_splits: into how many parts the keys are split, at most 128; 0: as it is fastest, which depends on the
            batch. With a number, a sequence's result does not.
        return_softmax_lse: returns (out, softmax_lse).
        others: see the module.

    Returns:
        out [batch, rows, heads, headdim], and softmax_lse [batch, heads, rows] where it is asked for.
    """
    _check_ranks(4, q=q, k_cache=k_cache, v_cache=v_cache)
    call = _options(0.0, softmax_scale, causal, window_size, softcap, alibi_slopes)
    del call["dropout"], call["bottom_right"]
    room = k_cache.shape[1] * (1 if block_table is None else block_table.shape[1])
    if cache_seqlens is None and block_table is not None:
        cache_seqlens = room
    _check_lengths(cache_seqlens, room, "cache has room for" if block_table is None else "pages of block_table hold")
    if isinstance(cache_seqlens, Integral):
        cache_seqlens = torch.full((q.shape[0],), cache_seqlens, dtype=torch.int32, device=q.device)
    with torch.no_grad():
        return decode(
            q, k_cache, v_cache, k_new=k, v_new=v, seqused_k=cache_seqlens, cache_batch=cache_batch_idx,
            block_table=None if block_table is None else block_table.contiguous(), leftpad=cache_leftpad,
            rotary_cos=rotary_cos, rotary_sin=rotary_sin, rotary_interleaved=rotary_interleaved, splits=num_splits,
            return_lse=return_softmax_lse, **call,
        )  # fmt: skip


def _options(
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size: tuple[int, int],
    softcap: float,
    alibi_slopes: Tensor | None,
) -> dict[str, Any]:
    """The arguments of `attention` that the functions above share."""
    if len(window_size) != 2:
        raise ArgumentError(f"window_size must be two integers, (left, right), and is {window_size!r}")
    return {
        "dropout": dropout_p,
        "scale": softmax_scale,
        "causal": causal,
        "window": (window_size[0], window_size[1]),
        "softcap": softcap if softcap > 0 else 0.0,
        "alibi_slopes": alibi_slopes,
        "bottom_right": True,
        "rows_first": True,
    }


def _check_ranks(rank: int, **tensors: Tensor) -> None:
    for name, x in tensors.items():
        if x.dim() != rank:
            raise ArgumentError(f"{name} has {x.dim()} dimensions, {[*x.shape]}; expected {rank}")


def _check_lengths(lengths: int | Tensor | None, room: int, where: str) -> None:
    """Refuses lengths that do not fit, where they can be read without waiting for a GPU."""
    if isinstance(lengths, Tensor):
        if lengths.is_cuda or lengths.is_meta or not lengths.numel() or is_compiling() or not is_real():
            return
        least, most = int(lengths.min()), int(lengths.max())
    elif isinstance(lengths, Integral):
        least = most = int(lengths)
    else:
        return
    if least < 0 or most > room:
        raise ArgumentError(f"cache_seqlens has {least if least < 0 else most}, and the {where} {room} keys")


def _unpacked(name: str, packed: Tensor, rank: int, parts: int) -> tuple[Tensor, ...]:
    """Queries, keys and values of one tensor; views, whose gradients come back as one tensor."""
    _check_ranks(rank, **{name: packed})
    if packed.shape[-3] != parts:
        raise ArgumentError(f"{name} has the sizes {[*packed.shape]}; expected {parts} in dimension {rank - 3}")
    return packed.unbind(-3)


def _length(longest: int | Tensor) -> int:
    return int(longest) if isinstance(longest, Tensor) else longest


def _with_weights(q: Tensor, k: Tensor, v: Tensor, call: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    """(out, lse, S_dmask) of a call of `attention`."""
    if not call["dropout"]:
        out, lse = attention(q, k, v, return_lse=True, **call)
        return out, lse, q.new_empty(0)
    rng = draw_rng(q.device)
    out, lse = attention(q, k, v, rng=rng, return_lse=True, **call)
    with torch.no_grad():
        return out, lse, signed_weights(q, k, rng, call)
