"""The attention family's typed layer on its recipe: what kiln.torch's operators call, run by kiln.jit.

Parameters become the recipe's arguments here as csrc/flash does it for the C interface, and outputs are allocated as
kiln.torch.native does it. Shapes: torch tensors [batch, heads, rows, d], with rows_first [batch, rows, heads, d];
packed ones without the batch, or with a batch of 1.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from copy import copy

import torch

from kiln.jit import tensors
from kiln.jit.errors import ArgumentError
from kiln.jit.recipes import Operation, Recipe
from kiln_recipe.call.dispatch import Chosen
from kiln_recipe.call.evaluate import Tensor as Described

_OPERATIONS = ("attn_fwd", "attn_bwd", "attn_decode", "dropout_mask")


class Engine:
    """An engine for kiln.torch.operators.set_engine().

    Args:
        recipe: of the attention family, or of one that has its operations with their arguments.

    Raises:
        NotFoundError: the recipe lacks one of the operations.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self._operations: Mapping[str, Operation] = {name: recipe.operation(name) for name in _OPERATIONS}

    @property
    def name(self) -> str:
        """What explanations call it."""
        return "interpreter" if self.recipe.interpret else "jit"

    @property
    def devices(self) -> frozenset[str]:
        """The types of devices whose tensors it takes."""
        return frozenset({"cpu" if self.recipe.interpret else "cuda"})

    def attn_fwd(
        self, q, k, v, bias=None, alibi_slopes=None, sinks=None, cu_seqlens_q=None, cu_seqlens_k=None, seqused_q=None,
        seqused_k=None, rng=None, max_seqlen_q=0, max_seqlen_k=0, scale=0.0, softcap=0.0, dropout=0.0, causal=False,
        window_left=-1, window_right=-1, bottom_right=False, rows_first=False, return_lse=False, for_backward=False,
    ):  # fmt: skip
        """out, and the log-sum-exp of each row (fp32) if return_lse or for_backward, else None.

        Args:
            for_backward: refuse what the backward cannot do.

        Raises:
            kiln.KilnError: as kiln.torch's own engine, with the same sentences.
        """
        heads_first = {name: _heads_first(tensor, rows_first) for name, tensor in (("q", q), ("k", k), ("v", v))}
        shared = _shared(
            heads_first["q"], bias, alibi_slopes, sinks, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, rng,
            max_seqlen_q, max_seqlen_k, scale, softcap, dropout, causal, window_left, window_right, bottom_right,
        )  # fmt: skip
        some_rows = cu_seqlens_q is not None or seqused_q is not None
        out = _like(heads_first["q"], heads_first["v"].shape[-1], rows_first, some_rows)
        lse = None
        if return_lse or for_backward:
            lse = torch.empty(heads_first["q"].shape[:3], dtype=torch.float32, device=q.device)
        if for_backward:
            self._check_backward(heads_first, out, lse, shared, bias is not None, sinks is not None)
        self._operations["attn_fwd"](**heads_first, out=out, lse=lse, **shared)
        return _as_given(out, q, rows_first), lse if lse is None or q.dim() == 4 else lse[0]

    def attn_bwd(
        self, dout, q, k, v, out, lse, bias=None, alibi_slopes=None, sinks=None, cu_seqlens_q=None, cu_seqlens_k=None,
        seqused_q=None, seqused_k=None, rng=None, max_seqlen_q=0, max_seqlen_k=0, scale=0.0, softcap=0.0, dropout=0.0,
        causal=False, window_left=-1, window_right=-1, bottom_right=False, rows_first=False, need_dbias=False,
        need_dsinks=False, deterministic=False,
    ):  # fmt: skip
        """dq, dk, dv, and dbias and dsinks (fp32) where they are needed, else None.

        Args:
            deterministic: equal bits from equal calls, which all of its kernels give anyway.
        """
        del deterministic
        given = {"dout": dout, "q": q, "k": k, "v": v, "out": out}
        heads_first = {name: _heads_first(tensor, rows_first) for name, tensor in given.items()}
        shared = _shared(
            heads_first["q"], bias, alibi_slopes, sinks, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, rng,
            max_seqlen_q, max_seqlen_k, scale, softcap, dropout, causal, window_left, window_right, bottom_right,
        )  # fmt: skip
        some_rows = cu_seqlens_q is not None or seqused_q is not None
        some_keys = cu_seqlens_k is not None or seqused_k is not None
        grads = {
            f"d{name}": _like(heads_first[name], heads_first[name].shape[-1], rows_first, partly)
            for name, partly in (("q", some_rows), ("k", some_keys), ("v", some_keys))
        }
        dbias = expanded = None
        if need_dbias and bias is not None:
            if bias.shape[2] != shared["bias"].shape[2]:
                raise ArgumentError(
                    "the gradient of a bias that all rows share is not there: expand it over rows first"
                )
            # What no row or key of a sequence leads to is not written.
            dbias = torch.zeros_like(bias, memory_format=torch.contiguous_format)
            expanded = dbias.expand(*shared["bias"].shape[:2], -1, -1)
        dsinks = torch.empty_like(sinks, dtype=torch.float32) if need_dsinks and sinks is not None else None
        self._operations["attn_bwd"](
            **heads_first, lse=lse if lse.dim() == 3 else lse[None], **grads, dbias=expanded, dsinks=dsinks, **shared
        )
        dq, dk, dv = (_as_given(grads[f"d{name}"], given[name], rows_first) for name in "qkv")
        return dq, dk, dv, dbias, dsinks

    def attn_decode(
        self, q, k_cache, v_cache, out, k_new=None, v_new=None, seqused_k=None, cu_seqlens_q=None, block_table=None,
        cache_batch=None, leftpad=None, rotary_cos=None, rotary_sin=None, k_scale=None, v_scale=None, sinks=None,
        alibi_slopes=None, max_seqlen_q=0, max_seqlen_k=0, window_left=-1, window_right=-1, splits=0, scale=0.0,
        softcap=0.0, causal=False, rotary_interleaved=False, rows_first=False, return_lse=False,
    ):  # fmt: skip
        """Writes `out` and, where there are new keys, the caches; the log-sum-exp (fp32) if return_lse, else None."""
        rows = {"q": q, "k_cache": k_cache, "v_cache": v_cache, "out": out, "k_new": k_new, "v_new": v_new}
        written = ("k_cache", "v_cache", "out")  # no copy can stand for these
        heads_first = {
            name: None if tensor is None else _heads_first(tensor, rows_first, name in written)
            for name, tensor in rows.items()
        }
        scores = _scores(heads_first["q"], scale, softcap, causal, window_left, window_right)
        del scores["is_negative"]
        if alibi_slopes is not None and alibi_slopes.dim() == 1:
            alibi_slopes = alibi_slopes.expand(q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1, -1)
        lse = None
        if return_lse:
            lse = torch.empty(heads_first["q"].shape[:3], dtype=torch.float32, device=q.device)
        self._operations["attn_decode"](
            **heads_first, lse=lse, seqused_k=seqused_k, cu_seqlens_q=cu_seqlens_q, block_table=block_table,
            cache_batch=cache_batch, leftpad=leftpad, rotary_cos=rotary_cos, rotary_sin=rotary_sin, k_scale=k_scale,
            v_scale=v_scale, sinks=sinks, alibi_slopes=alibi_slopes, max_seqlen_q=max_seqlen_q,
            max_seqlen_k=max_seqlen_k, wanted_splits=splits, rotary_interleaved=int(rotary_interleaved), **scores,
        )  # fmt: skip
        return lse if lse is None or q.dim() == 4 else lse[0]

    def dropout_mask(self, rng, batch, heads, rows, keys, dropout, dtype=torch.uint8):
        """[batch, heads, rows, keys]: 1 where a weight is kept; where it is not, 0 in uint8, -1 in floating dtypes."""
        mask = torch.empty((batch, heads, rows, keys), dtype=dtype, device=rng.device)
        seed, offset = _seed(rng)
        self._operations["dropout_mask"](
            mask=mask, seed=seed, offset=offset, threshold=_threshold(dropout), seed_value=0, offset_value=0
        )
        return mask

    def explain(self, function: str, *values: object, **named: object) -> tuple[Chosen, ...]:
        """The kernels that a call of one of the functions above would run, in their order; nothing runs.

            engine.explain("attn_fwd", q, k, v, causal=True)

        Args:
            function: its name; what follows is given to it.
        """
        found: list[Chosen] = []
        other = copy(self)
        other._operations = {name: _Explained(operation, found) for name, operation in self._operations.items()}
        getattr(other, function)(*values, **named)
        return tuple(found)

    def _check_backward(self, heads_first, out, lse, shared, with_bias: bool, with_sinks: bool) -> None:
        """Raises what the backward of a forward call would raise, before anything runs."""

        def dense(tensor: torch.Tensor) -> Described:
            given, strides = tensors.describe("flash.attn_bwd", "q", tensor), [1]
            for size in reversed(tensor.shape[1:]):
                strides.insert(0, strides[0] * max(size, 1))
            return Described(given.data, given.dtype, given.sizes, tuple(strides))

        grads = {f"d{name}": dense(heads_first[name]) for name in "qkv"}
        gradients = {"dbias": shared["bias"] if with_bias else None, "dsinks": shared["sinks"] if with_sinks else None}
        self._operations["attn_bwd"].explain(
            **heads_first, out=out, dout=dense(out), lse=lse, **grads, **gradients, **shared
        )


