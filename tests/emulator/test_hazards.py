"""What the executor must see besides results: each check is quiet on a right program, and fires where one thing is
taken out of it."""

from __future__ import annotations

import numpy as np
import pytest
from launching import Kernel, Outcome
from records import LaunchFlag

CDNA, RDNA3, RDNA4 = "gfx942", "gfx1100", "gfx1201"


def run(target: str, text: str, **options: object) -> Outcome:
    lds = int(options.pop("lds", 0))  # type: ignore[call-overload]
    memory = np.arange(4096, dtype=np.uint32)
    return Kernel(target, text, lds=lds).launch(memory, **options)  # type: ignore[arg-type]


def both(target: str, text: str, check: str, **options: object) -> Outcome:
    """Runs `text` with and without its lines that begin with a star, which the first needs to be right."""
    whole = text.replace("*", "")
    outcome = run(target, whole, **options)
    assert outcome.check == "ok", outcome.why
    assert "*" in text
    broken = "\n".join(line for line in text.splitlines() if not line.strip().startswith("*"))
    outcome = run(target, broken, **options)
    assert outcome.check == check, outcome.why
    return outcome


# ---- results that are outstanding ---------------------------------------------------------------------------------

LOADS = {
    # The lower half may be used while the upper one is still to come.
    "half of a register": (RDNA4, """
        s_load_b64 s[4:5], s[0:1], 0x0
        s_wait_kmcnt 0x0
        v_mov_b32 v1, 0
        v_mov_b32 v2, 0
        global_load_d16_b16 v2, v1, s[4:5]
        global_load_d16_hi_b16 v2, v1, s[4:5] offset:4
        *s_wait_loadcnt 0x1
        global_store_b16 v1, v2, s[4:5] offset:8
        *s_wait_loadcnt 0x0
        global_store_d16_hi_b16 v1, v2, s[4:5] offset:12
        s_endpgm"""),
    "the other half of a register": (RDNA4, """
        s_load_b64 s[4:5], s[0:1], 0x0
        s_wait_kmcnt 0x0
        v_mov_b32 v1, 0
        v_mov_b32 v2, 0
        global_load_d16_b16 v2, v1, s[4:5]
        global_store_d16_hi_b16 v1, v2, s[4:5] offset:8
        *s_wait_loadcnt 0x0
        global_store_b16 v1, v2, s[4:5] offset:12
        s_endpgm"""),
    "vector": (CDNA, """
        s_load_dwordx2 s[4:5], s[0:1], 0x0
        s_waitcnt lgkmcnt(0)
        v_mov_b32 v1, 0
        global_load_dword v2, v1, s[4:5]
        *s_waitcnt vmcnt(0)
        v_add_u32 v3, v2, v2
        s_endpgm"""),
    "overwritten": (CDNA, """
        s_load_dwordx2 s[4:5], s[0:1], 0x0
        s_waitcnt lgkmcnt(0)
        v_mov_b32 v1, 0
        global_load_dwordx2 v[2:3], v1, s[4:5]
        *s_waitcnt vmcnt(0)
        v_mov_b32 v3, 0
        s_endpgm"""),
    "scalar": (CDNA, """
        s_load_dwordx2 s[4:5], s[0:1], 0x0
        *s_waitcnt lgkmcnt(0)
        s_add_u32 s6, s4, s5
        s_endpgm"""),
    "address": (CDNA, """
        s_load_dwordx2 s[4:5], s[0:1], 0x0
        v_mov_b32 v1, 0
        *s_waitcnt lgkmcnt(0)
        global_load_dword v2, v1, s[4:5]
        s_endpgm"""),
    "second of two": (CDNA, """
        s_load_dwordx2 s[4:5], s[0:1], 0x0
        s_waitcnt lgkmcnt(0)
        v_mov_b32 v1, 0
        global_load_dword v2, v1, s[4:5]
        global_load_dword v3, v1, s[4:5] offset:4
        s_waitcnt vmcnt(1)
        v_mov_b32 v4, v2
        *s_waitcnt vmcnt(0)
        v_mov_b32 v4, v3
        s_endpgm"""),
    "stores count with loads": (CDNA, """
        s_load_dwordx2 s[4:5], s[0:1], 0x0
        s_waitcnt lgkmcnt(0)
        v_mov_b32 v1, 0
        global_load_dword v2, v1, s[4:5]
        global_store_dword v1, v1, s[4:5] offset:4
        *s_waitcnt vmcnt(1)
        v_mov_b32 v4, v2
        s_endpgm"""),
    "stores have a counter of their own": (RDNA3, """
        s_load_b64 s[4:5], s[0:1], 0x0
        s_waitcnt lgkmcnt(0)
        v_mov_b32 v1, 0
        global_load_b32 v2, v1, s[4:5]
        global_store_b32 v1, v1, s[4:5] offset:4
        *s_waitcnt vmcnt(0)
        v_mov_b32 v4, v2
        s_endpgm"""),
    "LDS": (CDNA, """
        v_mov_b32 v1, 0
        ds_write_b32 v1, v1
        ds_read_b32 v2, v1
        ds_read_b32 v3, v1
        *s_waitcnt lgkmcnt(1)
        v_mov_b32 v4, v2
        s_endpgm"""),
    "an accumulation register": (CDNA, """
        v_mov_b32 v1, 0
        ds_write_b32 v1, v1
        ds_read_b32 a2, v1
        *s_waitcnt lgkmcnt(0)
        v_accvgpr_read_b32 v4, a2
        s_endpgm"""),
    "gfx12 scalar": (RDNA4, """
        s_load_b64 s[4:5], s[0:1], 0x0
        *s_wait_kmcnt 0x0
        s_add_co_u32 s6, s4, s5
        s_endpgm"""),
    "gfx12 vector": (RDNA4, """
        s_load_b64 s[4:5], s[0:1], 0x0
        s_wait_kmcnt 0x0
        v_mov_b32 v1, 0
        global_load_b32 v2, v1, s[4:5]
        *s_wait_loadcnt 0x0
        v_mov_b32 v4, v2
        s_endpgm"""),
    "gfx12 LDS": (RDNA4, """
        v_mov_b32 v1, 0
        ds_store_b32 v1, v1
        ds_load_b32 v2, v1
        *s_wait_dscnt 0x0
        v_mov_b32 v4, v2
        s_endpgm"""),
}  # fmt: skip


