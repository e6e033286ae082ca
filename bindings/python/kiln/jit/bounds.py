"""What an interpreted kernel reads and writes, held against the memory of its call: beyond it the process would end, or
another tensor would change."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy

from kiln.jit.tensors import Memory

_NEAR_ZERO = 1 << 32  # bytes: below any process's memory, and beyond what is computed from a stride of 0


class Bounds:
    """The addresses that a call may touch."""

    def __init__(self, memory: Memory) -> None:
        regions = sorted({(begin, end): name for name, begin, end in memory.regions}.items())
        self._absent = memory.absent
        self._names = [name for _, name in regions]
        self._begins = numpy.array([begin for (begin, _), _ in regions], dtype=numpy.uint64)
        self._ends = numpy.array([end for (_, end), _ in regions], dtype=numpy.uint64)

    def install(self, stack: ExitStack, builder: Any) -> None:
        """Checks what the interpreter's builder loads and stores, until the stack is left."""
        wanted = {
            "create_masked_load": ("reads", self._load),
            "create_masked_store": ("writes", self._store),
            "create_atomic_rmw": ("updates", self._update),
            "create_atomic_cas": ("updates", self._exchange),
        }
        for name, (verb, wrapped) in wanted.items():
            method = getattr(builder, name)
            stack.callback(_restore, builder, name, vars(builder).get(name))
            setattr(builder, name, wrapped(method, verb))

    def _load(self, method: Callable, verb: str) -> Callable:
        def load(pointers: Any, mask: Any, *rest: Any) -> Any:
            self._check(pointers, mask, verb)
            return method(pointers, mask, *rest)

        return load

    def _store(self, method: Callable, verb: str) -> Callable:
        def store(pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
            self._check(pointers, mask, verb)
            return method(pointers, value, mask, *rest)

        return store

    def _update(self, method: Callable, verb: str) -> Callable:
        def update(operation: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
            self._check(pointers, mask, verb)
            return method(operation, pointers, value, mask, *rest)

        return update

    def _exchange(self, method: Callable, verb: str) -> Callable:
        def exchange(pointers: Any, *rest: Any) -> Any:
            self._check(pointers, None, verb)
            return method(pointers, *rest)

        return exchange

    def _check(self, pointers: Any, mask: Any, verb: str) -> None:
        addresses = pointers.data
        if mask is not None:
            addresses = addresses[numpy.broadcast_to(mask.data.astype(bool), addresses.shape)]
        if not addresses.size:
            return
        size = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        places = numpy.searchsorted(self._begins, addresses, side="right").astype(numpy.int64) - 1
        inside = (places >= 0) & (addresses + numpy.uint64(size) <= self._ends[places])
        if not inside.all():
            raise IndexError(self._sentence(int(addresses[~inside].flat[0]), size, verb))

    def _sentence(self, address: int, size: int, verb: str) -> str:
        """Where an address lies, by the nearest tensor that ends before it or begins behind it; or which tensor would
        lie there if the call had it."""
        if self._absent and (address + _NEAR_ZERO) % 2**64 < 2 * _NEAR_ZERO:
            return f"{verb} {' or '.join(self._absent)}, which this call leaves out"
        near = [
            (abs(address - edge), f"{abs(address - edge)} bytes {where} of {name}")
            for name, begin, end in zip(self._names, map(int, self._begins), map(int, self._ends))
            for edge, where in ((begin, "from the start"), (end, "from the end"))
        ]
        where = min(near)[1] if near else "where no tensor is"
        return f"{verb} {size} bytes outside of the call's tensors, {where}"


def _restore(owner: Any, name: str, before: Any) -> None:
    """Puts back what an object had of its own, or takes away what it had not."""
    if before is None:
        delattr(owner, name)
    else:
        setattr(owner, name, before)
