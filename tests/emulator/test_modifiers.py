"""What modifiers, MODE, EXEC and the width of a wave do to the VALU's sources and results; and lanes that meet."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from drawing import CDNA, F16, F32, M32, RDNA, A, B, C, D, bits, same, signed, sources_in, value
from launching import Kernel
from single import EXEC, LANES, State, single

# ---- modifiers ----------------------------------------------------------------------------------------------------


def run_f32(text: str, seed: int = 5, target: str = CDNA) -> tuple[State, np.ndarray, np.ndarray]:
    state = State(seed)
    rows = sources_in(state, "ff", np.random.default_rng(seed))
    single(target, text).run(state)
    return state, value("f", rows[0]), value("f", rows[1])


@pytest.mark.parametrize(
    ("text", "formula"),
    [
        ("v_add_f32 v10, -v20, v30", lambda a, b: -a + b),
        ("v_add_f32 v10, |v20|, v30", lambda a, b: np.abs(a) + b),
        ("v_mul_f32 v10, -|v20|, v30", lambda a, b: -np.abs(a) * b),
        ("v_add_f32 v10, v20, v30 clamp",
         lambda a, b: np.where(np.isnan(a + b), 0, np.clip(a + b, 0, 1)).astype(F32) + F32(0)),
        ("v_mul_f32 v10, v20, v30 mul:4", lambda a, b: (a * b) * F32(4)),
        ("v_mul_f32 v10, v20, v30 div:2", lambda a, b: (a * b) * F32(0.5)),
        ("v_add_f32 v10, 0.5, v30", lambda a, b: F32(0.5) + b),
        ("v_add_f32 v10, 0x3fb8aa3b, v30", lambda a, b: np.uint32(0x3FB8AA3B).view(F32) + b),
        ("v_mul_f32 v10, -4.0, v30", lambda a, b: F32(-4) * b),
    ],
)  # fmt: skip
def test_modifiers_of_floats(text: str, formula: Callable) -> None:
    state, a, b = run_f32(text)
    with np.errstate(all="ignore"):
        assert same("f", state.vgpr[D : D + 1], bits("f", formula(a, b))).all()


def test_subnormal_numbers_as_mode_says() -> None:
    """MODE's bits 4 and 5 keep them as sources and as results of f32."""
    for mode, source, result in ((0x00, 0, 0), (0x10, 1, 0), (0x20, 0, 1), (0x30, 1, 1)):
        state = State()
        state.mode = 0xC0 | mode
        state.vgpr[A] = 0x00400000  # 2^-127
        state.vgpr[B] = np.array([2.0], F32).view(np.uint32)[0]
        state.vgpr[C] = 0x00800000  # 2^-126
        single(CDNA, "v_mul_f32 v10, v20, v30\nv_mul_f32 v11, 0.5, v40\nv_add_f64 v[12:13], v[20:21], v[20:21]").run(
            state
        )
        assert state.vgpr[10][0] == (0x00800000 if source else 0), hex(mode)
        assert state.vgpr[11][0] == (0x00400000 if result else 0), hex(mode)


@pytest.mark.parametrize(("mode", "rounded"), [(0, 0x3F800000), (1, 0x3F800001), (2, 0x3F800000), (3, 0x3F800000)])
def test_rounding_as_mode_says(mode: int, rounded: int) -> None:
    state = State()
    state.mode = 0xF0 | mode
    state.vgpr[A], state.vgpr[B] = 0x3F800000, 0x33000000  # 1 and 2^-25
    single(CDNA, "v_add_f32 v10, v20, v30").run(state)
    assert state.vgpr[D][0] == rounded


DPP: dict[str, Callable[[int], int]] = {
    "quad_perm:[1,0,3,2]": lambda i: i ^ 1,
    "quad_perm:[2,3,0,0]": lambda i: (i & ~3) + (2, 3, 0, 0)[i & 3],
    "row_shl:3": lambda i: i + 3 if i % 16 < 13 else -1,
    "row_shr:8": lambda i: i - 8 if i % 16 >= 8 else -1,
    "row_ror:5": lambda i: i // 16 * 16 + (i - 5) % 16,
    "row_mirror": lambda i: i // 16 * 16 + 15 - i % 16,
    "row_half_mirror": lambda i: i // 8 * 8 + 7 - i % 8,
    "row_bcast:15": lambda i: i // 16 * 16 - 1,
    "row_bcast:31": lambda i: 31 if i >= 32 else -1,
    "row_newbcast:6": lambda i: i // 16 * 16 + 6,
}


@pytest.mark.parametrize("bound", ["", " bound_ctrl:0"])
@pytest.mark.parametrize("how", DPP)
def test_dpp(how: str, bound: str) -> None:
    state = State(6)
    state.exec = 0xFFFF_F0FF_FFFF_00FF
    before, on = state.copy(), state.on
    single(CDNA, f"v_mov_b32_dpp v10, v20 {how} row_mask:0xb bank_mask:0xd{bound}").run(state)
    for i in range(LANES):
        source = DPP[how](i)
        written = on[i] and 0xB >> i // 16 & 1 and 0xD >> i // 4 % 4 & 1
        valid = source >= 0 and on[source]
        wanted = before.vgpr[D][i]
        if written and (valid or bound):
            wanted = before.vgpr[A][source] if valid else 0
        assert state.vgpr[D][i] == wanted, i


