"""A page with the model's figures: tables, with bars of the shares."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kiln_build.amd_model import architectures, show
from kiln_build.amd_model.rows import Change, Row
from kiln_build.pages import document, tables
from kiln_build.pages.document import Part
from kiln_build.pages.markup import Markup, drawing, element, joined
from kiln_build.pages.tables import Cell

COMMAND = "kiln model"
_WIDTH = 150  # pixels of a share of 1
_NAMES = ("Kernel", "Functional", "Configuration", "Specialization")
_NUMBERS = ("Waves", "Needed", "Issued", "VALU", "Transcendental", "LDS", "Memory", "Clocks")


def page(name: str, found: Sequence[Row], changes: Sequence[Change] | None) -> Iterator[str]:
    """The page, as HTML, in pieces. `name`: of what was modelled."""
    lead = element(
        "p",
        f"{show.NOTE[0].upper() + show.NOTE[1:]}. Times are clocks of a SIMD for one iteration of one wave; the bar is "
        "the share at the usual latency, and in pale its bound.",
    )
    parts = []
    if changes is not None:
        header = ("Target", "Image", "Before", "After", "Ratio")
        parts.append(Part("Changes", tables.table("changes", header, map(_change, changes), header[2:])))
    for target in dict.fromkeys(row.target for row in found):
        parts.append(Part(target, _loops(target, [row for row in found if row.target == target])))
    return document.document(COMMAND, f"How fast {name} runs, by the model", [lead], parts)


def _loops(target: str, found: Sequence[Row]) -> Iterator[Markup]:
    at = [f"At {latency}" for latency in architectures.by_name(target).memory_latencies]
    numbers = ("Loop", *_NUMBERS, *at, "Bound")
    header = (*_NAMES, *numbers, "Share", "Waits for")
    return tables.table(f"loops on {target}", header, map(_cells, found), numbers)


def _cells(row: Row) -> list[str | Cell]:
    names = [row.kernel or row.image[:12], row.functional, row.configuration, row.specialization]
    value = row.share or 0.0
    rest = max(0.0, (row.bound or 0.0) - value) * _WIDTH
    boxes = [
        element("rect", width=f"{value * _WIDTH:.0f}", height=11, class_="bar"),
        element("rect", x=f"{value * _WIDTH:.0f}", width=f"{rest:.0f}", height=11, class_="pale"),
    ]
    bar = drawing(joined(boxes), _WIDTH, 11, f"share {value:.3f}")
    return [*names, str(row.number), *show.numbers(row), Cell(bar, round(value, 4)), row.waits]


def _change(one: Change) -> list[str | Cell]:
    kind = "worse" if one.ratio < 1 else "better" if one.ratio > 1 else ""
    return [one.target, one.name, f"{one.before:.3f}", f"{one.after:.3f}", Cell(f"{one.ratio:.3f}", one.ratio, kind)]
