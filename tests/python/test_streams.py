"""On which stream work goes, and what the arrays' libraries are told of it."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace

import pytest
from fakes import CUDA, ROCM, Array

import kiln

SHAPE = (1, 2, 8, 64)


class ByProtocol:
    def __init__(self, address: int, is_method: bool) -> None:
        pair = (0, address)
        self.__dict__["__cuda_stream__"] = (lambda: pair) if is_method else pair


def attend(array: Array, runtime: kiln.Runtime, stream: object) -> None:
    kiln.attn_fwd(array, array, array, out=array, stream=stream, runtime=runtime)


def test_a_stream_in_every_form(runtime, fake):
    q, address = Array(SHAPE), fake.stream()
    forms = [address, SimpleNamespace(cuda_stream=address), SimpleNamespace(ptr=address), ByProtocol(address, True),
             ByProtocol(address, False)]  # fmt: skip
    for stream in forms:
        attend(q, runtime, stream)
        assert fake.launches()[-1].stream == address and set(q.streams) == {address}


@pytest.mark.parametrize("stream", ["x", 1.5, -1, 1 << 64, True, object(), SimpleNamespace(ptr="x"), [], b""])
def test_what_is_no_stream(runtime, stream):
    with pytest.raises(
        kiln.ArgumentError, match="stream must be a stream of PyTorch, CuPy or another library, or its "
    ):
        attend(Array(SHAPE), runtime, stream)


def test_the_default_stream_as_dlpack_numbers_it(runtime, fake):
    q = Array(SHAPE)
    attend(q, runtime, 0)
    assert set(q.streams) == {1} and fake.launches()[-1].stream is None
    attend(q, runtime, 2)
    assert q.streams[-1] == 2 and fake.launches()[-1].stream == 2
    amd = Array(SHAPE, device=(ROCM, 3))
    with pytest.raises(kiln.NoDeviceError, match="no pack of flash serves the AMD device 3"):
        attend(amd, runtime, 0)
    assert set(amd.streams) == {0}, "ROCm's default stream is 0"


def test_managed_memory(runtime):
    attend(Array(SHAPE, device=(13, 0)), runtime, 0)


def test_the_default_stream_is_the_arrays_devices(runtime, fake):
    fake.set_current(None)  # a thread that never spoke to the driver
    attend(Array(SHAPE, device=(CUDA, 4)), runtime, 0)
    assert fake.launches()[-1].device == 4 and fake.current() is None


def test_a_stream_of_another_device(runtime, fake):
    with pytest.raises(kiln.QueueError, match="names device 0, but its stream belongs to device 1"):
        attend(Array(SHAPE), runtime, fake.stream(device=1))


def test_an_unknown_library_wants_to_be_told(runtime):
    with pytest.raises(kiln.ArgumentError, match="arrays as a fakes.Array have no current stream; give stream=, 0 for"):
        attend(Array(SHAPE), runtime, None)


class Cuda:
    """What the libraries' modules have in common: a current stream, which blocks change, and a note of each."""

    def __init__(self, current: int) -> None:
        self.current, self.notes = current, []

    @contextmanager
    def device(self, number: int):
        self.notes.append(("device", number))
        yield

    @contextmanager
    def on(self, stream: int):
        before, self.current = self.current, stream
        yield
        self.current = before


@pytest.fixture
def library(monkeypatch):
    """A module of that name in the place of a library, with a class of arrays of its own."""

    def make(name: str, **members: object) -> type[Array]:
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
        return type("ndarray", (Array,), {"__module__": f"{name}.core", "requires_grad": False})

    return make


def test_cupy(runtime, fake, library):
    cuda = Cuda(fake.stream())

    class Device:
        def __init__(self, number: int) -> None:
            cuda.notes.append(number)

        def __enter__(self):
            return self

        def __exit__(self, *_: object) -> None:
            pass

    def empty(shape, dtype):
        cuda.notes.append(cuda.current)
        return ndarray(shape, dtype)

    members = SimpleNamespace(
        get_current_stream=lambda device=None: SimpleNamespace(ptr=cuda.current), Device=Device,
        ExternalStream=lambda address, device: cuda.on(address),
    )  # fmt: skip
    ndarray = library("cupy", cuda=members, empty=empty, float32="fp32", uint8="uint8")
    q = ndarray(SHAPE)
    out, lse = kiln.attn_fwd(q, q, q, return_lse=True, runtime=runtime)
    assert type(out) is ndarray and lse.dtype == "fp32" and fake.launches()[-1].stream == cuda.current
    assert cuda.notes == [0, cuda.current] * 2
    cuda.notes.clear()
    other = fake.stream(number=2)
    kiln.attn_fwd(q, q, q, stream=other, runtime=runtime)
    assert cuda.notes == [0, other] and fake.launches()[-1].stream == other
    assert fake.count("cuStreamSynchronize") == 0


