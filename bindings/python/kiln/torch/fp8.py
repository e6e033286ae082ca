"""kiln.torch's attention of fp8."""

from __future__ import annotations

import torch
from torch import Tensor

from kiln.errors import ArgumentError
from kiln.torch import arguments
from kiln.torch.functions import cast, given_scale

__all__ = ["attention_fp8"]


@arguments.named
def attention_fp8(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    dtype: torch.dtype = torch.bfloat16,
    sinks: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    max_seqlen_q: int = 0,
    max_seqlen_k: int = 0,
    scale: float | None = None,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    bottom_right: bool = False,
    rows_first: bool = False,
) -> tuple[Tensor, Tensor]:
    """`attention` of tensors of float8_e4m3fn, on Hopper: softmax(mask(scale * q k^T)) v, each times its descale.

        out, lse = kiln.torch.attention_fp8(q, k, v, q_descale=a, k_descale=b, v_descale=c, causal=True)

    Weights are rounded to e4m3 as well. There are no gradients.

    Args:
        q: [batch, heads, rows, head_dim]; head_dim is a multiple of 16, at most 128, and all strides but the last are
            multiples of 16. With cu_seqlens_q the batch is 1, or there is none.
        k: [batch, heads_kv, keys, head_dim].
        v: [batch, heads_kv, keys, head_dim_v].
        q_descale, k_descale, v_descale: what elements are multiplied by, above 0: [batch, heads_kv], or what broadcasts
            to that; with cu_seqlens_q, batch is the number of sequences. None: 1.
        dtype: of the output, float16 or bfloat16.
        rows_first: whether q, k, v and the output have rows before heads.

    Other arguments: as in `attention`.

    Returns:
        The output, and the log-sum-exp: [batch, heads, rows] whatever rows_first says.

    Raises:
        ArgumentError: an argument cannot be, or arguments do not fit together.
        UnsupportedError: no kernel serves the call.
    """
    has_batch = q.dim() != 3
    tensors = [x if has_batch else x.unsqueeze(0) for x in (q, k, v)]
    tensors = [x.transpose(1, 2) if rows_first else x for x in tensors]
    batch = tensors[0].shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1
    heads_kv = tensors[1].shape[1]
    given = cast({
        "q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale, "sinks": sinks,
        "cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k, "seqused_q": seqused_q, "seqused_k": seqused_k,
    })  # fmt: skip
    for name in ("q_descale", "k_descale", "v_descale"):
        descale = given[name]
        if descale is None:
            continue
        if descale.dim() > 2 or any(x not in (1, y) for x, y in zip(descale.shape[::-1], (heads_kv, batch))):
            shape = tuple(descale.shape)
            raise ArgumentError(f"{name} must be [{batch}, {heads_kv}] or broadcast to it, and has the shape {shape}")
        given[name] = descale.expand(batch, heads_kv)
    left, right = window
    out, lse = torch.ops.kiln.attn_fwd_fp8.default(
        *tensors, *given.values(), max_seqlen_q, max_seqlen_k, given_scale(scale), causal, left, right, bottom_right,
        dtype,
    )  # fmt: skip
    out = out.transpose(1, 2) if rows_first else out
    return (out, lse) if has_batch else (out.squeeze(0), lse.squeeze(0))