@pytest.mark.parametrize("name", LOADS)
def test_a_result_is_used_only_after_its_wait(name: str) -> None:
    target, text = LOADS[name]
    outcome = both(target, text, "outstanding", lds=64)
    assert "a wait is missing" in outcome.why


def test_scalar_loads_come_in_any_order() -> None:
    """So that a wait for all but one proves neither."""
    text = """
        s_load_dword s4, s[0:1], 0x0
        s_load_dword s5, s[0:1], 0x4
        s_waitcnt lgkmcnt({left})
        s_mov_b32 s6, s4
        s_endpgm"""
    assert run(CDNA, text.format(left=0)).check == "ok"
    assert run(CDNA, text.format(left=1)).check == "outstanding"


def test_a_scalar_load_may_overtake_lds() -> None:
    """Of two outstanding accesses, one that has returned may be the scalar load."""
    text = """
        v_mov_b32 v1, 0
        ds_write_b32 v1, v1
        s_waitcnt lgkmcnt(0)
        ds_read_b32 v2, v1
        s_load_dword s4, s[0:1], 0x0
        s_waitcnt lgkmcnt({left})
        v_mov_b32 v3, v2
        s_endpgm"""
    assert run(CDNA, text.format(left=0), lds=64).check == "ok"
    assert run(CDNA, text.format(left=1), lds=64).check == "outstanding"


def test_a_full_counter_waits_for_the_oldest() -> None:
    reads = "\n".join(f"ds_read_b32 v{2 + k}, v1" for k in range(17))
    text = f"v_mov_b32 v1, 0\nds_write_b32 v1, v1\n{reads}\nv_mov_b32 v0, v{{register}}\ns_endpgm"
    assert run(CDNA, text.format(register=2), lds=64).check == "ok"
    assert run(CDNA, text.format(register=10), lds=64).check == "outstanding"


def test_halves_of_a_register_are_loaded_in_order() -> None:
    assert run(RDNA4, """
        v_mov_b32 v1, 0
        ds_store_b32 v1, v1
        ds_load_u16_d16 v2, v1
        ds_load_u16_d16_hi v2, v1
        s_wait_dscnt 0x0
        v_mov_b32 v3, v2
        s_endpgm""", lds=64).check == "ok"  # fmt: skip


def test_what_a_store_has_read_may_be_overwritten() -> None:
    assert run(CDNA, """
        s_load_dwordx2 s[4:5], s[0:1], 0x0
        s_waitcnt lgkmcnt(0)
        v_mov_b32 v1, 0
        global_store_dword v1, v1, s[4:5]
        v_mov_b32 v1, 1
        s_endpgm""").check == "ok"  # fmt: skip


