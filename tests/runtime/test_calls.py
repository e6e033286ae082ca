"""Calls that must not run: each ends in one status and one sentence that names the input."""

from __future__ import annotations

import ctypes
import math
import os

import ffi
import packs
import pytest
from ffi import BF16, FP16, FP32, tensor
from test_launch import X, Y, arguments, work

BIG = 1 << 62


def view(**changes) -> ffi.Tensor:
    made = tensor(changes.pop("data", X), changes.pop("dtype", FP16), changes.pop("sizes", (100, 64)))
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def strided(*strides: int, sizes=(100, 64), data=X) -> ffi.Tensor:
    return tensor(data, FP16, sizes, strides)


BAD_ARGUMENTS = [
    # argument, value, status, sentence
    (0, None, ffi.ARGUMENT, "toy.mix: x is absent; it must be a tensor"),
    (0, 5, ffi.ARGUMENT, "toy.mix: x is an integer; it must be a tensor"),
    (0, view(rank=3), ffi.ARGUMENT, "toy.mix: x has rank 3; it must be 2"),
    (0, view(rank=-1), ffi.ARGUMENT, "x has rank -1; it must be 2"),
    (0, view(dtype=99), ffi.ARGUMENT, "x has dtype 99, which is not a kiln_dtype"),
    (0, view(data=0), ffi.ARGUMENT, "the data of x is NULL although it has elements"),
    (0, tensor(X, FP16, (-1, 64)), ffi.ARGUMENT, "size 0 of x is -1; a size must not be negative"),
    (0, tensor(X, FP16, (100, -(1 << 63))), ffi.ARGUMENT, "size 1 of x is -9223372036854775808"),
    (0, strided(BIG, 1), ffi.RANGE, "the sizes and strides of x reach beyond 64-bit addresses"),
    (0, strided(-BIG, 1), ffi.RANGE, "strides of x reach beyond"),
    (0, strided(1 << 56, 1), ffi.RANGE, "strides of x reach beyond"),
    (0, strided(-1000, 1), ffi.RANGE, "strides of x reach beyond"),  # below address 0
    (0, strided(64, 1, data=(1 << 64) - 100), ffi.RANGE, "strides of x reach beyond"),
    (0, tensor(X, FP16, (1 << 40, 1 << 40), (1, 1 << 40)), ffi.RANGE, "strides of x reach beyond"),
    (1, view(sizes=(99, 64)), ffi.ARGUMENT, "toy.mix: x and y must have the same number of rows"),
    (1, view(dtype=BF16), ffi.ARGUMENT, "toy.mix: y is bf16; it must be fp16, as this call's dtype"),
    (2, tensor(X, FP16, (7,)), ffi.ARGUMENT, "toy.mix: w is fp16; it must be fp32"),
    (2, tensor(X, FP32, (7, 7)), ffi.ARGUMENT, "w has rank 2; it must be 1"),
    (3, None, ffi.ARGUMENT, "n is absent; it must be an integer"),
    (3, 1.5, ffi.ARGUMENT, "n is a floating number; it must be an integer"),
    (3, 1 << 31, ffi.RANGE, "toy.mix: n is 2147483648, which does not fit its 32 bits"),
    (3, 0, ffi.RANGE, "toy.mix: the value ratio of this call overflows or divides by zero"),
    (4, BIG, ffi.RANGE, "toy.mix: the value area of this call overflows"),
    (4, 65536, ffi.RANGE, "grid dimension 1 of kernel main is 65536; NVIDIA devices take 0 to 65535"),
    (4, -1, ffi.RANGE, "grid dimension 1 of kernel main is -1"),
    (5, 2, ffi.RANGE, "toy.mix: flag is 2; a boolean must be 0 or 1"),
    (6, 1, ffi.ARGUMENT, "scale is an integer; it must be a floating number"),
    (6, 1e39, ffi.RANGE, r"toy.mix: the parameter scale of kernel main is 1e\+39, which does not fit fp32"),
]


@pytest.mark.parametrize("number, value, status, sentence", BAD_ARGUMENTS)
def test_bad_argument(kiln, fake, number, value, status, sentence):
    args = arguments()
    args[number] = value
    for entry in (kiln.launch, kiln.workspace_size, kiln.prepare, kiln.explain):
        with pytest.raises(ffi.Failure, match=sentence) as failure:
            entry(work(kiln, args))
        assert failure.value.status == status
    assert not fake.launches() and not fake.zeros() and fake.loaded == 0
    assert fake.count("cuCtxPushCurrent_v2") == fake.count("cuCtxPopCurrent_v2")


