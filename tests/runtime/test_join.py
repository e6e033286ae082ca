"""csrc/core/split.cc against kiln/split.py: the same for whatever code, and out of bounds for no frame."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import nativebuild
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiln_build.artifacts import split

SLACK = 16
GUARD = b"\xa5" * 64
SHIM = """
#include "split.h"
extern "C" __attribute__((visibility("default"))) bool put_back(const uint8_t* frame, size_t frame_size,
                                                                 size_t size, uint8_t* work, uint8_t* out) {
  return kiln::join(frame, frame_size, size, work, out);
}
"""
CODE = st.lists(st.sampled_from([0x00, 0x7E, 0xBF, 0xC0, 0xD1, 0xD8, 0xE0, 0xF8, 0xFF]), max_size=300).map(bytes)
EDGES = st.lists(st.integers(0, 300), max_size=8)


def frame_of(raw: bytes, edges: list[int], name: str) -> bytes:
    """Between every second pair of edges lies what is said to be code."""
    edges = sorted(min(edge, len(raw)) for edge in edges)
    code = [(begin, end - begin) for begin, end in zip(edges[::2], edges[1::2])]
    return split.split(raw, split.INSTRUCTIONS[name], code)


FRAMES = st.builds(frame_of, CODE | st.binary(max_size=200), EDGES, st.sampled_from(list(split.INSTRUCTIONS)))


@pytest.fixture(scope="module")
def put_back(tmp_path_factory):
    folder = tmp_path_factory.mktemp("split")
    (folder / "shim.cc").write_text(SHIM)
    library = folder / "shim.so"
    nativebuild.run(["c++", *nativebuild.CXX_FLAGS, "-I", nativebuild.CORE, "-shared", folder / "shim.cc",
                     nativebuild.CORE / "split.cc", "-o", library])  # fmt: skip
    entry = ctypes.CDLL(str(library)).put_back
    entry.restype = ctypes.c_bool

    def put_back(frame: bytes, size: int) -> bytes | None:
        work, out = (ctypes.create_string_buffer(b"\0" * (size + SLACK) + GUARD) for _ in range(2))
        good = entry(frame, *map(ctypes.c_size_t, (len(frame), size)), work, out)
        assert work.raw[size + SLACK :].startswith(GUARD) and out.raw[size + SLACK :].startswith(GUARD)
        return out.raw[:size] if good else None

    return put_back


@given(raw=CODE | st.binary(max_size=400), edges=EDGES, name=st.sampled_from(list(split.INSTRUCTIONS)))
def test_what_python_sorted(put_back, raw, edges, name):
    frame = frame_of(raw, edges, name)
    assert put_back(frame, len(raw)) == raw
    assert put_back(frame, len(raw) + 1) is None


@given(frame=FRAMES | st.binary(max_size=600), data=st.data())
def test_a_malformed_frame_is_judged_as_python_judges_it(put_back, frame, data):
    bad = bytearray(frame)
    for _ in range(data.draw(st.integers(0, 3)) if bad else 0):
        bad[data.draw(st.integers(0, len(bad) - 1))] = data.draw(st.integers(0, 255))
    try:
        expected = split.join(bytes(bad))
    except ValueError:
        expected = None
    size = max(0, len(bad) - split.HEAD.size - 8 * int.from_bytes(bad[8:12], "little"))
    assert put_back(bytes(bad), size) == expected


def test_under_the_sanitizers(tmp_path):
    """The same by the thousand in a program of its own, each buffer as large as it must be and no larger."""
    (tmp_path / "main.cc").write_text(
        """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "split.h"
int main() {
  unsigned state = 7, good = 0;
  for (int turn = 0; turn < 20000; ++turn) {
    size_t size = (state >> 8) % 200;
    unsigned ranges = (state >> 5) % 4, left = static_cast<unsigned>(size);
    size_t frame_size = kiln::kFrameHead + 8 * ranges + size;
    uint8_t* frame = static_cast<uint8_t*>(malloc(frame_size));
    uint8_t* work = static_cast<uint8_t*>(malloc(size + kiln::kJoinSlack));
    uint8_t* out = static_cast<uint8_t*>(malloc(size + kiln::kJoinSlack));
    for (size_t i = 0; i < frame_size; ++i)
      frame[i] = static_cast<uint8_t>((state = state * 1103515245u + 12345u) >> 16);
    for (int i = 12; i < 268; ++i) frame[i] = static_cast<uint8_t>(turn % 3 ? 1 : frame[i] % 6);
    unsigned words = 0;
    for (unsigned i = 0; i < ranges; ++i) {  // of one word each, most of them as they should be
      unsigned range[2] = {(state >> 4) % (left + 1) / 2, (state >> 11) % (left + 1) / 8 * 4};
      left -= range[0] + range[1], words += range[1] / 4;
      memcpy(frame + 268 + 8 * i, range, 8);
    }
    unsigned head[3] = {turn % 7 == 0 ? 4u : turn % 4u, words + (turn % 5 == 0), ranges};
    memcpy(frame, head, 12);
    good += kiln::join(frame, frame_size, size, work, out);
    free(frame), free(work), free(out);
  }
  printf("%u\\n", good);
}
"""
    )
    flags = ["-std=c++17", "-O1", "-g", *nativebuild.SANITIZE, "-I", nativebuild.CORE]
    nativebuild.run(["c++", *flags, tmp_path / "main.cc", nativebuild.CORE / "split.cc", "-o", tmp_path / "main"])
    done = subprocess.run([tmp_path / "main"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert 1000 < int(done.stdout) < 19000, "both good and malformed frames were tried"
    sys.stdout.write(done.stdout)
