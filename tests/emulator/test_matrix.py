"""Each matrix instruction, assembled, on drawn registers, against a sum over elements that matrix_layouts.py finds."""

from __future__ import annotations

from functools import lru_cache

import matrix_layouts
import numpy as np
import pytest
from formats import decode, encode
from hypothesis import given, settings
from hypothesis import strategies as st
from matrix_layouts import Form
from single import EXEC, LANES, Faulted, Single, State, single

FORMS = {f"{form.target}-{form.name}": form for form in matrix_layouts.forms()}
NAMED = [(16, "fp8", "fp8"), (32, "fp8", "bf8"), (16, "bf8", "fp4"), (32, "fp4", "fp6"), (16, "bf6", "bf6"),
         (32, "bf8", "bf8"), (16, "fp6", "fp8")]  # fmt: skip
FORMATS = ("fp8", "bf8", "fp6", "bf6", "fp4")  # in the order of cbsz and blgp
A, B, C, D, SCALE_A, SCALE_B = 40, 60, 80, 120, 160, 161
seeds = st.integers(0, 2**32 - 1)
masks = st.integers(0, 2**64 - 1)


def text_of(form: Form, modifiers: str = "", d: int = D, c: int | str = C, scaled: bool = False) -> str:
    def span(first: int, count: int) -> str:
        return f"v[{first}:{first + count - 1}]" if count > 1 else f"v{first}"

    sums = form.registers("d")
    source = c if isinstance(c, str) else span(c, sums)
    scales = f", v{SCALE_A}, v{SCALE_B}" if scaled else ""
    return (f"{form.name} {span(d, sums)}, {span(A, form.registers('a'))}, {span(B, form.registers('b'))}, "
            f"{source}{scales} {modifiers}")  # fmt: skip


@lru_cache(maxsize=256)
def _places(form: Form, matrix: str) -> tuple[np.ndarray, ...]:
    """Of each element, its row, column, block, register, first bit and lane."""
    return tuple(np.array([(*index, *form.place(matrix, *index)) for index in form.indices(matrix)]).T)


def read(form: Form, matrix: str, registers: np.ndarray, target: str) -> np.ndarray:
    """A matrix out of its registers: float64 [rows, columns, blocks]; of "d" with the target's formats."""
    row, column, block, register, bit, lane = _places(form, matrix)
    kind = getattr(form, matrix)
    words = registers[register, lane].astype(np.uint64)
    after = registers[np.minimum(register + 1, len(registers) - 1), lane].astype(np.uint64)
    codes = (words | after << np.uint64(32)) >> bit.astype(np.uint64)
    if form.bits(matrix) < 64:
        codes &= np.uint64((1 << form.bits(matrix)) - 1)
    out = np.zeros((row.max() + 1, column.max() + 1, form.blocks))
    out[row, column, block] = decode(kind, codes, fnuz=target == "gfx942")
    return out


def write(form: Form, matrix: str, registers: np.ndarray, values: np.ndarray) -> None:
    """Puts a matrix into registers, [rows, columns, blocks], in its format; of gfx11 in both halves of the wave."""
    row, column, block, register, bit, lane = _places(form, matrix)
    codes = encode(getattr(form, matrix), values[row, column, block], fnuz=form.target == "gfx942")
    spread = codes.astype(np.uint64), np.full(len(codes), (1 << form.bits(matrix)) - 1, np.uint64)
    placed = np.zeros((2, *registers.shape), np.uint32)  # the values, and which bits they take
    for layer, bits in zip(placed, spread, strict=True):
        low, high = bits << bit.astype(np.uint64), bits >> (32 - bit).astype(np.uint64)
        np.bitwise_or.at(layer, (register, lane), (low & 0xFFFFFFFF).astype(np.uint32))
        over = bit + form.bits(matrix) > 32
        np.bitwise_or.at(layer, (register[over] + 1, lane[over]), (high[over] & 0xFFFFFFFF).astype(np.uint32))
    registers[:] = registers & ~placed[1] | placed[0]
    if form.target.startswith("gfx11") and matrix != "d":
        registers[:, 16:32] = registers[:, :16]


