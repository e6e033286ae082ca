"""A page with the verdicts: for each kind of attention a table of uses and targets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kiln_build.coverage import show
from kiln_build.coverage.attention import Attention, Model
from kiln_build.coverage.judge import Image, Verdict
from kiln_build.coverage.source import Source
from kiln_build.pages import document, tables
from kiln_build.pages.document import Part
from kiln_build.pages.markup import Markup, element, joined, text
from kiln_build.pages.tables import Cell

COMMAND = "kiln coverage"


def page(source: Source, models: Sequence[Model], verdicts: Sequence[Verdict]) -> Iterator[str]:
    """The page, as HTML, in pieces."""
    parts = [Part(model.name, _model(model, source, verdicts)) for model in models]
    if notes := dict.fromkeys(show.notes_of(models, verdicts)):
        parts.append(Part("Notes", [document.notes(notes)]))
    return document.document(COMMAND, f"What {source.name} serves", [], parts)


def _model(model: Model, source: Source, verdicts: Sequence[Verdict]) -> Iterator[Markup]:
    names = list(dict.fromkeys(one.target for one in verdicts))
    for kind in model.kinds:
        own = [one for one in verdicts if one.model == model.name and one.kind == kind]
        yield element("h3", kind.name)
        yield element("p", str(kind))
        yield from _table(kind, own, names)
        yield from _details(own, source)


def _table(kind: Attention, own: Sequence[Verdict], names: Sequence[str]) -> Iterator[Markup]:
    by_place = {(one.target, one.use): one for one in own}
    rows = [[name, *(_cell(by_place[name, use]) for use in kind.uses)] for name in names]
    return tables.table(f"uses of {kind.name} by target", ("Target", *kind.uses), rows, named=True)


def _cell(one: Verdict) -> Cell:
    said = "; ".join(show.first_of_each(one.images)) if one.is_served else str(one.refusal)
    return Cell("yes" if one.is_served else "no", kind="good" if one.is_served else "bad", tip=said)


def _details(own: Sequence[Verdict], source: Source) -> Iterator[Markup]:
    """Once for all targets of one answer: the images, or why there are none and what would serve the call."""
    for first, targets in show.group(own):
        use, where = element("b", first.use), text(f" on {show.targets_in_words(targets, source)}: ")
        if first.is_served:
            by = [element("li", element("code", _image(image))) for image in first.images]
            yield document.details(joined([use, where, text("served")]), element("ul", joined(by)))
        else:
            remedies = show.of_all("; ".join(first.remedies), first, targets, source) or show.NOTHING
            refusal = show.of_all(str(first.refusal), first, targets, source)
            yield element("p", use, where, f"{refusal}. What would serve it: {remedies}.")


def _image(image: Image) -> str:
    name = f"{image.operation}/{image.kernel}[{image.functional}][{image.configuration}][{image.specialization}]"
    return name + (f" {image.key}" if image.key else "")
