"""What reaches the driver: images, grids, parameters byte by byte, workspace, zeroing."""

from __future__ import annotations

import struct

import ffi
import packs
import pytest
from ffi import AMD, BF16, FP16, FP32, NVIDIA, tensor

X, Y, W, WORK = 0x10000, 0x20000, 0x30000, 0x400000


def fp32(value: float) -> int:
    return struct.unpack("<I", struct.pack("<f", value))[0]


def fp64(value: float) -> int:
    return struct.unpack("<Q", struct.pack("<d", value))[0]


def arguments(rows=100, cols=64, dtype=FP16, x=X, y=Y, w=None, n=1, big=1, flag=0, scale=0.5, stride=None):
    strides = (stride or cols, 1)
    views = tensor(x, dtype, (rows, cols), strides), tensor(y, dtype, (rows, cols), strides)
    return [*views, w, n, big, flag, scale]


def work(kiln, args, **options):
    return kiln.call(args, workspace=WORK, workspace_bytes=1 << 20, **options)


def test_one_kernel_aligned(kiln, fake):
    kiln.launch(work(kiln, arguments(), stream=fake.stream()))
    (launch,) = fake.launches()
    # rows 100 on 132 multiprocessors: bin 0; functional fp16, 64, false: 0; configuration 0: BLOCK 64
    assert launch.symbol == b"main_0_0_aligned"
    assert list(launch.grid) == [2, 1, 1] and list(launch.block) == [128, 1, 1]
    assert launch.shared == 50000 - 16  # the dynamic part: what the image has statically is not asked for twice
    assert launch.stream == fake.stream() and launch.device == 0
    # n is 1, a constant of the aligned image, and so left out; the last two are Triton's
    assert launch.parameters() == [X, Y, 0, WORK, fp32(0.5), 100, 64, 0, fp64(0.5), 0, 0]


@pytest.mark.parametrize(
    "change, specialization",
    [
        ({}, "aligned"),
        ({"n": 2}, "pointers"),
        ({"stride": 72}, "pointers"),
        ({"x": X + 8}, "generic"),
        ({"y": Y + 2}, "generic"),
        ({"x": X + 8, "n": 7}, "generic"),
    ],
)
def test_specialization_follows_the_arguments(kiln, fake, change, specialization):
    kiln.launch(work(kiln, arguments(**change)))
    (launch,) = fake.launches()
    assert launch.symbol.decode() == f"main_0_0_{specialization}"
    step = [] if specialization == "aligned" else [change.get("n", 1)]
    expected = [change.get("x", X), change.get("y", Y), 0, WORK, fp32(0.5), 100, change.get("stride", 64), *step, 0]
    assert launch.parameters() == [*expected, fp64(0.5), 0, 0]


