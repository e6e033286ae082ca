"""Tensor descriptors: what the driver is given, what reaches the image, and what is encoded again."""

from __future__ import annotations

import ctypes
import os

import ffi
import packs
import pytest
from ffi import BF16, FP16, FP32, tensor
from recorded import TensorMap
from test_implementations import A, B, C, product, taken

ENCODE = "cuTensorMapEncodeTiled"


def launched(kiln, fake, call):
    """The launch, and how often the driver was asked to encode for it."""
    before = fake.count(ENCODE)
    kiln.launch(call)
    return fake.launches()[-1], fake.count(ENCODE) - before


def test_what_the_image_takes(tiled, fake):
    """Each map by value, then the sizes as i32 and the strides, in elements, as i64; a constant is left out."""
    kiln = tiled()
    launch, encoded = launched(kiln, fake, product(kiln, m=1024, n=512, k=256, a=A, strides=(264, 1)))
    assert encoded == 3 and launch.symbol == b"matmul_hopper_fp16_constant"
    assert launch.sizes == [4, 128, 4, 4, 8, 8, 128, 4, 4, 8, 8, 4, 128, 4, 4, 8, 8, 8, 8]
    numbers = [n for n, size in zip(launch.parameters(), launch.sizes) if size != 128]
    assert numbers == [1024, 1024, 256, 264, 1, 256, 512, 512, 1, 256, 1024, 512, 512, 1, 0, 0]
    assert launch.maps() == [
        TensorMap(A, 6, 3, (1024, 256), (528,), (64, 64), True),
        TensorMap(B, 6, 3, (256, 512), (1024,), (64, 64), True),
        TensorMap(C, 6, 3, (1024, 512), (1024,), (64, 64), True),
    ]
    assert list(launch.grid) == [8, 2, 1]
    generic, _ = launched(kiln, fake, product(kiln, keys=(generic_key(),)))
    assert generic.sizes[-3:] == [4, 8, 8] and generic.parameters()[-3] == 1


def generic_key() -> str:
    return packs.key_of("tiles", "sm_90", "matmul.hopper", "fp16", "generic").hex()


def test_what_the_driver_is_told(tiled, fake):
    kiln = tiled()
    kiln.launch(kiln.call([tensor(A, BF16, (2, 40, 128)), tensor(B, FP32, (1000,))], operation="tiles.copy"))
    first, second = (event for event in fake.record().events if event["call"] == ENCODE)
    told = ("address", "element_type", "swizzle", "promotion", "sizes", "strides", "box", "steps")
    assert [first[name] for name in told] == [A, 9, 3, 2, [128, 40, 2], [256, 10240], [64, 16, 2], [1, 1, 1]]
    assert [second[name] for name in told] == [B, 7, 0, 2, [1000], [], [32], [1]]
    (launch,) = fake.launches()
    assert launch.maps()[0].sizes == (2, 40, 128) and launch.maps()[1].strides == ()
    numbers = [n for n, size in zip(launch.parameters(), launch.sizes) if size != 128]
    assert numbers == [2, 40, 128, 5120, 128, 1, 1000, 1, 0, 0]


@pytest.mark.parametrize("version", [12080, 13010, 13011, 13020])
def test_small_tensors_on_older_drivers(tiled, fake, version):
    """Below 128 KiB, counted to the last element's first byte, a bit is cleared that those drivers set by mistake."""
    kiln = tiled(version=version)
    for m, stride, small in ((64, 64, True), (1023, 64, True), (1024, 64, True), (1025, 64, False), (2, 65536, False)):
        launch, _ = launched(kiln, fake, product(kiln, m=m, a=A + 16 * version, strides=(stride, 1)))
        assert launch.maps()[0].small == (version > 13010 or not small), (m, stride)


