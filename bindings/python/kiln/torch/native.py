"""The engine that runs what was compiled ahead: the operators of libkiln_torch.so, called with plain tensors.

Its functions take every argument of `torch.ops.kiln`'s operators, in their order. Layouts are the caller's; the library
swaps strides. What no kernel takes but means something plain, such as a last dimension with a stride, is copied here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.overrides import has_torch_function

import kiln
from kiln import _core, errors
from kiln.runtime import _log as write_log

name = "native"
devices = frozenset({"cuda"})

LIBRARY = Path(kiln.__file__).parent / "lib" / "libkiln_torch.so"
LOWEST = (2, 10)

# Bits of `flags`, and results that are no kiln_status; as in bindings/torch/call.h.
CAUSAL, BOTTOM_RIGHT, ROWS_FIRST, RETURN_LSE, FOR_BACKWARD, ALIKE = 1, 2, 4, 8, 16, 32
NEED_DBIAS, NEED_DSINKS, DETERMINISTIC, INTERLEAVED, EQUAL_HEADS = 64, 128, 256, 512, 1024
REFIT = -1
# Refusals that neither another form of the tensors nor a second try can change.
FINAL = frozenset({2, 3, 5, 6, 7, 15})
_OUT_OF_MEMORY, _QUEUE, _RANGE = 11, 13, 14
_MOST_MESSAGES = 3  # KILN_LOG_DEBUG

_BIT = {False: 0, True: 1}  # whatever equals neither is no flag
NO_EXTRAS: list[Tensor] = []
# softcap, dropout, max_seqlen_q, max_seqlen_k, window_left, window_right: what the operators have as defaults
_PLAIN = (0.0, 0.0, 0, 0, -1, -1)


class OutOfMemoryError(errors.OutOfMemoryError, torch.OutOfMemoryError):
    """PyTorch's allocator has no memory on the device for what a call returns or needs meanwhile."""


def _load() -> ctypes.CDLL:
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < LOWEST:
        raise ImportError(f"kiln.torch needs PyTorch {LOWEST[0]}.{LOWEST[1]} or later; this is {torch.__version__}")
    try:
        torch.ops.load_library(str(LIBRARY))
        library = ctypes.CDLL(str(LIBRARY))
    except OSError as error:
        raise ImportError(f"kiln.torch cannot load its library: {error}") from None
    if failed := library.kiln_torch_failed():
        raise ImportError(
            f"PyTorch refused {failed} of the operators of {LIBRARY}: another copy of it is loaded in this process"
        )
    return library


_library = _load()
# These operators have no gradients of their own (autograd.py has): a call with tensors that want some is not looked at.
_registrations = torch.library.Library("kiln_native", "IMPL")
for _name in ("attn_fwd", "attn_bwd", "attn_decode", "dropout_mask"):
    _registrations.impl(_name, torch.library.fallthrough_kernel, "Autograd")

# Called as packets, whose own frame of Python's costs less than that of an overload.
forward_op: Callable = torch.ops.kiln_native.attn_fwd
_backward_op: Callable = torch.ops.kiln_native.attn_bwd
_decode_op: Callable = torch.ops.kiln_native.attn_decode
_mask_op: Callable = torch.ops.kiln_native.dropout_mask
is_watched: Callable[[], int] = torch.ops.kiln_native.is_watched
"""Whether a mode or a tracer (SEEN) or a transform of torch.func's (TRANSFORMED) gets the operators that this
thread calls here; 0: none does.

The dispatcher is asked, by an operator without arguments: it goes to what is active, by the key of that.
"""
SEEN, TRANSFORMED = 1, 2
for _key in ("Python", "PythonDispatcher", "PreDispatch", "Tracer"):
    _registrations.impl("is_watched", lambda: SEEN, _key)
for _key in ("FuncTorchDynamicLayerFrontMode", "FuncTorchDynamicLayerBackMode"):
    _registrations.impl("is_watched", lambda: TRANSFORMED, _key)


def _write(level: int, message: bytes, _user: object) -> None:
    write_log(level, message.decode(errors="replace"))


# The messages of the runtime that the library opens go to Python's logger, which decides which of them are wanted:
# there are a few when something is opened or loaded, and none of a call. The library may call it from any thread as
# long as the process lives, so it outlives this module. Refused where a program has opened the runtime before this
# import: the log is the program's then.
_log = ctypes.CFUNCTYPE(None, ctypes.c_int32, ctypes.c_char_p, ctypes.c_void_p)(_write)
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_log))
_library.kiln_torch_set_log(_log, None, _MOST_MESSAGES)


def runtime() -> int:
    """The kiln_t that all calls share, for `kiln._core.Runtime.borrow`; it stays open as long as the process."""
    handle = ctypes.c_void_p()
    if status := _library.kiln_torch_runtime(ctypes.byref(handle)):
        fail(status)
    return handle.value


# Who would change a call that goes through the dispatcher, or see and repeat it: casts, modes, tracers, transforms.
# The profiler does neither; of a call past the dispatcher it shows the kernel alone.
WATCHERS = (torch.is_autocast_enabled, partial(has_torch_function, (None,)), is_watched)


