"""kiln._core.Tensor: taken from a library by DLPack, and given to others."""

from __future__ import annotations

import gc
import weakref

import fakes
import pytest
from fakes import CPU, CUDA, TYPES, Array

import kiln
from kiln import _core


@pytest.mark.parametrize("dtype", [name for name in TYPES if name != "complex64"])
@pytest.mark.parametrize("version", [None, (1, 0), (1, 9)])
def test_what_is_taken(dtype, version):
    before = len(fakes.alive)
    capsule = fakes.capsule(
        4096, dtype, (2, 3), (7, 2), (CUDA, 3), version=version, flags=version is not None, offset=64
    )
    tensor = _core.Tensor(capsule)
    assert (tensor.address, tensor.dtype, tensor.shape, tensor.strides) == (4160, dtype, (2, 3), (7, 2))
    assert tensor.__dlpack_device__() == (CUDA, 3) and tensor.read_only == (version is not None)
    assert len(fakes.alive) == before + 1
    del tensor
    assert len(fakes.alive) == before, "its library may have it back"


def test_strides_that_are_left_out():
    tensor = _core.Tensor(fakes.capsule(0, "fp16", (2, 0, 5), None, (CUDA, 0)))
    assert tensor.strides == (5, 5, 1) and tensor.address == 0
    assert _core.Tensor(fakes.capsule(8, "fp16", (), None, (CUDA, 0))).shape == ()


def test_lanes():
    with pytest.raises(kiln.ArgumentError, match="type code 2 with 16 bits and 4 lanes, for which Kiln has no dtype"):
        _core.Tensor(fakes.capsule(8, "fp16", (4,), None, (CUDA, 0), lanes=4))


@pytest.mark.parametrize("max_version", [None, (0, 8), (1, 0), (2, 3)])
def test_what_is_given_is_what_was_taken(max_version):
    before = len(fakes.alive)
    first = _core.Tensor(Array((2, 3), "bf16", (30, 10), flags=1).__dlpack__(max_version=(1, 0)))
    second = _core.Tensor(first.__dlpack__(stream=3, max_version=max_version))
    assert (second.address, second.shape, second.strides, second.dtype) == (
        first.address, first.shape, first.strides, first.dtype)  # fmt: skip
    assert second.read_only == (max_version is not None and max_version[0] >= 1), "DLPack 0 cannot say so"
    del first
    assert len(fakes.alive) == before + 1, "held by whoever took it"
    unused = second.__dlpack__()
    del unused, second
    gc.collect()
    assert len(fakes.alive) == before


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_libraries_take_what_is_given(library):
    module = pytest.importorskip(library)
    array = module.arange(12, dtype=module.float32).reshape(3, 4)
    tensor = _core.Tensor(array.__dlpack__())
    assert tensor.shape == (3, 4) and tensor.__dlpack_device__() == (CPU, 0)
    again = module.from_dlpack(tensor)
    assert (again == array).all()
    array[1, 2] = 99
    assert again[1, 2] == 99, "the same memory"
    watched = weakref.ref(array) if library == "numpy" else None
    del array, tensor
    gc.collect()
    assert float(again[1, 2]) == 99 and (watched is None or watched() is not None)
    del again
    gc.collect()
    assert watched is None or watched() is None
