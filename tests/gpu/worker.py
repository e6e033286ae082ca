"""A process of pool.py's: what it can be asked to do. worker.py PREFIX DESCRIPTOR"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "runtime"))  # ffi

import ffi
import sampling
import torch
from calls import Call
from candidates import MOST_CASES, run_images
from check import check
from decode_calls import DecodeCall
from decode_check import check_decode
from pool import serve

MOST_CACHED = 4 << 30  # bytes that a process keeps of the GPU's memory between tasks


class Tasks:
    """Each answers with a dict that can be pickled; {"fault": sentence} if it could not be done at all.

    Attributes:
        kiln: a release.Flash, or what stands in for one.
    """

    def __init__(self, kiln, device: str) -> None:
        self.kiln, self.device = kiln, device

    def one(self, call: Call | DecodeCall, target: str | None) -> dict:
        """Makes a call and judges it."""
        try:
            verdict = (check_decode if isinstance(call, DecodeCall) else check)(call, self.kiln, self.device, target)
        except Exception as error:  # noqa: BLE001  whatever it is, it is this call's
            if isinstance(error, ffi.Failure) and any(reason in error.sentence for reason in self.reasons(target)):
                return {"call": str(call), "refused": error.sentence, "wrong": [], "ratio": 0.0, "draws": 1}
            return self._failed(f"{call}", error)
        ratio, output = verdict.worst
        return {"call": str(call), "wrong": verdict.wrong(), "ratio": ratio, "output": output, "draws": verdict.draws}

    @cache  # noqa: B019  as long as the process
    def reasons(self, target: str | None) -> list[str]:
        """Why the release has no images of some variants, in its words: calls may be refused by these, no others."""
        if not hasattr(self.kiln, "kiln"):
            return []  # what stands in for a release has all
        variants = self.kiln.kiln.variants(None, target or self.kiln.target)
        return sorted({v["unavailable"].decode() for v in variants if v["unavailable"] is not None})

    def random(self, seed: int, first: int, last: int, kind: str, target: str | None) -> dict:
        """Random calls from number `first` to below `last`. Stops where the device breaks."""
        rows, broken, worst = [], False, 0.0
        for number in range(first, last):
            if kind == "decode":
                has_latent = target is None and self.device == "cuda" and self.kiln.target == "sm_90"
                call = sampling.random_decode(seed, number, target is None, has_latent)
            else:
                call = sampling.random_call(seed, number)
            row = self.one(call, target) | {"number": number}
            if "fault" in row:
                row = {"number": number, "call": str(call), "wrong": [row["fault"]], "ratio": 0.0, "draws": 1} | row
            worst = max(worst, row["ratio"])
            if row["wrong"] or "refused" in row or row["draws"] > 1:
                rows.append(row)
            if broken := row.get("is_broken", False):
                break
        return {"ran": number - first + 1, "rows": rows, "worst": worst, "is_broken": broken}

    def images(
        self, operation: str, functional: str, variants: list[dict], target: str | None, most: int = MOST_CASES,
        small: bool = False, given: Sequence[Call | DecodeCall] = (), runs: int = 0,
    ) -> dict:  # fmt: skip
        """What candidates.run_images finds."""
        try:
            what = operation, functional, variants, target, most, small, given, runs
            return run_images(self.kiln, self.device, self.reasons(target), *what)
        except Exception as error:  # noqa: BLE001
            return self._failed(f"images of {operation}, {functional}", error)

    def refused(self, call: Call | DecodeCall, target: str | None) -> dict:
        """The sentence by which a call is refused: {"status", "sentence"}."""
        try:
            (check_decode if isinstance(call, DecodeCall) else check)(call, self.kiln, self.device, target)
        except ffi.Failure as failure:
            return {"status": failure.status, "sentence": failure.sentence}
        return {"fault": f"{call} was not refused"}

    def _failed(self, what: str, error: Exception) -> dict:
        last = traceback.format_exception_only(error)[-1].strip()
        place = traceback.extract_tb(error.__traceback__)[-1]
        answer = {"fault": f"{what}: {last} ({Path(place.filename).name}:{place.lineno})", "is_broken": False}
        try:
            if self.device == "cuda":
                torch.cuda.synchronize()
        except RuntimeError as broken:
            answer = {
                "fault": f"{answer['fault']}; the device is lost: {str(broken).splitlines()[0]}",
                "is_broken": True,
            }
        return answer

    def tidy(self, task):
        def wrapped(*arguments: object) -> dict:
            answer = task(*arguments)
            if self.device == "cuda" and not answer.get("is_broken") and torch.cuda.memory_reserved() > MOST_CACHED:
                torch.cuda.empty_cache()
            return answer

        return wrapped

    def named(self) -> dict:
        tasks = {"one": self.one, "random": self.random, "images": self.images, "refused": self.refused}
        return {name: self.tidy(task) for name, task in tasks.items()}


def main() -> None:
    from release import Flash

    with Flash(Path(sys.argv[1])) as flash:
        serve(Connection(int(sys.argv[2])), Tasks(flash, "cuda").named())


if __name__ == "__main__":
    main()
