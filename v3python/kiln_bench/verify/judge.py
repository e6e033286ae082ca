"""Whether an output is right: its error against float64 is at most twice that of the same formula in the call's own
precision, plus 1e-5 (of the output's scale, where that is between 1e-3 and 1), or two units in the last place of fp32
at the output's scale if that is more. Both the largest and the mean error. The rule of tests/gpu, whose random calls
also have scores so large that it allows what their sums lose, and takes up to 25 draws.

The largest error of few numbers is a matter of luck, the kernel's as much as the reference's. So a call that fails by
errors alone is made again with other values, up to five times, and its draws are judged together: by the largest errors
of all, and the mean of means.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
TIMES, PLUS, UNITS, DRAWS = 2.0, 1e-5, 2.0**-22, 5
NO_SCALE = 1e-3  # below it an output has no scale: what is left of sums that cancel is no measure of anything
RULE = (
    "error against float64 at most 2 times that of the same formula in the call's precision, plus 1e-5 of the scale "
    "or 2 units of fp32; largest and mean; up to 5 draws together"
)


@dataclass(frozen=True)
class Figures:
    """Errors of a kernel and of the reference in the call's precision.

    Attributes:
        scale: the largest of the exact output.
        noise: what an error of 1e-5 is relative to where the exact output is 0 by cancellation.
    """

    largest: float
    mean: float
    own_largest: float
    own_mean: float
    scale: float
    noise: float

    @property
    def allowance(self) -> float:
        if self.scale < 1e-9 * self.noise:
            return PLUS * max(1.0, self.noise)
        return max(PLUS * (self.scale if NO_SCALE < self.scale < 1 else 1.0), UNITS * self.scale)

    def ratios(self) -> tuple[float, float]:
        """(error - allowance) / the reference's error, of the largest and of the mean: right if not above TIMES."""

        def one(error: float, limit: float) -> float:
            if math.isnan(error):
                return math.inf
            excess = error - self.allowance
            return 0.0 if excess <= 0 else excess / limit if limit else math.inf

        return one(self.largest, self.own_largest), one(self.mean, self.own_mean)


def measured(got: Array, exact: Array, low: Array, noise: float = 0.0) -> Figures:
    """Of one output: the kernel's, that in float64, that in the call's precision."""
    with np.errstate(invalid="ignore"):  # minus infinity is right where the definition has it too
        difference = np.where(got == exact, 0.0, np.abs(got - exact))
        own = np.where(low == exact, 0.0, np.abs(low - exact))
    size = np.where(np.isinf(exact), 0.0, np.abs(exact))
    errors = (difference.max(), difference.mean(), own.max(), own.mean())
    largest, mean, own_largest, own_mean = map(float, errors)
    return Figures(largest, mean, own_largest, own_mean, float(size.max()), noise)


def pooled(several: Sequence[Figures]) -> Figures:
    """Of several draws."""

    def most(values: list[float]) -> float:
        return math.nan if any(map(math.isnan, values)) else max(values)

    def mean(values: list[float]) -> float:
        return sum(values) / len(values)

    return Figures(
        most([f.largest for f in several]), mean([f.mean for f in several]), most([f.own_largest for f in several]),
        mean([f.own_mean for f in several]), most([f.scale for f in several]), most([f.noise for f in several]),
    )  # fmt: skip


@dataclass
class Verdict:
    """What is wrong of a call, and how near to its limit each output came.

    Attributes:
        faults: in words, what is wrong whatever the errors are.
        figures: by output, of each draw.
    """

    faults: list[str] = field(default_factory=list)
    figures: dict[str, list[Figures]] = field(default_factory=dict)

    def compare(self, name: str, got: Array, exact: Array, low: Array, noise: float = 0.0) -> None:
        if exact.size:
            self.figures.setdefault(name, []).append(measured(got, exact, low, noise))

    def merge(self, other: Verdict) -> None:
        self.faults += other.faults
        for name, figures in other.figures.items():
            self.figures.setdefault(name, []).extend(figures)

    @property
    def shares(self) -> Mapping[str, float]:
        """By output, the part of its limit that its errors reach: right if not above 1."""
        return {name: max(pooled(figures).ratios()) / TIMES for name, figures in self.figures.items()}

    @property
    def draws(self) -> int:
        return max(map(len, self.figures.values()), default=1)

    def wrong(self) -> list[str]:
        """In words; nothing if all is right."""
        found = list(self.faults)
        for name, several in self.figures.items():
            f = pooled(several)
            if not max(f.ratios()) <= TIMES:
                found.append(
                    f"{name}: errors of {f.largest:.3g} at most and {f.mean:.3g} in the mean, those of the formula in "
                    f"the same precision {f.own_largest:.3g} and {f.own_mean:.3g}, the scale {f.scale:.3g} "
                    f"({self.draws} draws)"
                )
        return found