def small_state(form: Form, seed: int) -> State:
    """Registers with whole numbers that every format has, so that sums are exact in any order."""
    state, draw = State(seed), np.random.default_rng(seed)
    for matrix, first in (("a", A), ("b", B), ("d", C)):
        shape = {"a": (form.m, form.k), "b": (form.n, form.k), "d": (form.m, form.n)}[matrix]
        low, high = (-2, 3) if matrix != "d" else (-9, 10)
        if getattr(form, matrix) in ("fp4", "fp6", "bf6", "iu4"):
            low, high = 0, 3
        if getattr(form, matrix) == "iu8":
            low = 0
        values = draw.integers(low, high, (*shape, form.blocks)).astype(float)
        write(form, matrix, state.vgpr[first:], values)
    return state


def product(form: Form, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return np.einsum("ikb,jkb->ijb", a, b) + c


def check_rest(form: Form, before: State, after: State) -> None:
    """Nothing but D has changed."""
    changed = np.nonzero((before.vgpr != after.vgpr).any(axis=1))[0]
    assert set(changed) <= set(range(D, D + form.registers("d")))
    assert (before.vgpr[:, form.lanes :] == after.vgpr[:, form.lanes :]).all()
    assert (before.sgpr == after.sgpr).all()


@pytest.mark.parametrize("name", FORMS)
@settings(max_examples=2)
@given(seed=seeds, mask=masks)
def test_whole_numbers(name: str, seed: int, mask: int) -> None:
    """Sums that are exact in any order show where each element lies. EXEC does not matter."""
    form = FORMS[name]
    state = small_state(form, seed)
    state.exec = mask
    before = state.copy()
    single(form.target, text_of(form)).run(state)
    a, b, c = (read(form, m, before.vgpr[first:], form.target) for m, first in (("a", A), ("b", B), ("d", C)))
    assert (read(form, "d", state.vgpr[D:], form.target) == product(form, a, b, c)).all()
    check_rest(form, before, state)


@pytest.mark.parametrize("name", [name for name, form in FORMS.items() if form.d != "i32"])
@settings(max_examples=2)
@given(seed=seeds)
def test_real_numbers(name: str, seed: int) -> None:
    """Sums of numbers of all sizes, to the rounding of as many additions as there are."""
    form = FORMS[name]
    state, draw = State(seed), np.random.default_rng(seed)
    for matrix, first in (("a", A), ("b", B), ("d", C)):
        shape = {"a": (form.m, form.k), "b": (form.n, form.k), "d": (form.m, form.n)}[matrix]
        values = draw.standard_normal((*shape, form.blocks))
        values[abs(values) < 0.01] = 0  # no subnormal f16, which gfx90a does not take
        write(form, matrix, state.vgpr[first:], values)
    before = state.copy()
    single(form.target, text_of(form)).run(state)
    a, b, c = (read(form, m, before.vgpr[first:], form.target) for m, first in (("a", A), ("b", B), ("d", C)))
    bound = product(form, abs(a), abs(b), abs(c))
    step = {"f32": 2.0**-24, "f64": 2.0**-53, "f16": 2.0**-10, "bf16": 2.0**-7}[form.d] * (form.k + 1)
    if form.a == "xf32":
        step += 2.0**-10
    assert (abs(read(form, "d", state.vgpr[D:], form.target) - product(form, a, b, c)) <= step * bound).all()


@pytest.mark.parametrize("name", FORMS)
def test_control_a_neighbours_register(name: str) -> None:
    """An instruction that reads one register too far, of A, B or C, gives another result."""
    form = FORMS[name]
    right = small_state(form, 7)
    start = right.copy()
    start.vgpr[:, 16:32] = start.vgpr[:, :16] if form.target.startswith("gfx11") else start.vgpr[:, 16:32]
    right = start.copy()
    single(form.target, text_of(form)).run(right)
    for operand in (1, 2, 3):
        wrong, program = start.copy(), Single(form.target, text_of(form))
        program.records[0].operand[operand].index += 1
        program.run(wrong)
        sums = slice(D, D + form.registers("d"))
        assert (wrong.vgpr[sums, : form.lanes] != right.vgpr[sums, : form.lanes]).any()


@pytest.mark.parametrize("place", ["a", "b", "c"])
def test_the_result_may_take_the_place_of_a_source(place: str) -> None:
    form = FORMS["gfx942-v_mfma_f32_16x16x16_f16"]
    plain, aliased = small_state(form, 3), small_state(form, 3)
    target = {"a": A, "b": B, "c": C}[place]
    single(form.target, text_of(form)).run(plain)
    single(form.target, text_of(form, d=target)).run(aliased)
    assert (aliased.vgpr[target : target + 4] == plain.vgpr[D : D + 4]).all()


@pytest.mark.parametrize(
    ("name", "constant"),
    [
        *((f"{n}", c) for c in ("0", "1.0", "-4.0") for n in (
            "gfx942-v_mfma_f32_16x16x16_f16", "gfx1100-v_wmma_f32_16x16x16_bf16", "gfx1200-v_wmma_f16_16x16x16_f16")),
        ("gfx90a-v_mfma_f64_16x16x4f64", "0"), ("gfx942-v_mfma_i32_16x16x32_i8", "0"),
        ("gfx942-v_mfma_i32_16x16x32_i8", "-16"),
    ],
)  # fmt: skip
def test_c_may_be_a_constant(name: str, constant: str) -> None:
    form = FORMS[name]
    state = small_state(form, 5)
    before = state.copy()
    single(form.target, text_of(form, c=constant)).run(state)
    a, b = read(form, "a", before.vgpr[A:], form.target), read(form, "b", before.vgpr[B:], form.target)
    assert (read(form, "d", state.vgpr[D:], form.target) == product(form, a, b, np.array(float(constant)))).all()


def test_accumulation_registers() -> None:
    """a0 and up stand for v256 and up."""
    form = FORMS["gfx942-v_mfma_f32_32x32x8_f16"]
    plain, moved = small_state(form, 11), small_state(form, 11)
    single(form.target, text_of(form)).run(plain)
    moved.vgpr[256 + 8 : 256 + 24] = moved.vgpr[C : C + 16]
    moved.vgpr[256 + 2 : 256 + 4] = moved.vgpr[A : A + 2]
    single(form.target, f"{form.name} a[8:23], a[2:3], v[{B}:{B + 1}], a[8:23]").run(moved)
    assert (moved.vgpr[256 + 8 : 256 + 24] == plain.vgpr[D : D + 16]).all()


@pytest.mark.parametrize("name", [n for n, f in FORMS.items() if f.blocks > 1 and f.d != "f64"])
def test_blocks_share_a(name: str) -> None:
    """cbsz and abid: 2^cbsz blocks use block abid of them."""
    form = FORMS[name]
    most = form.blocks.bit_length() - 1
    for cbsz, abid in ((1, 0), (1, 1), (most, form.blocks - 1)):
        state = small_state(form, cbsz)
        before = state.copy()
        single(form.target, text_of(form, f"cbsz:{cbsz} abid:{abid}")).run(state)
        a, b, c = (read(form, m, before.vgpr[first:], form.target) for m, first in (("a", A), ("b", B), ("d", C)))
        taken = [block // 2**cbsz * 2**cbsz + abid for block in range(form.blocks)]
        assert (read(form, "d", state.vgpr[D:], form.target) == product(form, a[:, :, taken], b, c)).all()


@pytest.mark.parametrize("blgp", range(8))
@pytest.mark.parametrize("name", ["gfx90a-v_mfma_f32_16x16x4f16", "gfx942-v_mfma_f32_32x32x8_f16",
                                  "gfx942-v_mfma_f32_4x4x4_16b_bf16", "gfx90a-v_mfma_i32_32x32x8i8"])  # fmt: skip
def test_lanes_of_b_are_permuted(name: str, blgp: int) -> None:
    form = FORMS[name]
    state = small_state(form, blgp)
    before = state.copy()
    single(form.target, text_of(form, f"blgp:{blgp}" if blgp else "")).run(state)
    lane = np.arange(LANES)
    from_lane = [lane, lane % 32, lane % 32 + 32, (lane + 16) % 64, lane % 16, lane % 16 + 16, lane % 16 + 32,
                 lane % 16 + 48][blgp]  # fmt: skip
    a, c = read(form, "a", before.vgpr[A:], form.target), read(form, "d", before.vgpr[C:], form.target)
    b = read(form, "b", before.vgpr[B : B + 20][:, from_lane], form.target)
    assert (read(form, "d", state.vgpr[D:], form.target) == product(form, a, b, c)).all()


@pytest.mark.parametrize(("m", "a", "b"), NAMED)
@settings(max_examples=2)
@given(seed=seeds)
def test_named_formats_with_scales(m: int, a: str, b: str, seed: int) -> None:
    """f8f6f4: formats by cbsz and blgp; a power of two for each 32 of k is in a byte of lane i + m * (k / 32)."""
    form = matrix_layouts.named_form(m, a, b)
    state, draw = small_state(form, seed), np.random.default_rng(seed)
    state.vgpr[SCALE_A] = draw.integers(120, 134, (LANES, 4), np.uint8).view(np.uint32)[:, 0]
    state.vgpr[SCALE_B] = draw.integers(120, 134, (LANES, 4), np.uint8).view(np.uint32)[:, 0]
    before = state.copy()
    formats = f"cbsz:{FORMATS.index(a)} blgp:{FORMATS.index(b)}"
    text = text_of(form, f"op_sel:[1,0,0] op_sel_hi:[1,1,0] {formats}", scaled=True)
    single(form.target, text).run(state)
    scales = []
    for register, byte in ((SCALE_A, 3), (SCALE_B, 2)):
        codes = before.vgpr[register] >> np.uint32(8 * byte) & np.uint32(0xFF)
        scales.append(2.0 ** (codes.astype(float) - 127)[np.arange(m)[:, None] + m * (np.arange(form.k)[None] // 32)])
    left = read(form, "a", before.vgpr[A:], form.target) * scales[0][:, :, None]
    right = read(form, "b", before.vgpr[B:], form.target) * scales[1][:, :, None]
    c = read(form, "d", before.vgpr[C:], form.target)
    wanted, bound = product(form, left, right, c), product(form, abs(left), abs(right), abs(c))
    assert (abs(read(form, "d", state.vgpr[D:], form.target) - wanted) <= form.k * 2.0**-24 * bound).all()


def test_named_formats_without_scales() -> None:
    form = matrix_layouts.named_form(32, "fp8", "fp8")
    state = small_state(form, 2)
    before = state.copy()
    single(form.target, text_of(form).replace("_scale", "")).run(state)
    a, b, c = (read(form, m, before.vgpr[first:], form.target) for m, first in (("a", A), ("b", B), ("d", C)))
    assert (read(form, "d", state.vgpr[D:], form.target) == product(form, a, b, c)).all()


@pytest.mark.parametrize(("target", "flushed"), [("gfx90a", True), ("gfx942", False)])
@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_subnormal_sources(target: str, flushed: bool, kind: str) -> None:
    """gfx90a takes subnormal f16 and bf16 as zero."""
    suffix = {"gfx90a": {"f16": "f16", "bf16": "bf16_1k"}, "gfx942": {"f16": "_f16", "bf16": "_bf16"}}[target][kind]
    form = FORMS[f"{target}-v_mfma_f32_16x16x16{suffix}"]
    state = State(1)
    state.vgpr[A : A + 2] = 0x00010001  # the smallest
    state.vgpr[B : B + 2] = 0x3C003C00 if kind == "f16" else 0x7F007F00  # 1, and 2^127
    state.vgpr[C : C + 4] = 0
    single(target, text_of(form)).run(state)
    sums = read(form, "d", state.vgpr[D:], target)
    assert (sums == (0 if flushed else 16 * (2.0**-24 if kind == "f16" else 2.0**-133 * 2.0**127))).all()


def test_the_programs_mode_does_not_matter() -> None:
    form = FORMS["gfx942-v_mfma_f32_16x16x16_f16"]
    states = []
    for mode in (0xF0, 0x03):  # rounding towards zero, subnormals flushed
        state = State(4)
        state.vgpr[A : A + 2] &= 0x83FF83FF  # subnormal
        state.vgpr[B : B + 2] = 0x3C003C00
        state.vgpr[C : C + 4] &= 0x807FFFFF
        state.mode = mode
        single(form.target, "v_add_f32 v0, v1, v2\n" + text_of(form)).run(state)
        states.append(state.vgpr[D : D + 4])
    assert (states[0] == states[1]).all() and (states[0] & 0x7FFFFFFF).any()


@pytest.mark.parametrize("name", ["gfx1100-v_wmma_f32_16x16x16_f16", "gfx1200-v_wmma_f32_16x16x16_bf16",
                                  "gfx1200-v_wmma_f16_16x16x16_f16"])  # fmt: skip
def test_signs_of_wmma(name: str) -> None:
    """neg_lo turns even elements of A and B, and C; neg_hi odd ones, and takes C without its sign."""
    form = FORMS[name]
    state = small_state(form, 9)
    before = state.copy()
    single(form.target, text_of(form, "neg_lo:[1,0,1] neg_hi:[0,1,1]")).run(state)
    a, b, c = (read(form, m, before.vgpr[first:], form.target) for m, first in (("a", A), ("b", B), ("d", C)))
    a[:, ::2] *= -1
    b[:, 1::2] *= -1
    assert (read(form, "d", state.vgpr[D:], form.target) == product(form, a, b, -abs(c))).all()


def test_signs_of_f64() -> None:
    form = FORMS["gfx942-v_mfma_f64_16x16x4_f64"]
    state = small_state(form, 9)
    before = state.copy()
    single(form.target, text_of(form, "neg:[1,0,1]")).run(state)
    a, b, c = (read(form, m, before.vgpr[first:], form.target) for m, first in (("a", A), ("b", B), ("d", C)))
    assert (read(form, "d", state.vgpr[D:], form.target) == product(form, -a, b, -c)).all()


@pytest.mark.parametrize("name", ["gfx1100-v_wmma_i32_16x16x16_iu8", "gfx1200-v_wmma_i32_16x16x32_iu4"])
@pytest.mark.parametrize("signs", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_signs_and_saturation_of_integers(name: str, signs: tuple[int, int]) -> None:
    """neg_lo says which of A and B have signs; clamp keeps sums within i32."""
    form = FORMS[name]
    for clamp in ("", "clamp"):
        state = State(6)
        state.vgpr[:, 16:32] = state.vgpr[:, :16]
        state.vgpr[C : C + 8] = np.where(state.vgpr[C : C + 8] % 2, 0x7FFFFFFF, 0x80000000)
        before = state.copy()
        single(form.target, text_of(form, f"neg_lo:[{signs[0]},{signs[1]},0] {clamp}")).run(state)
        a, b, c = (read(form, m, before.vgpr[first:], form.target) for m, first in (("a", A), ("b", B), ("d", C)))
        half, whole = 2 ** (form.bits("a") - 1), 2 ** form.bits("a")
        a, b = (np.where((v >= half) & bool(sign), v - whole, v) for v, sign in ((a, signs[0]), (b, signs[1])))
        wanted = product(form, a, b, c)
        wanted = np.clip(wanted, -(2**31), 2**31 - 1) if clamp else (wanted + 2**31) % 2**32 - 2**31
        assert (read(form, "d", state.vgpr[D:], form.target) == wanted).all()


def test_sums_of_f16_in_the_upper_halves() -> None:
    """gfx11: op_sel's third bit chooses the halves of C and D; the others stay."""
    form = FORMS["gfx1100-v_wmma_f16_16x16x16_f16"]
    low, high = small_state(form, 8), small_state(form, 8)
    high.vgpr[C : C + 8] = high.vgpr[C : C + 8] << np.uint32(16)
    before = high.vgpr[D : D + 8].copy()
    single(form.target, text_of(form)).run(low)
    single(form.target, text_of(form, "op_sel:[0,0,1]")).run(high)
    mine, other = high.vgpr[D : D + 8, :32], low.vgpr[D : D + 8, :32]
    assert (mine >> np.uint32(16) == other & np.uint32(0xFFFF)).all()
    assert (mine & np.uint32(0xFFFF) == before[:, :32] & np.uint32(0xFFFF)).all()


@pytest.mark.parametrize(("register", "matrix"), [(A + 3, "A"), (B + 7, "B")])
def test_fault_halves_of_a_wave_that_differ(register: int, matrix: str) -> None:
    """gfx11 reads A and B out of either half."""
    form = FORMS["gfx1100-v_wmma_f32_16x16x16_f16"]
    state = small_state(form, 1)
    state.vgpr[register, 21] ^= 1
    with pytest.raises(Faulted, match=f"{matrix} of WMMA differs between lanes 5 and 21 in v{register}") as caught:
        single(form.target, text_of(form)).run(state)
    assert (caught.value.check, caught.value.lane) == ("program", 21)


def test_fault_a_range_too_short() -> None:
    form = FORMS["gfx942-v_mfma_f32_32x32x8_f16"]
    program = Single(form.target, text_of(form))
    program.records[0].operand[1].words = 1
    with pytest.raises(Faulted, match="operand 1 of a matrix instruction is not a range of 2 vector registers"):
        program.run(State(0))


def test_fault_a_format_that_is_none() -> None:
    program = Single("gfx950", text_of(matrix_layouts.named_form(16, "fp8", "fp8")).replace("_scale", ""))
    program.records[0].cbsz = 6
    with pytest.raises(Faulted, match="name formats by 0 to 4"):
        program.run(State(0))


def test_no_lane_on_gives_the_same() -> None:
    form = FORMS["gfx90a-v_mfma_f32_32x32x8f16"]
    on, off = small_state(form, 1), small_state(form, 1)
    off.exec = 0
    for state in (on, off):
        single(form.target, text_of(form)).run(state)
    assert (on.vgpr == off.vgpr).all() and off.sgpr[EXEC] == 0
