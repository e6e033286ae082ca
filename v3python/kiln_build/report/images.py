"""Registers, spills, shared memory and bytes of a release's images, by target, and by kernel and configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kiln_build.difference.compare import facts_of
from kiln_build.difference.side import Side


@dataclass(frozen=True)
class Size:
    """A target: bytes of its pack, 0 where it is not known; of its images; and how many variants and images it has."""

    target: str
    pack: int
    raw: int
    variants: int
    images: int
    unavailable: int


@dataclass(frozen=True)
class Line:
    """The images of a configuration of a kernel on a target. Pairs are the least and the most; registers and spills
    are per thread, spills, shared memory and `bytes` in bytes, `bytes` of all images together.

    Attributes:
        spilling: how many images spill.
        blocks: that a multiprocessor holds at once; (0, 0) where the target's limits are not known.
    """

    target: str
    kernel: str
    configuration: str
    images: int
    registers: tuple[int, int]
    spills: tuple[int, int]
    spilling: int
    shared: tuple[int, int]
    threads: tuple[int, int]
    blocks: tuple[int, int]
    bytes: int


def sizes(side: Side) -> list[Size]:
    """A row for each target."""
    found = []
    for target in side.targets:
        rows = [row for row in side.rows if row["target"] == target]
        images = _distinct(rows)
        found.append(
            Size(
                target,
                _pack_bytes(side, target),
                sum(row["bytes"] for row in images),
                len(rows),
                len(images),
                sum(row["image"] is None for row in rows),
            )
        )
    return found


def lines(side: Side) -> list[Line]:
    """A row for each configuration, in the order of the release."""
    groups: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for row in side.rows:
        if row["image"] is not None:
            groups.setdefault((row["target"], row["kernel"], row["configuration"]), []).append(row)
    return [_line(*place, _distinct(rows)) for place, rows in groups.items()]


def spilling(side: Side) -> list[Mapping[str, Any]]:
    """The rows of variants whose image spills, those that spill most first; of each image one."""
    rows = [row for row in _distinct(side.rows) if row["spills"]]
    return sorted(rows, key=lambda row: (-row["spills"], row["target"], row["kernel"], row["functional"]))


def _distinct(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The first row of each image."""
    found: dict[tuple[str, str], Mapping[str, Any]] = {}
    for row in rows:
        if row["image"] is not None:
            found.setdefault((row["target"], row["image"]), row)
    return list(found.values())


def _line(target: str, kernel: str, configuration: str, rows: list[Mapping[str, Any]]) -> Line:
    def ends(name: str) -> tuple[int, int]:
        values = [row[name] for row in rows]
        return min(values), max(values)

    facts = [one.blocks for one in map(facts_of, rows) if one is not None]
    return Line(
        target,
        kernel,
        configuration,
        len(rows),
        ends("registers"),
        ends("spills"),
        sum(bool(row["spills"]) for row in rows),
        ends("shared"),
        ends("threads"),
        (min(facts), max(facts)),
        sum(row["bytes"] for row in rows),
    )


def _pack_bytes(side: Side, target: str) -> int:
    """Of a release's packs of several names, and of wheels', the first: they are alike."""
    is_it = (path.endswith(f"-{target}.pack") or side.kind == "pack" for path in side.files)
    return next((file.bytes for file, found in zip(side.files.values(), is_it) if found), 0)
