"""bf16 and fp8 in Triton's interpreter, which keeps them as unsigned integers, multiplies, adds and compares those, and
cuts off what a conversion should round. Here operations on them are done in fp32 and rounded once, as hardware does.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy
import torch

from kiln.jit.packages import need
from kiln_recipe import dtypes

_NARROW = tuple(row for row in dtypes.TABLE if row.is_narrow)
# Methods of the builder that compute with all of their operands.
_COMPUTING = ("binary_op", "unary_op", "ternary_op", "create_fma", "create_rsqrt", "create_erf", "create_dot")


class Narrow:
    """Conversions between Triton's narrow types and fp32, and an interpreter's builder that uses them."""

    def __init__(self) -> None:
        self._interpreter = need("triton.runtime.interpreter")
        self._language = need("triton.language")
        self._toward_zero = need("triton._C.libtriton").ir.ROUNDING_MODE.RTZ
        # By name, since types themselves have no hash.
        self._types = {
            getattr(self._language, row.language).name: (getattr(torch, row.torch), row.largest) for row in _NARROW
        }

    def install(self, stack: ExitStack) -> None:
        """Gives the interpreter's builder these operations until the stack is left."""
        builder, operations = self._interpreter.interpreter_builder, self._interpreter.ReduceScanOpInterface
        for name in _COMPUTING:
            put(stack, builder, name, self._computing(getattr(builder, name)))
        for name in ("create_atomic_rmw", "create_atomic_cas"):
            put(stack, builder, name, self._refusing(getattr(builder, name)))
        for name in self._types:
            put(stack, builder, f"get_{name}", lambda value, name=name: self._constant(value, name))
        put(stack, builder, "cast_impl", self._casting(builder.cast_impl))
        put(stack, builder, "create_fp_to_fp", self._casting(builder.create_fp_to_fp))
        put(stack, operations, "apply", self._reducing(operations.apply))

    def _is_narrow(self, value: Any) -> bool:
        return isinstance(value, self._interpreter.TensorHandle) and value.dtype.scalar.name in self._types

    def _widened(self, handle: Any) -> Any:
        """The same numbers in fp32."""
        kind, _ = self._types[handle.dtype.scalar.name]
        bits = torch.from_numpy(numpy.ascontiguousarray(handle.data))
        return self._interpreter.TensorHandle(bits.view(kind).float().numpy(), self._language.float32)

    def _narrowed(self, handle: Any, to: Any) -> Any:
        """The nearest numbers of a narrow type, ties to even."""
        kind, largest = self._types[to.name]
        wide = torch.from_numpy(numpy.ascontiguousarray(handle.data, dtype=numpy.float32))
        if largest is not None:
            wide = wide.clamp(-largest, largest)
        bits = wide.to(kind).view(torch.uint16 if kind is torch.bfloat16 else torch.uint8)
        return self._interpreter.TensorHandle(bits.numpy(), to)

    def _constant(self, value: float, name: str) -> Any:
        wide = self._interpreter.TensorHandle(numpy.array([value], dtype=numpy.float32), self._language.float32)
        return self._narrowed(wide, self._language.dtype(name))

    def _computing(self, method: Callable) -> Callable:
        def compute(*operands: Any, **named: Any) -> Any:
            narrow = [operand.dtype.scalar for operand in operands if self._is_narrow(operand)]
            if not narrow:
                return method(*operands, **named)
            result = method(*(self._widened(o) if self._is_narrow(o) else o for o in operands), **named)
            # A comparison's result, or a product's sum in fp32, is no narrow number.
            is_wide = all(o.dtype.scalar.name in self._types for o in operands if self._is_float(o))
            return self._narrowed(result, narrow[-1]) if is_wide and result.data.dtype == numpy.float32 else result

        return compute

    def _is_float(self, value: Any) -> bool:
        return isinstance(value, self._interpreter.TensorHandle) and value.dtype.scalar.is_floating()

    def _casting(self, method: Callable) -> Callable:
        def cast(source: Any, to: Any, *rest: Any) -> Any:
            if not self._is_narrow(source) and to.scalar.name not in self._types:
                return method(source, to, *rest)
            if to.scalar.name in self._types and self._toward_zero in rest:
                raise NotImplementedError(f"Triton's interpreter does not round to {to.scalar} toward zero")
            wide = self._widened(source) if self._is_narrow(source) else source
            kind = to.scalar if to.scalar.name not in self._types else self._language.float32
            if wide.dtype.scalar != kind:
                data = wide.data.astype(self._interpreter._get_np_dtype(kind))
                wide = self._interpreter.TensorHandle(data, kind)
            return self._narrowed(wide, to.scalar) if to.scalar.name in self._types else wide

        return cast

    def _refusing(self, method: Callable) -> Callable:
        def refuse(*operands: Any, **named: Any) -> Any:
            for operand in operands:
                if self._is_narrow(operand):
                    raise NotImplementedError(f"Triton's interpreter has no atomic operations of {operand.dtype}")
            return method(*operands, **named)

        return refuse

    def _reducing(self, method: Callable) -> Callable:
        """`apply` of tl.reduce and tl.associative_scan: sums in fp32 are rounded once."""

        def reduce(operation: Any, tensors: Any) -> Any:
            if not isinstance(tensors, tuple):
                return operation.apply((tensors,))[0]
            kinds = [tensor.handle.dtype.scalar if self._is_narrow(tensor.handle) else None for tensor in tensors]
            wide = tuple(
                self._tensor(self._widened(tensor.handle), tensor.type) if kind else tensor
                for tensor, kind in zip(tensors, kinds)
            )
            results = method(operation, wide)
            return tuple(
                self._tensor(self._narrowed(result.handle, kind), result.type, kind) if kind else result
                for result, kind in zip(results, kinds)
            )

        return reduce

    def _tensor(self, handle: Any, like: Any, kind: Any = None) -> Any:
        kind = kind or self._language.float32
        made = self._language.block_type(kind, list(like.shape)) if like.is_block() else kind
        return self._language.tensor(handle, made)


def put(stack: ExitStack, owner: Any, name: str, value: Any) -> None:
    """Sets an attribute of the owner's own until the stack is left."""
    if name in vars(owner):
        stack.callback(setattr, owner, name, vars(owner)[name])
    else:
        stack.callback(delattr, owner, name)
    setattr(owner, name, value)
