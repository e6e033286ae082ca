"""What ran where of a release's variants: by the records of the tests on devices and on the emulator, key by key."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kiln_build.difference.side import Side

NOTHING_RAN = "compiled, not run"
EMULATOR = "emulator"


class Record(Protocol):
    """What a run found right, as artifacts.manifest.Verification has it."""

    @property
    def device(self) -> str: ...

    @property
    def driver(self) -> str: ...

    @property
    def by(self) -> str: ...

    def has(self, key: str, image: str) -> bool:
        """Whether it executed this image of this variant, with right results."""


@dataclass(frozen=True)
class Line:
    """A kernel on a target.

    Attributes:
        variants: with an image.
        places: by "NVIDIA H200, driver 580.159.04" how many of them gave right results there.
        emulated: likewise by the emulator.
        not_run: how many no device ran.
        neither: how many neither a device nor the emulator ran.
    """

    target: str
    kernel: str
    variants: int
    places: dict[str, int]
    emulated: dict[str, int]
    not_run: int
    neither: int


def of(side: Side, records: Sequence[Record]) -> list[Line]:
    """A line for each kernel of each target, in the order of the release."""
    kernels: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for row in side.rows:
        if row["image"] is not None:
            kernels.setdefault((row["target"], row["kernel"]), []).append((row["key"], row["image"]))
    return [_line(target, kernel, variants, records) for (target, kernel), variants in kernels.items()]


def _line(target: str, kernel: str, variants: Sequence[tuple[str, str]], records: Sequence[Record]) -> Line:
    places: Counter[str] = Counter()
    emulated: Counter[str] = Counter()
    not_run = neither = 0
    for key, image in variants:
        found = [record for record in records if record.has(key, image)]
        places.update({_place(one) for one in found if one.by != EMULATOR})
        emulated.update({_place(one) for one in found if one.by == EMULATOR})
        not_run += all(one.by == EMULATOR for one in found)
        neither += not found
    ran = dict(sorted(places.items())), dict(sorted(emulated.items()))
    return Line(target, kernel, len(variants), *ran, not_run, neither)


def _place(record: Record) -> str:
    if record.by == EMULATOR:
        return f"{record.device}, by {record.driver}"
    as_ptx = ", as PTX" if record.by == "ptx" else ""
    return f"{record.device}, driver {record.driver}{as_ptx}"


def stated(side: Side) -> dict[str, str]:
    """By target what the release says of itself; wheels and packs do not say it."""
    return {target: side.stated.get(f"{target}: verified", "not stated by " + side.kind) for target in side.targets}
