"""Makes matplotlib's SVG small: no metadata, one drawn element per line, coordinates in hundredths of a point, and
lines without the points that make no visible difference."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

TOLERANCE = 0.25  # points; half the width of a thin line

Point = tuple[float, float]


def shrink(path: Path) -> None:
    """Rewrites the file."""
    path.write_text(shrunk(path.read_text()))


def shrunk(text: str) -> str:
    """The same picture in fewer lines and bytes."""
    text = re.sub(r"<\?xml.*?\?>|<!DOCTYPE.*?>|<!--.*?-->|<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'(\sd=")([^"]*)(")', lambda match: match[1] + _path(match[2]) + match[3], text)
    text = re.sub(r'(\s(?:x|y|width|height)=")(-?\d+\.\d+)(")', lambda m: m[1] + _short(float(m[2])) + m[3], text)
    text = re.sub(r">\s+<", "><", text).strip()
    return re.sub(r"(?<=>)(?=<(?:path|text|use|svg|/svg)\b)", "\n", text) + "\n"


def simplified(points: Sequence[Point], tolerance: float = TOLERANCE) -> list[Point]:
    """A line that is nowhere further than `tolerance` from the given one (Ramer, Douglas and Peucker)."""
    kept = {0, len(points) - 1}
    waiting = [(0, len(points) - 1)]
    while waiting:
        first, last = waiting.pop()
        inner = range(first + 1, last)
        far = max(inner, key=lambda i: _distance(points[i], points[first], points[last]), default=first)
        if far != first and _distance(points[far], points[first], points[last]) > tolerance:
            kept.add(far)
            waiting += [(first, far), (far, last)]
    return [points[i] for i in sorted(kept)]


def _distance(point: Point, start: Point, end: Point) -> float:
    """From a point to a segment."""
    dx, dy = end[0] - start[0], end[1] - start[1]
    length = dx * dx + dy * dy
    along = ((point[0] - start[0]) * dx + (point[1] - start[1]) * dy) / length if length else 0.0
    along = min(1.0, max(0.0, along))
    return ((point[0] - start[0] - along * dx) ** 2 + (point[1] - start[1] - along * dy) ** 2) ** 0.5


def _path(data: str) -> str:
    words = data.split()
    is_line = len(words) % 3 == 0 and words[:1] == ["M"] and all(word == "L" for word in words[3::3])
    if is_line and len(words) > 6:
        points = simplified([(float(x), float(y)) for x, y in zip(words[1::3], words[2::3])])
        words = [word for x, y in points for word in ("L", str(x), str(y))]
        words[0] = "M"
    return " ".join(word if word.isalpha() else _short(float(word)) for word in words)


def _short(number: float) -> str:
    text = f"{number:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text
