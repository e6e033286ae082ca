"""Each form of LDS access and each move between lanes, assembled, on drawn registers, against numpy."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from single import LANES, M0, Faulted, State, single

SIZE = 4096
masks = st.one_of(st.just(2**64 - 1), st.integers(0, 2**64 - 1))
seeds = st.integers(0, 2**32 - 1)

# (gfx9's name, gfx11's name, bytes, how they stand in the register: "whole", "signed", "low", "high")
READS = [
    ("u8", "u8", 1, "whole"), ("i8", "i8", 1, "signed"), ("u16", "u16", 2, "whole"), ("i16", "i16", 2, "signed"),
    ("b32", "b32", 4, "whole"), ("b64", "b64", 8, "whole"), ("b96", "b96", 12, "whole"), ("b128", "b128", 16, "whole"),
    ("u8_d16", "u8_d16", 1, "low"), ("u16_d16", "u16_d16", 2, "low"), ("u8_d16_hi", "u8_d16_hi", 1, "high"),
    ("u16_d16_hi", "u16_d16_hi", 2, "high"), ("i8_d16", "i8_d16", 1, "low signed"),
    ("i8_d16_hi", "i8_d16_hi", 1, "high signed"),
]  # fmt: skip
WRITES = [("b8", 1, "whole"), ("b16", 2, "whole"), ("b32", 4, "whole"), ("b64", 8, "whole"), ("b96", 12, "whole"),
          ("b128", 16, "whole"), ("b8_d16_hi", 1, "high"), ("b16_d16_hi", 2, "high")]  # fmt: skip
TARGETS = {"gfx942": ("read", "write"), "gfx1201": ("load", "store")}
PAIRS = {"gfx942": ("read2_{0}", "read2st64_{0}", "write2_{0}", "write2st64_{0}"),
         "gfx1201": ("load_2addr_{0}", "load_2addr_stride64_{0}", "store_2addr_{0}",
                     "store_2addr_stride64_{0}")}  # fmt: skip


def lanes_of(target: str) -> int:
    return 32 if target.startswith("gfx1") else 64


def on(state: State, target: str) -> list[int]:
    return [lane for lane in range(lanes_of(target)) if state.exec >> lane & 1]


def drawn(seed: int, mask: int, size: int, step: int = 4) -> State:
    """Addresses in v1: each lane's own, of `size` bytes that no other has, in any order."""
    state = State(seed, lds=SIZE)
    room = max(16, size)
    state.vgpr[1] = np.random.default_rng(seed).permutation(LANES) * room + (seed % room // step * step)
    state.exec = mask
    return state


def put(old: int, value: bytes, how: str) -> int:
    """A word of which a part is loaded."""
    number = int.from_bytes(value, "little", signed="signed" in how) & (0xFFFFFFFF if "d16" not in how else 0xFFFF)
    if "low" in how:
        return old & 0xFFFF0000 | number & 0xFFFF
    if "high" in how:
        return old & 0xFFFF | (number & 0xFFFF) << 16
    return number


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("old", "new", "size", "how"), READS)
@settings(max_examples=3)
@given(seed=seeds, mask=masks)
def test_reads(target: str, old: str, new: str, size: int, how: str, seed: int, mask: int) -> None:
    state = drawn(seed, mask, size, step=min(size, 4))
    before = state.copy()
    verb = TARGETS[target][0]
    count = max(1, size // 4)
    registers = f"v[4:{3 + count}]" if count > 1 else "v4"
    single(target, f"ds_{verb}_{old if verb == 'read' else new} {registers}, v1 offset:64").run(state)
    for lane in on(state, target):
        data = bytes(before.lds[before.vgpr[1, lane] + 64 :][:size])
        for k in range(count):
            piece = data[4 * k : 4 * k + 4]
            before.vgpr[4 + k, lane] = put(int(before.vgpr[4 + k, lane]), piece, how)
    assert (state.vgpr == before.vgpr).all() and (state.lds == before.lds).all()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("name", "size", "how"), WRITES)