class _Explained:
    """An operation whose calls tell what they would run."""

    def __init__(self, operation: Operation, found: list[Chosen]) -> None:
        self.explain, self.found = operation.explain, found

    def __call__(self, **arguments: object) -> None:
        self.found += self.explain(**arguments)


def _shared(
    q, bias, alibi_slopes, sinks, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, rng, max_seqlen_q, max_seqlen_k,
    scale, softcap, dropout, causal, window_left, window_right, bottom_right,
) -> dict[str, object]:  # fmt: skip
    """The arguments that forward and backward have in common (add_shared of csrc/flash/call.h)."""
    dropout = _kept(dropout)
    threshold = _threshold(dropout)
    batch = q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1
    if alibi_slopes is not None and alibi_slopes.dim() == 1:
        alibi_slopes = alibi_slopes.expand(batch, -1)
    seed, offset = (None, None) if rng is None else _seed(rng)
    return {
        "sinks": sinks,
        "bias": None if bias is None else _broadcast(bias, (batch, *q.shape[1:3])),
        "alibi_slopes": alibi_slopes,
        "seed": seed,
        "offset": offset,
        "cu_seqlens_q": cu_seqlens_q,
        "cu_seqlens_k": cu_seqlens_k,
        "seqused_q": seqused_q,
        "seqused_k": seqused_k,
        "max_seqlen_q": max_seqlen_q,
        "max_seqlen_k": max_seqlen_k,
        "bottom_right": int(bottom_right),
        "is_padded": 0,
        "threshold": threshold,
        "keep_scale": 1.0 / (1.0 - dropout),
        "seed_value": 0,
        "offset_value": 0,
        **_scores(q, scale, softcap, causal, window_left, window_right),
    }


