"""Windows: what libkiln is told must mean the keys that AOTriton's numbers mean, for every row and key."""

from __future__ import annotations

import ctypes

import nativebuild
import pytest
from aotriton_interface import BOTTOM_RIGHT, TOP_LEFT
from fake_release import hip_headers
from hypothesis import given, settings
from hypothesis import strategies as st
from nativebuild import ROOT, run

WRAPPER = """
#include "window.h"
extern "C" int find(int left, int right, long rows, long keys, int exact, long* out) {
  kiln_aotriton::Window window;
  if (!kiln_aotriton::find_window(left, right, {rows, keys, exact != 0}, &window)) return 0;
  out[0] = window.left, out[1] = window.right, out[2] = window.bottom_right;
  return 1;
}
"""


@pytest.fixture(scope="module")
def find(tmp_path_factory):
    """(left, right, rows, keys, exact) -> (window_left, window_right, bottom_right), or None."""
    folder = tmp_path_factory.mktemp("window")
    (folder / "wrapper.cc").write_text(WRAPPER)
    source = ROOT / "csrc/aotriton/window.cc"
    run(["c++", *nativebuild.CXX_FLAGS, "-fvisibility=default", "-shared", "-I", source.parent, "-I", ROOT / "include",
         "-isystem", hip_headers(), source, folder / "wrapper.cc", "-o", folder / "window.so"])  # fmt: skip
    function = ctypes.CDLL(str(folder / "window.so")).find
    function.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long, ctypes.c_int, ctypes.c_void_p]

    def call(*arguments: int) -> tuple[int, ...] | None:
        out = (ctypes.c_long * 3)()
        return tuple(out) if function(*arguments, out) else None

    return call


def wanted(left: int, right: int, rows: int, keys: int) -> set[tuple[int, int]]:
    """Rows and the keys that they see, as AOTriton counts."""
    most = rows + keys
    before = most if left in (TOP_LEFT, BOTTOM_RIGHT) else left
    behind = {TOP_LEFT: 0, BOTTOM_RIGHT: keys - rows}.get(right, right)
    return {(i, j) for i in range(rows) for j in range(keys) if i - before <= j <= i + behind}


def got(window: tuple[int, ...], rows: int, keys: int) -> set[tuple[int, int]]:
    """The same as kiln/flash.h has it."""
    left, right, bottom_right = window
    d = keys - rows if bottom_right else 0
    return {
        (i, j)
        for i in range(rows)
        for j in range(keys)
        if (left < 0 or i + d - left <= j) and (right < 0 or j <= i + d + right)
    }


SIDE = st.sampled_from([TOP_LEFT, BOTTOM_RIGHT]) | st.integers(-12, 12)
LENGTH = st.integers(1, 9)


@settings(max_examples=1500, deadline=None)
@given(SIDE, SIDE, LENGTH, LENGTH)
def test_sequences_of_one_length(find, left, right, rows, keys):
    window, seen = find(left, right, rows, keys, 1), wanted(left, right, rows, keys)
    if window:
        assert got(window, rows, keys) == seen
    elif seen:  # where rows see keys at all, no window says the same
        sides = range(-1, rows + keys)
        assert all(got((a, b, c), rows, keys) != seen for a in sides for b in sides for c in (0, 1))


@settings(max_examples=1500, deadline=None)
@given(SIDE, SIDE, LENGTH, LENGTH)
def test_sequences_of_several_lengths(find, left, right, rows, keys):
    window = find(left, right, rows, keys, 0)
    if window:
        for i in range(rows + 1):
            for j in range(keys + 1):
                assert got(window, i, j) == wanted(left, right, i, j), (i, j)


def test_what_sequences_of_several_lengths_can_have(find):
    aligned = ((TOP_LEFT, TOP_LEFT), (BOTTOM_RIGHT, BOTTOM_RIGHT), (TOP_LEFT, BOTTOM_RIGHT))
    for sides in (*aligned, (0, 0), (5, 2), (5, TOP_LEFT)):
        assert find(*sides, 100, 100, 0), sides
    assert not find(5, BOTTOM_RIGHT, 100, 100, 0)
    assert find(99, BOTTOM_RIGHT, 100, 100, 0) == (-1, 0, 1), "that is all rows"
