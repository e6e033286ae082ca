"""What is shown of results: figures of a row, tables, what to know of them. Needs neither a GPU nor PyTorch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from kiln_bench import kept, shapes
from kiln_bench.shapes import Training
from kiln_recipe.console.tables import table

Results = Mapping[str, Any]
Row = Mapping[str, Any]
MADE_BY, FORMAT, COPY, PYTORCH = "kiln bench", 1, "copy", "F.scaled_dot_product_attention"
RIGHT = "what `kiln bench --json` wrote"  # to give
HOST = "host"  # in the place of a ratio: a side's figure may have the host's time in it
_NAMED = 2  # calls that a note names
UNITS = {"forward": "TFLOP/s", "backward": "TFLOP/s", "decoding": "TB/s of the cache", "host": "µs of a call"}


def read(path: Path) -> Results:
    """Results that were kept.

    Raises:
        EnvironmentProblem: the file cannot be read.
        ArtifactError: it is not what `kiln bench --json` writes.
    """
    return kept.read(path, MADE_BY, FORMAT, RIGHT, "has no results of `kiln bench`")


def selected(results: Results, parts: Iterable[str], sides: Iterable[str]) -> Results:
    """Some parts, and of those beside whom it was measured some sides."""
    left = {*ours(results), COPY, *sides}
    by_side = ("milliseconds", "refused", "wrong", "errors", "images", "calls", "not_captured")
    rows = []
    for row in results["rows"]:
        if row["part"] not in parts:
            continue
        kept = {name: {s: what for s, what in row[name].items() if s in left} for name in by_side if name in row}
        rows.append({**row, **kept} if row["part"] != "host" else row)
    named = {name: {s: what for s, what in results[name].items() if s in left} for name in ("sides", "absent")}
    return {**results, **named, "rows": rows}


def of(results: Results, part: str) -> list[Row]:
    return [row for row in results["rows"] if row["part"] == part]


def median(row: Row, side: str) -> float | None:
    """Milliseconds of the median round."""
    times = row["milliseconds"].get(side)
    return statistics.median(times) if times else None


def spread(times: Iterable[float]) -> float:
    """From the lower to the upper quartile, as a share of the median."""
    ordered = sorted(times)
    if len(ordered) < 2:
        return 0.0
    low, _, high = statistics.quantiles(ordered, n=4, method="inclusive")
    return (high - low) / statistics.median(ordered)


def figure(row: Row, side: str) -> float | None:
    """In the unit of the row's part: more is faster."""
    took = median(row, side)
    if not took:
        return None
    if side == COPY:
        return row["copied_bytes"] / took / 1e9
    shape = shapes.of_row(row)
    amount = shape.operations(row["part"]) if isinstance(shape, Training) else shape.bytes
    return amount / took / 1e9


def is_host_bound(row: Row, side: str) -> bool:
    """Whether the host's time may be in a side's figure. Rows that were kept may tell only that some side's has it, so
    that it may be any."""
    return not row.get("host_ahead", True) and side in row.get("host_bound", (side,))


def ratio(row: Row, side: str, other: str) -> float | None:
    """How many times as fast as the other a side is; None, too, if the host's time may be in one of the figures."""
    if is_host_bound(row, side) or is_host_bound(row, other):
        return None
    mine, theirs = median(row, side), median(row, other)
    return theirs / mine if mine and theirs else None


def mean(values: Iterable[float | None]) -> float | None:
    """The geometric one, of those that there are."""
    known = [value for value in values if value]
    return math.exp(statistics.fmean(map(math.log, known))) if known else None


def ours(results: Results) -> list[str]:
    return [release["side"] for release in results["about"]["releases"]]


def labels(results: Results) -> dict[str, str]:
    return {**results["sides"], COPY: "copy"}


def sides_of(results: Results, part: str) -> list[str]:
    """Those that some row of a part has a figure of, releases first."""
    rows = of(results, part)
    return [s for s in (*results["sides"], COPY) if any(s in row.get("milliseconds", {}) for row in rows)]


