"""Each conversion, assembled, on drawn registers, against numpy and the formats' definitions."""

from __future__ import annotations

import formats
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from single import LANES, State, single

OVERFLOW_SATURATES = 1 << 23  # MODE.FP16_OVFL

# Numbers at which conversions turn: zeros, subnormal ones, ties, the largest of each format, infinities, NaNs.
EDGES = np.array(
    [0, 1, 0x7FFFFF, 0x800000, 0x33000000, 0x33000001, 0x33800000, 0x387FE000, 0x38800000, 0x3F800000, 0x3F801000,
     0x3F803000, 0x3F808000, 0x3F818000, 0x43700000, 0x43780000, 0x43E00000, 0x43E80000, 0x43F00000, 0x477FE000,
     0x477FEFFF, 0x477FF000, 0x47600000, 0x47680000, 0x47700000, 0x4F000000, 0x4F800000, 0x7F7FFFFF, 0x7F7F8000,
     0x7F800000, 0x7F800001, 0x7FC00000, 0x3B000000, 0x3A800000, 0x37800000, 0x37000000], np.uint32)  # fmt: skip
EDGES = np.concatenate([EDGES, EDGES | np.uint32(0x80000000)])


@st.composite
def words(draw: st.DrawFn) -> np.ndarray:
    """A register: bits drawn at random, numbers of middling size, and edges."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    bits = random.integers(0, 2**32, LANES, np.uint32)
    middling = (random.standard_normal(LANES) * 2.0 ** random.integers(-20, 20, LANES)).astype(np.float32)
    choice = random.integers(0, 3, LANES)
    return np.select([choice == 0, choice == 1], [bits, middling.view(np.uint32)], random.choice(EDGES, LANES))


masks = st.one_of(st.just(2**64 - 1), st.integers(0, 2**64 - 1))


def f32(bits: np.ndarray) -> np.ndarray:
    return bits.view(np.float32)


def whole(value: np.ndarray, low: float, high: float) -> np.ndarray:
    """Toward zero, saturated, NaN to 0."""
    with np.errstate(invalid="ignore"):
        return np.clip(np.trunc(np.nan_to_num(value.astype(np.float64), nan=0, posinf=high, neginf=low)), low, high)


def f16(value: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        return value.astype(np.float16)


def f16_truncated(value: np.ndarray) -> np.ndarray:
    near = f16(value)
    with np.errstate(invalid="ignore"):
        away = abs(near.astype(np.float64)) > abs(value.astype(np.float64))
        return np.where(away, np.nextafter(near, np.float16(0)), near)


def bits_of(value: np.ndarray) -> np.ndarray:
    return value.view({2: np.uint16, 4: np.uint32}[value.dtype.itemsize]).astype(np.uint32)


def halves(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    return low | high << np.uint32(16)


ONE_SOURCE = {
    "v_cvt_f32_i32": lambda a: bits_of(a.view(np.int32).astype(np.float32)),
    "v_cvt_f32_u32": lambda a: bits_of(a.astype(np.float32)),
    "v_cvt_i32_f32": lambda a: whole(f32(a), -(2**31), 2**31 - 1).astype(np.int64).astype(np.uint32),
    "v_cvt_u32_f32": lambda a: whole(f32(a), 0, 2**32 - 1).astype(np.uint32),
    "v_cvt_f32_ubyte0": lambda a: bits_of((a & 0xFF).astype(np.float32)),
    "v_cvt_f32_ubyte1": lambda a: bits_of((a >> 8 & 0xFF).astype(np.float32)),
    "v_cvt_f32_ubyte2": lambda a: bits_of((a >> 16 & 0xFF).astype(np.float32)),
    "v_cvt_f32_ubyte3": lambda a: bits_of((a >> 24).astype(np.float32)),
    "v_cvt_f32_f16": lambda a: bits_of(a.astype(np.uint16).view(np.float16).astype(np.float32)),
    "v_cvt_f16_f32": lambda a: bits_of(f16(f32(a))),
    "v_cvt_f16_i16": lambda a: bits_of(a.astype(np.int16).astype(np.float16)),
    "v_cvt_f16_u16": lambda a: bits_of(f16(a.astype(np.uint16).astype(np.float64))),
    "v_cvt_i16_f16": lambda a: whole(a.astype(np.uint16).view(np.float16), -32768, 32767).astype(np.int32) & 0xFFFF,
    "v_cvt_u16_f16": lambda a: whole(a.astype(np.uint16).view(np.float16), 0, 65535).astype(np.uint32),
    "v_cvt_off_f32_i4": lambda a: bits_of(((a.astype(np.int32) + 8) % 16 - 8).astype(np.float32) / 16),
}
TWO_SOURCES = {
    ("gfx942", "v_cvt_pkrtz_f16_f32"): lambda a, b: halves(*(bits_of(f16_truncated(f32(s))) for s in (a, b))),
    ("gfx1100", "v_cvt_pk_rtz_f16_f32"): lambda a, b: halves(*(bits_of(f16_truncated(f32(s))) for s in (a, b))),
    ("gfx950", "v_cvt_pk_f16_f32"): lambda a, b: halves(bits_of(f16(f32(a))), bits_of(f16(f32(b)))),
    ("gfx950", "v_cvt_pk_bf16_f32"): lambda a, b: halves(formats.bf16(a), formats.bf16(b)),
    ("gfx942", "v_cvt_pk_u16_u32"): lambda a, b: halves(np.minimum(a, 0xFFFF), np.minimum(b, 0xFFFF)),
    ("gfx942", "v_cvt_pk_i16_i32"): lambda a, b: halves(
        *(np.clip(s.view(np.int32), -32768, 32767).view(np.uint32) & 0xFFFF for s in (a, b))),
}  # fmt: skip


def same(found: np.ndarray, wanted: np.ndarray, number: type | None) -> np.ndarray:
    """Equal bits, or both NaN."""
    equal = found == wanted
    if number is None:
        return equal
    bits = {np.float32: np.uint32, np.float16: np.uint16}[number]
    return equal | np.isnan(found.astype(bits).view(number)) & np.isnan(wanted.astype(bits).view(number))


@pytest.mark.parametrize("target", ["gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201"])
@pytest.mark.parametrize("name", ONE_SOURCE)
@settings(max_examples=10)
@given(source=words(), mask=masks)
def test_one_source(target: str, name: str, source: np.ndarray, mask: int) -> None:
    state = State(1)
    state.vgpr[1], state.exec = source, mask
    before = state.copy()
    single(target, f"{name} v0, v1").run(state)
    number = {"f32": np.float32, "f16": np.float16}.get(name[6:9])
    wanted = ONE_SOURCE[name](source)
    found = state.vgpr[0] & 0xFFFF if name[6:9] in ("f16", "i16", "u16") else state.vgpr[0]
    lanes = state.on & (np.arange(LANES) < (32 if target.startswith("gfx1") else 64))
    assert same(found, wanted, number)[lanes].all()
    assert (state.vgpr[0, ~lanes] == before.vgpr[0, ~lanes]).all()
    assert (state.vgpr[1:] == before.vgpr[1:]).all()


@pytest.mark.parametrize(("target", "name"), TWO_SOURCES)
@settings(max_examples=10)
@given(first=words(), second=words(), mask=masks)
def test_two_sources(target: str, name: str, first: np.ndarray, second: np.ndarray, mask: int) -> None:
    state = State(1)
    state.vgpr[1], state.vgpr[2], state.exec = first, second, mask
    before = state.copy()
    single(target, f"{name} v0, v1, v2").run(state)
    wanted = TWO_SOURCES[target, name](first, second)
    lanes = state.on & (np.arange(LANES) < (32 if target.startswith("gfx1") else 64))
    for shift in (0, 16):
        parts = (state.vgpr[0] >> np.uint32(shift) & 0xFFFF, wanted >> np.uint32(shift) & 0xFFFF)
        if "bf16" in name or ("16_" not in name[9:] and "f16" not in name):
            assert (parts[0] == parts[1])[lanes].all()
        else:
            assert same(*parts, np.float16)[lanes].all()
    assert (state.vgpr[0, ~lanes] == before.vgpr[0, ~lanes]).all()


@settings(max_examples=10)
@given(seed=st.integers(0, 2**32 - 1))
def test_f64(seed: int) -> None:
    draw = np.random.default_rng(seed)
    values = draw.standard_normal(LANES) * 2.0 ** draw.integers(-160, 160, LANES)
    values[:6] = 2.0**31 - 0.5, -(2.0**31) - 0.5, np.nan, np.inf, -np.inf, 2.0**32 - 0.5
    state = State(seed)
    state.vgpr[2:4] = values.view(np.uint32).reshape(LANES, 2).T
    whole_words = state.vgpr[8].copy()
    narrowing = "v_cvt_f32_f64 v0, v[2:3]\nv_cvt_i32_f64 v1, v[2:3]\nv_cvt_u32_f64 v4, v[2:3]"
    widening = "v_cvt_f64_i32 v[10:11], v8\nv_cvt_f64_u32 v[12:13], v8\nv_cvt_f64_f32 v[14:15], v0"
    single("gfx942", f"{narrowing}\n{widening}").run(state)
    with np.errstate(over="ignore"):
        narrow = values.astype(np.float32)
    doubles = [np.ascontiguousarray(state.vgpr[k : k + 2].T).view(np.float64)[:, 0] for k in (10, 12, 14)]
    assert same(state.vgpr[0], bits_of(narrow), np.float32).all()
    assert (state.vgpr[1].view(np.int32) == whole(values, -(2**31), 2**31 - 1)).all()
    assert (state.vgpr[4] == whole(values, 0, 2**32 - 1)).all()
    assert (doubles[0] == whole_words.view(np.int32)).all() and (doubles[1] == whole_words).all()
    assert np.array_equal(doubles[2], narrow.astype(np.float64), equal_nan=True)


SMALL = [(target, kind) for target in ("gfx942", "gfx950", "gfx1201") for kind in ("fp8", "bf8")]


def format_of(target: str, kind: str) -> str:
    return f"{kind}_fnuz" if target == "gfx942" else kind


@pytest.mark.parametrize(("target", "kind"), SMALL)
def test_every_code_of_eight_bits(target: str, kind: str) -> None:
    """All 256, from each byte and half of a word."""
    lanes = 32 if target == "gfx1201" else 64
    codes = np.arange(256, dtype=np.uint32)
    values = formats.table(format_of(target, kind)).astype(np.float32)
    for start in range(0, 256, 4 * lanes):
        state = State(0)
        state.vgpr[1, :lanes] = codes[start : start + 4 * lanes].astype(np.uint8).view(np.uint32)
        for byte in range(4):
            choice = f"byte_sel:{byte}" if target == "gfx1201" else f"src0_sel:BYTE_{byte}"
            plain = target == "gfx1201" or not byte
            name = f"v_cvt_f32_{kind}" + ("" if plain else "_sdwa")
            single(target, f"{name} v0, v1 {choice if byte else ''}").run(state)
            wanted = values[start + byte :: 4][:lanes]
            assert np.array_equal(f32(state.vgpr[0, :lanes]), wanted, equal_nan=True)
        for half in range(2):
            choice = "op_sel:[1,0]" if target == "gfx1201" else "src0_sel:WORD_1"
            name = f"v_cvt_pk_f32_{kind}" + ("_sdwa" if half and target != "gfx1201" else "")
            single(target, f"{name} v[2:3], v1 {choice if half else ''}").run(state)
            for k in range(2):
                wanted = values[start + 2 * half + k :: 4][:lanes]
                assert np.array_equal(f32(state.vgpr[2 + k, :lanes]), wanted, equal_nan=True)


@pytest.mark.parametrize("saturate", [False, True])
@pytest.mark.parametrize(("target", "kind"), SMALL)
@settings(max_examples=10)
@given(first=words(), second=words())
def test_to_eight_bits(target: str, kind: str, saturate: bool, first: np.ndarray, second: np.ndarray) -> None:
    """Two numbers into the half that op_sel chooses; the other half stays."""
    state = State(3)
    state.vgpr[1], state.vgpr[2] = first, second
    state.mode |= OVERFLOW_SATURATES if saturate else 0
    before = state.copy()
    single(target, f"v_cvt_pk_{kind}_f32 v0, v1, v2\nv_cvt_pk_{kind}_f32 v3, v1, v2 op_sel:[0,0,1]").run(state)
    name = format_of(target, kind)
    wanted = [np.array([formats.nearest(name, float(v), saturate) for v in f32(s)], np.uint32) for s in (first, second)]
    pair = wanted[0] | wanted[1] << np.uint32(8)
    lanes = slice(0, 32 if target == "gfx1201" else 64)
    low, high = (np.uint32(0xFFFF), np.uint32(0xFFFF0000))
    assert (state.vgpr[0, lanes] == (before.vgpr[0] & high | pair)[lanes]).all()
    assert (state.vgpr[3, lanes] == (before.vgpr[3] & low | pair << np.uint32(16))[lanes]).all()


@pytest.mark.parametrize("kind", ["fp8", "bf8"])
@pytest.mark.parametrize("half", [0, 1])
def test_scaled(kind: str, half: int) -> None:
    """gfx950: two of eight bits times a power of two."""
    state = State(5)
    state.vgpr[2] = np.float32(1.75 * 2.0**3).view(np.uint32)  # of which the exponent counts
    choice = "op_sel:[1,0,0]" if half else ""
    single("gfx950", f"v_cvt_scalef32_pk_f16_{kind} v0, v1, 1.0 {choice}\n"
                     f"v_cvt_scalef32_pk_f32_{kind} v[4:5], v1, v2 {choice}\n"
                     f"v_cvt_scalef32_pk_bf16_{kind} v6, v1, v2 {choice}").run(state)  # fmt: skip
    values = formats.table(kind)
    for k in range(2):
        number = values[state.vgpr[1] >> np.uint32(16 * half + 8 * k) & 0xFF]
        part = (state.vgpr[0] >> np.uint32(16 * k)).astype(np.uint16).view(np.float16)
        assert np.array_equal(part, f16(number), equal_nan=True)
        assert np.array_equal(f32(state.vgpr[4 + k]), (number * 8).astype(np.float32), equal_nan=True)
        part = (state.vgpr[6] >> np.uint32(16 * k)).astype(np.uint32) << np.uint32(16)
        assert np.array_equal(f32(part), (number * 8).astype(np.float32), equal_nan=True)


def test_stochastic_rounding_is_refused() -> None:
    with pytest.raises(AssertionError, match="unknown to the executor: .*v_cvt_sr_fp8_f32"):
        single("gfx942", "v_cvt_sr_fp8_f32 v0, v1, v2")


@pytest.mark.parametrize("name", formats.SMALL)
def test_the_second_opinion_rounds_to_nearest(name: str) -> None:
    """formats.nearest gives each finite number back, and of the middle of two neighbours the even one."""
    values = formats.table(name)
    half = len(values) // 2
    finite = [code for code in range(half) if np.isfinite(values[code])]
    assert [formats.nearest(name, values[code], False) for code in finite] == finite
    middles = [(values[code] + values[code + 1]) / 2 for code in finite[:-1]]
    assert [formats.nearest(name, middle, False) for middle in middles] == [c + c % 2 for c in finite[:-1]]
