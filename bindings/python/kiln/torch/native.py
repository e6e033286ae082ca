"""The engine that runs what was compiled ahead: the operators of libkiln_torch.so, called with plain tensors.

Its functions take every argument of `torch.ops.kiln`'s operators, in their order. Layouts are the caller's; the library
swaps strides. What no kernel takes but means something plain, such as a last dimension with a stride, is copied here.
"""

from __future__ import annotations

import ctypes
import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.overrides import has_torch_function

import kiln
from kiln import _arguments, _core, errors, layout
from kiln._arguments import (  # noqa: F401
    ALIKE,
    BOTTOM_RIGHT,
    CAUSAL,
    EQUAL_HEADS,
    FOR_BACKWARD,
    NO_EXTRAS,
    RETURN_LSE,
    ROWS_FIRST,
)
from kiln.runtime import _log as write_log

name = "native"
devices = frozenset({"cuda"})

LIBRARY = Path(kiln.__file__).parent / "lib" / "libkiln_torch.so"
LOWEST = (2, 10)

# A result that is no kiln_status, as in bindings/torch/call.h.
REFIT = -1
# Refusals that neither another form of the tensors nor a second try can change.
FINAL = frozenset({2, 3, 5, 6, 7, 15})
_OUT_OF_MEMORY, _QUEUE, _RANGE = 11, 13, 14
_MOST_MESSAGES = 3  # KILN_LOG_DEBUG

_BIT = {False: 0, True: 1}  # whatever equals neither is no flag


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
for _name in _arguments.SCHEMAS:
    _registrations.impl(_name, torch.library.fallthrough_kernel, "Autograd")

# Called as packets, whose own frame of Python's costs less than that of an overload.
forward_op: Callable = torch.ops.kiln_native.attn_fwd
_backward_op: Callable = torch.ops.kiln_native.attn_bwd
_decode_op: Callable = torch.ops.kiln_native.attn_decode
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
    return handle.value or 0


def count_changes(tensors: Iterable[Tensor]) -> None:
    """Has PyTorch know that a call has written these: what was recorded with them before is refused its gradients."""
    if not torch.is_inference_mode_enabled():
        torch.autograd.graph.increment_version([tensor for tensor in tensors if not tensor.is_inference()])


# Who would see a call that goes through the dispatcher, besides what is_watched knows. The profiler sees nothing of a
# call past the dispatcher but its kernel.
WATCHERS = (partial(has_torch_function, (None,)),)
_is_watched = ctypes.cast(_library.kiln_torch_is_watched, ctypes.c_void_p).value or 0


def make_shortcut(watchers: tuple[Callable[[], object], ...] = WATCHERS) -> _core.Shortcut:
    """attn_fwd and attn_decode of four-dimensional tensors and little else, past PyTorch's dispatcher.

    It takes tensors of no subclass, on a device, that need no gradient, while nothing watches what this thread
    calls, casts or transforms it. It gives None for all others, and for what is refused.
    """
    return _core.Shortcut(
        Tensor, torch.empty_like, Tensor.new_empty_strided, torch.is_grad_enabled, forward_ad.unpack_dual,
        torch.is_autocast_enabled, _is_watched, watchers, count_changes, runtime,
    )  # fmt: skip


def plain_fields(function: Callable, arrays: Sequence[str]) -> dict[str, int]:
    """What each argument of a function is to a plain call of `shortcut`'s: these are its arrays, by their numbers."""
    flag = 1 << 16
    kinds = {name: place for place, name in enumerate(arrays)}
    kinds |= {"scale": -1, "window": -3, "causal": flag + CAUSAL, "bottom_right": flag + BOTTOM_RIGHT}
    kinds |= {"rows_first": flag + ROWS_FIRST, "is_causal": flag + CAUSAL, "enable_gqa": flag + EQUAL_HEADS}
    return {name: kinds.get(name, -2) for name in inspect.signature(function).parameters}


# Open while this engine runs.
shortcut = make_shortcut()


def flags_of(causal: bool, bottom_right: bool, rows_first: bool) -> int:
    """Raises KeyError where one is neither True nor False."""
    return CAUSAL * _BIT[causal] + BOTTOM_RIGHT * _BIT[bottom_right] + ROWS_FIRST * _BIT[rows_first]


def attn_fwd(*args: Any, for_backward: bool = False, **named: Any) -> tuple[Tensor, Tensor | None]:
    """Attention, as `torch.ops.kiln.attn_fwd`, whose arguments it takes.

    Args:
        for_backward: refuse what attn_bwd has no kernel for.

    Returns:
        out, and the log-sum-exp of each row if it is wanted.

    Raises:
        KilnError: what the call lacks; UnsupportedError where no kernel serves it.
    """
    tensors, extras, which, flags, scale, rest = _arguments.native_attn_fwd(*args, **named)
    if for_backward:
        flags += FOR_BACKWARD
    if not which and flags < RETURN_LSE and rest == _arguments.NATIVE_DEFAULTS["attn_fwd"]:
        q, k, v = tensors
        out = shortcut.attend(q, k, v, scale, flags)
        if out is not None:
            return out, None
    return _run("attn_fwd", forward_op, tensors, extras, which, flags, scale, rest)


def attn_bwd(*args: Any, **named: Any) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """The gradients of attn_fwd, as `torch.ops.kiln.attn_bwd`: dq, dk, dv, dbias, dsinks."""
    return _run("attn_bwd", _backward_op, *_arguments.native_attn_bwd(*args, **named))


def attn_decode(*args: Any, **named: Any) -> Tensor | None:
    """Attention over a cache, as `torch.ops.kiln.attn_decode`: writes `out` and the caches; the log-sum-exp or None."""
    (lse,) = _run("attn_decode", _decode_op, *_arguments.native_attn_decode(*args, **named), written=3)
    return lse


def _run(
    name: str, op: Callable, tensors: tuple[Tensor, ...], extras: list[Tensor], which: int, flags: int, scale: float,
    rest: tuple[float | int, ...], written: int = 0,
) -> tuple[Any, ...]:  # fmt: skip
    """Calls an operator of the library, which fills in defaults at the end for next to nothing.

    Args:
        written: how many of `tensors`, the last ones, the call writes.
    """
    if rest == _arguments.NATIVE_DEFAULTS[name]:
        *results, status = op(*tensors, extras, which, flags, scale)
    else:
        *results, status = op(*tensors, extras, which, flags, scale, *rest)
    if status:
        return _again(op, status, tensors, extras, (which, flags, scale, *rest), written)
    return tuple(results)


def run(operation: str, *args: Any, **named: Any) -> Any:
    """Any other operation, as the operator of torch.ops.kiln that has its name; the table of arguments tells its
    results."""
    read, extras, rest = getattr(_arguments, f"native_{operation}")(*args, **named)
    results = layout.results_of(torch, operation, _arguments.by_name(operation, args, named))
    op, tensors = getattr(torch.ops.kiln_native, operation), (*read, *results.values())
    if status := op(*tensors, *(() if extras is None else (extras,)), *rest):
        _again(op, status, tensors, extras, rest, written=len(results))
    return layout.returned(results)


def fail(status: int) -> NoReturn:
    """Raises the exception of a status, with the sentence that the call has left on this thread."""
    if status == _OUT_OF_MEMORY:
        raise OutOfMemoryError(_core.last_error())
    raise errors.of_status(status, _core.last_error())


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
            return layout.fitted(tensor) if loose or (status == _RANGE and not tensor.is_contiguous()) else tensor

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
