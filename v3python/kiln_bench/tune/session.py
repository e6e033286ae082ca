"""What a run of the tuner found so far, in a file; and the run itself: call by call, until all are measured or the
time is over."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln_bench import measure, shapes, timing
from kiln_bench.attention.kiln import Kiln
from kiln_bench.attention.problem import CacheProblem, Problem
from kiln_bench.release import headers
from kiln_bench.release.library import Libraries, Refused
from kiln_bench.shapes import Decoding, Shapes, Training
from kiln_bench.tune import candidates
from kiln_bench.tune.measure import Tuner
from kiln_recipe.console.appear import appear
from kiln_recipe.errors import ArtifactError, EnvironmentProblem, NotServed

if TYPE_CHECKING:
    from kiln_bench.release.places import Place
    from kiln_recipe.console.progress import Progress
    from kiln_recipe.model import Recipe

MADE_BY = "kiln_bench.tune"
BEGIN = f'{{\n "made_by": "{MADE_BY}"'.encode()
_FORMAT = 1


class Session:
    """Rows of calls of one release's images on one kind of GPU.

    Attributes:
        about: release, target, device, multiprocessors, and the pack's sha256.
        rows: as tune.measure makes them.
        clocks: of the multiprocessors after each call, "1980 MHz".
    """

    def __init__(self, about: Mapping[str, Any], path: Path | None) -> None:
        """`path`: the file that it is kept in, from which it goes on if that is of the same images and GPU; None: it is
        not kept."""
        self.about, self._path = dict(about), path
        self.rows: list[dict[str, Any]] = []
        self.clocks: list[str] = []
        self._done: list[Any] = []
        try:
            kept = json.loads(path.read_text("utf-8")) if path else {}
        except (OSError, ValueError):
            kept = {}
        if kept.get("format") == _FORMAT and kept.get("about") == self.about:
            self.rows, self.clocks, self._done = kept["rows"], kept["clocks"], kept["done"]

    def is_done(self, part: str, shape: Training | Decoding) -> bool:
        return [part, shapes.as_row(shape)] in self._done

    def add(self, part: str, shape: Training | Decoding, rows: Sequence[dict[str, Any]], clock: str) -> None:
        """What a call's measurement found, which may be nothing; keeps it."""
        self.rows += rows
        self.clocks += [clock] if clock else []
        self._done.append([part, shapes.as_row(shape)])
        if self._path is None:
            return
        kept = {"made_by": MADE_BY, "format": _FORMAT, "about": self.about, "clocks": self.clocks,
                "done": self._done, "rows": self.rows}  # fmt: skip
        with appear(self._path) as fresh:
            fresh.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")


@contextmanager
def opened(place: Place, target: str) -> Iterator[tuple[Libraries, dict[str, Any]]]:
    """A release's libraries, and what a session says of them and of the GPU.

    Raises:
        EnvironmentProblem: there is no GPU.
        NotServed: it is of another target.
        ArtifactError: the release has no pack for it.
    """
    measure.check_device()
    import torch

    with Libraries(place.libraries, headers.read(place.headers)) as libraries:
        try:
            device = libraries.devices()[torch.cuda.current_device()]
        except (Refused, IndexError) as error:
            raise EnvironmentProblem(f"{place.name} finds no GPU ({error})") from error
        if device["target"] != target:
            found = f"this GPU, {device['name']}, is of {device['target']}"
            raise NotServed(f"{found}; --target {target} wants one of {target}")
        if (pack := place.pack(target)) is None:
            raise ArtifactError(f"{place.name} has no pack for {target}; build the release for it")
        yield libraries, {
            "release": libraries.version, "target": target, "device": device["name"],
            "multiprocessors": device["multiprocessors"], "pack": pack["sha256"],
        }  # fmt: skip


def tuner_of(libraries: Libraries, recipe: Recipe, about: Mapping[str, Any]) -> Tuner:
    """What measures calls of all operations of a family."""
    operations = [f"{recipe.family}.{operation.name}" for operation in recipe.operations]
    images = candidates.Images([v for name in operations for v in libraries.variants(name, about["target"])])
    kernels, kiln = candidates.kernels(recipe), Kiln("kiln", "Kiln", libraries)

    def timed(works: Mapping[str, timing.Work], rounds: int, turn_ms: float) -> Mapping[str, Sequence[float]]:
        return timing.measured(works, rounds, turn_ms).milliseconds

    return Tuner(kiln, images, kernels, about["multiprocessors"], timed)


def go_on(
    session: Session, tuner: Tuner, wanted: Shapes, seconds: float | None, progress: Progress, l2_bytes: int,
    device: str = "cuda", now: Callable[[], float] = time.monotonic,
) -> int:  # fmt: skip
    """Measures what a session has not; returns how many calls no time was left for. One is measured in any case."""
    every = measure.Wanted(wanted, ("forward", "backward", "decoding"), ()).rows()
    left = [(part, shape) for part, shape in every if not session.is_done(part, shape)]
    progress.start(len(left), seconds, title="tune", unit="call")
    start, problem = now(), None
    for number, (part, shape) in enumerate(left):
        began = now()
        if seconds is not None and number and began - start >= seconds:
            progress.close()
            return len(left) - number
        if problem is None or problem.shape != shape:
            problem = Problem(shape, device) if isinstance(shape, Training) else CacheProblem(shape, l2_bytes, device)
        session.add(part, shape, tuner.rows(problem, part), timing.nvidia_smi().get("clocks.sm", ""))
        progress.done(f"{part}, {shape}", now() - began, "measured")
    progress.close()
    return 0
