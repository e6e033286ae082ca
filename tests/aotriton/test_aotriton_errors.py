"""What is refused, and what a driver's failures become: a hipError_t, a sentence, outputs of NaN; never a throw."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import sys
import textwrap

import ffi
import pytest
from aotriton_calls import DENSE, PACKED, SEED, STEP, at, extents, filled, gradients, outputs
from aotriton_interface import (
    BF16,
    BOTTOM_RIGHT,
    COMPACT,
    FILE_NOT_FOUND,
    FP32,
    INT32,
    INT64,
    INVALID_HANDLE,
    INVALID_IMAGE,
    INVALID_SYMBOL,
    INVALID_VALUE,
    NO_BINARY,
    NO_DEVICE,
    NOT_SUPPORTED,
    OUT_OF_MEMORY,
    PADDED,
    STRIDED,
    SUCCESS,
    TOP_LEFT,
    UINT8,
    UNKNOWN,
    UNKNOWN_ERROR,
    VERSIONS,
    WINDOWED,
    Structures,
    library_of,
)
from fake_release import hip_headers
from nativebuild import ROOT, run


def compile_for(release, version: str = "0.11") -> list:
    """A compiler's command for a program of an interface."""
    include = release.lib / "aotriton" / version / "include"
    return ["c++", "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-D__HIP_PLATFORM_AMD__", "-I", include,
            "-isystem", hip_headers()]  # fmt: skip


SCALED = DENSE | {"scale": 0.125}
BACK = SCALED | gradients(DENSE)
WINDOW = SCALED | {"causal_type": WINDOWED}

