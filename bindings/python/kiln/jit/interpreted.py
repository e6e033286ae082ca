"""Kernels run by Triton's interpreter, on the CPU, with the types that the recipe gives their parameters.

Triton means to interpret either everything or nothing in a process. Here it interprets while a call runs, and not
before or after: what it patches in its language is taken back, and its own functions (tl.sum, tl.cdiv) are interpreted
copies meanwhile. The language is the process's: while one thread interprets, kiln.jit's calls of others wait, and
nothing else may compile a kernel.
"""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy

from kiln.jit import booleans, strict
from kiln.jit.bounds import Bounds
from kiln.jit.errors import KernelError
from kiln.jit.locks import TRITON
from kiln.jit.narrow import Narrow, put
from kiln.jit.packages import need
from kiln.jit.tensors import Memory
from kiln_recipe import dtypes
from kiln_recipe.call.dispatch import Chosen
from kiln_recipe.compile import mistakes
from kiln_recipe.model import Kernel


class Interpreter:
    """What is interpreted of one recipe, rewritten once."""

    def __init__(self) -> None:
        self._rewritten: dict[Callable, Callable] = {}
        self._copies: dict[int, tuple[Any, Any]] = {}  # with what it is the copy of, which keeps the id

    def prepare(self, function: Any) -> None:
        """Rewrites a function and all that it can call as the interpreter wants them: now, while their files are what
        was executed."""
        waiting = [function]
        with TRITON:
            while waiting:
                one = waiting.pop()
                if one.fn not in self._rewritten:
                    names = list(one.fn.__globals__.values())  # rewriting adds the interpreter's
                    self._rewritten[one.fn] = booleans.rewrite(one)
                    waiting += (other for other in names if isinstance(other, type(function)))

    @contextmanager
    def running(self, memory: Memory | None = None) -> Iterator[None]:
        """Triton's language computes, and builds no IR, until this is left.

        Args:
            memory: what may be read and written meanwhile; None: it is not checked.
        """
        interpreter, jit, knobs = (
            need("triton", f"triton.{name}") for name in ("runtime.interpreter", "runtime.jit", "knobs")
        )
        language = need("triton.language")
        builder = interpreter.interpreter_builder
        with TRITON, knobs.runtime.scope(), ExitStack() as stack:
            knobs.runtime.interpret = True
            for owner in (language.tensor, language.dtype):
                stack.callback(_forget_new, owner, set(vars(owner)))  # Triton leaves copies of what is inherited
            # Both modules by which kernels and Triton's own functions know the language.
            everything = SimpleNamespace(__globals__={"language": language, "core": language.core})
            stack.callback(interpreter._patch_lang(everything).restore)
            # Triton 3.6 makes numbers of arrays in a way that NumPy has refused since 2.4.
            _set(stack, language.tensor, "__index__", lambda tensor: int(tensor.handle.data.item()))
            # Triton would look for what to patch at every call of a function: two thirds of its time.
            _set(stack, interpreter, "_patch_lang", lambda function: SimpleNamespace(restore=lambda: None))
            _set(stack, interpreter.InterpretedFunction, "rewritten_fn", self._rewritten)
            # Whether integers overflow is asserted in debug mode alone.
            _set(stack, builder, "options", replace(builder.options, sanitize_overflow=False))
            _set(stack, jit.JITFunction, "__call__", self._stand_in())
            put(stack, builder, "binary_op", _telling_truth(builder.binary_op))
            Narrow().install(stack)
            strict.install(stack, builder)
            if memory is not None:
                Bounds(memory).install(stack, builder)
            yield

    def run(self, chosen: Chosen, function: Any) -> None:
        """Runs all programs of a kernel, one after another; within `running`.

        Args:
            function: of functions.Functions, interpreted, and prepared.

        Raises:
            KernelError: the kernel's source, or the interpreter, raised; begins with file:line.
        """
        interpreter = need("triton.runtime.interpreter")
        rewritten = self._rewritten[function.fn]
        arguments = _arguments(chosen)
        builder = interpreter.interpreter_builder
        builder.set_grid_dim(*chosen.launch.grid)
        try:
            with numpy.errstate(all="ignore"):  # what overflows is inf, as on a GPU
                for place in itertools.product(*map(range, chosen.launch.grid)):
                    builder.set_grid_idx(*place)
                    rewritten(**arguments)
        except Exception as error:  # noqa: BLE001 - whatever a kernel's source, or Triton, raises
            raise _of(error, chosen) from None

    def _stand_in(self) -> Callable:
        """What calls Triton's own functions meanwhile: copies of them, so that theirs stay as they are."""

        def call(function: Any, *values: Any, **named: Any) -> Any:
            if id(function) not in self._copies:
                self._copies[id(function)] = (function, _interpreted_copy(function.fn))
            return self._copies[id(function)][1](*values, **named)

        return call


