"""What a simulation says of builds, against those builds: durations recorded in one run predict the others.

    python benchmarks/farm/predict.py --targets "gfx942;gfx1100" --others "gfx90a;gfx1201" --limit 40 [--json FILE]

One run of the farm, cold and with four workers, records what the images of all these targets take, and what a worker
takes to start and between two jobs. From these alone the others are foreseen: one, two and four workers, half of the
images in the store, a worker killed in the middle, the other targets; and these once more from the records of the first
targets alone, as if they had never been compiled. Each is then built and timed. Variants of equal keys count once. A
prediction is off by (foreseen - measured) / measured; one beyond --most fails (exit code 1). Needs at least four quiet
cores: what else runs makes builds longer, and no simulation.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "v3python"))

from kiln_build.farm import farm  # noqa: E402
from kiln_build.farm.durations import Durations  # noqa: E402
from kiln_build.farm.farm import FarmOptions, FarmResult  # noqa: E402
from kiln_build.farm.local import LocalExecutor  # noqa: E402
from kiln_build.foresight.costs import Costs  # noqa: E402
from kiln_build.foresight.simulate import Cluster, Forecast, Work, simulate  # noqa: E402
from kiln_build.native import native  # noqa: E402
from kiln_build.store.local import LocalStore  # noqa: E402
from kiln_build.store.store import Took  # noqa: E402
from kiln_recipe import targets  # noqa: E402
from kiln_recipe.compile import lock, toolchain  # noqa: E402
from kiln_recipe.compile.toolchain import Toolchain  # noqa: E402
from kiln_recipe.console.progress import make_progress  # noqa: E402
from kiln_recipe.plan import plan  # noqa: E402
from kiln_recipe.plan.model import Variant  # noqa: E402
from kiln_recipe.read import recipe  # noqa: E402
from kiln_recipe.selection import parse_selection  # noqa: E402


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


RECORDING = 4  # workers
CASES = (
    Case("1 worker", 1),
    Case("2 workers", 2),
    Case("4 workers", 4),
    Case("4 workers, half of the images in the store", 4, half=True),
    Case("4 workers, one killed in the middle", 4, kills=True),
    Case("4 workers, other targets", 4, others=True),
    Case("4 workers, other targets, as if new", 4, others=True, from_kin=True),
)


@dataclass
class Bench:
    """Where builds run."""

    chain: Toolchain
    scratch: Path

    def build(
        self, variants: Sequence[Variant], workers: int, store: LocalStore, kill_after: float = math.inf
    ) -> FarmResult:
        """Compiles what the store lacks.

        Args:
            kill_after: seconds from the farm's start to a worker's death.
        """

        def executor(*arguments, **named) -> LocalExecutor:
            made = LocalExecutor(*arguments, **named)
            if kill_after < math.inf:
                timer = threading.Timer(kill_after, lambda: os.kill(made._workers[0].process.pid, signal.SIGKILL))
                timer.daemon = True
                timer.start()
            return made

        options = FarmOptions(self.scratch / "logs", jobs=workers, executor=executor)
        with make_progress() as progress, store.in_use():
            result = farm.run(variants, self.chain, store, options, progress)
        if result.failures:
            sys.exit("\n".join(f"{failure.variant}: {failure.message}" for failure in result.failures))
        return result

    def store(self, name: str, known: Mapping[str, Took]) -> LocalStore:
        """An empty one that knows these durations."""
        shutil.rmtree(self.scratch / name, ignore_errors=True)
        store = LocalStore(self.scratch / name)
        for variant, took in known.items():
            store.record_duration(variant, *took)
        return store


def costs_of(result: FarmResult, known: Mapping[str, Took], began: float) -> Costs:
    """What workers take to start, and between two jobs, in a run."""
    by_worker: dict[int, list] = {}
    for attempt in sorted(result.attempts, key=lambda one: one.began):
        by_worker.setdefault(attempt.worker, []).append(attempt)
    gaps = [
        after.began - before.began - known[before.name].work
        for attempts in by_worker.values()
        for before, after in itertools.pairwise(attempts)
    ]
    start_up = statistics.mean(attempts[0].began for attempts in by_worker.values()) - began
    return replace(Costs(), start=0.0, look_up=0.0, start_up=start_up, transfer=statistics.mean(gaps), handling=0.0)


def foresee(
    case: Case, variants: Sequence[Variant], known: Mapping[str, Took], costs: Costs, dies: Mapping[int, float]
) -> Forecast:
    """The forecast of what a store lacks."""
    durations = Durations(known)
    works = [Work(variant.name, durations(variant).seconds) for variant in variants]
    return simulate(works, Cluster(case.workers, dies=dies), costs, known=durations.known)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", required=True, help="of the run that records, as build.sh takes them")
    parser.add_argument("--others", required=True, help="other ones")
    parser.add_argument("--recipe", type=Path, default=ROOT / "tritonsrc" / "flash" / "recipe.yaml")
    parser.add_argument("--select", default="", help="as KILN_SELECT")
    parser.add_argument("--limit", type=int, default=40, help="variants of a build, taken at random from the plan")
    parser.add_argument("--cases", type=int, default=len(CASES), help="only the first so many")
    parser.add_argument("--most", type=float, default=0.1, help="by how much a prediction may be off")
    parser.add_argument("--site", type=Path, help="the site-packages with Triton; default: this Python's")
    parser.add_argument("--json", type=Path, help="write all figures there")
    arguments = parser.parse_args()

    if arguments.limit < RECORDING:
        parser.error(f"--limit {arguments.limit} is too few; give at least {RECORDING}")
    site = arguments.site or Path(next(path for path in sys.path if (Path(path) / "triton").is_dir()))
    chain = toolchain.find_toolchain(site, lock.read_lock(ROOT / "input" / lock.LOCK_NAME).members_of("triton"))
    the_recipe = recipe.load(arguments.recipe)

    def sample(names: str) -> list[Variant]:
        made = plan.make_plan([the_recipe], targets.parse(names), "core", parse_selection(arguments.select)).variants
        distinct = list({variant.spec.key(chain.identity): variant for variant in made}.values())
        return random.Random(0).sample(distinct, min(arguments.limit, len(distinct)))

    rows = []
    with tempfile.TemporaryDirectory(prefix="kiln-bench-") as scratch:
        built_for = targets.parse(f"{arguments.targets};{arguments.others}")
        chain = native.with_heap(chain, built_for, ROOT, native.own_zig(Path(scratch, "zig")), Path(scratch))
        ours, others = sample(arguments.targets), sample(arguments.others)
        bench = Bench(chain, Path(scratch))
        recording = bench.store("recording", {})
        began = time.monotonic()
        first = bench.build([*ours, *others], RECORDING, recording)
        known = recording.durations()
        for attempt in first.attempts:  # one that takes the image of an equal IR is short again, being later again
            known.setdefault(attempt.name, Took(attempt.ended - attempt.began))
        costs = costs_of(first, known, began)
        print(f"recorded {len(known)} images in {first.wall_seconds:.1f} s; a worker starts in {costs.start_up:.2f} s, "
              f"{1000 * costs.transfer:.0f} ms between two jobs")  # fmt: skip
        for case in CASES[: arguments.cases]:
            variants = others if case.others else ours
            names = {variant.name for variant in others}
            told = {name: took for name, took in known.items() if not case.from_kin or name not in names}
            store = bench.store("case", told)
            missing = variants[len(variants) // 2 :] if case.half else variants
            for variant in variants[: len(variants) - len(missing)]:
                stored = first.outcomes[variant.name]
                store.put(first.keys[variant.name], recording.load(stored), stored.ir, stored.seconds)
            alone = foresee(case, missing, told, costs, {})
            dies = {1: alone.compile / 2} if case.kills else {}
            forecast = foresee(case, missing, told, costs, dies)
            done = bench.build(variants, case.workers, store, dies.get(1, math.inf))
            died = sum(attempt.outcome == "died" for attempt in done.attempts)
            if done.compiled + done.shared != len(missing) or died != len(dies):
                sys.exit(f"{case.name}: {done.compiled} compiled and {died} died, which is not this case")
            off = forecast.compile / done.wall_seconds - 1
            rows.append(
                {
                    "case": case.name,
                    "images": len(missing),
                    "foreseen": round(forecast.compile, 2),
                    "measured": round(done.wall_seconds, 2),
                    "off": round(off, 4),
                }
            )
            print(f"{case.name}: {len(missing)} images, foreseen {forecast.compile:.1f} s, measured "
                  f"{done.wall_seconds:.1f} s, off by {100 * off:+.1f} %", flush=True)  # fmt: skip
    if arguments.json:
        document = {
            "targets": arguments.targets,
            "others": arguments.others,
            "recorded": {name: list(took) for name, took in known.items()},
            "recording_seconds": round(first.wall_seconds, 2),
            "start_up": costs.start_up,
            "transfer": costs.transfer,
            "cases": rows,
        }
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0 if all(abs(row["off"]) <= arguments.most for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
