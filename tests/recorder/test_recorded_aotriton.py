"""What AOTriton's functions make a driver do: the launches of the flash family's entries that each stands for, byte by
byte against the recipe and the release's images, in random calls and in a C++ program; and what a driver's failures
become."""

from __future__ import annotations

import itertools
import os
import random

import aotriton_model as model
import entries
import fake_release
import nativebuild
import oracle
import pytest
import recorded
from aotriton_calls import extents, filled, outputs
from aotriton_interface import BACKWARDS, FORWARDS, INVALID_VALUE, NOT_SUPPORTED, SUCCESS, VERSIONS
from aotriton_worker import Worker
from drawn_facade_calls import DROPOUT_MASK, drawn_call
from oracle import Oracle, Set, observed
from running import VENDORS
from test_aotriton_program import CALLS as PROGRAM
from test_aotriton_program import FLAGS, calls_of

from builds import ROOT
from kiln_recipe.call.evaluate import Refusal

pytestmark = pytest.mark.slow(30)

CALLS = int(os.environ.get("KILN_TEST_CALLS", "200")) // 2  # of each function on each target
ERRORS = {"ARGUMENT": INVALID_VALUE, "UNSUPPORTED": NOT_SUPPORTED, "RANGE": INVALID_VALUE}
TAKES, GIVES_BACK = ("hipMallocAsync", "cuMemAllocAsync"), ("hipFreeAsync", "cuMemFreeAsync")


@pytest.fixture(scope="module")
def worker(placed, judge):
    """A process with the driver of the judge's target."""
    worker = Worker(placed, VENDORS[judge.target])
    yield worker
    worker.close()


def meant(entry: str, call: dict) -> list[tuple[str, dict]]:
    """The entries of the flash family that a function stands for, with their fields.

    Raises:
        model.NoWindow: there is none.
    """
    if entry == DROPOUT_MASK:
        fields = {"mask": list(call["r"]), "dropout": call.get("p", 0.0), "offset_value": call.get("offset2", 0)}
        if call.get("p", 0.0) > 0:
            numbers = {"seed": call.get("seed"), "offset": call.get("offset1")}
            fields |= {name: [given[0], 13, [], []] for name, given in numbers.items() if given}
        return [("dropout_mask", fields)]
    return model.forward(**call) if entry in FORWARDS else [("attn_bwd", model.backward(**call))]


def expected(judge: Oracle, calls: list[tuple[str, dict]], workspace: int) -> tuple[list, int]:
    """(steps, bytes of workspace) of calls one after another.

    Raises:
        Refusal: one of them must fail.
    """
    steps, needed = [], 0
    for name, described in calls:
        operation = oracle.operation(f"flash.{name}")
        given = entries.arguments(operation, model.fields_of(described))
        wanted = judge.expected(f"flash.{name}", given, workspace)
        steps += wanted.steps
        needed += wanted.workspace
    return steps, needed


def check_memory(record: recorded.Record, stream: int, needed: int) -> int:
    """Where the workspace lies: memory taken and given back on the stream, around all launches."""
    calls = record.calls
    taken = [n for n, call in enumerate(calls) if call in TAKES]
    if not taken:
        assert not needed
        return 256
    back = [n for n, call in enumerate(calls) if call in GIVES_BACK]
    (took,), (gave,) = ([record.events[n] for n in numbers] for numbers in (taken, back))
    assert (took["bytes"], took["stream"], gave["stream"]) == (needed, stream, stream)
    assert gave["address"] == took["address"]
    assert taken[0] < min(n for n, call in enumerate(calls) if "Launch" in call)
    assert back[0] > max(n for n, call in enumerate(calls) if "Launch" in call)
    return took["address"]