def test_a_workspace_of_pytorchs_is_not_waited_for(scratch_runtime, fake, library):
    cuda = Cuda(fake.stream())
    tensor = torch_like(library, cuda)
    q = tensor(SHAPE)
    kiln.attn_fwd(q, q, q, out=q, runtime=scratch_runtime)
    assert cuda.notes == [("empty", cuda.current, "cuda:0")] and fake.count("cuStreamSynchronize") == 0


def torch_like(library, cuda: Cuda) -> type[Array]:
    external = SimpleNamespace(
        current_stream=lambda device: SimpleNamespace(cuda_stream=cuda.current),
        ExternalStream=lambda address, device: address, stream=cuda.on, current_device=lambda: 0,
        device=cuda.device,
    )  # fmt: skip

    def empty(shape, *, dtype, device):
        cuda.notes.append(("empty", cuda.current, device))
        return tensor(shape, dtype)

    tensor = library("torch", cuda=external, empty=empty, float32="fp32", uint8="uint8")
    tensor.record_stream = lambda self, stream: cuda.notes.append(("record", stream))
    return tensor


def test_torch(runtime, fake, library):
    cuda = Cuda(fake.stream())
    tensor = torch_like(library, cuda)
    q = tensor(SHAPE)
    out = kiln.attn_fwd(q, q, q, runtime=runtime)
    assert type(out) is tensor and cuda.notes == [("empty", cuda.current, "cuda:0")]
    cuda.notes.clear()
    other = fake.stream(number=2)
    kiln.attn_fwd(q, q, q, stream=other, runtime=runtime)
    assert cuda.notes == [("record", other)] * 3 + [("empty", other, "cuda:0")]
    q.requires_grad = True
    with pytest.raises(kiln.ArgumentError, match=r"q requires a gradient.*; give q.detach\(\), or call kiln.torch"):
        kiln.attn_fwd(q, q, q, runtime=runtime)


def test_torch_on_another_device_than_the_current(runtime, fake, library):
    cuda = Cuda(fake.stream(device=4))
    q = torch_like(library, cuda)(SHAPE, device=(CUDA, 4))
    kiln.attn_fwd(q, q, q, out=q, runtime=runtime)
    assert cuda.notes == [("device", 4)] * 4 and fake.launches()[-1].device == 4


def test_classes_derived_from_a_librarys(runtime, fake, library):
    cuda = Cuda(fake.stream())
    q = type("Parameter", (torch_like(library, cuda),), {})(SHAPE)
    kiln.attn_fwd(q, q, q, runtime=runtime)
    assert fake.launches()[-1].stream == cuda.current


def test_arrays_of_several_libraries(runtime, fake, library):
    cuda = Cuda(fake.stream())
    tensor = torch_like(library, cuda)
    q, k = Array(SHAPE), tensor(SHAPE)
    other = fake.stream(number=2)
    kiln.attn_fwd(q, k, k, out=q, stream=other, runtime=runtime)
    assert cuda.notes == [("record", other)] * 2 and set(k.streams) == {other}


def test_jax(runtime, fake, library):
    stream = fake.stream(number=3)
    device = SimpleNamespace(get_stream_for_external_ready_events=lambda: stream)
    made, taken = [], []

    def empty(shape, dtype, device):
        made.append(array(shape, dtype))
        return made[-1]

    def from_dlpack(given):
        assert given.__dlpack_device__() == (CUDA, 0)
        last = fake.record().events[-1]
        taken.append((last["call"], last.get("stream")))
        found = kiln._core.Tensor(given.__dlpack__(stream=stream, max_version=(1, 0)))
        new = array(found.shape, found.dtype)
        new.address = found.address
        return new

    numpy = SimpleNamespace(empty=empty, float32="fp32", uint8="uint8")
    array = library("jax", numpy=numpy, dlpack=SimpleNamespace(from_dlpack=from_dlpack))
    array.devices = lambda self: {device} if hasattr(device, "__hash__") and device.__hash__ else [device]
    q = array(SHAPE)
    out, lse = kiln.attn_fwd(q, q, q, return_lse=True, runtime=runtime)
    assert [out.address, lse.address] == [a.address for a in made]
    assert taken == [("cuStreamSynchronize", stream)] * 2, "JAX does not wait for work on others' streams"
    assert out is not made[0], "the array that JAX believes to be empty is not given back"
    assert fake.launches()[-1].stream == stream and set(q.streams) == {stream}
    for wrong in ({"out": q}, {"stream": stream}):
        with pytest.raises(kiln.ArgumentError, match="out is written by this call|JAX orders work by its own streams"):
            kiln.attn_fwd(q, q, q, runtime=runtime, **wrong)