@settings(max_examples=3)
@given(seed=seeds, mask=masks)
def test_writes(target: str, name: str, size: int, how: str, seed: int, mask: int) -> None:
    state = drawn(seed, mask, size, step=min(size, 4))
    before = state.copy()
    count = max(1, size // 4)
    registers = f"v[4:{3 + count}]" if count > 1 else "v4"
    single(target, f"ds_{TARGETS[target][1]}_{name} v1, {registers} offset:64").run(state)
    for lane in on(state, target):
        data = b"".join(
            struct.pack("<I", before.vgpr[4 + k, lane] >> np.uint32(16 * (how == "high"))) for k in range(count)
        )
        at = int(before.vgpr[1, lane]) + 64
        before.lds[at : at + size] = np.frombuffer(data[:size], np.uint8)
    assert (state.lds == before.lds).all() and (state.vgpr == before.vgpr).all()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("size", [4, 8])
@pytest.mark.parametrize("far", [False, True])
@settings(max_examples=3)
@given(seed=seeds, mask=masks)
def test_two_elements(target: str, size: int, far: bool, seed: int, mask: int) -> None:
    """Offsets count elements, or 64 of them. The result may take the address's place."""
    stride = size * (64 if far else 1)
    state = State(seed, lds=16384)
    state.vgpr[2] = np.random.default_rng(seed).permutation(LANES) * 16
    state.exec = mask
    before, words = state.copy(), size // 4
    names = [name.format(f"b{8 * size}") for name in PAIRS[target]]
    first, second = (3, 1)
    single(target, f"ds_{names[far]} v[2:{1 + 2 * words}], v2 offset0:{first} offset1:{second}").run(state)
    for lane in on(state, target):
        base = int(before.vgpr[2, lane])
        data = b"".join(bytes(before.lds[base + stride * k :][:size]) for k in (first, second))
        before.vgpr[2 : 2 + 2 * words, lane] = np.frombuffer(data, np.uint32)
    assert (state.vgpr == before.vgpr).all()

    state.vgpr[2] = np.random.default_rng(seed).permutation(LANES) * 16
    before = state.copy()
    data = [f"v[{at}:{at + 1}]" if size == 8 else f"v{at}" for at in (8, 12)]
    single(target, f"ds_{names[2 + far]} v2, {data[0]}, {data[1]} offset0:1 offset1:0").run(state)
    for lane in on(state, target):
        for at, offset in ((8, 1), (12, 0)):
            base = int(before.vgpr[2, lane]) + stride * offset
            before.lds[base : base + size] = np.ascontiguousarray(before.vgpr[at : at + words, lane]).view(np.uint8)
    assert (state.lds == before.lds).all()


ATOMICS = {
    "add_u32": lambda old, new: old + new, "sub_u32": lambda old, new: old - new,
    "rsub_u32": lambda old, new: new - old, "inc_u32": lambda old, new: 0 if old >= new else old + 1,
    "dec_u32": lambda old, new: new if old == 0 or old > new else old - 1,
    "min_u32": min, "max_u32": max, "and_b32": lambda old, new: old & new, "or_b32": lambda old, new: old | new,
    "xor_b32": lambda old, new: old ^ new,
    "min_i32": lambda old, new: min(old, new, key=lambda v: v - 2**32 * (v >> 31)),
    "max_i32": lambda old, new: max(old, new, key=lambda v: v - 2**32 * (v >> 31)),
}  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ATOMICS)
@settings(max_examples=3)
@given(seed=seeds, mask=masks)
def test_atomics(target: str, name: str, seed: int, mask: int) -> None:
    """On few words, so that lanes meet; with the old value and without."""
    state = drawn(seed, mask, 4)
    state.vgpr[1] = np.random.default_rng(seed).integers(0, 8, LANES) * 4
    verb, kind = name.split("_")
    before = state.copy()
    program = single(target, f"ds_{name} v1, v2 offset:16\nds_{verb}_rtn_{kind} v3, v1, v4 offset:16")
    program.run(state)
    memory = before.lds.view(np.uint32)
    for source, result in ((2, None), (4, 3)):
        for lane in on(state, target):
            at = (int(before.vgpr[1, lane]) + 16) // 4
            old = int(memory[at])
            memory[at] = ATOMICS[name](old, int(before.vgpr[source, lane])) & 0xFFFFFFFF
            if result:
                before.vgpr[result, lane] = old
    assert (state.lds == before.lds).all() and (state.vgpr == before.vgpr).all()


@pytest.mark.parametrize(
    ("target", "text"),
    [("gfx942", "ds_cmpst_rtn_b32 v3, v1, {compare}, {data}"),
     ("gfx1201", "ds_cmpstore_rtn_b32 v3, v1, {data}, {compare}")],
)  # fmt: skip
def test_compare_and_swap(target: str, text: str) -> None:
    """gfx9 has the value to compare with first, gfx11 and gfx12 last."""
    state = State(2, lds=SIZE)
    state.vgpr[1] = np.arange(LANES) * 4
    memory = state.lds.view(np.uint32)
    state.vgpr[5] = np.where(np.arange(LANES) % 2, memory[:LANES], 0)
    before = memory[:LANES].copy()
    single(target, text.format(compare="v5", data="v6")).run(state)
    lanes = lanes_of(target)
    assert (state.vgpr[3, :lanes] == before[:lanes]).all()
    assert (memory[:lanes] == np.where(np.arange(lanes) % 2, state.vgpr[6, :lanes], before[:lanes])).all()


