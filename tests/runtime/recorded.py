"""The fake driver's record, read: fake_driver.h says what its lines are."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

NVIDIA, AMD = 1, 2
_LOADS = ("cuLibraryLoadData", "hipModuleLoadData")
_UNLOADS = ("cuLibraryUnload", "hipModuleUnload")
_LAUNCHES = ("cuLaunchKernel", "cuLaunchKernelEx", "hipModuleLaunchKernel")
_ZEROS = ("cuMemsetD8Async", "hipMemsetAsync")
_ROWS = ("cuMemsetD2D8Async", "hipMemset2DAsync")
_TAKES = ("cuMemAlloc_v2", "cuMemAllocAsync", "hipMalloc", "hipMallocAsync", "cuStreamCreate", "hipStreamCreate")
_GIVES_BACK = ("cuMemFree_v2", "cuMemFreeAsync", "hipFree", "hipFreeAsync", "cuStreamDestroy_v2", "hipStreamDestroy")


def vendor_of(call: str) -> int:
    return AMD if call.startswith("hip") else NVIDIA


@dataclass(frozen=True)
class Launch:
    """A kernel that was launched.

    Attributes:
        module: the number of the image.
        device: current at the call.
        overlaps: with the kernel before it.
        stream: None for the null stream.
        arguments: the bytes of each parameter, as many as the image says that it has.
        buffer: all of them, where the caller gave them in one.
    """

    vendor: int
    device: int
    module: int
    symbol: bytes
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared: int
    cluster: int
    overlaps: bool
    stream: int | None
    arguments: tuple[bytes, ...]
    buffer: bytes | None

    @property
    def sizes(self) -> list[int]:
        return [len(argument) for argument in self.arguments]

    def maps(self) -> list[TensorMap]:
        """Those among the arguments, in their order."""
        return [read_map(argument) for argument in self.arguments if len(argument) == 128]

    def parameters(self) -> list[int]:
        """The bytes of each argument as a number, little-endian and zero-extended."""
        return [int.from_bytes(argument, "little") for argument in self.arguments]


@dataclass(frozen=True)
class TensorMap:
    """A tensor map of the fake driver (fake_driver.h's Map), dimensions from the outermost on.

    Attributes:
        strides: bytes; of all dimensions but the innermost.
        small: whether the bit is set that drivers up to 13.1 are to have cleared for small tensors.
    """

    address: int
    element_type: int
    swizzle: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    small: bool


def read_map(data: bytes) -> TensorMap:
    """What was encoded into these 128 bytes."""
    magic, layout, address, *numbers = struct.unpack_from("<8s2Q5Q4Q5H", data)
    assert magic == b"FAKEMAP\0" and len(data) == 128, data
    rank = layout & 0xFF
    sizes, strides, box = numbers[:rank], numbers[5 : 5 + rank - 1], numbers[9 : 9 + rank]
    return TensorMap(
        address, layout >> 8 & 0xFF, layout >> 16 & 0x1F, tuple(sizes[::-1]), tuple(strides[::-1]), tuple(box[::-1]),
        bool(layout >> 21 & 1),
    )  # fmt: skip


@dataclass(frozen=True)
class Zero:
    """Memory that was set to zero on a stream."""

    vendor: int
    device: int
    address: int
    bytes: int
    stream: int | None
    launches_before: int


@dataclass(frozen=True)
class Fill:
    """Memory whose bits were all set on a stream: rows of bytes, `pitch` apart."""

    address: int
    pitch: int
    bytes: int
    rows: int
    stream: int | None


@dataclass(frozen=True)
class Image:
    """An image that was loaded, with what the driver read of it.

    Attributes:
        shared: bytes of static shared memory.
        parameters: of each its offset in the buffer of all, and its size.
    """

    code: bytes
    symbol: str
    shared: int
    parameters: tuple[tuple[int, int], ...]


@dataclass
class Record:
    """Events in their order, and what they come to.

    Attributes:
        images: by module each that was loaded.
        steps: launches and zeros in their order; what failed is in events only.
        fills: memory that was set to something else than zero.
    """

    events: list[dict] = field(default_factory=list)
    images: dict[int, Image] = field(default_factory=dict)
    steps: list[Launch | Zero] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)
    zeros: list[Zero] = field(default_factory=list)
    fills: list[Fill] = field(default_factory=list)

    def add(self, lines: Iterable[str | bytes]) -> None:
        for line in lines:
            self._add(json.loads(line))

    def _add(self, event: dict) -> None:
        self.events.append(event)
        if "code" in event:
            code, parameters = bytes.fromhex(event.pop("code")), tuple(map(tuple, event["parameters"]))
            self.images[event["module"]] = Image(code, event["symbol"], event["static"], parameters)
        if event["result"]:
            return
        if event["call"] in _LAUNCHES:
            self.launches.append(_launch(event))
            self.steps.append(self.launches[-1])
        elif event["call"] in _ZEROS and event["value"] == 0:
            self.zeros.append(_zero(event, len(self.launches)))
            self.steps.append(self.zeros[-1])
        elif event["call"] in (*_ZEROS, *_ROWS):
            assert event["value"] == 0xFF, event
            self.fills.append(_fill(event))

    @property
    def calls(self) -> list[str]:
        return [event["call"] for event in self.events]

    def leaks(self) -> list[str]:
        """What was loaded, taken or made and not given back; contexts that were pushed and not popped."""
        left: dict[str, str] = {}
        pushed = 0
        for event in self.events:
            call = event["call"]
            if event["result"]:
                continue
            pushed += (call == "cuCtxPushCurrent_v2") - (call == "cuCtxPopCurrent_v2")
            key = next((f"{name} {event[name]}" for name in ("module", "address", "stream") if name in event), "")
            if call in (*_LOADS, *_TAKES):
                left[key] = f"{key} of {call}"
            elif call in (*_UNLOADS, *_GIVES_BACK):
                left.pop(key, None)
        return [*left.values(), *(["a pushed context"] * pushed)]

    def between(self, begin: str, end: str) -> Record:
        """What lies between two marks (fake_mark)."""
        marks = {event["text"]: number for number, event in enumerate(self.events) if event["call"] == "mark"}
        part = Record(images=self.images)
        for event in self.events[marks[begin] + 1 : marks[end]]:
            part._add(event)
        return part


def read(path: Path) -> Record:
    """The record that a program left in the file of FAKE_DRIVER_RECORD."""
    record = Record()
    with path.open() as lines:
        record.add(lines)
    return record


def _launch(event: dict) -> Launch:
    buffer = event.get("buffer")
    return Launch(
        vendor_of(event["call"]),
        event["device"],
        event["module"],
        event["symbol"].encode(),
        tuple(event["grid"]),
        tuple(event["block"]),
        event["shared"],
        event["cluster"],
        bool(event.get("overlaps")),
        event["stream"] or None,
        tuple(map(bytes.fromhex, event["arguments"])),
        None if buffer is None else bytes.fromhex(buffer),
    )


def _fill(event: dict) -> Fill:
    return Fill(event["address"], event.get("pitch", 0), event["bytes"], event.get("rows", 1), event["stream"] or None)


def _zero(event: dict, launches: int) -> Zero:
    return Zero(
        vendor_of(event["call"]), event["device"], event["address"], event["bytes"], event["stream"] or None, launches
    )