def test_a_repeated_call_encodes_nothing(tiled, fake):
    kiln = tiled()
    at = {"a": 0x50000000, "b": 0x51000000, "c": 0x52000000}
    first, encoded = launched(kiln, fake, product(kiln, **at))
    assert encoded == 3
    for _ in range(3):
        again, encoded = launched(kiln, fake, product(kiln, **at))
        assert encoded == 0 and again.arguments == first.arguments
    moved, encoded = launched(kiln, fake, product(kiln, **{**at, "b": 0x51000010}))
    assert encoded == 1 and [m.address for m in moved.maps()] == [0x50000000, 0x51000010, 0x52000000]
    # the same addresses with another layout or another element
    for change in ({"m": 128}, {"strides": (72, 1)}, {"dtype": BF16}, {"n": 64}, {"k": 128}):
        launch, encoded = launched(kiln, fake, product(kiln, **at, **change))
        assert encoded in (1, 2, 3) and launch.maps()[0].address == 0x50000000
        _, encoded = launched(kiln, fake, product(kiln, **at, **change))
        assert encoded == 0, change
    again, encoded = launched(kiln, fake, product(kiln, **at))
    assert again.arguments == first.arguments
    # another runtime on the thread: a map is the same for every runtime
    _, encoded = launched(tiled(), fake, product(kiln, **at))
    assert encoded == 0


def test_another_device_has_maps_of_its_own(tiled, fake):
    kiln = tiled()
    at = {"a": 0x60000000, "b": 0x61000000, "c": 0x62000000}
    for device in (0, 4):
        _, encoded = launched(kiln, fake, product(kiln, stream=fake.stream(device=device), **at))
        assert encoded == 3
    _, encoded = launched(kiln, fake, product(kiln, stream=fake.stream(device=0), **at))
    assert encoded == 0


def test_only_a_launch_encodes(tiled, fake):
    kiln = tiled()
    call = product(kiln, a=0x70000000)
    kiln.prepare(call), kiln.workspace_size(call), kiln.explain(call)
    assert fake.count(ENCODE) == 0
    kiln.launch(kiln.call([tensor(A, FP16, (0, 64)), tensor(B, FP16, (64, 64)), tensor(C, FP16, (0, 64))],
                          operation="tiles.product"))  # fmt: skip
    assert fake.count(ENCODE) == 0 and not fake.launches()


def test_more_tensors_than_are_kept(tiled, fake):
    """Thousands of addresses go by: each launch has its own, and the memory of them is bounded."""
    kiln = tiled()
    fake.c.fake_set_recording(1)
    for round_ in range(2):
        for number in range(300):
            at = 0x80000000 + 4096 * number
            launch, encoded = launched(kiln, fake, product(kiln, a=at, b=at + (1 << 24), c=at + (2 << 24)))
            assert [m.address for m in launch.maps()] == [at, at + (1 << 24), at + (2 << 24)]
            assert encoded == 3 or (round_ and encoded < 3)


def test_a_failure_to_encode_launches_nothing(tiled, fake):
    kiln = tiled()
    call = product(kiln, a=0x90000000, b=0x91000000, c=0x92000000)
    fake.fail(ENCODE, 1, nth=2)
    with pytest.raises(ffi.Failure) as failure:
        kiln.launch(call)
    assert failure.value.status == ffi.DRIVER and failure.value.sentence == (
        "cuTensorMapEncodeTiled: the CUDA driver returned CUDA_ERROR_INVALID_VALUE (1) for the tensor b"
    )
    assert not fake.launches()
    _, encoded = launched(kiln, fake, call)
    assert encoded == 2  # what failed is not kept, what did not is


def test_in_a_forked_child(tiled, fake, library, tiles, tmp_path):
    """The child opens its own: it may use what the parent's thread has encoded, for that depends on the key alone."""
    kiln = tiled()
    at = {"a": 0xA0000000, "b": 0xA1000000, "c": 0xA2000000}
    first, _ = launched(kiln, fake, product(kiln, **at))
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            with pytest.raises(ffi.Failure) as failure:
                kiln.launch(product(kiln, **at))
            assert failure.value.status == ffi.FORKED
            trusted = packs.digest_of((tmp_path / packs.FILES["sm_90"]).read_bytes())
            with ffi.Kiln(library, fake, pack_path=str(tmp_path), trusted_packs=trusted) as own:
                own.register(tiles, "tiles")
                launch, _ = launched(own, fake, product(own, **at))
                assert launch.arguments == first.arguments
                launch, encoded = launched(own, fake, product(own, **{**at, "a": 0xA0000010}))
                assert encoded == 1 and launch.maps()[0].address == 0xA0000010
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0


