"""csrc/core/split.cc against kiln/split.py: the same for whatever code, and out of bounds for no frame."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import nativebuild
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiln import split

SLACK = 16
GUARD = b"\xa5" * 64
SHIM = """
#include "split.h"
extern "C" __attribute__((visibility("default"))) bool put_back(const uint8_t* frame, size_t size, uint8_t* work,
                                                                 uint8_t* out) {
  return kiln::join(frame, size, work, out);
}
"""
CODE = st.lists(st.sampled_from([0x00, 0x7E, 0xBF, 0xC0, 0xD1, 0xD8, 0xE0, 0xF8, 0xFF]), max_size=300).map(bytes)
FRAMES = st.builds(
    lambda raw, name: split.split(raw, split.INSTRUCTIONS[name]),
    CODE | st.binary(max_size=200),
    st.sampled_from(list(split.INSTRUCTIONS)),
)


@pytest.fixture(scope="module")
def put_back(tmp_path_factory):
    folder = tmp_path_factory.mktemp("split")
    (folder / "shim.cc").write_text(SHIM)
    library = folder / "shim.so"
    nativebuild.run(["c++", *nativebuild.CXX_FLAGS, "-I", nativebuild.CORE, "-shared", folder / "shim.cc",
                     nativebuild.CORE / "split.cc", "-o", library])  # fmt: skip
    entry = ctypes.CDLL(str(library)).put_back
    entry.restype = ctypes.c_bool

    def put_back(frame: bytes) -> bytes | None:
        size = len(frame) - split.HEAD.size
        work, out = (ctypes.create_string_buffer(b"\0" * (size + SLACK) + GUARD) for _ in range(2))
        good = entry(frame, ctypes.c_size_t(size), work, out)
        assert work.raw[size + SLACK :].startswith(GUARD) and out.raw[size + SLACK :].startswith(GUARD)
        return out.raw[:size] if good else None

    return put_back


@given(raw=CODE | st.binary(max_size=400), name=st.sampled_from([*split.INSTRUCTIONS, None]))
def test_what_python_sorted(put_back, raw, name):
    assert put_back(split.split(raw, name and split.INSTRUCTIONS[name])) == raw


@given(frame=FRAMES | st.binary(min_size=split.HEAD.size, max_size=600), data=st.data())
def test_a_malformed_frame_is_judged_as_python_judges_it(put_back, frame, data):
    bad = bytearray(frame)
    for _ in range(data.draw(st.integers(0, 3))):
        bad[data.draw(st.integers(0, len(bad) - 1))] = data.draw(st.integers(0, 255))
    try:
        expected = split.join(bytes(bad))
    except ValueError:
        expected = None
    assert put_back(bytes(bad)) == expected


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
    uint8_t* frame = static_cast<uint8_t*>(malloc(size + kiln::kFrameHead));
    uint8_t* work = static_cast<uint8_t*>(malloc(size + kiln::kJoinSlack));
    uint8_t* out = static_cast<uint8_t*>(malloc(size + kiln::kJoinSlack));
    for (size_t i = 0; i < size + kiln::kFrameHead; ++i)
      frame[i] = static_cast<uint8_t>((state = state * 1103515245u + 12345u) >> 16);
    memset(frame, 0, 8);
    frame[0] = static_cast<uint8_t>(turn % 5), frame[4] = static_cast<uint8_t>((state >> 9) % 60);
    for (int i = 8; i < 264; ++i) frame[i] = static_cast<uint8_t>(turn % 3 ? 1 + frame[i] % 4 : frame[i] % 6);
    good += kiln::join(frame, size, work, out);
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
