"""What is reported: a row for each loop of an image, and what is faster or slower than in another release."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kiln_build.amd_model import architectures
from kiln_build.amd_model.figures import ImageFigures, LoopFigures
from kiln_build.amd_model.images import Image
from kiln_build.amd_model.products import needed_operations
from kiln_build.artifacts import reader

_SHOWN_WAITS = 2
_LEAST_WAIT = 0.05  # part of the waves' time


@dataclass(frozen=True)
class Row:
    """A loop of an image.

    Attributes:
        name: "flash.attn_fwd/attn_fwd dtype=bf16 ...", the first of the image's variants; of a code object its digest.
        variants: how many have the image.
        number: of the loop in the image, 0 for the main one.
        needed: clocks of the matrix unit; see LoopFigures.needed.
        shares: of the matrix peak by the latency of memory; {} of loops without matrix instructions.
        bound: the share if the unit that is busy longest always were.
    """

    target: str
    kernel: str
    functional: str
    configuration: str
    specialization: str
    image: str
    variants: int
    registers: int
    waves: float
    number: int
    figures: LoopFigures
    needed: float
    shares: dict[int, float]
    bound: float | None

    @property
    def share(self) -> float | None:
        """At the usual latency."""
        return self.shares.get(architectures.by_name(self.target).usual_latency)

    @property
    def name(self) -> str:
        parts = (self.kernel, self.functional, self.configuration, self.specialization)
        return " ".join(filter(None, parts)) or self.image[:12]

    @property
    def waits(self) -> str:
        """What the waves wait for most: "LDS 28 %, vector unit 16 %"."""
        most = list(self.figures.waits.items())[:_SHOWN_WAITS]
        return ", ".join(f"{reason} {part:.0%}".replace("%", " %") for reason, part in most if part >= _LEAST_WAIT)


def rows_of(images: Sequence[Image], figures: Sequence[ImageFigures], needed: int | None = None) -> list[Row]:
    """A row for each loop.

    Args:
        needed: of code objects, floating-point operations that a block needs in an iteration of the main loop.
    """
    found = []
    for image, its in zip(images, figures):
        first: Mapping[str, Any] = image.rows[0] if image.rows else {}
        operations = needed_operations(first["kernel"], reader.settings_of(dict(first))) if first else needed
        architecture = architectures.by_name(image.target)
        for number, loop in enumerate(its.loops):
            clocks = loop.needed(operations, its.warps)
            shares = {latency: loop.share(clocks, latency) for latency in loop.clocks}
            found.append(
                Row(
                    target=image.target,
                    **{name: first.get(name, "") for name in ("kernel", "functional", "configuration")},
                    specialization=first.get("specialization", ""),
                    image=image.digest,
                    variants=len(image.rows),
                    registers=image.facts.registers,
                    waves=its.waves,
                    number=number,
                    figures=loop,
                    needed=clocks,
                    shares={latency: share for latency, share in shares.items() if share is not None},
                    bound=loop.bound(clocks, architecture),
                )
            )
    return found


def document(row: Row) -> dict[str, Any]:
    """A row as plain data; times are clocks of a SIMD for an iteration of one wave."""
    loop = asdict(row.figures)
    names = ("target", "kernel", "functional", "configuration", "specialization")
    counts = ("image", "variants", "registers", "waves")
    return {
        **{name: getattr(row, name) for name in (*names, *counts)},
        "loop": row.number,
        "matrix_needed": round(row.needed, 1),
        "matrix_issued": loop.pop("matrix"),
        "share": row.share,
        "shares": row.shares,
        "bound": row.bound,
        **{name: value for name, value in loop.items() if name != "matrix_at_peak"},
    }


@dataclass(frozen=True)
class Change:
    """A combination of choices in two releases: the share of the main loop of its best image in each."""

    target: str
    name: str
    before: float
    after: float

    @property
    def ratio(self) -> float:
        return self.after / self.before


def compare(before: Iterable[Row], after: Iterable[Row]) -> list[Change]:
    """What changed, in the order of `after`, wherever both have a share: configurations may be others, so that the best
    of each are compared. Two code objects by themselves are compared whatever they are."""
    old, new = _best(before), _best(after)
    return [Change(place[0], " ".join(filter(None, place[1:])), old[place], share)
            for place, share in new.items() if place in old]  # fmt: skip


def _best(rows: Iterable[Row]) -> dict[tuple[str, ...], float]:
    found: dict[tuple[str, ...], float] = {}
    for row in rows:
        if row.number == 0 and row.share is not None:
            kernel = row.kernel.partition("/")[2].partition(".")[0]
            place = (row.target, kernel, row.functional, row.specialization)
            found[place] = max(found.get(place, 0.0), row.share)
    return found


def mean_ratio(changes: Sequence[Change]) -> float:
    """The geometric mean of their ratios."""
    return math.exp(sum(math.log(one.ratio) for one in changes) / len(changes))
