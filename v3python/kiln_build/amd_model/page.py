"""A page with the model's figures: a table that sorts by a click on a heading, and bars of the shares. One file; the
few lines of script in it sort, and load nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from kiln_build.amd_model import architectures, show
from kiln_build.amd_model.rows import Change, Row
from kiln_build.artifacts.picture import STYLE

# By which a page is known as one of ours.
BEGIN = '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<meta name="generator" content="kiln model">\n'

_OWN = """
body { max-width: none } th { cursor: pointer; border-bottom: 1px solid #d5dce4; vertical-align: bottom }
td.bar { width: 160px } .bar i { display: inline-block; height: .8em; background: #7fa6d6 }
.bar u { display: inline-block; height: .8em; background: #d9e3ef; text-decoration: none }
td.slower { background: #f6d5d0 } td.faster { background: #d9efdc } tr:hover { background: #f3f6f9 }
"""
_SCRIPT = """<script>
for (const table of document.querySelectorAll("table")) table.tHead.addEventListener("click", event => {
  const column = event.target.cellIndex, body = table.tBodies[0];
  const key = row => row.cells[column].dataset.v ?? row.cells[column].textContent;
  const order = event.target.dataset.order = event.target.dataset.order === "1" ? -1 : 1;
  const compare = (a, b) => isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b;
  [...body.rows].sort((a, b) => order * compare(key(a), key(b))).forEach(row => body.append(row));
});
</script>
"""
_WIDTH = 150  # pixels of a share of 1
_NAMES = ("Kernel", "Functional", "Configuration", "Specialization")
_NUMBERS = ("Waves", "Needed", "Issued", "VALU", "Transcendental", "LDS", "Memory", "Clocks")


def page(name: str, found: Sequence[Row], changes: Sequence[Change] | None) -> Iterator[str]:
    """The page, as HTML, in pieces. `name`: of what was modelled."""
    title = f"How fast {name} runs, by the model"
    yield f"{BEGIN}<title>{escape(title)}</title>\n<style>{STYLE}{_OWN}</style>\n<h1>{escape(title)}</h1>\n"
    yield f"<p>{escape(show.NOTE[0].upper() + show.NOTE[1:])}. Click a heading to sort. Times are clocks of a SIMD for "
    yield "one iteration of one wave; the bar is the share at the usual latency, and in pale its bound.</p>\n"
    if changes is not None:
        yield f"<h2>Changes</h2>\n{_table(('Target', 'Image', 'Before', 'After', 'Ratio'), map(_change, changes))}"
    for target in dict.fromkeys(row.target for row in found):
        at = [f"At {latency}" for latency in architectures.by_name(target).memory_latencies]
        header = (*_NAMES, "Loop", *_NUMBERS, *at, "Bound", "Share", "Waits for")
        yield f"<h2>{escape(target)}</h2>\n"
        yield _table(header, (_cells(row) for row in found if row.target == target))
    yield f"{_SCRIPT}</html>\n"


def _table(header: Sequence[str], bodies: Iterator[str] | map) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join(f"<tr>{cells}</tr>\n" for cells in bodies)
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table>\n"


def _cells(row: Row) -> str:
    names = [row.kernel or row.image[:12], row.functional, row.configuration, row.specialization]
    texts = "".join(f"<td>{escape(name)}</td>" for name in names)
    figures = "".join(f'<td class="n">{number}</td>' for number in [str(row.number), *show.numbers(row)])
    value = row.share or 0.0
    inner = f'<i style="width:{value * _WIDTH:.0f}px"></i>'
    rest = max(0.0, (row.bound or 0.0) - value) * _WIDTH
    bar = f'<td class="bar" data-v="{value:.4f}">{inner}<u style="width:{rest:.0f}px"></u></td>'
    return f"{texts}{figures}{bar}<td>{escape(row.waits)}</td>"


def _change(one: Change) -> str:
    kind = "slower" if one.ratio < 1 else "faster" if one.ratio > 1 else "same"
    cells = "".join(f'<td class="n">{value:.3f}</td>' for value in (one.before, one.after))
    return f'<td>{escape(one.target)}</td><td>{escape(one.name)}</td>{cells}<td class="n {kind}">{one.ratio:.3f}</td>'
