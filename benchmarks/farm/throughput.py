"""Two workers of a cluster on loopback against a local pool of two, on the same images, in turns.

    python benchmarks/farm/throughput.py --cores 0-1 --rounds 4 --out out

All of a side, the scheduler and the building process too, runs on the processors given. Workers have one thread each
and are there before a round begins; the local pool starts its processes in each round, as a build does. Stores are
empty in each round. Variants of which two have equal IR count once, since workers that share no store compile those
twice. A ratio is the local pool's seconds divided by the cluster's; fails (exit code 1) if the geometric mean is below
--least.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from releases import ROOT, Bench, Cluster, parser_of, running, say, tail

NAMES = ("ann", "bob")


def one_farm(words: list[str]) -> None:
    """In the Python that has Triton and Dask: compiles the variants that a file names, or as many as it says."""
    import random
    import tempfile
    import time
    from functools import partial

    from kiln_build.farm import farm
    from kiln_build.farm.cluster import connect
    from kiln_build.farm.local import LocalExecutor
    from kiln_build.native import native
    from kiln_build.store.local import LocalStore
    from kiln_recipe import targets
    from kiln_recipe.compile import lock, toolchain
    from kiln_recipe.console.progress import make_progress
    from kiln_recipe.plan import plan
    from kiln_recipe.read import recipe
    from kiln_recipe.selection import parse_selection

    asked = json.loads(words[0])
    site = Path(next(path for path in sys.path if (Path(path) / "triton").is_dir()))
    chain = toolchain.find_toolchain(site, lock.read_lock(ROOT / "input" / lock.LOCK_NAME).members_of("triton"))
    cache = Path(asked["cache"])
    compiler = native.own_zig(cache / "zig")
    chain = native.with_heap(chain, targets.parse(asked["targets"]), ROOT, compiler, cache)
    preload = native.build_memory(ROOT, compiler, cache)
    family = recipe.load(ROOT / "tritonsrc" / "flash" / "recipe.yaml")
    chosen = parse_selection(asked["select"])
    made = plan.make_plan([family], targets.parse(asked["targets"]), "core", chosen).variants
    distinct = {variant.spec.key(chain.identity): variant for variant in made}
    if asked["names"]:
        variants = [variant for variant in distinct.values() if variant.name in set(asked["names"])]
    else:
        variants = random.Random(0).sample(list(distinct.values()), min(asked["limit"], len(distinct)))
    start = partial(connect.cluster(asked["scheduler"]) if asked["scheduler"] else LocalExecutor, preload=preload)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        store = LocalStore(Path(scratch) / "store")
        options = farm.FarmOptions(
            Path(scratch) / "logs", jobs=asked["jobs"], executor=start, elsewhere=bool(asked["scheduler"])
        )
        began = time.monotonic()
        with make_progress() as progress:
            result = farm.run(variants, chain, store, options, progress)
        seconds = time.monotonic() - began
    if result.failures:
        sys.exit("\n".join(f"{failure.variant}: {failure.message}" for failure in result.failures))
    one_of = {outcome.ir: name for name, outcome in result.outcomes.items()}
    print(json.dumps({"seconds": seconds, "compiled": result.compiled, "shared": result.shared,
                      "names": sorted(one_of.values())}))  # fmt: skip


def run_farm(bench: Bench, cores: list[int], log: str, **asked: object) -> dict:
    path = bench.out / f"{log}.log"
    with path.open("ab") as file:
        done = subprocess.run(
            [str(bench.python), str(Path(__file__).resolve()), "--one", json.dumps(asked)],
            env=bench.environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=file, text=True,
            preexec_fn=lambda: os.sched_setaffinity(0, set(cores)),
        )  # fmt: skip
    if done.returncode:
        sys.exit(f"{log}: exit code {done.returncode}: {tail(path)}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> int:
    if sys.argv[1:2] == ["--one"]:
        one_farm(sys.argv[2:])
        return 0
    parser = parser_of(__doc__, "gfx942;sm_90")
    parser.add_argument("--limit", type=int, default=40, help="variants, taken at random from the plan")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--first", choices=("local", "cluster"), default="local", help="in the first round")
    parser.add_argument("--least", type=float, default=0.93, help="the least ratio that is good enough")
    arguments = parser.parse_args()
    bench = Bench(arguments)
    cores, cache = arguments.cores, bench.scratch / "throughput"
    cache.mkdir(exist_ok=True)
    asked = {"targets": bench.targets, "select": bench.select, "limit": arguments.limit, "cache": str(cache)}
    # Once before, to see which have equal IR; on all processors, if there are more.
    everywhere = sorted(os.sched_getaffinity(0))
    first = run_farm(bench, everywhere, "first", names=[], scheduler="", jobs=min(len(everywhere), 8), **asked)
    names, ratios = first["names"], []
    say(f"{len(names)} images, {first['seconds']:.1f} s with {min(len(everywhere), 8)} jobs")
    with running(Cluster(bench, "throughput", cores), dict.fromkeys(NAMES, 1)) as cluster:
        run_farm(bench, cores, "warm", names=names[:2], scheduler=cluster.address, jobs=2, **asked)
        for number in range(arguments.rounds):
            took: dict[str, float] = {}
            sides = {"local": "", "cluster": cluster.address}
            for side in sorted(sides, key=lambda one: (one != arguments.first) ^ bool(number % 2)):
                for name in NAMES:
                    shutil.rmtree(cluster.store(name), ignore_errors=True)
                done = run_farm(bench, cores, side, names=names, scheduler=sides[side], jobs=2, **asked)
                if done["compiled"] != len(names):
                    sys.exit(f"{side}: {done['compiled']} of {len(names)} compiled")
                took[side] = done["seconds"]
            ratios.append(took["local"] / took["cluster"])
            say(f"round {number + 1}: local {took['local']:.1f} s, cluster {took['cluster']:.1f} s, "
                f"ratio {ratios[-1]:.3f}")  # fmt: skip
            bench.keep(f"round {number + 1}", took | {"ratio": ratios[-1], "images": len(names)})
            bench.keep("mean", statistics.geometric_mean(ratios))
    say(f"geometric mean {statistics.geometric_mean(ratios):.3f}")
    return 0 if statistics.geometric_mean(ratios) >= arguments.least else 1


if __name__ == "__main__":
    sys.exit(main())