def _telling_truth(method: Callable) -> Callable:
    """Comparisons that give int1. Triton gives their results the type of what was compared: a block filled with one
    would be integers, which Triton 3.9 refuses as a mask."""
    interpreter, language = need("triton.runtime.interpreter"), need("triton.language")

    def compute(*operands: Any) -> Any:
        result = method(*operands)
        is_truth = result.data.dtype == bool and result.dtype != language.int1
        return interpreter.TensorHandle(result.data, language.int1) if is_truth else result

    return compute


def _interpreted_copy(own: Callable) -> Any:
    copy = FunctionType(own.__code__, dict(own.__globals__), own.__name__, own.__defaults__, own.__closure__)
    copy.__kwdefaults__, copy.__annotations__ = own.__kwdefaults__, own.__annotations__
    return need("triton.runtime.interpreter").InterpretedFunction(copy)


def _forget_new(owner: type, before: set[str]) -> None:
    """Takes away a class's own attributes that it had not before."""
    for name in set(vars(owner)) - before - {"__annotations__"}:
        delattr(owner, name)


def _set(stack: ExitStack, owner: Any, name: str, value: Any) -> None:
    """Sets an attribute until the stack is left."""
    stack.callback(setattr, owner, name, getattr(owner, name))
    setattr(owner, name, value)


def not_interpreted(kernel: Kernel) -> str | None:
    """Why the interpreter cannot run an implementation, or None."""
    if kernel.language != "triton":
        return f"its source is in {kernel.language.capitalize()}, but the interpreter only runs Triton"
    if kernel.overlaps:
        return "it overlaps with the kernel before it, which the interpreter does not support"
    return "it takes tensor descriptors, which the interpreter does not support" if kernel.descriptors else None


def _arguments(chosen: Chosen) -> Mapping[str, Any]:
    """By parameter a constant, or a number of the recipe's own type: the interpreter would go by its size."""
    language = need("triton", "triton.language")
    interpreter = need("triton.runtime.interpreter")
    given: dict[str, Any] = dict(chosen.variant.spec.constants)
    types = dict(chosen.variant.spec.signature)
    value: Any
    for name, value in chosen.launch.arguments:
        pointed = types[name].startswith("*")
        kind = _types(language)[types[name].removeprefix("*")]
        if pointed:
            kind = language.pointer_type(kind)
            value &= 2**64 - 1
        data = numpy.array([value], dtype=interpreter._get_np_dtype(kind))
        given[name] = language.tensor(interpreter.TensorHandle(data, kind), kind)
    return given


def _types(language: Any) -> Mapping[str, Any]:
    """Triton's types by their names in signatures."""
    return {row.triton: getattr(language, row.language) for row in dtypes.TABLE}


def _of(raised: Exception, chosen: Chosen) -> KernelError:
    """What the kernel raised, at the innermost of its own lines."""
    spec, causes = chosen.variant.spec, []
    error: BaseException | None = raised
    while error is not None:
        causes.append(error)
        error = error.__cause__
    folder = Path(spec.source).parent
    place = next(filter(None, (mistakes.place_of(cause, folder) for cause in reversed(causes))), spec.source)
    innermost = causes[-1]
    said = strict.of_libdevice(innermost) or f"{type(innermost).__name__}: {' '.join(str(innermost).split())}"
    return KernelError(f"{place}: {said}", "".join(traceback.format_exception(raised)))
