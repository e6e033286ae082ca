"""The judge of compute-sanitizer's races: what it excuses, and what it does not."""

from __future__ import annotations

import pytest
import racecheck

CLEAN = "========= COMPUTE-SANITIZER\n========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n"


def report(*hazards: tuple[str, int, str, int, str, int]) -> str:
    """As the tool writes it: hazards, then a line for each pair of instructions."""
    lines = ["========= COMPUTE-SANITIZER"]
    for kind, writer, write, reader, read, value in hazards:
        lines += [
            f"========= Error: Potential {kind} hazard detected at __shared__ 0x284c6 in block (3,0,0) :",
            f"=========     Write Thread ({writer},0,0) at {write}",
            f"=========     Read Thread ({reader},0,0) at {read}",
            f"=========     Current Value : {value}",
            "=========     Saved host backtrace",
        ]
    pairs = {(write, read) for _, _, write, _, read, _ in hazards}
    for write, read in sorted(pairs):
        lines.append(f"========= Error: Race reported between Write access at {write}")
        lines.append(f"=========     and Read access at {read}")
    lines.append(f"========= RACECHECK SUMMARY: {len(hazards) + len(pairs)} hazards displayed (2 errors)")
    return "\n".join(lines)


END = ("RAW", 95, "matmul_hopper+0x1730", 320, "matmul_hopper+0x17d0", 4)
PART = report(("RAW", 31, "void signal<(bool)1>(int *)+0x1b0", 160, "void signal<(bool)1>(int *)+0xf0", 4))


def changed(**fields: object) -> tuple:
    names = ("kind", "writer", "write", "reader", "read", "value")
    return tuple(fields.get(name, was) for name, was in zip(names, END))


def test_the_end_signal_alone_is_excused_where_the_tool_is_wrong_about_a_right_program():
    other_image = changed(write="matmul_hopper+0x10", read="matmul_hopper+0x20")
    assert racecheck.judge(CLEAN, CLEAN, CLEAN) == ""
    assert racecheck.judge(report(END, changed(writer=127), other_image), CLEAN, PART) == ""
    wrong = "the tool is right about the programs without a race"
    assert wrong in racecheck.judge(report(END), CLEAN, CLEAN)
    assert wrong in racecheck.judge(report(END), PART, PART)


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "WAW"}, {"writer": 200}, {"reader": 64}, {"write": "matmul_cdna+0x10"}, {"read": "attn_fwd+0x10"},
        {"value": 2},
    ],
)  # fmt: skip
def test_no_other_hazard_is_excused(fields):
    assert racecheck.judge(report(END, changed(**fields)), CLEAN, PART).startswith("1 hazards that are not the end")


@pytest.mark.parametrize("fields", [{"write": "matmul_hopper+0x40"}, {"read": "matmul_hopper+0x40"}])
def test_a_second_place_is_not_excused(fields):
    assert "in several places" in racecheck.judge(report(END, changed(**fields)), CLEAN, PART)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("========= COMPUTE-SANITIZER\n", "did not come to its end"),
        (report(END).replace("Write Thread", "Atomic Thread"), "has 2 entries, of which 1 can be read"),
    ],
)
def test_a_report_that_cannot_be_read_is_not_believed(text, words):
    with pytest.raises(ValueError, match=words):
        racecheck.judge(text, CLEAN, PART)