@pytest.mark.parametrize("scale", [math.inf, -math.inf, 3.4e38])
def test_infinities_are_numbers(kiln, fake, scale):
    kiln.launch(work(kiln, arguments(scale=scale)))
    assert len(fake.launches()) == 1


def test_strides_that_are_fine(kiln, fake):
    """Huge, negative, zero: whatever stays in the address space."""
    for x in (
        strided(1 << 40, 1),
        strided(-64, 1),
        strided(0, 0),
        strided(-(1 << 62), 1, sizes=(1, 64)),
        tensor(0, FP16, (0, 64), (BIG, BIG)),
    ):
        rows = x.sizes[0]
        kiln.launch(work(kiln, [x, tensor(Y, FP16, (rows, 64)), None, 2, 1, 0, 1.0]))
    assert len(fake.launches()) == 4  # the last has no rows


def test_rows_beyond_the_parameter(kiln, fake):
    """2**31 rows fit an int64 size, but not the kernel's i32."""
    x = strided(0, 1, sizes=(1 << 31, 64))
    with pytest.raises(ffi.Failure, match="the parameter rows of kernel main is 2147483648, which does not fit i32"):
        kiln.launch(work(kiln, [x, x, None, 2, 1, 0, 1.0]))


@pytest.mark.parametrize(
    "change, sentence",
    [
        (
            {"cols": 129},
            "toy.mix has no image for dtype=fp16 width=129 flag=false on sm_90; "
            "the nearest that exists is dtype=fp16 width=64 flag=false",
        ),
        (
            {"dtype": FP32},
            "toy.mix has no image for dtype=fp32 width=64 flag=false on sm_90; "
            "the nearest that exists is dtype=fp16 width=64 flag=false",
        ),
        (
            {"dtype": BF16, "cols": 128, "flag": 1},
            "toy.mix has no image for dtype=bf16 width=128 flag=true on sm_90: functional 7 is waived; "
            "the nearest that exists is dtype=fp16 width=128 flag=true",
        ),
        (
            {"cols": 100},
            "toy.mix has no image for dtype=fp16 width=128 flag=false on sm_90: functional 2 is waived; "
            "the nearest that exists is dtype=fp16 width=128 flag=true",
        ),
        (  # what fits is asked for as its choice fits it: 70 columns are width 128's
            {"dtype": FP32, "cols": 70},
            "toy.mix has no image for dtype=fp32 width=128 flag=false on sm_90; "
            "the nearest that exists is dtype=bf16 width=128 flag=false",
        ),
        (
            {"dtype": 40, "cols": 64},
            "x has dtype 40, which is not a kiln_dtype",
        ),
    ],
)
def test_unsupported_names_the_nearest(kiln, fake, change, sentence):
    with pytest.raises(ffi.Failure) as failure:
        kiln.launch(work(kiln, arguments(**change)))
    assert sentence in failure.value.sentence
    assert not fake.launches()


def slots(functional: int, configuration: int | None = None) -> slice:
    """Of the kernel main on sm_90: all of a functional, or those of one configuration."""
    first = 6 * functional + 3 * (configuration or 0)
    return slice(first, first + (6 if configuration is None else 3))


def test_what_no_lookup_leads_to_does_not_exist(forged, fake):
    """A configuration that lacks one specialization is taken for no call: its other images are no functional."""

    def change(main, images):
        row = main.slots[slots(6).start][0]
        main.slots[slots(7)] = [
            (row if number == 0 else packs.NONE, ptx, None if number == 0 else f"reason {number}", key)
            for number, (_, ptx, _, key) in enumerate(main.slots[slots(7)])
        ]

    kiln = forged(change)
    for asked, sentence in [
        (
            {"dtype": BF16, "cols": 128, "flag": 1},
            "bare.mix has no image for dtype=bf16 width=128 flag=true on sm_90: reason 1; "
            "the nearest that exists is dtype=fp16 width=128 flag=true",
        ),
        (
            {"dtype": FP32, "cols": 128, "flag": 1},
            "bare.mix has no image for dtype=fp32 width=128 flag=true on sm_90; "
            "the nearest that exists is dtype=fp16 width=128 flag=true",
        ),
        (
            {"dtype": FP16, "cols": 128, "flag": 0},
            "bare.mix has no image for dtype=fp16 width=128 flag=false on sm_90: functional 2 is waived; "
            "the nearest that exists is dtype=fp16 width=128 flag=true",
        ),
    ]:
        with pytest.raises(ffi.Failure) as failure:
            kiln.launch(work(kiln, arguments(**asked), operation="bare.mix"))
        assert failure.value.sentence == sentence


