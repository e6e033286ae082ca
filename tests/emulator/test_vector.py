"""VALU: each instruction, assembled, on drawn registers, against the same in numpy or in Python's integers."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from drawing import CDNA, F32, F64, M32, M64, A, B, C, D, bits, drawn, register, same, signed, sources_in, value
from single import LANES, VCC, State, single

SEEDS = range(3)


def fma32(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Rounded once: a product of float32 is exact in float64; the sum is corrected where it was rounded on a tie."""
    out = []
    for x, y, z in zip(a, b, c, strict=True):
        product, summand = F64(x) * F64(y), F64(z)
        total = product + summand
        if np.isfinite(total):
            part = total - product
            error = (product - (total - part)) + (summand - part)
            if error and (int(total.view(np.uint64)) & 0x1FFFFFFF) in (0x10000000, 0):
                total = np.nextafter(total, math.inf if error > 0 else -math.inf)
        out.append(F32(total))
    return np.array(out, F32)


def number_max(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    zero = (a == 0) & (b == 0)
    return np.where(zero, np.where(np.signbit(a) & np.signbit(b), -0.0, 0.0), np.fmax(a, b)).astype(a.dtype)


def number_min(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return -number_max(-a, -b)


def median(a: int, b: int, c: int) -> int:
    return sorted((a, b, c))[1]


def each(function: Callable[..., int]) -> Callable[..., list[int]]:
    """A function of one lane's integers, over the lanes."""
    return lambda *rows: [function(*(int(v) for v in lane)) for lane in zip(*rows, strict=True)]


def permuted(a: int, b: int, c: int) -> int:
    out, both = 0, a << 32 | b
    for k in range(4):
        which = c >> 8 * k & 255
        byte = (both >> 8 * which & 255 if which < 8 else 255 * (both >> (16 * (which - 8) + 15) & 1) if which < 12
                else 0 if which == 12 else 255)  # fmt: skip
        out |= byte << 8 * k
    return out


def bit_field(x: int, offset: int, width: int) -> int:
    offset, width = offset & 31, width & 31
    return signed(x >> offset, width) if width and offset + width < 32 else (signed(x) >> offset if width else 0)


# Name: result and sources by letters as in struct emu_op's types; the formula.
VECTOR: dict[str, tuple[str, Callable]] = {
    "v_add_f32": ("f=ff", lambda a, b: a + b),
    "v_sub_f32": ("f=ff", lambda a, b: a - b),
    "v_subrev_f32": ("f=ff", lambda a, b: b - a),
    "v_mul_f32": ("f=ff", lambda a, b: a * b),
    "v_max_f32": ("f=ff", number_max),
    "v_min_f32": ("f=ff", number_min),
    "v_max3_f32": ("f=fff", lambda a, b, c: number_max(number_max(a, b), c)),
    "v_min3_f32": ("f=fff", lambda a, b, c: number_min(number_min(a, b), c)),
    "v_fma_f32": ("f=fff", fma32),
    "v_trunc_f32": ("f=f", np.trunc),
    "v_ceil_f32": ("f=f", np.ceil),
    "v_floor_f32": ("f=f", np.floor),
    "v_rndne_f32": ("f=f", np.rint),
    "v_ldexp_f32": ("f=fi", lambda a, b: np.ldexp(a.astype(F64), np.clip(b, -500, 500).astype(int))),
    "v_add_f16": ("h=hh", lambda a, b: a + b),
    "v_mul_f16": ("h=hh", lambda a, b: a * b),
    "v_max_f16": ("h=hh", number_max),
    "v_add_f64": ("d=dd", lambda a, b: a + b),
    "v_mul_f64": ("d=dd", lambda a, b: a * b),
    "v_max_f64": ("d=dd", number_max),
    "v_mov_b32": ("u=u", lambda a: a),
    "v_add_u32": ("u=uu", lambda a, b: a + b),
    "v_sub_u32": ("u=uu", lambda a, b: a - b),
    "v_subrev_u32": ("u=uu", lambda a, b: b - a),
    "v_and_b32": ("u=uu", lambda a, b: a & b),
    "v_or_b32": ("u=uu", lambda a, b: a | b),
    "v_xor_b32": ("u=uu", lambda a, b: a ^ b),
    "v_not_b32": ("u=u", lambda a: ~a),
    "v_lshlrev_b32": ("u=uu", lambda a, b: b << (a & 31)),
    "v_lshrrev_b32": ("u=uu", lambda a, b: b >> (a & 31)),
    "v_ashrrev_i32": ("u=ui", lambda a, b: b >> (a & 31)),
    "v_lshlrev_b64": ("q=uq", lambda a, b: b << (a & 63)),
    "v_lshrrev_b64": ("q=uq", lambda a, b: b >> (a & 63)),
    "v_min_i32": ("u=ii", np.minimum),
    "v_max_i32": ("u=ii", np.maximum),
    "v_min_u32": ("u=uu", np.minimum),
    "v_max_u32": ("u=uu", np.maximum),
    "v_mul_u32_u24": ("u=uu", lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF)),
    "v_mul_i32_i24": ("u=uu", each(lambda a, b: signed(a, 24) * signed(b, 24))),
    "v_bfrev_b32": ("u=u", each(lambda a: int(f"{a:032b}"[::-1], 2))),
    "v_ffbh_u32": ("u=u", each(lambda a: 32 - a.bit_length() if a else -1)),
    "v_ffbl_b32": ("u=u", each(lambda a: (a & -a).bit_length() - 1 if a else -1)),
    "v_bcnt_u32_b32": ("u=uu", each(lambda a, b: a.bit_count() + b)),
    "v_add3_u32": ("u=uuu", lambda a, b, c: a + b + c),
    "v_lshl_add_u32": ("u=uuu", lambda a, b, c: (a << (b & 31)) + c),
    "v_add_lshl_u32": ("u=uuu", lambda a, b, c: ((a + b) & M32) << (c & 31)),
    "v_lshl_or_b32": ("u=uuu", lambda a, b, c: (a << (b & 31)) | c),
    "v_and_or_b32": ("u=uuu", lambda a, b, c: (a & b) | c),
    "v_or3_b32": ("u=uuu", lambda a, b, c: a | b | c),
    "v_xad_u32": ("u=uuu", lambda a, b, c: (a ^ b) + c),
    "v_bfi_b32": ("u=uuu", lambda a, b, c: (a & b) | (~a & c)),
    "v_bfe_u32": ("u=uuu", each(lambda a, b, c: a >> (b & 31) & ((1 << (c & 31)) - 1))),
    "v_bfe_i32": ("u=uuu", each(bit_field)),
    "v_perm_b32": ("u=uuu", each(permuted)),
    "v_alignbit_b32": ("u=uuu", lambda a, b, c: ((a << 32) | b) >> (c & 31)),
    "v_med3_i32": ("u=iii", each(median)),
    "v_med3_u32": ("u=uuu", each(median)),
    "v_max3_i32": ("u=iii", each(max)),
    "v_min3_u32": ("u=uuu", each(min)),
    "v_mul_lo_u32": ("u=uu", lambda a, b: a * b),
    "v_mul_hi_u32": ("u=uu", lambda a, b: (a * b) >> 32),
    "v_mul_hi_i32": ("u=ii", lambda a, b: (a * b) >> 32),
    "v_mad_u32_u24": ("u=uuu", lambda a, b, c: (a & 0xFFFFFF) * (b & 0xFFFFFF) + c),
    "v_lshl_add_u64": ("q=quq", lambda a, b, c: (a << (b & 7)) + c),
    "v_add_u16": ("w=ww", lambda a, b: a + b),
    "v_mul_lo_u16": ("w=ww", lambda a, b: a * b),
    "v_lshlrev_b16": ("w=ww", lambda a, b: b << (a & 15)),
}  # fmt: skip
# Within a unit in the last place of the true value.
CLOSE: dict[str, Callable] = {
    "v_exp_f32": np.exp2,
    "v_log_f32": np.log2,
    "v_rcp_f32": lambda a: 1 / a,
    "v_rsq_f32": lambda a: 1 / np.sqrt(a),
    "v_sqrt_f32": np.sqrt,
}


def text_of(name: str, types: str) -> str:
    result, kinds = types.split("=")
    return f"{name} {', '.join([register(D, result), *map(register, (A, B, C), kinds)])}"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", VECTOR)
def test_an_instruction(name: str, seed: int) -> None:
    types, formula = VECTOR[name]
    result, kinds = types.split("=")
    draw = np.random.default_rng(seed)
    state = State(seed)
    rows = sources_in(state, kinds, draw)
    state.exec = int(draw.integers(0, 2**63)) if seed else M64
    before = state.copy()
    with np.errstate(all="ignore"):
        wanted = bits(result, formula(*(value(k, r) for k, r in zip(kinds, rows, strict=True))))
    if result == "w":
        wanted &= 0xFFFF
    single(CDNA, text_of(name, types)).run(state)
    got = state.vgpr[D : D + len(wanted)]
    wrong = state.on & ~same(result, got, wanted)
    assert not wrong.any(), [(lane, [hex(int(r[0, lane])) for r in rows], hex(int(got[0, lane])),
                              hex(int(wanted[0, lane]))) for lane in np.flatnonzero(wrong)[:4]]  # fmt: skip
    off = ~before.on
    assert (state.vgpr[:, off] == before.vgpr[:, off]).all(), "a lane that is off was written"
    others = [k for k in range(len(state.vgpr)) if not D <= k < D + len(wanted)]
    assert (state.vgpr[others] == before.vgpr[others]).all(), "another register was written"


@pytest.mark.parametrize("name", CLOSE)
def test_a_transcendental_instruction(name: str) -> None:
    draw = np.random.default_rng(1)
    state = State()
    row = drawn("f", draw)
    state.vgpr[A] = row[0]
    x = value("f", row).astype(F64)
    x[np.abs(x) < 2.0**-126] *= 0  # a subnormal number counts as 0
    with np.errstate(all="ignore"):
        wanted = CLOSE[name](x).astype(F32)
        wanted[np.abs(wanted) < 2.0**-126] *= 0
    single(CDNA, f"{name} v{D}, v{A}").run(state)
    assert same("f", state.vgpr[D : D + 1], bits("f", wanted), ulps=1).all()


CONDITIONS: dict[str, Callable] = {
    "lt": lambda a, b: a < b, "eq": lambda a, b: a == b, "le": lambda a, b: a <= b, "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b, "ne": lambda a, b: a != b, "lg": lambda a, b: (a < b) | (a > b),
    "o": lambda a, b: (a == a) & (b == b), "u": lambda a, b: (a != a) | (b != b), "nge": lambda a, b: ~(a >= b),
    "nlg": lambda a, b: ~((a < b) | (a > b)), "ngt": lambda a, b: ~(a > b), "nle": lambda a, b: ~(a <= b),
    "neq": lambda a, b: ~(a == b), "nlt": lambda a, b: ~(a < b),
}  # fmt: skip
COMPARISONS = [
    (f"v_cmp_{condition}_{type_}", kind, condition)
    for type_, kind in (
        ("f32", "f"),
        ("f16", "h"),
        ("f64", "d"),
        ("i32", "i"),
        ("u32", "u"),
        ("u64", "q"),
        ("u16", "w"),
    )
    for condition in CONDITIONS
    if (condition == "ne") != (kind in "fhd") or condition in ("lt", "eq", "le", "gt", "ge")
    if kind in "fhd" or condition in ("lt", "eq", "le", "gt", "ge", "ne")
]


@pytest.mark.parametrize(("name", "kind", "condition"), COMPARISONS)
def test_a_comparison(name: str, kind: str, condition: str) -> None:
    draw = np.random.default_rng(2)
    state = State(2)
    rows = sources_in(state, kind * 2, draw)
    alike = draw.random(LANES) < 0.3
    rows[1][:, alike] = rows[0][:, alike]
    state.vgpr[B : B + len(rows[1])] = rows[1]
    state.exec = int(draw.integers(0, 2**63))
    on = state.on
    single(CDNA, f"{name} s[20:21], {register(A, kind)}, {register(B, kind)}").run(state)
    got = (int(state.sgpr[20]) | int(state.sgpr[21]) << 32) >> np.arange(LANES, dtype=object) & 1
    wanted = np.array(CONDITIONS[condition](value(kind, rows[0]), value(kind, rows[1])), bool) & on
    assert (got.astype(bool) == wanted).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_classes(seed: int) -> None:
    state, draw = State(seed), np.random.default_rng(seed)
    (x,) = sources_in(state, "f", draw)
    for k in range(10):
        state.sgpr[4] = 1 << k
        single(CDNA, f"v_cmp_class_f32 vcc, v{A}, s4").run(state)
        v, exponent = value("f", x), x[0] >> 23 & 255
        quiet = x[0] >> 22 & 1
        kinds = [np.isnan(v) & (quiet == 0), np.isnan(v) & (quiet == 1), np.isneginf(v),
                 np.isfinite(v) & (v < 0) & (exponent > 0), np.isfinite(v) & (v < 0) & (exponent == 0),
                 (v == 0) & np.signbit(v), (v == 0) & ~np.signbit(v), (v > 0) & (exponent == 0),
                 (v > 0) & (exponent > 0) & np.isfinite(v), np.isposinf(v)]  # fmt: skip
        got = (int(state.sgpr[VCC]) | int(state.sgpr[VCC + 1]) << 32) >> np.arange(LANES, dtype=object) & 1
        assert (got.astype(bool) == kinds[k]).all(), k


def test_carries() -> None:
    state, draw = State(3), np.random.default_rng(3)
    rows = sources_in(state, "uu", draw)
    rows[1][0, :20] = ~rows[0][0, :20]  # sums of 2^32 - 1, which a carry makes 2^32
    state.vgpr[B] = rows[1][0]
    a, b = value("u", rows[0]), value("u", rows[1])
    carry_in = draw.integers(0, 2, LANES).astype(object)
    mask = sum(int(c) << k for k, c in enumerate(carry_in))

    def carries() -> np.ndarray:
        return (int(state.sgpr[VCC]) | int(state.sgpr[VCC + 1]) << 32) >> np.arange(LANES, dtype=object) & 1

    for name, whole in (
        ("v_add_co_u32 v10, vcc, v20, v30", a + b),
        ("v_sub_co_u32 v10, vcc, v20, v30", a - b),
        ("v_subrev_co_u32 v10, vcc, v20, v30", b - a),
        ("v_addc_co_u32 v10, vcc, v20, v30, vcc", a + b + carry_in),
        ("v_subb_co_u32 v10, vcc, v20, v30, vcc", a - b - carry_in),
        ("v_subbrev_co_u32 v10, vcc, v20, v30, vcc", b - a - carry_in),
    ):
        state.set_pair(VCC, mask)
        single(CDNA, name).run(state)
        assert (state.vgpr[D] == bits("u", whole)[0]).all(), name
        assert (carries() == np.array([int(w < 0 or w > M32) for w in whole])).all(), name


def test_wide_products() -> None:
    state, draw = State(4), np.random.default_rng(4)
    a, b, c = (value(k, r) for k, r in zip("uuq", sources_in(state, "uuq", draw), strict=True))
    single(CDNA, "v_mad_u64_u32 v[10:11], s[20:21], v20, v30, v[40:41]").run(state)
    assert (state.vgpr[D : D + 2] == bits("q", a * b + c)).all()
    over = sum(int(x * y + z > M64) << k for k, (x, y, z) in enumerate(zip(a, b, c, strict=True)))
    assert int(state.sgpr[20]) | int(state.sgpr[21]) << 32 == over


@pytest.mark.parametrize("seed", range(6))
def test_division(seed: int) -> None:
    """The steps that LLVM makes of a division of float32 give the quotient, rounded once; where it is too large, AMD's
    documents leave open what the steps make of it.
    """
    text = """v_div_scale_f32 v1, s[0:1], v30, v30, v20
v_div_scale_f32 v2, vcc, v20, v30, v20
v_rcp_f32 v3, v1
v_fma_f32 v4, -v1, v3, 1.0
v_fma_f32 v3, v4, v3, v3
v_mul_f32 v4, v2, v3
v_fma_f32 v5, -v1, v4, v2
v_fma_f32 v4, v5, v3, v4
v_fma_f32 v1, -v1, v4, v2
v_div_fmas_f32 v1, v1, v3, v4
v_div_fixup_f32 v10, v1, v30, v20"""
    state, draw = State(seed), np.random.default_rng(seed)
    a, b = (value("f", rows) for rows in sources_in(state, "ff", draw))
    spread = F32(2.0) ** draw.integers(-100, 100, LANES).astype(F32)
    with np.errstate(all="ignore"):
        state.vgpr[A] = (a * spread).astype(F32).view(np.uint32)
        wanted = bits("f", state.vgpr[A].view(F32) / b)
    single(CDNA, text).run(state)
    numerator, quotient = state.vgpr[A].view(F32), value("f", wanted)
    too_large = np.isfinite(numerator) & (b != 0) & np.isinf(quotient)
    wrong = ~same("f", state.vgpr[D : D + 1], wanted) & ~too_large
    assert not wrong.any(), [(hex(int(state.vgpr[A][k])), hex(int(state.vgpr[B][k])), hex(int(state.vgpr[D][k])),
                              hex(int(wanted[0, k]))) for k in np.flatnonzero(wrong)[:4]]  # fmt: skip
