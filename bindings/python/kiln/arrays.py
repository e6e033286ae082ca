"""Arrays of other libraries: how they are taken by DLPack, which stream they are used on, how results are made.

PyTorch, CuPy and JAX are known by name; of any other library arrays with `__dlpack__()` are taken, and its results are
made by its array API (`__array_namespace__()`) or given by the caller. No library is imported here.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from kiln import _core
from kiln.errors import ArgumentError, KilnError

_KINDS = {2: _core.NVIDIA, 13: _core.NVIDIA, 10: _core.AMD}  # of DLPack's devices, those that a kernel can run on
_NAMES = {
    1: "the CPU's memory", 3: "pinned memory of the CPU", 4: "OpenCL memory", 7: "Vulkan memory", 8: "Metal memory",
    11: "pinned memory of the CPU", 14: "oneAPI memory", 15: "WebGPU memory",
}  # fmt: skip
_MAX_VERSION = (1, 1)  # of DLPack


@runtime_checkable
class Array(Protocol):
    """An array in the memory of a GPU, by DLPack: of PyTorch, CuPy, JAX and others."""

    def __dlpack__(self, *, stream: Any = None) -> Any: ...

    def __dlpack_device__(self) -> tuple[Any, int]: ...


@dataclass(frozen=True)
class Place:
    """Where arrays lie.

    Attributes:
        vendor: 1 for NVIDIA, 2 for AMD.
        device: as its library counts.
    """

    vendor: int
    device: int

    def __str__(self) -> str:
        return f"{'CUDA' if self.vendor == _core.NVIDIA else 'ROCm'} device {self.device}"

    def protocol_stream(self, stream: int) -> int:
        """A stream as DLPack numbers it, where CUDA's default stream is 1."""
        return stream or int(self.vendor == _core.NVIDIA)


def place_of(array: Any, name: str) -> Place:
    """Where an array lies.

    Args:
        name: of the argument, for the sentence.

    Raises:
        ArgumentError: it is not an array, or is in memory that no kernel can reach.
    """
    ask = getattr(array, "__dlpack_device__", None)
    if not callable(ask) or not callable(getattr(array, "__dlpack__", None)) or isinstance(array, type):
        raise ArgumentError(
            f"{name} must be an array of PyTorch, CuPy, JAX or another library that has DLPack's __dlpack__(); "
            f"{shown_type(array)} is not"
        )
    try:
        kind, device = (int(number) for number in ask())
    except KilnError:
        raise
    except Exception as error:
        raise ArgumentError(f"{name} cannot tell on which device it is: {_first_line(error)}") from error
    vendor = _KINDS.get(kind)
    if vendor is None:
        where = _NAMES.get(kind, f"memory of DLPack's kind {kind}")
        raise ArgumentError(f"{name} is in {where}; Kiln's kernels take arrays in the memory of a GPU")
    return Place(vendor, device)


def take(array: Any, name: str, place: Place, stream: int, is_foreign: bool = False) -> _core.Tensor:
    """An array's memory, ready for work on a stream: its library makes the stream wait for what it has in flight.

    Args:
        is_foreign: whether the stream may be another than the current one of the array's library.

    Raises:
        ArgumentError: it lies elsewhere, or its library does not give it.
    """
    found = place_of(array, name)
    if found != place:
        raise ArgumentError(f"{name} is on {found}, but the call's other arrays are on {place}; move it there")
    library = library_of(array)
    if library.wants_gradient(array):
        raise ArgumentError(
            f"{name} requires a gradient, which this function does not record; give {name}.detach(), or call "
            "kiln.torch.attention"
        )
    if is_foreign:
        library.hold(array, stream, place)
    try:
        return _core.Tensor(library.capsule(array, place.protocol_stream(stream), place))
    except ArgumentError as error:
        raise ArgumentError(f"{name}: {error}") from error
    except Exception as error:
        raise ArgumentError(f"{name} is not exported by its library: {_first_line(error)}") from error


def stream_of(stream: Any) -> int:
    """The address of a stream that a caller names: an integer, or an object of a library.

    Args:
        stream: an address (0: the default stream), or what has `__cuda_stream__` (CUDA's Python libraries),
            `cuda_stream` (PyTorch) or `ptr` (CuPy).

    Raises:
        ArgumentError: it is not of these.
    """
    value = stream
    try:
        if hasattr(stream, "__cuda_stream__"):
            protocol = stream.__cuda_stream__
            value = (protocol() if callable(protocol) else protocol)[1]
        elif hasattr(stream, "cuda_stream"):
            value = stream.cuda_stream
        elif hasattr(stream, "ptr"):
            value = stream.ptr
        address = value.__index__()
    except Exception as error:
        raise _no_stream(stream) from error
    if isinstance(value, bool) or not 0 <= address < 1 << 63:
        raise _no_stream(stream)
    return address


def _no_stream(stream: Any) -> ArgumentError:
    return ArgumentError(
        f"stream must be a stream of PyTorch, CuPy or another library, or its address; {shown_type(stream)} is not"
    )


