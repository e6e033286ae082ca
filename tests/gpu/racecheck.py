"""Judges what compute-sanitizer's racecheck reports, beside what it reports of three programs that have no race, and of
one that has (scripts/barrier.cu).

    python3 tests/gpu/racecheck.py REPORT WHOLE PART PHASES RACE

Of kernels whose warps have different work, the tool errs in two ways:

- It forgets that a barrier of the whole block orders memory once a part of the block has used barrier 0 alone, as the
  first partition of Triton's warp_specialize does. What that partition then tells the other warps is reported: where to
  begin, with which arguments, and when to end. PART is such a program; WHOLE is the same without barrier 0.
- It does not know that an mbarrier's phase orders memory. What one warp writes, and others read after a phase, is
  reported, and so is the next write after a phase the other way: the tiles that a producer announces to its consumers,
  and to the warps that transpose values for fp8 (tritonsrc/flash/hopper_tiles.py). PHASES is such a program. RACE is
  the same, in which two warps do not meet besides: the tool must report these.

A hazard is excused if it is one of these two and the tool errs about the program of its kind. Both are numbers: an
instruction writes a few bytes; what is announced, all lanes of one warp write to one place. All else is a race:
whatever one partition does alone, what readers of tiles do to one another or to the producer, and tiles. Copies of
tensor descriptors, and tiles that tensor cores read, are nothing that the tool sees.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

PARTITION = 128  # threads of the first partition
WARP = 32
PAIR = range(128, 192)  # the threads of RACE that do not meet
MOST_BYTES = 128  # that one instruction writes of such numbers, in all blocks and stages

# Functions whose producer announces tiles: by the producer's warp, how many warps from 0 on read them. Consumers have
# four each; warps 8 and 9, or of fp8 with three consumers 12 and 13, transpose values, or do nothing.
ANNOUNCING = {"attn_fwd_hopper": {10: 8}, "attn_prefill_hopper": {10: 8}, "attn_fwd_fp8": {10: 10, 14: 14}}
SPECIALIZED = (*ANNOUNCING, "matmul_hopper")  # those with partitions

_HAZARD = re.compile(
    r"Potential (?P<kind>\w+) hazard detected at __shared__ (?P<place>\S+) in block .*?\n"
    r"(?P<ends>(?:=+\s+(?:Write|Read) Thread .*\n){2})",
)
_END = re.compile(r"(Write|Read) Thread \((\d+),0,0\) at (.+)")
_SUMMARY = re.compile(r"RACECHECK SUMMARY: (\d+) hazards? displayed")


@dataclass(frozen=True)
class Hazard:
    """A write and a read of one byte. `write`, `read`: the instruction's kernel and offset. RAW: the write is first."""

    kind: str
    place: int
    writer: int
    write: str
    reader: int
    read: str

    @property
    def function(self) -> str:
        """Of both, or "" if they are of two."""
        written, read = (end.split("+")[0] for end in (self.write, self.read))
        return written if written == read else ""

    @property
    def is_of_the_first(self) -> bool:
        """Whether it may be what the first partition tells the others."""
        return self.kind == "RAW" and self.writer < PARTITION <= self.reader and self.function in SPECIALIZED

    @property
    def is_announced(self) -> bool:
        """Whether it may be of a tile that a producer announces. Of lanes that write to one place the tool names the
        last one before a read, the first one behind it."""
        warp, lane = divmod(self.writer, WARP)
        readers = ANNOUNCING.get(self.function, {}).get(warp, 0)
        return {"RAW": WARP - 1, "WAR": 0}.get(self.kind) == lane and self.reader < readers * WARP


def hazards(report: str) -> list[Hazard]:
    """Those that a report shows.

    Raises:
        ValueError: it has no end, or tells of something besides, or not of all.
    """
    end = _SUMMARY.search(report)
    if not end:
        raise ValueError("the report has no summary: the tool did not come to its end")
    found = []
    for match in _HAZARD.finditer(report):
        ends = {what: (int(thread), place) for what, thread, place in _END.findall(match["ends"])}
        if set(ends) == {"Write", "Read"}:
            found.append(Hazard(match["kind"], int(match["place"], 16), *ends["Write"], *ends["Read"]))
    lines = report.count("Race reported between")  # each sums up hazards above it
    if len(found) + lines != int(end[1]):
        raise ValueError(f"the report has {end[1]} entries, of which {len(found) + lines} can be read")
    return found


def wide(found: list[Hazard]) -> list[str]:
    """The instructions that write more than single numbers. Two images of one function may have one at one place."""
    places = defaultdict(set)
    for hazard in found:
        places[hazard.write].add(hazard.place)
    return sorted(write for write, bytes_ in places.items() if len(bytes_) >= MOST_BYTES)


def judge(report: str, whole: str, part: str, phases: str, race: str) -> str:
    """What is wrong, or "" if nothing is."""
    found = hazards(report)
    if not any(h.writer in PAIR and h.reader in PAIR for h in hazards(race)):
        return "no hazard is reported of two warps that race"
    if hazards(whole):
        return "hazards are reported of a program that has none, in which nothing is to confuse the tool"
    errs_of_part, errs_of_phases = bool(hazards(part)), bool(hazards(phases))
    races = [h for h in found if not (h.is_of_the_first and errs_of_part) and not (h.is_announced and errs_of_phases)]
    if races:
        return f"{len(races)} hazards that are not the tool's errors, the first {races[0]}"
    if instructions := wide(found):
        return f"more than numbers is written by {instructions}"
    return ""


def main() -> int:
    report, *programs = (Path(word).read_text() for word in sys.argv[1:6])
    if wrong := judge(report, *programs):
        print(wrong)
        return 1
    found = hazards(report)
    print(f"{len(found)} hazards, all such as the tool reports of programs without a race" if found else "no hazards")
    return 0


if __name__ == "__main__":
    sys.exit(main())
