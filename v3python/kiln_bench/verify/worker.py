"""The process that makes the calls: `python -m kiln_bench.verify.worker`. A line of JSON on standard input is a task,
a line on standard output its answer; it ends when its input does.

It answers first with what it runs on, or with why it cannot: {"refused": sentence, "code": exit code}.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kiln_bench.release import headers
from kiln_bench.release.library import VENDORS, Libraries, Refused
from kiln_bench.verify import calls, decoding, numbers
from kiln_bench.verify.arena import Arena, bytes_of
from kiln_bench.verify.judge import DRAWS, Verdict
from kiln_bench.verify.memory import DeviceFailed, Memory
from kiln_bench.verify.session import LIST
from kiln_recipe.errors import KilnError
from kiln_recipe.selection import values_of

_OF_ANOTHER = ("not a variant of this call's functional", "is specialised", "does not take this call")
_MASKS = ((2, 3, 65, 130), (1, 1, 300, 7))
_BATCHES = (1, 255, 256, 1000)
Problem = calls.Problem | decoding.DecodeProblem
AnyCall = calls.Call | decoding.DecodeCall


def variants_of(libraries: Libraries, target: str | None) -> list[dict[str, Any]]:
    """Of all operations, those that have an image for a target, None for any; a key once in a functional."""
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in libraries.variants(None, target):
        if row["unavailable"] is None:
            found.setdefault((row["operation"], row["kernel"], row["functional"], row["key"]), row)
    return [*found.values()]


class Worker:
    """A release's libraries and memory of a device.

    Args:
        libraries: with attention registered.
        device: a row of Libraries.devices(), of the vendor whose images are run.
    """

    def __init__(self, libraries: Libraries, device: Mapping[str, Any], memory: Memory) -> None:
        self._libraries, self._device, self._arena = libraries, device, Arena(memory)
        self._hits: dict[tuple[str, ...], list[AnyCall]] = {}  # what an image of the same place took

    def variants(self) -> list[dict[str, Any]]:
        return variants_of(self._libraries, self._device["target"])

    def check(self, variant: Mapping[str, Any]) -> dict[str, Any]:
        """What came of a forced image: {"call", "shares", "draws", "wrong"}, or "unreached" with a sentence."""
        operation = variant["operation"].partition(".")[2]
        if operation == "dropout_mask":
            return self._check_masks(variant)
        if operation == "seq_lengths":
            return self._check_lengths(variant)
        if operation not in ("attn_fwd", "attn_bwd", "attn_decode"):
            return {"unreached": f"no calls of {operation} are known here"}
        refusals, reason = 0, ""
        for call in self._candidates(operation, variant):
            try:
                verdict = self._judged(operation, call, variant["key"])
            except Refused as error:
                if "has no image" in str(error):  # of another kernel of the call
                    reason = str(error)
                elif not any(words in str(error) for words in _OF_ANOTHER):
                    return _failed(error, str(call), self._libraries.is_of_driver(error))
                refusals += 1
                continue
            for number in range(1, DRAWS):
                if verdict.faults or not verdict.wrong():
                    break
                verdict.merge(self._judged(operation, call.redrawn(number), variant["key"]))
            hits = self._hits.setdefault(_place(variant), [])
            if call not in hits:
                hits.append(call)
            return {"call": str(call), "shares": dict(verdict.shares), "draws": verdict.draws, "wrong": verdict.wrong()}
        return {"unreached": reason or f"none of {refusals} calls can run it"}

    def _candidates(self, operation: str, variant: Mapping[str, Any]) -> Iterator[AnyCall]:
        yield from self._hits.get(_place(variant), ())
        if operation == "attn_decode":
            yield from decoding.candidates(variant["functional"])
        else:
            yield from calls.candidates(operation, variant["functional"], variant["kernel"])

    def _judged(self, operation: str, call: AnyCall, key: str) -> Verdict:
        """Makes a call with a forced image; of backward the forward call before it, with the release's own choice."""
        problem = _problem(call, self._arena)
        if operation != "attn_bwd":
            clean = self._launch(operation, problem, key)
            return problem.judge(("out", "lse"), clean)
        self._enter("attn_bwd", problem, key)  # refused before anything is launched
        clean = self._launch("attn_fwd", problem, None)
        clean &= self._launch("attn_bwd", problem, key)
        return problem.judge(("dq", "dk", "dv", "dbias", "dsinks"), clean)

    def _launch(self, entry: str, problem: Problem, key: str | None) -> bool:
        entered = self._enter(entry, problem, key)

        def launch(workspace: int | None) -> None:
            entered.launch(None, workspace)
            self._libraries.wait(self._device["ordinal"])

        return self._arena.run(launch, entered.workspace_bytes)

    def _enter(self, entry: str, problem: Problem, key: str | None) -> Any:
        values = problem.values()
        tensors = {name: self._view(tensor) for name, tensor in problem.tensors.items()}
        if entry == "attn_fwd":
            tensors = {name: view for name, view in tensors.items() if not name.startswith("d")}
        elif isinstance(problem, calls.Problem) and entry == "attn_bwd":
            values["deterministic"] = int(problem.call.deterministic)
        return self._libraries.enter(entry, values | tensors, [key] if key else (), self._device["ordinal"])

    def _view(self, tensor: Any) -> Any:
        return self._libraries.view(self._arena.address(tensor), tensor.dtype, tensor.shape, tensor.strides)

    def _run(self, variant: Mapping[str, Any], arguments: list[Any]) -> bool:
        """An operation that has no typed entry, or none that forces an image."""

        def launch(workspace: int | None) -> None:
            del workspace
            self._libraries.launch(variant["operation"], arguments, variant["key"], self._device["ordinal"])
            self._libraries.wait(self._device["ordinal"])

        return self._arena.run(launch, 0)

    def _check_masks(self, variant: Mapping[str, Any]) -> dict[str, Any]:
        dtype, wrong = values_of(variant["functional"])["mask_dtype"], []
        for shape in _MASKS:
            self._arena.lay_out(bytes_of(shape, dtype))
            mask = self._arena.tensor(shape, dtype, written=True)
            clean = self._run(variant, [self._view(mask), None, None, 1 << 31, calls.SEED, calls.OFFSET])
            kept = numbers.kept(calls.SEED, calls.OFFSET, 0.5, shape)
            if not clean or not np.array_equal(mask.values, np.where(kept, 1, 0 if dtype == "uint8" else -1)):
                wrong.append(f"mask of {shape}: it is another than Philox gives")
        return {"call": f"masks of {_MASKS}", "shares": {}, "draws": 1, "wrong": wrong}

    def _check_lengths(self, variant: Mapping[str, Any]) -> dict[str, Any]:
        wrong = []
        for batch in _BATCHES:
            self._arena.lay_out(4 * bytes_of((batch + 3,), "int32"))
            draw = np.random.default_rng([2029, batch])
            given = [
                self._arena.tensor((batch + more,), "int32").put(draw.integers(0, 100, batch + more)) for more in (1, 3)
            ]
            lengths = self._arena.tensor((batch,), "int32", written=True)
            begins = self._arena.tensor((batch + 1,), "int32", written=True)
            clean = self._run(variant, [*map(self._view, (*given, lengths, begins)), 20, 12345])
            right = np.diff(given[0].values).clip(0, 20), [*given[1].values[:batch], 12345]
            if not clean or not all(map(np.array_equal, (lengths.values, begins.values), right)):
                wrong.append(f"lengths of {batch} sequences are wrong")
        return {"call": f"of {_BATCHES} sequences", "shares": {}, "draws": 1, "wrong": wrong}


