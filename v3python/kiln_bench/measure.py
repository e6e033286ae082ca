"""The order of a run: which rows are measured, how long each may take, what is kept of each."""

from __future__ import annotations

import contextlib
import gc
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from kiln_bench import capture, host, state, timing
from kiln_bench.attention import peers
from kiln_bench.attention.kiln import Kiln
from kiln_bench.attention.problem import CacheProblem, Problem, Side
from kiln_bench.attention.row import Row, Rows
from kiln_bench.release import headers
from kiln_bench.release.library import Libraries, Refused
from kiln_bench.shapes import Decoding, Shapes, Training
from kiln_recipe.errors import EnvironmentProblem, NotServed

if TYPE_CHECKING:
    from kiln_bench.release.places import Place
    from kiln_recipe.console.progress import Progress

Keep = Callable[[dict[str, Any]], None]
MADE_BY = "kiln bench"
FORMAT = 1
_BETWEEN_LOOKS = 1.0  # seconds
_SHARE_OF_MEMORY = 0.9  # that a row's tensors may take of what is free


@dataclass(frozen=True)
class Wanted:
    """What a run is asked for.

    Attributes:
        parts: of shapes.PARTS.
        sides: names of peers.NAMES.
        seconds: for all rows; None: as long as they want.
    """

    shapes: Shapes
    parts: Sequence[str]
    sides: Sequence[str]
    rounds: int = timing.ROUNDS
    seconds: float | None = None

    def rows(self) -> list[tuple[str, Training | Decoding]]:
        """Parts and shapes: forward and backward of a shape one after the other, since they share tensors; training and
        decoding by turns, so that a short budget leaves something of both."""
        found: list[tuple[str, Training | Decoding]] = []
        for shape in dict.fromkeys((*self.shapes.forward, *self.shapes.backward)):
            for part in ("forward", "backward"):
                if part in self.parts and shape in getattr(self.shapes, part):
                    found.append((part, shape))
        decoding = [("decoding", shape) for shape in self.shapes.decoding if "decoding" in self.parts]
        return [*_merged(found, decoding)]


def _merged(one: Sequence[Any], other: Sequence[Any]) -> Iterator[Any]:
    """The one's rows, those of a shape together, and the other's, each in its order and at an even pace."""
    groups = [[*rows] for _, rows in itertools.groupby(one, lambda row: row[1])]
    paced = [((n + 1) / len(groups), 0, rows) for n, rows in enumerate(groups)]
    paced += [((n + 1) / len(other), 1, [row]) for n, row in enumerate(other)]
    for _, _, rows in sorted(paced, key=lambda entry: entry[:2]):
        yield from rows


def check_device(command: str) -> None:
    """
    Args:
        command: which needs it, "kiln bench".

    Raises:
        EnvironmentProblem: there is no PyTorch, or no GPU that it can use.
    """
    try:
        import torch
    except ImportError as error:
        raise EnvironmentProblem(
            f"PyTorch is not installed in this Python, {sys.executable} ({error}), and `{command}` measures with it; "
            "pip install torch there, or start the command in a Python that has it (./kiln: KILN_PYTHON=that/python)"
        ) from error
    if not torch.cuda.is_available():
        built = "for ROCm" if torch.version.hip else "for CUDA" if torch.version.cuda else "without a GPU"
        raise EnvironmentProblem(
            f"PyTorch {torch.__version__}, built {built}, finds no GPU; `{command}` needs one and its driver"
        )


@contextlib.contextmanager
def _releases(places: Sequence[Place], vendor: str) -> Iterator[tuple[list[Side], list[dict[str, Any]], str]]:
    """Each release as a side, what it is, and the GPU's target.

    Raises:
        NotServed: one has no images for the GPU.
    """
    import torch

    with contextlib.ExitStack() as stack:
        sides: list[Side] = []
        facts, target = [], ""
        for number, place in enumerate(places):
            try:
                libraries = stack.enter_context(Libraries(place.libraries, headers.read(place.headers), number, vendor))
                devices = [row for row in libraries.devices() if row["vendor"] == libraries.vendor]
            except Refused as error:
                raise EnvironmentProblem(f"{place.name} cannot use the GPU's driver: {error}") from error
            if len(devices) <= (ordinal := torch.cuda.current_device()):
                raise EnvironmentProblem(f"{place.name} finds {len(devices)} GPUs, and PyTorch uses number {ordinal}")
            device, target = devices[ordinal], devices[ordinal]["target"]
            if device["refusal"]:
                raise NotServed(f"{place.name} cannot run on this GPU, {device['name']}: {device['refusal']}")
            name = "kiln" if not number else f"kiln-{number + 1}"
            sides.append(Kiln(name, "Kiln" if not number else f"Kiln {number + 1}", libraries))
            facts.append({
                "side": name, "release": place.name, "version": libraries.version, "target": target,
                "pack": place.pack(target) or _earlier_pack(place, target),
            })  # fmt: skip
        yield sides, facts, target


