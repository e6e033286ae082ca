"""Each call of a driver that one of AOTriton's functions leads to fails once, at the function's first use in a process:
a hipError_t and a sentence, no memory kept, the caller's device restored; then the same call succeeds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from aotriton_calls import DENSE, SEED, SEED_OUT, at, gradients
from aotriton_interface import BF16, INVALID_HANDLE, NO_BINARY, NO_DEVICE, SUCCESS, UNKNOWN_ERROR
from forked_calls import DEVICE
from running import VENDORS
from test_recorded_failures import CODE, Call, calls_in, public

CALLS = {
    "v2.attn_fwd": DENSE | SEED | SEED_OUT | {"scale": 0.1, "p": 0.25, "encoded": at(44, BF16, (2, 4, 100, 120))},
    "v2.attn_bwd_fused": DENSE | gradients(DENSE) | SEED | {"scale": 0.1, "p": 0.25},
    "v3.attn_fwd": DENSE | {"scale": 0.1},
    "v2.debug_simulate_encoded_softmax": {"r": at(44, BF16, (2, 4, 100, 120)), "p": 0.5} | SEED,
}  # fmt: skip
ALLOCATIONS = {"hipMallocAsync", "hipFreeAsync", "cuMemAllocAsync", "cuMemFreeAsync"}
WORK = ("Launch", "Load", "GetFunction", "GetKernel", "Async")  # without these a call cannot succeed
# Of a device that is not asked, or a driver that is not there: it has none.
OTHERS = {UNKNOWN_ERROR, INVALID_HANDLE, NO_DEVICE, NO_BINARY}


class Forks:
    """forked_calls.py, running."""

    def __init__(self, lib: Path, driver: Path, vendor: int) -> None:
        environment = os.environ | {"LD_LIBRARY_PATH": str(driver.parent)}
        script = Path(__file__).with_name("forked_calls.py")
        self.process = subprocess.Popen(
            [sys.executable, script, lib, driver, str(vendor)], env=environment, text=True, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )  # fmt: skip

    def ask(self, entry: str, fails: dict | None = None) -> tuple[dict, dict]:
        self.process.stdin.write(json.dumps([entry, CALLS[entry], fails]) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        assert isinstance(answer, list), answer
        return tuple(answer)


@pytest.fixture(scope="module")
def forks(placed, judge) -> Iterator[Forks]:
    vendor = VENDORS[judge.target]
    (driver,) = (placed / "driver" / {1: "nvidia", 2: "amd"}[vendor]).glob("*.so.*")
    forks = Forks(placed / "lib", driver, vendor)
    yield forks
    forks.process.stdin.close()
    assert forks.process.wait(30) == 0


def work_of(result: dict) -> list[tuple]:
    """What a call launched, without where its memory lies."""
    return [
        (event["call"], event["symbol"], event["grid"], event["block"], event["shared"], event["stream"])
        for event in result["events"]
        if "Launch" in event["call"] and event["result"] == 0
    ]


@pytest.mark.parametrize("entry", CALLS)
def test_each_call_of_the_driver_fails_once_at_the_first_use(forks, entry):
    whole, again = forks.ask(entry)
    assert (whole["error"], again["error"]) == (SUCCESS, SUCCESS)
    assert work_of(whole) == work_of(again) and work_of(whole)
    calls = list(calls_in(whole["events"], DEVICE))
    assert len(calls) > 40
    for call in calls:
        symbols = [call.entry, *(["cuStreamGetCtx_v2"] if call.entry == "cuStreamGetCtx" else [])]
        failed, then = forks.ask(entry, {"symbols": symbols, "nth": call.nth, "code": CODE})
        check(call, failed, work_of(whole))
        assert (then["error"], work_of(then)) == (SUCCESS, work_of(whole)), call
        assert then["is_restored"] and then["last_error"] == 0


def check(call: Call, result: dict, whole: list[tuple]) -> None:
    """What a call made of the failure."""
    done, sentence = work_of(result), result["sentence"]
    assert result["last_error"] == 0, call
    assert result["allocated"] == (1 if "Free" in call.entry else 0), call
    assert result["is_restored"] or call.restores, call
    if result["error"] == SUCCESS:
        assert done == whole and not any(word in call.entry for word in WORK), call
        return
    assert f"({CODE})" in sentence or f"returned {CODE}" in sentence, (call, sentence)
    if call.entry in ALLOCATIONS:
        assert result["error"] == CODE and sentence.startswith(call.entry), (call, sentence)
        assert done == (whole if "Free" in call.entry else [])
    else:
        assert result["error"] in OTHERS and len(done) < len(whole), call
        assert public(call.entry) in sentence or "the queue's stream" in sentence, (call, sentence)
    assert not call.restores, call