def _problem(call: AnyCall, arena: Arena) -> Problem:
    return calls.Problem(call, arena) if isinstance(call, calls.Call) else decoding.DecodeProblem(call, arena)


def _place(variant: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(variant[name] for name in ("operation", "kernel", "functional", "specialization"))


def serve(libraries: Libraries, vendor: str, ordinal: int) -> None:
    """Answers until the input ends.

    Raises:
        Refused, DeviceFailed: the device is not there, or cannot be used.
    """
    device = device_of(libraries, vendor, ordinal)
    worker = Worker(libraries, device, Memory(vendor, ordinal))
    _say({"device": device, "version": libraries.version, "variants": worker.variants()})
    for line in sys.stdin:
        began = time.monotonic()
        try:
            answer = worker.check(json.loads(line))
        except (DeviceFailed, Refused) as error:
            answer = _failed(error, "", True)
        _say(answer | {"seconds": round(time.monotonic() - began, 3)})


def _failed(error: Exception, call: str, is_broken: bool) -> dict[str, Any]:
    """The answer where a call was refused. `is_broken`: what follows in this process would fail as well."""
    return {"call": call, "shares": {}, "draws": 0, "wrong": [str(error)], "is_broken": is_broken}


def device_of(libraries: Libraries, vendor: str, ordinal: int) -> dict[str, Any]:
    """
    Raises:
        DeviceFailed: there is none of that number.
    """
    devices = [row for row in libraries.devices() if row["vendor"] == VENDORS[vendor]]
    for row in devices:
        if row["ordinal"] == ordinal:
            return row
    raise DeviceFailed(f"there is no device {ordinal} of {vendor}'s, only {len(devices)} of them")


def _say(answer: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer, default=str) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Arguments: the folder of the libraries, that of the headers, the vendor, the device's number; or in its place
    LIST: then no device is asked for, and all that is said are the variants of all packs."""
    folder, declared, vendor, ordinal = sys.argv[1:]
    try:
        with Libraries(Path(folder), headers.read(Path(declared)), vendor=vendor) as libraries:
            if ordinal == LIST:
                _say({"variants": variants_of(libraries, None)})
            else:
                serve(libraries, vendor, int(ordinal))
    except (KilnError, Refused) as error:
        _say({"refused": str(error), "code": getattr(error, "exit_code", DeviceFailed.exit_code)})


if __name__ == "__main__":
    main()
