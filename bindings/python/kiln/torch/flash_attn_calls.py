"""How the functions of kiln.torch.flash_attn are called, for type checkers: what they return depends on their argument
`return_attn_probs` or `return_softmax_lse`. Each is decorated here as `arguments.named` does it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol, TypeAlias, cast, overload

from torch import Tensor

from kiln.torch import arguments

Window: TypeAlias = tuple[int, int]
Results: TypeAlias = Tensor | tuple[Tensor, Tensor, Tensor]


class Fixed(Protocol):
    """flash_attn_func."""

    @overload
    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: Window = (-1, -1),
        softcap: float = 0.0,
        alibi_slopes: Tensor | None = None,
        deterministic: bool = False,
        return_attn_probs: Literal[False] = False,
    ) -> Tensor: ...
    @overload
    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: Window = (-1, -1),
        softcap: float = 0.0,
        alibi_slopes: Tensor | None = None,
        deterministic: bool = False,
        *,
        return_attn_probs: Literal[True],
    ) -> tuple[Tensor, Tensor, Tensor]: ...
    @overload
    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: Window = (-1, -1),
        softcap: float = 0.0,
        alibi_slopes: Tensor | None = None,
        deterministic: bool = False,
        return_attn_probs: bool = False,
    ) -> Results: ...


class FixedKvPacked(Protocol):
    """flash_attn_kvpacked_func."""

    @overload
    def __call__(
        self,
        q: Tensor,
        kv: Tensor,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: Window = (-1, -1),
        softcap: float = 0.0,
        alibi_slopes: Tensor | None = None,
        deterministic: bool = False,
        return_attn_probs: Literal[False] = False,
    ) -> Tensor: ...
    @overload
    def __call__(
        self,
        q: Tensor,
        kv: Tensor,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: Window = (-1, -1),
        softcap: float = 0.0,
        alibi_slopes: Tensor | None = None,
        deterministic: bool = False,
        *,
        return_attn_probs: Literal[True],
    ) -> tuple[Tensor, Tensor, Tensor]: ...
    @overload
    def __call__(
        self,
        q: Tensor,
        kv: Tensor,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: Window = (-1, -1),
        softcap: float = 0.0,
        alibi_slopes: Tensor | None = None,
        deterministic: bool = False,
        return_attn_probs: bool = False,
    ) -> Results: ...


class FixedQkvPacked(Protocol):
    """flash_attn_qkvpacked_func."""

    @overload
    def __call__(
        self,
        qkv: Tensor,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: Window = (-1, -1),
        softcap: float = 0.0,
        alibi_slopes: Tensor | None = None,
        deterministic: bool = False,
        return_attn_probs: Literal[False] = False,
    ) -> Tensor: ...
    @overload
    def __call__(
        self,
        qkv: Tensor,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: Window = (-1, -1),
        softcap: float = 0.0,
        alibi_slopes: Tensor | None = None,
        deterministic: bool = False,
        *,
        return_attn_probs: Literal[True],
    ) -> tuple[Tensor, Tensor, Tensor]: ...
    @overload
    def __call__(
        self,
        qkv: Tensor,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: Window = (-1, -1),
        softcap: float = 0.0,
        alibi_slopes: Tensor | None = None,
        deterministic: bool = False,
        return_attn_probs: bool = False,
    ) -> Results: ...


class Varlen(Protocol):
    """flash_attn_varlen_func."""

    @overload
    def __call__(
        self,
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
        window_size: Window = (-1, -1),
        softcap: float = 0.0,
        alibi_slopes: Tensor | None = None,
        deterministic: bool = False,
        return_attn_probs: Literal[False] = False,
        block_table: Tensor | None = None,
    ) -> Tensor: ...
    @overload
    def __call__(
        self,
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
        window_size: Window = (-1, -1),
        softcap: float = 0.0,
        alibi_slopes: Tensor | None = None,
        deterministic: bool = False,
        block_table: Tensor | None = None,
        *,
        return_attn_probs: Literal[True],
    ) -> tuple[Tensor, Tensor, Tensor]: ...
    @overload
    def __call__(
        self,
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
        window_size: Window = (-1, -1),
        softcap: float = 0.0,
        alibi_slopes: Tensor | None = None,
        deterministic: bool = False,
        return_attn_probs: bool = False,
        block_table: Tensor | None = None,
    ) -> Results: ...


class VarlenKvPacked(Protocol):
    """flash_attn_varlen_kvpacked_func."""

    @overload
    def __call__(
        self,
        q: Tensor,
        kv: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int | Tensor,
        max_seqlen_k: int | Tensor,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: Window = (-1, -1),
        softcap: float = 0.0,
        alibi_slopes: Tensor | None = None,
        deterministic: bool = False,
        return_attn_probs: Literal[False] = False,
    ) -> Tensor: ...
    @overload
    def __call__(
        self,
        q: Tensor,
        kv: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int | Tensor,
        max_seqlen_k: int | Tensor,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: Window = (-1, -1),
        softcap: float = 0.0,
        alibi_slopes: Tensor | None = None,
        deterministic: bool = False,
        *,
        return_attn_probs: Literal[True],
    ) -> tuple[Tensor, Tensor, Tensor]: ...
    @overload
    def __call__(
        self,
        q: Tensor,
        kv: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int | Tensor,
        max_seqlen_k: int | Tensor,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: Window = (-1, -1),
        softcap: float = 0.0,
        alibi_slopes: Tensor | None = None,
        deterministic: bool = False,
        return_attn_probs: bool = False,
    ) -> Results: ...


class VarlenQkvPacked(Protocol):
    """flash_attn_varlen_qkvpacked_func."""

    @overload
    def __call__(
        self,
        qkv: Tensor,
        cu_seqlens: Tensor,
        max_seqlen: int | Tensor,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: Window = (-1, -1),
        softcap: float = 0.0,
        alibi_slopes: Tensor | None = None,
        deterministic: bool = False,
        return_attn_probs: Literal[False] = False,
    ) -> Tensor: ...
    @overload
    def __call__(
        self,
        qkv: Tensor,
        cu_seqlens: Tensor,
        max_seqlen: int | Tensor,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: Window = (-1, -1),
        softcap: float = 0.0,
        alibi_slopes: Tensor | None = None,
        deterministic: bool = False,
        *,
        return_attn_probs: Literal[True],
    ) -> tuple[Tensor, Tensor, Tensor]: ...
    @overload
    def __call__(
        self,
        qkv: Tensor,
        cu_seqlens: Tensor,
        max_seqlen: int | Tensor,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: Window = (-1, -1),
        softcap: float = 0.0,
        alibi_slopes: Tensor | None = None,
        deterministic: bool = False,
        return_attn_probs: bool = False,
    ) -> Results: ...


class WithCache(Protocol):
    """flash_attn_with_kvcache."""

    @overload
    def __call__(
        self,
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
        window_size: Window = (-1, -1),
        softcap: float = 0.0,
        rotary_interleaved: bool = True,
        alibi_slopes: Tensor | None = None,
        num_splits: int = 0,
        return_softmax_lse: Literal[False] = False,
    ) -> Tensor: ...
    @overload
    def __call__(
        self,
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
        window_size: Window = (-1, -1),
        softcap: float = 0.0,
        rotary_interleaved: bool = True,
        alibi_slopes: Tensor | None = None,
        num_splits: int = 0,
        *,
        return_softmax_lse: Literal[True],
    ) -> tuple[Tensor, Tensor]: ...
    @overload
    def __call__(
        self,
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
        window_size: Window = (-1, -1),
        softcap: float = 0.0,
        rotary_interleaved: bool = True,
        alibi_slopes: Tensor | None = None,
        num_splits: int = 0,
        return_softmax_lse: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]: ...


fixed = cast("Callable[[Callable[..., Any]], Fixed]", arguments.named)
fixed_kv_packed = cast("Callable[[Callable[..., Any]], FixedKvPacked]", arguments.named)
fixed_qkv_packed = cast("Callable[[Callable[..., Any]], FixedQkvPacked]", arguments.named)
varlen = cast("Callable[[Callable[..., Any]], Varlen]", arguments.named)
varlen_kv_packed = cast("Callable[[Callable[..., Any]], VarlenKvPacked]", arguments.named)
varlen_qkv_packed = cast("Callable[[Callable[..., Any]], VarlenQkvPacked]", arguments.named)
with_cache = cast("Callable[[Callable[..., Any]], WithCache]", arguments.named)
