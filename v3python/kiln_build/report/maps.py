"""Maps of a kernel's images: registers, shared memory, spills and sizes over functionals and configurations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kiln_build.pages import document
from kiln_build.pages.markup import Markup, drawing, element, joined
from kiln_recipe.console.tables import plural, quantity, span

_CELL = 22  # pixels; a cell holds the specializations side by side
_LETTER = 7.0  # width of a letter of the labels, about
_STEPS = 12  # shades: a map of ten thousand cells is twelve paths
_LABELLED = 600  # maps of more cells get no tooltips, which would be most of the page
_MISSING = "none"

# (fact, heading, format); the fact is also the class that gives the map its colour.
_MAPS: tuple[tuple[str, str, Callable[[int], str]], ...] = (
    ("registers", "Registers a thread", str),
    ("shared", "Shared memory of a block", quantity),
    ("spills", "Spilled bytes per thread", str),
    ("bytes", "Image size", quantity),
)


def highest_of(rows: Sequence[dict[str, Any]]) -> dict[str, int]:
    """The highest value of each fact, which all maps of a page are drawn against."""
    return {fact: max((row.get(fact) or 0 for row in rows), default=0) for fact, *_ in _MAPS}


def kernel(cells: list[dict[str, Any]], highest: dict[str, int], lacking: int) -> Markup:
    """The maps of a kernel on a target; `lacking` is how many combinations of its choices the build left out."""
    there = dict.fromkeys(row["functional"] for row in cells if row["image"] is not None)
    if not there:
        return element("p", f"None of its {plural(len(cells), 'variant')} has an image.")
    cells = [row for row in cells if row["functional"] in there]
    configurations = list(dict.fromkeys(row["configuration"] for row in cells))
    specializations = list(dict.fromkeys(row["specialization"] for row in cells))
    missing = sum(row["image"] is None for row in cells)
    said = (
        f"{plural(len(there), 'functional')} (rows), {plural(len(configurations), 'configuration')} (columns), in each "
        f"cell from left to right: {', '.join(specializations)}."
    )
    if missing:
        said += f" Grey: {plural(missing, 'variant')} without an image."
    if lacking:
        said += f" {plural(lacking, 'combination')} left out by the profile, the selection or the recipe."
    maps = []
    for fact, heading, form in _MAPS:
        values = [row[fact] for row in cells if row["image"] is not None]
        caption = f"{heading}: {span(values) if form is str else _span_bytes(values)}"
        drawn = _map(cells, (list(there), configurations, specializations), fact, highest[fact], form, caption)
        maps.append(element("figure", element("figcaption", caption), element("div", drawn, class_="wide")))
    names = [
        element("tr", element("td", number, class_="n"), element("td", element("code", name)))
        for number, name in enumerate(configurations, 1)
    ]
    listed = document.details("Configurations", element("div", element("table", joined(names)), class_="wide"))
    return joined([element("p", said), element("div", *maps, class_="maps"), listed])


def _map(
    cells: list[dict[str, Any]],
    axes: Sequence[list[str]],
    fact: str,
    highest: int,
    form: Callable[[int], str],
    caption: str,
) -> Markup:
    """One map. Cells of one shade are one path; a map that is not too large has tooltips besides."""
    functionals, configurations, specializations = ({name: n for n, name in enumerate(axis)} for axis in axes)
    left = max((len(name) for name in functionals), default=0) * _LETTER + 8
    part = _CELL / max(1, len(specializations))
    shades: dict[int, list[str]] = {}
    tips = []
    for row in cells:
        x = left + configurations[row["configuration"]] * _CELL + specializations[row["specialization"]] * part
        y = 18 + functionals[row["functional"]] * _CELL
        value = None if row["image"] is None else row[fact]
        x, width, height = round(x, 1), round(part - 1, 1), _CELL - 1
        shades.setdefault(_shade(value, highest), []).append(f"M{x:g} {y}h{width:g}v{height}h-{width:g}z")
        if len(cells) <= _LABELLED:
            text = f"{row['functional']} | {row['configuration']} | {row['specialization']}: "
            text += form(value) if value is not None else f"no image: {row['unavailable'] or 'not part of this build'}"
            box = element("rect", x=f"{x:g}", y=y, width=f"{width:g}", height=height, class_="tip")
            tips.append(element("g", element("title", text), box))
    labels = [
        element("text", name, x=f"{left - 8:g}", y=18 + n * _CELL + 15, text_anchor="end")
        for name, n in functionals.items()
    ]
    labels += [
        element("text", n + 1, x=f"{left + n * _CELL + _CELL / 2:g}", y=12, text_anchor="middle")
        for n in configurations.values()
    ]
    width, height = left + len(configurations) * _CELL + 4, 18 + len(functionals) * _CELL + 2
    paths = [_path(shade, "".join(pieces), fact) for shade, pieces in sorted(shades.items())]
    inside = joined([*paths, *labels, *tips])
    return drawing(inside, round(width), height, caption)


def _path(shade: int, pieces: str, fact: str) -> Markup:
    if shade < 0:
        return element("path", class_=_MISSING, d=pieces)
    if shade == 0:
        return element("path", class_="zero", d=pieces)
    return element("path", class_=fact, fill_opacity=f"{0.1 + 0.9 * shade / _STEPS:.2f}", d=pieces)


def _shade(value: int | None, highest: int) -> int:
    """From 0 of nothing to _STEPS of the release's highest value; anything but 0 shows. -1: there is no image."""
    if value is None:
        return -1
    return 0 if value == 0 or highest == 0 else max(1, round(_STEPS * value / highest))


def _span_bytes(values: Sequence[int]) -> str:
    if not values:
        return "-"
    low, high = min(values), max(values)
    return quantity(low) if low == high else f"{quantity(low)} to {quantity(high)}"
