"""All that shows how building scales, in one command, on a machine with many processors.

    python3 benchmarks/farm/scale.py --part first --seconds 410 --out out
    python3 benchmarks/farm/scale.py --part second --seconds 410 --out out
    python3 benchmarks/farm/scale.py --part forecasts --seconds 410 --out out

The first part: the same bytes in four ways, with faults (cluster.py), a cluster's throughput (throughput.py), and what
comes after the last compile of a full profile (packing.py). The second: caches (caches.py), another commit's farm
(turns.py), and the release after an edit. The third: forecasts (predict.py), beside which nothing else runs. Programs
run side by side on processors of their own; packages are installed once. Each writes its results and logs into a folder
of its own in --out as it goes. What fails or runs out of time is said, and the rest goes on; exit code 1 then.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from releases import ROOT, cores_of, install, lines, say, store_of, tail, variables  # noqa: E402

BEFORE = "79ba90d"  # the commit that compiling is held against
_FEW_TARGETS = "MI300X;sm_90"


@dataclass
class Program:
    """One that runs on processors of its own.

    Attributes:
        cores: how many it has; 0: by its weight of those that are left.
        shared: whether it has the options of releases.py.
    """

    name: str
    script: str
    options: Sequence[object]
    cores: int = 0
    weight: int = 1
    shared: bool = True


class Runner:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self.out, self.cores = arguments.out.resolve(), arguments.cores
        self.scratch = (arguments.scratch or self.out / "scratch").resolve()
        self.small: list[object] = ["--select", arguments.select] if arguments.select else []
        self.targets = arguments.targets
        self.ends = time.monotonic() + arguments.seconds
        self.codes: dict[str, object] = {}
        self.packages = (arguments.packages or self.scratch / "packages").resolve()
        self.python = self.packages / "venv" / "bin" / "python"
        for folder in (self.out, self.scratch):
            folder.mkdir(parents=True, exist_ok=True)
        if not self.python.exists():
            install(self.packages, self.out / "packages.log")

    def parts(self, programs: Sequence[Program]) -> list[list[int]]:
        """The processors of each; where there are too few, programs share them."""
        fixed, weights = (
            sum(program.cores for program in programs),
            sum(not one.cores and one.weight for one in programs),
        )
        left = max(len(self.cores) - fixed, 0)
        parts, begin = [], 0.0
        for program in programs:
            end = begin + (program.cores or left * program.weight / weights)
            first = min(round(begin), len(self.cores) - 1)
            parts.append(self.cores[first : round(end)] or [self.cores[first]])
            begin = end
        return parts

    def phase(self, programs: Sequence[Program]) -> None:
        """Runs these side by side, as long as there is time."""
        parts = self.parts(programs)
        running = {program.name: self._start(program, cores) for program, cores in zip(programs, parts, strict=True)}
        seen = dict.fromkeys(running, 0)
        while running and time.monotonic() < self.ends:
            time.sleep(1)
            for name, process in list(running.items()):
                code = process.poll()
                seen[name] = self._pass_on(name, seen[name])
                if code is not None:
                    self._ended(name, code)
                    running.pop(name)
        for name, process in running.items():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            self._ended(name, "out of time")
        time.sleep(2 if running else 0)
        for process in running.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def _start(self, program: Program, cores: Sequence[int]) -> subprocess.Popen:
        folder = self.out / program.name
        folder.mkdir(exist_ok=True)
        words: list[object] = [self.python, HERE / program.script, *program.options]
        if program.shared:
            words += ["--cores", ",".join(map(str, cores)), "--packages", self.packages, "--out", folder,
                      "--scratch", self.scratch / program.name, *self.small]  # fmt: skip
        else:
            words += ["--json", folder / "figures.json"]
        say(f"{program.name}: {program.script} on processors {cores[0]} to {cores[-1]}")
        with (self.out / f"{program.name}.log").open("wb") as file:
            return subprocess.Popen(
                [str(word) for word in words], stdin=subprocess.DEVNULL, stdout=file, stderr=file, cwd=folder,
                env=variables(PYTHONPATH=str(ROOT / "v3python")), start_new_session=True,
                preexec_fn=None if program.shared else lambda: os.sched_setaffinity(0, set(cores)),
            )  # fmt: skip

    def _pass_on(self, name: str, seen: int) -> int:
        told = lines(self.out / f"{name}.log")
        for line in told[seen:]:
            if not line.startswith(("install ", "compile ")):
                print(f"  {name}: {line}", flush=True)
        return len(told)

    def _ended(self, name: str, code: object) -> None:
        self.codes[name] = code
        (self.out / "scale.json").write_text(json.dumps(self.codes, indent=1) + "\n")
        say(f"{name}: {'good' if code == 0 else f'ended with {code}'}")
        if code:
            print(tail(self.out / f"{name}.log", 8), flush=True)


def first(runner: Runner) -> None:
    targets = ["--targets", runner.targets]
    pairs = [
        Program(f"throughput-{n}", "throughput.py", ["--rounds", 2, "--first", ("local", "cluster")[n % 2]], cores=2)
        for n in range(4)
    ]
    runner.phase([Program("cluster", "cluster.py", targets), *pairs])
    runner.phase([Program("packing", "packing.py", ["--packed", 30, "--edited", 10])])


def second(runner: Runner, store: Path | None) -> None:
    targets = ["--targets", runner.targets]
    if store is None:
        runner.phase([Program("local", "cluster.py", [*targets, "--ways", "local"])])
        store = runner.scratch / "local" / "local" / "workspace" / "store"
    digest = sha256_of(runner.out / "local" / "cluster.json")
    options = ["--store", store]
    faults = ["--targets", _FEW_TARGETS, "--cases", "alone,dies,fails,cuts,slow", *options]
    turns = []
    if (before := checkout(runner.scratch / "before")) is not None:
        cache = runner.scratch / "turns"
        cache.mkdir(exist_ok=True)
        words = ["--before", before, "--targets", "sm_90;gfx942", "--limit", 24, "--rounds", 1]
        turns = [
            Program(f"turns-{n}", "turns.py", [*words, "--seed", n, "--cache", cache / str(n)], cores=1, shared=False)
            for n in range(8)
        ]
    warm = [*targets, "--cases", "warm,poisoned", "--expect", digest, *options]
    caches = [Program("faults", "caches.py", faults, weight=4), Program("warm", "caches.py", warm)]
    runner.phase([*caches, *turns])
    edit = [*targets, "--profile", "core", "--store", store, "--edited", 10, "--name", "edit"]
    runner.phase([Program("edit", "packing.py", edit)])


def forecasts(runner: Runner, limit: int) -> None:
    sets = (
        ("gfx942;gfx1100;gfx950", "gfx90a;gfx1201;gfx1101"),
        ("gfx90a;gfx1201;gfx908", "gfx942;gfx1100;gfx950"),
        ("sm_80;gfx942;sm_89", "sm_90"),
    )
    programs = [
        Program(f"predict-{n}", "predict.py", ["--targets", one, "--others", other, "--limit", limit], shared=False)
        for n, (one, other) in enumerate(sets)
    ]
    runner.phase(programs)


def sha256_of(results: Path) -> str:
    """The local build's digest; "": there was none."""
    return json.loads(results.read_text())["local"].get("sha256", "") if results.exists() else ""