class Library:
    """What differs from library to library. This one is any that is not known by name."""

    name = "this library"
    is_mutable = True
    """Whether its arrays may be written where they are."""
    knows_streams = True
    """Whether what it does with results is ordered behind the work that makes them; else that is waited for."""
    makes_for_streams = False
    """Whether what `empty` makes is the stream's memory, which work may still use once the array is released."""

    def stream(self, array: Any, place: Place) -> int:
        """The library's current stream on the array's device.

        Raises:
            ArgumentError: its library has no current stream.
        """
        raise ArgumentError(
            f"arrays as {shown_type(array)} have no current stream; give stream=, 0 for the default stream"
        )

    def empty(self, like: Any, shape: tuple[int, ...], dtype: str | None, stream: int, place: Place) -> Any:
        """A new array beside another.

        Args:
            dtype: "float32", "uint8"; None: that of `like`.
            stream: what it will be used on.

        Raises:
            ArgumentError: the library cannot make one.
        """
        namespace = getattr(like, "__array_namespace__", None)
        if namespace is None:
            raise ArgumentError(
                f"results cannot be made beside {shown_type(like)}, which has no __array_namespace__(); "
                "give them, and a workspace if the call needs one"
            )
        xp = namespace()
        return xp.empty(shape, dtype=like.dtype if dtype is None else getattr(xp, dtype), device=like.device)

    def capsule(self, array: Any, stream: int, place: Place) -> Any:
        """An array's memory by DLPack; `stream` as DLPack numbers it."""
        try:
            return array.__dlpack__(stream=stream, max_version=_MAX_VERSION)
        except TypeError:  # the library supports DLPack 0 only
            return array.__dlpack__(stream=stream)

    def hold(self, array: Any, stream: int, place: Place) -> None:
        """Keeps an array's memory from being used for something else while work on a stream uses it."""

    def wants_gradient(self, array: Any) -> bool:
        return False

    def finish(self, tensors: dict[str, _core.Tensor], results: dict[str, Any]) -> dict[str, Any]:
        """The results as the caller gets them, after the launch; done where the library does not know streams."""
        return results


class _Torch(Library):
    name = "PyTorch"
    makes_for_streams = True

    def stream(self, array: Any, place: Place) -> int:
        return sys.modules["torch"].cuda.current_stream(place.device).cuda_stream

    def _on(self, stream: int, place: Place) -> AbstractContextManager[Any]:
        cuda = sys.modules["torch"].cuda
        if stream == cuda.current_stream(place.device).cuda_stream:
            return nullcontext()
        return cuda.stream(cuda.ExternalStream(stream, device=place.device))

    def empty(self, like: Any, shape: tuple[int, ...], dtype: str | None, stream: int, place: Place) -> Any:
        torch = sys.modules["torch"]
        with self._on(stream, place):  # so that its memory is that stream's
            return torch.empty(
                shape, dtype=like.dtype if dtype is None else getattr(torch, dtype), device=f"cuda:{place.device}"
            )

    def capsule(self, array: Any, stream: int, place: Place) -> Any:
        cuda = sys.modules["torch"].cuda
        if cuda.current_device() == place.device:
            return super().capsule(array, stream, place)
        with cuda.device(place.device):  # whose current stream PyTorch compares
            return super().capsule(array, stream, place)

    def hold(self, array: Any, stream: int, place: Place) -> None:
        cuda = sys.modules["torch"].cuda
        if stream != cuda.current_stream(place.device).cuda_stream:
            array.record_stream(cuda.ExternalStream(stream, device=place.device))

    def wants_gradient(self, array: Any) -> bool:
        return array.requires_grad


class _Cupy(Library):
    name = "CuPy"
    makes_for_streams = True

    def stream(self, array: Any, place: Place) -> int:
        return sys.modules["cupy"].cuda.get_current_stream(place.device).ptr

    def empty(self, like: Any, shape: tuple[int, ...], dtype: str | None, stream: int, place: Place) -> Any:
        cupy = sys.modules["cupy"]
        kind = like.dtype if dtype is None else getattr(cupy, dtype)
        with cupy.cuda.Device(place.device):
            if stream == cupy.cuda.get_current_stream().ptr:
                return cupy.empty(shape, kind)
            with cupy.cuda.ExternalStream(stream, place.device):
                return cupy.empty(shape, kind)


class _Jax(Library):
    name = "JAX"
    is_mutable = False
    knows_streams = False  # block_until_ready() does not wait for others' streams

    def stream(self, array: Any, place: Place) -> int:
        """The one that JAX waits for when it takes arrays of others."""
        return next(iter(array.devices())).get_stream_for_external_ready_events()

    def empty(self, like: Any, shape: tuple[int, ...], dtype: str | None, stream: int, place: Place) -> Any:
        numpy = sys.modules["jax"].numpy
        kind = like.dtype if dtype is None else getattr(numpy, dtype)
        return numpy.empty(shape, kind, device=next(iter(like.devices())))

    def finish(self, tensors: dict[str, _core.Tensor], results: dict[str, Any]) -> dict[str, Any]:
        """New arrays of the same memory: JAX believes to know what the ones that it made hold."""
        return {name: sys.modules["jax"].dlpack.from_dlpack(tensors[name]) for name in results}


_OTHER = Library()
_LIBRARIES: dict[str, Library] = {"torch": _Torch(), "cupy": _Cupy(), "jax": _Jax(), "jaxlib": _Jax()}
_known: dict[type, Library] = {}


def library_of(array: Any) -> Library:
    """What knows an array's library; arrays of classes derived from a library's are its own."""
    kind = type(array)
    library = _known.get(kind)
    if library is None:
        roots = (cls.__module__.partition(".")[0] for cls in kind.__mro__)
        library = next((_LIBRARIES[root] for root in roots if root in _LIBRARIES), _OTHER)
        _known[kind] = library
    return library


def shown(value: Any) -> str:
    """A value for a sentence: a line, and not too long."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # noqa: BLE001 - whatever a foreign class raises
        text = shown_type(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def shown_type(value: Any) -> str:
    """What a value is, for a sentence: "a list", "a numpy.ndarray"."""
    kind = value if isinstance(value, type) else type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    article = "the class" if isinstance(value, type) else "an" if name[0] in "aeiou" else "a"
    return "None" if value is None else f"{article} {name}"


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
