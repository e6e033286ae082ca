"""The executor as a device of the GPU suite: its calls, checks and references, on tensors in the process's memory."""

from __future__ import annotations

import ctypes as c
import hashlib
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "runtime"))  # ffi
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gpu"))  # device

import build
import decode
import ffi
from device import Device
from records import Fault

BYTES = {ffi.FP32: 4, ffi.FP16: 2, ffi.BF16: 2, ffi.FP64: 8, ffi.FP8E4M3: 1, ffi.INT32: 4, ffi.INT64: 8, ffi.UINT8: 1}


class State(c.Structure):
    """struct hip_executor."""

    _fields_ = [
        ("schedule_seed", c.c_uint64), ("contents_seed", c.c_uint64), ("limit", c.c_uint64), ("flags", c.c_uint32),
        ("shortened", c.c_uint32), ("replaced", c.c_void_p), ("replacement", c.c_void_p), ("launches", c.c_uint64),
        ("instructions", c.c_uint64), ("unwritten", c.c_uint64), ("fault", Fault), ("sentence", c.c_char * 900),
    ]  # fmt: skip


Loader = c.CFUNCTYPE(c.c_void_p, c.c_void_p, c.c_uint64)


def span(view: ffi.Tensor) -> tuple[int, int]:
    """Where a view's bytes begin, and how many there are from the first to the last; (0, 0) if it has no element."""
    sizes, strides = view.sizes[: view.rank], view.strides[: view.rank]
    if 0 in sizes:
        return 0, 0
    reaches = [(size - 1) * stride for size, stride in zip(sizes, strides)]
    first, last = sum(min(reach, 0) for reach in reaches), sum(max(reach, 0) for reach in reaches)
    width = BYTES[view.dtype]
    return (view.data or 0) + first * width, (last - first + 1) * width


class Executor(Device):
    """One device of an architecture. There is one a process: what Kiln loads of it is shared.

    Attributes:
        state: settings of launches to come, and what became of those that were. fault and sentence are the last's.
        programs: by digest of a code object what it was decoded to; they count what was executed.
        bits: takes the bytes of all that calls write, but for workspaces, and for masks, which are made once a call.
    """

    name = "cpu"
    vendor = ffi.AMD

    def __init__(self, target: str) -> None:
        self.library = c.CDLL(str(build.library()))
        self.library.hip_own.argtypes = [c.c_uint64, c.c_uint64, c.c_int, c.c_char_p]
        self.library.hip_executor.restype = c.POINTER(State)
        self.programs: dict[str, decode.LoadedProgram] = {}
        self.bits = hashlib.sha256()
        self._loader = Loader(self._load)
        if self.library.hip_begin(target.encode(), self._loader):
            raise ValueError(f"the executor knows no {target}")
        self.state: State = self.library.hip_executor().contents
        self.options = {"resolve": c.cast(self.library.hip_resolve, c.c_void_p).value}

    def stream(self) -> int | None:
        return None

    @contextmanager
    def lending(self, views: Mapping[str, ffi.Tensor], written: Collection[str]) -> Iterator[None]:
        for name, view in views.items():
            if self.library.hip_own(*span(view), name in written, name.encode()):
                raise ValueError("a call has more tensors than hip.c has room for")
        try:
            yield
        finally:
            self.library.hip_disown()
        for name in sorted(set(views) & set(written) - {"workspace", "mask"}):
            self.bits.update(c.string_at(*span(views[name])))

    def _load(self, code: int, size: int) -> int:
        """The loader of hip.c; whatever goes wrong ends as hipErrorNoBinaryForGpu, and on standard error."""
        return self.program(c.string_at(code, size)).address

    def program(self, code: bytes) -> decode.LoadedProgram:
        digest = hashlib.sha256(code).hexdigest()
        if digest not in self.programs:
            self.programs[digest] = decode.load(code)
        return self.programs[digest]

    @contextmanager
    def replacing(self, original: decode.LoadedProgram, other: decode.LoadedProgram) -> Iterator[None]:
        """Launches take another program in place of one that Kiln has loaded."""
        self.state.replaced, self.state.replacement = original.address, other.address
        try:
            yield
        finally:
            self.state.replaced = self.state.replacement = None

    @contextmanager
    def seeds(self, schedule: int, contents: int) -> Iterator[None]:
        """Launches order waves and groups, and fill registers and LDS, by these; 0: in order, and zeros."""
        before = self.state.schedule_seed, self.state.contents_seed
        self.state.schedule_seed, self.state.contents_seed = schedule, contents
        try:
            yield
        finally:
            self.state.schedule_seed, self.state.contents_seed = before
