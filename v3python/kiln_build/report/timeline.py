"""The timeline of a build (origin/timeline_file.py), drawn."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from kiln_build.origin.timeline_file import Job, Timeline
from kiln_build.pages.markup import Markup, drawing, element, joined

_WIDTH, _LEFT, _LANE = 1000, 90, 16  # pixels
_KINDS = {"compiled": "bar", "shared": "pale", "reused": "pale"}  # others failed


def picture(found: Timeline) -> Markup:
    """Steps, and below them a lane for each worker."""
    lanes: dict[int, list[Job]] = {}
    for job in sorted(found.jobs, key=lambda one: (one.worker, one.began)):
        lanes.setdefault(job.worker, []).append(job)
    end = max([found.seconds, 1e-3, *(one.ended for one in (*found.steps, *found.jobs))])
    scale = _WIDTH / end
    height = (len(lanes) + 2) * _LANE + 8
    parts = list(_axis(end, scale, height))
    parts.append(element("text", "steps", x=0, y=_LANE - 4))
    for number, step in enumerate(found.steps):
        x, width = _LEFT + step.began * scale, max(1.0, step.seconds * scale)
        kind = "bar" if number % 2 else "pale"
        box = element("rect", x=f"{x:.1f}", y=2, width=f"{width:.1f}", height=_LANE - 4, class_=kind)
        parts.append(element("g", element("title", f"{step.name}: {step.seconds:.1f} s"), box))
    for place, (worker, jobs) in enumerate(lanes.items(), 1):
        y = place * _LANE
        parts.append(element("text", f"worker {worker}", x=0, y=y + _LANE - 4))
        for kind in dict.fromkeys([*_KINDS.values(), "spills"]):
            boxes = _boxes((job for job in jobs if _KINDS.get(job.outcome, "spills") == kind), scale, y + 2)
            if boxes:
                parts.append(element("path", class_=kind, d=boxes))
    label = f"{len(found.steps)} steps and {len(found.jobs)} compiles by {len(lanes)} workers in {end:.0f} s"
    return drawing(joined(parts), _LEFT + _WIDTH + 40, height, label)


def _boxes(jobs: Iterable[Job], scale: float, y: int) -> str:
    """Of jobs, in the order in which they began, that follow each other within half a pixel one box: so ten thousand
    are a few thousand letters."""
    spans: list[list[float]] = []
    for job in jobs:
        began, ended = job.began * scale, job.ended * scale
        if spans and began - spans[-1][1] < 0.5 and ended - began < 2:
            spans[-1][1] = max(spans[-1][1], ended)
        else:
            spans.append([began, ended])
    height = _LANE - 4
    return "".join(
        f"M{_LEFT + began:.1f} {y}h{max(0.6, ended - began - 0.4):.1f}v{height}h-{max(0.6, ended - began - 0.4):.1f}z"
        for began, ended in spans
    )


def _axis(end: float, scale: float, height: int) -> Iterator[Markup]:
    step = _round(end / 8)
    for number in range(int(end / step) + 1):
        x = round(_LEFT + number * step * scale, 1)
        yield element("path", class_="axis", d=f"M{x} 0v{height - 14}")
        yield element("text", _clock(number * step), x=x, y=height - 3, text_anchor="middle")


def _round(step: float) -> float:
    """The next of 1, 2, 5, 10, 15, 30, 60 seconds and so on."""
    for nice in (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800):
        if step <= nice:
            return nice
    return math.ceil(step / 3600) * 3600


def _clock(seconds: float) -> str:
    """ "0", "2.5 s", "90 s", "2:30 min", "12 min", "1:30 h"."""
    if seconds < 120:
        return f"{seconds:g} s" if seconds else "0"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}:{rest:02} min" if rest else f"{minutes} min"
    return f"{minutes // 60}:{minutes % 60:02} h"


def by_kernel(jobs: Sequence[Job]) -> list[tuple[str, str, int, float, float]]:
    """Of each target and kernel how many compiles there were, their seconds, and those of the longest; the most
    expensive first."""
    groups: dict[tuple[str, str], list[float]] = {}
    for job in jobs:
        target = job.name.rpartition("@")[2]
        groups.setdefault((target, job.name.partition("[")[0]), []).append(job.seconds)
    rows = [(*place, len(times), sum(times), max(times)) for place, times in groups.items()]
    return sorted(rows, key=lambda row: (-row[3], row))