def _scores(q, scale: float, softcap: float, causal: bool, window_left: int, window_right: int) -> dict[str, object]:
    """What shapes scores, as the typed entries hand it on: fp32 numbers."""
    scale, softcap = _kept(scale), _kept(softcap)
    if not 0.0 <= softcap <= _fp32(1.0e30):
        raise ArgumentError("flash: softcap must be at least 0, for none, and at most 1e30")
    if not math.isfinite(scale):
        raise ArgumentError("flash: sm_scale must be a finite number; 0 is 1 / sqrt(head_dim)")
    width = q.shape[-1]
    return {
        "sm_scale": scale if scale else 1.0 / math.sqrt(width) if width else 1.0,
        "is_negative": int(scale < 0.0),
        "is_capped": int(softcap > 0.0),
        "softcap": softcap if softcap > 0.0 else 1.0,
        "window_left": window_left,
        "window_right": 0 if causal else window_right,
    }


def _threshold(dropout: float) -> int:
    """Weights whose 32-bit number is below this are dropped."""
    dropout = _kept(dropout)
    if not 0.0 <= dropout <= _fp32(0.9999):
        raise ArgumentError("flash: dropout must be at least 0 and at most 0.9999")
    return int(dropout * 4294967296.0)


def _fp32(value: float) -> float:
    """The nearest fp32; what is beyond all of them is infinite."""
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


