"""Makespan by workers as a picture in SVG, both axes logarithmic: a line for each share that a cache has, and below
them what no build can be shorter than."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from kiln_build.foresight.show import Case, Subject, heading
from kiln_build.pages.markup import Markup, drawing, element, joined
from kiln_recipe.console.appear import write_whole

BEGIN = "<!-- kiln simulate -->\n"  # of a file
_WIDTH, _HEIGHT = 760, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 150, 30, 45
_LABEL = 15  # between two labels
_LEAST = "#888888"
_COLORS = ("#1f77b4", "#d9822b", "#2f8f5f", "#a05d7e", "#7a7a2e", "#5f6fbf")  # seen on white and on black
_MARKS = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 18000, 36000, 86400, 172800, 432000, 864000)


def picture(subject: Subject, cases: Sequence[Case]) -> Markup:
    """The picture of at least one case."""
    shares = list(dict.fromkeys(case.hit for case in cases))
    counts = sorted({case.asked for case in cases})
    lowest = [max(subject.longest, subject.core_seconds / count) for count in counts]
    times = [case.forecast.makespan for case in cases] + (lowest if 0.0 in shares else [])
    low, high = max(min(times), 1e-3), max(*times, 1e-3 * 2)
    below = max((mark for mark in _MARKS if mark <= low), default=low)
    above = min((mark for mark in _MARKS if mark >= high), default=high)

    def x(count: float) -> float:
        span = math.log(counts[-1] / counts[0]) or 1.0
        return round(_LEFT + (_WIDTH - _LEFT - _RIGHT) * math.log(count / counts[0]) / span, 1)

    def y(seconds: float) -> float:
        span = math.log(above / below) or 1.0
        return round(_HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * math.log(max(seconds, below) / below) / span, 1)

    parts = list(_axes(x, y, counts, [mark for mark in _MARKS if below <= mark <= above]))
    labels: list[tuple[float, str, str]] = []  # where the lines end, and what they are
    if 0.0 in shares:
        points = [(x(count), y(seconds)) for count, seconds in zip(counts, lowest)]
        parts.append(_line(points, _LEAST, dashed=True))
        labels.append((points[-1][1], "least possible", _LEAST))
    for number, share in enumerate(shares):
        color = _COLORS[number % len(_COLORS)]
        points = [(x(case.asked), y(case.forecast.makespan)) for case in cases if case.hit == share]
        points.sort()
        parts.append(_line(points, color))
        parts += [element("rect", x=px - 2.5, y=py - 2.5, width=5, height=5, fill=color) for px, py in points]
        labels.append((points[-1][1], f"{100 * share:g} % in the cache", color))
    parts += _labels(labels)
    return drawing(joined(parts), _WIDTH, _HEIGHT, f"{heading(subject)}: seconds by workers")


def write(path: Path, subject: Subject, cases: Sequence[Case]) -> None:
    """Writes the picture as a file of its own.

    Raises:
        EnvironmentProblem: it cannot be written.
    """
    svg = picture(subject, cases).replace(
        "<svg ", '<svg xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" font-size="11" ', 1
    )
    paper = element("rect", width=_WIDTH, height=_HEIGHT, fill="#ffffff")  # where the page around it is dark
    svg = svg.replace(">", f">{paper}", 1)
    write_whole(path, f"{BEGIN}{svg}\n")


def _axes(x, y, counts: Sequence[int], marks: Sequence[float]) -> Iterator[Markup]:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    for mark in marks:
        yield element("path", d=f"M{_LEFT} {y(mark)}H{right}", stroke="#999999", stroke_opacity="0.4", fill="none")
        yield _text(_spell(mark), _LEFT - 8, y(mark) + 4, "end")
    for count in counts:
        yield element("path", d=f"M{x(count)} {_TOP}V{bottom}", stroke="#999999", stroke_opacity="0.4", fill="none")
        yield _text(str(count), x(count), bottom + 16, "middle")
    yield _text("workers", (_LEFT + right) / 2, bottom + 34, "middle")
    yield _text("from the start to the release", _LEFT, _TOP - 12)


def _labels(labels: Sequence[tuple[float, str, str]]) -> Iterator[Markup]:
    """Names of lines, beside their ends, each with its line's color; none over another."""
    right, lowest = _WIDTH - _RIGHT, -math.inf
    for wanted, name, color in sorted(labels):
        lowest = max(wanted, lowest + _LABEL)
        yield element("rect", x=right + 10, y=round(lowest - 5, 1), width=10, height=10, fill=color)
        yield _text(name, right + 25, round(lowest + 4, 1))


def _line(points: Sequence[tuple[float, float]], color: str, dashed: bool = False) -> Markup:
    path = "M" + "L".join(f"{px} {py}" for px, py in points)
    dashes = "5 4" if dashed else None
    return element("path", d=path, stroke=color, stroke_width=2, stroke_dasharray=dashes, fill="none")


def _text(content: str, x: float, y: float, anchor: str | None = None) -> Markup:
    return element("text", content, x=x, y=y, text_anchor=anchor)


def _spell(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:g} s"
    if seconds < 3600:
        return f"{seconds / 60:g} min"
    return f"{seconds / 3600:g} h" if seconds < 86400 else f"{seconds / 86400:g} d"
