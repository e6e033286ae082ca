"""Tables and quantities for people, in plain text."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

_WIDEST = 120  # a longer cell moves what follows it in its own line alone


def table(header: Sequence[str], rows: Sequence[Sequence[object]], right: Iterable[str] = ()) -> str:
    """Aligned columns, two spaces apart, without trailing blanks.

    Args:
        right: headings of the columns to align to the right.
    """
    return "\n".join(table_lines(header, rows, right))


def table_lines(header: Sequence[str], rows: Sequence[Sequence[object]], right: Iterable[str] = ()) -> Iterator[str]:
    """The lines of `table`, which may be many, one by one."""
    right = set(right)
    widths = [len(name) for name in header]
    for row in rows:
        for column, cell in enumerate(row):
            size = len(str(cell))
            if widths[column] < size <= _WIDEST:
                widths[column] = size
    for row in (header, *rows):
        padded = [
            str(cell).rjust(width) if name in right else str(cell).ljust(width)
            for cell, width, name in zip(row, widths, header)
        ]
        yield "  ".join(padded).rstrip()


def print_json(document: Any) -> None:
    """Prints a document of any size without making one text of it."""
    for piece in json.JSONEncoder(indent=1).iterencode(document):
        sys.stdout.write(piece)
    print()


def quantity(count: int) -> str:
    """Bytes for people: "512 B", "1.5 KiB", "12 MiB"."""
    if count < 1024:
        return f"{count} B"
    value = float(count)
    for unit in ("KiB", "MiB", "GiB"):
        value /= 1024
        if value < 1023.95 or unit == "GiB":
            break
    return f"{value:.1f} {unit}" if value < 99.95 else f"{value:.0f} {unit}"


def span(values: Iterable[int]) -> str:
    """ "32" if all are equal, "32-255" if not, "-" if there are none."""
    values = list(values)
    if not values:
        return "-"
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low}-{high}"


def few(names: Iterable[str], most: int = 5) -> str:
    """The first of what a sentence names, and how many more there are: "a; b; and 3 more"."""
    every = [*dict.fromkeys(names)]
    more = [f"and {len(every) - most} more"] if len(every) > most else []
    return "; ".join([*every[:most], *more])


def plural(count: int, one: str, many: str | None = None) -> str:
    """ "1 image", "2 images"."""
    return f"{count} {one if count == 1 else many or one + 's'}"
