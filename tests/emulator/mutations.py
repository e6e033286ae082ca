"""Whether the emulator's checks, and the suite's, see code that is wrong: images changed on purpose, and executed.

    PYTHONPATH=v3python python3 tests/emulator/mutations.py build/kiln results --seed 1 --bits 200 --waits 50

PREFIX is a release that run.py has executed, RESULTS what that left: of its images these are drawn, by the seed.

    bits      single bits of instruction words, any
    waits     an s_waitcnt or s_barrier that was executed, made an s_nop
    matrix    of each matrix instruction some, that read the registers beside those that they should
    masks     a mask of offsets, `v_and_b32` with a constant, that lacks its highest bit. One that is only compared
              chooses lanes: where several then store the same, nothing is wrong
    programs  launches that lack their last work-groups

A line of JSON each goes to RESULTS/mutations.jsonl. Where nothing sees that a wait is missing, flow.py must prove that
it is redundant; else, as for controls (matrix, masks, programs), calls are drawn until one sees it. A wait that no call
needs may be needed on a path that none takes: flow.py, which follows all, sees that ("paths"; run.py has had it follow
those of the image as it should be). Ends with 1 if a control was not seen, or a wait neither seen nor redundant. A run
that was ended goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import as_completed
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "runtime"))  # ffi
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gpu"))  # candidates, pool, release

import decode
import flow
import images
import patch
from decode import LoadedProgram
from executor import Executor
from page import executed, read
from pool import Pool
from run import TIMEOUT, variants_of

from kiln_recipe.console.progress import make_progress

NOT_SEEN = ("not seen", "not executed", "other bits")
MOST_TRIED = 150  # drawn calls, where nothing sees what must be seen


class Drawn:
    """What is drawn from: the images of a target, their programs, and what was executed of these."""

    def __init__(self, prefix: Path, results: Path, target: str) -> None:
        self.target = target
        executor = Executor(target)
        rows = {row["key"]: row for row in read(results / target / "images.jsonl")[1:]}
        right = {key for key, row in rows.items() if row["kind"] == "image" and not row["wrong"]}
        self.images = [i for i in images.images(prefix, target) if right & set(i.keys)]
        self.keys = {i.digest: next(key for key in i.keys if key in right) for i in self.images}
        bits = {digest: executed(rows[key]).get(digest, (0, 0))[1] for digest, key in self.keys.items()}
        self.programs = {i.digest: executor.program(i.code) for i in self.images}
        self.executed = {
            digest: {i for i in range(len(program.texts)) if bits[digest] >> i & 1}
            for digest, program in self.programs.items()
        }

    def mutant(self, kind: str, image: images.Image, index: int, code: bytes, what: str) -> dict:
        program = self.programs[image.digest]
        return {
            "kind": kind, "target": self.target, "digest": image.digest, "key": self.keys[image.digest], "index": index,
            "what": f"{image.name}, 0x{program.instructions[index].pc:x}: {what}", "code": code,
            "shortened": 0,
        }  # fmt: skip


def place(image: images.Image, program: LoadedProgram, index: int) -> int:
    return patch.begin_of_text(image.code, image.symbol) + program.instructions[index].pc


def bits(drawn: list[Drawn], count: int, draw: random.Random) -> Iterator[dict]:
    """Bits of reachable instructions, each as likely."""
    words = [
        (d, image, index, word)
        for d in drawn
        for image in d.images
        for index in sorted(flow.reachable(d.programs[image.digest]))
        for word in range(d.programs[image.digest].instructions[index].size // 4)
    ]
    for d, image, index, word in draw.sample(words, min(count, len(words))):
        bit = draw.randrange(32)
        code = patch.flipped(image.code, place(image, d.programs[image.digest], index) + 4 * word, bit)
        text = d.programs[image.digest].texts[index]
        yield d.mutant("bits", image, index, code, f"bit {bit} of word {word} of `{text}`")


def waits(drawn: list[Drawn], count: int, draw: random.Random) -> Iterator[dict]:
    """One of as many images."""
    every = [(d, image) for d in drawn for image in d.images]
    for d, image in draw.sample(every, min(count, len(every))):
        program = d.programs[image.digest]
        places = [i for i in sorted(d.executed[image.digest])
                  if flow.is_wait(program, i) or flow.is_barrier(program, i)]  # fmt: skip
        if places:
            index = draw.choice(places)
            code = patch.patched(image.code, place(image, program, index), patch.NOP)
            yield d.mutant("waits", image, index, code, f"without `{program.texts[index]}`")


def matrix(drawn: list[Drawn], count: int, draw: random.Random) -> Iterator[dict]:
    for d in drawn:
        found: dict[str, list[tuple]] = {}
        for image in d.images:
            program = d.programs[image.digest]
            for index in sorted(d.executed[image.digest]):
                if flow.name_of(program, index).startswith(("v_mfma", "v_wmma")):
                    found.setdefault(flow.name_of(program, index), []).append((image, index))
        for places in found.values():
            for image, index in draw.sample(places, min(count, len(places))):
                program = d.programs[image.digest]
                text = patch.neighbour(d.target, program.texts[index])
                code = patch.patched(image.code, place(image, program, index), patch.assembled(d.target, text))
                yield d.mutant("matrix", image, index, code, f"`{program.texts[index]}` made `{text}`")


def masks(drawn: list[Drawn], count: int, draw: random.Random) -> Iterator[dict]:
    wanted = re.compile(r"(v_and_b32_e32 (v\d+), )(0x[0-9a-f]+|\d+)(, v\d+)")
    for d in drawn:
        places = []
        for image in d.images:
            program = d.programs[image.digest]
            for index in sorted(d.executed[image.digest]):
                found = wanted.fullmatch(program.texts[index])
                if found and 3 <= int(found[3], 0) < 64 and not chooses_lanes(program, index, found[2]):
                    places.append((image, index, found))
        for image, index, found in draw.sample(places, min(count, len(places))):
            text = f"{found[1]}{int(found[3], 0) >> 1}{found[4]}"
            code = patch.patched(
                image.code, place(image, d.programs[image.digest], index), patch.assembled(d.target, text)
            )
            yield d.mutant("masks", image, index, code, f"`{found[0]}` made `{text}`")


def programs(drawn: list[Drawn], count: int, draw: random.Random) -> Iterator[dict]:
    for d in drawn:
        for image in draw.sample(d.images, min(count, len(d.images))):
            entry = d.programs[image.digest].program.entry
            yield d.mutant("programs", image, entry, image.code, "a grid that is one shorter") | {"shortened": 1}


KINDS: dict[str, Callable[[list[Drawn], int, random.Random], Iterator[dict]]] = {
    "bits": bits, "waits": waits, "matrix": matrix, "masks": masks, "programs": programs,
}  # fmt: skip
MUST_BE_SEEN = ("matrix", "masks", "programs", "waits")


def proof(drawn: Drawn, mutant: dict, waves: int) -> str:
    """ "redundant", or why that is not proven."""
    program, index = drawn.programs[mutant["digest"]], mutant["index"]
    needs = flow.need_of_barrier if flow.is_barrier(program, index) else flow.need_of_wait
    try:
        return needs(program, index, waves) or "redundant"
    except LookupError as error:
        return str(error)


def on_other_paths(code: bytes) -> dict:
    """An outcome, if on some path a register is used before what is loaded into it has come."""
    faults = flow.unwaited(decode.load(code))
    return {"outcome": "paths", "detail": faults[0]} if faults else {}


def chooses_lanes(program: LoadedProgram, index: int, register: str) -> bool:
    """Whether the first that reads a register behind an instruction is a comparison."""
    reads = re.compile(rf"\S+ .*, {register}\b")
    return next((t.startswith("v_cmp") for t in program.texts[index + 1 :] if reads.match(t)), False)


class Executing:
    """Executes mutants: a row of each, which goes to a file too as it ends."""

    def __init__(self, prefix: Path, processes: int, path: Path, seed: int) -> None:
        self.prefix, self.processes, self.path, self.seed = prefix, processes, path, seed

    def rows(self, drawn: Drawn, mutants: list[dict]) -> Iterator[dict]:
        """Of a target's."""
        variants = {v["key"]: v for v in variants_of(self.prefix, drawn.target)}
        worker = [str(Path(__file__).with_name("process.py")), str(self.prefix), drawn.target]
        pool = Pool(self.prefix, self.processes, worker, TIMEOUT)
        unseen = []
        with make_progress() as progress, self.path.open("a") as file:

            def ended(mutant: dict, answer: dict) -> dict:
                row = {name: value for name, value in mutant.items() if name != "code"} | answer
                file.write(json.dumps(row) + "\n")
                file.flush()
                progress.done(mutant["what"], answer.get("seconds", 0.0), answer["outcome"])
                return row

            progress.start(len(mutants), title=f"{drawn.target}, changed", unit="image")
            futures = {
                pool.submit("mutant", variants[m["key"]], m["digest"], m["code"], m["index"], m["shortened"]): m
                for m in sorted(mutants, key=lambda m: m["key"])
            }
            for future in as_completed(futures):
                mutant, answer = futures[future], answered(future.result())
                if mutant["kind"] in MUST_BE_SEEN and answer["outcome"] in NOT_SEEN:
                    if mutant["kind"] == "waits":
                        answer["proof"] = proof(drawn, mutant, answer["waves"])
                    if answer.get("proof") != "redundant":
                        unseen.append((mutant, answer))
                        continue
                    answer["outcome"] = "redundant"
                yield ended(mutant, answer)
            # These calls take no path on which it matters, or so it seems: others may.
            searches = {}
            for m, answer in unseen:
                what = m["digest"], m["code"], m["index"], m["shortened"], self.seed, MOST_TRIED
                searches[pool.submit("search", variants[m["key"]], *what)] = (m, answer)
            for future in as_completed(searches):
                mutant, before = searches[future]
                found = future.result()
                found = {"detail": found["fault"]} if "fault" in found else found
                if mutant["kind"] == "waits" and found.get("outcome", before["outcome"]) in NOT_SEEN:
                    found |= on_other_paths(mutant["code"])
                spent = before.get("seconds", 0.0) + found.get("seconds", 0.0)
                yield ended(mutant, before | found | {"seconds": round(spent, 2)})
            progress.close()
        pool.close()


