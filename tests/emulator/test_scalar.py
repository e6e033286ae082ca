"""SALU: each instruction, assembled, on drawn registers, against Python's integers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from drawing import CDNA, M32, M64, signed
from launching import Kernel
from single import VCC, State, single


def over(x: int) -> int:
    return int(not -(2**31) <= x < 2**31)


# Name: (text, result and SCC of the sources s4, s5 (64 bits: s[4:5], s[6:7]) and SCC); SCC None: as it was.
SCALAR: dict[str, tuple[str, Callable[[int, int, int], tuple[int, int | None]]]] = {
    "s_add_u32": ("32", lambda a, b, s: (a + b, int(a + b > M32))),
    "s_addc_u32": ("32", lambda a, b, s: (a + b + s, int(a + b + s > M32))),
    "s_sub_u32": ("32", lambda a, b, s: (a - b, int(b > a))),
    "s_subb_u32": ("32", lambda a, b, s: (a - b - s, int(b + s > a))),
    "s_add_i32": ("32", lambda a, b, s: (a + b, over(signed(a) + signed(b)))),
    "s_sub_i32": ("32", lambda a, b, s: (a - b, over(signed(a) - signed(b)))),
    "s_min_i32": ("32", lambda a, b, s: (min(signed(a), signed(b)), int(signed(a) < signed(b)))),
    "s_max_u32": ("32", lambda a, b, s: (max(a, b), int(a > b))),
    "s_and_b32": ("32", lambda a, b, s: (a & b, int(a & b != 0))),
    "s_or_b64": ("64", lambda a, b, s: (a | b, int(a | b != 0))),
    "s_xor_b64": ("64", lambda a, b, s: (a ^ b, int(a ^ b != 0))),
    "s_andn2_b64": ("64", lambda a, b, s: (a & ~b, int(a & ~b & M64 != 0))),
    "s_nand_b32": ("32", lambda a, b, s: (~(a & b), int(~(a & b) & M32 != 0))),
    "s_lshl_b32": ("32", lambda a, b, s: (a << (b & 31), int(a << (b & 31) & M32 != 0))),
    "s_ashr_i32": ("32", lambda a, b, s: (signed(a) >> (b & 31), int(signed(a) >> (b & 31) != 0))),
    "s_mul_i32": ("32", lambda a, b, s: (a * b, None)),
    "s_mul_hi_u32": ("32", lambda a, b, s: (a * b >> 32, None)),
    "s_mul_hi_i32": ("32", lambda a, b, s: (signed(a) * signed(b) >> 32, None)),
    "s_lshl2_add_u32": ("32", lambda a, b, s: ((a << 2) + b, int((a << 2) + b > M32))),
    "s_cselect_b32": ("32", lambda a, b, s: (a if s else b, None)),
    "s_cselect_b64": ("64", lambda a, b, s: (a if s else b, None)),
    "s_bfe_u32": ("32", lambda a, b, s: ((r := a >> (b & 31) & ((1 << (b >> 16 & 127)) - 1)), int(r != 0))),
    "s_pack_ll_b32_b16": ("32", lambda a, b, s: (a & 0xFFFF | b << 16, None)),
}
ONE: dict[str, Callable[[int], tuple[int, int | None]]] = {
    "s_not_b32": lambda a: (~a, int(~a & M32 != 0)),
    "s_abs_i32": lambda a: (abs(signed(a)), int(a != 0)),
    "s_brev_b32": lambda a: (int(f"{a:032b}"[::-1], 2), None),
    "s_bcnt1_i32_b32": lambda a: (a.bit_count(), int(a != 0)),
    "s_ff1_i32_b32": lambda a: ((a & -a).bit_length() - 1 if a else -1, None),
    "s_flbit_i32_b32": lambda a: (32 - a.bit_length() if a else -1, None),
    "s_sext_i32_i8": lambda a: (signed(a, 8), None),
    "s_sext_i32_i16": lambda a: (signed(a, 16), None),
}


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("name", [*SCALAR, *ONE])
def test_a_scalar_instruction(name: str, seed: int) -> None:
    draw = np.random.default_rng(seed)
    state = State(seed)
    state.scc = seed & 1
    state.sgpr[4:8] = draw.integers(0, 2**32, 4, np.uint32)
    if seed < 4:
        state.sgpr[4], state.sgpr[5] = (int(draw.choice([0, 1, 31, 2**31, M32, 2**31 - 1, 0x50003])) for _ in range(2))
    s = [int(v) for v in state.sgpr[4:8]]
    if name in ONE:
        result, scc = ONE[name](s[0])
        single(CDNA, f"{name} s20, s4").run(state)
        got = int(state.sgpr[20])
    else:
        width, formula = SCALAR[name]
        if width == "64":
            result, scc = formula(s[0] | s[1] << 32, s[2] | s[3] << 32, state.scc)
            single(CDNA, f"{name} s[20:21], s[4:5], s[6:7]").run(state)
            got = int(state.sgpr[20]) | int(state.sgpr[21]) << 32
        else:
            result, scc = formula(s[0], s[1], state.scc)
            single(CDNA, f"{name} s20, s4, s5").run(state)
            got = int(state.sgpr[20])
    assert got == result & (M64 if SCALAR.get(name, ("32",))[0] == "64" else M32)
    assert state.scc == (seed & 1 if scc is None else scc)


def test_saved_exec() -> None:
    state = State()
    state.exec, old = 0xFF00FF00FF00FF00, 0xFF00FF00FF00FF00
    state.set_pair(VCC, 0x0FF0)
    single(CDNA, "s_and_saveexec_b64 s[20:21], vcc").run(state)
    assert int(state.sgpr[20]) | int(state.sgpr[21]) << 32 == old
    assert (state.exec, state.scc) == (old & 0x0FF0, 1)


def test_immediates_of_sixteen_bits() -> None:
    state = State()
    state.sgpr[4] = 5
    single(CDNA, "s_movk_i32 s20, 0xff80\ns_addk_i32 s4, 0xfffe\ns_cmpk_lt_i32 s20, 0xff81").run(state)
    assert (int(state.sgpr[20]), int(state.sgpr[4]), state.scc) == (0xFFFFFF80, 3, 1)


@pytest.mark.parametrize("group", [0, 1])
def test_what_a_wave_starts_with(group: int) -> None:
    """The group's number, and behind it the offset of the wave's private segment, which the descriptor has already."""
    memory = np.full(2, 7, np.uint32)
    kernel = Kernel("gfx90a", f"""
        s_load_dwordx2 s[4:5], s[0:1], 0x0
        s_cmp_lg_u32 s2, {group}
        s_cbranch_scc1 7
        v_mov_b32 v1, 0
        v_mov_b32 v2, s2
        v_mov_b32 v3, s3
        s_waitcnt lgkmcnt(0)
        s_nop 0
        global_store_dwordx2 v1, v[2:3], s[4:5]
        s_endpgm""")  # fmt: skip
    kernel.program.rsrc2 |= 1  # ENABLE_PRIVATE_SEGMENT
    outcome = kernel.launch(memory, groups=2, contents=3)
    assert outcome.check == "ok", outcome.why
    assert memory.tolist() == [group, 0]
