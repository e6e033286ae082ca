"""Verdicts for people, as a table, and for programs, as plain data."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from kiln_build.coverage.attention import Model
from kiln_build.coverage.judge import Image, Verdict, in_words
from kiln_build.coverage.source import Source
from kiln_recipe.call.evaluate import TYPICAL_MULTIPROCESSORS
from kiln_recipe.console.tables import table_lines

_HEADER = ("MODEL", "ATTENTION", "USE", "TARGETS", "SERVED", "BY")


def lines(source: Source, models: Sequence[Model], verdicts: Sequence[Verdict], images: bool = False) -> Iterator[str]:
    """A row for each use of each kind, with the targets that have the same answer in one; then reasons and remedies.

    Args:
        images: then each image of what is served, of the first of those targets.
    """
    rows, reasons = [], []
    for first, targets in group(verdicts):
        number = ""
        if not first.is_served:
            reasons.append((first, targets))
            number = f"({len(reasons)})"
        by = "; ".join(first_of_each(first.images)) if first.is_served else f"see {number}"
        rows.append(
            (first.model, first.kind.name, first.use, targets_in_words(targets, source), _YES[first.is_served], by)
        )
    yield from table_lines(_HEADER, rows)
    for place, (verdict, targets) in enumerate(reasons, 1):
        yield ""
        yield f"({place}) {verdict.model}, {verdict.kind.name}, {verdict.use}: {verdict.kind}"
        yield f"    why not: {of_all(str(verdict.refusal), verdict, targets, source)}"
        yield f"    what would serve it: {of_all('; '.join(verdict.remedies), verdict, targets, source) or NOTHING}"
    if images:
        yield from _images(verdicts)
    notes = list(dict.fromkeys(notes_of(models, verdicts)))
    if notes:
        yield ""
        yield from (f"note: {note}" for note in notes)


def _images(verdicts: Sequence[Verdict]) -> Iterator[str]:
    for first, _ in group(verdicts):
        if first.is_served:
            yield ""
            yield f"{first.model}, {first.kind.name}, {first.use}, on {first.target}:"
            rows = [
                (_operation(one.operation), one.kernel, one.functional, one.configuration, one.specialization,
                 one.key or "-")
                for one in first.images
            ]  # fmt: skip
            yield from table_lines(
                ("OPERATION", "KERNEL", "FUNCTIONAL", "CONFIGURATION", "SPECIALIZATION", "KEY"), rows
            )


NOTHING = "nothing that this recipe can build"
_YES = {True: "yes", False: "NO"}


def group(verdicts: Sequence[Verdict]) -> list[tuple[Verdict, list[str]]]:
    """Verdicts of one use of one kind that differ by their target alone, with the targets: served by the same
    functionals, whichever implementation a target has, or refused for one reason."""
    groups: dict[tuple[object, ...], tuple[Verdict, list[str]]] = {}
    for one in verdicts:
        answer = (
            tuple((image.kernel.partition(".")[0], image.functional) for image in one.images)
            if one.is_served
            else tuple(_plain(text, one.target) for text in (str(one.refusal), *one.remedies))
        )
        groups.setdefault((one.model, one.kind, one.use, answer), (one, []))[1].append(one.target)
    return list(groups.values())


def targets_in_words(names: Sequence[str], source: Source) -> str:
    """ "all", their names, or "all but" some."""
    return in_words(names, [target.name for target in source.targets])


def notes_of(models: Sequence[Model], verdicts: Sequence[Verdict]) -> Iterator[str]:
    """What to know of the answers, in sentences."""
    for model in models:
        for kind in model.kinds:
            if kind.assumed:
                yield f"{model.name}, {kind.name}: assumed {', '.join(kind.assumed)}"
        yield from (f"{model.name}: {note}" for note in model.notes)
    for one in verdicts:
        yield from (f"{one.model}, {one.kind.name}, {one.use}: {note}" for note in one.notes)


def document(source: Source, models: Sequence[Model], verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Everything, fit for JSON."""
    return {
        "source": source.name,
        "profile": source.profile,
        "selection": {name: list(values) for name, values in source.selection},
        "targets": [target.name for target in source.targets],
        "multiprocessors": TYPICAL_MULTIPROCESSORS,
        "models": [asdict(model) for model in models],
        "verdicts": [
            {
                "model": one.model,
                "attention": one.kind.name,
                "use": one.use,
                "target": one.target,
                "served": one.is_served,
                "images": [asdict(image) for image in one.images],
                "refusal": one.refusal,
                "remedies": list(one.remedies),
                "notes": list(one.notes),
            }
            for one in verdicts
        ],
    }


def first_of_each(images: Sequence[Image]) -> list[str]:
    """For each operation the kernel that most choices decide: "attn_fwd dtype=bf16 head_dim=128 ..."."""
    found: dict[str, Image] = {}
    for image in images:
        there = found.setdefault(image.operation, image)
        if image.functional.count("=") > there.functional.count("="):
            found[image.operation] = image
    return [f"{_operation(name)} {image.functional}" for name, image in found.items()]


def _operation(name: str) -> str:
    return name.rpartition(".")[2]


def of_all(text: str, first: Verdict, names: Sequence[str], source: Source) -> str:
    """What is said of the first of a group's targets, said of all of them."""
    known = [target.name for target in source.targets]
    return _of_target(first.target).sub(in_words(names, known, "all targets", ", "), text)


def _plain(text: str, target: str) -> str:
    """A sentence without its target's name, which targets of one reason do not share."""
    return _of_target(target).sub("the target", text)


def _of_target(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!@)\b{re.escape(name)}\b")
