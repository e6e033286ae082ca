"""Whether an output is right: its error against float64 is at most twice that of the same formula in the call's own
precision, plus 1e-5, or two units in the last place of fp32 at the output's scale if that is more: a log-sum-exp of 244
has units of 1.5e-5. Both the largest and the mean error, absolute and relative to the output's scale. What sums in
fp32 and on tensor cores cannot hold is allowed besides: score_share, weight_share."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

TIMES, PLUS, UNITS = 2.0, 1e-5, 2.0**-22
# Of what rows share nothing may be left in what they differ by. PyTorch's attention, computed in fp32, is at 0.002.
OF_SCALE = 0.01
# Below this an output has no scale: what is left of sums that cancel is no measure of anything.
NO_SCALE = 1e-3


@dataclass(frozen=True)
class Figures:
    """Errors of a kernel and of the reference in the call's precision; the scale, see Verdict.compare for noise; what
    is allowed besides."""

    largest: float
    mean: float
    own_largest: float
    own_mean: float
    scale: float
    noise: float
    besides: float = 0.0

    @property
    def allowance(self) -> float:
        if self.scale < 1e-9 * self.noise:
            return PLUS * max(1.0, self.noise)
        return max(PLUS * (self.scale if NO_SCALE < self.scale < 1 else 1.0), UNITS * self.scale) + self.besides

    def ratios(self) -> tuple[float, float]:
        """(error - allowance) / the reference's error, of the largest and of the mean: right if not above TIMES."""

        def one(error: float, limit: float) -> float:
            excess = error - self.allowance
            if excess <= 0:
                return 0.0
            return excess / limit if limit and not math.isnan(error) else math.inf

        return one(self.largest, self.own_largest), one(self.mean, self.own_mean)


def pooled(several: list[Figures]) -> Figures:
    def mean(values: list[float]) -> float:
        return sum(values) / len(values)

    def most(values: list[float]) -> float:
        return math.nan if any(map(math.isnan, values)) else max(values)

    return Figures(
        most([f.largest for f in several]), mean([f.mean for f in several]), most([f.own_largest for f in several]),
        mean([f.own_mean for f in several]), most([f.scale for f in several]), most([f.noise for f in several]),
        most([f.besides for f in several]),
    )  # fmt: skip


def score_share(width: int, dtype: torch.dtype) -> float:
    """What part of itself a large score may be off by, because of the sum over its columns alone. In fp32, added one
    after another: half a unit by the root of their number (Higham and Mary, 2019, doi:10.1137/18M1226312); the
    reference adds parts of the sum, and loses less. In 16 bits: tensor cores add 16 columns at once, and each time cut
    off what the sum has no bits for, a unit at most."""
    return math.sqrt(width) * 2.0**-24 if dtype == torch.float32 else -(-width // 16) * 2.0**-23


def weight_share(lse: torch.Tensor, dtype: torch.dtype) -> float:
    """What part of itself a weight may be off by, the exponential of a score less a log-sum-exp: in fp32 half a unit of
    each, which may be in the hundreds. In 16 bits 0: the reference's own scores are coarser.

    Args:
        lse: in float64, of all rows.
    """
    sizes = lse[lse.isfinite()].abs()
    return 2.0**-23 * sizes.max().item() if dtype == torch.float32 and sizes.numel() else 0.0


@dataclass
class Verdict:
    """What is wrong of a call, and how near to its limit each output came.

    The largest error of few numbers is a matter of luck, the kernel's as much as the reference's. So a call may be made
    again with other values (check.py), and its draws judged together: by the largest errors of all, the mean of means.

    Attributes:
        faults: in words, what is wrong whatever the errors are.
        figures: by output, of each draw.
        of_scale: by output, the error's root mean square beside the output's, of each draw.
        draws: how many there are.
    """

    faults: list[str] = field(default_factory=list)
    figures: dict[str, list[Figures]] = field(default_factory=dict)
    of_scale: dict[str, list[float]] = field(default_factory=dict)
    draws: int = 1

    def require(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self.faults.append(otherwise)

    def compare(
        self, name: str, got: torch.Tensor, exact: torch.Tensor, low: torch.Tensor, noise: float = 0.0,
        share: float = 0.0,
    ) -> None:  # fmt: skip
        """Measures one output.

        Args:
            got, exact, low: of the kernel, in float64, in the call's precision; of one shape.
            noise: what an error of 1e-5 is relative to where the exact output is 0 by cancellation, and PyTorch's,
                which then multiplies by exactly 1, too.
            share: of the output's scale, what is allowed besides.
        """
        if not exact.numel():
            return
        got, low = got.double(), low.double()
        # -inf is right where the definition has it too.
        difference = torch.where(got == exact, 0.0, (got - exact).abs())
        own = torch.where(low == exact, 0.0, (low - exact).abs())
        size = torch.where(exact.isinf(), 0.0, exact.abs())
        numbers = torch.stack([difference.max(), difference.mean(), own.max(), own.mean(), size.max()]).tolist()
        self.require(math.isfinite(numbers[2]), f"{name}: the reference itself is not finite")
        self.figures.setdefault(name, []).append(Figures(*numbers, noise, share * numbers[4]))

    def hold_to_scale(self, name: str, got: torch.Tensor, exact: torch.Tensor) -> None:
        """The error's root mean square is at most OF_SCALE of the output's, whatever that of the reference is. The rows
        of a head share what is rounded of them, so of few heads this is a matter of luck too."""
        error = torch.linalg.vector_norm(got.double() - exact) / torch.linalg.vector_norm(exact)
        self.of_scale.setdefault(name, []).append(error.item())

    def merge(self, other: Verdict) -> None:
        self.faults += other.faults
        self.draws += other.draws
        for name, figures in other.figures.items():
            self.figures.setdefault(name, []).extend(figures)
        for name, errors in other.of_scale.items():
            self.of_scale.setdefault(name, []).extend(errors)

    @property
    def ratios(self) -> dict[str, float]:
        return {name: max(pooled(figures).ratios()) for name, figures in self.figures.items()}

    @property
    def worst(self) -> tuple[float, str]:
        """The ratio of the output that came nearest to its limit, and its name."""
        return max(((ratio, name) for name, ratio in self.ratios.items()), default=(0.0, ""))

    def errors(self) -> list[str]:
        """In words, which errors are too large."""
        result = []
        for name, several in self.figures.items():
            f = pooled(several)
            for kind, ratio, error, own in zip(
                ("largest", "mean"), f.ratios(), (f.largest, f.mean), (f.own_largest, f.own_mean)
            ):
                if not ratio <= TIMES:
                    result.append(
                        f"{name}: the {kind} error is {error:.3g}, that of the reference in the same precision "
                        f"{own:.3g}, the scale {f.scale:.3g} ({self.draws} draws)"
                    )
        for name, several in self.of_scale.items():
            error = sum(several) / len(several)
            if not error <= OF_SCALE:
                result.append(f"{name}: the error is {error:.3g} of its scale, above {OF_SCALE} ({self.draws} draws)")
        return result

    def wrong(self) -> list[str]:
        return self.faults + self.errors()
