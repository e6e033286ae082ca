"""Results as a plot: bars by side, a panel for each part. An SVG needs the standard library, a PNG matplotlib.

The picture is laid out once, as bars, lines and texts in points, and then written in one of the two formats. Equal
results give equal bytes of SVG.
"""

from __future__ import annotations

import io
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln_bench import report, shapes
from kiln_bench.report import COPY, MADE_BY, Results
from kiln_bench.shapes import Training
from kiln_recipe.console.appear import write_whole
from kiln_recipe.errors import EnvironmentProblem, escaped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".svg", ".png")
BEGIN = f"<!-- {MADE_BY} -->\n"  # of an SVG
_COLORS = {
    "flash": "#9aa5b1", "efficient": "#c9ced6", "cudnn": "#d9a441", "math": "#e3d3b3", "flash-attn": "#5f7f6b",
    "flash-attn-3": "#2f6b4f", "flashinfer": "#a05d7e", COPY: "#444444",
}  # fmt: skip
_OURS = ("#1f5fa8", "#73a9dd", "#123a66", "#a8c9ea")
_INK, _FAINT = "#222222", "#dddddd"
_WIDTH, _LEFT, _RIGHT = 820.0, 46.0, 12.0
_HEIGHT, _ABOVE, _BELOW = 150.0, 30.0, 42.0  # of a panel: its bars, title, labels
PANEL_HEIGHT = _ABOVE + _HEIGHT + _BELOW
_SMALL, _MEDIUM, _LARGE = 6.5, 8.0, 10.0
_DPI = 160


@dataclass(frozen=True)
class Box:
    x: float
    y: float
    width: float
    height: float
    color: str


@dataclass(frozen=True)
class Text:
    """`anchor`: start, middle or end. `turned`: reads from below."""

    x: float
    y: float
    text: str
    size: float = _MEDIUM
    anchor: str = "start"
    turned: bool = False


@dataclass(frozen=True)
class Picture:
    width: float
    height: float
    items: tuple[Box | Text, ...]


@dataclass(frozen=True)
class Panel:
    """Bars in groups.

    Attributes:
        groups: a label of some lines, and a bar for each side, None where there is no figure.
        digits: of the figures on the bars.
    """

    title: str
    groups: Sequence[tuple[str, Sequence[float | None]]]
    sides: Sequence[tuple[str, str]]
    digits: int


def panels(results: Results) -> list[Panel]:
    """One for each part that has figures."""
    found = []
    names = report.labels(results)
    for part in ("forward", "backward", "decoding"):
        sides = report.sides_of(results, part)
        rows = [row for row in report.of(results, part) if row["milliseconds"]]
        if not rows:
            continue
        groups = [(label(row), [report.figure(row, side) for side in sides]) for row in rows]
        colored = [(names[side], _color(results, side)) for side in sides]
        digits = 0 if part != "decoding" else 1
        found.append(Panel(f"{part.capitalize()}, {report.UNITS[part]}", groups, colored, digits))
    hosts = [row for row in report.of(results, "host") if row["microseconds"]]
    if hosts:
        ways = [way for way in hosts[0]["microseconds"] if "," not in way and "native" not in way]
        groups = [
            (_short(way), [statistics.median(row["microseconds"][way]) if way in row["microseconds"] else None
                           for row in hosts])
            for way in ways
        ]  # fmt: skip
        colored = [(names[row["side"]], _color(results, row["side"])) for row in hosts]
        found.append(Panel(f"Host, {report.UNITS['host']} (less is faster)", groups, colored, 1))
    return found


def label(row: Mapping[str, Any]) -> str:
    """Of a call, below its bars: lines."""
    shape = shapes.of_row(row)
    width = f"d{shape.head_dim}"
    if isinstance(shape, Training):
        width += f"/{shape.head_dim_v}" if shape.head_dim_v != shape.head_dim else ""
        mask = "window" if shape.window else "causal" if shape.causal else ""
        long = "varlen" if shape.lengths else shapes.spelled(shape.length)
        return f"{width}\n{long}\n{mask}"
    grouped = f" {shape.heads // shape.heads_kv}:1" if shape.heads != shape.heads_kv else ""
    dtype = " fp8" if shape.cache_dtype.startswith("fp8") else ""
    page = f" p{shape.page}" if shape.page else ""
    return f"{width}{grouped}{dtype}\n{shapes.spelled(shape.keys)}x{shape.batch}{page}"


def _short(way: str) -> str:
    first, _, last = way.replace("scaled_dot_product_attention", "sdpa").rpartition(".")
    return f"{first}.\n{last}" if first else last


def _color(results: Results, side: str) -> str:
    mine = report.ours(results)
    return _OURS[mine.index(side) % len(_OURS)] if side in mine else _COLORS.get(side, "#777777")


def picture(results: Results) -> Picture:
    """The panels below one another, and where they were measured."""
    items: list[Box | Text] = []
    y = 6.0
    for panel in panels(results):
        items += bars(panel, y)
        y += PANEL_HEIGHT
    for line in _caption(results):
        items.append(Text(_LEFT, y + 4, line, _SMALL))
        y += 10
    return Picture(_WIDTH, y + 6, tuple(items))


def _caption(results: Results) -> list[str]:
    first, *releases, last = report.about(results)
    return [first, *releases, last]