# ---- words of LDS between waves -----------------------------------------------------------------------------------

# Each wave writes its words, and reads another's behind a barrier: lane i of all waves is at 4 i.
EXCHANGE = """
    v_lshlrev_b32 v1, 2, v0
    v_xor_b32 v2, 0x100, v1
    {before}
    ds_write_b32 v1, v0
    {first}
    {second}
    ds_read_b32 v3, v2
    s_waitcnt lgkmcnt(0)
    s_endpgm"""
WAIT, BARRIER = "s_waitcnt lgkmcnt(0)", "s_barrier"
seeds = pytest.mark.parametrize("seed", [0, 1, 2, 3])


@seeds
@pytest.mark.parametrize(
    ("first", "second", "check"),
    [(WAIT, BARRIER, "ok"), (WAIT, "", "race"), ("", BARRIER, "race"), (BARRIER, WAIT, "race")],
    ids=["right", "no barrier", "no wait", "wait behind the barrier"],
)
def test_a_word_that_another_wave_wrote(first: str, second: str, check: str, seed: int) -> None:
    text = EXCHANGE.format(before="", first=first, second=second)
    assert run(CDNA, text, lds=512, waves=2, seed=seed).check == check


@seeds
@pytest.mark.parametrize("barrier", [BARRIER, ""], ids=["right", "no barrier"])
def test_a_word_that_another_wave_has_read(barrier: str, seed: int) -> None:
    """Written again before all have read it."""
    again = f"\n{WAIT}\n{BARRIER}\nds_read_b32 v3, v2\n{WAIT}\n{barrier}\nv_add_u32 v4, 1, v0\nds_write_b32 v1, v4"
    text = EXCHANGE.format(before="", first=again, second="s_endpgm")
    assert run(CDNA, text, lds=512, waves=2, seed=seed).check == ("ok" if barrier else "race")


@seeds
def test_waves_may_write_the_same_value(seed: int) -> None:
    """Two waves, one word: the same value is no race, another is."""
    text = "v_mov_b32 v1, 0\n{value}\nds_write_b32 v1, v2\ns_endpgm"
    assert run(CDNA, text.format(value="v_mov_b32 v2, 7"), lds=64, waves=2, seed=seed).check == "ok"
    own = "v_readfirstlane_b32 s3, v0\ns_nop 1\nv_mov_b32 v2, s3"
    assert run(CDNA, text.format(value=own), lds=64, waves=2, seed=seed).check == "race"


@seeds
def test_waves_may_write_halves_of_a_word(seed: int) -> None:
    text = """
        v_lshrrev_b32 v2, 6, v0
        v_lshlrev_b32 v1, {shift}, v2
        ds_write_b16 v1, v2
        s_endpgm"""
    assert run(CDNA, text.format(shift=1), lds=64, waves=2, seed=seed).check == "ok"
    both_at_0 = text.replace("v1, {shift}, v2", "v1, 2, v2").replace(
        "ds_write_b16 v1", "v_mov_b32 v1, 0\nds_write_b16 v1"
    )
    assert run(CDNA, both_at_0, lds=64, waves=2, seed=seed).check == "race"


@seeds
def test_barriers_in_two_parts(seed: int) -> None:
    """gfx12: what a wave writes behind its signal, the others cannot count on behind their wait."""
    text = """
        v_lshlrev_b32 v1, 2, v0
        v_xor_b32 v2, 0x80, v1
        {early}
        s_wait_dscnt 0x0
        s_barrier_signal -1
        {late}
        s_barrier_wait -1
        ds_load_b32 v3, v2
        s_wait_dscnt 0x0
        s_endpgm"""
    write = "ds_store_b32 v1, v0"
    assert run(RDNA4, text.format(early=write, late=""), lds=256, waves=2, seed=seed).check == "ok"
    assert run(RDNA4, text.format(early="", late=write), lds=256, waves=2, seed=seed).check == "race"


@seeds
def test_every_wave_reaches_a_barrier(seed: int) -> None:
    text = """
        v_readfirstlane_b32 s4, v0
        s_cmp_lg_u32 s4, 0
        s_cbranch_scc1 1
        s_barrier
        s_endpgm"""
    assert run(CDNA, text, waves=1, seed=seed).check == "ok"
    outcome = run(CDNA, text, waves=2, seed=seed)
    assert outcome.check == "barrier", outcome.why


# ---- wait states --------------------------------------------------------------------------------------------------

