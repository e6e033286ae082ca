"""For each kernel of an operation, and each combination of its choices, what serves it on each target: an image of its
own, a wider one, or none, and then why not."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from kiln_build.artifacts.reader import names_of
from kiln_build.difference.combinations import Served
from kiln_build.difference.side import Side
from kiln_recipe.selection import values_of

OWN, WIDER, NONE = SORTS = ("own", "wider", "none")
_MOST = 20_000  # combinations of a kernel: more than any release has; what says more is not believed


@dataclass(frozen=True)
class Answer:
    """What serves a combination on a target.

    Attributes:
        sort: OWN, WIDER or NONE.
        by: OWN: the implementations with an image of it, "hopper, general", "" of a kernel with one alone; WIDER: what
            stands in for what was asked for, "head_dim=64"; NONE: why there is none.
    """

    sort: str
    by: str


@dataclass(frozen=True)
class Line:
    """Combinations that are served alike: all those of these values, a choice each; and the answer by target."""

    values: tuple[tuple[str, ...], ...]
    answers: tuple[Answer, ...]


@dataclass
class Kernel:
    """A kernel of an operation, whichever implementation of it runs.

    Attributes:
        name: "flash.attn_fwd/attn_fwd".
        choices: names of what a combination is made of.
        counts: by target how many combinations are OWN, WIDER and NONE.
        lines: no two are about the same combination.
    """

    name: str
    choices: tuple[str, ...]
    counts: dict[str, dict[str, int]]
    lines: list[Line] = field(default_factory=list)


def of(side: Side) -> list[Kernel]:
    """The coverage of a release, kernels in the order of its tables."""
    served, found = Served(side), []
    for name, (implementations, axes) in _kernels(side).items():
        every = product(*axes.values()) if math.prod(map(len, axes.values())) <= _MOST else ()
        answers: dict[tuple[str, ...], tuple[Answer, ...]] = {}
        counts = {target: dict.fromkeys(SORTS, 0) for target in side.targets}
        for combination in every:
            choices = dict(zip(axes, combination))
            row = tuple(_answer(served, target, implementations, choices) for target in side.targets)
            for target, answer in zip(side.targets, row):
                counts[target][answer.sort] += 1
            answers[combination] = row
        lines = [Line(values, row) for values, row in _products(answers)]
        found.append(Kernel(name, tuple(axes), counts, lines))
    return found


def _kernels(side: Side) -> dict[str, tuple[list[str], dict[str, list[str]]]]:
    """By "flash.attn_fwd/attn_fwd" the kernels that implement it, and the values of each choice: by the libraries'
    tables, and where these are not there by the images."""
    found: dict[str, tuple[list[str], dict[str, list[str]]]] = {}

    def add(kernel: str, axes: Mapping[str, Sequence[str]]) -> None:
        implementations, known = found.setdefault(kernel.partition(".")[0] + _step(kernel), ([], {}))
        if kernel not in implementations:
            implementations.append(kernel)
        for name, values in axes.items():
            there = known.setdefault(name, [])
            there += [value for value in values if value not in there]

    for family in side.families.values():
        for table in family.tables:
            add(f"{family.name}.{table.kernel}", {one.name: one.spellings for one in table.choices})
    known = {names_of(kernel)["family"] for implementations, _ in found.values() for kernel in implementations}
    for row in side.rows:
        if names_of(row["kernel"])["family"] not in known:
            add(row["kernel"], {name: [value] for name, value in values_of(row["functional"]).items()})
    return found


def _step(kernel: str) -> str:
    """ ".attn_fwd/attn_fwd" of "flash.attn_fwd/attn_fwd.hopper"."""
    _, dot, rest = kernel.partition(".")
    return dot + rest.partition(".")[0]


def _answer(served: Served, target: str, implementations: Sequence[str], choices: Mapping[str, str]) -> Answer:
    own = [kernel for kernel in implementations if served.has(target, kernel, choices)]
    if own:
        names = [kernel.partition("/")[2].partition(".")[2] for kernel in own]
        return Answer(OWN, ", ".join(filter(None, names)))
    functional = " ".join(f"{name}={value}" for name, value in choices.items())
    # The last implementation is the one that serves what no other does: its reasons count.
    for kernel in reversed(implementations):
        if instead := served.instead(target, kernel, functional):
            return Answer(WIDER, instead)
    reasons = (served.reason(target, kernel, functional) for kernel in reversed(implementations))
    return Answer(NONE, next(filter(None, reasons), "the release does not say why"))


def _products(
    answers: Mapping[tuple[str, ...], tuple[Answer, ...]],
) -> list[tuple[tuple[tuple[str, ...], ...], tuple[Answer, ...]]]:
    """Few products of values that together are all combinations, each of combinations with the same answers."""
    if not answers:
        return []
    if () in answers:
        return [((), answers[()])]
    by_value: dict[str, dict[tuple[str, ...], tuple[Answer, ...]]] = {}
    for (value, *rest), row in answers.items():
        by_value.setdefault(value, {})[tuple(rest)] = row
    alike: dict[tuple, list[str]] = {}
    for value, below in by_value.items():
        alike.setdefault(tuple(_products(below)), []).append(value)
    return [((tuple(values), *more), row) for below, values in alike.items() for more, row in below]