REFUSED = {
    "no q": ("v2.attn_fwd", {"q": (0, BF16, (2, 4, 100, 64))}, INVALID_VALUE, "q "),
    "another dtype": ("v2.attn_fwd", {"k": at(2, FP32, (2, 2, 120, 64))}, INVALID_VALUE, "k is fp32"),
    "integers": ("v2.attn_fwd", {n: (STEP, INT32, DENSE[n][2]) for n in "qkv"} | {"out": at(4, INT32, (2, 4, 100, 56))},
                 NOT_SUPPORTED, "dtype"),
    "no dtype": ("v2.attn_fwd", {"v": (STEP, UNKNOWN, DENSE["v"][2])}, INVALID_VALUE, "v "),
    "heads that do not divide": ("v2.attn_fwd", {"k": at(2, BF16, (2, 3, 120, 64)), "v": at(3, BF16, (2, 3, 120, 56))},
                                 INVALID_VALUE, "multiple"),
    "a head that is too wide": (
        "v2.attn_fwd",
        {"q": at(1, BF16, (2, 4, 100, 520)), "k": at(2, BF16, (2, 2, 120, 520))}, NOT_SUPPORTED, "head_dim",
    ),
    "a head without images": (
        "v2.attn_fwd",
        {"q": at(1, BF16, (2, 4, 100, 128)), "k": at(2, BF16, (2, 2, 120, 128))}, NOT_SUPPORTED, "nearest",
    ),
    "a last dimension with gaps": ("v2.attn_fwd", {"q": (STEP, BF16, (2, 4, 100, 64), (51200, 12800, 128, 2))},
                                   INVALID_VALUE, "contiguous"),
    "sizes beyond 63 bits": ("v2.attn_fwd", {"q": (STEP, BF16, (2, 4, 2**63, 64), (0, 0, 64, 1))}, INVALID_VALUE, "q"),
    "a probability": ("v2.attn_fwd", {"p": 1.0} | SEED, INVALID_VALUE, "dropout must be"),
    "a probability below 0": ("v2.attn_fwd", {"p": -0.5}, INVALID_VALUE, "dropout must be"),
    "no number": ("v2.attn_fwd", {"p": float("nan")} | SEED, INVALID_VALUE, "dropout must be"),
    "an infinite scale": ("v2.attn_fwd", {"scale": float("inf")}, INVALID_VALUE, "sm_scale"),
    "a seed of 32 bits": ("v2.attn_fwd", {"p": 0.5, "seed": (STEP, INT32)}, INVALID_VALUE, "seed"),
    "one output of two": ("v2.attn_fwd", {"seed_out": (STEP, INT64)}, INVALID_VALUE, "belong together"),
    "few rows of lse": ("v2.attn_fwd", {"lse": at(5, FP32, (8, 99))}, INVALID_VALUE, "fewer columns"),
    "few heads of lse": ("v2.attn_fwd", {"lse": at(5, FP32, (7, 100))}, INVALID_VALUE, "row for each head"),
    "lse of halves": ("v2.attn_fwd", {"lse": at(5, BF16, (8, 100))}, INVALID_VALUE, "lse"),
    "a small bias": ("v2.attn_fwd", {"b": at(9, BF16, (2, 4, 100, 119))}, INVALID_VALUE, "bias"),
    "a mask of integers": ("v2.attn_fwd", {"encoded": at(44, INT32, (2, 4, 100, 120))}, NOT_SUPPORTED, "mask"),
    "slopes": ("v3.attn_fwd", {"a": at(45, FP32, (2, 4))}, NOT_SUPPORTED, "ALiBi"),
    "a causal type": ("v3.attn_fwd", {"causal_type": 1}, NOT_SUPPORTED, "causal_type"),
    "a varlen type": ("v3.attn_fwd", {"varlen_type": 3}, NOT_SUPPORTED, "varlen_type"),
    "a varlen type below 0": ("v3.attn_fwd", {"varlen_type": -1}, NOT_SUPPORTED, "varlen_type"),
    "no lengths": ("v3.attn_fwd", {"varlen_type": COMPACT}, INVALID_VALUE, "cu_seqlens_q"),
    "no lengths of padded ones": ("v3.attn_fwd", {"varlen_type": PADDED}, INVALID_VALUE, "cu_seqlens_q"),
    "a window": ("v3.attn_fwd", {"causal_type": WINDOWED, "left": -3, "right": 5}, NOT_SUPPORTED, "window_left"),
    "an older caller": ("v3.attn_fwd", {"version": 0}, INVALID_SYMBOL, "params_version"),
    "a newer caller": ("v3.attn_fwd", {"version": 2}, INVALID_SYMBOL, "params_version"),
    "a backend": ("v3.attn_fwd", {"backend": 1}, NOT_SUPPORTED, "force_backend_index"),
    "no gradient": ("v2.attn_bwd", {"dq": None}, INVALID_VALUE, "dq"),
    "a gradient's shape": ("v2.attn_bwd", {"dk": at(22, BF16, (2, 2, 119, 64))}, INVALID_VALUE, "dk must have"),
    "a gradient that is broadcast": ("v2.attn_bwd_fused", {"dv": (STEP, BF16, (2, 2, 120, 56), (0, 0, 56, 1))},
                                     INVALID_VALUE, "broadcast"),
    "no lse": ("v2.attn_bwd", {"lse": None}, INVALID_VALUE, "log-sum-exp"),
    "a gradient of no bias": ("v2.attn_bwd", {"db": at(9, BF16, (2, 4, 100, 120))}, INVALID_VALUE, "bias"),
    "an older backward": ("v3.attn_bwd", {"version": 2}, INVALID_SYMBOL, "params_version"),
    "a newer backward": ("v3.aiter_bwd", {"version": 4}, INVALID_SYMBOL, "params_version"),
    "a backend of the backward": ("v3.attn_bwd", {"backend": 2}, NOT_SUPPORTED, "force_backend_index"),
    "a window of the backward": (
        "v3.attn_bwd", {"causal_type": WINDOWED, "left": 0, "right": -1}, NOT_SUPPORTED, "window_left",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(worker, name):
    entry, fields, wanted, words = REFUSED[name]
    call = (SCALED if entry.endswith("fwd") else BACK) | fields
    error, sentence = worker.call(entry, stream := worker.stream(), **call)
    record = worker.events()
    assert error == wanted and words in sentence, sentence
    assert not record.launches or (name == "a mask of integers" and len(record.launches) == 1)
    is_readable = error != INVALID_SYMBOL
    assert filled(record) == (extents(outputs(entry, call)) if is_readable else [])
    assert ("not filled with NaN" in sentence) != is_readable
    assert {fill.stream for fill in record.fills} <= {stream}


PACKED_REFUSED = {
    "lengths of 64 bits": ("v2.attn_fwd_compact_varlen", {"cu_q": at(50, INT64, (4,))}, "cu_seqlens_q"),
    "no lengths of keys": ("v2.attn_fwd_compact_varlen", {"cu_k": None}, "cu_seqlens_k"),
    "other lengths of keys": ("v2.attn_fwd_compact_varlen", {"cu_k": at(51, INT32, (5,))}, "cu_seqlens_k"),
    "no lengths at all": ("v2.attn_fwd_compact_varlen", {"cu_q": at(50, INT32, (0,))}, ""),
    "a batch": ("v2.attn_fwd_compact_varlen", {"q": at(1, BF16, (2, 4, 125, 64))}, "batch"),
    "a length below 0": ("v2.attn_fwd_compact_varlen", {"max_q": -1}, "max_seqlen"),
    "an lse by sequence that is short": ("v2.attn_fwd_compact_varlen", {"lse": at(5, FP32, (12, 99))}, "lse"),
    "an lse of less than the longest": ("v2.attn_fwd_compact_varlen", {"lse": at(5, FP32, (4, 99))}, "lse"),
    "an lse of more than the longest": ("v2.attn_fwd_compact_varlen", {"lse": at(5, FP32, (4, 101))}, "lse"),
    "an lse of no known length": ("v2.attn_fwd_compact_varlen", {"lse": at(5, FP32, (4, 100)), "max_q": 0}, "lse"),
    "an lse of halves, of the longest": ("v2.attn_fwd_compact_varlen", {"lse": at(5, BF16, (4, 100))}, "lse"),
}  # fmt: skip


@pytest.mark.parametrize("name", PACKED_REFUSED)
def test_refused_of_several_lengths(worker, name):
    entry, fields, words = PACKED_REFUSED[name]
    call = PACKED | {"scale": 0.125} | fields
    error, sentence = worker.call(entry, worker.stream(), **call)
    record = worker.events()
    assert error == INVALID_VALUE and words in sentence, sentence
    assert not record.steps and filled(record) == extents(outputs(entry, call))


def test_a_window_that_depends_on_the_lengths(worker):
    call = PACKED | {"scale": 0.125, "causal_type": WINDOWED, "left": 5, "right": BOTTOM_RIGHT}
    assert worker.call("v3.attn_fwd", worker.stream(), **call)[0] == NOT_SUPPORTED


def test_a_stream_of_nobody(worker, release):
    other = worker.fake("fake_stream", ffi.AMD + ffi.NVIDIA - worker.vendor, 0, 0)
    for entry, fields in (("v2.attn_fwd", SCALED), ("v2.attn_bwd_fused", BACK), ("v2.check_gpu", {})):
        error, sentence = worker.call(entry, other, **fields)
        assert error == INVALID_HANDLE and "stream" in sentence
        assert ("not filled with NaN: the stream's device" in sentence) == ("attn" in entry)
    assert not worker.events().fills
    assert worker.ask("value", "getGpuFromStream", other)[0] == 0
    assert worker.ask("value", "getMultiProcessorCount", other)[0] == 0


def test_a_device_without_images(worker):
    """The fake drivers' third devices: gfx1100, and sm_75."""
    stream = worker.stream(2)
    for entry, fields in (("v2.check_gpu", {}), ("v2.attn_fwd", SCALED), ("v2.attn_bwd_fused", BACK)):
        error, sentence = worker.call(entry, stream, **fields)
        assert error == NO_BINARY and "no pack of flash serves" in sentence
    gpu, _ = worker.ask("value", "getGpuFromStream", stream)
    assert gpu == (0x1002_1100_0000 if worker.vendor == ffi.AMD else 0x10DE_0075_0000)
    assert not worker.ask("value", "isArchExperimentallySupported", stream)[0]


# ---- a driver's failures ---------------------------------------------------------------------------------------------

FAILURES = {
    ffi.AMD: {
        "hipStreamGetDevice": ("v2.attn_fwd", 999, INVALID_HANDLE),
        "hipModuleLoadData": ("v2.attn_fwd", 209, UNKNOWN_ERROR),
        "hipModuleGetFunction": ("v2.attn_fwd", 500, UNKNOWN_ERROR),
        "hipModuleLaunchKernel": ("v2.attn_fwd", 719, UNKNOWN_ERROR),
        "hipMallocAsync": ("v2.attn_bwd_fused", 2, OUT_OF_MEMORY),
        "hipFreeAsync": ("v2.attn_bwd_fused", 1, INVALID_VALUE),
    },
    ffi.NVIDIA: {
        "cuStreamGetCtx": ("v2.attn_fwd", 709, INVALID_HANDLE),
        "cuLibraryLoadData": ("v2.attn_fwd", 200, UNKNOWN_ERROR),
        "cuLaunchKernel": ("v2.attn_fwd", 719, UNKNOWN_ERROR),
        "cuMemAllocAsync": ("v2.attn_bwd_fused", 2, OUT_OF_MEMORY),
        "cuMemFreeAsync": ("v2.attn_bwd_fused", 1, INVALID_VALUE),
    },
}


@pytest.mark.parametrize(
    "vendor, symbol", [(vendor, symbol) for vendor, failing in FAILURES.items() for symbol in failing]
)
def test_a_failure(start, vendor, symbol):
    """Once, then all is well; nothing is left taken, and HIP remembers nothing."""
    entry, code, wanted = FAILURES[vendor][symbol]
    call = SCALED if entry.endswith("fwd") else BACK
    worker = start(vendor)
    stream = worker.stream()
    assert worker.call("v2.check_gpu", stream)[0] == SUCCESS
    assert not [call for call in worker.events().calls if "Load" in call]
    worker.fake("fake_fail", symbol, 1, code, 0)
    if symbol == "cuStreamGetCtx":  # a second way to ask leads to the context, if the first one fails alone
        worker.fake("fake_fail", "cuStreamGetCtx_v2", 1, code, 0)
    error, sentence = worker.call(entry, stream, **call)
    assert error == wanted and str(code) in sentence, sentence
    if vendor == ffi.AMD:
        assert worker.fake("fake_last_error") == 0
    leaks = [leak for leak in worker.events().leaks() if "module" not in leak]
    assert bool(leaks) == ("Free" in symbol), leaks
    assert worker.call(entry, stream, **call)[0] == SUCCESS


@pytest.mark.parametrize("vendor", FAILURES)
def test_any_call_of_the_driver_may_fail(start, vendor):
    """The first use of a process with each call of the driver failing in its turn: a hipError_t, or nothing at all
    where libkiln goes on without; then the same call succeeds."""
    counting = start(vendor)
    assert counting.call("v2.attn_bwd_fused", counting.stream(), **BACK)[0] == SUCCESS
    names = counting.events().calls
    needless = {"hipGetLastError", "hipDeviceGetAttribute", "cuGetErrorName", "hipFreeAsync", "cuMemFreeAsync"}
    for symbol in sorted(set(names) - needless):
        worker = start(vendor)
        worker.fake("fake_fail", symbol, 1, 999, 0)
        stream = worker.stream()
        error, sentence = worker.call("v2.attn_bwd_fused", stream, **BACK)
        assert error in (SUCCESS, NO_DEVICE, INVALID_HANDLE, NO_BINARY, UNKNOWN_ERROR), (symbol, error, sentence)
        assert worker.call("v2.attn_bwd_fused", stream, **BACK)[0] == SUCCESS, symbol
        worker.close()


@pytest.mark.parametrize(
    "vendor, symbol, facts",
    [(ffi.AMD, "hipDeviceGetName", (0x1002_0942_0000, 304)), (ffi.NVIDIA, "cuDeviceGetName", (0x10DE_0090_0000, 132))],
)
def test_a_device_of_which_nothing_was_told_at_first(start, vendor, symbol, facts):
    """Its first description fails, when all devices are looked at; later ones do not."""
    worker = start(vendor)
    stream = worker.stream()
    worker.fake("fake_fail", symbol, 1, 999, 1)
    assert worker.ask("value", "getMultiProcessorCount", stream)[0] == 0
    assert worker.ask("value", "getGpuFromStream", stream)[0] == 0
    worker.fake("fake_fail", symbol, 1, 0, 0)
    assert worker.ask("value", "getGpuFromStream", stream)[0] == facts[0]
    assert worker.ask("value", "getMultiProcessorCount", stream)[0] == facts[1]


def test_a_launch_that_fails_leaves_no_memory_taken(start):
    worker = start(ffi.AMD)
    stream = worker.stream()
    worker.fake("fake_fail", "hipModuleLaunchKernel", 2, 719, 0)
    error, sentence = worker.call("v2.attn_bwd_fused", stream, **BACK)
    assert error == UNKNOWN_ERROR and "hipModuleLaunchKernel" in sentence
    assert not [leak for leak in worker.events().leaks() if "module" not in leak]
    worker.fake("fake_fail", "hipModuleLaunchKernel", 1, 719, 0)
    worker.fake("fake_fail", "hipFreeAsync", 1, 1, 0)
    error, sentence = worker.call("v2.attn_bwd_fused", stream, **BACK)
    assert error == UNKNOWN_ERROR and "hipModuleLaunchKernel" in sentence, "the first failure is the one to know"


def test_no_driver(start):
    worker = start(ffi.AMD, "none")
    for entry, fields in (("v2.check_gpu", {}), ("v2.attn_fwd", SCALED), ("v2.attn_bwd_fused", BACK)):
        error, sentence = worker.call(entry, None, **fields)
        assert error == NO_DEVICE and "there is no AMD driver" in sentence and "there is no NVIDIA driver" in sentence
    assert worker.call("v2.debug_simulate_encoded_softmax", r=at(44, BF16, (1, 1, 8, 8)))[0] == NO_DEVICE
    assert worker.ask("value", "getGpuFromStream", None)[0] == 0


def test_no_devices_at_first(start):
    """What is not found is looked for again."""
    worker = start(ffi.AMD)
    worker.fake("fake_set_device_count", ffi.AMD, 0)
    assert worker.call("v2.check_gpu")[0] == NO_DEVICE
    worker.fake("fake_set_device_count", ffi.AMD, 5)
    assert worker.call("v2.check_gpu")[0] == SUCCESS


def test_amds_devices_go_before_nvidias(start):
    worker = start(ffi.AMD, "both")
    assert worker.call("v2.attn_fwd", worker.stream(), **SCALED)[0] == SUCCESS
    assert "hipModuleLaunchKernel" in worker.events().calls
    other = start(ffi.NVIDIA, "both")
    other.fake("fake_set_device_count", ffi.AMD, 0)
    assert other.call("v2.attn_fwd", other.stream(), **SCALED)[0] == SUCCESS
    assert "cuLaunchKernel" in other.events().calls


def test_packs_that_are_not_there(start, release, tmp_path):
    """By the library's own place; then where KILN_PACK_PATH says."""
    folder = shutil.copytree(release.folder, tmp_path / "release", symlinks=True)
    images = folder / "lib/kiln.images"
    images.rename(tmp_path / "images")
    shutil.rmtree(folder / "lib/aotriton.images")
    worker = start(ffi.AMD, folder=folder)
    error, sentence = worker.call("v2.check_gpu", worker.stream())
    assert error == FILE_NOT_FOUND and "amd-gfx942.pack" in sentence
    worker = start(ffi.AMD, folder=folder, KILN_PACK_PATH=str(tmp_path / "images"))
    assert worker.call("v2.attn_fwd", worker.stream(), **SCALED)[0] == SUCCESS
    images.mkdir()
    (images / "amd-gfx942.pack").write_bytes((tmp_path / "images/amd-gfx942.pack").read_bytes()[:1000])
    worker = start(ffi.AMD, folder=folder)
    error, sentence = worker.call("v2.attn_fwd", worker.stream(), **SCALED)
    assert error == INVALID_IMAGE and "amd-gfx942.pack" in sentence


# ---- lazy tensors ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lazy(release, tmp_path_factory):
    """A library with the two functions of a LazyTensor, and a count of their calls."""
    library = tmp_path_factory.mktemp("lazy") / "liblazy.so"
    run([*compile_for(release), "-fPIC", "-shared", ROOT / "tests/aotriton/lazy.cc", "-o", library])
    return library


LAZY = """
import ctypes as c, json, sys
sys.path[:0] = {paths!r}
from aotriton_interface import Interface, T2, view
lazy, driver = c.CDLL({lazy!r}), c.CDLL({driver!r})

class Cookie(c.Structure):
    _fields_ = [("view", T2), ("acquired", c.c_int), ("disposed", c.c_int)]

cookies = (Cookie * 2).in_dll(lazy, "lazy_cookies")
for name in ("lazy_acquire", "lazy_dispose"):
    getattr(lazy, name).restype = c.c_void_p
driver.fake_stream.restype = c.c_void_p
one = lambda i: (c.addressof(cookies[i]), lazy.lazy_acquire(), lazy.lazy_dispose())
interface, stream = Interface({library!r}), driver.fake_stream(2, 0, 0)
results = []
for delta, fields in {calls!r}:
    for cookie in cookies:
        cookie.view, cookie.acquired, cookie.disposed = view(2, None), 0, 0
    cookies[0].view = view(2, delta)
    before = driver.fake_count(b"hipMallocAsync")
    error = interface.call("v3.attn_bwd", stream, D=one(0), DQ_ACC=one(1), **fields)
    results.append([error, *((x.acquired, x.disposed) for x in cookies), driver.fake_count(b"hipMallocAsync") - before])
print(json.dumps(results))
"""


def test_lazy_tensors(release, lazy):
    """Neither is acquired; both are disposed of once, whatever comes out."""
    driver = release.folder / "driver/amd/libamdhip64.so.6"
    good = at(30, FP32, (8, 100))
    empty = BACK | {name: (*BACK[name][:2], (2, 4, 0, BACK[name][2][3])) for name in ("q", "out", "dout", "dq")}
    calls = [
        (good, BACK),
        (at(30, FP32, (8, 1 << 20)), BACK),
        (None, BACK),
        (good, empty | {"lse": at(5, FP32, (8, 0))}),
        (good, BACK | {"version": 2}),
        (good, BACK | {"backend": 1}),
        (good, BACK | {"dk": at(22, BF16, (2, 2, 119, 64))}),
        (good, BACK | {"causal_type": WINDOWED, "left": 0, "right": -1}),
    ]
    script = LAZY.format(
        paths=[str(ROOT / "tests/aotriton"), str(ROOT / "tests/runtime")], lazy=str(lazy), driver=str(driver),
        library=str(library_of(release.lib, "0.11")), calls=calls,
    )  # fmt: skip
    environment = {**os.environ, "LD_LIBRARY_PATH": str(driver.parent)}
    assert json.loads(run([sys.executable, "-c", textwrap.dedent(script)], env=environment)) == [
        [SUCCESS, [0, 1], [0, 1], 1],
        [SUCCESS, [0, 1], [0, 1], 1],
        [SUCCESS, [0, 1], [0, 1], 1],
        [SUCCESS, [0, 1], [0, 1], 1],
        [INVALID_SYMBOL, [0, 0], [0, 0], 0],
        [NOT_SUPPORTED, [0, 1], [0, 1], 0],
        [INVALID_VALUE, [0, 1], [0, 1], 0],
        [NOT_SUPPORTED, [0, 1], [0, 1], 0],
    ]


# ---- processes and threads -------------------------------------------------------------------------------------------

FORK = """
import ctypes as c, os, sys
sys.path[:0] = {paths!r}
from aotriton_interface import Interface
driver, interface = c.CDLL({driver!r}), Interface({library!r})
driver.fake_stream.restype = c.c_void_p
stream = driver.fake_stream(2, 0, 0)
call = lambda: interface.call("v2.attn_fwd", stream, **{call!r})
assert interface.ask("v2.check_gpu", stream) == 0 and call() == 0
for generation in range(3):
    if child := os.fork():
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) or (call() != 0 and 7))
    import threading
    errors = []
    threads = [threading.Thread(target=lambda: errors.append(call())) for _ in range(4)]
    [t.start() for t in threads], [t.join() for t in threads]
    if errors != [0] * 4:
        sys.exit(5)
"""


def test_a_forked_child_opens_its_own(release):
    driver = release.folder / "driver/amd/libamdhip64.so.6"
    script = FORK.format(
        paths=[str(ROOT / "tests/aotriton")], driver=str(driver), library=str(library_of(release.lib, "0.11")),
        call=SCALED,
    )  # fmt: skip
    run([sys.executable, "-W", "ignore", "-c", script], env={**os.environ, "LD_LIBRARY_PATH": str(driver.parent)})


THREADS = """
import ctypes as c, sys, threading
sys.path[:0] = {paths!r}
from aotriton_interface import Interface
driver, interface = c.CDLL({driver!r}), Interface({library!r})
driver.fake_stream.restype = c.c_void_p
stream = driver.fake_stream(2, 0, 0)
barrier, errors = threading.Barrier(8), []

def work():
    barrier.wait()
    for _ in range(50):
        errors.append(interface.call("v2.attn_fwd", stream, **{forward!r}))
        errors.append(interface.call("v2.attn_bwd_fused", stream, **{backward!r}))

threads = [threading.Thread(target=work) for _ in range(8)]
[t.start() for t in threads], [t.join() for t in threads]
assert errors == [0] * 800, errors
assert driver.fake_count(b"hipInit") <= 8 and driver.fake_allocated() == 0
assert driver.fake_count(b"hipModuleLoadData") == 5, "forward, and four of the backward"
"""


def test_the_first_call_of_many_threads(release):
    driver = release.folder / "driver/amd/libamdhip64.so.6"
    script = THREADS.format(
        paths=[str(ROOT / "tests/aotriton")], driver=str(driver), library=str(library_of(release.lib, "0.11")),
        forward=SCALED, backward=BACK,
    )  # fmt: skip
    run([sys.executable, "-c", script], env={**os.environ, "LD_LIBRARY_PATH": str(driver.parent)})


THROWING = """
#include <aotriton/flash.h>
#include <dlfcn.h>
#include <cstdio>
struct Failed {};
static void dispose(void*) { throw Failed(); }
int main(int, char** argv) {
  void* driver = dlopen(argv[1], RTLD_NOW);
  auto stream = reinterpret_cast<void* (*)(int, int, int)>(dlsym(driver, "fake_stream"));
  auto taken = reinterpret_cast<int (*)()>(dlsym(driver, "fake_allocated"));
  using View = aotriton::TensorView<4>;
  View q(0x100000, {1, 2, 64, 64}, {8192, 4096, 64, 1}, aotriton::kFloat16);
  aotriton::v3::flash::attn_bwd_params params;
  params.Q = params.K = params.V = params.Out = params.DO = q;
  params.DQ = View(0x200000, q.sizes(), q.strides(), q.dtype());
  params.DK = View(0x300000, q.sizes(), q.strides(), q.dtype());
  params.DV = View(0x400000, q.sizes(), q.strides(), q.dtype());
  params.L = aotriton::TensorView<2>(0x500000, {2, 64}, {64, 1}, aotriton::kFloat32);
  params.D = {&params, nullptr, dispose};
  try {
    (void)aotriton::v3::flash::attn_bwd(params, params.kVersion, static_cast<hipStream_t>(stream(2, 0, 0)));
  } catch (const Failed&) {
    params.D = {};
    bool failed = aotriton::v3::flash::attn_bwd(params, params.kVersion, static_cast<hipStream_t>(stream(2, 0, 0)));
    return failed || taken() != 0;
  }
  return 9;
}
"""


def test_what_a_callers_own_function_throws_passes_through(release, tmp_path):
    (tmp_path / "throwing.cc").write_text(THROWING)
    program, driver = tmp_path / "throwing", release.folder / "driver/amd/libamdhip64.so.6"
    link = [library_of(release.lib, "0.11"), f"-Wl,-rpath,{release.lib}", "-ldl"]
    run([*compile_for(release), tmp_path / "throwing.cc", *link, "-o", program])
    run([program, driver], env={**os.environ, "LD_LIBRARY_PATH": str(driver.parent)})


def test_it_is_never_unloaded(release):
    """Its runtime would be lost with it."""
    driver = release.folder / "driver/amd/libamdhip64.so.6"
    script = f"""
import ctypes, _ctypes, sys
sys.path[:0] = [{str(ROOT / "tests/aotriton")!r}, {str(ROOT / "tests/runtime")!r}]
from pathlib import Path
import ffi
from aotriton_interface import Interface
interface = Interface({str(library_of(release.lib, "0.11"))!r})
assert interface.ask("v2.check_gpu", None) == 0
_ctypes.dlclose(interface.c._handle)
assert ffi.mapped(Path(interface.c._name).name)
"""
    run([sys.executable, "-c", script], env={**os.environ, "LD_LIBRARY_PATH": str(driver.parent)})


def test_masks_of_bytes_are_taken(worker):
    assert (
        worker.call("v2.debug_simulate_encoded_softmax", worker.stream(), r=at(44, UINT8, (1, 1, 8, 8)))[0] == SUCCESS
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_the_constants_of_the_headers(release, tmp_path, version):
    """aotriton_interface.py's numbers are those of the headers."""
    names = {
        "hipErrorInvalidValue": INVALID_VALUE, "hipErrorOutOfMemory": OUT_OF_MEMORY, "hipErrorNoDevice": NO_DEVICE,
        "hipErrorInvalidSymbol": INVALID_SYMBOL, "hipErrorInvalidImage": INVALID_IMAGE,
        "hipErrorNoBinaryForGpu": NO_BINARY, "hipErrorFileNotFound": FILE_NOT_FOUND, "hipErrorUnknown": UNKNOWN_ERROR,
        "hipErrorInvalidHandle": INVALID_HANDLE, "hipErrorNotSupported": NOT_SUPPORTED,
        "aotriton::v3::flash::CausalType::WindowedAttention": WINDOWED,
        "aotriton::v3::flash::WindowValue::TopLeftAligned": TOP_LEFT,
        "aotriton::v3::flash::WindowValue::BottomRightAligned": BOTTOM_RIGHT,
        "aotriton::kFloat32": FP32, "aotriton::kBFloat16": BF16, "aotriton::kInt32": INT32, "aotriton::kInt64": INT64,
        "sizeof(aotriton::v3::flash::attn_fwd_params)": ctypes.sizeof(Structures(version).fwd),
        "sizeof(aotriton::v3::flash::attn_bwd_params)": ctypes.sizeof(Structures(version).bwd),
    }  # fmt: skip
    kinds = {"CompactVarlen": COMPACT, "PaddedVarlen": PADDED, "StridedVarlen": STRIDED}
    there = {"0.11": 2, "0.14": 0}.get(version, 3)
    names |= {f"aotriton::v3::flash::VarlenType::{name}": value for name, value in list(kinds.items())[:there]}
    structures = Structures(version)
    for structure, kind in {"attn_fwd_params": structures.fwd, "attn_bwd_params": structures.bwd}.items():
        for field, _ in kind._fields_:
            if field != "varlen_type" or version != "0.14":
                names[f"offsetof(aotriton::v3::flash::{structure}, {field})"] = getattr(kind, field).offset
    checks = "\n".join(f"static_assert(static_cast<long>({name}) == {value});" for name, value in names.items())
    (tmp_path / "numbers.cc").write_text(f"#include <cstddef>\n#include <aotriton/flash.h>\n{checks}\n")
    run([*compile_for(release, version), "-fsyntax-only", tmp_path / "numbers.cc"])
