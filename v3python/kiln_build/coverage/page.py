"""A page with the verdicts: for each kind of attention a table of uses and targets. Plain HTML in one file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from kiln_build.artifacts.picture import STYLE
from kiln_build.coverage import show
from kiln_build.coverage.attention import Attention, Model
from kiln_build.coverage.judge import Image, Verdict
from kiln_build.coverage.source import Source

# By which a page is known as one of ours.
BEGIN = '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<meta name="generator" content="kiln coverage">\n'

_OWN = "td.yes { background: #d9efdc } td.no { background: #f6d5d0 } td { border: 1px solid #fff; padding: .15em .6em }"


def page(source: Source, models: Sequence[Model], verdicts: Sequence[Verdict]) -> Iterator[str]:
    """The page, as HTML, in pieces."""
    title = f"What {source.name} serves"
    yield f"{BEGIN}<title>{escape(title)}</title>\n<style>{STYLE}{_OWN}</style>\n<h1>{escape(title)}</h1>\n"
    names = list(dict.fromkeys(one.target for one in verdicts))
    for model in models:
        yield f"<h2>{escape(model.name)}</h2>\n"
        for kind in model.kinds:
            own = [one for one in verdicts if one.model == model.name and one.kind == kind]
            yield f"<h3>{escape(kind.name)}</h3>\n<p>{escape(str(kind))}</p>\n"
            yield _table(kind, own, names)
            yield "".join(_details(own, source))
    notes = dict.fromkeys(show.notes_of(models, verdicts))
    if notes:
        yield "<h2>Notes</h2>\n<ul>" + "".join(f"<li>{escape(note)}</li>" for note in notes) + "</ul>\n"
    yield "</html>\n"


def _table(kind: Attention, own: Sequence[Verdict], names: Sequence[str]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    rows = []
    for use in kind.uses:
        by_target = {one.target: one for one in own if one.use == use}
        cells = "".join(_cell(by_target[name]) for name in names)
        rows.append(f"<tr><th>{use}</th>{cells}</tr>")
    return f"<table><tr><th></th>{head}</tr>{''.join(rows)}</table>\n"


def _cell(one: Verdict) -> str:
    said = "; ".join(show.first_of_each(one.images)) if one.is_served else str(one.refusal)
    return (
        f'<td class="{"yes" if one.is_served else "no"}" title="{escape(said)}">{"yes" if one.is_served else "no"}</td>'
    )


def _details(own: Sequence[Verdict], source: Source) -> Iterator[str]:
    """Once for all targets of one answer: the images, or why there are none and what would serve the call."""
    for first, targets in show.group(own):
        where = f"<b>{first.use}</b> on {escape(show.targets_in_words(targets, source))}: "
        if first.is_served:
            by = "".join(f"<li><code>{escape(_image(image))}</code></li>" for image in first.images)
            yield f"<details><summary>{where}served</summary><ul>{by}</ul></details>\n"
        else:
            remedies = escape(show.of_all("; ".join(first.remedies), first, targets, source) or show.NOTHING)
            refusal = show.of_all(str(first.refusal), first, targets, source)
            yield f"<p>{where}{escape(refusal)}. What would serve it: {remedies}.</p>\n"


def _image(image: Image) -> str:
    name = f"{image.operation}/{image.kernel}[{image.functional}][{image.configuration}][{image.specialization}]"
    return name + (f" {image.key}" if image.key else "")
