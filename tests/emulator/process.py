"""A process of run.py's, that executes images of one target: process.py PREFIX TARGET DESCRIPTOR"""

from __future__ import annotations

import hashlib
import itertools
import sys
import time
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "runtime"))  # ffi
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gpu"))  # candidates, pool, release

import decode
import flow
from candidates import facts, run_lengths_images, run_mask_images
from drawn import drawn_calls
from executor import Executor
from pool import serve
from records import CHECKS
from release import Flash
from worker import Tasks

from kiln_recipe.errors import ArtifactError

ATTENTION = ("attn_fwd", "attn_bwd", "attn_decode")
# Calls of images that were changed, and their seeds: the second where the first see nothing.
MUTANT_CALLS = (1, (1, 1)), (6, (2, 2))
MOST_INSTRUCTIONS = 4_000_000  # of a wave of theirs
MOST_DRAWN = 2000  # calls, most of which may be of other functionals
UNSEEN = ("not seen", "not executed")


class Executing(Tasks):
    """The tasks of the GPU suite's processes, and images that are forced one at a time."""

    def __init__(self, flash: Flash, executor: Executor) -> None:
        super().__init__(flash, executor.name)
        self.executor = executor

    def named(self) -> dict:
        return super().named() | {"image": self.image, "mutant": self.mutant, "search": self.search}

    def image(self, variant: dict, cases: int, seeds: list[tuple[int, int]]) -> dict:
        """What candidates.facts records of an image forced in turn, and what it executed meanwhile.

        Args:
            variant: of kiln_variants. cases: calls that it is forced in, at most.
            seeds: of struct emu_launch, of the schedule and of contents; with several the outputs' bits must be equal.
        """
        state, began = self.executor.state, time.monotonic()
        for program in self.executor.programs.values():
            program.forget()
        before = state.instructions, state.launches, state.unwritten
        row, digest = self._seeded(variant, cases, seeds[0])
        for others in seeds[1:]:
            again, other_digest = self._seeded(variant, cases, others)
            row["wrong"] += again["wrong"]
            if other_digest != digest and not row["wrong"]:
                row["wrong"].append(f"the outputs have other bits by the seeds {others} than by {seeds[0]}")
        names = ("instructions", "launches", "unwritten")
        counts = {name: getattr(state, name) - then for name, then in zip(names, before)}
        result = {"kind": "image", **facts(variant, "emulator", row), "wrong": row["wrong"]}
        if "refused" in row and not row["cases"] and not row["wrong"]:
            facts_of = {"call": name_of(variant), "key": variant["key"], "sentence": row["refused"]}
            result = {"kind": "refused", **facts_of}
        digests = [digest for digest, program in self.executor.programs.items() if any(program.executed())]
        paths = {digest: self._on_every_path(digest) for digest in digests}
        row["wrong"] += [f"{digest[:12]}, {fault}" for digest, faults in paths.items() for fault in faults or ()]
        followed = [digest for digest, faults in paths.items() if faults is not None]
        seconds = round(time.monotonic() - began, 2)
        return result | counts | {"seconds": seconds, "executed": self._executed(), "followed": followed}

    def mutant(self, variant: dict, digest: str, code: bytes, index: int, shortened: int) -> dict:
        """What becomes of a variant's calls if its code object is another: {"outcome": a check, or what else saw it}.

        Args:
            digest: of the code object that it should be. index: of the instruction that differs.
            shortened: as of struct hip_executor.
        """
        began = time.monotonic()
        self._seeded(variant, *MUTANT_CALLS[0])  # loads the original
        original = self.executor.programs[digest]
        about = {"waves": variant["threads"] // original.program.wave_size, "detail": ""}
        try:
            other = original if shortened else decode.load(code)
        except (decode.UnknownError, ArtifactError) as error:
            return about | {"outcome": "decoder", "detail": str(error)}
        if not shortened and other.texts == original.texts:
            return about | {"outcome": "same instruction"}
        for cases, seeds in MUTANT_CALLS:
            answer = self._seen(variant, cases, seeds, original, other, index, shortened)
            if answer["outcome"] not in UNSEEN:
                break
        return about | answer | {"seconds": round(time.monotonic() - began, 2)}

    def search(
        self, variant: dict, digest: str, code: bytes, index: int, shortened: int, seed: int, most: int
    ) -> dict:  # fmt: skip
        """The same in drawn calls, one after the other until one sees it, `most` of them at most: "tried", how many
        were made; and of the one that saw it the outcome, and the "call"."""
        began = time.monotonic()
        original = self.executor.programs.get(digest)
        if original is None:
            self._seeded(variant, *MUTANT_CALLS[0])
            original = self.executor.programs[digest]
        other = original if shortened else decode.load(code)
        operation, tried = variant["operation"].rpartition(".")[2], 0
        what = operation, variant["functional"], variant["kernel"], seed
        answer: dict = {}
        for call in itertools.islice(drawn_calls(*what), MOST_DRAWN):
            if tried == most:
                break
            found = self._seen(variant, 1, (1, 1), original, other, index, shortened, (call,))
            tried += found["cases"]
            if found["outcome"] == "values" and self._seeded(variant, 1, (1, 1), (call,))[0]["wrong"]:
                continue  # the call says nothing: it is wrong of the image as it should be
            if found["outcome"] not in (*UNSEEN, "other bits"):
                answer = found | {"call": str(call)}
                break
        return answer | {"tried": tried, "seconds": round(time.monotonic() - began, 2)}

    def _seen(
        self, variant: dict, cases: int, seeds: tuple[int, int], original: decode.LoadedProgram,
        other: decode.LoadedProgram, index: int, shortened: int, calls: tuple = (),
    ) -> dict:  # fmt: skip
        """What sees in so many calls that another program takes the place of the original; "cases": that were made."""
        state = self.executor.state
        state.fault.check, state.shortened, state.limit = 0, shortened, MOST_INSTRUCTIONS
        other.forget()
        with self.executor.replacing(original, other):
            row, other_bits = self._seeded(variant, cases, seeds, calls)
        check, executed = state.fault.check, other.executed()[index]
        state.fault.check = state.shortened = state.limit = 0
        answer = {"detail": row["wrong"][0] if row["wrong"] else "", "cases": row["cases"] + bool(row["wrong"])}
        if check:
            return answer | {"outcome": CHECKS[check]}
        if row["wrong"] or not (row["cases"] or calls):
            return answer | {"outcome": "values"}
        if not executed:
            return answer | {"outcome": "not executed"}
        same = other_bits == self._seeded(variant, cases, seeds, calls)[1]
        return answer | {"outcome": "not seen" if same else "other bits"}

    def _seeded(self, variant: dict, cases: int, seeds: tuple[int, int], calls: tuple = ()) -> tuple[dict, str]:
        """A row of candidates.run_images, and a digest of the outputs."""
        self.executor.bits = hashlib.sha256()
        with self.executor.seeds(*seeds):
            return self._forced(variant, cases, calls), self.executor.bits.hexdigest()

    def _forced(self, variant: dict, cases: int, calls: tuple = ()) -> dict:
        operation = variant["operation"].rpartition(".")[2]
        nothing = {"cases": 0, "ratio": 0.0, "output": "", "key": variant["key"]}
        try:
            if operation == "dropout_mask":
                return run_mask_images(self.kiln, variant, None)
            if operation == "seq_lengths":
                return run_lengths_images(self.kiln, variant, None)
        except Exception as error:  # noqa: BLE001  whatever it is, it is this image's
            return nothing | {"wrong": [self._failed(name_of(variant), error)["fault"]]}
        if operation not in ATTENTION:
            return nothing | {"wrong": [f"no test here calls {operation}"]}
        answer = self.images(operation, variant["functional"], [variant], None, cases, small=True, given=calls)
        return answer["rows"][0] if "rows" in answer else nothing | {"wrong": [answer["fault"]]}

    def _executed(self) -> dict[str, str]:
        """By digest of each code object that was: how many instructions it has that execution can come to, so without
        what pads its blocks and its end, and which were executed, a bit of a hexadecimal number each, the first the
        lowest: "3/5" are the first and the third, and one more could be."""
        counts = {digest: program.executed() for digest, program in self.executor.programs.items()}
        return {
            digest: f"{self._reachable(digest)}/{sum(1 << i for i, count in enumerate(one) if count):x}"
            for digest, one in counts.items() if any(one)
        }  # fmt: skip

    @cache  # noqa: B019  as long as the process
    def _on_every_path(self, digest: str) -> list[str] | None:
        """What uses registers before their loads have come, on paths of a code object that calls may not take either;
        None: its paths cannot be followed."""
        try:
            return flow.unwaited(self.executor.programs[digest])
        except LookupError:
            return None

    @cache  # noqa: B019  as long as the process
    def _reachable(self, digest: str) -> int:
        return len(flow.reachable(self.executor.programs[digest]))


def name_of(variant: dict) -> str:
    return f"{variant['kernel']} {variant['functional']} [{variant['configuration']}] {variant['specialization']}"


def main() -> None:
    prefix, target, descriptor = sys.argv[1:]
    executor = Executor(target)
    with Flash(Path(prefix), executor) as flash:
        serve(Connection(int(descriptor)), Executing(flash, executor).named())


if __name__ == "__main__":
    main()
