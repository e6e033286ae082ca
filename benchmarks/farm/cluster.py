"""One release built in four ways, side by side, on as many processors each: are the bytes equal?

    python benchmarks/farm/cluster.py --cores 0-63 --out out

- by the local pool;
- by a scheduler and four workers on loopback;
- by the same, while one worker is killed by -9, one stands still for 30 s, the scheduler is killed by -9 and started
  again, and the build is killed by -9 and run again, each in its turn as images come;
- by eight shards into one store, and --from-store.

Each has an empty store. How many images were compiled twice is counted from what the farms say, killed builds' too, and
from the stores of the workers, which have what came to nothing as well; allowed is what was under way when something
was killed. Fails (exit code 1) if a digest differs, if too many were compiled twice, or if a fault came too late: the
build had ended.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from releases import Bench, Cluster, images, irs, lines, parser_of, running, say

WORKERS, SHARDS = ("ann", "bob", "cyd", "dan"), 8
# When each fault comes, as a share of the images that the build has by then.
KILLED, HELD, SCHEDULER, CLIENT = 0.1, 0.2, 0.45, 0.65
HELD_SECONDS = 30.0


def local(bench: Bench, cores: Sequence[int]) -> dict:
    build = bench.build("local", cores, len(cores))
    return build.wait() | {"compiled": build.compiled, "different": len(irs(build.store)), "allowed": 0}


def plain(bench: Bench, cores: Sequence[int]) -> dict:
    threads = max(1, len(cores) // len(WORKERS))
    with running(Cluster(bench, "plain", cores), dict.fromkeys(WORKERS, threads)) as cluster:
        build = bench.build("plain", cores, threads * len(WORKERS), ["--scheduler", cluster.address])
        made = build.wait() | {"compiled": build.compiled, "different": len(images(build.store))}
        return made | {"images": cluster.compiled(), "allowed": 0}


def faulty(bench: Bench, cores: Sequence[int], count: int) -> dict:
    """
    Args:
        count: of the images that the build will have.
    """
    threads = max(1, len(cores) // len(WORKERS))
    jobs = threads * len(WORKERS)
    faults: list[dict] = []
    with running(Cluster(bench, "faulty", cores), dict.fromkeys(WORKERS, threads)) as cluster:
        options = ["--scheduler", cluster.address]
        build = bench.build("faulty", cores, jobs, options)
        began = time.monotonic()

        def fault(name: str, share: float, do: Callable[[], None]) -> None:
            """Waits until the build has so many images, and then does it."""
            while (have := len(images(build.store))) < share * count and build.process.poll() is None:
                time.sleep(0.05)
            missed = build.process.poll() is not None
            say(f"faulty: {name} with {have} images" + (", too late: the build has ended" if missed else ""))
            faults.append({"fault": name, "seconds": round(time.monotonic() - began, 1), "images": have,
                           "missed": missed})  # fmt: skip
            if not missed:
                do()

        def restart() -> None:
            cluster.scheduler.kill()
            cluster.scheduler.wait()
            time.sleep(3)
            cluster.start_scheduler()

        def kill() -> None:
            build.process.kill()
            build.process.wait()

        fault("a worker is killed by -9", KILLED, lambda: cluster.kill("dan"))
        fault("a worker stands still for 30 s", HELD, lambda: None)
        holding = threading.Thread(target=cluster.hold, args=("cyd", HELD_SECONDS))
        holding.start()
        fault("the scheduler is killed by -9 and started again", SCHEDULER, restart)
        holding.join()
        fault("the build is killed by -9", CLIENT, kill)
        first = build
        build = bench.build("faulty-again", cores, jobs, options, folder="faulty")
        made = build.wait()
        made["log of the first"] = [line for line in lines(first.log) if "worker" in line or "scheduler" in line][-20:]
        made["all seconds"] = round(time.monotonic() - began, 1)
        made |= {"compiled": first.compiled + build.compiled, "different": len(images(build.store))}
        return made | {"faults": faults, "images": cluster.compiled(), "allowed": threads + 2 * (jobs - threads)}


def sharded(bench: Bench, cores: Sequence[int]) -> dict:
    folder = bench.scratch / "shards-store"
    shutil.rmtree(folder, ignore_errors=True)
    store = str(folder)
    jobs = -(-len(cores) // SHARDS)
    began = time.monotonic()
    builds = [
        bench.build(f"shard-{number}", cores, jobs, ["--shard", f"{number}/{SHARDS}"], KILN_STORE=store)
        for number in range(1, SHARDS + 1)
    ]
    made = [build.wait() for build in builds]
    compiled = time.monotonic() - began
    release = bench.build("from-store", cores, len(cores), ["--from-store", "--shards", str(SHARDS)], KILN_STORE=store)
    whole = release.wait() | {"shards": made, "seconds of shards": round(compiled, 1)}
    told = sum(build.compiled for build in (*builds, release))
    return whole | {"compiled": told, "different": len(irs(folder)), "allowed": 0}


def twice(one: dict) -> int:
    """How many images were compiled although there were such: by what the farms said, or by the workers' stores."""
    stores = one.get("images", {"all": 0, "different": 0})
    return max(one["compiled"] - one["different"], stores["all"] - stores["different"])


