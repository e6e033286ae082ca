"""Totality: whatever bytes a pack has and whatever a call's arguments are, there is a status, never a crash."""

from __future__ import annotations

import ctypes
import struct

import ffi
import packs
from ffi import tensor
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from test_launch import WORK, arguments, work

GOOD = packs.toy_pack("sm_90", families=("bare",))
INDEX = packs.index_of(GOOD)
QUIET = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
SPECIAL = [0, 1, 2, 7, 255, 1 << 16, 1 << 28, (1 << 31) - 1, 1 << 31, (1 << 32) - 2, (1 << 32) - 1]
STATUSES = {ffi.OK, ffi.PACK_CORRUPT, ffi.PACK_MISMATCH, ffi.PACK_NOT_FOUND, ffi.UNSUPPORTED, ffi.RESOURCES, ffi.DRIVER}
# Of an index that is believed: one of its words says how much scratch an image wants.
STATUSES_IF_TRUSTED = STATUSES | {ffi.WORKSPACE}


def outcomes(library, fake, bare, folder, data: bytes, trusted: str) -> set[int]:
    """Everything that reads a pack, with this one."""
    (folder / packs.FILES["sm_90"]).write_bytes(data)
    seen = set()
    with ffi.Kiln(library, fake, pack_path=str(folder), trusted_packs=trusted) as kiln:
        kiln.register(bare, "bare")
        attempts = [lambda: kiln.variants(target="sm_90")]
        for change in ({}, {"n": 2, "rows": 300}, {"x": 0x10008, "cols": 128, "dtype": ffi.BF16}):
            call = work(kiln, arguments(**change), operation="bare.mix")
            attempts += [lambda call=call: kiln.explain(call), lambda call=call: kiln.launch(call)]
        for attempt in attempts:
            try:
                attempt()
                seen.add(ffi.OK)
            except ffi.Failure as failure:
                assert failure.sentence, failure.status
                seen.add(failure.status)
    return seen