def test_a_functional_is_not_nearest_to_itself(forged, fake):
    """One image of it is missing, the one that the call needs; others are there."""

    def change(main, images):
        at = slots(0).start
        main.slots[at] = (packs.NONE, packs.NONE, "it spills", main.slots[at][3])

    kiln = forged(change)
    with pytest.raises(ffi.Failure) as failure:
        kiln.launch(work(kiln, arguments(), operation="bare.mix"))
    assert failure.value.sentence == (
        "bare.mix has no image for dtype=fp16 width=64 flag=false on sm_90: it spills; "
        "the nearest that exists is dtype=fp16 width=64 flag=true"
    )
    kiln.launch(work(kiln, arguments(n=2), operation="bare.mix"))  # another specialization
    assert len(fake.launches()) == 1


def test_a_forced_variant_without_an_image_says_why(forged, fake):
    """Whatever the call is like: its own slot's reason, not that of the functional's first."""

    def change(main, images):
        for at, reason in ((0, "it spills"), (4, None)):
            main.slots[at] = (packs.NONE, packs.NONE, reason, main.slots[at][3])

    kiln = forged(change)
    for number, reason in ((0, "it spills"), (4, "the pack has no image of it")):
        configuration, specialization = divmod(number, 3)
        what = ("fp16", 64, "false"), configuration, packs.SPECIALIZATIONS[specialization]
        key = packs.key_of("bare", "sm_90", "main", *what).hex()
        for change in ({}, {"n": 2}, {"x": X + 8}):  # whether its specialization would hold or not
            with pytest.raises(ffi.Failure) as failure:
                kiln.launch(work(kiln, arguments(**change), operation="bare.mix", keys=(key,)))
            assert failure.value.status == ffi.UNSUPPORTED
            assert (
                failure.value.sentence
                == f"bare.mix: the variant {key} forced for kernel main is not available: {reason}"
            )
    assert not fake.launches()


def test_a_sentence_that_is_cut_ends_in_dots(kiln):
    for name in ("x" * 3000, "x" + "\u00e9" * 3000):
        with pytest.raises(ffi.Failure) as failure:
            kiln.operation(name)
        assert failure.value.sentence.startswith("there is no operation x") and failure.value.sentence.endswith("...")
        assert 2040 < len(failure.value.sentence.encode()) < 2048


def test_reserved_fields(kiln):
    for args in ([view(reserved=(ctypes.c_uint64 * 2)(0, 1)), *arguments()[1:]],):
        with pytest.raises(ffi.Failure, match="the reserved fields of x are not zero") as failure:
            kiln.launch(work(kiln, args))
        assert failure.value.status == ffi.NEWER_CALLER
    call = work(kiln, arguments())
    call.arguments[3].reserved = 1
    with pytest.raises(ffi.Failure, match="the reserved field of argument n is not zero"):
        kiln.launch(call)