@settings(max_examples=10)
@given(seed=seeds, mask=masks)
def test_permutations(seed: int, mask: int) -> None:
    """bpermute reads other lanes, 0 of those that are off; permute writes them."""
    for target in TARGETS:
        lanes = lanes_of(target)
        state = State(seed)
        state.vgpr[1] = np.random.default_rng(seed).integers(0, 4 * lanes, LANES)
        state.exec = mask
        before = state.copy()
        single(target, "ds_bpermute_b32 v3, v1, v2 offset:8\nds_permute_b32 v4, v1, v2").run(state)
        active = on(state, target)
        moved = np.zeros(LANES, np.uint32)
        for lane in active:
            moved[int(before.vgpr[1, lane]) // 4 % lanes] = before.vgpr[2, lane]
        for lane in active:
            other = (int(before.vgpr[1, lane]) + 8) // 4 % lanes
            before.vgpr[3, lane] = before.vgpr[2, other] if other in active else 0
            before.vgpr[4, lane] = moved[lane]
        assert (state.vgpr == before.vgpr).all()


@pytest.mark.parametrize("bits", [16, 8, 4, 6])
@settings(max_examples=3)
@given(seed=seeds)
def test_transposed_reads(bits: int, seed: int) -> None:
    """gfx950: sixteen lanes read rows of sixteen elements, and get columns."""
    size = 12 if bits == 6 else 8
    state = State(seed, lds=SIZE)
    state.vgpr[1] = np.random.default_rng(seed).permutation(LANES) * 16
    before = state.copy()
    name = f"ds_read_b{8 * size}_tr_b{bits}"
    single("gfx950", f"{name} v[4:{3 + size // 4}], v1 offset:32").run(state)
    for group in range(0, LANES, 16):
        rows = b"".join(bytes(before.lds[before.vgpr[1, lane] + 32 :][:size]) for lane in range(group, group + 16))
        stream = int.from_bytes(rows, "little")
        elements = [stream >> bits * k & (1 << bits) - 1 for k in range(len(rows) * 8 // bits)]
        for lane in range(16):
            column = sum(e << bits * k for k, e in enumerate(elements[lane::16]))
            before.vgpr[4 : 4 + size // 4, group + lane] = np.frombuffer(column.to_bytes(size, "little"), np.uint32)
    assert (state.vgpr == before.vgpr).all()


def test_lane_by_lane() -> None:
    """addtid: from M0 on, a word for each lane."""
    state = State(4, lds=SIZE)
    state.sgpr[M0] = 128
    before = state.copy()
    single("gfx942", "ds_read_addtid_b32 v3 offset:64").run(state)
    assert (state.vgpr[3] == before.lds.view(np.uint32)[48:112]).all()


@pytest.mark.parametrize(("text", "address", "message"), [
    ("ds_read_b32 v4, v1", SIZE - 2, f"reads 4 bytes of LDS at {SIZE - 2}, of which {SIZE} bytes are allocated"),
    ("ds_read_b128 v[4:7], v1 offset:16", SIZE - 28, f"reads 16 bytes of LDS at {SIZE - 12}"),
    ("ds_write_b8 v1, v4", SIZE, f"writes 1 bytes of LDS at {SIZE}"),
    ("ds_write_b32 v1, v4", 0xFFFFFFFC, "writes 4 bytes of LDS at 4294967292"),
    ("ds_read_b64 v[4:5], v1", 6, "reads 8 bytes of LDS at 6, which is not aligned"),
])  # fmt: skip
def test_fault_beyond_the_allocation(text: str, address: int, message: str) -> None:
    state = State(1, lds=SIZE)
    state.vgpr[1] = np.arange(LANES) * 16
    state.vgpr[1, 37] = address
    with pytest.raises(Faulted, match=message) as caught:
        single("gfx942", text).run(state)
    assert (caught.value.check, caught.value.lane) == ("address", 37)


def test_a_lane_that_is_off_touches_nothing() -> None:
    state = State(1, lds=SIZE)
    state.vgpr[1] = np.arange(LANES) * 16
    state.vgpr[1, 37] = SIZE
    state.exec = 2**64 - 1 - (1 << 37)
    single("gfx942", "ds_read_b32 v4, v1").run(state)


def test_fault_a_transposed_read_of_some_lanes() -> None:
    state = State(1, lds=SIZE)
    state.vgpr[1] = 0
    state.exec = 2**64 - 2
    with pytest.raises(Faulted, match="a transposed read where some of sixteen lanes are off"):
        single("gfx950", "ds_read_b64_tr_b16 v[4:5], v1").run(state)