def make_shortcut(watchers: tuple[Callable[[], object], ...] = WATCHERS) -> _core.Shortcut:
    """attn_fwd and attn_decode of four-dimensional tensors and little else, past PyTorch's dispatcher.

    It takes tensors of no subclass, on a device, of which no gradient is wanted, while nobody watches what this thread
    calls. It gives None for all others, and for what is refused.
    """
    return _core.Shortcut(
        Tensor, torch.empty_like, Tensor.new_empty_strided, torch.is_grad_enabled, forward_ad.unpack_dual, watchers,
        runtime,
    )  # fmt: skip


# Open while this engine runs.
shortcut = make_shortcut()


def flags_of(causal: bool, bottom_right: bool, rows_first: bool) -> int:
    """Raises KeyError where one is neither True nor False."""
    return CAUSAL * _BIT[causal] + BOTTOM_RIGHT * _BIT[bottom_right] + ROWS_FIRST * _BIT[rows_first]


def attn_fwd(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None, cu_seqlens_q: Tensor | None = None, cu_seqlens_k: Tensor | None = None,
    seqused_q: Tensor | None = None, seqused_k: Tensor | None = None, rng: Tensor | None = None,
    max_seqlen_q: int = 0, max_seqlen_k: int = 0, scale: float = 0.0, softcap: float = 0.0, dropout: float = 0.0,
    causal: bool = False, window_left: int = -1, window_right: int = -1, bottom_right: bool = False,
    rows_first: bool = False, return_lse: bool = False, for_backward: bool = False,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Attention, as `torch.ops.kiln.attn_fwd`.

    Args:
        for_backward: refuse what attn_bwd has no kernel for.

    Returns:
        out, and the log-sum-exp of each row if it is wanted.

    Raises:
        KilnError: what the call lacks; UnsupportedError where no kernel serves it.
    """
    extras, which = NO_EXTRAS, 0
    if not (
        bias is None and alibi_slopes is None and sinks is None and cu_seqlens_q is None and cu_seqlens_k is None
        and seqused_q is None and seqused_k is None and rng is None
    ):  # fmt: skip
        extras, which = _listed(bias, alibi_slopes, sinks, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, rng)
    flags = flags_of(causal, bottom_right, rows_first) + RETURN_LSE * _BIT[return_lse] + FOR_BACKWARD * for_backward
    rest = (softcap, dropout, max_seqlen_q, max_seqlen_k, window_left, window_right)
    if rest == _PLAIN:
        if extras is NO_EXTRAS and flags < RETURN_LSE and (out := shortcut.attend(q, k, v, scale, flags)) is not None:
            return out, None
        out, lse, status = forward_op(q, k, v, extras, which, flags, scale)
    else:
        out, lse, status = forward_op(q, k, v, extras, which, flags, scale, *rest)
    if status:
        out, lse = _again(forward_op, status, (q, k, v), extras, (which, flags, scale, *rest))
    return out, lse


def attn_bwd(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, bias: Tensor | None = None,
    alibi_slopes: Tensor | None = None, sinks: Tensor | None = None, cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None, seqused_q: Tensor | None = None, seqused_k: Tensor | None = None,
    rng: Tensor | None = None, max_seqlen_q: int = 0, max_seqlen_k: int = 0, scale: float = 0.0,
    softcap: float = 0.0, dropout: float = 0.0, causal: bool = False, window_left: int = -1, window_right: int = -1,
    bottom_right: bool = False, rows_first: bool = False, need_dbias: bool = False, need_dsinks: bool = False,
    deterministic: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    """The gradients of attn_fwd, as `torch.ops.kiln.attn_bwd`: dq, dk, dv, dbias, dsinks."""
    extras, which = NO_EXTRAS, 0
    if not (
        bias is None and alibi_slopes is None and sinks is None and cu_seqlens_q is None and cu_seqlens_k is None
        and seqused_q is None and seqused_k is None and rng is None
    ):  # fmt: skip
        extras, which = _listed(bias, alibi_slopes, sinks, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, rng)
    flags = (
        flags_of(causal, bottom_right, rows_first) + NEED_DBIAS * need_dbias + NEED_DSINKS * need_dsinks
        + DETERMINISTIC * deterministic
    )  # fmt: skip
    rest = (softcap, dropout, max_seqlen_q, max_seqlen_k, window_left, window_right)
    if rest == _PLAIN:
        *results, status = _backward_op(dout, q, k, v, out, lse, extras, which, flags, scale)
    else:
        *results, status = _backward_op(dout, q, k, v, out, lse, extras, which, flags, scale, *rest)
    if status:
        results = _again(_backward_op, status, (dout, q, k, v, out, lse), extras, (which, flags, scale, *rest))
    return tuple(results)


def attn_decode(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, out: Tensor, k_new: Tensor | None = None,
    v_new: Tensor | None = None, seqused_k: Tensor | None = None, cu_seqlens_q: Tensor | None = None,
    block_table: Tensor | None = None, cache_batch: Tensor | None = None, leftpad: Tensor | None = None,
    rotary_cos: Tensor | None = None, rotary_sin: Tensor | None = None, k_scale: Tensor | None = None,
    v_scale: Tensor | None = None, sinks: Tensor | None = None, alibi_slopes: Tensor | None = None,
    max_seqlen_q: int = 0, max_seqlen_k: int = 0, window_left: int = -1, window_right: int = -1, splits: int = 0,
    scale: float = 0.0, softcap: float = 0.0, causal: bool = False, rotary_interleaved: bool = False,
    rows_first: bool = False, return_lse: bool = False,
) -> Tensor | None:  # fmt: skip
    """Attention over a cache, as `torch.ops.kiln.attn_decode`: writes `out` and the caches; the log-sum-exp or None."""
    extras, which = _listed(
        k_new, v_new, seqused_k, cu_seqlens_q, block_table, cache_batch, leftpad, rotary_cos, rotary_sin, k_scale,
        v_scale, sinks, alibi_slopes,
    )  # fmt: skip
    flags = flags_of(causal, False, rows_first) + RETURN_LSE * _BIT[return_lse] + INTERLEAVED * _BIT[rotary_interleaved]
    rest = (which, flags, scale, softcap, max_seqlen_q, max_seqlen_k, window_left, window_right, splits)
    lse, status = _decode_op(q, k_cache, v_cache, out, extras, *rest)
    if status:
        (lse,) = _again(_decode_op, status, (q, k_cache, v_cache, out), extras, rest, written=3)
    return lse


def dropout_mask(
    rng: Tensor, batch: int, heads: int, rows: int, keys: int, dropout: float, dtype: torch.dtype = torch.uint8
) -> Tensor:
    """What dropout with `rng` keeps, as `torch.ops.kiln.dropout_mask`: [batch, heads, rows, keys]."""
    mask = torch.empty((batch, heads, rows, keys), dtype=dtype, device=rng.device)
    if status := _mask_op(rng, mask, dropout):
        _again(_mask_op, status, (rng, mask), None, (dropout,), written=1)
    return mask


def fail(status: int) -> NoReturn:
    """Raises the exception of a status, with the sentence that the call has left on this thread."""
    if status == _OUT_OF_MEMORY:
        raise OutOfMemoryError(_core.last_error())
    raise errors.of_status(status, _core.last_error())


def fitted(tensor: Tensor) -> Tensor:
    """A copy whose last dimension is contiguous; heads and rows lie in memory in the order that they had."""
    if not tensor.numel():
        return tensor.new_empty(tensor.shape)  # contiguous() takes an empty tensor's strides for what they are not
    if tensor.dim() < 3 or tensor.stride(-3) >= tensor.stride(-2):
        return tensor.contiguous()
    return tensor.transpose(-3, -2).contiguous().transpose(-3, -2)


def _listed(*tensors: Tensor | None) -> tuple[list[Tensor], int]:
    """Those that are there, and a number whose bit n says that the n-th is."""
    given, which, bit = [], 0, 1
    for tensor in tensors:
        if tensor is not None:
            given.append(tensor)
            which += bit
        bit += bit
    return given, which


def _again(
    op: Callable, status: int, tensors: Sequence[Tensor], extras: list[Tensor] | None, rest: tuple[object, ...],
    written: int = 0,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Calls once more what can be made to work; raises what cannot. The results without their status.

    Args:
        written: how many of `tensors`, the last ones, the call writes: no copy can stand for these.
    """
    if status in (REFIT, _RANGE):
        # Of a range, strides that a kernel cannot count may be to blame; a dense copy has smaller ones.
        def fit(tensor: Tensor) -> Tensor:
            loose = tensor.dim() > 0 and tensor.stride(-1) != 1
            return fitted(tensor) if loose or (status == _RANGE and not tensor.is_contiguous()) else tensor

        read = len(tensors) - written
        changed = [*map(fit, tensors[:read]), *tensors[read:]]
        changed_extras = None if extras is None else [fit(tensor) if tensor.dim() == 4 else tensor for tensor in extras]
        before, after = [*tensors, *(extras or ())], [*changed, *(changed_extras or ())]
        if status == _RANGE and all(a is b for a, b in zip(before, after)):
            fail(status)
        tensors, extras = changed, changed_extras
    elif status == _QUEUE and torch.cuda.is_available():
        # A thread that has called nothing of CUDA yet has no current context, and PyTorch's default stream no device
        # then. This call makes it current, waits for nothing and is allowed while a graph is captured.
        torch.cuda.mem_get_info(tensors[0].device)
    else:
        fail(status)
    results = op(*tensors, *(() if extras is None else (extras,)), *rest)
    results = results if isinstance(results, tuple) else (results,)
    if results[-1] == REFIT:
        raise errors.ArgumentError("the last dimension of q, k, v and their gradients must be contiguous (stride 1)")
    if results[-1]:
        fail(results[-1])
    return results[:-1]