def number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def device_table(
    results: Results, part: str, more: Mapping[str, Callable[[Row], str]] = {}, for_people: bool = True
) -> tuple[list[str], list[list[str]]]:
    """Heading and rows of forward, backward or decoding: figures by side, Kiln's beside each other's.

    Args:
        more: by heading what gives a cell of a row, behind all else.
        for_people: at a terminal: short names of the sides, and each figure with the spread of its rounds.
    """
    rows = [row for row in of(results, part) if not row.get("skipped")]
    sides, first = sides_of(results, part), ours(results)[0]
    names = {side: label.removeprefix("PyTorch, ") if for_people else label for side, label in labels(results).items()}
    others = [side for side in sides if side != first and first in sides]
    head = ["shape", *(names[side] for side in sides)]
    head += ["µs"] if part == "decoding" else []
    head += [f"to {names[side]}" for side in others] + [*more]
    body = []
    for row in rows:
        cells = [_figure(row, side, for_people) for side in sides]
        if part == "decoding":
            took = median(row, first)
            cells.append(number(took and took * 1000, 1))
        cells += [HOST if is_unfair(row, first, side) else number(beside(row, first, side), 2) for side in others]
        body.append([str(shapes.of_row(row)), *cells, *(cell(row) for cell in more.values())])
    if others and len(rows) > 1:
        for name, over in (("geometric mean", mean), ("least", least)):
            means = [number(over(beside(row, first, side) for row in rows), 2) for side in others]
            body.append([name, *[""] * (len(head) - 1 - len(others) - len(more)), *means, *("" for _ in more)])
    return head, body


def _figure(row: Row, side: str, with_spread: bool) -> str:
    """ "391 ±0.4%", or why there is none in a word."""
    for kind in ("wrong", "refused"):
        if side in row[kind]:
            return kind
    value = figure(row, side)
    text = number(value, 2 if row["part"] == "decoding" else 0 if not value or value >= 10 else 1)
    times = row["milliseconds"].get(side)
    host = f" ({HOST})" if times and is_host_bound(row, side) else ""
    return f"{text} ±{spread(times) / 2:.1%}{host}" if times and with_spread else f"{text}{host}"


def beside(row: Row, first: str, side: str) -> float | None:
    """How many times as fast; of a copy, whose bytes are others, by the bandwidth."""
    if side != COPY or is_host_bound(row, first) or is_host_bound(row, side):
        return ratio(row, first, side)
    mine, theirs = figure(row, first), figure(row, side)
    return mine / theirs if mine and theirs else None


def is_unfair(row: Row, first: str, side: str) -> bool:
    """Whether two sides have figures that are not set against one another, since the host's time may be in one."""
    has_both = all(row["milliseconds"].get(one) for one in (first, side))
    return has_both and (is_host_bound(row, first) or is_host_bound(row, side))


def least(values: Iterable[float | None]) -> float | None:
    return min((value for value in values if value), default=None)


def host_table(results: Results) -> tuple[list[str], list[list[str]]]:
    """Heading and rows of the host's time: microseconds, and beside PyTorch's way of the same kind."""
    rows, names = of(results, "host"), labels(results)
    rows = [row for row in rows if row["microseconds"]]
    head = ["call"]
    for row in rows:
        head += [names[row["side"]] if len(rows) > 1 else "µs", "to PyTorch's"]
    body = []
    for way in dict.fromkeys(way for row in rows for way in row["microseconds"]):
        cells = []
        for row in rows:
            times = row["microseconds"]
            took = statistics.median(times[way]) if way in times else None
            kind = next((k for k in (", recorded", ", and backward") if way.endswith(k)), "")
            theirs = statistics.median(times[PYTORCH + kind]) if PYTORCH + kind in times else None
            cells += [number(took, 2), number(took / theirs if took and theirs else None, 2)]
        body.append([way, *cells])
    return head, body


def tables(results: Results) -> list[tuple[str, list[str], list[list[str]]]]:
    """Title, heading and rows of each part that there is something of."""
    found = []
    for part in shapes.PARTS:
        if not of(results, part):
            continue
        head, body = host_table(results) if part == "host" else device_table(results, part)
        if body:
            found.append((f"{part.capitalize()}, {UNITS[part]}", head, body))
    return found


