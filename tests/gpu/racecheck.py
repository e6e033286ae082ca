"""Judges what compute-sanitizer's racecheck reports of examples/matmul, beside what it reports of two programs that
have no race (scripts/barrier.cu).

    python3 tests/gpu/racecheck.py REPORT WHOLE PART

The tool forgets that a barrier of the whole block orders memory once a part of the block has used barrier 0 alone, as
the first partition of Triton's warp_specialize does. The last signal of that partition, which tells the other warps to
end, is then reported, although barrier 1 stands between the write and the reads. It is excused where the tool reports
as much of PART, which is right by construction, and nothing of WHOLE, which is the same without barrier 0. All else is
a race.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

FIRST_PARTITION = 128  # threads
END = 4  # what the signal says

_HAZARD = re.compile(
    r"Potential (?P<kind>\w+) hazard detected at __shared__ \S+ in block .*?"
    r"Write Thread \((?P<writer>\d+),0,0\) at (?P<write>.+?)\n.*?"
    r"Read Thread \((?P<reader>\d+),0,0\) at (?P<read>.+?)\n.*?"
    r"Current Value : (?P<value>\d+)",
    re.DOTALL,
)
_SUMMARY = re.compile(r"RACECHECK SUMMARY: (\d+) hazards? displayed")


@dataclass(frozen=True)
class Hazard:
    """A write and a read of one byte. `write`, `read`: the instruction's kernel and offset."""

    kind: str
    writer: int
    write: str
    reader: int
    read: str
    value: int

    @property
    def is_end_signal(self) -> bool:
        """Whether it may be that of matmul_hopper's first partition to the warps of the others."""
        return (
            self.kind == "RAW" and self.value == END and self.writer < FIRST_PARTITION <= self.reader
            and self.write.startswith("matmul_hopper+") and self.read.startswith("matmul_hopper+")
        )  # fmt: skip


def hazards(report: str) -> list[Hazard]:
    """Those that a report shows.

    Raises:
        ValueError: it has no end, or tells of something besides.
    """
    end = _SUMMARY.search(report)
    if not end:
        raise ValueError("the report has no summary: the tool did not come to its end")
    found = [
        Hazard(m["kind"], int(m["writer"]), m["write"], int(m["reader"]), m["read"], int(m["value"]))
        for m in _HAZARD.finditer(report)
    ]
    lines = report.count("Race reported between")  # each sums up hazards above it
    if len(found) + lines != int(end[1]):
        raise ValueError(f"the report has {end[1]} entries, of which {len(found) + lines} can be read")
    return found


def judge(report: str, whole: str, part: str) -> str:
    """What is wrong, or "" if nothing is."""
    found = hazards(report)
    if not found:
        return ""
    if hazards(whole) or not hazards(part):
        return "hazards are reported, and the tool is right about the programs without a race"
    races = [hazard for hazard in found if not hazard.is_end_signal]
    if races:
        return f"{len(races)} hazards that are not the end signal's, the first {races[0]}"
    # In one image the signal is written by one instruction, and read by one.
    writes, reads = {h.write for h in found}, {h.read for h in found}
    pairs = {(h.write, h.read) for h in found}
    if not len(pairs) == len(writes) == len(reads):
        return f"the end signal of one image is written or read in several places: {sorted(pairs)}"
    return ""


def main() -> int:
    report, whole, part = (Path(word).read_text() for word in sys.argv[1:4])
    if wrong := judge(report, whole, part):
        print(wrong)
        return 1
    found = hazards(report)
    print(f"{len(found)} hazards, all of the signal to end, as the tool reports of a program without a race"
          if found else "no hazards")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