def encode(fake, **change) -> int:
    """The fake driver's own answer to an encode."""
    values = {"type": 6, "rank": 2, "address": 0x1000, "sizes": (256, 64), "strides": (512,), "box": (64, 16)}
    values |= {"steps": (1, 1), "interleave": 0, "swizzle": 3, "promotion": 2, "fill": 0, "shift": 0} | change
    room = ctypes.create_string_buffer(256)
    at = (ctypes.addressof(room) + 63) // 64 * 64 + values["shift"]

    def numbers(name: str, kind: type):
        return (kind * 5)(*values[name])

    return fake.c.cuTensorMapEncodeTiled(
        ctypes.c_void_p(at), values["type"], values["rank"], ctypes.c_void_p(values["address"]),
        numbers("sizes", ctypes.c_uint64), numbers("strides", ctypes.c_uint64), numbers("box", ctypes.c_uint32),
        numbers("steps", ctypes.c_uint32), values["interleave"], values["swizzle"], values["promotion"],
        values["fill"],
    )  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"type": 13}, {"type": -1}, {"rank": 0}, {"rank": 6}, {"address": 0x1008}, {"sizes": (256, 0)},
        {"sizes": (2**32 + 1, 1)}, {"strides": (504,)}, {"strides": (2**40,)}, {"box": (64, 0)}, {"box": (64, 257)},
        {"box": (65, 16)}, {"box": (68, 16)}, {"box": (128, 16)}, {"box": (4, 16)}, {"steps": (1, 0)},
        {"steps": (9, 1)}, {"interleave": 1}, {"swizzle": 4}, {"swizzle": 2}, {"promotion": 4}, {"fill": 1},
        {"shift": 16},
    ],
)  # fmt: skip
def test_the_fake_driver_refuses_what_a_driver_does(fake, change):
    assert encode(fake) == 0
    assert encode(fake, **change) == 1


def test_the_fake_driver_checks_what_is_launched(fake):
    """A launch whose map was never encoded, or is followed by another tensor's sizes or strides, fails."""
    room = ctypes.create_string_buffer(512)
    at = (ctypes.addressof(room) + 63) // 64 * 64
    two = ctypes.c_uint64 * 2
    sides = (ctypes.c_uint32 * 2)(64, 16)
    fake.c.cuTensorMapEncodeTiled(
        ctypes.c_void_p(at), 6, 2, ctypes.c_void_p(0x1000), two(256, 64), two(512, 0), sides,
        (ctypes.c_uint32 * 2)(1, 1), 0, 3, 2, 0,
    )  # fmt: skip
    image = ctypes.c_void_p()
    fake.c.cuLibraryLoadData(ctypes.byref(image), b"FAKE tiled 0 128 4 4 8 8\0", None, None, 0, None, None, 0)

    def launch(sizes=(64, 256), strides=(256, 1)) -> int:
        values = [ctypes.c_int32(size) for size in sizes] + [ctypes.c_int64(stride) for stride in strides]
        pointers = (ctypes.c_void_p * 5)(at, *map(ctypes.addressof, values))
        one = ctypes.c_uint(1)
        return fake.c.cuLaunchKernel(image, one, one, one, one, one, one, 0, None, pointers, None)

    assert launch() == 0
    assert launch(sizes=(256, 64)) == 1
    assert launch(strides=(512, 1)) == 1
    assert launch(strides=(256, 2)) == 1
    ctypes.memset(at + 8, 0xFF, 1)
    assert launch() == 1
    ctypes.memset(at, 0, 128)
    assert launch() == 1


def test_threads_have_caches_of_their_own(tiled, fake):
    from test_threads import in_threads

    kiln = tiled()

    def body(number: int) -> None:
        fake.set_current(fake.context(0))
        for step in range(40):
            at = 0xB0000000 + 4096 * (step % 4)
            kiln.launch(product(kiln, a=at, b=at + (1 << 24), c=at + (2 << 24), m=64 + 64 * number))

    in_threads(8, body)
    # of each thread: four tensors a, b and c each, at most; what of them shared a set may be encoded again
    assert 8 * 12 <= fake.count(ENCODE) <= 8 * 40 and len(fake.launches()) == 320
    for launch in fake.launches():
        a, b, c = launch.maps()
        assert (b.address - a.address, c.address - a.address) == (1 << 24, 2 << 24) and a.sizes[0] == c.sizes[0]


def test_a_call_that_takes_another_implementation_encodes_nothing(tiled, fake):
    kiln = tiled()
    for change in ({"a": A + 8}, {"k": 1024}):
        call = product(kiln, **change)
        assert taken(kiln, call)[0] != "hopper"
        kiln.launch(call)
    assert fake.count(ENCODE) == 0
