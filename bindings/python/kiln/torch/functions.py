"""kiln.torch's own functions: attention, attention over a cache, and what dropout draws and keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, overload

import torch
from torch import Tensor
from torch.compiler import is_compiling
from torch.overrides import has_torch_function

from kiln import _arguments, layout
from kiln.errors import ArgumentError, KilnError
from kiln.torch import arguments, autograd, native, operators
from kiln.torch.autograd import is_real

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from kiln.torch import _keywords as keywords

__all__ = ["attention", "decode", "draw_rng", "dropout_mask"]

PLAIN_TYPES = (Tensor, torch.nn.Parameter)
_LARGEST = 2**63 - 1
# The smallest fp32; products with it are as good as 0.
TINY = 2.0**-126
_FLAG_NAMES = ("causal", "bottom_right", "rows_first")
_DIFFERENTIABLE = [operators.FORWARD_NAMES.index(name) for name in _arguments.DIFFERENTIABLE]
_ANYTHING = (None,)  # has no functions of PyTorch its own way, so that only a mode can


def draw_rng(device: torch.device | str | int) -> Tensor:
    """A seed and an offset for dropout, drawn on the device: an int64 tensor [2].

    Drawn from PyTorch's generator of the device: torch.manual_seed decides it, torch.utils.checkpoint draws the same
    again, and a CUDA graph draws anew each time that it is replayed.
    """
    return torch.randint(0, _LARGEST, (2,), dtype=torch.int64, device=device)


@contextmanager
def drawn(device: torch.device, dropout: float) -> Iterator[Tensor | None]:
    """A seed and an offset for a call with this dropout, or None for one without. If an engine refuses the call only
    once it runs, the generator is as it was before.

    What was compiled ahead is asked before it runs (explanation.check); while something is traced nothing is drawn yet.
    """
    if not dropout or operators.engine() is native or not is_real() or is_compiling():
        yield draw_rng(device) if dropout else None
        return
    with unmoved(device):
        yield draw_rng(device)


@contextmanager
def unmoved(device: torch.device) -> Iterator[None]:
    """If what is within is refused, the device's generator is as it was before; under a capture it may have moved."""
    is_cpu = device.type == "cpu"
    if not is_cpu and (device.type != "cuda" or torch.cuda.is_current_stream_capturing()):
        yield
        return
    generator = torch.default_generator if is_cpu else torch.cuda.default_generators[device.index or 0]
    before = generator.get_state()
    try:
        yield
    except KilnError:
        generator.set_state(before)
        raise


@arguments.named
def dropout_mask(
    rng: Tensor, batch: int, heads: int, rows: int, keys: int, dropout: float, dtype: torch.dtype = torch.uint8
) -> Tensor:
    """What dropout with this `rng` keeps: [batch, heads, rows, keys]; for tests, and to apply it elsewhere.

    Args:
        rng: as `draw_rng` gives it and `attention` takes it.
        dropout: the probability that a weight is dropped, at most 0.9999.
        dtype: uint8: 1 where a weight is kept, 0 where it is dropped. float16, bfloat16, float32: 1 and -1.

    Raises:
        ArgumentError: a size below 0, another dtype, an rng of another form.
        UnsupportedError: no kernel serves the device.
    """
    for name, size in (("batch", batch), ("heads", heads), ("rows", rows), ("keys", keys)):
        if size < 0:
            raise ArgumentError(f"{name} must not be below 0, and is {size}")
    return torch.ops.kiln.dropout_mask.default(rng, batch, heads, rows, keys, dropout, dtype)


def _plain_calls(take: Callable, arrays: str) -> Callable[[Callable], Callable]:
    """For arguments.done_by: native.shortcut's function for the plain calls of one that has these arrays."""
    return lambda function: take(native.plain_fields(function, arrays.split()))


def _attention(q: Tensor, k: Tensor, v: Tensor, **given: Any) -> Tensor | tuple[Tensor, Tensor]:
    """`attention`, of the arguments that are given."""
    if given.get("dropout") and given.get("rng") is None:
        given["rng"] = draw_rng(q.device)
    out, lse = call(normalized(q, k, v, **given))
    return (out, lse) if given.get("return_lse") else out


