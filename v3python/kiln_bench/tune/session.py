"""What a run of the tuner found so far, in a file; and the run itself: call by call, until all are measured or the
time is over."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from kiln_bench import capture, kept, measure, shapes, state, timing
from kiln_bench.attention.kiln import Kiln
from kiln_bench.attention.problem import CacheProblem, Problem
from kiln_bench.release import headers
from kiln_bench.release.library import Libraries, Refused
from kiln_bench.shapes import Decoding, Shapes, Training
from kiln_bench.tune import candidates
from kiln_bench.tune.measure import Tuner
from kiln_recipe.console.appear import write_whole
from kiln_recipe.console.spelling import say
from kiln_recipe.errors import ArtifactError, EnvironmentProblem, NotServed, UsageError

if TYPE_CHECKING:
    from kiln_bench.release.places import Place
    from kiln_recipe.console.progress import Progress
    from kiln_recipe.model import Recipe

_Item = TypeVar("_Item")
MADE_BY = "kiln tune"
RIGHT = f"what `{MADE_BY}` kept"  # to give
BEGIN = f'{{\n "made_by": "{MADE_BY}"'.encode()
_FORMAT = 2
_FALLEN = 0.95  # of the highest clock: below it a call is measured once more


@dataclass
class Session:
    """Rows of calls of one release's images on one kind of GPU.

    Attributes:
        about: release, target, device, driver, multiprocessors, and the pack's sha256.
        shapes: the preset's name, or the file's.
        date: of its last call, "2026-11-25".
        roof: what the device does at most: "tflops" of a product in bf16, "gbytes" of copied bytes a second.
        rows: as tune.measure makes them.
        clocks: of the multiprocessors after each call, "1980 MHz".
        done: parts and shapes that were measured.
        refused: "part", "shape" and "why" of calls that the release does not serve; the next run tries them again.
        path: the file that it is kept in; None: it is not kept.
    """

    about: Mapping[str, Any]
    shapes: str
    date: str = ""
    roof: dict[str, float] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    clocks: list[str] = field(default_factory=list)
    done: list[Any] = field(default_factory=list)
    refused: list[dict[str, Any]] = field(default_factory=list)
    path: Path | None = None

    def is_done(self, part: str, shape: Training | Decoding) -> bool:
        return [part, shapes.as_row(shape)] in self.done

    def add(self, part: str, shape: Training | Decoding, rows: Sequence[dict[str, Any]], clock: str) -> None:
        """What a call's measurement found, which may be nothing; keeps it."""
        self._forget_refusal(part, shape)
        self.rows += rows
        self.clocks += [clock] if clock else []
        self.done.append([part, shapes.as_row(shape)])
        self._keep()

    def refuse(self, part: str, shape: Training | Decoding, why: str) -> None:
        """That a call was refused; keeps it."""
        self._forget_refusal(part, shape)
        self.refused.append({"part": part, "shape": shapes.as_row(shape), "why": why})
        self._keep()

    def _forget_refusal(self, part: str, shape: Training | Decoding) -> None:
        call = (part, shapes.as_row(shape))
        self.refused = [row for row in self.refused if (row["part"], row["shape"]) != call]

    def _keep(self) -> None:
        self.date = f"{datetime.now(timezone.utc):%Y-%m-%d}"
        if self.path is not None:
            write_whole(self.path, json.dumps(self.document(), indent=1) + "\n")

    def document(self) -> dict[str, Any]:
        """As it is kept."""
        return {"made_by": MADE_BY, "format": _FORMAT, "about": dict(self.about), "shapes": self.shapes,
                "date": self.date, "roof": self.roof, "clocks": self.clocks, "done": self.done,
                "refused": self.refused, "rows": self.rows}  # fmt: skip


def read(path: Path) -> Session:
    """What was kept.

    Raises:
        EnvironmentProblem: the file cannot be read.
        ArtifactError: it is not what `kiln tune` keeps.
    """
    found = kept.read(path, MADE_BY, _FORMAT, RIGHT, f"has no times of `{MADE_BY}`")
    names = ("about", "shapes", "date", "roof", "rows", "clocks", "done")
    if missing := [name for name in names if name not in found]:
        raise ArtifactError(f"{path} lacks {', '.join(missing)}; give {RIGHT}")
    return Session(**{name: found[name] for name in names}, refused=found.get("refused", []))


def begin(about: Mapping[str, Any], wanted: str, path: Path | None, given: Session | None) -> Session:
    """The session of a run, with the rows of the one that it goes on from.

    Args:
        path: where it is kept; if that has rows of the same images and GPU, it goes on from them.
        given: what it must go on from; None: that is not asked for.

    Raises:
        UsageError: what it must go on from is of other images or another GPU.
    """
    if given is not None and (differs := _differences(given.about, about)):
        raise UsageError(f"--resume has times of another {' and '.join(differs)}; leave it out to start anew")
    before = given
    if before is None and path is not None and path.is_file():
        before = read(path)
        if differs := _differences(before.about, about):
            say(f"{path} has times of another {' and '.join(differs)}; it is replaced")
            before = None
    if before is None:
        return Session(about, wanted, path=path)
    both = {**about, "driver": _joined(before.about["driver"], about["driver"])}
    return replace(before, about=both, shapes=_joined(before.shapes, wanted), path=path)


def _joined(before: str, now: str) -> str:
    """Names between commas, each once."""
    return ", ".join(dict.fromkeys((*filter(None, before.split(", ")), now)))


