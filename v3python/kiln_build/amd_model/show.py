"""The model's figures as text, and as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kiln_build.amd_model import architectures, rows
from kiln_build.amd_model.rows import Change, Row
from kiln_recipe.console.tables import plural, table_lines

NOTE = (
    "modelled, not measured: shares of the matrix units' peak in the main loop, at so many clocks of memory latency; "
    "docs/model.md says what the model does not know"
)


def lines(found: Sequence[Row], changes: Sequence[Change] | None) -> Iterator[str]:
    """A table of loops for each target; with `changes`, one of these instead."""
    if changes is not None:
        yield from _changes(changes)
        return
    for target in dict.fromkeys(row.target for row in found):
        own = [row for row in found if row.target == target]
        latencies = architectures.by_name(target).memory_latencies
        names = ("KERNEL", "FUNCTIONAL", "CONFIGURATION", "SPECIALIZATION")
        clocks = ("LOOP", "WAVES", "NEEDED", "ISSUED", "VALU", "TRANS", "LDS", "MEMORY", "CLOCKS")
        header = (*names, *clocks, *(f"AT {latency}" for latency in latencies), "BOUND", "WAITS FOR")
        cells = [(*_names(row), row.number, *numbers(row), row.waits or "-") for row in own]
        yield f"{target}: {plural(len({row.image for row in own}), 'image')}"
        yield from table_lines(header, cells, header[4:-1])
        yield ""
    yield NOTE


def numbers(row: Row) -> list[str]:
    """Waves, clocks and shares, as they are shown."""
    loop = row.figures
    latencies = architectures.by_name(row.target).memory_latencies
    clocks = loop.clocks[architectures.by_name(row.target).usual_latency]
    whole = (row.needed, loop.matrix, loop.valu, loop.transcendental, loop.shared, loop.memory, clocks)
    shares = [row.shares.get(latency) for latency in latencies]
    return [f"{row.waves:g}", *(f"{number:.0f}" for number in whole), *map(share, (*shares, row.bound))]


def share(value: float | None) -> str:
    """ "0.481", or "-"."""
    return "-" if value is None else f"{value:.3f}"


def _names(row: Row) -> tuple[str, ...]:
    if not row.kernel:
        return (row.image[:12], "-", "-", "-")
    return (row.kernel, row.functional or "-", row.configuration, row.specialization)


def _changes(changes: Sequence[Change]) -> Iterator[str]:
    if not changes:
        yield "nothing to compare: no combination of choices that multiplies matrices is in both, for the same target"
        return
    header = ("TARGET", "IMAGE", "BEFORE", "AFTER", "RATIO")
    cells = [(one.target, one.name or "-", share(one.before), share(one.after), f"{one.ratio:.3f}") for one in changes]
    yield from table_lines(header, cells, header[2:])
    for target in dict.fromkeys(one.target for one in changes):
        own = [one for one in changes if one.target == target]
        slower = sum(one.ratio < 1 for one in own)
        yield f"{target}: geometric mean {rows.mean_ratio(own):.3f} of {plural(len(own), 'image')}, {slower} slower"
    yield NOTE


def document(found: Sequence[Row], changes: Sequence[Change] | None) -> dict[str, Any]:
    """All of it for programs."""
    document: dict[str, Any] = {"note": NOTE, "loops": [rows.document(row) for row in found]}
    if changes is not None:
        document["changes"] = [
            {"target": one.target, "name": one.name, "before": one.before, "after": one.after, "ratio": one.ratio}
            for one in changes
        ]
    return document
