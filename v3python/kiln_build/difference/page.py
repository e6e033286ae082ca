"""A page with a difference: its sections as tables, the most important first. Plain HTML in one file, no script."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from kiln_build.artifacts.picture import STYLE
from kiln_build.difference import show
from kiln_build.difference.compare import Difference
from kiln_build.difference.show import Section

# By which a page is known as one of ours.
BEGIN = '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<meta name="generator" content="kiln diff">\n'

_OWN = """
h2.worse { border-color: #b2182b } h2.better { border-color: #1a7f37 } td { max-width: 46em; overflow-wrap: anywhere }
tr:nth-child(even) td { background: #f6f8fa } pre { background: #f6f8fa; padding: .6em; overflow-x: auto }
div.wide { overflow-x: auto } .verdict { font-size: 1.1em; font-weight: 600 }
"""
_MOST = 5000  # rows of a section


def page(found: Difference) -> Iterator[str]:
    """The page, as HTML, in pieces."""
    title = f"kiln {found.before.version} and kiln {found.after.version}"
    yield f'{BEGIN}<meta name="viewport" content="width=device-width">\n<title>{escape(title)}</title>\n'
    yield f"<style>{STYLE}{_OWN}</style>\n<h1>{escape(title)}</h1>\n<table>"
    for name, side in (("Before", found.before), ("Now", found.after)):
        digest = f" <code>{side.digest[:12]}</code>" if side.digest else ""
        yield f"<tr><th>{name}</th><td>{escape(side.path.name)}: {escape(side.name)}{digest}</td></tr>"
    yield f'</table>\n<p class="verdict">{escape(show.verdict(found))}</p>\n'
    for section in show.sections(found):
        yield from _section(section)
        if section.title == "headers":
            yield from _headers(found)
    if found.notes:
        yield "<h2>Notes</h2>\n<ul>" + "".join(f"<li>{escape(note)}</li>" for note in found.notes) + "</ul>\n"
    yield "</html>\n"


def _section(section: Section) -> Iterator[str]:
    number = f" ({len(section.rows)})" if len(section.rows) > 1 else ""
    kind = f' class="{section.kind}"' if section.kind else ""
    title = section.title[:1].upper() + section.title[1:]
    yield f'<h2{kind}>{escape(title)}{number}</h2>\n<div class="wide"><table><tr>'
    yield "".join(f"<th>{escape(name.capitalize())}</th>" for name in section.header) + "</tr>\n"
    for row in section.rows[:_MOST]:
        cells = (
            f'<td class="n">{escape(cell)}</td>' if name in section.right else f"<td>{escape(cell)}</td>"
            for name, cell in zip(section.header, row)
        )  # fmt: skip
        yield f"<tr>{''.join(cells)}</tr>\n"
    yield "</table></div>\n"
    if len(section.rows) > _MOST:
        yield f'<p class="muted">{len(section.rows) - _MOST} more; --json has all.</p>\n'


def _headers(found: Difference) -> Iterator[str]:
    """The lines of each header that changed."""
    for one in found.headers:
        if one.lines:
            lines = escape("\n".join(one.lines))
            yield f"<details><summary>{escape(one.path)}</summary><pre>{lines}</pre></details>\n"