def test_counts_and_null_pointers(kiln, library):
    def failing(change, sentence, status=ffi.ARGUMENT):
        call = work(kiln, arguments())
        change(call)
        with pytest.raises(ffi.Failure, match=sentence) as failure:
            kiln.launch(call)
        assert failure.value.status == status

    def put(name, value):
        return lambda call: setattr(call, name, value)

    failing(put("argument_count", 6), "toy.mix: 6 arguments are given; it takes 7")
    failing(put("argument_count", -1), "-1 arguments are given")
    failing(put("arguments", None), "toy.mix: the arguments are NULL")
    failing(put("operation", None), "kiln_call.operation is NULL")
    failing(put("queue", None), "kiln_call.queue is NULL")
    failing(put("force_count", -1), "force_count is -1")
    failing(put("force_count", 33), "force_count is 33; it must be 0 to 32")
    failing(lambda call: (put("force_count", 1)(call), put("force_keys", None)(call)), "force_keys is NULL")
    failing(put("size", 0), "kiln_call.size is 0; initialise the structure with its INIT macro")
    failing(put("size", 12), "kiln_call.size is 12")
    failing(put("size", 1 << 40), "kiln_call.size is 1099511627776")
    failing(lambda call: call.arguments[0].value.__setattr__("tensor", None), "x is a NULL tensor")
    failing(lambda call: setattr(call.queue.contents, "vendor", 0), "the queue's vendor is 0; it must be KILN_VENDOR")
    failing(lambda call: setattr(call.queue.contents, "size", 4), "kiln_call.queue.size is 4")
    failing(lambda call: setattr(call.arguments[0], "kind", 9), "x is of an unknown kind; it must be a tensor")

    c = library.c
    none = ctypes.c_void_p()
    size = ctypes.c_uint64()
    call = work(kiln, arguments())
    for entry, sentence in [
        (lambda: c.kiln_launch(None), "kiln_call is NULL"),
        (lambda: c.kiln_workspace_size(ctypes.byref(call), None), "bytes is NULL"),
        (lambda: c.kiln_workspace_size(None, ctypes.byref(size)), "kiln_call is NULL"),
        (lambda: c.kiln_explain(ctypes.byref(call), None, None), "visit is NULL"),
        (lambda: c.kiln_open(None, None), "out is NULL"),
        (lambda: c.kiln_devices(None, None, None), "the kiln_t is NULL"),
        (lambda: c.kiln_devices(kiln.handle, None, None), "visit is NULL"),
        (lambda: c.kiln_variants(kiln.handle, None, None, None, None), "visit is NULL"),
        (lambda: c.kiln_operations(kiln.handle, None, None), "visit is NULL"),
        (lambda: c.kiln_operation_arguments(None, None, None), "operation is NULL"),
        (lambda: c.kiln_find_operation(kiln.handle, None, ctypes.byref(none)), "name is NULL"),
        (lambda: c.kiln_find_operation(kiln.handle, b"toy.mix", None), "out is NULL"),
        (lambda: c.kiln_register_family(kiln.handle, None), "the family is NULL"),
        (lambda: c.kiln_register_family(None, None), "the kiln_t is NULL"),
    ]:
        assert entry() == ffi.ARGUMENT and sentence in library.error()
    assert library.error() == "the kiln_t is NULL"
    assert c.kiln_close(None) == ffi.OK


def test_older_callers_get_defaults(kiln, fake, library):
    """A structure cut off after its operation's arguments, as of a time when it had no more."""
    call = work(kiln, arguments())
    call.size = ffi.Call.force_keys.offset
    call.force_count = 0
    with pytest.raises(ffi.Failure, match="its workspace is NULL"):  # what lies behind is not read
        kiln.launch(call)
    queue = ffi.Queue(16, ffi.NVIDIA, -1, 0xDEAD)
    call = work(kiln, arguments())
    call.queue = ctypes.pointer(queue)
    kiln.launch(call)  # the null stream
    assert fake.launches()[0].stream is None


def test_newer_callers(kiln, fake):
    class Newer(ctypes.Structure):
        _fields_ = [("call", ffi.Call), ("tail", ctypes.c_uint64 * 2)]

    newer = Newer()
    call = work(kiln, arguments())
    ctypes.memmove(ctypes.byref(newer), ctypes.byref(call), ctypes.sizeof(call))
    newer.call.size = ctypes.sizeof(Newer)
    kiln.library.check(kiln.library.c.kiln_launch(ctypes.byref(newer)))
    assert len(fake.launches()) == 1
    newer.tail[1] = 1
    status = kiln.library.c.kiln_launch(ctypes.byref(newer))
    assert status == ffi.NEWER_CALLER
    assert "kiln_call has a field at byte 80 that Kiln 1.2.3 does not know" in kiln.library.error()
    assert len(fake.launches()) == 1


