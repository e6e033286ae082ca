"""A page with a difference: its sections as tables, the most important first."""

from __future__ import annotations

from collections.abc import Iterator

from kiln_build.difference import show
from kiln_build.difference.compare import Difference
from kiln_build.difference.show import Section
from kiln_build.pages import document, tables
from kiln_build.pages.document import Part
from kiln_build.pages.markup import Markup, element, joined, text

COMMAND = "kiln diff"


def page(found: Difference) -> Iterator[str]:
    """The page, as HTML, in pieces."""
    title = f"kiln {found.before.version} and kiln {found.after.version}"
    return document.document(COMMAND, title, lead(found), parts(found))


def lead(found: Difference) -> Iterator[Markup]:
    """What is compared, and in one line what counts most."""
    yield tables.facts(
        (name, joined([text(f"{side.path.name}: {side.name} "), element("code", side.digest[:12])]))
        for name, side in (("Before", found.before), ("Now", found.after))
    )
    yield element("p", show.verdict(found), class_="verdict")


def parts(found: Difference) -> list[Part]:
    """A part for each section of the difference, and its notes."""
    there = [_part(section, found) for section in show.sections(found)]
    return [*there, *([Part("Notes", [document.notes(found.notes)])] if found.notes else [])]


def _part(section: Section, found: Difference) -> Part:
    number = f" ({len(section.rows)})" if len(section.rows) > 1 else ""
    return Part(f"{section.title[:1].upper()}{section.title[1:]}{number}", _body(section, found), section.kind)


def _body(section: Section, found: Difference) -> Iterator[Markup]:
    yield from tables.table(section.title, section.header, section.rows, section.right)
    if section.title == "headers":
        for one in found.headers:
            if one.lines:
                yield document.details(one.path, element("pre", "\n".join(one.lines).expandtabs(4)))