@pytest.mark.parametrize("entry", [*FORWARDS, *BACKWARDS, DROPOUT_MASK])
def test_random_calls_of_aotriton(worker, judge, entry):
    ran, errors = 0, set()
    for number in range(CALLS):
        rng = random.Random(f"{entry} {judge.target} {number}")
        call, device = drawn_call(entry, rng), rng.choice((0, 4))
        stream = worker.stream(device, rng.randrange(3))
        try:
            error = check(worker, judge, entry, call, stream, device)
        except AssertionError as failure:
            raise AssertionError(f"call {number} of {entry}: {call}") from failure
        ran += error == SUCCESS
        errors.add(error)
    assert ran > CALLS / 2, "most calls are to run"
    assert errors <= {SUCCESS, NOT_SUPPORTED}


def check(worker: Worker, judge: Oracle, entry: str, call: dict, stream: int, device: int) -> int:
    """One call; its hipError_t, which is as it must be, and so is all that the driver was told."""
    error, sentence = worker.call(entry, stream, **call)
    record = worker.events()
    assert [leak for leak in record.leaks() if "module" not in leak] == []
    is_kept = error == SUCCESS and entry in FORWARDS and model.is_short(**call)  # log-sum-exps that have no room
    assert filled(record) == extents(outputs(entry, call) if error else [call["lse"]] if is_kept else [])
    try:
        calls = meant(entry, call)
        if entry not in FORWARDS and entry != DROPOUT_MASK and model.is_short(**call):
            return check_again(judge, calls[0][1], (error, sentence), record, stream, device)
        _, needed = expected(judge, calls, 256)
        steps, _ = expected(judge, calls, check_memory(record, stream, needed))
    except model.NoWindow:
        assert (error, record.steps) == (NOT_SUPPORTED, []) and "window_left and window_right" in sentence
    except Refusal as refusal:
        assert (error, sentence) == (ERRORS[refusal.status], str(refusal))
        assert record.steps == []
    else:
        assert error == SUCCESS, sentence
        assert list(observed(record, 0, stream, device)) == steps
    return error


def check_again(
    judge: Oracle, fields: dict, told: tuple[int, str], record: recorded.Record, stream: int, device: int
) -> int:
    """A backward without log-sum-exps: it works them out in memory of its own, after the workspace is taken.

    Raises:
        Refusal: it must fail.
    """
    _, workspace = expected(judge, [("attn_bwd", model.again(fields, 256)[1])], 256)
    taken = [event for event in record.events if event["call"] in TAKES]
    first, second, needed = model.again(fields, taken[-1]["address"])
    assert [event["bytes"] for event in taken] == [workspace, needed]
    steps = expected(judge, [("attn_fwd", first)], 256)[0]
    steps += expected(judge, [("attn_bwd", second)], taken[0]["address"])[0]
    assert told[0] == SUCCESS, told[1]
    assert list(observed(record, 0, stream, device)) == steps
    return SUCCESS


def test_a_program_on_the_release(placed, judge, tmp_path):
    """tests/aotriton/program.cc, which uses each function as PyTorch does, against real images."""
    program, record = tmp_path / "program", tmp_path / "record.jsonl"
    hip = fake_release.hip_headers()
    nativebuild.run(["c++", "-std=c++17", "-O1", *FLAGS, "-I", placed / "include", "-isystem", hip,
         ROOT / "tests/aotriton/program.cc", placed / "lib/libaotriton_v2.so", f"-Wl,-rpath,{placed / 'lib'}", "-ldl",
         "-o", program])  # fmt: skip
    vendor = VENDORS[judge.target]
    folder = placed / "driver" / {1: "nvidia", 2: "amd"}[vendor]
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder), "FAKE_DRIVER_RECORD": str(record)}
    nativebuild.run([program, next(folder.iterdir()), str(vendor)], env=environment)
    everything = recorded.read(record)
    names = [*calls_of(VERSIONS[-1]), "end"]
    for name, following in itertools.pairwise(names):
        entry, call = PROGRAM[name]
        part = everything.between(name, following)
        if entry == "v2.check_gpu":
            assert part.steps == []
            continue
        (stream,) = {step.stream for step in part.steps}
        calls = meant(entry, call)
        _, needed = expected(judge, calls, 256)
        steps, _ = expected(judge, calls, check_memory(part, stream, needed))
        assert list(observed(part, 0, stream, 0)) == steps, name
        assert any(not isinstance(step, Set) for step in steps)