def test_find_operation(kiln, library, fake):
    with pytest.raises(ffi.Failure, match=r"there is no operation toy.max; there are toy.mix") as failure:
        kiln.operation("toy.max")
    assert failure.value.status == ffi.NOT_FOUND
    register = r"kiln_register_family\(kiln, kiln_%s_family\(\)\)"
    with pytest.raises(ffi.Failure, match="no family norm is registered.*" + register % "norm" + ".*there are toy.mix"):
        kiln.operation("norm.rms_norm")
    with (
        ffi.Kiln(library, fake) as empty,
        pytest.raises(ffi.Failure, match="no family.*; register one with " + register % "<family>"),
    ):
        empty.operation("toy.mix")


def test_arguments_are_told(kiln):
    seen = []
    visit = ffi.ArgumentFn(lambda info, _: seen.append(ffi._fields(info.contents)) or 0)
    kiln.library.check(kiln.library.c.kiln_operation_arguments(kiln.operation(), visit, None))
    assert [(a["name"], a["kind"], a["rank"], a["dtype"], a["optional"]) for a in seen] == [
        (b"x", ffi.TENSOR, 2, 0, 0), (b"y", ffi.TENSOR, 2, 0, 0), (b"w", ffi.TENSOR, 1, FP32, 1),
        (b"n", ffi.INT, 0, 0, 0),
        (b"big", ffi.INT, 0, 0, 0), (b"flag", ffi.INT, 0, 0, 0), (b"scale", ffi.FLOAT, 0, 0, 0),
    ]  # fmt: skip
    names = []
    visit = ffi.OperationFn(lambda name, operation, _: names.append(name) or 0)
    kiln.library.check(kiln.library.c.kiln_operations(kiln.handle, visit, None))
    assert names == [b"toy.mix"]


