"""What Triton's interpreter lets pass and a GPU does not, made to be seen on the CPU."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import ExitStack
from types import FunctionType
from typing import Any

import numpy

from kiln.jit.narrow import put
from kiln.jit.packages import need

_INTEGER = 0x5A5A  # which nobody would take for right; of some thousands the sum is no overflow
_NO_LIBDEVICE = "Triton's interpreter has no libdevice; tl.math has some of its functions, else compile for a GPU"


def install(stack: ExitStack, builder: Any) -> None:
    """Makes it so until the stack is left."""
    put(stack, builder, "create_masked_load", _leaving_open(builder.create_masked_load))
    for function in vars(need("triton.language.extra.libdevice")).values():
        if isinstance(function, FunctionType):  # a stand-in of Triton's for the compilers' own, which returns None
            stack.callback(setattr, function, "__code__", function.__code__)
            function.__code__ = _refuse.__code__


def _leaving_open(load: Callable) -> Callable:
    """Loads whose masked elements, without `other`, are no zeros: on a GPU they may be anything."""
    interpreter = need("triton.runtime.interpreter")

    def masked_load(pointers: Any, mask: Any, other: Any, *rest: Any, **named: Any) -> Any:
        # Of one element nothing tells `other=0` from none: Triton asks whether `other` is true.
        if other is None and pointers.data.size > 1 and not mask.data.all():
            kind = pointers.get_element_ty()
            numbers = numpy.dtype(interpreter._get_np_dtype(kind))
            data = numpy.full(pointers.data.shape, _INTEGER % 2 ** min(8 * numbers.itemsize, 63), numbers)
            if kind.is_floating():
                data.view(numpy.uint8).fill(0xFF)  # NaN in every floating type
            other = interpreter.TensorHandle(data, kind)
        return load(pointers, mask, other, *rest, **named)

    return masked_load


def _refuse(*operands: object, **named: object) -> None:
    raise NotImplementedError("libdevice")


def of_libdevice(error: BaseException) -> str:
    """What to say of an error that a function of libdevice raised, or of a backend's own; "" if it is another."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    called = frames[-1].f_locals.get("fn") if frames else None  # of what Triton wraps
    is_stand_in = bool(frames) and frames[-1].f_code is _refuse.__code__
    is_backend_s = str(getattr(called, "__module__", "")).startswith("triton.language.extra.")
    return _NO_LIBDEVICE if is_stand_in or is_backend_s else ""
