# Written by bindings/overloads.py from attention.py.
from collections.abc import Sequence
from typing import Any, TypedDict

from kiln.arrays import Array
from kiln.runtime import Runtime

class Forward(TypedDict, total=False):
    out: Array | None
    lse: Array | None
    bias: Array | None
    alibi_slopes: Array | None
    sinks: Array | None
    cu_seqlens_q: Array | None
    cu_seqlens_k: Array | None
    seqused_q: Array | None
    seqused_k: Array | None
    padded: bool
    max_seqlen_q: int
    max_seqlen_k: int
    scale: float | None
    softcap: float
    causal: bool
    window: tuple[int, int]
    bottom_right: bool
    dropout: float
    seed: Array | int
    offset: Array | int
    seed_out: Array | None
    offset_out: Array | None
    batch_invariant: bool
    stream: Any
    workspace: Array | None
    force_keys: Sequence[str]
    force_target: str | None
    runtime: Runtime | None

class Decode(TypedDict, total=False):
    k_new: Array | None
    v_new: Array | None
    out: Array | None
    lse: Array | None
    seqused_k: Array | None
    cu_seqlens_q: Array | None
    block_table: Array | None
    cache_batch: Array | None
    leftpad: Array | None
    rotary_cos: Array | None
    rotary_sin: Array | None
    rotary_interleaved: bool
    k_scale: Array | None
    v_scale: Array | None
    sinks: Array | None
    alibi_slopes: Array | None
    max_seqlen_q: int
    max_seqlen_k: int
    scale: float | None
    softcap: float
    causal: bool
    window: tuple[int, int]
    splits: int
    batch_invariant: bool
    stream: Any
    workspace: Array | None
    force_keys: Sequence[str]
    force_target: str | None
    runtime: Runtime | None