def answered(answer: dict) -> dict:
    return answer if "outcome" in answer else {"outcome": "process", "detail": answer["fault"]}


def identity(row: dict) -> tuple:
    return row["kind"], row["target"], row["key"], row["what"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prefix", type=Path, help="an unpacked release, .../kiln")
    parser.add_argument("results", type=Path, help="the folder that run.py wrote its results to")
    parser.add_argument("--target", action="append", help="default: all that run.py executed")
    parser.add_argument("--seed", type=int, default=1, help="of what is drawn; default: 1")
    parser.add_argument("--bits", type=int, default=200, help="default: 200")
    parser.add_argument("--waits", type=int, default=50, help="images that lack one wait; default: 50")
    parser.add_argument(
        "--controls",
        type=int,
        default=10,
        help="of each control, of a target; default: 10",
    )
    parser.add_argument("--only", action="append", choices=KINDS, help="this kind; default: all")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)), help="default: one a core")
    options = parser.parse_args()
    found = sorted(path.parent.name for path in options.results.glob("*/images.jsonl"))
    drawn = [Drawn(options.prefix, options.results, target) for target in options.target or found]
    counts = {"bits": options.bits, "waits": options.waits}
    mutants = []
    for kind in options.only or KINDS:
        draw = random.Random(f"{kind} {options.seed}")
        mutants += list(KINDS[kind](drawn, counts.get(kind, options.controls), draw))
    path = options.results / "mutations.jsonl"
    wanted = {identity(mutant) for mutant in mutants}
    rows = [row for row in read(path) if identity(row) in wanted]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = {identity(row) for row in rows}
    mutants = [mutant for mutant in mutants if identity(mutant) not in done]
    executing = Executing(options.prefix.resolve(), options.processes, path, options.seed)
    for one in drawn:
        if mine := [mutant for mutant in mutants if mutant["target"] == one.target]:
            rows += executing.rows(one, mine)
    failed = [
        row for row in rows
        if row["outcome"] in NOT_SEEN and row["kind"] in MUST_BE_SEEN
    ]  # fmt: skip
    for kind in dict.fromkeys(row["kind"] for row in rows):
        outcomes = [row["outcome"] for row in rows if row["kind"] == kind]
        print(f"{kind}: {', '.join(f'{outcomes.count(o)} {o}' for o in sorted(set(outcomes)))}")
    for row in failed:
        print(f"{row['outcome']}: {row['target']} {row['what']} {row.get('proof', '')}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