@pytest.mark.parametrize("how", ["row_xmask:5", "row_share:9", "dpp8:[7,6,5,4,3,2,1,0]"])
def test_dpp_of_gfx11(how: str) -> None:
    state = State(7)
    state.exec = 0xFFFFFFFF
    before = state.copy()
    masks = "" if how.startswith("dpp8") else " row_mask:0xf bank_mask:0xf"
    single(RDNA, f"v_mov_b32_dpp v10, v20 {how}{masks}").run(state)
    source = {"row_x": lambda i: i ^ 5, "row_s": lambda i: i // 16 * 16 + 9, "dpp8:": lambda i: i ^ 7}[how[:5]]
    assert [int(v) for v in state.vgpr[D][:32]] == [int(before.vgpr[A][source(i)]) for i in range(32)]


@pytest.mark.parametrize(
    ("text", "formula"),
    [
        ("src0_sel:WORD_1 src1_sel:DWORD", lambda a, b, d: (a >> 16) + b),
        ("src0_sel:BYTE_2 src1_sel:WORD_0", lambda a, b, d: (a >> 16 & 255) + (b & 0xFFFF)),
        ("dst_sel:WORD_1 dst_unused:UNUSED_PRESERVE", lambda a, b, d: (d & 0xFFFF) | (a + b & 0xFFFF) << 16),
        ("dst_sel:BYTE_1 dst_unused:UNUSED_PAD", lambda a, b, d: (a + b & 255) << 8),
        ("dst_sel:WORD_0 dst_unused:UNUSED_SEXT",
         lambda a, b, d: np.array([signed(int(v), 16) & M32 for v in a + b], object)),
    ],
)  # fmt: skip
def test_sdwa(text: str, formula: Callable) -> None:
    state = State(8)
    a, b, d = (state.vgpr[k].astype(object) for k in (A, B, D))
    single(CDNA, f"v_add_u32_sdwa v10, v20, v30 {text}").run(state)
    assert (state.vgpr[D] == bits("u", formula(a, b, d))[0]).all()


def test_signs_of_sdwa() -> None:
    state = State(9)
    a = state.vgpr[A].astype(object)
    single(CDNA, "v_add_u32_sdwa v10, sext(v20), v30 src0_sel:BYTE_1 src1_sel:DWORD").run(state)
    wanted = [signed(int(x) >> 8, 8) + int(y) for x, y in zip(a, state.vgpr[B], strict=True)]
    assert (state.vgpr[D] == bits("u", wanted)[0]).all()


@pytest.mark.parametrize(
    ("modifiers", "low", "high"),
    [("", (0, 0), (1, 1)), ("op_sel_hi:[1,0]", (0, 0), (1, 0)), ("op_sel:[1,0] op_sel_hi:[0,1]", (1, 0), (0, 1))],
)  # fmt: skip
@pytest.mark.parametrize("signs", ["", " neg_lo:[1,0] neg_hi:[0,1]"])
def test_packed_floats(modifiers: str, low: tuple[int, int], high: tuple[int, int], signs: str) -> None:
    state = State(10)
    rows = sources_in(state, "PP", np.random.default_rng(10))
    single(CDNA, f"v_pk_mul_f32 v[10:11], v[20:21], v[30:31] {modifiers}{signs}").run(state)
    a, b = (r.view(F32) for r in rows)
    sign = F32(-1 if signs else 1)
    with np.errstate(all="ignore"):
        assert same("f", state.vgpr[D : D + 1], bits("f", sign * a[low[0]] * b[low[1]])).all()
        assert same("f", state.vgpr[D + 1 : D + 2], bits("f", a[high[0]] * (sign * b[high[1]]))).all()


def test_packed_halves() -> None:
    state = State(11)
    rows = sources_in(state, "pp", np.random.default_rng(11))
    single(CDNA, "v_pk_add_f16 v10, v20, v30 op_sel:[0,1] op_sel_hi:[1,1] neg_hi:[1,0]").run(state)
    halves = [(r[0].view(np.uint16).reshape(LANES, 2)).view(F16) for r in rows]
    wanted = np.stack([halves[0][:, 0] + halves[1][:, 1], -halves[0][:, 1] + halves[1][:, 1]], axis=1)
    assert (state.vgpr[D].view(np.uint16).reshape(LANES, 2) == wanted.view(np.uint16)).all()


def test_halves_of_registers() -> None:
    """gfx9 clears the upper half with a result of 16 bits, gfx11 keeps it; op_sel and .h name the upper half."""
    for target, text, wanted in (
        (CDNA, "v_add_u16 v10, v20, v30", lambda a, b, d: (a + b) & 0xFFFF),
        (RDNA, "v_add_nc_u16 v10.l, v20.l, v30.l", lambda a, b, d: (d & 0xFFFF0000) | (a + b & 0xFFFF)),
        (RDNA, "v_add_nc_u16 v10.h, v20.h, v30.l", lambda a, b, d: (d & 0xFFFF) | ((a >> 16) + b & 0xFFFF) << 16),
    ):
        state = State(12)
        a, b, d = (state.vgpr[k].astype(object) for k in (A, B, D))
        single(target, text).run(state)
        lanes = 64 if target == CDNA else 32
        assert (state.vgpr[D] == bits("u", wanted(a, b, d))[0])[:lanes].all(), text


def test_both_halves_of_a_vopd_read_first() -> None:
    """Lane i stores i and 7, which two moves of one instruction exchanged."""
    memory = np.zeros(64, np.uint32)
    kernel = Kernel(RDNA, """
        s_load_b64 s[4:5], s[0:1], 0x0
        v_lshlrev_b32 v1, 3, v0
        v_mov_b32 v20, v0
        v_mov_b32 v31, 7
        v_dual_mov_b32 v20, v31 :: v_dual_mov_b32 v31, v20
        v_mov_b32 v21, v31
        s_waitcnt lgkmcnt(0)
        global_store_b64 v1, v[20:21], s[4:5]
        s_endpgm""")  # fmt: skip
    outcome = kernel.launch(memory)
    assert outcome.check == "ok", outcome.why
    assert (memory.reshape(32, 2) == np.stack([np.full(32, 7), np.arange(32)], axis=1)).all()


# ---- between lanes ------------------------------------------------------------------------------------------------


def test_lanes_to_scalars_and_back() -> None:
    state = State(14)
    state.exec = 0xF0
    before = state.copy()
    state.sgpr[5] = 77
    single(CDNA, "v_readlane_b32 s20, v20, 63\nv_readlane_b32 s21, v20, s5\nv_readfirstlane_b32 s22, v20\n"
                 "v_writelane_b32 v10, s22, 9").run(state)  # fmt: skip
    a = before.vgpr[A]
    assert [int(state.sgpr[k]) for k in (20, 21, 22)] == [int(a[63]), int(a[13]), int(a[4])]
    before.vgpr[D][9] = a[4]
    assert (state.vgpr == before.vgpr).all()


def test_rows_permuted() -> None:
    state = State(15)
    state.exec = 0xFFFFFFFF
    state.sgpr[4], state.sgpr[5] = 0x76543210, 0xFEDCBA98
    before = state.copy()
    single(RDNA, "v_permlane16_b32 v10, v20, s5, s4\nv_permlanex16_b32 v11, v20, s4, s5").run(state)
    swapped = [(i & 16) + (i + 8) % 16 for i in range(32)]
    assert (state.vgpr[10][:32] == before.vgpr[A][swapped]).all()
    assert (state.vgpr[11][:32] == before.vgpr[A][[i ^ 16 for i in range(32)]]).all()


@pytest.mark.parametrize("rows", [16, 32])
def test_rows_swapped(rows: int) -> None:
    state = State(16)
    before = state.copy()
    single("gfx950", f"v_permlane{rows}_swap_b32 v10, v20").run(state)
    for i in range(LANES):
        first = before.vgpr[A][i - rows] if i & rows else before.vgpr[D][i]
        second = before.vgpr[A][i] if i & rows else before.vgpr[D][i + rows]
        assert (state.vgpr[D][i], state.vgpr[A][i]) == (first, second)


@pytest.mark.parametrize("target", [CDNA, RDNA])
def test_a_constant_of_mixed_precision_is_of_f16_where_op_sel_hi_says_so(target: str) -> None:
    """LLVM adds an f16 to an f32 so."""
    state = State(3)
    halves = np.linspace(-3, 3, LANES).astype(np.float16)
    state.vgpr[A], addend = halves.view(np.uint16), np.arange(LANES, dtype=np.float32)
    state.vgpr[B] = addend.view(np.uint32)
    single(target, "v_fma_mix_f32 v10, v20, 1.0, v30 op_sel_hi:[1,1,0]").run(state)
    count = 64 if target == CDNA else 32
    assert np.array_equal(state.vgpr[D].view(np.float32)[:count], (halves.astype(np.float32) + addend)[:count])


def test_wave32_has_half_of_exec() -> None:
    state = State(17)
    state.sgpr[EXEC], state.sgpr[EXEC + 1] = 0xFFFFFFFF, 0
    before = state.copy()
    single(RDNA, "v_cmp_gt_i32_e64 s20, v20, v30").run(state)
    wanted = sum(1 << k for k in range(32) if before.vgpr[A].view(np.int32)[k] > before.vgpr[B].view(np.int32)[k])
    assert int(state.sgpr[20]) == wanted
    assert state.sgpr[21] == before.sgpr[21]