def _kept(value: float) -> float:
    """As fp32, in which what is not 0 stays so: 0 means something else."""
    number = _fp32(value)
    return number if number or not value else math.copysign(2.0**-126, value)


def _seed(rng: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Seed and offset, which lie one behind the other."""
    if rng.dtype != torch.int64 or rng.shape != (2,) or rng.stride(0) != 1:
        raise ArgumentError("rng must be a contiguous tensor of two int64: seed and offset")
    return rng[0], rng[1]


def _broadcast(bias: torch.Tensor, wanted: tuple[int, ...]) -> torch.Tensor:
    """A bias of which batch, heads and rows may be 1 for all, expanded over these."""
    if bias.dim() != 4:
        raise ArgumentError(
            "bias must have the shape [batch, heads, rows, keys], of which batch, heads and rows may be 1"
        )
    bias = _fitted(bias)
    return bias.expand(*(want if size == 1 else size for size, want in zip(bias.shape, wanted)), -1)


def _fitted(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or where its last dimension has a stride, a copy: heads and rows in the order that they had."""
    if tensor.dim() == 0 or tensor.stride(-1) == 1 or tensor.shape[-1] < 2:
        return tensor
    if tensor.dim() < 3 or tensor.stride(-3) >= tensor.stride(-2):
        return tensor.contiguous()
    return tensor.transpose(-3, -2).contiguous().transpose(-3, -2)


def _heads_first(tensor: torch.Tensor, rows_first: bool, written: bool = False) -> torch.Tensor:
    """[batch, heads, rows, d]: a view, unless its last dimension has a stride and it is not `written`. What has another
    rank than 3 or 4 stays as it is: the recipe refuses it."""
    tensor = tensor if written else _fitted(tensor)
    if tensor.dim() == 3:
        tensor = tensor[None]
    return tensor.transpose(1, 2) if rows_first and tensor.dim() == 4 else tensor


def _as_given(tensor: torch.Tensor, like: torch.Tensor, rows_first: bool) -> torch.Tensor:
    """The view of [batch, heads, rows, d] that has the layout and the rank of `like`."""
    tensor = tensor.transpose(1, 2) if rows_first else tensor
    return tensor if like.dim() == 4 else tensor[0]


def _like(tensor: torch.Tensor, width: int, rows_first: bool, partly: bool) -> torch.Tensor:
    """A dense tensor [batch, heads, rows, width], rows before heads in memory where they are so in `tensor`.

    Args:
        partly: kernels do not write all of its rows; those are 0.
    """
    make = torch.zeros if partly else torch.empty
    if tensor.dim() != 4:
        return make((*tensor.shape[:-1], width), dtype=tensor.dtype, device=tensor.device)
    batch, heads, rows, _ = tensor.shape
    if rows_first or tensor.stride(1) < tensor.stride(2):
        return make((batch, rows, heads, width), dtype=tensor.dtype, device=tensor.device).transpose(1, 2)
    return make((batch, heads, rows, width), dtype=tensor.dtype, device=tensor.device)
