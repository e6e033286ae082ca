"""Plots are made small, and look the same."""

from __future__ import annotations

import itertools
import math
import sys
import xml.dom.minidom

import pytest
from hypothesis import given
from hypothesis import strategies as st

from small_release import ROOT

sys.path.insert(0, str(ROOT / "docs"))
import small_svg

NUMBERS = st.floats(-1000, 1000).map(lambda number: round(number, 6))


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=2, max_size=40))
def test_no_point_is_further_from_the_line_than_allowed(points):
    kept = small_svg.simplified(points)
    assert kept[0] == points[0] and kept[-1] == points[-1] and set(kept) <= set(points)
    segments = list(itertools.pairwise(kept))
    for point in points:
        assert min(small_svg._distance(point, *segment) for segment in segments) <= small_svg.TOLERANCE + 1e-9


def test_a_plot_of_matplotlib_becomes_small():
    curve = "M 0.123456 100.5 \n" + "".join(f"L {x / 10} {100 + math.sin(x / 100):.6f} \n" for x in range(1, 5000))
    plot = (
        '<?xml version="1.0"?>\n<!DOCTYPE svg PUBLIC "-//W3C//DTD SVG 1.1//EN"\n "x">\n<svg viewBox="0 0 792 518.4">\n'
        f' <metadata>\n  <a/>\n </metadata>\n <g>\n  <!-- 2.0 -->\n  <path d="{curve}" style="fill: none"/>\n'
        '  <path d="M 1 2 \nQ 3.001 4 5 -0.0001 \nz\n"/>\n  <text x="1.234567">Kiln, 4 runs</text>\n </g>\n</svg>\n'
    )
    small = small_svg.shrunk(plot)
    xml.dom.minidom.parseString(small)
    assert len(small) < len(plot) / 50 and small.count("\n") == 5
    assert '"M 0.12 100.5 L ' in small and '"M 1 2 Q 3 4 5 0 z"' in small
    assert '<text x="1.23">Kiln, 4 runs</text>' in small and 'viewBox="0 0 792 518.4"' in small


@pytest.mark.parametrize("path", sorted((ROOT / "docs/measurements").glob("*.svg")), ids=lambda path: path.name)
def test_the_plots_in_the_tree_are_small(path):
    assert len(path.read_text()) < 100_000 and len(path.read_text().splitlines()) < 400
