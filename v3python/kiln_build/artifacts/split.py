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
    "rdna4": _amd(
        {**dict.fromkeys((0x32, 0x33, 0x35, 0x36, 0x3D, 0x3E), 2), **dict.fromkeys((0x31, 0x34, 0x39, 0x3B), 3)}
    ),
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
    """What `split` made the frame of; it takes memory for three times the frame at most.

    Raises:
        ValueError: it is no such frame.
    """
    if len(frame) < HEAD.size:
        raise ValueError("a frame is shorter than its head")
    selector, count, range_count, words = HEAD.unpack_from(frame)
    begin = HEAD.size + RANGE.size * range_count
    selectors = memoryview(frame)[begin : begin + count]
    counts = Counter(selectors)
    if selector > 3 or begin + count > len(frame) or any(not 1 <= words[opcode] <= LONGEST for opcode in counts):
        raise ValueError("a frame's head is malformed")
    if sum(4 * words[opcode] * number for opcode, number in counts.items()) > len(frame) - begin:
        raise ValueError("a frame ends within its planes")
    position = begin + count
    records: list[bytearray] = [bytearray()] * 256
    for opcode in sorted(counts):
        packed = bytearray(4 * words[opcode] * counts[opcode])
        for byte in range(4 * words[opcode]):
            if byte == selector:
                packed[byte :: 4 * words[opcode]] = bytes([opcode]) * counts[opcode]
                continue
            packed[byte :: 4 * words[opcode]] = frame[position : position + counts[opcode]]
            position += counts[opcode]
        records[opcode] = packed
    joined, next_selector, taken = bytearray(), 0, [0] * 256
    for skip, code_size in RANGE.iter_unpack(frame[HEAD.size : begin]):
        if skip > len(frame) - position:
            raise ValueError("a frame's ranges are malformed")
        joined += frame[position : position + skip]
        position += skip
        end = len(joined) + code_size
        while len(joined) < end and next_selector < count:
            opcode = selectors[next_selector]
            at = taken[opcode]
            taken[opcode] = at + 4 * words[opcode]
            joined += records[opcode][at : taken[opcode]]
            next_selector += 1
        if len(joined) != end:
            raise ValueError("a frame's ranges are malformed")
    if next_selector != count:
        raise ValueError("a frame's ranges are malformed")
    return bytes(joined + frame[position:])