def checkout(folder: Path) -> Path | None:
    """A copy of the commit that is compared with: from git, or as `before` beside this tree's own folders."""
    if (ROOT / "before" / "v3python").is_dir():
        return ROOT / "before"
    folder.mkdir(exist_ok=True)
    archive = subprocess.run(["git", "-C", str(ROOT), "archive", BEFORE], capture_output=True, check=False)
    if archive.returncode:
        say(f"turns: this checkout does not have {BEFORE}; left out")
        return None
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    return folder


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("first", "second", "forecasts"), required=True)
    parser.add_argument("--seconds", type=float, default=410, help="that all may take; default: %(default)s")
    parser.add_argument("--cores", type=cores_of, default=sorted(os.sched_getaffinity(0)), help="as 0-15,32")
    parser.add_argument("--targets", default="MI300X;MI200;Navi31;sm_80;sm_90", help="default: %(default)s")
    parser.add_argument("--select", default="", help="as KILN_SELECT, for a trial")
    parser.add_argument("--store", type=store_of, help="of the second part: it has all images; default: one is filled")
    parser.add_argument("--limit", type=int, default=400, help="of forecasts: images for four workers")
    parser.add_argument("--packages", type=Path, help="a workspace that has them; default: one is made")
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--scratch", type=Path, help="a folder for what is built; default: in --out")
    arguments = parser.parse_args()
    runner = Runner(arguments)
    if arguments.part == "first":
        first(runner)
    elif arguments.part == "second":
        second(runner, arguments.store)
    else:
        forecasts(runner, arguments.limit)
    say(f"all: {runner.codes}")
    return 1 if any(runner.codes.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
