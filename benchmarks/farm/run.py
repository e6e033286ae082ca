"""The farm against a process per kernel, on the same variants and the same number of cores, in one run.

    python benchmarks/farm/run.py --targets "gfx942;sm_90" --jobs 2 [--limit 80] [--rounds 3] [--json FILE]

The farm compiles into an empty store. A process per kernel means: `--jobs` processes at a time, each a fresh Python
that imports Triton and compiles one variant by `triton.compile` with the same options, the same assembler and an empty
cache. Variants that are compiled from the same bytes with the same settings count once: that the farm would compile
them once is no part of this. A machine shared with others is no constant one: the sides take turns at being first, the
median round counts, and each round takes its own variants. Two figures are judged (exit code 1 if one is missed):

    throughput   wall time of the processes / wall time of the farm, at least 1.7
    overhead     wall time of the farm / (seconds of the compiler, as the workers measured them / workers), at most 1.08
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "v3python"))

from kiln_build.farm import farm  # noqa: E402
from kiln_build.native import native  # noqa: E402
from kiln_build.store.local import LocalStore  # noqa: E402
from kiln_recipe import targets  # noqa: E402
from kiln_recipe.compile import lock, toolchain  # noqa: E402
from kiln_recipe.console.progress import make_progress  # noqa: E402
from kiln_recipe.plan import plan  # noqa: E402
from kiln_recipe.read import recipe  # noqa: E402
from kiln_recipe.selection import parse_selection  # noqa: E402

LEAST_THROUGHPUT = 1.7
MOST_OVERHEAD = 1.08


def run_farm(variants, chain, jobs: int, scratch: Path) -> dict:
    """Seconds of a farm that begins with nothing."""
    options = farm.FarmOptions(scratch / "logs", jobs=jobs)
    with make_progress() as progress:
        result = farm.run(variants, chain, LocalStore(scratch / "store"), options, progress)
    if result.failures:
        sys.exit("\n".join(f"{failure.variant}: {failure.message}" for failure in result.failures))
    return {
        "wall_seconds": result.wall_seconds,
        "compile_seconds": result.compile_seconds,
        "compiled": result.compiled,
        "shared": result.shared,
        "jobs": result.jobs,
    }


def run_processes(variants, chain, jobs: int, scratch: Path) -> dict:
    """Seconds of a process per variant."""
    scratch.mkdir()

    def one(number: int) -> None:
        spec = variants[number].spec
        target = targets.by_name(spec.target)
        options = dict(spec.options) | ({"ptx_version": target.ptx_version} if target.ptx_version else {})
        job = {
            "site": chain.site,
            "source": spec.source,
            "function": spec.function,
            "signature": spec.signature,
            "constants": spec.constants,
            "divisible": spec.divisible,
            "options": list(options.items()),
            "backend": target.backend,
            "arch": str(target.triton_arch),
            "warp_size": target.warp_size,
            "kind": target.image_kind,
        }
        (scratch / f"{number}.json").write_text(json.dumps(job))
        process = subprocess.run(
            [
                sys.executable,
                str(Path(__file__).with_name("one_kernel.py")),
                f"{scratch}/{number}.json",
                f"{scratch}/{number}",
            ],
            env=os.environ | chain.environment(target) | {"TRITON_CACHE_DIR": str(scratch / "cache")},
            capture_output=True,
            text=True,
        )
        if process.returncode:
            sys.exit(f"{variants[number].name}: {process.stderr[-2000:]}")

    began = time.monotonic()
    with ThreadPoolExecutor(jobs) as pool:
        for result in [pool.submit(one, number) for number in range(len(variants))]:
            result.result()
    return {"wall_seconds": time.monotonic() - began, "compiled": len(variants), "jobs": jobs}


def measure(variants, chain, jobs: int, scratch: Path, farm_first: bool) -> dict:
    """One round: both sides, one after the other."""
    sides = {
        "farm": lambda: run_farm(variants, chain, jobs, scratch / "farm"),
        "processes": lambda: run_processes(variants, chain, jobs, scratch / "processes"),
    }
    done = {name: sides[name]() for name in (sides if farm_first else reversed(sides))}
    ours, theirs = done["farm"], done["processes"]
    return {
        "farm": ours,
        "processes": theirs,
        "throughput": theirs["wall_seconds"] / ours["wall_seconds"],
        "overhead": ours["wall_seconds"] / (ours["compile_seconds"] / ours["jobs"]),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", nargs="+", required=True, help="as build.sh takes them")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--recipe", type=Path, default=ROOT / "tritonsrc" / "flash" / "recipe.yaml")
    parser.add_argument("--select", default="", help="as KILN_SELECT")
    parser.add_argument("--limit", type=int, help="at most so many variants a round, taken at random from the plan")
    parser.add_argument("--rounds", type=int, default=3, help="the median round counts")
    parser.add_argument("--site", type=Path, help="the site-packages with Triton; default: this Python's")
    parser.add_argument("--json", type=Path, help="write all figures there")
    arguments = parser.parse_args()

    site = arguments.site or Path(next(path for path in sys.path if (Path(path) / "triton").is_dir()))
    chain = toolchain.find_toolchain(site, lock.read_lock(ROOT / "input" / lock.LOCK_NAME).members_of("triton"))
    chosen = targets.parse(" ".join(arguments.targets))
    made = tempfile.TemporaryDirectory(prefix="kiln-bench-")
    chain = native.with_heap(chain, chosen, ROOT, native.own_zig(Path(made.name, "zig")), Path(made.name))
    variants = plan.make_plan(
        [recipe.load(arguments.recipe)], chosen, "core", parse_selection(arguments.select)
    ).variants
    distinct = list({variant.spec.key(chain.identity): variant for variant in variants}.values())
    limit = min(arguments.limit or len(distinct), len(distinct))
    choose = random.Random(0)

    rounds = []
    for number in range(arguments.rounds):
        chosen_variants = choose.sample(distinct, limit)
        with tempfile.TemporaryDirectory(prefix="kiln-bench-") as scratch:
            rounds.append(measure(chosen_variants, chain, arguments.jobs, Path(scratch), number % 2 == 0))
        print(f"round {number + 1}: throughput {rounds[-1]['throughput']:.2f}, overhead {rounds[-1]['overhead']:.3f}")

    throughput = statistics.median(entry["throughput"] for entry in rounds)
    overhead = statistics.median(entry["overhead"] for entry in rounds)
    last = rounds[-1]
    ours, theirs = last["farm"], last["processes"]
    print(
        f"\n{limit} of {len(distinct)} different variants for {' '.join(target.name for target in chosen)} a round, "
        f"{ours['jobs']} at once; the last round:"
    )
    print(f"{'':22}{'wall':>10}{'a variant':>12}")
    for name, seconds in (("farm", ours["wall_seconds"]), ("process per kernel", theirs["wall_seconds"])):
        print(f"{name:22}{seconds:>8.1f} s{seconds * ours['jobs'] / limit:>10.2f} s")
    compiling = ours["compile_seconds"] / ours["jobs"]
    print(f"{'compiling, a worker':22}{compiling:>8.1f} s, {ours['shared']} variants shared an image")
    passed = throughput >= LEAST_THROUGHPUT and overhead <= MOST_OVERHEAD
    print(
        f"throughput {throughput:.2f} (at least {LEAST_THROUGHPUT}), overhead {overhead:.3f} (at most {MOST_OVERHEAD})"
    )
    if arguments.json:
        document = {
            "variants": len(variants),
            "different": len(distinct),
            "measured": limit,
            "targets": [target.name for target in chosen],
            "triton": chain.triton_version,
            "throughput": throughput,
            "overhead": overhead,
            "passed": passed,
            "rounds": rounds,
        }
        arguments.json.write_text(json.dumps(document, indent=2) + "\n")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