def in_child(function) -> str:
    """What `function` returns in a forked child."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, str(function()).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return text


def test_fork(kiln, fake, library, toy):
    call = work(kiln, arguments())
    kiln.launch(call)

    def child():
        c = library.c
        statuses = [
            c.kiln_launch(ctypes.byref(call)),
            c.kiln_devices(kiln.handle, None, None),
            c.kiln_register_family(kiln.handle, None),
            c.kiln_variants(kiln.handle, None, None, None, None),
        ]
        sentence = library.error()
        before = fake.count("cuLibraryUnload")
        closed = kiln.close()
        with ffi.Kiln(library, fake) as own:
            own.register(toy)
            own.launch(work(own, arguments()))
        return statuses, sentence, closed, before, fake.loaded

    forked = ffi.FORKED
    sentence = "this process was forked from the one that opened the kiln_t; open another one here"
    # the parent's image is still loaded as far as the child's copy of the driver can tell: nothing was unloaded there
    assert in_child(child) == str(([forked] * 4, sentence, ffi.OK, 0, 1))
    kiln.launch(call)
    assert len(fake.launches()) == 2


def test_errors_speak_of_their_thread(kiln, library):
    import threading

    with pytest.raises(ffi.Failure):
        kiln.operation("toy.max")
    seen = []
    thread = threading.Thread(target=lambda: seen.append(library.error()))
    thread.start()
    thread.join()
    assert seen == [""] and "toy.max" in library.error()


def test_status_names(library):
    names = [library.c.kiln_status_name(i).decode() for i in range(18)]
    assert names[0] == "KILN_OK" and names[16] == "KILN_E_FAMILY" and names[17] == "KILN_E_?"
    assert len(set(names)) == 18 and library.c.kiln_version() == b"1.2.3"


def test_resources(forged, fake):
    """An image that needs more shared memory than the device has is not handed to the driver."""

    def change(main, images):
        for image in images:
            image.shared = 300000

    kiln = forged(change)
    with pytest.raises(ffi.Failure, match="needs 300000 bytes of shared memory and 128 threads") as failure:
        kiln.launch(work(kiln, arguments(), operation="bare.mix"))
    assert failure.value.status == ffi.RESOURCES and fake.loaded == 0


@pytest.mark.parametrize(
    "symbol, code, sentence",
    [
        ("cuInit", 3, r"cuInit: the CUDA driver returned CUDA_ERROR_NOT_INITIALIZED \(3\)"),
        ("cuDeviceGetCount", 3, "cuDeviceGetCount"),
        ("cuDeviceGetAttribute", 1, "cuDeviceGetAttribute"),
        ("cuDeviceGetName", 1, "cuDeviceGetName"),
        ("cuDeviceGetUuid_v2", 1, "cuDeviceGetUuid"),
        ("cuCtxGetCurrent", 3, "cuCtxGetCurrent"),
        ("cuCtxGetDevice", 201, "cuCtxGetDevice"),
        ("cuLibraryLoadData", 200, r"cuLibraryLoadData: the CUDA driver returned CUDA_ERROR_INVALID_IMAGE \(200\)"),
        ("cuLibraryGetKernel", 500, "cuLibraryGetKernel"),
        ("cuKernelGetAttribute", 1, "cuKernelGetAttribute"),
        ("cuKernelSetAttribute", 1, "cuKernelSetAttribute"),
        ("cuMemsetD8Async", 700, "cuMemsetD8Async"),
        ("cuLaunchKernel", 700, r"cuLaunchKernel: the CUDA driver returned CUDA_ERROR_ILLEGAL_ADDRESS \(700\)"),
    ],
)
def test_driver_failures(kiln, fake, symbol, code, sentence):
    """Each call of the driver fails once: the call says so, nothing leaks, and the next one works."""
    fake.fail(symbol, code)
    call = work(kiln, arguments(), stream=fake.stream(device=4))
    with pytest.raises(ffi.Failure, match=sentence) as failure:
        kiln.launch(call)
    assert failure.value.status == ffi.DRIVER
    assert fake.loaded == (symbol in ("cuLaunchKernel", "cuMemsetD8Async"))
    assert not fake.launches() and fake.current() == fake.context(0)
    kiln.launch(call)
    assert len(fake.launches()) == 1 and fake.loaded == 1


@pytest.mark.parametrize("symbol", ["cuStreamGetCtx", "cuCtxPushCurrent_v2"])
def test_unusable_streams(kiln, fake, symbol):
    fake.fail(symbol, 400)
    fake.fail("cuStreamGetCtx_v2", 400)
    call = work(kiln, arguments(), stream=fake.stream(device=4))
    with pytest.raises(
        ffi.Failure, match="cannot be used: the CUDA driver returned CUDA_ERROR_INVALID_HANDLE"
    ) as failure:
        kiln.launch(call)
    assert failure.value.status == ffi.QUEUE and fake.current() == fake.context(0)


@pytest.mark.parametrize(
    "symbol, status",
    [
        ("hipInit", ffi.DRIVER), ("hipGetDeviceCount", ffi.DRIVER), ("hipRuntimeGetVersion", ffi.DRIVER),
        ("hipDeviceGetAttribute", ffi.DRIVER), ("hipDeviceGetName", ffi.DRIVER), ("hipDeviceGetPCIBusId", ffi.DRIVER),
        ("hipGetDevicePropertiesR0600", ffi.DRIVER), ("hipStreamGetDevice", ffi.QUEUE), ("hipGetDevice", ffi.DRIVER),
        ("hipSetDevice", ffi.DRIVER), ("hipModuleLoadData", ffi.DRIVER), ("hipModuleGetFunction", ffi.DRIVER),
        ("hipFuncGetAttribute", ffi.DRIVER), ("hipMemsetAsync", ffi.DRIVER), ("hipModuleLaunchKernel", ffi.DRIVER),
    ],
)  # fmt: skip
def test_hip_failures(kiln, fake, symbol, status):
    fake.fail(symbol, 999)
    call = work(kiln, arguments(), vendor=ffi.AMD, stream=fake.stream(ffi.AMD, 4))
    with pytest.raises(ffi.Failure, match=r"the HIP runtime returned hipErrorUnknown \(999\)") as failure:
        kiln.launch(call)
    assert failure.value.status == status and fake.last_error == 0
    assert not fake.launches() and (fake.current(ffi.AMD) or 0) == 0
    assert fake.loaded == (symbol in ("hipModuleLaunchKernel", "hipMemsetAsync"))
    kiln.launch(call)
    assert len(fake.launches()) == 1


def test_the_sentence_of_a_load_outlives_the_unload(kiln, fake):
    """What fails while a failed load is undone is logged, and does not stand in for what failed first."""
    fake.fail("hipModuleGetFunction", 500)
    fake.fail("hipGetDevice", 999, nth=2)  # the first makes the stream's device current
    fake.fail("hipModuleUnload", 998)
    with pytest.raises(ffi.Failure, match=r"hipModuleGetFunction: .* \(500\) for an image of main_0_0_aligned"):
        kiln.launch(work(kiln, arguments(), vendor=ffi.AMD, stream=fake.stream(ffi.AMD, 4)))
    warnings = [message for level, message in kiln.messages if level == 1]
    assert [message.split(":")[0] for message in warnings] == ["hipGetDevice", "hipModuleUnload"]
    assert fake.last_error == 0

    fake.fail("cuLibraryGetKernel", 500)
    fake.fail("cuLibraryUnload", 700)
    with pytest.raises(ffi.Failure, match="cuLibraryGetKernel: the CUDA driver returned CUDA_ERROR_NOT_FOUND"):
        kiln.launch(work(kiln, arguments()))


@pytest.mark.parametrize("code", [4, 999])  # 4: the runtime is shutting down, no failure to speak of
def test_no_hip_failure_is_left_to_the_caller(kiln, fake, code):
    """Also those that no status tells of: the way back to the caller's device, what an older runtime does not know,
    unloading."""
    call = work(kiln, arguments(), vendor=ffi.AMD, stream=fake.stream(ffi.AMD, 4))
    fake.fail("hipSetDevice", code, nth=2)
    kiln.launch(call)
    assert len(fake.launches()) == 1 and fake.last_error == 0
    assert any(message.startswith("hipSetDevice: the HIP runtime returned") for _, message in kiln.messages)
    fake.set_current(0, ffi.AMD)
    fake.fail("hipModuleUnload", code)
    assert kiln.close() == ffi.OK and fake.last_error == 0


def test_a_failing_second_kernel_launches_no_first(kiln, fake):
    fake.fail("cuLibraryLoadData", 2, nth=2)
    with pytest.raises(ffi.Failure, match="CUDA_ERROR_OUT_OF_MEMORY"):
        kiln.launch(work(kiln, arguments(rows=300)))
    assert not fake.launches() and not fake.zeros()


def test_assembler_messages_are_passed_on(kiln, fake):
    fake.fail("cuLibraryLoadData", 218)
    with pytest.raises(ffi.Failure, match="main_0_0_aligned: ptxas: line 1 is wrong"):
        kiln.launch(work(kiln, arguments(), target="sm_80"))


def test_unload_failures_are_logged(kiln, fake):
    kiln.launch(work(kiln, arguments()))
    fake.fail("cuLibraryUnload", 700)
    assert kiln.close() == ffi.OK
    assert any("cuLibraryUnload" in message for _, message in kiln.messages)


def test_checks_are_made_in_the_order_that_the_header_says(kiln, fake):
    """Of a call in which everything is wrong, one thing after the other is mended: a status and a sentence each."""
    args = arguments()
    args[0], args[1] = tensor(X, FP16, (100,)), view(sizes=(99, 64))
    fake.set_current(fake.context(2))
    fake.c.fake_set_device_count(ffi.NVIDIA, 0)
    fake.fail("cuLibraryLoadData", 2)
    wrong = {"workspace": 0, "workspace_bytes": 0}

    def told(entry, status: int, sentence: str) -> None:
        with pytest.raises(ffi.Failure, match=sentence) as failure:
            entry(kiln.call(args, **wrong))
        assert failure.value.status == status

    for entry in (kiln.launch, kiln.prepare, kiln.workspace_size, kiln.explain):
        told(entry, ffi.ARGUMENT, "x has rank 1; it must be 2")
    args[0] = view()
    for entry in (kiln.launch, kiln.prepare, kiln.workspace_size, kiln.explain):
        told(entry, ffi.NO_DEVICE, "the NVIDIA driver has no device")
    wrong["target"] = "sm_90"
    told(kiln.explain, ffi.NO_DEVICE, "the NVIDIA driver has no device")
    del wrong["target"]
    fake.c.fake_set_device_count(ffi.NVIDIA, 5)
    told(kiln.explain, ffi.ARGUMENT, "x and y must have the same number of rows")
    args[1] = arguments()[1]
    told(kiln.explain, ffi.NO_DEVICE, "no pack of toy serves the NVIDIA device 2")
    fake.set_current(fake.context(0))
    kiln.explain(kiln.call(args, **wrong))
    told(kiln.launch, ffi.WORKSPACE, "its workspace is NULL")
    told(kiln.prepare, ffi.DRIVER, "cuLibraryLoadData")
    assert not fake.launches()
