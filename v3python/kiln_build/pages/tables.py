"""Tables of a page. The page's script gives them a search and headings to sort by; without it they are tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from kiln_build.pages.markup import Markup, element, joined, text

_LONG, _WORD = 34, 14  # letters
MOST = 5000  # rows of a table: browsers stay quick, and pages small


@dataclass(frozen=True)
class Cell:
    """A cell with more than its text.

    Attributes:
        value: what it is sorted by, where its text would mislead: bytes, seconds, a share.
        kind: "worse", "better", "good", "partly" or "bad", which colours it.
        tip: more of it, for a pointer; nothing may be said there alone.
    """

    content: object
    value: float | None = None
    kind: str = ""
    tip: str = ""


def table(
    caption: str,
    header: Sequence[str],
    rows: Iterable[Sequence[object]],
    right: Sequence[str] = (),
    more: str = "--json has all",
    named: bool = False,
) -> Iterator[Markup]:
    """A table that scrolls by itself where the screen is too narrow, in pieces.

    Args:
        caption: what it is, for who does not see the heading above it.
        rows: each cell is a `Cell`, or what an element may hold.
        right: headings of the columns of numbers.
        more: what is said of rows beyond MOST.
        named: the first cell of each row names the row.
    """
    numbers = {number for number, name in enumerate(header) if name in right}
    yield Markup(f'<div class="wide" role="region"{_label(caption)}><table class="rows">')
    yield element("caption", caption)
    heads = [
        element("th", _capital(name), scope="col", class_="n" if number in numbers else None)
        for number, name in enumerate(header)
    ]
    yield Markup(f"<thead><tr>{joined(heads)}</tr></thead><tbody>\n")
    left = iter(rows)
    for row in islice(left, MOST):
        cells = (_cell(cell, number in numbers, named and not number) for number, cell in enumerate(row))
        yield Markup(f"<tr>{''.join(cells)}</tr>\n")
    yield Markup("</tbody></table></div>\n")
    if hidden := sum(1 for _ in left):
        yield element("p", f"{hidden} more rows are not on this page; {more}.", class_="muted")


def facts(rows: Iterable[tuple[str, object]]) -> Markup:
    """Names and what they stand for, a pair a line."""
    lines = [element("tr", element("th", name, scope="row"), element("td", value)) for name, value in rows]
    return Markup(f'<div class="wide"><table class="facts">{joined(lines)}</table></div>\n')


def _label(caption: str) -> str:
    return f' aria-label="{text(caption)}"'


def _capital(name: str) -> str:
    """ "LEFT OUT" as "Left out"; names such as "sm_90" stay."""
    return name.capitalize() if name.isupper() else name


def _width(content: object) -> str:
    """The class that keeps a column from becoming so narrow that each word of its texts has a line of its own."""
    size = 0 if isinstance(content, Markup) else len(str(content))
    return "long" if size > _LONG else "word" if size > _WORD else ""


def _breakable(content: object) -> Markup:
    """A text that a browser may break behind a slash, where a table is wider than the screen."""
    written = text(content)
    return written if isinstance(content, Markup) else Markup(written.replace("/", "/<wbr>"))


def _cell(cell: object, is_number: bool, is_name: bool) -> Markup:
    whole = cell if isinstance(cell, Cell) else Cell(cell)
    classes = " ".join(filter(None, ("n" if is_number else _width(whole.content), whole.kind)))
    value = None if whole.value is None else f"{whole.value:g}" if whole.value % 1 else f"{whole.value:.0f}"
    return element(
        "th" if is_name else "td",
        _breakable(whole.content),
        scope="row" if is_name else None,
        class_=classes or None,
        data_v=value,
        title=whole.tip or None,
    )
