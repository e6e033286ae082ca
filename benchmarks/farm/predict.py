"""What a simulation says of builds, against those builds: durations recorded in one run predict the others.

    python benchmarks/farm/predict.py --targets "gfx942;gfx1100" --others "gfx90a;gfx1201" --limit 400 [--json FILE]

One cold run of the farm, with a worker on each processor, records what the images of all these targets take, and what a
worker takes to start and between two jobs. From these alone the others are foreseen: one, two and four workers, half of
the images in the store, a worker killed in the middle, the other targets; and these once more from the records of the
first targets alone, as if they had never been compiled. Each is then built and timed, with as many images for each
worker, side by side on processors of their own as far as there are enough. Variants of equal keys count once. A compile
takes fewer seconds of a processor where others have less to do, so a build that has ended compiles on until all have:
the machine is as full as when it recorded.

A prediction is off by (foreseen - measured) / measured; one beyond --most fails (exit code 1). Beside it stand the two
parts that it has: `of the machine`, by how much longer or shorter the same compiles took than when they were recorded;
and `of the model`, how far off it would be had it known what the compiles of this build would take. Needs quiet
processors: what else runs makes builds longer, and no simulation.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import multiprocessing
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from releases import ROOT, cores_of

sys.path.insert(0, str(ROOT / "v3python"))

from kiln_build.farm import farm
from kiln_build.farm.durations import Durations
from kiln_build.farm.farm import FarmOptions, FarmResult
from kiln_build.farm.local import LocalExecutor
from kiln_build.foresight.costs import Costs
from kiln_build.foresight.simulate import Cluster, Forecast, Work, simulate
from kiln_build.native import native
from kiln_build.store.local import LocalStore
from kiln_build.store.store import Took
from kiln_recipe import targets
from kiln_recipe.compile import lock, toolchain
from kiln_recipe.compile.toolchain import Toolchain
from kiln_recipe.console.progress import make_progress
from kiln_recipe.errors import KilnError
from kiln_recipe.plan import plan
from kiln_recipe.plan.model import Variant
from kiln_recipe.read import recipe
from kiln_recipe.selection import parse_selection

_FULL = 4  # workers of a build that has all images of a set; with fewer it has as many fewer


@dataclass(frozen=True)
class Case:
    """A build that is foreseen and then done.

    Attributes:
        half: half of its images are in the store.
        kills: a worker is killed in the middle.
        others: it is for the other targets.
        from_kin: as if these were new.
    """

    name: str
    workers: int
    half: bool = False
    kills: bool = False
    others: bool = False
    from_kin: bool = False


# The longest ones first; together on 21 processors.
CASES = (
    Case("1 worker", 1),
    Case("2 workers", 2),
    Case("4 workers", 4),
    Case("4 workers, one killed in the middle", 4, kills=True),
    Case("4 workers, other targets", 4, others=True),
    Case("2 workers, other targets, as if new", 2, others=True, from_kin=True),
    Case("4 workers, half of the images in the store", 4, half=True),
)


@dataclass(frozen=True)
class Recorded:
    """What the run that records has told.

    Attributes:
        known: what each image took.
        store: its images.
    """

    known: Mapping[str, Took]
    costs: Costs
    store: LocalStore
    result: FarmResult


@dataclass(frozen=True)
class Bench:
    """Where builds run."""

    chain: Toolchain
    memory: Path
    scratch: Path

    def build(
        self, name: str, variants: Sequence[Variant], workers: int, store: LocalStore, kill_after: float = math.inf
    ) -> tuple[FarmResult, dict[str, Took]]:
        """Compiles what the store lacks; gives what each image took.

        Args:
            kill_after: seconds from the farm's start to a worker's death.
        """

        def executor(*arguments, **named) -> LocalExecutor:
            made = LocalExecutor(*arguments, **named, preload=self.memory)
            if kill_after < math.inf:
                timer = threading.Timer(kill_after, lambda: kill_first(made))
                timer.daemon = True
                timer.start()
            return made

        options = FarmOptions(self.scratch / f"{name}-logs", jobs=workers, executor=executor)
        with (self.scratch / f"{name}.log").open("w") as log, make_progress(log) as progress, store.in_use():
            result = farm.run(variants, self.chain, store, options, progress)
        if result.failures:
            sys.exit("\n".join(f"{failure.variant}: {failure.message}" for failure in result.failures))
        compiled = {attempt.name for attempt in result.attempts if attempt.outcome == "compiled"}
        took = {name: one for name, one in store.durations().items() if name in compiled}
        for attempt in result.attempts:  # one that takes the image of an equal IR is short again, being later again
            took.setdefault(attempt.name, Took(attempt.ended - attempt.began))
        return result, took

    def store(self, name: str, known: Mapping[str, Took]) -> LocalStore:
        """An empty one that knows these durations."""
        shutil.rmtree(self.scratch / name, ignore_errors=True)
        store = LocalStore(self.scratch / name)
        for variant, took in known.items():
            store.record_duration(variant, *took)
        return store

    def go_on(self, variants: Sequence[Variant], workers: int) -> None:
        """Compiles some of these, for nothing."""
        name = f"going-on-{os.getpid()}"
        with contextlib.suppress(KilnError):  # it is ended by a signal
            self.build(name, variants[: 8 * workers], workers, self.store(name, {}))

    def record(self, variants: Sequence[Variant], workers: int) -> Recorded:
        store = self.store("recording", {})
        began = time.monotonic()
        result, known = self.build("recording", variants, workers, store)
        return Recorded(known, costs_of(result, known, began), store, result)

    def done(self, name: str, case: Case, variants: Sequence[Variant], told: Mapping[str, Took], of: Recorded) -> dict:
        """Foresees a build of these and builds it.

        Args:
            told: what is known of compiles beforehand.
        """
        store = self.store(name, told)
        missing = variants[len(variants) // 2 :] if case.half else variants
        for variant in variants[: len(variants) - len(missing)]:
            stored = of.result.outcomes[variant.name]
            store.put(of.result.keys[variant.name], of.store.load(stored), stored.ir, stored.seconds)
        alone = foresee(case, missing, told, told, of.costs, {})
        dies = {1: alone.compile / 2} if case.kills else {}
        forecast = foresee(case, missing, told, told, of.costs, dies)
        result, took = self.build(name, variants, case.workers, store, dies.get(1, math.inf))
        died = sum(attempt.outcome == "died" for attempt in result.attempts)
        if result.compiled + result.shared != len(missing) or died != len(dies):
            sys.exit(f"{case.name}: {result.compiled} compiled and {died} died, which is not this case")
        hindsight = foresee(case, missing, told, took, of.costs, dies)
        now, then = (sum(known[variant.name].work for variant in missing) for known in (took, of.known))
        return {
            "case": case.name,
            "images": len(missing),
            "foreseen": round(forecast.compile, 2),
            "measured": round(result.wall_seconds, 2),
            "off": round(forecast.compile / result.wall_seconds - 1, 4),
            "machine": round(now / then - 1, 4),
            "model": round(hindsight.compile / result.wall_seconds - 1, 4),
            "took": {name: list(one) for name, one in took.items()},
        }


def kill_first(executor: LocalExecutor) -> None:
    """Kills the first worker as soon as it compiles something."""
    while not (executor._workers and executor._workers[0].task):
        time.sleep(0.01)
    os.kill(executor._workers[0].process.pid, signal.SIGKILL)


def costs_of(result: FarmResult, known: Mapping[str, Took], began: float) -> Costs:
    """What workers take to start, and between two jobs, in a run."""
    by_worker: dict[int, list] = {}
    for attempt in sorted(result.attempts, key=lambda one: one.began):
        by_worker.setdefault(attempt.worker, []).append(attempt)
    gaps = [
        after.began - before.began - known[before.name].seconds
        for attempts in by_worker.values()
        for before, after in itertools.pairwise(attempts)
    ]
    start_up = statistics.mean(attempts[0].began for attempts in by_worker.values()) - began
    return replace(Costs(), start=0.0, look_up=0.0, start_up=start_up, transfer=statistics.mean(gaps), handling=0.0)


def foresee(
    case: Case,
    variants: Sequence[Variant],
    told: Mapping[str, Took],
    takes: Mapping[str, Took],
    costs: Costs,
    dies: Mapping[int, float],
) -> Forecast:
    """The forecast of what a store lacks.

    Args:
        told: what the scheduler knows.
        takes: what compiles will take, as far as is known.
    """
    durations = Durations(takes)
    works = [Work(variant.name, durations(variant).seconds) for variant in variants]
    return simulate(works, Cluster(case.workers, dies=dies), costs, known=Durations(told).known)


def side_by_side(
    jobs: Sequence[tuple[int, partial]], cores: Sequence[int], go_on: Callable[[int], object] | None = None
) -> Iterator[dict | None]:
    """What these give, each as soon as it ends, in processes with as many processors of their own as they ask for, or
    all that there are; None of one that fails.

    Args:
        go_on: is called with a number of processors, again and again after a job, until others need these or all end.
    """
    context = multiprocessing.get_context("fork")
    free, waiting, running, going_on = list(cores), list(jobs), {}, []
    try:
        while waiting or running:
            for job in list(waiting):
                count = min(job[0], len(cores))
                if len(free) >= count:
                    mine, free = free[:count], free[count:]
                    ours, theirs = context.Pipe(duplex=False)
                    process = context.Process(target=_in_child, args=(job[1], mine, theirs, go_on))
                    process.start()
                    theirs.close()
                    running[ours] = process, mine
                    waiting.remove(job)
            for ready in wait(list(running)):
                process, mine = running.pop(ready)
                try:
                    made = ready.recv()
                except EOFError:
                    made = None
                if waiting or not go_on:
                    if go_on:
                        process.terminate()
                    process.join()
                    free += mine
                else:
                    going_on.append(process)
                yield made
    finally:
        _end([*going_on, *(process for process, _ in running.values())])


def _end(processes: Sequence[multiprocessing.process.BaseProcess]) -> None:
    for process in processes:
        process.terminate()
    for process in processes:
        process.join()


def _in_child(job: partial, cores: Sequence[int], answer: Connection, go_on: Callable[[int], object] | None) -> None:
    os.sched_setaffinity(0, set(cores))
    answer.send(job())
    while go_on:
        go_on(len(cores))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", required=True, help="of builds, as build.sh takes them")
    parser.add_argument("--others", required=True, help="other ones")
    parser.add_argument("--recipe", type=Path, default=ROOT / "tritonsrc" / "flash" / "recipe.yaml")
    parser.add_argument("--select", default="", help="as KILN_SELECT")
    parser.add_argument("--limit", type=int, default=400, help="variants for four workers, at random from the plan")
    parser.add_argument("--cases", type=int, default=len(CASES), help="only the first so many")
    parser.add_argument("--cores", type=cores_of, default=sorted(os.sched_getaffinity(0)), help="as 0-15,32")
    parser.add_argument("--most", type=float, default=0.1, help="by how much a prediction may be off")
    parser.add_argument("--site", type=Path, help="the site-packages with Triton; default: this Python's")
    parser.add_argument("--json", type=Path, help="write all figures there, and what every compile took")
    arguments = parser.parse_args()

    if arguments.limit < 2 * _FULL:
        parser.error(f"--limit {arguments.limit} is too few; give at least {2 * _FULL}")
    site = arguments.site or Path(next(path for path in sys.path if (Path(path) / "triton").is_dir()))
    chain = toolchain.find_toolchain(site, lock.read_lock(ROOT / "input" / lock.LOCK_NAME).members_of("triton"))
    the_recipe = recipe.load(arguments.recipe)

    def sample(names: str) -> list[Variant]:
        made = plan.make_plan([the_recipe], targets.parse(names), "core", parse_selection(arguments.select)).variants
        distinct = list({variant.spec.key(chain.identity): variant for variant in made}.values())
        return random.Random(0).sample(distinct, min(arguments.limit, len(distinct)))

    os.sched_setaffinity(0, set(arguments.cores))
    rows: list[dict] = []
    with tempfile.TemporaryDirectory(prefix="kiln-bench-") as scratch:
        built_for = targets.parse(f"{arguments.targets};{arguments.others}")
        compiler = native.own_zig(Path(scratch, "zig"))
        chain = native.with_heap(chain, built_for, ROOT, compiler, Path(scratch))
        ours, others = sample(arguments.targets), sample(arguments.others)
        bench = Bench(chain, native.build_memory(ROOT, compiler, Path(scratch)), Path(scratch))
        first = bench.record([*ours, *others], len(arguments.cores))
        own = {variant.name: first.known[variant.name] for variant in ours}
        print(f"recorded {len(first.known)} images in {first.result.wall_seconds:.1f} s, {first.result.jobs} workers; "
              f"one starts in {first.costs.start_up:.2f} s, {1000 * first.costs.transfer:.0f} ms between two jobs",
              flush=True)  # fmt: skip
        jobs = []
        for number, case in enumerate(CASES[: arguments.cases]):
            pool = others if case.others else ours
            variants = pool[: math.ceil(len(pool) * case.workers / _FULL)]
            told = own if case.from_kin else first.known
            jobs.append((case.workers, partial(bench.done, f"case-{number}", case, variants, told, first)))
        for row in filter(None, side_by_side(jobs, arguments.cores, partial(bench.go_on, ours))):
            rows.append(row)
            print(f"{row['case']}: {row['images']} images, foreseen {row['foreseen']:.1f} s, measured "
                  f"{row['measured']:.1f} s, off by {100 * row['off']:+.1f} %; of the machine "
                  f"{100 * row['machine']:+.1f} %, of the model {100 * row['model']:+.1f} %", flush=True)  # fmt: skip
            if arguments.json:
                document = {
                    "targets": arguments.targets,
                    "others": arguments.others,
                    "recorded": {name: list(took) for name, took in first.known.items()},
                    "recording_seconds": round(first.result.wall_seconds, 2),
                    "recording_workers": first.result.jobs,
                    "start_up": first.costs.start_up,
                    "transfer": first.costs.transfer,
                    "cases": rows,
                }
                arguments.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0 if len(rows) == len(jobs) and all(abs(row["off"]) <= arguments.most for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