MFMA, SMALL = "v_mfma_f32_32x32x8_bf16", "v_mfma_f32_16x16x16_bf16"
# Of two instructions with other ones needed between: how many.
STATES = {
    "matrix result read by the VALU": (CDNA, f"{MFMA} v[32:47], v[2:3], v[4:5], v[32:47]", 11, "v_mov_b32 v1, v47"),
    "small matrix result": (CDNA, f"{SMALL} v[32:35], v[2:3], v[4:5], v[32:35]", 7, "v_mov_b32 v1, v32"),
    "gfx90a's matrix result": ("gfx90a", "v_mfma_f32_32x32x8bf16_1k v[32:47], v[2:3], v[4:5], v[32:47]", 19,
                               "v_mov_b32 v1, v32"),
    "matrix result overwritten": (CDNA, f"{MFMA} v[32:47], v[2:3], v[4:5], 0", 11, "v_mov_b32 v40, 0"),
    "matrix result stored": (CDNA, f"{SMALL} a[0:3], v[2:3], v[4:5], 0", 7, "ds_write_b32 v6, a3"),
    "matrix result as A": (CDNA, f"{MFMA} v[32:47], v[2:3], v[4:5], 0", 11, f"{SMALL} v[48:51], v[32:33], v[4:5], 0"),
    "part of a matrix result as C": (CDNA, f"{MFMA} v[32:47], v[2:3], v[4:5], 0", 9,
                                     f"{SMALL} v[36:39], v[2:3], v[4:5], v[36:39]"),
    "C overwritten": (CDNA, f"{SMALL} v[32:35], v[2:3], v[4:5], v[48:51]", 3, "v_mov_b32 v48, 0"),
    "the VALU's result as A": (CDNA, "v_mov_b32 v3, 0", 2, f"{SMALL} v[32:35], v[2:3], v[4:5], 0"),
    "DPP": ("gfx90a", "v_mov_b32 v3, 0", 2, "v_mov_b32_dpp v4, v3 row_shr:1 row_mask:0xf bank_mask:0xf"),
    "v_div_fmas": ("gfx90a", "v_cmp_eq_u32 vcc, 0, v2", 4, "v_div_fmas_f32 v4, v2, v3, v2"),
    "number of a lane": ("gfx90a", "v_readfirstlane_b32 s4, v2", 4, "v_readlane_b32 s5, v3, s4"),
    "scalar of the VALU": (CDNA, "v_readfirstlane_b32 s4, v2", 2, "v_mov_b32 v4, s4"),
    "transcendental": (CDNA, "v_exp_f32 v3, v2", 1, "v_add_f32 v4, v3, v3"),
    "part of a register": (CDNA, "v_and_b32_sdwa v3, v2, v2 dst_sel:WORD_1", 1, "v_mov_b32 v4, v3"),
    "lane just written": (CDNA, "v_mov_b32 v3, 0", 1, "v_readfirstlane_b32 s4, v3"),
}  # fmt: skip
SET_UP = "\n".join(f"v_mov_b32 v{k}, 0" for k in range(2, 64)) + "\n" + "s_nop 15\n" * 3


@pytest.mark.parametrize("name", STATES)
def test_wait_states(name: str) -> None:
    target, first, needed, second = STATES[name]

    def outcome(states: int) -> Outcome:
        between = f"s_nop {min(states, 16) - 1}\n" if states else ""
        between += f"s_nop {states - 17}\n" if states > 16 else ""
        return run(target, f"{SET_UP}{first}\n{between}{second}\ns_endpgm", lds=512)

    assert outcome(needed).check == "ok", outcome(needed).why
    short = outcome(needed - 1)
    assert short.check == "wait states", short.why
    assert f"{needed} wait states are needed between, there are {needed - 1}" in short.why


def test_a_matrix_result_goes_on_as_the_same_c() -> None:
    text = f"{SET_UP}{MFMA} v[32:47], v[2:3], v[4:5], 0\n{MFMA} v[32:47], v[2:3], v[4:5], v[32:47]\ns_endpgm"
    assert run(CDNA, text).check == "ok"


@pytest.mark.parametrize(
    ("between", "check"),
    [("", "wait states"), ("s_waitcnt_depctr depctr_va_vdst(0)", "ok"), ("v_mov_b32 v4, 0\n" * 5, "wait states"),
     ("v_mov_b32 v4, 0\n" * 6, "ok"), ("v_exp_f32 v4, v5\n", "wait states"), ("v_exp_f32 v4, v5\n" * 2, "ok"),
     ("ds_store_b32 v5, v5", "ok")],
)  # fmt: skip
def test_transcendental_results_of_gfx11(between: str, check: str) -> None:
    text = f"{SET_UP}v_exp_f32 v3, v2\n{between}\nv_add_f32 v6, v3, v3\ns_endpgm"
    assert run(RDNA3, text, lds=64).check == check


