"""Callers that do not look at what is returned: the outputs of a refused call become NaN, and its sentence is told on
stderr once."""

from __future__ import annotations

import json
import os
import sys

import ffi
import pytest
from aotriton_calls import DENSE, SEED, STEP, at, extents, filled, gradients, outputs
from aotriton_interface import (
    BACKWARDS,
    BF16,
    FORWARDS,
    FP16,
    FP32,
    INT32,
    INVALID_HANDLE,
    INVALID_SYMBOL,
    INVALID_VALUE,
    NO_DEVICE,
    NOT_SUPPORTED,
    SUCCESS,
    UINT8,
    UINT64,
    UNKNOWN_ERROR,
    contiguous,
    library_of,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nativebuild import ROOT, run

SCALED = DENSE | {"scale": 0.125}
BACK = SCALED | gradients(DENSE)
MASK = "v2.debug_simulate_encoded_softmax"
WIDE = {"q": at(1, BF16, (2, 4, 100, 520)), "k": at(2, BF16, (2, 2, 120, 520))}  # no kernel takes such heads
SETS = {
    ffi.AMD: ("hipMemsetAsync", "hipMemset2DAsync", "HIP runtime"),
    ffi.NVIDIA: ("cuMemsetD8Async", "cuMemsetD2D8Async", "CUDA driver"),
}
LINES = 64  # different ones that a process says


@pytest.mark.parametrize("entry", [*FORWARDS, *BACKWARDS, MASK])
def test_every_function_fills_its_outputs(worker, entry):
    """All of them and nothing else: seeds and offsets are left alone."""
    db = at(46, BF16, (2, 4, 100, 120))
    if entry == MASK:
        call = {"r": (STEP, BF16, (2, 4, 100, 120), (1 << 20, 0, 120, 1)), "p": 2.0} | SEED
    elif entry in FORWARDS:
        call = SCALED | WIDE | SEED | {"encoded": at(44, BF16, (2, 4, 100, 120)), "p": 0.5}
        call |= {"seed_out": (STEP * 42, UINT64), "offset_out": (STEP * 43, UINT64)}
    else:
        call = BACK | WIDE | {"dq": (STEP * 21, *WIDE["q"][1:]), "b": db, "db": (STEP * 47, *db[1:])}
    error, sentence = worker.call(entry, stream := worker.stream(4, 1), **call)
    record = worker.events()
    assert error in (NOT_SUPPORTED, INVALID_VALUE) and "NaN" not in sentence
    assert not record.launches and {fill.stream for fill in record.fills} == {stream}
    assert len(outputs(entry, call)) == (1 if entry == MASK else 3 if entry in FORWARDS else 4)
    assert filled(record) == extents(outputs(entry, call))
    whose = entry.partition(".")[2].removesuffix("_compact_varlen").removesuffix("_fused").replace("aiter", "attn")
    line = f"kiln: AOTriton's {whose} failed, and its outputs are filled with NaN: {sentence}"
    assert worker.told().count(line) == 1


@st.composite
def views(draw, rank):
    """Any strides, elements that lie in one place too; dimensions of no and of one place."""
    sizes = tuple(draw(st.lists(st.integers(0, 5), min_size=rank, max_size=rank)))
    kind = draw(st.sampled_from(("permuted", "any", "any")))
    if kind == "permuted":
        strides, step = [0] * rank, 1
        for axis in draw(st.permutations(range(rank))):
            strides[axis] = step
            step *= max(sizes[axis], 1) + draw(st.sampled_from((0, 0, 3)))
    else:
        strides = draw(st.lists(st.integers(-40, 40), min_size=rank, max_size=rank))
    return draw(st.sampled_from((FP16, BF16, FP32, UINT8))), sizes, tuple(strides)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(out=views(4), lse=views(2), encoded=views(4))
def test_exactly_the_elements_are_filled(worker, out, lse, encoded):
    call = SCALED | {"out": (STEP * 4, *out), "lse": (STEP * 5, *lse), "encoded": (STEP * 6, *encoded)}
    error, sentence = worker.call("v3.attn_fwd", worker.stream(), backend=1, **call)
    assert error == NOT_SUPPORTED and "NaN" not in sentence
    assert filled(worker.events()) == extents(outputs("v3.attn_fwd", call))


def test_few_calls_of_the_driver_are_needed(worker):
    """What PyTorch has is one piece, rows with gaps are another; a slice of a slice, one for each slice."""
    shapes = {
        1: (2, 4, 100, 64),  # transposed, as PyTorch lays it out
        2: ((2, 4, 100, 64), (4 * 100 * 80, 100 * 80, 80, 1)),
        3: ((3, 4, 100, 64), (100_000, 20_000, 80, 1)),
    }
    for number, shape in shapes.items():
        out = at(4, BF16, shape, True) if number == 1 else (STEP * 4, BF16, *shape)
        worker.call("v3.attn_fwd", worker.stream(), backend=1, **SCALED | {"out": out, "lse": None})
        fills = worker.events().fills
        assert len(fills) == {1: 1, 2: 1, 3: 12}[number]
        assert all(fill.rows == (1 if number == 1 else 800 if number == 2 else 100) for fill in fills)


@pytest.mark.parametrize(
    "sizes, strides",
    [
        ((2, 4, 2**62, 64), (51200, 12800, 64, 1)),
        ((2, 4, 2**63, 64), (51200, 12800, 64, 1)),
        ((2**21, 2**20, 2, 1), (2**24 + 8, 8, 3, 1)),  # addresses, but more pieces than are set one by one
        ((2, 1, 1, 1), (-(2**40), 1, 1, 1)),
    ],
)
def test_what_cannot_lie_anywhere_is_not_filled(worker, sizes, strides):
    """The other outputs are, and the sentence says so."""
    call = SCALED | {"out": (STEP * 4, BF16, sizes, strides)}
    error, sentence = worker.call("v3.attn_fwd", worker.stream(), backend=1, **call)
    assert error == NOT_SUPPORTED and "force_backend_index" in sentence
    assert sentence.endswith("; its outputs are not filled with NaN: one has an invalid dtype, sizes or strides")
    assert filled(worker.events()) == extents([call["lse"]])


def test_a_driver_that_cannot_set_memory(start, worker):
    """The error is the call's own, and the sentence tells of what was not filled."""
    row, rows, who = SETS[worker.vendor]
    worker = start(worker.vendor)
    stream, gaps = worker.stream(), {"out": (STEP * 4, BF16, (2, 4, 100, 56), (51200, 12800, 64, 1))}
    worker.fake("fake_fail", rows, 1, 1, 0)
    error, sentence = worker.call("v3.attn_fwd", stream, backend=1, **SCALED | gaps)
    assert error == NOT_SUPPORTED and "NaN" not in sentence
    record = worker.events()
    assert filled(record) == extents(outputs("v3.attn_fwd", SCALED | gaps)), "row by row"
    assert len(record.fills) == 100 + 7 + 1
    worker.fake("fake_fail", row, 1, 719, 0)
    error, sentence = worker.call("v3.attn_fwd", stream, backend=1, **SCALED)
    assert error == NOT_SUPPORTED
    assert sentence.endswith(f"; its outputs are not filled with NaN: the {who} returned 719")
    record = worker.events()
    assert record.leaks() == [] and filled(record) == extents([SCALED["lse"]])
    assert worker.told()[-1] == f"kiln: AOTriton's attn_fwd failed: {sentence}"
    if worker.vendor == ffi.AMD:
        assert worker.fake("fake_last_error") == 0
    assert worker.call("v2.attn_fwd", stream, **SCALED)[0] == SUCCESS


def test_an_image_that_cannot_be_launched(start, worker):
    """A driver's failure is no other for the caller: what lies in its outputs is not a result."""
    worker = start(worker.vendor)
    launch = {ffi.AMD: "hipModuleLaunchKernel", ffi.NVIDIA: "cuLaunchKernel"}[worker.vendor]
    worker.fake("fake_fail", launch, 2, 719, 0)
    error, sentence = worker.call("v2.attn_bwd_fused", worker.stream(), **BACK)
    assert error and launch in sentence
    assert filled(worker.events()) == extents(outputs("v2.attn_bwd_fused", BACK))


def test_no_driver_and_no_stream(start):
    worker = start(ffi.AMD, "none")
    error, sentence = worker.call("v2.attn_fwd", None, **SCALED)
    assert error == NO_DEVICE and "there is no AMD driver" in sentence
    assert sentence.endswith("; its outputs are not filled with NaN: no driver is loaded")
    worker = start(ffi.NVIDIA)
    other = worker.fake("fake_stream", ffi.AMD, 0, 0)
    error, sentence = worker.call("v2.attn_fwd", other, **SCALED)
    assert error == INVALID_HANDLE and sentence.endswith("the stream's device is unknown")
    assert not worker.events().fills


def test_parameters_that_cannot_be_read_are_not_looked_at(start):
    worker = start(ffi.AMD)
    error, sentence = worker.call("v3.attn_bwd", worker.stream(), version=2, **BACK)
    assert error == INVALID_SYMBOL and not worker.events().fills
    assert sentence.endswith("; its outputs are not filled with NaN: its arguments cannot be read")


def test_a_sentence_is_told_once(start):
    """For each function and sentence; successes say nothing; and at some point a process has said enough."""
    worker = start(ffi.AMD)
    stream = worker.stream()
    for _ in range(3):
        assert worker.call("v2.attn_fwd", stream, **SCALED)[0] == SUCCESS
        assert worker.call("v2.attn_fwd", stream, **SCALED | WIDE)[0] == NOT_SUPPORTED
        assert worker.call("v2.attn_fwd", stream, **SCALED | {"lse": at(5, FP32, (8, 99))})[0] == INVALID_VALUE
        assert worker.call("v2.attn_bwd", stream, **BACK | {"lse": at(5, FP32, (8, 99))})[0] == INVALID_VALUE
    told = worker.told()
    assert len(told) == 3 and [line.partition("'s ")[2].split()[0] for line in told] == ["attn_fwd", "attn_fwd",
                                                                                        "attn_bwd"]  # fmt: skip
    worker.events()
    for number in range(2 * LINES):
        worker.fake("fake_fail", "hipModuleLaunchKernel", 1, 1000 + number, 0)
        error, sentence = worker.call("v2.attn_fwd", stream, **SCALED)
        assert error == UNKNOWN_ERROR and str(1000 + number) in sentence
        assert filled(worker.events()) == extents(outputs("v2.attn_fwd", SCALED))
    told = worker.told()
    assert len(told) == LINES + 1 == len(set(told)) and "from kiln_aotriton_error()" in told[-1]


THREADS = """
import ctypes as c, sys, threading
sys.path[:0] = {paths!r}
from aotriton_interface import Interface
driver, interface = c.CDLL({driver!r}), Interface({library!r})
driver.fake_stream.restype = c.c_void_p
stream, barrier, errors = driver.fake_stream(2, 0, 0), threading.Barrier(8), []

def work():
    barrier.wait()
    for _ in range(50):
        errors.append(interface.call("v2.attn_fwd", stream, **{call!r}))

threads = [threading.Thread(target=work) for _ in range(8)]
[t.start() for t in threads], [t.join() for t in threads]
print(errors == [801] * 400, driver.fake_allocated())
"""


def test_many_threads_tell_one_line(release, tmp_path):
    driver = release.folder / "driver/amd/libamdhip64.so.6"
    record, script = tmp_path / "record.jsonl", tmp_path / "script.py"
    script.write_text(THREADS.format(
        paths=[str(ROOT / "tests/aotriton")], driver=str(driver), library=str(library_of(release.lib, "0.11")),
        call=SCALED | WIDE,
    ))  # fmt: skip
    environment = {**os.environ, "LD_LIBRARY_PATH": str(driver.parent), "FAKE_DRIVER_RECORD": str(record)}
    said = run(["sh", "-c", '"$0" "$1" 2>"$2"', sys.executable, script, tmp_path / "stderr"], env=environment)
    assert said.split() == ["True", "0"]
    assert len((tmp_path / "stderr").read_text().splitlines()) == 1
    sets = [event for event in map(json.loads, record.read_text().splitlines()) if event["call"] == "hipMemsetAsync"]
    assert len(sets) == 2 * 400


def test_integers_are_filled_too(worker):
    """A mask of bytes has no NaN: 255 is neither 0 nor 1."""
    mask = at(44, UINT8, (1, 1, 8, 8))
    assert worker.call(MASK, worker.stream(), r=mask, p=2.0)[0] == INVALID_VALUE
    assert filled(worker.events()) == extents([mask])
    mask = (STEP, INT32, (1, 2, 8, 8), contiguous((1, 2, 8, 8)))
    assert worker.call(MASK, worker.stream(), r=mask)[0] == NOT_SUPPORTED
    assert filled(worker.events()) == extents([mask])
