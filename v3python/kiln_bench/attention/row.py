"""One row of the results: every side's call of one shape, checked, then timed in turns."""

from __future__ import annotations

import math
import re
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kiln_bench import shapes, timing
from kiln_bench.attention import problem as problems
from kiln_bench.attention import reference
from kiln_bench.attention.problem import CacheProblem, Prepared, Problem, Side
from kiln_bench.release.library import Refused
from kiln_recipe.errors import EnvironmentProblem
from kiln_recipe.plain_json import nulled

if TYPE_CHECKING:
    import torch

    from kiln_bench.shapes import Decoding, Training

COPY = "copy"  # of memory, beside decoding
_COPIED = 1 << 30
_LONGEST_REASON = 300
_MUCH = 4.0  # times as long as the fastest
# What libraries raise where they refuse; none of them has a class for that alone.
_REFUSALS = (Refused, RuntimeError, ValueError, TypeError, AssertionError, AttributeError, KeyError, OSError)


class DeviceFailed(EnvironmentProblem):
    """The GPU cannot be used any more in this process."""


@dataclass
class Row:
    """What was found.

    Attributes:
        milliseconds: of one call in each round, by side.
        refused: why there is no figure, by side.
        wrong: how its result is wrong, by side; it has no figure either.
        errors: of the results beside fp32, by side.
        images: what releases ran, by side.
        calls: of what, by side (release/called.py).
        more: numbers of the row alone.
    """

    part: str
    shape: Training | Decoding
    milliseconds: dict[str, list[float]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    images: dict[str, list[str]] = field(default_factory=dict)
    calls: dict[str, str] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return {
            "part": self.part, "shape": shapes.as_row(self.shape), "milliseconds": self.milliseconds,
            "refused": self.refused, "wrong": self.wrong, "errors": nulled(self.errors), "images": self.images,
            "calls": self.calls, **self.more,
        }  # fmt: skip


class Rows:
    """Makes rows.

    Args:
        sides: whose order is that of the tables.
        rounds: of turns; the median counts.
        measured: times works, as timing.measured does.
        while_busy: is called while the device works on a row.
        slowest_ms: of a call; gives None where it may take as long as it wants.
        now: seconds of the host's clock.
    """

    def __init__(
        self, sides: Sequence[Side], rounds: int = timing.ROUNDS, device: str = "cuda",
        measured: Callable[..., timing.Times] = timing.measured, while_busy: Callable[[], None] | None = None,
        slowest_ms: Callable[[], float | None] = lambda: None, now: Callable[[], float] = time.perf_counter,
    ) -> None:  # fmt: skip
        self._sides, self._rounds, self._device = sides, rounds, device
        self._measured, self._while_busy, self._slowest_ms, self._now = measured, while_busy, slowest_ms, now
        self._copied: list[torch.Tensor] = []

    def training(self, problem: Problem, part: str, turn_ms: Callable[[int], float]) -> Row:
        """A row of forward or backward. turn_ms(sides): how long each may work in a round."""
        row = Row(part, problem.shape)
        prepared = self._prepare(row, lambda side: side.training(problem, part))

        def rest() -> None:
            self._check(row, prepared, lambda _: problem.samples(part))
            self._time(row, {name: one.run for name, one in prepared.items()}, turn_ms)

        return self._whole(row, rest)

    def decoding(self, problem: CacheProblem, turn_ms: Callable[[int], float]) -> Row:
        """A row of decoding, with a copy of memory in the same rounds."""
        row = Row("decoding", problem.shape)
        prepared = self._prepare(row, lambda side: side.decoding(problem))
        row.more["caches"] = len(problem.caches)

        def rest() -> None:
            self._check(row, prepared, problem.samples)
            works: dict[str, timing.Work] = {name: one.run for name, one in prepared.items()}
            if works and self._device == "cuda":
                source, target = self._copy()
                works[COPY] = lambda: target.copy_(source)
                row.more["copied_bytes"] = 2 * source.numel()
            self._time(row, works, turn_ms, len(problem.caches))

        return self._whole(row, rest)

    def _whole(self, row: Row, rest: Callable[[], None]) -> Row:
        """The row once the rest is done; without figures if that fails, if memory runs out, say."""
        try:
            rest()
        except RuntimeError as error:
            self._survive("a side", row, error)
            row.milliseconds, row.more["skipped"] = {}, reason(error, [])
        return row

    def _copy(self) -> list[torch.Tensor]:
        import torch

        if not self._copied:
            draw = torch.Generator(self._device).manual_seed(problems.SEED)
            source = torch.randint(0, 256, (_COPIED,), dtype=torch.uint8, device=self._device, generator=draw)
            self._copied = [source, torch.empty_like(source)]
        return self._copied

    def _prepare(self, row: Row, make: Callable[[Side], Prepared]) -> dict[str, Prepared]:
        """Those that do not refuse; what they say besides, as PyTorch does in warnings, is why they do."""
        found, fastest = {}, math.inf
        for side in self._sides:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                try:
                    prepared = make(side)
                    for work in prepared.works:
                        work()
                    self._wait()
                    fastest = min(fastest, self._refuse_slow(prepared, fastest))
                except _REFUSALS as error:
                    row.refused[side.name] = reason(error, [str(warning.message) for warning in said])
                    self._survive(side.label, row, error)
                    continue
                except Exception as error:  # noqa: BLE001 - of libraries that are not ours, in classes of their own
                    row.refused[side.name] = f"{type(error).__name__}: {reason(error, [])}"
                    self._survive(side.label, row, error)
                    continue
            found[side.name] = prepared
            if prepared.images:
                row.images[side.name] = prepared.images
            if prepared.call:
                row.calls[side.name] = prepared.call
        return found

    def _check(self, row: Row, prepared: dict[str, Prepared], samples: Callable[[int], list]) -> None:
        """Takes those whose results are wrong out of `prepared`."""
        if not prepared:
            return
        count = max(len(one.works) for one in prepared.values())
        for number in dict.fromkeys((0, count - 1)):
            expected = samples(number)
            for name, one in list(prepared.items()):
                one.works[number]()
                off = problems.wrongness(one.results(), expected)
                row.errors[name] = max(off, row.errors.get(name, 0.0)) if off == off else off
                if not off <= reference.LARGEST_ERROR:
                    row.wrong[name] = f"its result differs from fp32's by {off:.2g}, so it was not timed"
                    del prepared[name]
        for name, sentence in disagreeing(prepared, {side.name: side.label for side in self._sides}).items():
            row.wrong[name] = sentence
            del prepared[name]

    def _time(
        self, row: Row, works: Mapping[str, timing.Work], turn_ms: Callable[[int], float], cycle: int = 1
    ) -> None:
        row.more |= {"host_ahead": True, "host_bound": [], "graphs": False}
        if works:
            times = self._measured(works, self._rounds, turn_ms(len(works)), self._while_busy, cycle)
            row.milliseconds = times.milliseconds
            row.more |= {"host_ahead": times.host_ahead, "host_bound": [*times.host_bound], "graphs": times.graphs}
            if times.not_captured:
                row.more["not_captured"] = {name: shortened(why) for name, why in times.not_captured.items()}

    def _refuse_slow(self, prepared: Prepared, fastest: float) -> float:
        """About how many milliseconds a call takes; one that would take most of a short budget is refused, if others
        are much faster."""
        if (limit := self._slowest_ms()) is None:
            return math.inf
        began = self._now()
        prepared.works[0]()
        self._wait()
        took = (self._now() - began) * 1000
        if took > max(limit, _MUCH * fastest):
            raise Refused(0, "one call takes too long for this --budget")
        return took

    def _wait(self) -> None:
        if self._device == "cuda":
            import torch

            torch.cuda.synchronize()

    def _survive(self, side: str, row: Row, error: Exception) -> None:
        """A kernel's fault ends all work of this process on the device.

        Raises:
            DeviceFailed: it did.
        """
        try:
            self._wait()
        except RuntimeError:
            raise DeviceFailed(
                f"the GPU failed in {side}, {row.part}, {row.shape} ({reason(error, [])}); what was measured "
                "before it is kept; leave that side out by --sides, or that call by --shapes"
            ) from error


def disagreeing(prepared: Mapping[str, Prepared], labels: Mapping[str, str]) -> dict[str, str]:
    """Sides whose whole results differ from the others', with how: the samples are a part of each result alone.

    All are compared with one of them, the first with which most agree.
    """
    found: dict[str, str] = {}
    for anchor in prepared:
        prepared[anchor].works[0]()
        right = {name: tensor.clone() for name, tensor in prepared[anchor].results().items()}
        found = {}
        for name in prepared.keys() - {anchor}:
            prepared[name].works[0]()
            off = reference.worst(prepared[name].results(), right)
            if not off <= reference.LARGEST_ERROR:
                found[name] = f"its result differs from that of {labels[anchor]} by {off:.2g}, so it was not timed"
        if 2 * len(found) < max(2, len(prepared)):
            break
    return found


def reason(error: Exception, said: Sequence[str]) -> str:
    """Why something was refused, in one line: what it raised, and where that says nothing, what it warned of."""
    text = " ".join(str(error).split()) or type(error).__name__
    if "No available kernel" in text and said:
        text = "; ".join(dict.fromkeys(" ".join(line.split("(Triggered")[0].split()) for line in said))
    return shortened(text)


def shortened(text: str) -> str:
    """A reason without what would make one of its own for each call, and not too long."""
    text = re.sub(r"\[\d+(, \d+)*\]", "[...]", text)  # sizes
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]} ..."
