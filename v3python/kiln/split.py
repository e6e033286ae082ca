"""Machine code sorted by opcode before it is compressed, and put back after.

A compressor that looks for repeated bytes sees little alike in two kernels that differ in their registers. Sorted, each
field of each opcode stands beside its like: the opcodes' sequence repeats, registers and offsets have few values each.
The idea is split-stream compression of code: Ernst, Evans, Fraser, Lucco, Proebsting, "Code Compression", PLDI 1997.
Ours knows no instruction: a byte of an instruction's first word, the selector, stands for the opcode and says how many
words follow. A wrong table costs ratio and nothing else.

What is compressed is a frame, little-endian:

    frame   = selector:u32 records:u32 ranges:u32 words:byte[256] range* selectors:byte[records] plane* rest
    range   = skip:u32 size:u32     ; so many bytes of the rest, then so many of records
    record  = words[s] words of 4 bytes, s being byte `selector` of the first
    plane   = for each s ascending, for each byte of a record of s but the selector: that byte of all such records
    rest    = what is in no record, as it is

Needs only the standard library: packs are inspected on machines that have no more. csrc/core/split.cc is its reader.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

HEAD = struct.Struct("<3I256s")
RANGE = struct.Struct("<2I")
LONGEST = 4  # words of a record


@dataclass(frozen=True)
class Instructions:
    """How an architecture's code is cut into records.

    Attributes:
        selector: which byte of a record's first word tells opcodes apart, 0 to 3.
        words: 256 numbers from 1 to LONGEST: words of a record, by that byte.
    """

    selector: int
    words: bytes


def _amd(long: dict[int, int]) -> Instructions:
    """AMD's encodings are told apart by the topmost six bits; `long` has the words of those with more than one. A
    literal after an instruction counts as a record of its own."""
    return Instructions(3, bytes(long.get(top >> 2, 1) for top in range(256)))


# AMD's instruction set references (section "Microcode Formats") give the encodings; NVIDIA's instructions have 16 bytes
# since Volta, the opcode's low bits first.
INSTRUCTIONS = {
    "sass": Instructions(0, bytes([4] * 256)),
    "gcn": _amd(dict.fromkeys((0x30, 0x31, 0x34, 0x36, 0x37, 0x38, 0x3A, 0x3C), 2)),
    "rdna": _amd(dict.fromkeys((0x32, 0x33, 0x35, 0x36, 0x37, 0x38, 0x3A, 0x3C, 0x3D, 0x3E), 2)),
    "rdna4": _amd(dict.fromkeys((0x32, 0x33, 0x35, 0x36, 0x3D, 0x3E), 2) | dict.fromkeys((0x31, 0x34, 0x39, 0x3B), 3)),
}


def largest_frame(size: int) -> int:
    """The most bytes of a frame of `size` bytes: a range takes eight, and has a record of four or more."""
    return HEAD.size + 3 * size


def split(raw: bytes, instructions: Instructions, code: Iterable[tuple[int, int]]) -> bytes:
    """The frame of `raw`; `code` are (offset, bytes) of what is cut into records, in ascending order."""
    selector, words = instructions.selector, instructions.words
    places: dict[int, list[int]] = {}
    selectors, ranges, rest, done = bytearray(), bytearray(), bytearray(), 0
    for begin, size in code:
        position, end = begin, begin + size
        while position + 4 <= end:
            opcode = raw[position + selector]
            if position + 4 * words[opcode] > end:
                break
            selectors.append(opcode)
            places.setdefault(opcode, []).append(position)
            position += 4 * words[opcode]
        if position > begin:
            ranges += RANGE.pack(begin - done, position - begin)
            rest += raw[done:begin]
            done = position
    planes = [
        bytes([raw[place + byte] for place in places[opcode]])
        for opcode in sorted(places)
        for byte in range(4 * words[opcode])
        if byte != selector
    ]
    head = HEAD.pack(selector, len(selectors), len(ranges) // RANGE.size, words)
    return b"".join([head, ranges, selectors, *planes, rest, raw[done:]])


def join(frame: bytes) -> bytes:
    """What `split` made the frame of.

    Raises:
        ValueError: it is no such frame.
    """
    if len(frame) < HEAD.size:
        raise ValueError("a frame is shorter than its head")
    selector, count, range_count, words = HEAD.unpack_from(frame)
    begin = HEAD.size + RANGE.size * range_count
    selectors = frame[begin : begin + count]
    counts = Counter(selectors)
    if selector > 3 or begin + count > len(frame) or any(not 1 <= words[opcode] <= LONGEST for opcode in counts):
        raise ValueError("a frame's head is malformed")
    position = begin + count
    records = {}
    for opcode in sorted(counts):
        size = 4 * words[opcode]
        packed = bytearray(size * counts[opcode])
        for byte in range(size):
            if byte == selector:
                packed[byte::size] = bytes([opcode]) * counts[opcode]
                continue
            plane = frame[position : position + counts[opcode]]
            if len(plane) != counts[opcode]:
                raise ValueError("a frame ends within its planes")
            packed[byte::size] = plane
            position += counts[opcode]
        records[opcode] = iter([bytes(packed[at : at + size]) for at in range(0, len(packed), size)])
    code = b"".join([next(records[opcode]) for opcode in selectors])
    ends = {0, *accumulate(4 * words[opcode] for opcode in selectors)}
    parts, done = [], 0
    for skip, size in RANGE.iter_unpack(frame[HEAD.size : begin]):
        if skip > len(frame) - position or done + size not in ends:
            raise ValueError("a frame's ranges are malformed")
        parts += frame[position : position + skip], code[done : done + size]
        position += skip
        done += size
    if done != len(code):
        raise ValueError("a frame's ranges are malformed")
    return b"".join([*parts, frame[position:]])
