"""Sorting code by opcode: whatever goes in comes out again, and no frame does harm."""

from __future__ import annotations

import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiln_build.artifacts import split
from kiln_recipe import targets

# A few opcodes only, so that records repeat.
CODE = st.lists(st.sampled_from([0x00, 0x7E, 0xBF, 0xC0, 0xD1, 0xD8, 0xE0, 0xF8, 0xFF]), max_size=200).map(bytes)


@st.composite
def pieces(draw) -> tuple[bytes, list[tuple[int, int]]]:
    """Bytes, and ranges of them that are said to be code."""
    raw = draw(st.binary(max_size=300) | CODE)
    edges = sorted(draw(st.lists(st.integers(0, len(raw)), max_size=8)))
    return raw, [(begin, end - begin) for begin, end in zip(edges[::2], edges[1::2])]


@given(made=pieces(), name=st.sampled_from(list(split.INSTRUCTIONS)))
def test_round_trip(made, name):
    raw, code = made
    frame = split.split(raw, split.INSTRUCTIONS[name], code)
    assert split.HEAD.size + len(raw) <= len(frame) <= split.largest_frame(len(raw))
    assert split.join(frame) == raw


FRAMES = pieces().map(lambda made: split.split(made[0], split.INSTRUCTIONS["rdna4"], made[1]))


@given(frame=st.binary(max_size=20) | FRAMES, data=st.data())
def test_a_malformed_frame_is_refused_or_joined(frame, data):
    bad = bytearray(frame)
    for _ in range(data.draw(st.integers(0, 4)) if bad else 0):
        bad[data.draw(st.integers(0, len(bad) - 1))] = data.draw(st.integers(0, 255))
    try:
        raw = split.join(bytes(bad[: data.draw(st.integers(0, len(bad)))]))
    except ValueError as error:
        assert str(error).startswith("a frame")
    else:
        assert len(raw) <= max(0, len(bad) - split.HEAD.size)


@pytest.mark.parametrize("ranges", [1, 2**32 - 1])
def test_a_frame_that_ends_within_its_ranges(ranges):
    """Without a selector behind them that could be missing too."""
    for size in range(min(8 * ranges, 20)):
        with pytest.raises(ValueError, match="malformed"):
            split.join(split.HEAD.pack(0, 0, ranges, bytes([4] * 256)) + bytes(size))


def test_every_target_says_what_its_code_is_made_of():
    for target in targets.load():
        coding = split.INSTRUCTIONS[target.instructions]
        assert len(coding.words) == 256 and set(coding.words) <= set(range(1, split.LONGEST + 1))


@pytest.mark.parametrize("name", split.INSTRUCTIONS)
def test_code_that_differs_in_registers_packs_better(name):
    """The same instructions over and over, with other operands each time: what a kernel's variants look like."""
    coding = split.INSTRUCTIONS[name]
    source = random.Random(1)
    program = [source.choice((0x02, 0x7E, 0xBF, 0xD1, 0xD8, 0xE0)) for _ in range(500)]
    raw = bytearray()
    for opcode in program * 20:
        record = bytearray(4 * coding.words[opcode])
        record[coding.selector] = opcode
        record[(coding.selector + 1) % 4] = source.randrange(16)
        raw += record
    sorted_size = len(zlib.compress(split.split(bytes(raw), coding, [(0, len(raw))]), 9))
    assert sorted_size < 0.8 * len(zlib.compress(bytes(raw), 9))