@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, *, return_lse: Literal[False] = False, **others: Unpack[keywords.Attention]
) -> Tensor: ...
@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, *, return_lse: Literal[True], **others: Unpack[keywords.Attention]
) -> tuple[Tensor, Tensor]: ...
@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, *, return_lse: bool, **others: Unpack[keywords.Attention]
) -> Tensor | tuple[Tensor, Tensor]: ...
@arguments.done_by(_attention, _plain_calls(native.shortcut.attention, "q k v"))
def attention(
    q: Tensor, k: Tensor, v: Tensor, *, bias: Tensor | None = None, alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None, cu_seqlens_q: Tensor | None = None, cu_seqlens_k: Tensor | None = None,
    seqused_q: Tensor | None = None, seqused_k: Tensor | None = None, max_seqlen_q: int = 0, max_seqlen_k: int = 0,
    scale: float | None = None, softcap: float = 0.0, dropout: float = 0.0, causal: bool = False,
    window: tuple[int, int] = (-1, -1), bottom_right: bool = False, rows_first: bool = False,
    rng: Tensor | None = None, return_lse: bool = False, deterministic: bool = False, batch_invariant: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """Attention: softmax(mask(score(scale * q k^T))) v, differentiable once in q, k, v, bias and sinks.

        q = k = v = torch.randn(1, 8, 1024, 128, dtype=torch.bfloat16, device="cuda")
        out = kiln.torch.attention(q, k, v, causal=True)
        out, lse = kiln.torch.attention(q, k, v, window=(128, 0), return_lse=True)

    score(x) is softcap * tanh(x / softcap) + bias - slope * |i + keys - rows - j|, each part where it is asked for.

    Tensors:
        q: [batch, heads, rows, head_dim], with rows_first [batch, rows, heads, head_dim]; float16, bfloat16 or float32.
        k, v: [batch, heads_kv, keys, head_dim or head_dim_v], or rows first; heads is a multiple of heads_kv. All of
            one dtype and on one device.
        rows_first: whether rows come before heads, in all of them.

    What a row sees:
        causal: row i sees keys up to i, or with bottom_right up to i + keys - rows.
        window: how many keys before and behind its own a row sees; below 0 all.
        bottom_right: the last row and the last key belong together, else the first ones. For causal and window.

    Scores:
        scale: None for 1 / sqrt(head_dim).
        softcap: 0 for none.
        bias: added to scores: [batch, heads, rows, keys] or what broadcasts to it; cast to q's dtype.
        alibi_slopes: [heads] or [batch, heads].
        sinks: [heads]: the score of a key without a value that every row sees.

    Sequences of several lengths:
        cu_seqlens_q: [sequences + 1] int32, where each sequence begins in q, and the end: sequences lie one after
            another, and q is [rows, heads, head_dim] with rows_first, else [heads, rows, head_dim]; or has a batch of 1
            before that.
        cu_seqlens_k: the same of k and v.
        seqused_q, seqused_k: [sequences] int32, how many rows or keys of each sequence count.
        max_seqlen_q, max_seqlen_k: no sequence of cu_seqlens is longer. 0: not known, and slower.

    Dropout:
        dropout: the probability that a weight is dropped, at most 0.9999; the rest is scaled up.
        rng: seed and offset of dropout, int64 [2] on the device; None draws them (`draw_rng`).

    Results:
        return_lse: the natural logarithm of each row's softmax denominator besides: fp32, [batch, heads, rows] whatever
            the layout, or [heads, rows] of a q without batches. It has no gradient.
        deterministic: whether equal calls must give equal bits of gradients, as under
            torch.use_deterministic_algorithms(). Those of out always do.
        batch_invariant: whether a sequence's rows of out and lse must have the same bits whatever else is in the batch;
            slower where rows are few. Of gradients it says nothing.

    Returns:
        out, in the layout and dtype of q with v's head dimension; and lse if it is wanted. A row that sees no key is 0,
        its log-sum-exp -inf. Rows that belong to no sequence are 0, in gradients too; their log-sum-exp is undefined.

    Raises:
        ArgumentError: a rank, size, dtype or value that cannot be; tensors on several devices.
        UnsupportedError: no kernel serves this call; the sentence names the nearest that exists.
    """
    raise NotImplementedError  # _attention does it


def normalized(
    q: Tensor, k: Tensor, v: Tensor, *, bias: Tensor | None = None, rng: Tensor | None = None,
    scale: float | None = None, softcap: float = 0.0, dropout: float = 0.0, window: tuple[int, int] = (-1, -1),
    **others: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """All arguments of the operator attn_fwd that those of `attention` mean: each in the dtype and form it takes."""
    left, right = window
    if bias is not None and min(q.dim(), k.dim()) > 2:  # else the call is refused for q or k
        bias = spread_bias(bias, q.dtype, _length("q", q, others), _length("k", k, others))
    return _arguments.attn_fwd(
        q, k, v, bias, rng=rng if dropout else None, scale=given_scale(scale), softcap=above_zero(softcap),
        dropout=above_zero(dropout), window_left=left, window_right=right, **cast(others),
    )  # fmt: skip


def _length(name: str, tensor: Tensor, others: Mapping[str, Any]) -> int | torch.SymInt:
    """How many rows or keys the longest sequence may have."""
    longest = others.get(f"max_seqlen_{name}")
    is_known = longest and others.get(f"cu_seqlens_{name}") is not None
    return longest if is_known else tensor.shape[-3 if others.get("rows_first") else -2]


def cast(given: dict[str, Any]) -> dict[str, Any]:
    """Arguments by name, those tensors in the dtype that operators take, for which any of its kind does."""
    for name, value in given.items():
        if value is None:
            continue
        if name in _arguments.INT32:
            given[name] = _int32(name, value)
        elif name in _arguments.FP32:
            given[name] = value if value.dtype == torch.float32 else value.float()
    return given


def given_scale(scale: float | None) -> float:
    """A scale as the operators take it. A 0 means the usual one to them, so for 0 itself and for what fp32 would make 0
    the smallest fp32 stands, with its sign."""
    if scale is None:
        return 0.0
    if abs(scale) < TINY:
        return -TINY if scale < 0.0 else TINY
    return scale


def above_zero(number: float) -> float:
    """A softcap or a dropout as the operators take it: 0 alone means none, and not what fp32 would make 0."""
    return TINY if 0.0 < number < TINY else number


def call(given: tuple[Any, ...]) -> tuple[Tensor, Tensor | None]:
    """attn_fwd with all of its arguments, by the shortest way that is right for these tensors."""
    q, k, v = given[:3]
    if (
        type(q) not in PLAIN_TYPES or type(k) not in PLAIN_TYPES or type(v) not in PLAIN_TYPES
        or q.is_meta or is_compiling() or has_torch_function(_ANYTHING) or not is_real() or operators.casts(q)
    ):  # fmt: skip
        return operators.attn_fwd(*given)
    if not torch.is_grad_enabled() or not any(
        (tensor := given[place]) is not None and tensor.requires_grad for place in _DIFFERENTIABLE
    ):
        return operators.engine().attn_fwd(*given)
    return autograd.recorded(given)


def is_plain(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether the native engine runs these tensors as they are: nothing traces, transforms or casts them."""
    return (
        type(q) is Tensor and type(k) is Tensor and type(v) is Tensor and operators.engine() is native
        and not has_torch_function(_ANYTHING) and is_real() and not operators.casts(q)
    )  # fmt: skip


def wants_gradient(q: Tensor, k: Tensor, v: Tensor) -> bool:
    return torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)


def _decode(q: Tensor, k_cache: Tensor, v_cache: Tensor, **given: Any) -> Tensor | tuple[Tensor, Tensor]:
    """`decode`, of the arguments that are given."""
    left, right = given.pop("window", (-1, -1))
    out = given.pop("out", None)
    if out is None:
        if not (q.dim() and v_cache.dim()):
            raise ArgumentError("q and v_cache must have 4 dimensions, or 3 for sequences one after another, not none")
        width = v_cache.shape[-1]
        is_alike = q.shape[-1] == width and q.is_contiguous()
        out = torch.empty_like(q) if is_alike else layout.like(q, width, given.get("rows_first", False))
    given["scale"] = given_scale(given.get("scale"))
    given["softcap"] = above_zero(given.get("softcap", 0.0))
    every = _arguments.attn_decode(q, k_cache, v_cache, out, window_left=left, window_right=right, **cast(given))
    if (
        type(q) in PLAIN_TYPES and type(k_cache) in PLAIN_TYPES and type(v_cache) in PLAIN_TYPES
        and not q.is_meta and not is_compiling() and not has_torch_function(_ANYTHING) and is_real()
    ):  # fmt: skip
        lse = autograd.decode(*every, run=operators.engine().attn_decode)
    else:
        lse = operators.attn_decode(*every)
    return (out, lse) if given.get("return_lse") else out


_DECODED = "q k_cache v_cache k_new v_new out seqused_k block_table"


@overload
def decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    *,
    return_lse: Literal[False] = False,
    **others: Unpack[keywords.Decode],
) -> Tensor: ...
@overload
def decode(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, *, return_lse: Literal[True], **others: Unpack[keywords.Decode]
) -> tuple[Tensor, Tensor]: ...
@overload
def decode(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, *, return_lse: bool, **others: Unpack[keywords.Decode]
) -> Tensor | tuple[Tensor, Tensor]: ...
@arguments.done_by(_decode, _plain_calls(native.shortcut.decoding, _DECODED))
def decode(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, *, k_new: Tensor | None = None, v_new: Tensor | None = None,
    seqused_k: Tensor | None = None, cu_seqlens_q: Tensor | None = None, block_table: Tensor | None = None,
    cache_batch: Tensor | None = None, leftpad: Tensor | None = None, rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None, k_scale: Tensor | None = None, v_scale: Tensor | None = None,
    sinks: Tensor | None = None, alibi_slopes: Tensor | None = None, max_seqlen_q: int = 0, max_seqlen_k: int = 0,
    scale: float | None = None, softcap: float = 0.0, causal: bool = False, window: tuple[int, int] = (-1, -1),
    rotary_interleaved: bool = False, splits: int = 0, rows_first: bool = False, out: Tensor | None = None,
    return_lse: bool = False, batch_invariant: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """Attention of new queries over cached keys and values, of which those of this call may be appended first.

        out = kiln.torch.decode(q, k_cache, v_cache, k_new=k, v_new=v, seqused_k=lengths, causal=True)

    Not differentiable. The last row and the last key of a sequence belong together.

    Args:
        q: [batch, heads, rows, head_dim], with rows_first [batch, rows, heads, head_dim]; with cu_seqlens_q as in
            `attention`.
        k_cache, v_cache: [batches, heads_kv, keys, head_dim or head_dim_v], or with block_table [pages, heads_kv,
            page_size, ...]; rows_first exchanges heads_kv and keys. Of q's dtype, or torch.float8_e4m3fn with k_scale
            and v_scale. Written in place where there is k_new; their last dimension must be contiguous.
        k_new, v_new: [batch, heads_kv, new rows, ...], or rows first: appended behind the seqused_k[b] keys of each
            sequence, as far as there is room.
        seqused_k: [batch] int32, how many keys of each sequence are in the cache; k_new and block_table need it. None:
            all that the cache holds.
        block_table: [batch, pages] int32, the numbers of each sequence's pages.
        cache_batch: [batch] int32, the batch of the cache that each sequence has. None: its own number.
        leftpad: [batch] int32, how many keys at the start of its cache are not seen.
        rotary_cos, rotary_sin: [positions, rotary_dim / 2] of q's dtype: k_new, and q, are rotated. Needs k_new.
        k_scale, v_scale: [heads_kv] fp32: what cached elements are multiplied by, and new ones divided.
        cu_seqlens_q, max_seqlen_q, sinks, alibi_slopes, scale, softcap, causal, window, return_lse: as in `attention`.
        rows_first: whether rows come before heads, in all of them.
        max_seqlen_k: no sequence has more keys, new ones included. 0: as many as the cache has room for.
        rotary_interleaved: columns 2c and 2c + 1 are pairs, else c and c + rotary_dim / 2.
        splits: into how many parts the keys are split, at most 128; 0: as is fastest, or with batch_invariant a number
            that depends on rows and heads alone.
        batch_invariant: whether a sequence's result must have the same bits whatever keys the others of the batch have,
            and however many there are; of calls with equal rows, or with cu_seqlens_q equal max_seqlen_q.
        out: written and returned; None: a new tensor.

    Returns:
        out, in the layout of q with v_cache's head dimension; and lse if it is wanted.

    Raises:
        ArgumentError: a rank, size, dtype or value that cannot be; tensors on several devices.
        UnsupportedError: no kernel serves this call; or gradients are wanted.
    """
    raise NotImplementedError  # _decode does it


def spread_bias(bias: Tensor, dtype: torch.dtype, rows: int, keys: int) -> Tensor:
    """A bias of four dimensions as the operators take it: batch and heads may be 1, rows and keys are all there."""
    if bias.dtype == torch.bool:
        raise ArgumentError(
            "bias must be of a floating dtype, since it is added to scores; "
            "kiln.torch.scaled_dot_product_attention takes masks"
        )
    if bias.dim() > 4:
        raise ArgumentError(f"bias must broadcast to [batch, heads, rows, keys], and has {bias.dim()} dimensions")
    if bias.dtype != dtype:
        bias = bias.to(dtype)
    if bias.dim() < 4:
        bias = bias[(None,) * (4 - bias.dim())]
    if bias.shape[3] == 1 and keys != 1:
        return bias.expand(-1, -1, rows if bias.shape[2] == 1 else -1, keys).contiguous()
    # Its gradient is summed over rows by autograd: the kernels sum over batches and heads alone.
    return bias.expand(-1, -1, rows, -1) if bias.shape[2] == 1 and rows != 1 else bias


def _int32(name: str, tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.int32 else arguments.int32(name, tensor)


_packet: Any = torch.ops.kiln.attn_fwd
_PacketOfPyTorch: Any = type(_packet)


_plain = native.shortcut.attention(native.plain_fields(_arguments.attn_fwd, ("q", "k", "v")))


class _Packet(_PacketOfPyTorch):
    """torch.ops.kiln.attn_fwd: plain calls by the shortest way, all others as PyTorch's packet has them."""

    def __init__(self) -> None:
        self.__dict__.update(_packet.__dict__)

    def __call__(self, /, *args, **kwargs):
        if not is_compiling() and (out := _plain(*args, **kwargs)) is not None:
            return out, None
        return super().__call__(*args, **kwargs)


# PyTorch's own object stays what it is: ours has its state, and stands in Kiln's own namespace in its place.
torch.ops.kiln.attn_fwd = _Packet()