def test_gfx11_5_waits_for_transcendental_results() -> None:
    assert run("gfx1151", f"{SET_UP}v_exp_f32 v3, v2\nv_add_f32 v6, v3, v3\ns_endpgm").check == "ok"


@pytest.mark.parametrize(("between", "check"), [("", "wait states"), ("v_nop", "ok")])
def test_wmma_reads_a_result_as_a(between: str, check: str) -> None:
    wmma = "v_wmma_f32_16x16x16_bf16 v[32:39], v[{a}:{b}], v[10:17], 0"
    text = "\n".join([SET_UP, wmma.format(a=2, b=9), between,
                      wmma.replace("v[32:39]", "v[48:55]").format(a=32, b=39), "s_endpgm"])  # fmt: skip
    assert run(RDNA3, text).check == check


# ---- the rest -----------------------------------------------------------------------------------------------------


FAR = "s_getpc_b64 s[4:5]\ns_add_u32 s4, s4, {}\ns_addc_u32 s5, s5, {}\ns_setpc_b64 s[4:5]\ns_code_end\ns_endpgm"


@pytest.mark.parametrize(
    ("offset", "high", "check"),
    [(16, "0", "ok"), (20, "lit(0x0)", "ok"), (12, "0", "program"), (14, "0", "program"), (64, "0", "program")],
)
def test_a_branch_by_an_address(offset: int, high: str, check: str) -> None:
    assert run(RDNA3, FAR.format(offset, high)).check == check


def test_a_register_that_nothing_wrote() -> None:
    text = "v_add_u32 v1, v0, {source}\ns_endpgm"
    assert run(CDNA, text.format(source="v0"), flags=LaunchFlag.FAULT_UNWRITTEN).check == "ok"
    outcome = run(CDNA, text.format(source="v5"), flags=LaunchFlag.FAULT_UNWRITTEN)
    assert outcome.check == "unwritten"
    assert "v5 is read, which nothing wrote" in outcome.why
    assert run(CDNA, text.format(source="v5")).unwritten == 1


def test_lanes_that_nothing_wrote() -> None:
    """Written in some lanes, read in all."""
    text = "s_mov_b64 exec, 3\nv_mov_b32 v1, 0\ns_mov_b64 exec, {lanes}\nv_mov_b32 v2, v1\ns_endpgm"
    assert run(CDNA, text.format(lanes=3), flags=LaunchFlag.FAULT_UNWRITTEN).check == "ok"
    outcome = run(CDNA, text.format(lanes=7), flags=LaunchFlag.FAULT_UNWRITTEN)
    assert (outcome.check, outcome.lane) == ("unwritten", 2)


def test_a_word_of_lds_that_nothing_wrote() -> None:
    text = "v_mov_b32 v1, 0\nds_write_b16 v1, v1\nds_read_{part} v2, v1\ns_endpgm"
    assert run(CDNA, text.format(part="u16"), lds=64, flags=LaunchFlag.FAULT_UNWRITTEN).check == "ok"
    assert run(CDNA, text.format(part="b32"), lds=64, flags=LaunchFlag.FAULT_UNWRITTEN).check == "unwritten"


@pytest.mark.parametrize(
    ("text", "check", "why"),
    [
        ("v_mov_b32 v9, 0\ns_endpgm", "program", "beyond those that are allocated, v0 to v7"),
        ("s_branch 0\ns_nop 0", "program", "ran past the end"),
        ("s_branch 0x100\ns_endpgm", "program", "a branch leaves the program"),
        ("s_branch 0xffff", "endless", "more than 1000 instructions"),
        ("s_trap 2\ns_endpgm", "unknown", "does not know: s_trap 2"),
        ("s_getreg_b32 s4, hwreg(HW_REG_HW_ID)\ns_endpgm", "unknown", "does not know: s_getreg_b32"),
    ],
)  # fmt: skip
def test_what_cannot_go_on(text: str, check: str, why: str) -> None:
    outcome = Kernel(CDNA, text, vgprs=8).launch(limit=1000)
    assert (outcome.check, why in outcome.why) == (check, True), outcome.why


def test_checks_can_be_left_out() -> None:
    text = LOADS["scalar"][1].replace("*s_waitcnt lgkmcnt(0)", "")
    assert run(CDNA, text).check == "outstanding"
    assert run(CDNA, text, flags=LaunchFlag.NO_HAZARDS).check == "ok"
