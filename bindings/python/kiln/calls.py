"""One call of an operation: its arrays taken, its results and workspace made, and what is done with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kiln import _core
from kiln.arrays import Library, library_of, place_of, stream_of, take
from kiln.errors import ArgumentError, UnsupportedError
from kiln.runtime import core_of
from kiln_recipe import dtypes

_ALIGNMENT = 256  # of a workspace: KILN_WORKSPACE_ALIGNMENT
_NAMES = {row.torch: row.name for row in dtypes.TABLE}  # Kiln's names of dtypes, by those of array APIs
_NOWHERE = 1 << 12  # the address of results that are never written, aligned as those of every allocator


class Call:
    """A call that is being made ready.

    Args:
        operation: "attn_fwd".
        lead: the name and the array that say where and by which library the call is made.
        arrays: by parameter; None where an optional one is left out.
        needed: names of those that no call can leave out.
        written: names of those that the call writes to.
        stream: what the caller gave.
        runtime: what the caller gave.
        is_dry: whether it is never launched, so that results need no memory.

    Raises:
        ArgumentError: an array cannot be taken, or may not be written.
    """

    def __init__(
        self, operation: str, lead: tuple[str, Any], arrays: Mapping[str, Any], needed: tuple[str, ...],
        written: tuple[str, ...], stream: Any, runtime: Any, is_dry: bool,
    ) -> None:  # fmt: skip
        self.operation, self.is_dry = operation, is_dry
        self._core = core_of(runtime)
        name, self._like = lead
        self._place = place_of(self._like, name)
        self.library: Library = library_of(self._like)
        if stream is None:
            self._stream = self.library.stream(self._like, self._place)
        elif not self.library.is_mutable:
            raise ArgumentError(f"{self.library.name} orders work by its own streams; leave stream= out")
        else:
            self._stream = stream_of(stream)
        self.tensors: dict[str, Any] = {}
        self._made: dict[str, Any] = {}
        self._given: dict[str, Any] = {}
        for name, array in arrays.items():
            if array is None and name not in needed:
                continue
            library = library_of(array)
            is_foreign = stream is not None or library is not self.library
            tensor = take(array, name, self._place, self._stream, is_foreign)
            self.tensors[name] = tensor
            if name in written:
                self._given[name] = array
                if tensor.read_only or not library.is_mutable:
                    raise ArgumentError(f"{name} is written by this call, but its library says that it is read-only")

    def shape(self, name: str, rank: int, meaning: str) -> tuple[int, ...]:
        """The shape of an array that results are made after.

        Raises:
            ArgumentError: it has another number of dimensions than `rank`.
        """
        shape = self.tensors[name].shape
        if len(shape) != rank:
            raise ArgumentError(f"{name} has {len(shape)} dimensions, and must have {rank}: {meaning}")
        return shape

    def make(self, name: str, shape: tuple[int, ...], dtype: str | None = None) -> None:
        """Makes a result, unless the caller has given it.

        Args:
            dtype: as array APIs call it, "float32"; None: that of the leading array.
        """
        if name in self.tensors:
            return
        if self.is_dry:
            kind = _NAMES[dtype] if dtype else next(iter(self.tensors.values())).dtype
            self.tensors[name] = (_NOWHERE, kind, shape, _contiguous(shape))
            return
        array = self._empty(shape, dtype)
        self._made[name] = array
        self.tensors[name] = take(array, name, self._place, self._stream)

    def launch(self, values: Mapping[str, Any], workspace: Any) -> dict[str, Any]:
        """Enqueues it; its results by name.

        It is waited for where the library does not know streams, and where a workspace was made by a library that may
        give its memory to work on another stream as soon as it is let go.

        Args:
            values: the parameters that are not arrays, by the C interface's names.
            workspace: what the caller gave.
        """
        fields = {**self.tensors, **values}
        size = self._core.workspace(self.operation, self._queue, fields)
        held = None
        is_waited_for = not self.library.knows_streams
        if workspace is not None:
            held = take(workspace, "workspace", self._place, self._stream)
            fields |= {"workspace": held.address, "workspace_bytes": _bytes_of(held)}
        elif size:
            held = take(self._workspace(size), "workspace", self._place, self._stream)
            fields |= {"workspace": held.address + -held.address % _ALIGNMENT, "workspace_bytes": size}
            is_waited_for |= not self.library.makes_for_streams
        self._core.launch(self.operation, self._queue, fields)
        if is_waited_for:
            self._core.synchronize(self._queue)
        made = self.library.finish(self.tensors, self._made)
        del held
        return {**self._given, **made}

    def prepare(self, values: Mapping[str, Any]) -> None:
        """Loads what a launch would load."""
        self._core.prepare(self.operation, self._queue, {**self.tensors, **values})

    def explain(self, values: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The variants that a launch would run."""
        return self._core.explain(self.operation, self._queue, {**self.tensors, **values})

    @property
    def _queue(self) -> tuple[int, int, int]:
        return (self._place.vendor, self._place.device, self._stream)

    def _empty(self, shape: tuple[int, ...], dtype: str | None) -> Any:
        try:
            return self.library.empty(self._like, shape, dtype, self._stream, self._place)
        except AttributeError as error:
            if dtype is None:
                raise
            raise ArgumentError(f"{self.library.name} has no dtype {dtype!r}; give another, or the results") from error

    def _workspace(self, size: int) -> Any:
        try:
            return self._empty((size + _ALIGNMENT - 1,), "uint8")
        except ArgumentError as error:
            raise ArgumentError(
                f"this call needs a workspace of {size} bytes, aligned to {_ALIGNMENT}; give workspace= an array"
            ) from error


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def _bytes_of(tensor: _core.Tensor) -> int:
    """The bytes of a workspace that the caller gave.

    Raises:
        ArgumentError: it has gaps, or elements of several bytes.
    """
    shape = tensor.shape
    apart = zip(shape, tensor.strides, _contiguous(shape))
    if tensor.dtype not in ("uint8", "int8", "bool") or any(n > 1 and has != wants for n, has, wants in apart):
        raise ArgumentError(
            f"workspace has elements of {tensor.dtype} and strides {tensor.strides}; it must be contiguous, of uint8"
        )
    size = 1
    for extent in shape:
        size *= extent
    return size


def unsupported(operation: str) -> UnsupportedError:
    """What a function has no explanation of."""
    return UnsupportedError(f"{operation} cannot be explained or prepared: it has one kernel, for all calls")
