"""Forecasts as a page: the picture, the figures, and what they were made of."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from kiln_build.foresight.costs import Costs
from kiln_build.foresight.picture import picture
from kiln_build.foresight.show import COLUMNS, Case, Subject, columns, heading, rows
from kiln_build.pages import document, tables
from kiln_build.pages.document import Part
from kiln_build.pages.markup import element

COMMAND = "kiln simulate"


def page(subject: Subject, cases: Sequence[Case], costs: Costs, seed: int, spot: float) -> Iterator[str]:
    """The page, in pieces."""
    shown = columns(cases)
    header = [COLUMNS[number] for number in shown]
    table = tables.table("Forecasts", header, [[row[n] for n in shown] for row in rows(cases)], right=header)
    said = [("seed", seed), ("workers lost in an hour", f"{100 * spot:g} %")]
    basis = [(name.replace("_", " "), f"{value:g}") for name, value in dataclasses.asdict(costs).items()]
    parts = [
        Part("Time by workers", [element("div", picture(subject, cases), class_="wide")]),
        Part("Forecasts", table),
        Part("Made of", [tables.facts([*said, *basis])]),
    ]
    return document.document(COMMAND, f"Forecast: {subject.name}", [element("p", heading(subject))], parts)
