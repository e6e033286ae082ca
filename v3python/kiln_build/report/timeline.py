"""The timeline that a build leaves beside its tarball (origin/timeline.py), read and drawn."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kiln_build.pages.markup import Markup, drawing, element, joined
from kiln_recipe.errors import ArtifactError, EnvironmentProblem

FORMAT = 1
_LARGEST = 64 << 20  # bytes: ten times that of the largest build
_MOST_JOBS, _MOST_WORKERS = 200_000, 1024
_WIDTH, _LEFT, _LANE = 1000, 90, 16  # pixels
_KINDS = {"compiled": "bar", "shared": "pale", "reused": "pale"}  # others failed


@dataclass(frozen=True)
class Step:
    """A step of the build, in seconds since it began."""

    name: str
    began: float
    ended: float

    @property
    def seconds(self) -> float:
        return self.ended - self.began


@dataclass(frozen=True)
class Job(Step):
    """A compile: of a variant, by a worker; `outcome`: "compiled", "shared", "reused", "failed", "died"."""

    worker: int = 0
    outcome: str = ""


@dataclass(frozen=True)
class Timeline:
    """`sha256`: of the tarball that the build made. `workers`: how many compiled at once."""

    release: str
    sha256: str
    seconds: float
    workers: int
    steps: tuple[Step, ...]
    jobs: tuple[Job, ...]


def read(path: Path) -> Timeline:
    """
    Raises:
        EnvironmentProblem: the file cannot be read.
        ArtifactError: it is no timeline.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST + 1)
    except OSError as error:
        raise EnvironmentProblem(f"{path} cannot be read ({error.strerror}); give a build's .timeline.json") from error
    try:
        if len(data) > _LARGEST:
            raise ValueError(f"it has more than {_LARGEST >> 20} MiB")
        return _checked(json.loads(data))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        said = f"it lacks {error}" if isinstance(error, KeyError) else str(error) or type(error).__name__
        raise ArtifactError(f"{path} is no timeline of a build ({said}); give a build's .timeline.json") from error


def _checked(document: Any) -> Timeline:
    if not isinstance(document, dict) or document.get("timeline") != FORMAT:
        raise ValueError(f"it does not say that it is a timeline of format {FORMAT}")
    release, sha256 = (_text(document[name]) for name in ("release", "sha256"))
    steps = [Step(_text(name), *_span(*times)) for name, *times in document["steps"]]
    rows = document["jobs"]
    if len(steps) > 1000 or len(rows) > _MOST_JOBS:
        raise ValueError("it has more steps or jobs than any build")
    jobs = []
    for worker, began, ended, outcome, name in rows:
        if not isinstance(worker, int) or not 0 <= worker <= _MOST_WORKERS:
            raise ValueError(f"{worker!r} is not a worker's number")
        jobs.append(Job(_text(name), *_span(began, ended), worker, _text(outcome)))
    workers = document["workers"]
    if not isinstance(workers, int):
        raise ValueError("its number of workers is none")
    seconds = _span(0, document["seconds"])[1]
    return Timeline(release, sha256, seconds, workers, tuple(steps), tuple(jobs))


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > 10_000:
        raise ValueError("a name in it is no text")
    return value


def _span(began: Any, ended: Any) -> tuple[float, float]:
    for value in (began, ended):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e9:
            raise ValueError("a time in it is no number of seconds")
    if ended < began:
        raise ValueError("something in it ends before it begins")
    return float(began), float(ended)


def picture(found: Timeline) -> Markup:
    """Steps, and below them a lane for each worker."""
    lanes = sorted({job.worker for job in found.jobs})
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
    for place, worker in enumerate(lanes, 1):
        y = place * _LANE
        parts.append(element("text", f"worker {worker}", x=0, y=y + _LANE - 4))
        jobs = [job for job in found.jobs if job.worker == worker]
        for kind in dict.fromkeys([*_KINDS.values(), "spills"]):
            boxes = _boxes((job for job in jobs if _KINDS.get(job.outcome, "spills") == kind), scale, y + 2)
            if boxes:
                parts.append(element("path", class_=kind, d=boxes))
    label = f"{len(found.steps)} steps and {len(found.jobs)} compiles by {len(lanes)} workers in {end:.0f} s"
    return drawing(joined(parts), _LEFT + _WIDTH + 40, height, label)


def _boxes(jobs: Iterable[Job], scale: float, y: int) -> str:
    """Of jobs that follow each other within half a pixel one box, so that ten thousand are a few thousand letters."""
    spans: list[list[float]] = []
    for job in sorted(jobs, key=lambda one: one.began):
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
