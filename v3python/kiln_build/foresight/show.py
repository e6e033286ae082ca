"""Forecasts as lines, and for programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kiln_build.foresight.costs import Costs
from kiln_build.foresight.simulate import Forecast
from kiln_recipe.console.spelling import spell_seconds, spell_size
from kiln_recipe.console.tables import table_lines


@dataclass(frozen=True)
class Case:
    """What was simulated, and what came of it.

    Attributes:
        asked: workers.
        hit: share of the images that a cache has.
        price: of a core-hour; None: not asked for.
    """

    asked: int
    hit: float
    forecast: Forecast
    price: float | None = None

    @property
    def cost(self) -> float | None:
        return None if self.price is None else self.price * self.forecast.core_hours


@dataclass(frozen=True)
class Subject:
    """What is built.

    Attributes:
        name: "profile core for sm_90", or a matrix's.
        images: how many.
        core_seconds, longest: of their compiles, all together and of the longest.
        bases: how many are known from where, by Basis' value; empty of a described matrix.
        note: about that, for people.
    """

    name: str
    images: int
    core_seconds: float
    longest: float
    bases: Mapping[str, int]
    note: str


COLUMNS = ("WORKERS", "IN CACHE", "TIME", "COMPILING", "IDLE", "CORE-HOURS", "MOVED", "FAILED", "LOST", "COST")


def rows(cases: Sequence[Case]) -> list[list[str]]:
    """A line of a table for each; those of COLUMNS that have something to say."""
    found = []
    for case in cases:
        one = case.forecast
        cost = "" if case.cost is None else f"{case.cost:.2f}"
        found.append(
            [
                str(case.asked),
                f"{100 * case.hit:g} %",
                spell_seconds(one.makespan),
                spell_seconds(one.compile),
                f"{100 * one.idle:.1f} %",
                f"{one.core_hours:.2f}",
                spell_size(one.moved),
                str(one.failed),
                str(one.lost),
                cost,
            ]
        )
    return found


def columns(cases: Sequence[Case]) -> list[int]:
    """Which of COLUMNS say something."""
    empty = {
        "FAILED": not any(case.forecast.failed for case in cases),
        "LOST": not any(case.forecast.lost for case in cases),
        "COST": not any(case.price is not None for case in cases),
    }
    return [number for number, name in enumerate(COLUMNS) if not empty.get(name)]


def lines(subject: Subject, cases: Sequence[Case]) -> Iterator[str]:
    """For people."""
    yield heading(subject)
    yield ""
    shown = columns(cases)
    header = [COLUMNS[number] for number in shown]
    yield from table_lines(header, [[row[number] for number in shown] for row in rows(cases)], right=header)


def heading(subject: Subject) -> str:
    """What is built, in a sentence."""
    return (
        f"{subject.name}: {subject.images} images, {subject.core_seconds / 3600:.2f} core-hours of compiling"
        f"{f' ({subject.note})' if subject.note else ''}; the longest takes {spell_seconds(subject.longest)}"
    )


def document(subject: Subject, cases: Sequence[Case], costs: Costs, seed: int, spot: float) -> dict[str, Any]:
    """For programs."""
    return {
        "what": subject.name,
        "images": subject.images,
        "core_hours": round(subject.core_seconds / 3600, 4),
        "longest": round(subject.longest, 3),
        "expected_from": dict(subject.bases),
        "seed": seed,
        "spot": spot,
        "costs": dataclasses.asdict(costs),
        "forecasts": [
            {"workers_asked": case.asked, "cache_hit": case.hit}
            | case.forecast.document()
            | ({} if case.cost is None else {"cost": round(case.cost, 4)})
            for case in cases
        ],
    }