def _differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Drivers may differ: of a session both are named."""
    return [name for name in {**one, **other} if name != "driver" and one.get(name) != other.get(name)]


@contextmanager
def opened(place: Place, target: str) -> Iterator[tuple[Libraries, dict[str, Any]]]:
    """A release's libraries, and what a session says of them and of the GPU.

    Raises:
        EnvironmentProblem: there is no GPU.
        NotServed: it is of another target.
        ArtifactError: the release has no pack for it.
    """
    measure.check_device(MADE_BY)
    import torch

    vendor = "amd" if torch.version.hip else "nvidia"
    with capture.own_stream(), Libraries(place.libraries, headers.read(place.headers), vendor=vendor) as libraries:
        try:
            devices = [row for row in libraries.devices() if row["vendor"] == libraries.vendor]
            device = devices[torch.cuda.current_device()]
        except (Refused, IndexError) as error:
            raise EnvironmentProblem(f"{place.name} finds no GPU ({error})") from error
        if device["target"] != target:
            found = f"this GPU, {device['name']}, is of {device['target']}"
            raise NotServed(f"{found}; --target {target} wants one of {target}")
        if (pack := place.pack(target)) is None:
            raise ArtifactError(f"{place.name} has no pack for {target}; build the release for it")
        yield libraries, {
            "release": libraries.version, "target": target, "device": device["name"],
            "driver": state.of_torch().get("driver_version", "unknown"),
            "multiprocessors": device["multiprocessors"], "pack": pack["sha256"],
        }  # fmt: skip


def tuner_of(libraries: Libraries, recipe: Recipe, about: Mapping[str, Any]) -> Tuner:
    """What measures calls of all operations of a family."""
    operations = [f"{recipe.family}.{operation.name}" for operation in recipe.operations]
    images = candidates.Images([v for name in operations for v in libraries.variants(name, about["target"])])
    kernels, kiln = candidates.kernels(recipe), Kiln("kiln", "Kiln", libraries)

    def timed(works: Mapping[str, timing.Work], rounds: int, turn_ms: float) -> Mapping[str, Sequence[float]]:
        # Turns this short never see the clocks that long work at the power limit has. Where candidates differ in power,
        # the order of two that are close can be another there; see docs/reference.md.
        return timing.measured(works, rounds, turn_ms, uncounted=0.0).milliseconds

    return Tuner(kiln, images, kernels, about["multiprocessors"], timed)


@dataclass(frozen=True)
class Calls:
    """What a run measures.

    Attributes:
        spread: in an order whose beginning is a sample of all.
        seconds: that it may take; None: as long as all calls need.
    """

    shapes: Shapes
    spread: bool = False
    seconds: float | None = None

    def left(self, session: Session) -> list[tuple[str, Training | Decoding]]:
        """Parts and shapes that a session has not measured."""
        every = measure.Wanted(self.shapes, ("forward", "backward", "decoding"), ()).rows()
        if self.spread:
            every = spread_out(every)
        return [(part, shape) for part, shape in every if not session.is_done(part, shape)]


def spread_out(every: Sequence[_Item]) -> list[_Item]:
    """In an order of which each beginning lies evenly in the whole: 0, 4, 2, 6, 1, 5, 3, 7 of eight."""
    digits = max(len(every) - 1, 1).bit_length()
    turned = (int(f"{number:0{digits}b}"[::-1], 2) for number in range(1 << digits))
    return [every[number] for number in turned if number < len(every)]


def go_on(
    session: Session, tuner: Tuner, wanted: Calls, progress: Progress, l2_bytes: int, device: str = "cuda",
    now: Callable[[], float] = time.monotonic, clock_of: Callable[[], str] | None = None,
) -> int:  # fmt: skip
    """Measures what a session has not; returns how many calls no time was left for. One is measured in any case. A call
    after which the clock had fallen, by the power limit or the heat of what ran before, is measured once more."""
    clock_of = clock_of or (lambda: state.of_torch().get("clocks.sm", ""))
    left = wanted.left(session)
    progress.start(len(left), wanted.seconds, title="tune", unit="call")
    start, problem = now(), None
    for number, (part, shape) in enumerate(left):
        began = now()
        if wanted.seconds is not None and number and began - start >= wanted.seconds:
            progress.close()
            return len(left) - number
        if problem is None or problem.shape != shape:
            problem = Problem(shape, device) if isinstance(shape, Training) else CacheProblem(shape, l2_bytes, device)
        try:
            rows, clock = tuner.rows(problem, part), clock_of()
        except Refused as error:
            session.refuse(part, shape, str(error))
            progress.done(f"{part}, {shape}", now() - began, "refused")
            continue
        if rows and 0 < _mhz(clock) < _FALLEN * max(map(_mhz, session.clocks), default=0):
            rows, clock = tuner.rows(problem, part), clock_of()
        session.add(part, shape, [{**row, "clock": clock} for row in rows], clock)
        progress.done(f"{part}, {shape}", now() - began, "measured")
    progress.close()
    return 0


def _mhz(clock: str) -> int:
    """Of "1980 MHz"."""
    number = clock.partition(" ")[0]
    return int(number) if number.isdecimal() else 0


def roof(timed: Callable[[Mapping[str, timing.Work]], Mapping[str, Sequence[float]]], side: int = 8192,
         device: str = "cuda") -> dict[str, float]:  # fmt: skip
    """What the device does at most, by PyTorch: a product of square matrices in bf16, and copied bytes."""
    import torch

    one = torch.randn(side, side, dtype=torch.bfloat16, device=device)
    other = torch.empty(side * side * 4, dtype=torch.uint8, device=device)
    source = torch.empty_like(other)
    times = timed({"product": lambda: one @ one, "copy": lambda: other.copy_(source)})
    took = {name: statistics.median(each) for name, each in times.items()}
    return {"tflops": round(2 * side**3 / took["product"] / 1e9, 1),
            "gbytes": round(2 * other.nbytes / took["copy"] / 1e6, 1)}  # fmt: skip
