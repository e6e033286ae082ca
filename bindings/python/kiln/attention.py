"""Attention on arrays of any library: forward, backward, and with a cache of keys and values.

Every function enqueues its work on a stream and returns; nothing is waited for (JAX's arrays excepted, and below the
workspace). What it cannot serve raises an exception of `kiln.errors`, whose sentence names what is wrong or the nearest
that exists.

Arguments of all functions:
    stream: the stream that the work is enqueued on: one of PyTorch's, CuPy's or another library's, or its address (0 is
        the default stream). None: the current stream of the leading array's library. Each array's library makes that
        stream wait for what it has in flight. The memory must live until the work is done; where the stream is not the
        library's current one, that is the caller's concern, but for PyTorch, which is told.
    workspace: an array of bytes for the call's own use, until its work is done. None: it is made as results are; where
        their library is another than PyTorch and CuPy, a call that needs one returns when its work is done.
    force_keys: keys of the variants to run (`kiln.variants()`), at most one a kernel; the rest is chosen as always.
    force_target: the target whose images run, by its PTX if the device has another architecture. None: the device's.
    runtime: a kiln.Runtime. None: the process's own.

Arrays lie on one device, of NVIDIA or AMD, with any strides whose last is 1. Results that are not given are made by the
library of the leading array. JAX's arrays cannot be written: there all results are made, and ready on return.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from kiln import _arguments, operations
from kiln.arrays import Array
from kiln.calls import unsupported
from kiln.errors import ArgumentError
from kiln.operations import Gradients
from kiln.runtime import Runtime

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from kiln import _keywords as keywords
    from kiln.information import Variant

__all__ = ["Gradients", "attn_bwd", "attn_decode", "attn_fwd", "attn_fwd_fp8", "dropout_mask", "explain", "prepare"]

A = TypeVar("A", bound=Array)


@overload
def attn_fwd(
    q: A, k: Array, v: Array, *, return_lse: Literal[False] = False, **others: Unpack[keywords.Forward]
) -> A: ...
@overload
def attn_fwd(
    q: A, k: Array, v: Array, *, return_lse: Literal[True], **others: Unpack[keywords.Forward]
) -> tuple[A, A]: ...
@overload
def attn_fwd(q: A, k: Array, v: Array, *, return_lse: bool, **others: Unpack[keywords.Forward]) -> A | tuple[A, A]: ...
def attn_fwd(
    q: Array,
    k: Array,
    v: Array,
    *,
    out: Array | None = None,
    lse: Array | None = None,
    return_lse: bool = False,
    bias: Array | None = None,
    alibi_slopes: Array | None = None,
    sinks: Array | None = None,
    cu_seqlens_q: Array | None = None,
    cu_seqlens_k: Array | None = None,
    seqused_q: Array | None = None,
    seqused_k: Array | None = None,
    padded: bool = False,
    max_seqlen_q: int = 0,
    max_seqlen_k: int = 0,
    scale: float | None = None,
    softcap: float = 0.0,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    bottom_right: bool = False,
    dropout: float = 0.0,
    seed: Array | int = 0,
    offset: Array | int = 0,
    seed_out: Array | None = None,
    offset_out: Array | None = None,
    batch_invariant: bool = False,
    stream: Any = None,
    workspace: Array | None = None,
    force_keys: Sequence[str] = (),
    force_target: str | None = None,
    runtime: Runtime | None = None,
) -> Any:
    """Attention: out = dropout(softmax(mask(score(scale * q k^T)))) v.

        out = kiln.attn_fwd(q, k, v, causal=True)
        out, lse = kiln.attn_fwd(q, k, v, softcap=30.0, return_lse=True)

    score(x) = softcap * tanh(x / softcap) + bias - slope * |i + keys - rows - j|, each part where it is asked for.

    Args:
        q: [batch, heads, rows, head_dim] of fp16, bf16 or fp32; the leading array.
        k: [batch, heads_kv, keys, head_dim]; heads is a multiple of heads_kv.
        v: [batch, heads_kv, keys, head_dim_v].
        out: [batch, heads, rows, head_dim_v]; None: it is made.
        lse: [batch, heads, rows] fp32: the natural logarithm of the softmax's denominator is written there. With
            cu_seqlens_q also [batch, heads, at least max_seqlen_q].
        return_lse: whether it is returned, and made if it is not given.
        bias: [batch, heads, rows, keys] of q's dtype, or more rows and keys; strides but the last may be 0.
        alibi_slopes: [batch, heads] fp32.
        sinks: [heads] fp32: the score of a key without value, seen by all rows.
        cu_seqlens_q, cu_seqlens_k: [batch + 1] int32: where each of several sequences begins, which lie one after
            another in arrays whose own batch is 1, and where the last ends.
        seqused_q, seqused_k: [batch] int32: how many rows of each batch count.
        padded: whether cu_seqlens only tell lengths, and each sequence lies at the start of its batch.
        max_seqlen_q, max_seqlen_k: with cu_seqlens: no sequence is longer; 0: not known.
        scale: None: 1 / sqrt(head_dim).
        softcap: 0: none; at most 1e30.
        causal: row i sees the keys up to i, whatever window[1] says.
        window: row i sees the keys from i - window[0] to i + window[1]; below 0: no limit.
        bottom_right: whether the last row and the last key belong together, and not the first.
        dropout: the probability that a weight is dropped, at most 0.9999.
        seed, offset: what dropout is drawn from: integers, or int64 arrays without dimensions.
        seed_out, offset_out: int64 arrays without dimensions: what was used is written there. Both or neither.
        batch_invariant: whether a sequence's results must have the same bits whatever else is in the batch.

    Other arguments: see `help(kiln.attention)`.

    Returns:
        out, or (out, lse) with return_lse.

    Raises:
        ArgumentError: an argument cannot be, or arguments do not fit together.
        UnsupportedError: no kernel serves the call.
        KilnError: another class of `kiln.errors`.
    """
    return operations.forward(False, **locals()).launch()


def attn_bwd(
    dout: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    *,
    dq: Array | None = None,
    dk: Array | None = None,
    dv: Array | None = None,
    dbias: Array | bool = False,
    dsinks: Array | bool = False,
    bias: Array | None = None,
    alibi_slopes: Array | None = None,
    sinks: Array | None = None,
    cu_seqlens_q: Array | None = None,
    cu_seqlens_k: Array | None = None,
    seqused_q: Array | None = None,
    seqused_k: Array | None = None,
    padded: bool = False,
    max_seqlen_q: int = 0,
    max_seqlen_k: int = 0,
    scale: float | None = None,
    softcap: float = 0.0,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    bottom_right: bool = False,
    dropout: float = 0.0,
    seed: Array | int = 0,
    offset: Array | int = 0,
    deterministic: bool = False,
    stream: Any = None,
    workspace: Array | None = None,
    force_keys: Sequence[str] = (),
    force_target: str | None = None,
    runtime: Runtime | None = None,
) -> Gradients:
    """The gradients of an `attn_fwd` call with the same arguments.

        out, lse = kiln.attn_fwd(q, k, v, causal=True, return_lse=True)
        grads = kiln.attn_bwd(dout, q, k, v, out, lse, causal=True)
        grads.dq, grads.dk, grads.dv

    Args:
        dout: the gradient of out, shaped as it.
        q, k, v, out, lse: what the forward call took and gave; q is the leading array.
        dq, dk, dv: shaped as q, k and v; None: they are made. dk and dv are summed over the heads that share them. Rows
            of sequences that do not count are not written.
        dbias: an array as bias, whose strides[0] or strides[1] may be 0 (summed over batches or heads); True: it is
            made; False: not wanted.
        dsinks: [heads] fp32; True: it is made; False: not wanted.
        seed, offset: what the forward call used: its own, or what it wrote to seed_out and offset_out.
        deterministic: whether equal calls must give equal bits.

    Other arguments: as in `attn_fwd`.

    Returns:
        Gradients: dq, dk, dv, dbias, dsinks.

    Raises:
        ArgumentError: an argument cannot be, or arguments do not fit together.
        UnsupportedError: no kernel serves the call.
        KilnError: another class of `kiln.errors`.
    """
    return operations.backward(False, **locals()).launch()


@overload
def attn_decode(
    q: A, k_cache: Array, v_cache: Array, *, return_lse: Literal[False] = False, **others: Unpack[keywords.Decode]
) -> A: ...
@overload
def attn_decode(
    q: A, k_cache: Array, v_cache: Array, *, return_lse: Literal[True], **others: Unpack[keywords.Decode]
) -> tuple[A, A]: ...
@overload
def attn_decode(
    q: A, k_cache: Array, v_cache: Array, *, return_lse: bool, **others: Unpack[keywords.Decode]
) -> A | tuple[A, A]: ...
def attn_decode(
    q: Array,
    k_cache: Array,
    v_cache: Array,
    *,
    k_new: Array | None = None,
    v_new: Array | None = None,
    out: Array | None = None,
    lse: Array | None = None,
    return_lse: bool = False,
    seqused_k: Array | None = None,
    cu_seqlens_q: Array | None = None,
    block_table: Array | None = None,
    cache_batch: Array | None = None,
    leftpad: Array | None = None,
    rotary_cos: Array | None = None,
    rotary_sin: Array | None = None,
    rotary_interleaved: bool = False,
    k_scale: Array | None = None,
    v_scale: Array | None = None,
    sinks: Array | None = None,
    alibi_slopes: Array | None = None,
    max_seqlen_q: int = 0,
    max_seqlen_k: int = 0,
    scale: float | None = None,
    softcap: float = 0.0,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    splits: int = 0,
    batch_invariant: bool = False,
    stream: Any = None,
    workspace: Array | None = None,
    force_keys: Sequence[str] = (),
    force_target: str | None = None,
    runtime: Runtime | None = None,
) -> Any:
    """Attention of new queries over cached keys and values, to which those of this call may be appended first.

        out = kiln.attn_decode(q, k_cache, v_cache, k_new=k, v_new=v, seqused_k=lengths, causal=True)

    Sequence b has seqused_k[b] keys in the cache, and as many more as k_new has rows. Its last row and its last key
    belong together: row i sees the keys from i + d - window[0] to i + d + window[1], with d = keys - rows.

    Args:
        q: [batch, heads, rows, head_dim], or with cu_seqlens_q [1, heads, all rows, head_dim]; the leading array.
        k_cache: [batches, heads_kv, keys, head_dim], or with block_table [pages, heads_kv, page_size, head_dim]; of
            q's dtype, or of fp8e4m3 with k_scale and v_scale.
        v_cache: the same with head_dim_v.
        k_new: [batch, heads_kv, new_rows, head_dim] of q's dtype: written into the cache behind the keys that count;
            what it has no room for is neither written nor seen. Needs v_new and seqused_k.
        v_new: the same with head_dim_v.
        out: [batch, heads, rows, head_dim_v], or as q; None: it is made.
        lse: [batch, heads, rows] fp32, or as q: the softmax's denominator, its logarithm.
        return_lse: whether it is returned, and made if it is not given.
        seqused_k: [batch] int32; None: all keys of the cache count.
        cu_seqlens_q: [batch + 1] int32: where each sequence's rows begin; None: all have q's rows.
        block_table: [batch, pages of the longest sequence] int32: numbers of pages.
        cache_batch: [batch] int32: the batch of the cache that each sequence has. Not with block_table.
        leftpad: [batch] int32: so many keys at the start of each are not seen. Not with block_table.
        rotary_cos, rotary_sin: [positions, rotary_dim / 2] of q's dtype: k_new and q are rotated. Need k_new.
        rotary_interleaved: whether element 2 c is paired with 2 c + 1, and not c with c + rotary_dim / 2.
        k_scale, v_scale: [heads_kv] fp32: what cached elements of fp8e4m3 are multiplied by.
        sinks: [heads] fp32: the score of a key without value, seen by all rows.
        alibi_slopes: [batch, heads] fp32.
        max_seqlen_q: with cu_seqlens_q: no sequence has more rows; 0: not known.
        max_seqlen_k: no sequence has more keys, new ones included; 0: as many as there is room for. The speed depends
            on it.
        scale: None: 1 / sqrt(head_dim).
        softcap: 0: none.
        causal: row i sees the keys up to i + d, whatever window[1] says.
        window: see above; below 0: no limit.
        splits: into how many parts the keys are split, at most 128; 0: as it is fastest, or with batch_invariant a
            number that depends on rows and heads alone.
        batch_invariant: whether a sequence's result must have the same bits whatever keys the others of the batch have,
            and however many there are; of calls with equal rows, or with cu_seqlens_q equal max_seqlen_q.

    Other arguments: see `help(kiln.attention)`.

    Returns:
        out, or (out, lse) with return_lse.

    Raises:
        ArgumentError: an argument cannot be, or arguments do not fit together.
        UnsupportedError: no kernel serves the call.
        KilnError: another class of `kiln.errors`.
    """
    return operations.decode(False, **locals()).launch()


def attn_fwd_fp8(
    q: A,
    k: Array,
    v: Array,
    *,
    out: A | None = None,
    lse: A | None = None,
    dtype: Any = "bfloat16",
    q_descale: Array | None = None,
    k_descale: Array | None = None,
    v_descale: Array | None = None,
    sinks: Array | None = None,
    cu_seqlens_q: Array | None = None,
    cu_seqlens_k: Array | None = None,
    seqused_q: Array | None = None,
    seqused_k: Array | None = None,
    padded: bool = False,
    max_seqlen_q: int = 0,
    max_seqlen_k: int = 0,
    scale: float | None = None,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    bottom_right: bool = False,
    stream: Any = None,
    workspace: Array | None = None,
    force_keys: Sequence[str] = (),
    force_target: str | None = None,
    runtime: Runtime | None = None,
) -> tuple[A, A]:
    """`attn_fwd` of arrays of fp8 (e4m3), on Hopper: softmax(mask(scale * q k^T)) v, each times its descale.

        out, lse = kiln.attn_fwd_fp8(q, k, v, q_descale=a, k_descale=b, v_descale=c, causal=True)

    Weights are rounded to e4m3 as well.

    Args:
        q: [batch, heads, rows, head_dim] of fp8e4m3; the leading array. head_dim is a multiple of 16, at most 128, and
            all strides but the last are multiples of 16.
        k: [batch, heads_kv, keys, head_dim].
        v: [batch, heads_kv, keys, head_dim_v].
        out: [batch, heads, rows, head_dim_v] of fp16 or bf16; None: it is made.
        lse: [batch, heads, rows] fp32; None: it is made.
        dtype: of out, where it is made, or its name.
        q_descale, k_descale, v_descale: [batch, heads_kv] fp32: what elements are multiplied by, above 0; with
            cu_seqlens_q, batch is the number of sequences. Strides may be 0. None: 1.

    Other arguments: as in `attn_fwd`, and see `help(kiln.attention)`.

    Returns:
        (out, lse).

    Raises:
        ArgumentError: an argument cannot be, or arguments do not fit together.
        UnsupportedError: no kernel serves the call.
        KilnError: another class of `kiln.errors`.
    """
    return operations.simple("attn_fwd_fp8", False, **locals()).launch()


def dropout_mask(
    mask: A,
    dropout: float,
    *,
    seed: Array | int = 0,
    offset: Array | int = 0,
    stream: Any = None,
    force_target: str | None = None,
    runtime: Runtime | None = None,
) -> A:
    """Writes which weights `attn_fwd` and `attn_bwd` keep: for tests, and to drop the same weights elsewhere.

        mask = kiln.dropout_mask(torch.empty(2, 8, 100, 100, dtype=torch.uint8, device="cuda"), 0.1, seed=7)

    Args:
        mask: [batch, heads, rows, keys]: 1 is written where a weight is kept; where it is not, 0 in uint8, -1 in fp16,
            bf16 and fp32. The leading array.
        dropout: the probability that a weight is dropped.
        seed, offset: as in `attn_fwd`.

    Other arguments: see `help(kiln.attention)`.

    Returns:
        mask.

    Raises:
        ArgumentError: an argument cannot be.
        KilnError: another class of `kiln.errors`.
    """
    return operations.simple("dropout_mask", False, **locals()).launch()


def explain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Variant]:
    """The variants that a call would run, one for each of its kernels, without running it.

        for variant in kiln.explain(kiln.attn_fwd, q, k, v, causal=True):
            print(variant)

    Args:
        function: kiln.attn_fwd, kiln.attn_fwd_fp8, kiln.attn_bwd or kiln.attn_decode; dropout_mask has one kernel, for
            all calls.
        args, kwargs: as they would be given to it. Results that are not given are taken to be contiguous.

    Returns:
        A list of `kiln.Variant`.

    Raises:
        KilnError: what the call itself would raise.
    """
    from kiln.information import Variant

    ready = _dry(function, args, kwargs)
    return [Variant(**row) for row in ready.call.explain(ready.values)]


def prepare(function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Loads the images that a call needs: before a CUDA graph is captured, in which the driver loads none.

        kiln.prepare(kiln.attn_fwd, q, k, v, causal=True)

    Arguments as those of `explain`.

    Raises:
        KilnError: what the call itself would raise.
    """
    ready = _dry(function, args, kwargs)
    ready.call.prepare(ready.values)


def _dry(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> operations.Ready:
    import inspect

    name = next((name for name in _arguments.ARGUMENTS if function is globals()[name]), None)
    if name is None:
        names = [f"kiln.{name}" for name in _arguments.ARGUMENTS if _is_explained(name)]
        raise ArgumentError(f"function must be {', '.join(names[:-1])} or {names[-1]}")
    if not _is_explained(name):
        raise unsupported(name)
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    return operations.dry(name, **bound.arguments)


def _is_explained(name: str) -> bool:
    """Whether an operation has the entries _workspace, _prepare and _explain."""
    return "workspace" in _arguments.VALUES[name]
