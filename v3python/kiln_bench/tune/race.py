"""Times of many candidates: all are timed shortly, and those that are far behind others of their implementation drop
out before the longer turns."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kiln_bench.report import spread
from kiln_bench.timing import Work

# sides, rounds, milliseconds of a turn: milliseconds of a call in each round
Timed = Callable[[Mapping[str, Work], int, float], Mapping[str, Sequence[float]]]


@dataclass(frozen=True)
class Stage:
    """A part of the race. `keep`: how many times as long as the fastest of its implementation a candidate may take to
    stay."""

    rounds: int
    turn_ms: float
    keep: float


STAGES = (Stage(2, 2.0, 1.5), Stage(3, 5.0, 1.1), Stage(7, 10.0, math.inf))


@dataclass(frozen=True)
class Figure:
    """A candidate's time.

    Attributes:
        spread: of the rounds, as report.spread.
        rounds: of the last stage that it took part in.
    """

    microseconds: float
    spread: float
    rounds: int


def race(
    works: Mapping[str, Work], timed: Timed, kernels: Mapping[str, str], stages: Sequence[Stage] = STAGES
) -> dict[str, Figure]:
    """A figure for each candidate: of the stage in which it dropped out, or of the last. One that is left alone has
    won. The fastest of each implementation stays to the end, however far behind another's it is: rules are made for
    all implementations, and those of a slow one serve the calls that the fast one refuses.

    Args:
        kernels: the implementation of each candidate.
    """
    left, figures = dict(works), dict[str, Figure]()
    for stage in stages:
        if not left or (figures and len(left) == 1):
            break
        for name, times in timed(left, stage.rounds, stage.turn_ms).items():
            figures[name] = Figure(statistics.median(times) * 1000, spread(times), stage.rounds)
        best: dict[str, float] = {}
        for name in left:
            best[kernels[name]] = min(best.get(kernels[name], math.inf), figures[name].microseconds)
        left = {n: work for n, work in left.items() if figures[n].microseconds <= best[kernels[n]] * stage.keep}
    return figures
