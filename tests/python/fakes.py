"""Stand-ins: arrays of devices that are not there, libraries that make them, and the driver that they lie on."""

from __future__ import annotations

import ctypes as c
import itertools
import struct
from pathlib import Path

import ffi

import kiln
from kiln import _core

LIB = Path(_core.__file__).parent / "lib"
CUDA, ROCM, CPU = 2, 10, 1
NVIDIA, AMD = 1, 2
TYPES = {  # by name: DLPack's code, bits
    "fp32": (2, 32), "fp16": (2, 16), "bf16": (4, 16), "int32": (0, 32), "int64": (0, 64), "uint8": (1, 8),
    "fp8e4m3": (10, 8), "complex64": (5, 64),
}  # fmt: skip


class _Tensor(c.Structure):
    _fields_ = [
        ("data", c.c_void_p), ("device_type", c.c_int32), ("device_id", c.c_int32), ("rank", c.c_int32),
        ("code", c.c_uint8), ("bits", c.c_uint8), ("lanes", c.c_uint16), ("sizes", c.POINTER(c.c_int64)),
        ("strides", c.POINTER(c.c_int64)), ("byte_offset", c.c_uint64),
    ]  # fmt: skip


class _Managed(c.Structure):
    _fields_ = [("tensor", _Tensor), ("context", c.c_void_p), ("deleter", c.c_void_p)]


class _Versioned(c.Structure):
    _fields_ = [
        ("major", c.c_uint32), ("minor", c.c_uint32), ("context", c.c_void_p), ("deleter", c.c_void_p),
        ("flags", c.c_uint64), ("tensor", _Tensor),
    ]  # fmt: skip


_new = c.pythonapi.PyCapsule_New
_new.restype, _new.argtypes = c.py_object, [c.c_void_p, c.c_char_p, c.c_void_p]
_DELETER = c.CFUNCTYPE(None, c.c_void_p)
alive: dict[int, tuple] = {}  # what capsules point to, until their deleter is called


@_DELETER
def _delete(address: int) -> None:
    del alive[address]


def capsule(
    address: int, dtype: str, shape: tuple[int, ...], strides: tuple[int, ...] | None, device: tuple[int, int],
    *, version: tuple[int, int] | None = None, flags: int = 0, offset: int = 0, lanes: int = 1,
) -> object:  # fmt: skip
    """A capsule of DLPack; `version`: of DLPack 1 and later, None: of 0."""
    code, bits = TYPES[dtype]
    sizes = (c.c_int64 * max(len(shape), 1))(*shape)
    steps = (c.c_int64 * max(len(shape), 1))(*strides) if strides is not None else None
    tensor = _Tensor(address, *device, len(shape), code, bits, lanes, sizes, steps, offset)
    deleter = c.cast(_delete, c.c_void_p).value
    if version is None:
        managed, name = _Managed(tensor, None, deleter), b"dltensor"
    else:
        managed, name = _Versioned(*version, None, deleter, flags, tensor), b"dltensor_versioned"
    alive[c.addressof(managed)] = (managed, sizes, steps)
    return _new(c.addressof(managed), name, None)


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.insert(0, step)
        step *= max(size, 1)
    return tuple(strides)


_addresses = itertools.count(1 << 32, 1 << 24)


class Array:
    """An array of no library in particular: it has DLPack and no more.

    Attributes:
        address: of its first element.
        streams: for which it was asked.
    """

    def __init__(self, shape, dtype="bf16", strides=None, device=(CUDA, 0), version=(1, 0), flags=0) -> None:
        self.address, self.shape, self.dtype, self.where = next(_addresses), tuple(shape), dtype, device
        self.strides = contiguous(self.shape) if strides is None else tuple(strides)
        self.version, self.flags, self.streams = version, flags, []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.where

    def __dlpack__(self, *, stream=None, max_version=None) -> object:
        self.streams.append(stream)
        version = self.version if max_version else None
        return capsule(
            self.address, self.dtype, self.shape, self.strides, self.where, version=version, flags=self.flags
        )

    @property
    def view(self) -> tuple:
        return (self.address, self.dtype, self.shape, self.strides)


class Older(Array):
    """Of a library that knows DLPack 0 alone."""

    def __dlpack__(self, *, stream=None) -> object:
        return super().__dlpack__(stream=stream)


class StandardArray(Array):
    """Of a library with the array API."""

    device = "device"

    def __array_namespace__(self) -> type[Namespace]:
        return Namespace


_VIEW = c.CFUNCTYPE(c.c_int, c.py_object, c.POINTER(_Tensor))
_STREAM = c.CFUNCTYPE(c.c_int, c.c_int32, c.c_int32, c.POINTER(c.c_void_p))


class _Exchange(c.Structure):
    _fields_ = [
        ("version", c.c_uint32 * 2), ("earlier", c.c_void_p), ("unused", c.c_void_p * 3), ("view", _VIEW),
        ("current_stream", _STREAM),
    ]  # fmt: skip


@_VIEW
def _look(array: Array, out: object) -> int:
    array.looked = tuple((c.c_int64 * len(array.shape))(*numbers) for numbers in (array.shape, array.strides))
    code, bits = TYPES[array.dtype]
    out[0] = _Tensor(array.address, *array.where, len(array.shape), code, bits, 1, *array.looked, 0)
    return 0


@_STREAM
def _no_stream(_kind: int, _device: int, out: object) -> int:
    out[0] = None
    return 0


_exchange = _Exchange((1, 3), None, (None, None, None), _look, _no_stream)
_EXCHANGE_NAME = b"dlpack_exchange_api"  # a capsule holds no copy of it


class Exchanged(Array):
    """Of a library whose arrays C may look at; its current stream is the default one."""

    __dlpack_c_exchange_api__ = _new(c.addressof(_exchange), _EXCHANGE_NAME, None)


class Namespace:
    float16, float32, uint8 = "fp16", "fp32", "uint8"
    made: list[StandardArray] = []

    @classmethod
    def empty(cls, shape, *, dtype, device) -> StandardArray:
        assert device == "device"
        cls.made.append(StandardArray(shape, dtype))
        return cls.made[-1]


def opened(fake: ffi.Fake, packs: str = "kiln.images", **options: object) -> kiln.Runtime:
    """A runtime on the fake driver."""
    folder = LIB / packs
    digest = (folder / "trusted.txt").read_text()
    return kiln.Runtime(pack_path=folder, trusted_packs=digest, resolve=fake.resolve, **options)


def fp32(value: float) -> int:
    return struct.unpack("<I", struct.pack("<f", value))[0]


def arguments(operation: str) -> dict[str, dict]:
    """What the recipe says of an operation's arguments, in their order: the kernels of the tests get all of them."""
    import flash_arguments

    recipe = Path(kiln.__file__).parent / "flash/recipe.yaml"
    return flash_arguments.arguments(flash_arguments.operations(recipe)[operation])