def notes(results: Results) -> list[str]:
    """Why there is no figure, each reason once with all that it is the reason for; and what to know of the others."""
    names = labels(results)
    found: dict[tuple[str, str], dict[str, dict[str, None]]] = {}  # by kind and reason: sides, and calls by part

    def add(kind: str, why: str, side: str, row: Row) -> None:
        entry = found.setdefault((kind, why), {"": {}})
        entry[""][side] = None
        if row["part"] != "host":
            entry.setdefault(row["part"], {})[str(shapes.of_row(row))] = None

    for row in results["rows"]:
        if row.get("skipped"):
            add("not measured", row["skipped"], f"host, {names[row['side']]}" if row["part"] == "host" else "", row)
        for kind in ("wrong", "refused"):
            for side, why in row[kind].items():
                add(kind, why, names.get(side, side), row)
        if not row.get("host_ahead", True):
            for side in row.get("host_bound", ("",)):
                add("slow host", "its time may be in the figures, so no ratio counts: it did not keep ahead of the GPU",
                    names.get(side, side), row)  # fmt: skip
        for side, why in row.get("not_captured", {}).items():
            add("no CUDA graphs", why, names.get(side, side), row)
    lines = []
    for (kind, why), entry in found.items():
        sides = "; ".join(filter(None, entry.pop("")))
        lines.append(f"{kind}: {f'{sides}: ' if sides else ''}{why}{_calls(entry)}")
    if count := sum(bool(row.get("graphs")) for row in results["rows"]):
        lines.append(f"{count} rows of short calls were timed in CUDA graphs, all sides alike")
    return lines + [f"{names.get(name, name)} {why}" for name, why in results["absent"].items()]


def _calls(by_part: Mapping[str, Mapping[str, None]]) -> str:
    """ " (forward: d64, ...; 12 calls of backward)": few are named, many are counted."""
    said = [
        f"{part}: {'; '.join(calls)}" if len(calls) <= _NAMED else f"{len(calls)} calls of {part}"
        for part, calls in by_part.items()
    ]
    return f" ({'; '.join(said)})" if said else ""


def widest(results: Results) -> float:
    """The largest spread of a side's rounds."""
    every = [times for row in results["rows"] for times in row.get("milliseconds", {}).values()]
    return max(map(spread, every), default=0.0)


def clocks(results: Results) -> str:
    """Of the multiprocessors while the GPU worked: "1725 to 1980 MHz"."""
    seen = sorted(
        {int(text.split()[0]) for text in results["clocks"] if text.split()[:1] and text.split()[0].isdigit()}
    )
    if not seen:
        return "unknown"
    return f"{seen[0]} MHz" if len(seen) == 1 else f"{seen[0]} to {seen[-1]} MHz"


def about(results: Results) -> list[str]:
    """Where and with what it was measured, in lines."""
    facts = results["about"]
    limit = f" (at most {facts['clock_limit']})" if facts["clock_limit"] else ""
    packages = "".join(f", {labels(results).get(name, name)} {v}" for name, v in facts["packages"].items())
    cudnn = f" with cuDNN {facts['cudnn']}" if facts["cudnn"] else ""
    lines = [
        f"{facts['date']}: {facts['gpu']}, driver {facts['driver'] or 'unknown'}, SM clock {clocks(results)} under "
        f"load{limit}; PyTorch {facts['torch']}{cudnn}{packages}",
    ]
    for release in facts["releases"]:
        pack = release["pack"]
        digest = f"{pack['file']}, sha256 {pack['sha256']}" if pack else "no pack"
        lines.append(f"{labels(results)[release['side']]}: {release['version']}, {release['release']}; {digest}")
    lines.append(
        f"shapes {facts['shapes']}; medians of {facts['rounds']} rounds, all sides in turns on the same tensors; "
        f"quartiles of a side differ by at most {widest(results):.1%}"
    )
    return lines


def text(results: Results) -> str:
    """What is printed."""
    parts = ["\n".join(about(results))]
    for title, head, body in tables(results):
        parts.append(f"{title}\n{table(head, body, right=head[1:])}")
    if lines := notes(results):
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def piped(head: list[str], body: list[list[str]]) -> str:
    """A table in Markdown."""
    lines = [f"| {' | '.join(row)} |" for row in (head, *body)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


def wrong(results: Results) -> list[str]:
    """Where Kiln's own results are wrong, a sentence each."""
    mine, found = set(ours(results)), []
    for row in results["rows"]:
        for side, why in row["wrong"].items():
            if row["part"] == "host":
                if "kiln" in side:
                    found.append(f"host, {side}: {why}")
            elif side in mine:
                found.append(f"{row['part']}, {shapes.of_row(row)}: {why}")
    return found


def has_figures(results: Results) -> bool:
    """Whether Kiln has any."""
    mine = ours(results)
    return any(
        row.get("microseconds") or any(side in row.get("milliseconds", {}) for side in mine) for row in results["rows"]
    )