@settings(max_examples=120, deadline=None, suppress_health_check=QUIET)
@given(bit=st.integers(0, 8 * len(GOOD) - 1))
def test_any_flipped_bit_is_noticed(library, fake, bare, tmp_path, bit):
    data = bytearray(GOOD)
    data[bit // 8] ^= 1 << bit % 8
    seen = outcomes(library, fake, bare, tmp_path, bytes(data), packs.digest_of(GOOD))
    assert (seen <= STATUSES and seen & {ffi.PACK_CORRUPT, ffi.PACK_MISMATCH}) or bit // 8 >= 64 + len(INDEX)


@settings(max_examples=60, deadline=None, suppress_health_check=QUIET)
@given(size=st.integers(0, len(GOOD) - 1))
def test_any_truncation_is_noticed(library, fake, bare, tmp_path, size):
    seen = outcomes(library, fake, bare, tmp_path, GOOD[:size], packs.digest_of(GOOD))
    assert seen == {ffi.PACK_CORRUPT}


@settings(max_examples=250, deadline=None, suppress_health_check=QUIET)
@given(
    changes=st.lists(
        st.tuples(st.integers(0, len(INDEX) // 4 - 1), st.one_of(st.sampled_from(SPECIAL), st.integers(0, 2**32 - 1))),
        min_size=1,
        max_size=3,
    )
)
@example(changes=[(0, (1 << 32) - 1), (1, (1 << 32) - 1)])
@example(changes=[(4, 0)])
@example(changes=[(919, 1 << 28)])
def test_any_index_is_survived(library, fake, bare, tmp_path, changes):
    """An index whose digest is right and trusted, with any of its words replaced: the parser alone stands guard."""
    index = bytearray(INDEX)
    for word, value in changes:
        struct.pack_into("<I", index, 4 * word, value)
    data = packs.seal(bytes(index)) + GOOD[64 + len(INDEX) :]
    assert outcomes(library, fake, bare, tmp_path, data, packs.digest_of(data)) <= STATUSES_IF_TRUSTED


def test_each_word_of_the_index(library, fake, bare, tmp_path):
    """The tables' first rows, word by word, with the values at which offsets break."""
    groups, images, kernels, _ = struct.unpack_from("<4I", INDEX)
    rows = [(0, 32), (32, 48), (32 + 48 * groups, 96)]
    rows += [(32 + 48 * groups + 96 * images, 64), (32 + 48 * groups + 96 * images + 64 * kernels, 48)]
    for offset, size in rows:
        for word in range(0, size - 32 if size > 32 else size, 4):
            for value in (0, 1 << 31, (1 << 32) - 1):
                index = bytearray(INDEX)
                struct.pack_into("<I", index, offset + word, value)
                data = packs.seal(bytes(index)) + GOOD[64 + len(INDEX) :]
                assert outcomes(library, fake, bare, tmp_path, data, packs.digest_of(data)) <= STATUSES_IF_TRUSTED


@settings(max_examples=60, deadline=None, suppress_health_check=QUIET)
@given(data=st.binary(max_size=300), magic=st.booleans())
def test_any_bytes_are_no_pack(library, fake, bare, tmp_path, data, magic):
    data = b"KILNPACK" + struct.pack("<II", 1, 64) + data if magic else data
    assert outcomes(library, fake, bare, tmp_path, data, "0" * 64) <= {ffi.PACK_CORRUPT, ffi.PACK_MISMATCH}


NUMBERS = st.one_of(st.integers(-4, 300), st.sampled_from([2**31, 2**62, -(2**63), 2**63 - 1, 65535, 65536]))
TENSORS = st.builds(
    lambda data, dtype, sizes, strides, rank: tensor_of(data, dtype, sizes, strides, rank),
    st.sampled_from([0, 8, 0x10000, 0x10010, 2**64 - 16]),
    st.sampled_from([0, 1, 2, 3, 4, 13, 99, -1]),
    st.tuples(NUMBERS, NUMBERS),
    st.tuples(NUMBERS, NUMBERS),
    st.sampled_from([2, 2, 2, 2, 0, 3, 9, -1]),
)
VALUES = st.one_of(st.none(), TENSORS, NUMBERS, st.floats())


def tensor_of(data, dtype, sizes, strides, rank):
    made = tensor(data, dtype, sizes, strides)
    made.rank = rank
    return made


@settings(max_examples=300, deadline=None, suppress_health_check=QUIET)
@given(
    change=st.dictionaries(st.integers(0, 6), VALUES, max_size=3),
    numbers=st.tuples(NUMBERS, NUMBERS, NUMBERS),
    sizes=st.tuples(NUMBERS, NUMBERS),
    workspace=st.sampled_from([None, WORK, WORK + 1]),
)
def test_any_call_is_answered(kiln, fake, change, numbers, sizes, workspace):
    view = tensor(0x10000, ffi.FP16, sizes, (1, 1))
    args = [view, view, None, *numbers, 0.5]
    for index, value in change.items():
        args[index] = value
    call = kiln.call(args, workspace=workspace, workspace_bytes=1 << 20)
    before = fake.c.fake_launches()
    status = kiln.library.c.kiln_launch(ctypes.byref(call))
    assert status in {ffi.OK, ffi.ARGUMENT, ffi.UNSUPPORTED, ffi.RANGE, ffi.WORKSPACE}
    if status != ffi.OK:
        assert kiln.library.error() and fake.c.fake_launches() == before
    fake.c.fake_set_recording(0)


TILES = packs.tiles_pack("sm_90")
TILES_INDEX = packs.index_of(TILES)
DESCRIBED = st.builds(
    lambda data, dtype, sizes, strides: tensor_of(data, dtype, sizes, strides, 2),
    st.sampled_from([0, 8, 0x10000, 0x10010, 2**64 - 16]),
    st.sampled_from([ffi.FP16, ffi.BF16]),
    st.tuples(NUMBERS, NUMBERS),
    st.tuples(NUMBERS, st.sampled_from([1, 1, 1, 0, 2])),
)


def of_tiles(library, fake, tiles, folder, data: bytes, tensors: list) -> int:
    """The status of a launch with this pack."""
    (folder / packs.FILES["sm_90"]).write_bytes(data)
    with ffi.Kiln(library, fake, pack_path=str(folder), trusted_packs=packs.digest_of(data)) as kiln:
        kiln.register(tiles, "tiles")
        call = kiln.call(tensors, operation="tiles.product", workspace=WORK, workspace_bytes=1 << 20)
        status = library.c.kiln_launch(ctypes.byref(call))
        assert status == ffi.OK or library.error()
        return status


@settings(max_examples=250, deadline=None, suppress_health_check=QUIET)
@given(
    word=st.integers(0, len(TILES_INDEX) // 4 - 1),
    value=st.one_of(st.sampled_from(SPECIAL), st.integers(0, 2**32 - 1)),
    behind=st.integers(1, 40),
)
def test_any_index_with_descriptors_is_survived(library, fake, tiles, tmp_path, word, value, behind):
    """A word anywhere, and one among the descriptors' rows, which end where the strings begin."""
    index = bytearray(TILES_INDEX)
    counts = struct.unpack_from("<8I", index)
    struct.pack_into("<I", index, 4 * word, value)
    struct.pack_into("<I", index, len(index) - counts[4] - 4 * behind, value)
    data = packs.seal(bytes(index), 2) + TILES[64 + len(TILES_INDEX) :]
    view = tensor(0x10000, ffi.FP16, (64, 64))
    assert of_tiles(library, fake, tiles, tmp_path, data, [view, view, view]) in STATUSES_IF_TRUSTED


@settings(max_examples=250, deadline=None, suppress_health_check=QUIET)
@given(tensors=st.tuples(DESCRIBED, DESCRIBED, DESCRIBED))
def test_any_tensor_is_described_or_not(library, fake, tiles, tmp_path, tensors):
    """What the runtime takes for describable, the driver encodes."""
    status = of_tiles(library, fake, tiles, tmp_path, TILES, list(tensors))
    assert status in {ffi.OK, ffi.ARGUMENT, ffi.UNSUPPORTED, ffi.RANGE}