def verdicts(made: dict[str, dict], expected: str | None) -> dict[str, list[str]]:
    """What is wrong with each way."""
    wrong: dict[str, list[str]] = {name: [] for name in made}
    for name, one in made.items():
        if "problem" in one:
            wrong[name].append(one["problem"])
            continue
        if expected is None or one.get("sha256") != expected:
            wrong[name].append("other bytes" if expected else "there are no bytes to compare with")
        if twice(one) > one["allowed"]:
            wrong[name].append(f"{twice(one)} images compiled twice, {one['allowed']} may be")
        if not one["compiled"]:
            wrong[name].append("no farm has said what it compiled, so nothing was counted")
        wrong[name] += [f"not tried, the build had ended: {fault['fault']}" for fault in one.get("faults", ())
                        if fault["missed"]]  # fmt: skip
    return wrong


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--ways", default="local,plain,faulty,sharded", help="default: %(default)s")
    parser.add_argument("--expect", default="", help="the digest of an earlier build, if local is left out")
    parser.add_argument("--images", type=int, help="how many the release has; default: all of the plan's")
    arguments = parser.parse_args()
    bench = Bench(arguments)
    chosen = arguments.ways.split(",")
    each = max(1, len(arguments.cores) // len(chosen))
    parts = {way: arguments.cores[each * n : each * (n + 1)] or arguments.cores for n, way in enumerate(chosen)}
    count = arguments.images or planned(bench)
    say(f"{count} images; processors of each: {each}")
    ways: dict[str, Callable[[Sequence[int]], dict]] = {
        "local": lambda cores: local(bench, cores),
        "plain": lambda cores: plain(bench, cores),
        "faulty": lambda cores: faulty(bench, cores, count),
        "sharded": lambda cores: sharded(bench, cores),
    }
    made: dict[str, dict] = {}

    def run(way: str) -> None:
        try:
            made[way] = ways[way](parts[way])
        except (Exception, SystemExit) as error:  # noqa: BLE001  (the others go on)
            say(f"{way}: {type(error).__name__}: {error}")
            made[way] = {"problem": f"{type(error).__name__}: {error}"}
        bench.keep(way, made[way] | {"processors": len(parts[way])})

    threads = [threading.Thread(target=run, args=(way,)) for way in chosen]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = arguments.expect or made.get("local", {}).get("sha256")
    wrong = verdicts(made, expected)
    for way, problems in wrong.items():
        one = made[way]
        counted = "" if "problem" in one else f"{twice(one)} images compiled twice, {one['allowed']} may be; "
        say(f"{way}: {counted}{one.get('sha256')}; " + ("; ".join(problems) or "good"))
    bench.keep("wrong", wrong)
    is_good = not any(wrong.values())
    bench.keep("verdict", "equal" if is_good else "not shown")
    return 0 if is_good else 1


def planned(bench: Bench) -> int:
    """How many different images a build of all this has, by its plan."""
    code = """
import sys
from kiln_recipe import targets
from kiln_recipe.plan import plan
from kiln_recipe.read import recipe
from kiln_recipe.selection import parse_selection
chosen = targets.parse(sys.argv[2]), "core", parse_selection(sys.argv[3])
print(len({one.spec.key("") for one in plan.make_plan([recipe.load(sys.argv[1])], *chosen).variants}))
"""
    words = [bench.python, "-c", code, bench.tree / "tritonsrc" / "flash" / "recipe.yaml", bench.targets, bench.select]
    return int(subprocess.run(words, env=bench.environment(), stdout=subprocess.PIPE, text=True, check=True).stdout)


if __name__ == "__main__":
    sys.exit(main())
