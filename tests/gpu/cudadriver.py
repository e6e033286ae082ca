"""What the tests need of the CUDA driver itself, by ctypes: contexts and memory that PyTorch does not know."""

from __future__ import annotations

import ctypes as c
from contextlib import contextmanager
from functools import cache

import numpy as np


@cache
def driver() -> c.CDLL:
    library = c.CDLL("libcuda.so.1")
    check(library.cuInit(0), "cuInit")
    return library


def check(status: int, what: str) -> None:
    if status:
        raise RuntimeError(f"{what} gave error {status}")


def call(name: str, *arguments: object) -> None:
    check(getattr(driver(), name)(*arguments), name)


def current() -> int | None:
    context = c.c_void_p()
    call("cuCtxGetCurrent", c.byref(context))
    return context.value


@contextmanager
def second_context():
    """A context of its own on device 0, current inside the block."""
    context, popped = c.c_void_p(), c.c_void_p()
    call("cuCtxCreate_v2", c.byref(context), 0, 0)
    try:
        yield context.value
    finally:
        call("cuCtxPopCurrent_v2", c.byref(popped))
        call("cuCtxDestroy_v2", context)


@contextmanager
def green_stream(multiprocessors: int = 16):
    """A stream of a green context with some of device 0's multiprocessors; the primary context's memory is its own."""
    resource, group = (c.create_string_buffer(4096) for _ in range(2))
    call("cuDeviceGetDevResource", 0, resource, 1)
    count = c.c_uint(1)
    call("cuDevSmResourceSplitByCount", group, c.byref(count), resource, None, 0, multiprocessors)
    description, green, stream = c.c_void_p(), c.c_void_p(), c.c_void_p()
    call("cuDevResourceGenerateDesc", c.byref(description), group, 1)
    call("cuGreenCtxCreate", c.byref(green), description, 0, 1)
    try:
        call("cuGreenCtxStreamCreate", c.byref(stream), green, 1, 0)
        yield stream.value
        call("cuStreamSynchronize", stream)
        call("cuStreamDestroy_v2", stream)
    finally:
        call("cuGreenCtxDestroy", green)


class Memory:
    """Device memory of the current context with a copy of an array."""

    def __init__(self, array: np.ndarray) -> None:
        self.like = array
        self.address = c.c_uint64()
        call("cuMemAlloc_v2", c.byref(self.address), c.c_size_t(array.nbytes))
        call("cuMemcpyHtoD_v2", self.address, array.ctypes.data_as(c.c_void_p), c.c_size_t(array.nbytes))

    def read(self) -> np.ndarray:
        result = np.empty_like(self.like)
        call("cuMemcpyDtoH_v2", result.ctypes.data_as(c.c_void_p), self.address, c.c_size_t(result.nbytes))
        return result

    def free(self) -> None:
        call("cuMemFree_v2", self.address)