@pytest.mark.parametrize("dtype", [FP16, BF16])
@pytest.mark.parametrize("cols", [1, 64, 65, 128])
@pytest.mark.parametrize("flag", [0, 1])
@pytest.mark.parametrize("rows", [1, 128, 1023, 1024, 4095, 4096, 100000])
def test_every_functional_and_bin(kiln, fake, dtype, cols, flag, rows):
    """Against the same rules, written once more: the table look-up, on a target with two configurations."""
    functional = ((dtype == BF16) * 2 + (cols > 64)) * 2 + flag
    bin_ = ((rows >= 1024) + (rows >= 4096)) * 2 + (rows // 132 >= 4)
    configuration = (functional + bin_) % 2
    call = work(kiln, arguments(rows=rows, cols=cols, dtype=dtype, flag=flag, n=3))
    if functional in (2, 7):
        with pytest.raises(ffi.Failure) as failure:
            kiln.launch(call)
        assert failure.value.status == ffi.UNSUPPORTED
        assert not fake.launches()
        return
    kiln.launch(call)
    main, *rest = fake.launches()
    stride_16 = "pointers"
    assert main.symbol.decode() == f"main_{functional}_{configuration}_{stride_16}"
    assert main.grid[0] == -(-rows // (64 << configuration))
    assert [launch.symbol for launch in rest] == (
        [b"reduce_bf16" if dtype == BF16 else b"reduce_fp16"] if rows > 128 else []
    )


def test_optional_argument(kiln, fake):
    kiln.launch(work(kiln, arguments(w=tensor(W, FP32, (7,)))))
    assert fake.launches()[0].parameters()[2] == W


def test_an_empty_tensor_without_memory_is_no_absent_one(kiln, fake):
    """Expressions, and kernels, tell an absent tensor by its address."""
    for w in (None, tensor(0, FP32, (0,))):
        kiln.launch(work(kiln, arguments(w=w)))
    absent, empty = (launch.parameters()[2] for launch in fake.launches())
    assert absent == 0 and empty != 0 and empty % 256 == 0


@pytest.mark.parametrize(("version", "overlaps"), [(12020, False), (12030, True)])
def test_a_driver_that_cannot_capture_an_overlap_is_not_asked_for_one(library, fake, toy, version, overlaps):
    fake.c.fake_set_version(version, 60200000)
    with ffi.Kiln(library, fake) as kiln:
        kiln.register(toy)
        kiln.launch(work(kiln, arguments(rows=300, n=2), stream=fake.stream()))
        assert [launch.overlaps for launch in fake.launches()] == [False, overlaps]


def test_two_kernels_scratch_clusters_and_zeroing(kiln, fake):
    args = arguments(rows=300, n=2)
    call = kiln.call(args, stream=fake.stream())
    partial = 1280  # 300 rows * 4 bytes, to a multiple of 256
    blocks = 3 * 2  # of the second kernel, clusters of 2
    assert kiln.workspace_size(call) == partial + blocks * 48 + (512 - 256)
    size = kiln.workspace_size(call)
    kiln.launch(kiln.call(args, stream=fake.stream(), workspace=WORK + 256, workspace_bytes=size))
    main, reduce = fake.launches()
    assert reduce.symbol == b"reduce_fp16" and reduce.cluster == 2
    assert reduce.overlaps and not main.overlaps
    assert list(reduce.grid) == [6, 1, 1] and list(reduce.block) == [256, 1, 1]
    scratch = reduce.parameters()[3]
    assert reduce.parameters() == [WORK + 256, Y, 300, scratch]
    assert scratch % 512 == 0 and WORK + 256 + partial <= scratch and scratch + blocks * 48 <= WORK + 256 + size
    (zero,) = fake.zeros()
    assert (zero.address, zero.bytes, zero.launches_before, zero.stream) == (WORK + 256, 1200, 0, fake.stream())


@pytest.mark.parametrize("vendor, entry", [(ffi.NVIDIA, "cuStreamSynchronize"), (ffi.AMD, "hipStreamSynchronize")])
def test_a_stream_is_waited_for(kiln, fake, vendor, entry):
    there = fake.context(0) if vendor == ffi.NVIDIA else 0
    fake.set_current(there, vendor)
    for device, stream in ((0, fake.stream(vendor, 0, 1)), (2, fake.stream(vendor, 2, 1)), (3, None)):
        kiln.synchronize(vendor, device, stream)
        (wait,) = (event for event in fake.record().events if event["call"] == entry)
        assert (wait["stream"], wait["device"]) == (stream or 0, device)
        assert (fake.current(vendor) or 0) == (there or 0)
        fake.reset()
        fake.set_current(there, vendor)
    fake.fail(entry, 700)
    with pytest.raises(ffi.Failure, match=f"{entry}: the .* returned .*700") as failure:
        kiln.synchronize(vendor, 0, fake.stream(vendor))
    assert failure.value.status == ffi.DRIVER and (fake.current(vendor) or 0) == (there or 0)
    with pytest.raises(ffi.Failure, match="names device 1, but its stream belongs to device 0") as failure:
        kiln.synchronize(vendor, 1, fake.stream(vendor))
    assert failure.value.status == ffi.QUEUE


@pytest.mark.parametrize(
    "workspace, size, sentence",
    [
        (None, 1 << 20, "needs 512 bytes of workspace and its workspace is NULL"),
        (WORK, 511, "needs 512 bytes of workspace and is given 511"),
        (WORK + 128, 1 << 20, "at 0x400080, which is not a multiple of 256"),
    ],
)
def test_workspace_is_checked(kiln, fake, workspace, size, sentence):
    with pytest.raises(ffi.Failure, match=sentence) as failure:
        kiln.launch(kiln.call(arguments(), workspace=workspace, workspace_bytes=size))
    assert failure.value.status == ffi.WORKSPACE
    assert not fake.launches() and not fake.zeros()


def test_empty_calls_launch_nothing(kiln, fake):
    kiln.launch(kiln.call(arguments(rows=0)))  # skip_when; null workspace
    kiln.launch(kiln.call([tensor(0, FP16, (0, 64)), tensor(0, FP16, (0, 64)), None, 1, 1, 0, 1.0]))
    kiln.launch(work(kiln, arguments(big=0)))  # a grid without blocks
    assert not fake.launches()
    assert len(fake.zeros()) == 1  # what is to be zeroed is zeroed all the same


def test_prepare_loads_and_launches_nothing(kiln, fake):
    kiln.prepare(kiln.call(arguments(rows=300)))
    assert not fake.launches() and not fake.zeros() and fake.loaded == 2
    kiln.launch(work(kiln, arguments(rows=300)))
    assert fake.loaded == 2 and len(fake.launches()) == 2


def test_images_are_loaded_once_and_unloaded_on_close(kiln, fake):
    for _ in range(3):
        kiln.launch(work(kiln, arguments()))
        kiln.launch(work(kiln, arguments(n=2)))
    assert fake.count("cuLibraryLoadData") == 2 and fake.loaded == 2
    kiln.close()
    assert fake.loaded == 0 and fake.count("cuLibraryUnload") == 2


def test_device_of_the_stream_is_used(kiln, fake):
    """Each device loads for itself; sm_86 runs sm_80's images; the caller's context stays as it was."""
    kiln.launch(work(kiln, arguments(), stream=fake.stream(device=3)))
    kiln.launch(work(kiln, arguments(), stream=fake.stream(device=1)))
    kiln.launch(work(kiln, arguments(), stream=fake.stream(device=4)))
    assert [launch.device for launch in fake.launches()] == [3, 1, 4]
    assert [launch.grid[0] for launch in fake.launches()] == [4, 4, 2]  # BLOCK 32, 32, 64
    assert fake.count("cuLibraryLoadData") == 3
    assert fake.current() == fake.context(0)
    assert fake.count("cuCtxPushCurrent_v2") == fake.count("cuCtxPopCurrent_v2") == 3


def test_second_and_green_contexts(kiln, fake):
    """A stream of another context of the same device: the same loaded image serves."""
    for number in (1, 2):
        kiln.launch(work(kiln, arguments(), stream=fake.stream(number=number)))
    kiln.launch(work(kiln, arguments(), stream=fake.c.fake_green_stream(0)))
    assert len(fake.launches()) == 3 and fake.count("cuLibraryLoadData") == 1
    assert fake.current() == fake.context(0)


def test_current_context_need_not_exist_for_a_stream(kiln, fake):
    fake.set_current(None)
    kiln.launch(work(kiln, arguments(), stream=fake.stream()))
    assert fake.launches()[0].device == 0 and fake.current() is None


def test_null_streams(kiln, fake):
    for stream in (None, 1, 2):
        kiln.launch(work(kiln, arguments(), stream=stream))
    fake.set_current(fake.context(1))
    kiln.launch(work(kiln, arguments(), stream=None))
    assert [launch.device for launch in fake.launches()] == [0, 0, 0, 1]
    fake.set_current(None)
    with pytest.raises(ffi.Failure, match="no current CUDA context") as failure:
        kiln.launch(work(kiln, arguments()))
    assert failure.value.status == ffi.QUEUE


@pytest.mark.parametrize("stream", [None, 1, 2])
def test_a_null_stream_of_the_current_device_asks_the_driver_one_thing(kiln, fake, stream):
    kiln.launch(work(kiln, arguments(), device=0, stream=stream))  # loads the image
    before = len(fake.record().events)
    kiln.launch(work(kiln, arguments(), device=0, stream=stream))
    asked, *enqueued = [event["call"] for event in fake.record().events[before:]]
    assert asked == "cuCtxGetDevice" and enqueued == ["cuMemsetD8Async", "cuLaunchKernel"]


@pytest.mark.parametrize("stream", [None, 1, 2])
def test_null_stream_of_the_device_that_is_named(kiln, fake, stream):
    fake.set_current(None)
    for device in (1, 4, 1):  # by its primary context, which is held
        kiln.launch(work(kiln, arguments(), device=device, stream=stream))
        assert fake.launches()[-1].device == device and fake.current() is None
    assert fake.count("cuDevicePrimaryCtxRetain") == 2
    fake.set_current(fake.context(0, 1))  # a second context of device 0: it is the thread's own
    kiln.launch(work(kiln, arguments(), device=0, stream=stream))
    assert fake.launches()[-1].device == 0 and fake.count("cuDevicePrimaryCtxRetain") == 2
    kiln.launch(work(kiln, arguments(), device=1, stream=stream))
    assert fake.launches()[-1].device == 1 and fake.current() == fake.context(0, 1)
    with pytest.raises(ffi.Failure, match="names device 9, which was not found") as failure:
        kiln.launch(work(kiln, arguments(), device=9, stream=stream))
    assert failure.value.status == ffi.QUEUE
    fake.fail("cuDevicePrimaryCtxRetain", 2)
    fake.set_current(None)
    with pytest.raises(ffi.Failure, match="cuDevicePrimaryCtxRetain: the CUDA driver returned CUDA_ERROR_OUT_OF_MEM"):
        kiln.launch(work(kiln, arguments(), device=0, stream=stream))
    kiln.launch(work(kiln, arguments(), device=0, stream=stream))
    kiln.close()
    assert fake.count("cuDevicePrimaryCtxRelease_v2") == 3


def test_null_stream_of_the_device_that_is_named_where_no_context_can_be_had(kiln, fake):
    fake.hide("cuDevicePrimaryCtxRetain")
    kiln.launch(work(kiln, arguments(), device=0))
    assert fake.launches()[-1].device == 0
    for current, said in (
        (fake.context(0), "the queue names device 1, but its stream belongs to device 0"),
        (None, "no current CUDA context"),
    ):
        fake.set_current(current)
        with pytest.raises(ffi.Failure, match=said) as failure:
            kiln.launch(work(kiln, arguments(), device=1))
        assert failure.value.status == ffi.QUEUE and fake.current() == current


def test_null_stream_of_the_device_that_is_named_on_hip(kiln, fake):
    kiln.launch(work(kiln, arguments(), vendor=AMD, device=4))
    assert fake.launches()[-1].device == 4 and (fake.current(AMD) or 0) == 0
    with pytest.raises(ffi.Failure, match="belongs to device 9, which was not found"):
        kiln.launch(work(kiln, arguments(), vendor=AMD, device=9))


def test_stream_of_another_device_is_refused(kiln, fake):
    for vendor in (NVIDIA, AMD):
        stream = fake.stream(vendor, 1)
        with pytest.raises(ffi.Failure, match="names device 0, but its stream belongs to device 1") as failure:
            kiln.launch(work(kiln, arguments(), vendor=vendor, device=0, stream=stream))
        assert failure.value.status == ffi.QUEUE
        assert fake.current() == fake.context(0) and (fake.current(AMD) or 0) == 0
    with pytest.raises(ffi.Failure, match="CUDA_ERROR_INVALID_HANDLE") as failure:
        kiln.launch(work(kiln, arguments(), stream=fake.stream(AMD)))
    assert failure.value.status == ffi.QUEUE


def test_hip(kiln, fake):
    kiln.launch(work(kiln, arguments(rows=300, n=2), vendor=AMD, stream=fake.stream(AMD, 4)))
    main, reduce = fake.launches()
    assert (main.vendor, main.device, main.symbol) == (AMD, 4, b"main_0_0_pointers")
    assert main.parameters() == [X, Y, 0, WORK, fp32(0.5), 300, 64, 2, 0, fp64(0.5), 0, 0]
    assert main.shared == 50000 - 16 and list(main.grid) == [10, 1, 1] and reduce.cluster == 1
    assert fake.zeros()[0].address == WORK
    assert (fake.current(AMD) or 0) == 0 and fake.count("hipModuleLoadData") == 2
    kiln.launch(work(kiln, arguments(), vendor=AMD))  # the null stream: the current device
    assert fake.launches()[2].device == 0
    kiln.close()
    assert fake.loaded == 0 and (fake.current(AMD) or 0) == 0


def test_forced_variant(kiln, fake):
    functional = ("fp16", 64, "false")
    for configuration in range(2):
        for specialization in packs.SPECIALIZATIONS:
            key = packs.key_of("toy", "sm_90", "main", functional, configuration, specialization).hex()
            call = work(kiln, arguments(), keys=(key,))
            (variant,) = kiln.explain(call)
            assert variant["key"].decode() == key and variant["specialization"].decode() == specialization
            kiln.launch(call)
            assert fake.launches()[-1].symbol.decode() == f"main_0_{configuration}_{specialization}"
            assert fake.launches()[-1].grid[0] == 2 - configuration


def test_forced_variants_are_checked(kiln, fake):
    aligned = packs.key_of("toy", "sm_90", "main", ("fp16", 64, "false"), 0, "aligned").hex()
    other = packs.key_of("toy", "sm_90", "main", ("bf16", 64, "false"), 0, "aligned").hex()
    waived = packs.key_of("toy", "sm_90", "main", ("fp16", 128, "false"), 0, "aligned").hex()
    generic = packs.key_of("toy", "sm_90", "main", ("fp16", 64, "false"), 0, "generic").hex()
    cases = [
        ((aligned,), {"n": 2}, ffi.UNSUPPORTED, r"specialised \(aligned\) for arguments that this call does not have"),
        ((other,), {}, ffi.UNSUPPORTED, "not a variant of this call's functional on sm_90"),
        ((waived,), {"cols": 128}, ffi.UNSUPPORTED, "forced for kernel main is not available: functional 2 is waived"),
        (("f" * 64,), {}, ffi.UNSUPPORTED, "ffff is not a variant"),
        (("0" * 64,), {}, ffi.ARGUMENT, r"force_keys\[0\] is 0, which is not a variant's key"),
        (("xyz",), {}, ffi.ARGUMENT, r"force_keys\[0\] is not a key of 64 hexadecimal digits"),
        ((aligned, generic), {}, ffi.ARGUMENT, "two variants are forced for kernel main"),
    ]
    for keys, change, status, sentence in cases:
        with pytest.raises(ffi.Failure, match=sentence) as failure:
            kiln.launch(work(kiln, arguments(**change), keys=keys))
        assert failure.value.status == status
    assert not fake.launches()


def test_forced_target_runs_by_ptx(kiln, fake):
    kiln.launch(work(kiln, arguments(), target="sm_80"))
    (launch,) = fake.launches()
    assert launch.symbol == b"main_0_0_aligned" and launch.grid[0] == 4 and launch.shared == 50000 - 8
    (variant,) = kiln.explain(work(kiln, arguments(), target="sm_80"))
    assert variant["target"] == b"sm_80" and variant["has_ptx"] == 1 and variant["registers"] == 40
    # on a device that runs its cubins, those are taken
    kiln.launch(work(kiln, arguments(), target="sm_80", stream=fake.stream(device=3)))
    assert fake.launches()[1].shared == 50000 - 16
    key = packs.key_of("toy", "sm_90", "main", ("fp16", 64, "false"), 0, "aligned").hex()
    for keys in ((), (key,)):
        with pytest.raises(ffi.Failure, match="the pack has no PTX of it") as failure:
            kiln.launch(work(kiln, arguments(), target="sm_90", stream=fake.stream(device=1), keys=keys))
        assert failure.value.status == ffi.UNSUPPORTED
    with pytest.raises(ffi.Failure, match="cannot be forced") as failure:
        kiln.launch(work(kiln, arguments(), target="gfx942"))
    with pytest.raises(ffi.Failure, match="toy has no target sm_70; its targets are: sm_80, sm_90, gfx942, gfx1100"):
        kiln.launch(work(kiln, arguments(), target="sm_70"))


def test_parameters_of_every_call_reach_the_image_in_order(kiln, fake):
    kiln.launch(work(kiln, arguments(flag=1, scale=-1.25, n=-5, dtype=BF16, rows=7)))
    assert fake.launches()[0].parameters() == [
        X, Y, 0, WORK, fp32(-1.25), 7, 64, (-5) & 0xFFFFFFFF, 1, fp64(-1.25), 0, 0
    ]  # fmt: skip
