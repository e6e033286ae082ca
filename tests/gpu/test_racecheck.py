"""The judge of compute-sanitizer's races: what it excuses, and what it does not."""

from __future__ import annotations

import pytest
import racecheck

CLEAN = "========= COMPUTE-SANITIZER\n========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n"


Reported = tuple[str, int, int, str, int, str]  # kind, place, writer, write, reader, read


def report(*hazards: Reported) -> str:
    """As the tool writes it: hazards, the earlier access first, then a line for each pair of instructions."""
    lines = ["========= COMPUTE-SANITIZER"]
    for kind, place, writer, write, reader, read in hazards:
        ends = [f"Write Thread ({writer},0,0) at {write}", f"Read Thread ({reader},0,0) at {read}"]
        lines.append(f"========= Error: Potential {kind} hazard detected at __shared__ {place:#x} in block (3,0,0) :")
        lines += [f"=========     {end}" for end in (ends if kind == "RAW" else ends[::-1])]
        lines += ["=========     Current Value : 4", "=========     Saved host backtrace"]
    pairs = {(write, read) for _, _, _, write, _, read in hazards}
    for write, read in sorted(pairs):
        lines.append(f"========= Error: Race reported between Write access at {write}")
        lines.append(f"=========     and Read access at {read}")
    lines.append(f"========= RACECHECK SUMMARY: {len(hazards) + len(pairs)} hazards displayed (2 errors)")
    return "\n".join(lines)


NAMES = ("kind", "place", "writer", "write", "reader", "read")
SIGNAL = ("RAW", 0x284C6, 95, "matmul_hopper+0x1730", 320, "matmul_hopper+0x17d0")
TILE = ("RAW", 0x24574, 351, "attn_fwd_hopper+0x1730", 128, "attn_fwd_hopper+0x17d0")
NEXT = ("WAR", 0x24574, 320, "attn_fwd_hopper+0x1730", 96, "attn_fwd_hopper+0x17d0")
PART = report(("RAW", 0x400, 31, "void signal<(bool)1>(int *)+0x1b0", 160, "void signal<(bool)1>(int *)+0xf0"))
FP8 = ("RAW", 0x30620, 479, "attn_fwd_fp8+0x1730", 256, "attn_fwd_fp8+0x17d0")
PHASES = report(("WAR", 0x400, 128, "phases(int *)+0x1b0", 31, "phases(int *)+0xf0"))
RACE = report(("RAW", 0x404, 128, "phases(int *)+0x1b0", 160, "phases(int *)+0xf0"))


def changed(hazard: Reported, **fields: object) -> Reported:
    return tuple(fields.get(name, was) for name, was in zip(NAMES, hazard))


def test_what_the_tool_errs_about_is_excused_as_long_as_it_errs_about_a_right_program():
    assert racecheck.judge(CLEAN, CLEAN, CLEAN, CLEAN, RACE) == ""
    found = report(SIGNAL, changed(SIGNAL, writer=127), TILE, changed(TILE, place=0x245B4), NEXT,
                   FP8, changed(FP8, reader=416), changed(FP8, writer=351))  # fmt: skip
    assert racecheck.judge(found, CLEAN, PART, PHASES, RACE) == ""
    wrong = "not the tool's errors"
    assert racecheck.judge(found, CLEAN, CLEAN, PHASES, RACE).startswith("2 hazards that are " + wrong)
    assert racecheck.judge(found, CLEAN, PART, CLEAN, RACE).startswith("6 hazards that are " + wrong)
    assert "nothing is to confuse the tool" in racecheck.judge(found, PART, PART, PHASES, RACE)


@pytest.mark.parametrize(
    "hazard",
    [
        changed(SIGNAL, kind="WAW"), changed(SIGNAL, kind="WAR"), changed(SIGNAL, writer=200),
        changed(SIGNAL, reader=64), changed(SIGNAL, write="attn_fwd+0x10", read="attn_fwd+0x20"),
        changed(SIGNAL, read="attn_fwd_hopper+0x10"), changed(TILE, writer=200), changed(TILE, reader=300),
        changed(NEXT, reader=256), changed(TILE, write="attn_bwd_hopper+0x10", read="attn_bwd_hopper+0x20"),
        changed(TILE, writer=350), changed(NEXT, writer=321), changed(TILE, writer=383), changed(FP8, reader=448),
        changed(FP8, writer=351, reader=320), changed(FP8, writer=383), changed(FP8, writer=478),
        changed(FP8, kind="WAR"), changed(FP8, writer=415, reader=384),
    ],
)  # fmt: skip
def test_no_other_hazard_is_excused(hazard):
    found = racecheck.judge(report(hazard), CLEAN, PART, PHASES, RACE)
    assert found.startswith("1 hazards that are not the tool's errors")


@pytest.mark.parametrize("race", [CLEAN, PHASES])
def test_a_tool_that_misses_a_race_is_not_believed(race):
    assert racecheck.judge(CLEAN, CLEAN, PART, PHASES, race) == "no hazard is reported of two warps that race"


@pytest.mark.parametrize("hazard", [SIGNAL, TILE, FP8])
def test_what_writes_more_than_numbers_is_not_excused(hazard):
    found = report(*(changed(hazard, place=hazard[1] + 8 * byte) for byte in range(racecheck.MOST_BYTES)))
    assert racecheck.judge(found, CLEAN, PART, PHASES, RACE) == f"more than numbers is written by ['{hazard[3]}']"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("========= COMPUTE-SANITIZER\n", "did not come to its end"),
        (report(SIGNAL).replace("Write Thread", "Atomic Thread"), "has 2 entries, of which 1 can be read"),
    ],
)
def test_a_report_that_cannot_be_read_is_not_believed(text, words):
    with pytest.raises(ValueError, match=words):
        racecheck.judge(text, CLEAN, PART, PHASES, RACE)
