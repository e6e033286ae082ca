"""The proof that a wait or a barrier is redundant, on programs of a few instructions."""

from __future__ import annotations

from types import SimpleNamespace

import flow
import pytest
from launching import Kernel

LOAD = "global_load_dword v1, v[2:3], off"


def program(target: str, text: str) -> SimpleNamespace:
    """What flow.py wants of a LoadedProgram. A jump is so many words, from behind it."""
    kernel = Kernel(target, text)
    return SimpleNamespace(texts=kernel.texts, instructions=kernel.records, program=kernel.program)


NEEDED = {
    "a read": ("gfx942", f"{LOAD}\ns_waitcnt vmcnt(0)\nv_mov_b32_e32 v0, v1\ns_endpgm", 1),
    "a write": ("gfx942", f"{LOAD}\ns_waitcnt vmcnt(0)\nv_mov_b32_e32 v1, v0\ns_endpgm", 1),
    "behind a jump": (
        "gfx942", f"{LOAD}\ns_waitcnt vmcnt(0)\ns_cbranch_scc0 1\ns_endpgm\nv_mov_b32_e32 v0, v1\ns_endpgm", 1,
    ),
    "the older of two": (
        "gfx942", f"{LOAD}\nglobal_load_dword v4, v[2:3], off\ns_waitcnt vmcnt(1)\nv_mov_b32_e32 v0, v1\ns_endpgm", 2,
    ),
    "a half of a register": (
        "gfx1201", "global_load_d16_hi_b16 v1, v[2:3], off\ns_wait_loadcnt 0x0\n"
        "global_store_d16_hi_b16 v[2:3], v1, off\ns_endpgm", 1,
    ),
    "a scalar": ("gfx1100", "s_load_b32 s4, s[0:1], 0x0\ns_waitcnt lgkmcnt(0)\ns_mov_b32 s5, s4\ns_endpgm", 1),
    "an address in the register that is loaded": (
        "gfx942", f"{LOAD}\ns_waitcnt vmcnt(0)\nglobal_load_dword v1, v[0:1], off\ns_endpgm", 1,
    ),
    "a later wait that scalar loads let pass": (
        "gfx942", "ds_read_b32 v1, v2\ns_waitcnt lgkmcnt(0)\ns_load_dword s4, s[0:1], 0x0\n"
        "s_waitcnt lgkmcnt(1)\nv_mov_b32_e32 v0, v1\ns_endpgm", 1,
    ),
    "before a barrier, a read": ("gfx942", "ds_read_b32 v1, v2\ns_waitcnt lgkmcnt(0)\ns_barrier\ns_endpgm", 1),
    "before a barrier": ("gfx942", "ds_write_b32 v0, v1\ns_waitcnt lgkmcnt(0)\ns_barrier\ns_endpgm", 1),
}  # fmt: skip
REDUNDANT = {
    "nothing is outstanding": ("gfx942", "v_mov_b32_e32 v0, v1\ns_waitcnt vmcnt(0)\nv_mov_b32_e32 v0, v1\ns_endpgm", 1),
    "nothing uses it": ("gfx942", f"{LOAD}\ns_waitcnt vmcnt(0)\nv_mov_b32_e32 v5, v6\ns_endpgm", 1),
    "another covers it": (
        "gfx942", f"{LOAD}\ns_waitcnt vmcnt(0)\ns_waitcnt vmcnt(0)\nv_mov_b32_e32 v0, v1\ns_endpgm", 1,
    ),
    "a later wait that what came behind lets pass": (
        "gfx942", "ds_read_b32 v1, v2\ns_waitcnt lgkmcnt(0)\nds_read_b32 v4, v2\n"
        "s_waitcnt lgkmcnt(1)\nv_mov_b32_e32 v0, v1\ns_endpgm", 1,
    ),
    "results of one kind, one after the other": (
        "gfx942", f"{LOAD}\ns_waitcnt vmcnt(0)\n{LOAD}\ns_waitcnt vmcnt(0)\nv_mov_b32_e32 v0, v1\ns_endpgm", 1,
    ),
    "the other half of a register": (
        "gfx1201", "global_load_d16_b16 v1, v[2:3], off\nglobal_load_d16_hi_b16 v4, v[2:3], off\n"
        "s_wait_loadcnt 0x1\nglobal_store_d16_hi_b16 v[2:3], v1, off\ns_endpgm", 2,
    ),
    "the younger of two is not waited for": (
        "gfx942", f"{LOAD}\nglobal_load_dword v4, v[2:3], off\ns_waitcnt vmcnt(1)\nv_mov_b32_e32 v0, v5\ns_endpgm", 2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("target,text,index", NEEDED.values(), ids=NEEDED)
def test_a_wait_that_is_needed(target, text, index):
    assert flow.need_of_wait(program(target, text), index, 4)


@pytest.mark.parametrize("target,text,index", REDUNDANT.values(), ids=REDUNDANT)
def test_a_wait_that_is_redundant(target, text, index):
    assert flow.need_of_wait(program(target, text), index, 4) is None


NOTHING = "s_nop 0"


@pytest.mark.parametrize("target,text,index", NEEDED.values(), ids=NEEDED)
def test_every_path(target, text, index):
    """With its waits nothing is used too soon; without one the use of a register is found."""
    assert flow.unwaited(program(target, text)) == []
    lines = text.splitlines()
    lines[index] = NOTHING
    found = flow.unwaited(program(target, "\n".join(lines)))
    assert found or "s_barrier" in lines, "LDS that a barrier hands on is no register"


def test_a_path_that_no_call_takes():
    text = f"s_cbranch_scc0 2\n{LOAD}\ns_waitcnt vmcnt(0)\nv_mov_b32_e32 v0, v1\ns_endpgm"
    assert flow.unwaited(program("gfx942", text)) == []
    missing = program("gfx942", text.replace("s_waitcnt vmcnt(0)", NOTHING))
    (fault,) = flow.unwaited(missing)
    assert fault.endswith(f"`{missing.texts[-2]}` uses v1")


def test_a_wait_in_a_loop():
    """What the next round uses is seen."""
    text = f"{LOAD}\ns_waitcnt vmcnt(0)\nv_mov_b32_e32 v5, v6\ns_cbranch_scc0 65533\ns_endpgm"
    assert flow.need_of_wait(program("gfx942", text), 1, 4) is None
    text = f"v_mov_b32_e32 v5, v1\n{LOAD}\ns_waitcnt vmcnt(0)\ns_cbranch_scc0 65531\ns_endpgm"
    assert flow.need_of_wait(program("gfx942", text), 2, 4)


def test_barriers():
    text = "ds_write_b32 v0, v1\ns_waitcnt lgkmcnt(0)\ns_barrier\nds_read_b32 v2, v0\ns_endpgm"
    assert flow.need_of_barrier(program("gfx942", text), 2, 4) == "LDS is touched on both sides"
    assert flow.need_of_barrier(program("gfx942", text), 2, 1) is None, "there is one wave"
    text = "ds_read_b32 v2, v0\ns_barrier\nds_read_b32 v3, v0\ns_endpgm"
    assert flow.need_of_barrier(program("gfx942", text), 1, 4) is None, "both sides read"
    text = "ds_write_b32 v0, v1\ns_barrier\ns_barrier\nds_read_b32 v2, v0\ns_endpgm"
    assert flow.need_of_barrier(program("gfx942", text), 1, 4) is None, "another is between"


def test_what_cannot_be_followed():
    with pytest.raises(LookupError, match="s_setpc_b64 leads to where a register says"):
        flow.need_of_wait(program("gfx942", f"{LOAD}\ns_waitcnt vmcnt(0)\ns_setpc_b64 s[0:1]\ns_endpgm"), 1, 4)
    with pytest.raises(LookupError, match="may be of LDS or of memory"):
        flow.need_of_wait(program("gfx942", "flat_load_dword v1, v[2:3]\ns_waitcnt vmcnt(0)\ns_endpgm"), 1, 4)


def test_a_far_branch():
    text = "s_getpc_b64 s[4:5]\ns_add_u32 s4, s4, 16\ns_addc_u32 s5, s5, 0\ns_setpc_b64 s[4:5]\ns_nop 0\ns_endpgm"
    assert flow.reachable(program("gfx1100", text)) == {0, 1, 2, 3, 5}
    assert len(flow.reachable(program("gfx1100", text.replace("s4, s4, 16", "s4, s6, 16")))) == 6, "not that address"


def test_reachable_without_padding():
    text = "s_branch 2\ns_nop 0\ns_nop 0\nv_mov_b32_e32 v0, v1\ns_endpgm\ns_nop 0"
    assert flow.reachable(program("gfx942", text)) == {0, 3, 4}
