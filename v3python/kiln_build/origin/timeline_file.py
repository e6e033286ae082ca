"""When a build did what: its steps, and each compile by its worker. Beside the tarball, never in it: no two builds take
the same time. Read here; origin/timeline.py writes it.

The file is JSON: `timeline` 1; `release`; `sha256` of the tarball; `seconds` of all; `workers`, how many compiled at
once; `steps`, each [name, began, ended]; `jobs`, each [worker, began, ended, outcome, variant]. Times are seconds since
the build began. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kiln_recipe import plain_json
from kiln_recipe.errors import ArtifactError, EnvironmentProblem

FORMAT = 1
LARGEST = 64 << 20  # bytes; 300,000 jobs take about 55 million
_MOST_JOBS, _MOST_WORKERS, _MOST_STEPS = 1 << 20, 100_000, 1000
_LONGEST_NAME = 10_000  # characters


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
    """What a timeline says. `sha256`: of the tarball that the build made. `workers`: how many compiled at once."""

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
            data = file.read(LARGEST + 1)
    except OSError as error:
        raise EnvironmentProblem(f"{path} cannot be read ({error.strerror}); give a build's .timeline.json") from error
    return parse(data, str(path))


def parse(data: bytes, name: str) -> Timeline:
    """
    Args:
        name: of the file, for the sentence.

    Raises:
        ArtifactError: it is no timeline.
    """
    try:
        if len(data) > LARGEST:
            raise ValueError(f"it has more than {LARGEST >> 20} MiB")
        return _checked(plain_json.read(data))
    except (ValueError, TypeError, KeyError) as error:
        said = f"it lacks {error}" if isinstance(error, KeyError) else str(error) or type(error).__name__
        raise ArtifactError(f"{name} is not the timeline of a build ({said}); give a build's .timeline.json") from error


def _checked(document: Any) -> Timeline:
    if not isinstance(document, dict) or document.get("timeline") != FORMAT:
        raise ValueError(f"it does not say that it is a timeline of format {FORMAT}")
    release, sha256 = (_text(document[name]) for name in ("release", "sha256"))
    steps = [Step(_text(name), *_span(*times)) for name, *times in document["steps"]]
    rows = document["jobs"]
    if len(steps) > _MOST_STEPS or len(rows) > _MOST_JOBS:
        raise ValueError("it has more steps or jobs than any build")
    jobs = []
    for worker, began, ended, outcome, name in rows:
        if not isinstance(worker, int) or not 0 <= worker <= _MOST_WORKERS:
            raise ValueError(f"{worker!r} is not a worker's number")
        jobs.append(Job(_text(name), *_span(began, ended), worker, _text(outcome)))
    workers = document["workers"]
    if not isinstance(workers, int):
        raise ValueError("its number of workers is not a number")
    seconds = _span(0, document["seconds"])[1]
    return Timeline(release, sha256, seconds, workers, tuple(steps), tuple(jobs))


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > _LONGEST_NAME:
        raise ValueError("a name in it is not a text")
    return value


def _span(began: Any, ended: Any) -> tuple[float, float]:
    for value in (began, ended):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e9:
            raise ValueError("a time in it is not a number of seconds")
    if ended < began:
        raise ValueError("something in it ends before it begins")
    return float(began), float(ended)