def bars(panel: Panel, top: float) -> list[Box | Text]:
    """A panel below `top`, PANEL_HEIGHT high."""
    highest = max((value for _, values in panel.groups for value in values if value), default=1.0)
    step = _step(highest)
    scale = _HEIGHT / (highest * 1.08)
    base = top + _ABOVE + _HEIGHT
    items: list[Box | Text] = [Text(_LEFT, top + 12, panel.title, _LARGE)]
    x = _WIDTH - _RIGHT
    for name, color in reversed(panel.sides):
        x -= 5.0 * len(name) + 18
        items += [Box(x, top + 5, 8, 8, color), Text(x + 11, top + 12, name)]
    mark = step
    while mark <= highest * 1.08:
        items.append(Box(_LEFT, base - mark * scale, _WIDTH - _LEFT - _RIGHT, 0.5, _FAINT))
        items.append(Text(_LEFT - 5, base - mark * scale + 3, f"{mark:g}", _SMALL, "end"))
        mark += step
    room = (_WIDTH - _LEFT - _RIGHT) / len(panel.groups)
    each = room * 0.86 / len(panel.sides)
    for place, (label, values) in enumerate(panel.groups):
        left = _LEFT + place * room + room * 0.07
        for number, (value, (_, color)) in enumerate(zip(values, panel.sides)):
            if value is None:
                continue
            x, height = left + number * each, value * scale
            items.append(Box(x, base - height, each * 0.94, height, color))
            said = f"{value:.{panel.digits}f}"
            is_turned = each < 4.2 * len(said)
            shift = 2.4 if is_turned else 0.0
            anchor = "start" if is_turned else "middle"
            items.append(Text(x + each * 0.47 + shift, base - height - 2, said, _SMALL, anchor, is_turned))
        for line, words in enumerate(filter(None, label.split("\n"))):
            items.append(Text(left + room * 0.43, base + 11 + 9 * line, words.strip(), _size(words, room), "middle"))
    items.append(Box(_LEFT, base, _WIDTH - _LEFT - _RIGHT, 0.7, _INK))
    return items


def _size(words: str, room: float) -> float:
    """As large as there is room for."""
    return max(4.0, min(_MEDIUM, room / max(1.0, 0.56 * len(words.strip()))))


def _step(highest: float) -> float:
    """Between marks of the axis: 1, 2 or 5 times a power of ten, four to eight of them."""
    power = 10.0 ** len(str(int(highest))) / 100 if highest >= 1 else 0.01
    while highest / power > 8:
        power *= 2.5 if f"{power:e}"[0] == "2" else 2
    return power


def svg(drawn: Picture, begin: str = BEGIN) -> str:
    """The picture as SVG: one element a line, a bar's figure beside its bar."""
    lines = [
        begin.strip(),
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_short_number(drawn.width)} '
        f'{_short_number(drawn.height)}" font-family="Helvetica, Arial, sans-serif" fill="{_INK}">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
    ]
    follows_box = False
    for item in drawn.items:
        if isinstance(item, Box):
            x, y, width, height = map(_short_number, (item.x, item.y, item.width, item.height))
            lines.append(f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{item.color}"/>')
            follows_box = True
            continue
        x, y = map(_short_number, (item.x, item.y))
        turned = f' transform="rotate(-90 {x} {y})"' if item.turned else ""
        anchor = "" if item.anchor == "start" else f' text-anchor="{item.anchor}"'
        size = _short_number(item.size)
        text = f'<text x="{x}" y="{y}" font-size="{size}"{anchor}{turned}>{escape(escaped(item.text))}</text>'
        if follows_box:
            lines[-1] += text
        else:
            lines.append(text)
        follows_box = False
    return "\n".join([*lines, "</svg>", ""])


def _short_number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def write(results: Results, path: Path) -> None:
    """Writes the plot, in the format that the file's name ends in.

    Raises:
        EnvironmentProblem: there is no matplotlib, which a PNG needs; or the file cannot be written.
    """
    drawn = picture(results)
    if path.suffix == ".svg":
        write_whole(path, svg(drawn))
        return
    content = io.BytesIO()
    _drawn(drawn).savefig(content, format="png", dpi=_DPI, metadata={"Software": MADE_BY})
    write_whole(path, content.getvalue())


def check(path: Path) -> None:
    """
    Raises:
        EnvironmentProblem: as `write`; asked before hours of work.
    """
    if path.suffix == ".png":
        try:
            import matplotlib  # noqa: F401
        except ImportError as error:
            raise EnvironmentProblem(
                f"--plot {path} needs matplotlib, which this Python lacks; give an .svg"
            ) from error


def _drawn(drawn: Picture) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    figure = Figure(figsize=(drawn.width / 72, drawn.height / 72))
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(0, drawn.width)
    axes.set_ylim(drawn.height, 0)
    places = {"start": "left", "middle": "center", "end": "right"}
    for item in drawn.items:
        if isinstance(item, Box):
            axes.add_patch(Rectangle((item.x, item.y), item.width, item.height, color=item.color, linewidth=0))
        else:
            axes.text(
                item.x, item.y, item.text, fontsize=item.size, ha=places[item.anchor], va="baseline", color=_INK,
                rotation=90 if item.turned else 0, rotation_mode="anchor",
            )  # fmt: skip
    return figure