def _earlier_pack(place: Place, target: str) -> dict[str, str] | None:
    """The pack of an earlier GPU of NVIDIA's with the same major number, whose images run here too; the latest."""
    minors = range(int(target[-1]) - 1, -1, -1) if target.startswith("sm_") else ()
    return next(filter(None, (place.pack(f"{target[:-1]}{minor}") for minor in minors)), None)


def run(
    wanted: Wanted, places: Sequence[Place], progress: Progress, keep: Keep, device: str = "cuda"
) -> dict[str, Any]:
    """Measures. keep(results) is called after each row: what was measured outlives a device that fails.

    Args:
        device: where the tensors are.

    Raises:
        EnvironmentProblem: there is no GPU.
        NotServed: a release has no images for it.
    """
    check_device(MADE_BY)
    import torch

    vendor = "amd" if torch.version.hip else "nvidia"
    rows = wanted.rows()
    hosts = list(places) if "host" in wanted.parts else []
    with capture.own_stream(device), _releases(places, vendor) as (ours, facts, target):
        others, absent = peers.there(list(wanted.sides))
        sides = [*ours, *others]
        results: dict[str, Any] = {
            "made_by": MADE_BY, "format": FORMAT, "about": about(wanted, facts, target),
            "sides": {side.name: side.label for side in sides}, "absent": absent, "clocks": [], "rows": [],
        }  # fmt: skip

        looked = 0.0

        def look() -> None:
            nonlocal looked
            if time.monotonic() - looked > _BETWEEN_LOOKS and (clock := state.of_torch().get("clocks.sm")):
                results["clocks"].append(clock)
                looked = time.monotonic()

        budget = timing.Budget(wanted.seconds, len(rows) + len(hosts))
        makes = Rows(sides, wanted.rounds, device, while_busy=look, slowest_ms=budget.slowest_ms)
        progress.start(len(rows) + len(hosts), wanted.seconds, title="bench", unit="row")

        def done(row: dict[str, Any], title: str, began: float) -> None:
            results["rows"].append(row | {"seconds": round(time.monotonic() - began, 3)})
            budget.row_done()
            keep(results)
            outcome = "skipped" if row.get("skipped") else "wrong" if row["wrong"] else "measured"
            progress.done(title, time.monotonic() - began, outcome, remaining=budget.remaining)

        for place, fact in zip(hosts, facts):  # first: while the GPU is idle, so is the host
            began = time.monotonic()
            done(host.row(place, fact["side"], wanted.seconds), f"host, {place.name}", began)
        for row, title, began in _rows(rows, makes, budget, wanted.rounds, device):
            done(row, title, began)
        progress.close()
        return results


def _rows(
    rows: Sequence[tuple[str, Training | Decoding]], makes: Rows, budget: timing.Budget, rounds: int, device: str
) -> Iterator[tuple[dict[str, Any], str, float]]:
    """Each row, its title and when it began."""
    import torch

    problem: Problem | CacheProblem | None = None
    for part, shape in rows:
        began = time.monotonic()
        if problem is None or problem.shape != shape:
            problem = None
        if skipped := _why_skipped(shape, budget, problem is None):
            yield Row(part, shape, more={"skipped": skipped}).as_dict(), f"{part}, {shape}", began
            continue

        def turn_ms(sides: int) -> float:
            return budget.turn_ms(sides, rounds)

        try:
            if isinstance(shape, Training):
                problem = problem if isinstance(problem, Problem) else Problem(shape, device)
                row = makes.training(problem, part, turn_ms)
            else:
                problem = CacheProblem(shape, torch.cuda.get_device_properties().L2_cache_size, device)
                row = makes.decoding(problem, turn_ms)
        except torch.OutOfMemoryError:
            problem, row = None, Row(part, shape, more={"skipped": "the GPU's memory does not hold its tensors"})
        yield row.as_dict(), f"{part}, {shape}", began


def _why_skipped(shape: Training | Decoding, budget: timing.Budget, is_new: bool) -> str:
    """ "" if there is time and, for tensors that are not there yet, memory."""
    import torch

    if budget.is_used_up:
        return "the budget is used up"
    for _ in range(2 if is_new else 0):
        free = torch.cuda.mem_get_info()[0] * _SHARE_OF_MEMORY
        if shape.bytes <= free:
            return ""
        gc.collect()
        torch.cuda.empty_cache()
    return f"its tensors take about {shape.bytes / 1e9:.1f} GB, more than is free" if is_new else ""


def about(wanted: Wanted, releases: list[dict[str, Any]], target: str) -> dict[str, Any]:
    """What a run says of itself: where, when, with what."""
    import torch

    properties = torch.cuda.get_device_properties()
    now = state.of_torch()
    cudnn = torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"), "gpu": properties.name, "target": target,
        "driver": now.get("driver_version", ""), "clock_limit": now.get("clocks.max.sm", ""),
        "power_limit": now.get("power.limit", ""), "multiprocessors": properties.multi_processor_count,
        "torch": torch.__version__, "cudnn": cudnn and str(cudnn), "packages": peers.versions(),
        "releases": releases, "shapes": wanted.shapes.name, "rounds": wanted.rounds, "seconds": wanted.seconds,
    }  # fmt: skip
