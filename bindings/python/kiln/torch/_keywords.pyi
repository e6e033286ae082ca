# Written by bindings/overloads.py from torch/functions.py.
from typing import TypedDict

from torch import Tensor

class Attention(TypedDict, total=False):
    bias: Tensor | None
    alibi_slopes: Tensor | None
    sinks: Tensor | None
    cu_seqlens_q: Tensor | None
    cu_seqlens_k: Tensor | None
    seqused_q: Tensor | None
    seqused_k: Tensor | None
    max_seqlen_q: int
    max_seqlen_k: int
    scale: float | None
    softcap: float
    dropout: float
    causal: bool
    window: tuple[int, int]
    bottom_right: bool
    rows_first: bool
    rng: Tensor | None
    deterministic: bool
    batch_invariant: bool

class Decode(TypedDict, total=False):
    k_new: Tensor | None
    v_new: Tensor | None
    seqused_k: Tensor | None
    cu_seqlens_q: Tensor | None
    block_table: Tensor | None
    cache_batch: Tensor | None
    leftpad: Tensor | None
    rotary_cos: Tensor | None
    rotary_sin: Tensor | None
    k_scale: Tensor | None
    v_scale: Tensor | None
    sinks: Tensor | None
    alibi_slopes: Tensor | None
    max_seqlen_q: int
    max_seqlen_k: int
    scale: float | None
    softcap: float
    causal: bool
    window: tuple[int, int]
    rotary_interleaved: bool
    splits: int
    rows_first: bool
    out: Tensor | None
    batch_invariant: bool
