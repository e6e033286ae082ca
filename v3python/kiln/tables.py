"""Tables and quantities for people, in plain text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(header: Sequence[str], rows: Iterable[Sequence[object]], right: Iterable[str] = ()) -> str:
    """Aligned columns, two spaces apart, without trailing blanks.

    Args:
        right: headings of the columns to align to the right.
    """
    cells = [list(header), *([str(cell) for cell in row] for row in rows)]
    right = set(right)
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = []
    for row in cells:
        padded = [
            cell.rjust(width) if name in right else cell.ljust(width) for cell, width, name in zip(row, widths, header)
        ]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


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


def plural(count: int, one: str, many: str | None = None) -> str:
    """ "1 image", "2 images"."""
    return f"{count} {one if count == 1 else many or one + 's'}"
