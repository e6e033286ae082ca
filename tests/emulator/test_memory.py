"""Each form of memory access, assembled, on drawn registers, against numpy; and that every byte must have a region."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from single import LANES, M0, Faulted, State, single

SIZE = 8192
masks = st.one_of(st.just(2**64 - 1), st.integers(0, 2**64 - 1))
seeds = st.integers(0, 2**32 - 1)

# Of gfx9 and of gfx11: name, bytes, how they stand in the register.
LOADS = {
    "gfx942": [("ubyte", 1, "whole"), ("sbyte", 1, "signed"), ("ushort", 2, "whole"), ("sshort", 2, "signed"),
               ("dword", 4, "whole"), ("dwordx2", 8, "whole"), ("dwordx3", 12, "whole"), ("dwordx4", 16, "whole"),
               ("ubyte_d16", 1, "low"), ("sbyte_d16_hi", 1, "high signed"), ("short_d16", 2, "low"),
               ("short_d16_hi", 2, "high")],
    "gfx1201": [("u8", 1, "whole"), ("i8", 1, "signed"), ("u16", 2, "whole"), ("i16", 2, "signed"),
                ("b32", 4, "whole"), ("b64", 8, "whole"), ("b96", 12, "whole"), ("b128", 16, "whole"),
                ("d16_u8", 1, "low"), ("d16_hi_i8", 1, "high signed"), ("d16_b16", 2, "low"),
                ("d16_hi_b16", 2, "high")],
}  # fmt: skip
STORES = {
    "gfx942": [("byte", 1, "whole"), ("short", 2, "whole"), ("dword", 4, "whole"), ("dwordx2", 8, "whole"),
               ("dwordx3", 12, "whole"), ("dwordx4", 16, "whole"), ("byte_d16_hi", 1, "high"),
               ("short_d16_hi", 2, "high")],
    "gfx1201": [("b8", 1, "whole"), ("b16", 2, "whole"), ("b32", 4, "whole"), ("b64", 8, "whole"),
                ("b96", 12, "whole"), ("b128", 16, "whole"), ("d16_hi_b8", 1, "high"), ("d16_hi_b16", 2, "high")],
}  # fmt: skip
# How an address is made, v[2:3] or v2 and s[4:5] or s4: the operand before the data, and after it.
SPACES = {"global": ("v[2:3]", "off"), "global with a base": ("v2", "s[4:5]"), "flat": ("v[2:3]", ""),
          "scratch": ("v2", "off"), "scratch with a base": ("off", "s4"),
          "buffer": ("v2", "s[8:11], 0 offen")}  # fmt: skip
SCRATCH = 512


def lanes_of(target: str) -> int:
    return 32 if target.startswith("gfx1") else 64


def on(state: State, target: str) -> list[int]:
    return [lane for lane in range(lanes_of(target)) if state.exec >> lane & 1]


def region(seed: int, size: int = SIZE) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def descriptor(state: State, array: np.ndarray, target: str, records: int | None = None, stride: int = 0) -> None:
    """A buffer in s[8:11]."""
    state.set_pair(8, array.ctypes.data | stride << 48)
    state.sgpr[10] = array.nbytes if records is None else records
    state.sgpr[11] = 0x27000 if target.startswith("gfx9") else 3 << 28 | 20 << 12


def addressed(space: str, seed: int, mask: int, array: np.ndarray, target: str) -> tuple[State, np.ndarray]:
    """A state whose lanes have 64 bytes each, in any order, and where they begin: in the array, or in scratch."""
    state = State(seed, scratch=SCRATCH)
    draw = np.random.default_rng(seed)
    places = draw.permutation(LANES).astype(np.uint64) * 64 + draw.integers(0, 17, LANES).astype(np.uint64)
    if space.startswith("scratch"):
        places = draw.integers(0, SCRATCH - 100, LANES).astype(np.uint64)
        if "base" in space:
            places[:] = state.sgpr[4] = 76
    absolute = places + np.uint64(array.ctypes.data)
    if space in ("global", "flat"):
        state.vgpr[2], state.vgpr[3] = absolute & 0xFFFFFFFF, absolute >> 32
    elif "base" not in space or space.startswith("global"):
        state.vgpr[2] = places
        state.set_pair(4, array.ctypes.data)
    descriptor(state, array, target)
    state.exec = mask
    return state, places.astype(int)


def instruction(space: str, verb: str, name: str, registers: str, target: str) -> str:
    before, after = SPACES[space]
    prefix = space.split()[0]
    if prefix == "buffer":
        offset = "null" if target == "gfx1201" else "0"
        return f"buffer_{verb}_{name} {registers}, {before}, {after.replace(', 0', f', {offset}')} offset:20"
    first, second = (registers, before) if verb == "load" else (before, registers)
    return f"{prefix}_{verb}_{name} {first}, {second}{', ' if after else ''}{after} offset:20"


def span(first: int, size: int) -> str:
    return f"v[{first}:{first + size // 4 - 1}]" if size > 4 else f"v{first}"


def put(old: int, value: bytes, how: str) -> int:
    number = int.from_bytes(value, "little", signed="signed" in how) & 0xFFFFFFFF
    if "low" in how:
        return old & 0xFFFF0000 | number & 0xFFFF
    if "high" in how:
        return old & 0xFFFF | (number & 0xFFFF) << 16
    return number


CASES = [(target, space) for target in LOADS for space in SPACES]


@pytest.mark.parametrize(("target", "space"), CASES)
@settings(max_examples=2)
@given(seed=seeds, mask=masks)
def test_loads(target: str, space: str, seed: int, mask: int) -> None:
    for name, size, how in LOADS[target]:
        array = region(seed)
        state, places = addressed(space, seed, mask, array, target)
        before = state.copy()
        single(target, instruction(space, "load", name, span(12, size), target)).run(state, read_only=[array])
        for lane in on(state, target):
            memory = before.scratch[lane] if space.startswith("scratch") else array
            data = bytes(memory[places[lane] + 20 :][:size])
            for k in range(max(1, size // 4)):
                before.vgpr[12 + k, lane] = put(int(before.vgpr[12 + k, lane]), data[4 * k : 4 * k + 4], how)
        assert (state.vgpr == before.vgpr).all()


@pytest.mark.parametrize(("target", "space"), CASES)
@settings(max_examples=2)
@given(seed=seeds, mask=masks)
def test_stores(target: str, space: str, seed: int, mask: int) -> None:
    for name, size, how in STORES[target]:
        array = region(seed)
        wanted = array.copy()
        state, places = addressed(space, seed, mask, array, target)
        before = state.copy()
        single(target, instruction(space, "store", name, span(12, size), target)).run(state, [array])
        for lane in on(state, target):
            memory = before.scratch[lane] if space.startswith("scratch") else wanted
            words = before.vgpr[12 : 12 + max(1, size // 4), lane] >> np.uint32(16 * (how == "high"))
            memory[places[lane] + 20 :][:size] = np.ascontiguousarray(words).view(np.uint8)[:size]
        assert (array == wanted).all() and (state.scratch == before.scratch).all()
        assert (state.vgpr == before.vgpr).all()


def test_an_address_may_be_overwritten_by_what_it_loads() -> None:
    array = region(1)
    state = State(1)
    absolute = np.arange(LANES, dtype=np.uint64) * 16 + np.uint64(array.ctypes.data)
    state.vgpr[2], state.vgpr[3] = absolute & 0xFFFFFFFF, absolute >> 32
    single("gfx942", "global_load_dwordx4 v[2:5], v[2:3], off").run(state, [array])
    assert (state.vgpr[2:6] == array[: 16 * LANES].view(np.uint32).reshape(LANES, 4).T).all()


@pytest.mark.parametrize("target", ["gfx942", "gfx1100"])
def test_what_a_buffer_does_not_have(target: str) -> None:
    """Reads as 0 and is not written; gfx9 looks at each word, gfx11 at the whole access."""
    array, records = region(2), 1000
    unit = "dwordx4" if target == "gfx942" else "b128"
    state = State(2)
    descriptor(state, array, target, records)
    offsets = np.array([0, 984, 988, 992, 996, 1000, 0x80000000, 0xFFFFFFF0] * 8, np.uint32)
    state.vgpr[2] = offsets
    lanes = lanes_of(target)
    single(target, f"buffer_load_{unit} v[12:15], v2, s[8:11], 0 offen").run(state, [array])
    padded = np.concatenate([array[:records], np.zeros(64, np.uint8)])
    for lane in range(lanes):
        at = int(offsets[lane])
        wanted = padded[at : at + 16].view(np.uint32) if at < records else np.zeros(4, np.uint32)
        if target == "gfx1100" and at + 16 > records:
            wanted = np.zeros(4, np.uint32)
        assert (state.vgpr[12:16, lane] == wanted).all()
    after = array.copy()
    state.vgpr[2, 8:] = 0xFFFFFF00
    single(target, f"buffer_store_{unit} v[20:23], v2, s[8:11], 0 offen").run(state, [array])
    for lane in range(8):
        for k in range(4):
            at = int(offsets[lane]) + 4 * k
            if at + 4 <= records and (target == "gfx942" or int(offsets[lane]) + 16 <= records):
                after[at : at + 4] = state.vgpr[20 + k, lane : lane + 1].view(np.uint8)
    assert (array == after).all()


def test_elements_of_a_buffer() -> None:
    """idxen counts elements of the stride; with offen the offset stands behind the index; a scalar offset is added."""
    array = region(3)
    state = State(3)
    descriptor(state, array, "gfx942", stride=48)
    state.vgpr[2], state.vgpr[3], state.sgpr[6] = np.arange(LANES)[::-1], 8, 16
    single("gfx942", "buffer_load_dword v12, v2, s[8:11], s6 idxen offset:4\n"
                     "buffer_load_dword v13, v[2:3], s[8:11], s6 idxen offen").run(state, [array])  # fmt: skip
    words = array.view(np.uint32)
    assert (state.vgpr[12] == words[(np.arange(LANES)[::-1] * 48 + 20) // 4]).all()
    assert (state.vgpr[13] == words[(np.arange(LANES)[::-1] * 48 + 24) // 4]).all()


def test_a_buffer_of_scratch() -> None:
    """gfx90a's private segments: the lane is the index of elements as long as a segment."""
    array = region(4)
    state = State(4)
    descriptor(state, array, "gfx90a", stride=96)
    state.sgpr[11] = 1 << 23
    single("gfx90a", "buffer_load_dword v12, off, s[8:11], 0 offset:12").run(state, [array])
    assert (state.vgpr[12] == array.view(np.uint32)[(np.arange(LANES) * 96 + 12) // 4]).all()


@pytest.mark.parametrize("hint", ["", " th:TH_LOAD_HT", " th:TH_LOAD_LU"])
def test_scratch_that_is_read_for_the_last_time_is_lost(hint: str) -> None:
    state = State(7, scratch=64)
    before = state.scratch.copy()
    single("gfx1201", f"scratch_load_b128 v[12:15], off, off offset:16{hint}").run(state)
    words = before.view(np.uint32).reshape(LANES, 16)[:32]
    assert all((state.vgpr[12 + k][:32] == words[:, 4 + k]).all() for k in range(4))
    after = state.scratch.view(np.uint32).reshape(LANES, 16)[:32]
    assert (after[:, 4:8] != words[:, 4:8]).any() == ("LU" in hint)
    assert (np.delete(after, range(4, 8), 1) == np.delete(words, range(4, 8), 1)).all()


@pytest.mark.parametrize(("target", "name", "size"), [("gfx942", "dword", 4), ("gfx950", "dwordx4", 16),
                                                      ("gfx950", "dwordx3", 12), ("gfx942", "ushort", 2),
                                                      ("gfx942", "sbyte", 1)])  # fmt: skip
@pytest.mark.parametrize("space", ["global", "buffer"])
def test_copies_to_lds(target: str, name: str, size: int, space: str) -> None:
    """Lane after lane from M0 and the offset on; less than a word takes a word."""
    array = region(5)
    state, places = addressed(space, 5, 2**64 - 1, array, target)
    state.lds = region(6, 8192)
    state.sgpr[M0] = 256
    wanted = state.lds.copy()
    text = (f"buffer_load_{name} v2, s[8:11], 0 offen offset:20 lds" if space == "buffer"
            else f"global_load_lds_{name} v[2:3], off offset:20")  # fmt: skip
    single(target, text).run(state, [array])
    room = max(size, 4)
    for lane in range(LANES):
        data = int.from_bytes(bytes(array[places[lane] + 20 :][:size]), "little", signed=name[0] == "s")
        if size < 4:
            data &= 0xFFFFFFFF
        at = 256 + 20 + room * lane
        wanted[at : at + room] = np.frombuffer(data.to_bytes(room, "little"), np.uint8)
    assert (state.lds == wanted).all()


@pytest.mark.parametrize("space", ["global", "flat", "buffer"])
@settings(max_examples=10)
@given(seed=seeds, mask=masks)
def test_atomics(space: str, seed: int, mask: int) -> None:
    """All lanes on few words: each sees what those before it left."""
    array = region(seed, 64)
    memory = array.view(np.uint32).copy()
    state, _ = addressed(space, seed, mask, array, "gfx942")
    places = np.random.default_rng(seed).integers(0, 4, LANES) * 4
    if space == "buffer":
        state.vgpr[2] = places
    else:
        absolute = places.astype(np.uint64) + np.uint64(array.ctypes.data)
        state.vgpr[2], state.vgpr[3] = absolute & 0xFFFFFFFF, absolute >> 32
    before = state.copy()
    end = {"global": ", off", "flat": "", "buffer": ""}[space]
    if space == "buffer":
        text = ("buffer_atomic_add v12, v2, s[8:11], 0 offen offset:8 sc0\n"
                "buffer_atomic_umax v13, v2, s[8:11], 0 offen")  # fmt: skip
        result, given_ = 12, 12
    else:
        text = f"{space}_atomic_add v20, v[2:3], v12{end} offset:8 sc0\n{space}_atomic_umax v[2:3], v13{end}"
        result, given_ = 20, 12
    single("gfx942", text).run(state, [array])
    for lane in on(state, "gfx942"):
        at = (places[lane] + 8) // 4
        before.vgpr[result, lane], value = memory[at], before.vgpr[given_, lane]
        memory[at] = (int(memory[at]) + int(value)) & 0xFFFFFFFF
    for lane in on(state, "gfx942"):
        at = places[lane] // 4
        memory[at] = max(memory[at], before.vgpr[13, lane])
    assert (array.view(np.uint32) == memory).all() and (state.vgpr == before.vgpr).all()


def test_atomics_of_floats() -> None:
    array = np.zeros(8, np.float32)
    halves = array[4:].view(np.float16)
    halves[:] = 0.5
    state = State(1)
    state.vgpr[2], state.vgpr[3] = array.ctypes.data & 0xFFFFFFFF, array.ctypes.data >> 32
    state.vgpr[12] = np.float32(1.25).view(np.uint32)
    state.vgpr[13] = np.array([0.25, -0.5], np.float16).view(np.uint32)[0]
    state.vgpr[14:16] = np.array([3.0]).view(np.uint32)[:, None]
    single("gfx942", "global_atomic_add_f32 v[2:3], v12, off\nglobal_atomic_add_f64 v[2:3], v[14:15], off offset:8\n"
                     "global_atomic_pk_add_f16 v[2:3], v13, off offset:16").run(state, [array])  # fmt: skip
    assert array[0] == 64 * 1.25 and array[2:4].view(np.float64)[0] == 192
    assert list(halves[:2]) == [0.5 + 16, 0.5 - 32]


def test_compare_and_swap() -> None:
    array = np.arange(LANES, dtype=np.uint64)
    state = State(1)
    absolute = np.arange(LANES, dtype=np.uint64) * 8 + np.uint64(array.ctypes.data)
    state.vgpr[2], state.vgpr[3] = absolute & 0xFFFFFFFF, absolute >> 32
    state.vgpr[12:16] = np.array([77, 0, 5, 0])[:, None]  # the new value, then what to compare with
    single("gfx942", "global_atomic_cmpswap_x2 v[20:21], v[2:3], v[12:15], off sc0").run(state, [array])
    assert (state.vgpr[20] == np.arange(LANES)).all() and (state.vgpr[21] == 0).all()
    assert (array == np.where(np.arange(LANES) == 5, 77, np.arange(LANES))).all()


@pytest.mark.parametrize(("target", "name", "words"), [
    ("gfx942", "s_load_dword", 1), ("gfx942", "s_load_dwordx2", 2), ("gfx942", "s_load_dwordx4", 4),
    ("gfx90a", "s_load_dwordx8", 8), ("gfx942", "s_load_dwordx16", 16), ("gfx1100", "s_load_b32", 1),
    ("gfx1100", "s_load_b256", 8), ("gfx1201", "s_load_b96", 3), ("gfx1201", "s_load_b512", 16),
])  # fmt: skip
def test_scalar_loads(target: str, name: str, words: int) -> None:
    array = region(7)
    state = State(7)
    state.set_pair(2, array.ctypes.data + 512)
    state.sgpr[6] = 68
    result = f"s[20:{19 + words}]" if words > 1 else "s20"
    null = ", null" if target == "gfx1201" else ""
    for operand, offset in (("0x24", 36), ("s6", 68), ("-0x8", -8)) if not null else (("0x24", 36), ("-0x8", -8)):
        before = state.copy()
        single(target, f"{name} {result}, s[2:3], {operand}").run(state, [array])
        before.sgpr[20 : 20 + words] = array.view(np.uint32)[(512 + offset) // 4 :][:words]
        assert (state.sgpr == before.sgpr).all()


def test_scalar_loads_of_less_than_a_word() -> None:
    array = region(8)
    array[33:36] = 0x80, 0x7F, 0xF1
    state = State(8)
    state.set_pair(2, array.ctypes.data)
    single("gfx1201", "s_load_u8 s20, s[2:3], 0x21\ns_load_i8 s21, s[2:3], 0x21\ns_load_u16 s22, s[2:3], 0x22\n"
                      "s_load_i16 s23, s[2:3], 0x22").run(state, [array])  # fmt: skip
    assert list(state.sgpr[20:24]) == [0x80, 0xFFFFFF80, 0xF17F, 0xFFFFF17F]


def test_scalar_loads_of_buffers() -> None:
    array = region(9)
    state = State(9)
    descriptor(state, array, "gfx942", records=40)
    single("gfx942", "s_buffer_load_dwordx4 s[20:23], s[8:11], 0x1c").run(state, [array])
    assert list(state.sgpr[20:24]) == [*array[28:40].view(np.uint32), 0]


@pytest.mark.parametrize("text", ["s_dcache_inv", "s_dcache_wb", "buffer_wbl2 sc1", "buffer_inv sc1"])
def test_caches(text: str) -> None:
    state = State(1)
    before = state.copy()
    single("gfx942", text).run(state)
    assert (state.vgpr == before.vgpr).all() and (state.sgpr == before.sgpr).all()


# ---- faults -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "shift", "message"), [
    ("global_load_dword v12, v[2:3], off", SIZE, "reads 4 bytes that no region has, 0 bytes past the end of region 0"),
    ("global_load_dwordx4 v[12:15], v[2:3], off", SIZE - 12,
     f"reads 16 bytes from byte {SIZE - 12} of region 0 on, which has {SIZE}"),
    ("global_load_ushort v12, v[2:3], off offset:-6", 0, "reads 2 bytes that no region has, 6 bytes before region 0"),
    ("global_store_byte v[2:3], v12, off", SIZE + 100, "writes 1 bytes that no region has, 100 bytes past the end"),
    ("flat_load_dword v12, v[2:3]", SIZE + 8, "reads 4 bytes that no region has, 8 bytes past the end of region 0"),
    ("global_atomic_add v[2:3], v12, off", SIZE, "writes 4 bytes that no region has"),
])  # fmt: skip
def test_fault_an_address_that_no_region_has(text: str, shift: int, message: str) -> None:
    whole = region(1, SIZE + 4096)
    array = whole[1024 : 1024 + SIZE]
    state = State(1)
    absolute = np.arange(LANES, dtype=np.uint64) * 16 + np.uint64(array.ctypes.data + 64)
    absolute[41] = array.ctypes.data + shift
    state.vgpr[2], state.vgpr[3] = absolute & 0xFFFFFFFF, absolute >> 32
    with pytest.raises(Faulted, match=message) as caught:
        single("gfx942", text).run(state, [array])
    assert (caught.value.check, caught.value.lane) == ("address", 41)
    offset = -6 if "offset" in text else 0
    assert caught.value.address == array.ctypes.data + shift + offset
    state.exec = 2**64 - 1 - (1 << 41)
    single("gfx942", text).run(state, [array])


def test_fault_between_two_regions() -> None:
    """The nearer one is named; an access across both belongs to neither."""
    whole = region(1)
    regions = [whole[:1024], whole[1088:4096]]
    state = State(1)
    for at, nearest in ((1030, "6 bytes past the end of region 0"), (1084, "4 bytes before region 1")):
        state.set_pair(2, whole.ctypes.data + at)
        state.vgpr[2] = 0
        with pytest.raises(Faulted, match=nearest):
            single("gfx942", "global_load_ubyte v12, v2, s[2:3]").run(state, regions)


def test_fault_a_store_to_what_is_read_only() -> None:
    array = region(1)
    state = State(1)
    state.set_pair(4, array.ctypes.data)
    state.vgpr[2] = np.arange(LANES) * 4
    with pytest.raises(Faulted, match="writes 4 bytes from byte 0 of region 0 on, which is read only"):
        single("gfx942", "global_store_dword v2, v12, s[4:5]").run(state, read_only=[array])


def test_fault_beyond_scratch() -> None:
    state = State(1, scratch=64)
    state.vgpr[2] = np.where(np.arange(LANES) == 9, 61, 0)
    with pytest.raises(Faulted, match="accesses 4 bytes of scratch, of which a lane has 64") as caught:
        single("gfx942", "scratch_load_dword v12, v2, off").run(state)
    assert (caught.value.lane, caught.value.address) == (9, 61)


def test_fault_a_buffer_that_lies_about_its_size() -> None:
    array = region(1, 256)
    state = State(1)
    descriptor(state, array, "gfx942", records=4096)
    state.vgpr[2] = np.arange(LANES) * 8
    with pytest.raises(Faulted, match="no region has, 0 bytes past the end of region 0") as caught:
        single("gfx942", "buffer_load_dword v12, v2, s[8:11], 0 offen").run(state, [array])
    assert caught.value.lane == 32


def test_fault_a_scalar_load() -> None:
    array = region(1, 64)
    state = State(1)
    state.set_pair(2, array.ctypes.data)
    with pytest.raises(Faulted, match="reads 8 bytes from byte 60 of region 0 on, which has 64") as caught:
        single("gfx942", "s_load_dwordx2 s[20:21], s[2:3], 0x3c").run(state, [array])
    assert caught.value.lane == -1
