"""Times of a run as a page of plots, an SVG: speed by rules and by the heuristic; each kernel's configurations by call;
what the device does at most. Equal times give equal bytes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from kiln_bench import plot, shapes
from kiln_bench.plot import Box, Panel, Picture, Text
from kiln_bench.shapes import Training
from kiln_bench.tune import table
from kiln_bench.tune.session import MADE_BY, Session
from kiln_recipe import targets
from kiln_recipe.dtypes import DTYPE_BYTES
from kiln_recipe.plan import plan

if TYPE_CHECKING:
    from kiln_recipe.model import Recipe

BEGIN = f"<!-- {MADE_BY} -->\n"
Choices = Mapping[str, Mapping[table.Place, str]]  # by kernel
Row = dict[str, Any]
_WIDTH, _LEFT, _RIGHT = 820.0, 46.0, 12.0  # as plot's
_GROUPS = 24  # of bars beside one another
_LINE, _TITLES = 11.0, 250.0  # of a heat map: height of a call, width of the calls' titles
_DARK, _LIGHT = (31, 95, 168), (255, 255, 255)  # of the fastest, and of what takes 1.5 times as long or more
_PARTS = {"forward": "#1f5fa8", "backward": "#d9a441", "decoding": "#5f7f6b"}
_ROOF_HEIGHT, _DOT = 220.0, 4.0
_SIDES = (("heuristic", "#9aa5b1"), ("release", "#73a9dd"), ("new rules", "#1f5fa8"))


class _Part(Protocol):
    @property
    def height(self) -> float: ...

    def items(self, top: float) -> list[Box | Text]: ...


def text(session: Session, chosen: Choices, recipe: Recipe) -> str:
    """The page.

    Args:
        chosen: what the new rules take in each place.
    """
    items: list[Box | Text] = []
    y = 6.0
    parts: list[_Part] = [*_bars(session, chosen, recipe), *_maps(session.rows), *_roofline(session)]
    for part in parts:
        items += part.items(y)
        y += part.height
    for line in _caption(session):
        items.append(Text(_LEFT, y + 4, line, 6.5))
        y += 10
    return plot.svg(Picture(_WIDTH, y + 6, tuple(items)), BEGIN)


def clocks(session: Session) -> str:
    """Of the multiprocessors, "1700 to 1980 MHz"."""
    seen = sorted({int(text.split()[0]) for text in session.clocks})
    return f"{' to '.join(map(str, dict.fromkeys((seen[0], seen[-1]))))} MHz" if seen else "unknown"


def _caption(session: Session) -> Iterator[str]:
    about = session.about
    yield (
        f"{about['device']}, driver {about['driver']}, SM clock {clocks(session)}, {session.date}, {MADE_BY} --shapes "
        f"{session.shapes}"
    )
    yield f"release {about['release']}, pack sha256 {about['pack']}"


# ---- rules and the heuristic -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Bars:
    panel: Panel
    height = plot.PANEL_HEIGHT

    def items(self, top: float) -> list[Box | Text]:
        return plot.bars(self.panel, top)


def _bars(session: Session, chosen: Choices, recipe: Recipe) -> Iterator[_Bars]:
    """The speed of each call, of what it takes in the release and by the new rules, as a share of the fastest."""
    by_heuristic = heuristic(recipe, session.about["target"])
    groups: list[tuple[str, Sequence[float | None]]] = []
    for row in session.rows:
        for kernel, times in row["microseconds"].items():
            place = table.place_of(row, kernel)
            best, used = min(times.values()), row["used"]
            taken = (
                by_heuristic.get((kernel, row["functional"], place[1])),
                used[1] if used[0] == kernel else None,
                chosen.get(kernel, {}).get(place),
            )
            values = [best / times[name] * 100 if name in times else None for name in taken]
            if len(times) > 1:
                groups.append((f"{row['part']}\n{plot.label(row)}", values))
    for first in range(0, len(groups), _GROUPS):
        title = "Speed of what calls take, percent of the fastest configuration's"
        yield _Bars(Panel(title, groups[first : first + _GROUPS], _SIDES, 0))


def heuristic(recipe: Recipe, target: str) -> dict[tuple[str, str, table.Bin], str]:
    """By kernel, functional and bin the configuration that calls take where nothing is tuned."""
    made = plan.make_plan([recipe], [targets.by_name(target)], "full")
    found = {}
    for kernel in made.kernels:
        lower = [(0, *axis.edges) for axis in kernel.kernel.bins]
        names = [axis.name for axis in kernel.kernel.bins]
        bins = [tuple(zip(names, place)) for place in itertools.product(*lower)]
        there = {variant.slot for variant in made.variants_of(kernel)}
        for functional, row in zip(kernel.functionals, plan.explain(kernel, there)):
            for place, decision in zip(bins, row):
                if decision.configuration is not None:
                    name = kernel.configurations[decision.configuration].name
                    found[kernel.kernel.name, functional.name, place] = name
    return found


# ---- configurations by call ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Map:
    """A kernel's configurations (across) by call (down)."""

    kernel: str
    calls: Sequence[tuple[str, Mapping[str, float]]]
    names: Sequence[str]

    @property
    def height(self) -> float:
        return 34 + _LINE * (len(self.calls) + len(self.names))

    def items(self, top: float) -> list[Box | Text]:
        left = _LEFT + _TITLES
        room = min(60.0, (_WIDTH - _RIGHT - left) / len(self.names))
        found: list[Box | Text] = [Text(_LEFT, top + 12, f"{self.kernel}: time over the fastest's", 10.0)]
        found += [Text(left + (n + 0.5) * room, top + 22, _letter(n), 7, "middle") for n in range(len(self.names))]
        y = top + 25
        for title, times in self.calls:
            best = min(times.values())
            found.append(Text(left - 4, y + 8, title, 6.0, "end"))
            for n, name in enumerate(self.names):
                if name in times:
                    over = times[name] / best
                    found.append(Box(left + n * room, y, room - 0.6, _LINE - 0.6, _color(over)))
                    found.append(Text(left + (n + 0.5) * room, y + 8, f"{over:.2f}", 6.0, "middle"))
            y += _LINE
        for n, name in enumerate(self.names):
            found.append(Text(left, y + 8, f"{_letter(n)}: {name}", 6.0))
            y += _LINE
        return found


