"""Each call of a driver that an entry leads to fails once: the entry says so, nothing leaks, the caller's context is
restored, and the same call succeeds afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import entries
import ffi
import pytest
from ffi import AMD
from oracle import Run, observed, operation
from running import DEVICES, WORKSPACE, Runner, opened
from whole_calls import whole_call

CODE = 719
# What Kiln does without: it tells more or less by it, but the call goes on.
DISPENSABLE = {"cuDriverGetVersion", "cuGetErrorName", "hipGetLastError"}
# What happens when the caller's context is restored can only be logged.
RESTORING = {"cuCtxPopCurrent_v2", "hipSetDevice"}
QUEUES = {"cuStreamGetCtx", "cuCtxPushCurrent_v2", "hipStreamGetDevice"}
# Made once in a thread, and remembered from then on; runtime/test_descriptors.py has it fail.
REMEMBERED = {"cuTensorMapEncodeTiled"}


@dataclass(frozen=True)
class Call:
    """The `nth` call of an entry point, that succeeds. `restores`: it makes the caller's context current again."""

    entry: str
    nth: int
    restores: bool


def calls_in(events: list[dict], device: int) -> Iterator[Call]:
    counts: dict[str, int] = {}
    for event in events:
        entry = event["call"]
        counts[entry] = counts.get(entry, 0) + 1
        if event["result"] == 0 and entry not in REMEMBERED:
            yield Call(entry, counts[entry], entry in RESTORING and event["device"] != device)


def call_of(name: str) -> dict[str, object]:
    """One that launches all that it can."""
    room = {} if name == "dropout_mask" else {"workspace": WORKSPACE, "workspace_bytes": 1 << 40}
    return whole_call(name, {"extras": "any"}) | room


def run(runner: Runner, name: str, fields: dict[str, object]) -> int:
    """The status of a call on the last device's stream, while the first device is current."""
    queue = runner.queue(runner.fake.stream(runner.vendor, DEVICES[-1]))
    return runner.entry(name, queue, fields)


def is_refused(runner: Runner, name: str, fields: dict[str, object]) -> bool:
    """Whether the target has no kernels for an entry; then the call says so."""
    if name not in entries.HOPPER_ALONE or runner.vendor != AMD:
        return False
    assert run(runner, name, fields) == ffi.UNSUPPORTED and "has no image" in runner.library.error()
    return True


def by_version(steps: tuple, call: Call) -> tuple:
    """The steps of a call where another of the driver's failed: of one whose version is not known nothing overlaps."""
    if call.entry != "cuDriverGetVersion":
        return steps
    return tuple(replace(step, overlaps=False) if isinstance(step, Run) else step for step in steps)


def public(entry: str) -> str:
    """An entry point as sentences call it."""
    return entry.removesuffix("_v2").removesuffix("R0600")


@pytest.mark.parametrize("name", entries.STRUCTURES)
def test_each_call_of_the_driver_fails_once(libraries, fake, judge, name):
    fields = call_of(name)
    with opened(libraries, fake, judge) as runner:
        current = runner.make_current(DEVICES[0])
        if is_refused(runner, name, fields):
            return
        assert run(runner, name, fields) == ffi.OK
        calls = list(calls_in(fake.record().events, DEVICES[-1]))
        wanted = runner.expected(f"flash.{name}", entries.arguments(operation(f"flash.{name}"), fields))
        assert observed(fake.record(), 0, fake.stream(runner.vendor, DEVICES[-1]), DEVICES[-1]) == wanted.steps
    assert len({call.entry for call in calls}) > 12
    for call in calls:
        fake.reset()
        with opened(libraries, fake, judge) as runner:
            assert runner.make_current(DEVICES[0]) == current
            fake.fail(call.entry, CODE, call.nth)
            if call.entry == "cuStreamGetCtx":  # its newer form is asked then
                fake.fail(f"{call.entry}_v2", CODE)
            check_failure(runner, call, run(runner, name, fields), wanted.steps)
            assert ((fake.current(runner.vendor) or 0) == current) != call.restores and fake.last_error == 0
            runner.left = ["a pushed context"] if call.restores and runner.vendor != AMD else []
            runner.make_current(DEVICES[0])
            before = len(fake.record().steps)
            assert run(runner, name, fields) == ffi.OK, "the same call, afterwards"
            stream = fake.stream(runner.vendor, DEVICES[-1])
            assert observed(fake.record(), before, stream, DEVICES[-1]) == by_version(wanted.steps, call)


def check_failure(runner: Runner, call: Call, status: int, steps: tuple) -> None:
    """What an entry says when one call of the driver failed, and how far it went."""
    sentence = runner.library.error()
    done = len(runner.fake.record().steps)
    # Of devices that are not the stream's own, which have numbers below its own, it does not matter what they are.
    if call.entry in DISPENSABLE or (call.entry == "cuDeviceGet" and call.nth <= DEVICES[-1]):
        assert status == ffi.OK, call
    elif call.restores:
        assert status == ffi.OK and done == len(steps), call
        assert any(m.startswith(public(call.entry)) and f"({CODE})" in m for _, m in runner.kiln.messages), call
    else:
        assert status == (ffi.QUEUE if call.entry in QUEUES else ffi.DRIVER), call
        assert f"({CODE})" in sentence and sentence.count("the CUDA driver" if runner.vendor != AMD else "the HIP") == 1
        assert call.entry in QUEUES or sentence.startswith(public(call.entry)), (call, sentence)
        assert done < len(steps), call


@pytest.mark.parametrize("name", entries.STRUCTURES)
def test_an_image_that_cannot_be_unloaded_keeps_no_other(libraries, fake, judge, name):
    fields = call_of(name)
    runner = Runner(*libraries, fake, judge)
    runner.make_current(DEVICES[0])
    if is_refused(runner, name, fields):
        assert runner.kiln.close() == ffi.OK
        return
    assert run(runner, name, fields) == ffi.OK
    loaded = fake.loaded
    entry = "hipModuleUnload" if runner.vendor == AMD else "cuLibraryUnload"
    fake.fail(entry, CODE)
    assert runner.kiln.close() == ffi.OK
    assert fake.count(entry) == loaded and len(fake.record().leaks()) == 1 and fake.last_error == 0
    assert any(m.startswith(entry) and f"({CODE})" in m for _, m in runner.kiln.messages)
