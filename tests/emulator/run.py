"""Executes every image of a release on the emulator, forced in turn by Kiln's own runtime, against float64.

    PYTHONPATH=v3python python3 tests/emulator/run.py build/kiln results --target gfx942 --processes 4

PREFIX is an unpacked release. A line of JSON an image goes to RESULTS/<target>/images.jsonl as it ends. A run that was
ended goes on where it was; of another release, what stands there stays if all code objects that it executed are the
same to the byte, and the rest is executed. Wrong answers are printed at the end, and end it with 1; with --whole so do
calls that were refused and code objects that no call executed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from concurrent.futures import as_completed
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "runtime"))  # ffi
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gpu"))  # candidates, pool, release

import decode
import images
import sample
from candidates import one_of_each, words
from executor import Executor
from pool import Pool
from process import name_of
from release import Flash

from kiln_recipe.console.progress import make_progress

TIMEOUT = 3600.0  # seconds of one image


def variants_of(prefix: Path, target: str) -> list[dict]:
    """All variants that have an image, those of one key once; what takes longest first."""
    with Flash(prefix, Executor(target)) as flash:
        operations = sorted({v["operation"].decode() for v in flash.kiln.variants(None, target)})
        found = [v for operation in operations for v in one_of_each(flash.images(operation.partition(".")[2], target))]
    return sorted(found, key=lambda v: (-int(words(v["functional"]).get("head_dim", 0)), v["kernel"], v["key"]))


def sampled(variants: list[dict], every: int) -> list[dict]:
    """The first of every so many of each kernel."""
    seen: Counter[str] = Counter()
    result = []
    for variant in variants:
        if seen[variant["kernel"]] % every == 0:
            result.append(variant)
        seen[variant["kernel"]] += 1
    return result


def drawn(variants: list[dict], seed: int) -> list[dict]:
    """Those of them that are in the sample of a seed."""
    flags = sample.sampled([(variant["operation"], variant["functional"]) for variant in variants], seed)
    return [variant for variant, is_drawn in zip(variants, flags) if is_drawn]


class Results:
    """The lines of a target's run: what is in them is not run again.

    Args:
        about: how it is run.
        digests: by the key of each variant of the release the digest of its image.

    Raises:
        SystemExit: they are of another way to run.
    """

    def __init__(self, folder: Path, about: dict, digests: dict[str, str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "images.jsonl"
        lines = self.path.read_text().splitlines() if self.path.is_file() else []
        whole = [json.loads(line) for line in lines if line.endswith("}")]  # the last may be cut
        if whole and whole[0] != about:
            sys.exit(f"{self.path} is of another run ({whole[0]}); name another folder, or remove it")
        there = set(digests.values())
        self.rows = [about, *(row for row in whole[1:] if _stands(row, digests, there))]
        self.path.write_text("".join(json.dumps(row) + "\n" for row in self.rows))
        self.done = {identity(row) for row in self.rows[1:]}

    def add(self, row: dict) -> None:
        self.rows.append(row)
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")


def _stands(row: dict, digests: dict[str, str], there: set[str]) -> bool:
    """Whether a row is true of a release: its image, and all that its calls executed besides, are in that."""
    executed = set(row.get("executed", ()))
    return row["kind"] == "image" and "followed" in row and digests.get(row["key"]) in executed and executed <= there


def identity(row: dict) -> tuple:
    """Of a variant, or of its row. Kernels, and functionals, may share a key."""
    return row["kernel"], row["functional"], row["key"]


def run(
    prefix: Path, target: str, results: Path, processes: int, every: int, seed: int | None, cases: int,
    seeds: list[tuple[int, int]],
) -> list[dict]:  # fmt: skip
    """Executes what is not done yet of a target; the rows of all that is."""
    about = {
        "kind": "device", "name": target, "decoder": decode.version(), "every": every, "sample": seed,
        "cases": cases, "seeds": [list(pair) for pair in seeds],
    }  # fmt: skip
    digests = {key: image.digest for image in images.images(prefix, target) for key in image.keys}
    kept = Results(results / target, about, digests)
    variants = sampled(variants_of(prefix, target), every)
    variants = variants if seed is None else drawn(variants, seed)
    variants = [v for v in variants if identity(v) not in kept.done]
    worker = [str(Path(__file__).with_name("process.py")), str(prefix), target]
    pool = Pool(prefix, processes, worker, TIMEOUT)
    with make_progress() as progress:
        progress.start(len(variants), title=target, unit="image")
        began = time.monotonic()
        futures = {pool.submit("image", variant, cases, seeds): variant for variant in variants}
        for count, future in enumerate(as_completed(futures), 1):
            variant, row = futures[future], future.result()
            if "fault" in row:
                row = {"kind": "image", "key": variant["key"], "by": "emulator", "worst_share_of_limit": float("inf"),
                       "cases": 0, "wrong": [row["fault"]], "seconds": 0.0, **variant}  # fmt: skip
            kept.add(row)
            outcome = "refused" if row["kind"] == "refused" else "failed" if row.get("wrong") else "passed"
            spent = time.monotonic() - began
            progress.done(
                name_of(variant), row["seconds"], outcome, detail=row["wrong"][0][:300] if row.get("wrong") else "",
                remaining=spent / count * (len(variants) - count),
            )  # fmt: skip
        progress.close()
    pool.close()
    return kept.rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prefix", type=Path, help="an unpacked release, .../kiln")
    parser.add_argument("results", type=Path, help="a folder for the results")
    parser.add_argument("--target", action="append", help="gfx942 and the like; default: all of AMD's in the release")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)), help="default: one a core")
    parser.add_argument("--cases", type=int, default=1, help="calls that each is forced in, at most; default: 1")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every Nth image of each kernel")
    parser.add_argument(
        "--sample", type=int, metavar="SEED",
        help="only the sample that sample.py draws by this seed: each two values of an operation's choices together",
    )  # fmt: skip
    parser.add_argument(
        "--seeds", default="1,2", metavar="N,N...", type=lambda text: [(int(n), int(n)) for n in text.split(",")],
        help="each orders waves and work-groups, and fills registers and LDS before; 0: in order, and zeros. With "
        "several the outputs must have equal bits; default: 1,2",
    )  # fmt: skip
    parser.add_argument("--whole", action="store_true", help="fail if a code object of the release was not executed")
    options = parser.parse_args()
    if options.whole and (options.every != 1 or options.sample is not None):
        parser.error("--whole is not for a part of the images")
    wrong, idle = [], []
    for target in options.target or ():
        images.pack_of(options.prefix, target)
    for target in options.target or images.targets(options.prefix):
        how = options.processes, options.every, options.sample, options.cases, options.seeds
        rows = run(options.prefix.resolve(), target, options.results, *how)
        if not any(row["kind"] == "image" for row in rows):
            idle.append(f"{target}: no image was executed; of the calls, the first was refused: {_refusal(rows)}")
        elif options.whole:
            idle += [f"{target}: {what}" for what in _left(options.prefix, target, rows)]
        wrong += [f"{target} {r['kernel']} {r['functional']}: {fault}" for r in rows for fault in r.get("wrong", [])]
    for line in (*wrong, *idle):
        print(line)
    return 1 if wrong or idle else 0


def _left(prefix: Path, target: str, rows: list[dict]) -> list[str]:
    """What was not executed, a sentence each."""
    executed = {digest for row in rows for digest in row.get("executed", ())}
    refused = [f"{row['call']} was refused: {row['sentence']}" for row in rows if row["kind"] == "refused"]
    left = [image.name for image in images.images(prefix, target) if image.digest not in executed]
    return refused + [f"no call executed the code object of {name}" for name in left]


def _refusal(rows: list[dict]) -> str:
    return next((row["sentence"] for row in rows if row["kind"] == "refused"), "there was none")


if __name__ == "__main__":
    sys.exit(main())