def _maps(rows: Sequence[Row]) -> Iterator[_Map]:
    kernels = dict.fromkeys(kernel for row in rows for kernel, times in row["microseconds"].items() if len(times) > 1)
    for kernel in kernels:
        calls = [(_title(row), row["microseconds"][kernel]) for row in rows if kernel in row["microseconds"]]
        yield _Map(kernel, calls, sorted({name for _, times in calls for name in times}))


def _letter(number: int) -> str:
    """A to Z, then AA."""
    return ("" if number < 26 else _letter(number // 26 - 1)) + chr(ord("A") + number % 26)


def _color(over: float) -> str:
    """Paler, the longer it takes; never so dark that a figure on it cannot be read."""
    share = 0.65 * max(0.0, 3 - 2 * over)
    return "#" + "".join(f"{round(light + (dark - light) * share):02x}" for dark, light in zip(_DARK, _LIGHT))


# ---- what the device does at most ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Roofline:
    """`dots`: operations a byte, TFLOP/s, part."""

    dots: Sequence[tuple[float, float, str]]
    tflops: float
    gbytes: float
    height = _ROOF_HEIGHT + 60

    def items(self, top: float) -> list[Box | Text]:
        """Both axes by powers of two."""
        roof = [(2.0**e, min(self.tflops, 2.0**e * self.gbytes / 1000)) for e in range(-1, 15)]
        xs = [math.log2(x) for x, _ in roof]
        low = math.floor(math.log2(min(y for _, y, _ in self.dots))) if self.dots else 0
        high = math.ceil(math.log2(max(self.tflops, *(y for _, y, _ in self.dots))))
        low = min(low, high - 1)
        base = top + 24 + _ROOF_HEIGHT
        wide = _WIDTH - _LEFT - _RIGHT

        def place(x: float, y: float) -> tuple[float, float]:
            across = (math.log2(x) - xs[0]) / (xs[-1] - xs[0])
            return _LEFT + across * wide, base - (math.log2(y) - low) / (high - low) * _ROOF_HEIGHT

        title = f"Roofline: {self.tflops:g} TFLOP/s of a product in bf16, {self.gbytes:g} GB/s of a copy"
        found: list[Box | Text] = [Text(_LEFT, top + 12, title, 10.0), Box(_LEFT, base, wide, 0.7, "#222222")]
        for exponent in range(low, high + 1):
            _, y = place(1, 2.0**exponent)
            found += [Box(_LEFT, y, wide, 0.4, "#dddddd"), Text(_LEFT - 5, y + 3, f"{2.0**exponent:g}", 6.5, "end")]
        for exponent in range(0, 15, 2):
            x, _ = place(2.0**exponent, 2.0**low)
            found.append(Text(x, base + 11, f"{2**exponent}", 6.5, "middle"))
        found.append(Text(_LEFT + wide, base + 22, "operations a byte; each least once from memory", 6.5, "end"))
        for step in range(401):
            x = 2.0 ** (xs[0] + (xs[-1] - xs[0]) * step / 400)
            across, up = place(x, min(self.tflops, x * self.gbytes / 1000))
            if up <= base:
                found.append(Box(across - 0.7, up - 0.7, 1.4, 1.4, "#222222"))
        for x, y, part in self.dots:
            across, up = place(min(max(x, roof[0][0]), roof[-1][0]), y)
            found.append(Box(across - _DOT / 2, up - _DOT / 2, _DOT, _DOT, _PARTS[part]))
        for number, (part, color) in enumerate(_PARTS.items()):
            x = _LEFT + number * 70
            found += [Box(x, base + 16, 8, 8, color), Text(x + 11, base + 23, part)]
        return found


def _roofline(session: Session) -> Iterator[_Roofline]:
    """Each call by the fastest that was found of it; nothing of a session whose device was not measured."""
    took: dict[tuple[str, str], float] = {}
    rows: dict[tuple[str, str], Row] = {}
    for row in session.rows:
        every = [one for times in row["microseconds"].values() for one in times.values()]
        if every:  # a row is of a kernel, its time of the whole call
            key = row["part"], str(shapes.of_row(row))
            took[key], rows[key] = min(took.get(key, math.inf), *every), row
    dots = []
    for key, row in rows.items():
        operations, size = _work(row)
        dots.append((operations / size, operations / took[key] / 1e6, row["part"]))
    if session.roof:
        yield _Roofline(dots, session.roof["tflops"], session.roof["gbytes"])


def _work(row: Row) -> tuple[float, float]:
    """A call's operations, and the bytes that it must at least read and write."""
    shape = shapes.of_row(row)
    if not isinstance(shape, Training):
        return 4.0 * shape.batch * shape.heads * shape.keys * shape.head_dim, float(shape.bytes)
    width = (shape.heads + shape.heads_kv) * (shape.head_dim + shape.head_dim_v)  # of q, out, k, v
    if row["part"] == "backward":  # besides their gradients
        width *= 2
    rows = shape.rows * (1 if shape.lengths else shape.batch)
    return shape.operations(row["part"]), float(rows * width * DTYPE_BYTES[shape.dtype])


def _title(row: Row) -> str:
    return f"{row['part']}, {shapes.of_row(row)}"
