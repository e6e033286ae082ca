"""What two trees' farms take of processors for the same images, in turns.

    python benchmarks/farm/turns.py --before ../before --targets "sm_90;gfx942" [--limit 20] [--rounds 3] [--json FILE]

`--before` is a checkout of another commit, from which the farm is taken; kernels and toolchain are this tree's. Each
round takes the same variants, chosen at random from the plan, and the sides take turns at being first. A side is a
process that compiles them into an empty store; counted is what its workers take of processors from their start, by
getrusage, not the time by the clock: other work on the machine disturbs that far more. The median round counts. Fails
(exit code 1) if the sides' images differ in a byte.

A commit from before the packages kiln_build and kiln_recipe, such as 79ba90d, is spoken to by its own interface. Then
both sides take only those of this tree's kernels that it is able to compile (no Gluon, no descriptors). What it strips
of images, and how it runs ptxas, is its own: how many images have equal code is said, and is no failure.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parents[2]


def one_side(arguments: argparse.Namespace) -> None:
    """Compiles with the farm of the tree on sys.path, and prints what it took as JSON."""
    from kiln_build.farm import farm
    from kiln_build.farm.local import LocalExecutor
    from kiln_build.native import native
    from kiln_build.store.local import LocalStore
    from kiln_recipe import targets
    from kiln_recipe.compile import lock, toolchain
    from kiln_recipe.console.progress import make_progress
    from kiln_recipe.plan import plan
    from kiln_recipe.read import recipe
    from kiln_recipe.selection import parse_selection

    site = arguments.site or Path(next(path for path in sys.path if (Path(path) / "triton").is_dir()))
    chain = toolchain.find_toolchain(site, lock.read_lock(ROOT / "input" / lock.LOCK_NAME).members_of("triton"))
    scratch = Path(arguments.scratch)
    zig = native.zig_compiler(sys.executable, arguments.cache / "zig", importlib.metadata.version("ziglang"))
    tree = Path(native.__file__).resolve().parents[3]
    chain = replace(chain, heap=str(native.build_heap(tree, zig, arguments.cache)))
    executor = LocalExecutor
    if hasattr(native, "build_memory"):
        executor = partial(LocalExecutor, preload=native.build_memory(tree, zig, arguments.cache))
    chosen = targets.parse(arguments.targets)
    family = recipe.load(ROOT / "tritonsrc" / "flash" / "recipe.yaml")
    variants = plan.make_plan([family], chosen, "core", parse_selection(arguments.select)).variants
    distinct = list({variant.spec.key(chain.identity): variant for variant in variants}.values())
    if arguments.specs:
        distinct = [one for one in distinct if is_plain(one.spec)]
    sample = random.Random(arguments.seed).sample(distinct, min(arguments.limit, len(distinct)))
    if arguments.specs:
        written = [{"name": variant.name, "spec": asdict(variant.spec)} for variant in sample]
        arguments.specs.write_text(json.dumps(written))
    store = LocalStore(scratch / "store")
    options = farm.FarmOptions(scratch / "logs", jobs=arguments.jobs, executor=executor)
    before = _of_children()
    with make_progress() as progress:
        result = farm.run(sample, chain, store, options, progress)
    took = _of_children() - before
    if result.failures:
        sys.exit("\n".join(f"{failure.variant}: {failure.message}" for failure in result.failures))
    digest, codes = hashlib.sha256(), []
    for variant in sample:
        image = store.load(store.get(result.keys[variant.name]))
        codes.append(hashlib.sha256(image.code).hexdigest())
        digest.update(repr((variant.name, image.info, image.ptx)).encode() + image.code)
    stages: dict[str, float] = {}
    for taken in getattr(result, "stages", {}).values():
        for stage, seconds in taken.items():
            stages[stage] = stages.get(stage, 0.0) + seconds
    told = {"seconds": took, "images": result.compiled, "digest": digest.hexdigest(), "stages": stages, "codes": codes}
    print(json.dumps(told))


def is_plain(spec) -> bool:
    """Whether old commits are able to compile it."""
    return spec.language == "triton" and not spec.ptx and not any("tensordesc" in of for _, of in spec.signature)


def compile_by_stage(notes: str, spec, toolchain, reuse=None):
    """In a worker of `old_side`: compiles, and notes what each stage took of processors as a line of a file."""
    from kiln import compile as old

    taken: dict[str, float] = {}

    class Pipeline(_pipelines.setdefault("old", old._Pipeline)):
        def lower(self) -> str:
            began = _used()
            digest = super().lower()
            taken["front end"] = _used() - began - taken["ttir"]
            return digest

        def run(self, stage: str) -> None:
            began = _used()
            super().run(stage)
            taken[stage] = _used() - began

    old._Pipeline = Pipeline
    compiled = old.compile_variant(spec, toolchain, reuse)
    with Path(notes).open("a") as file:
        file.write(json.dumps(taken) + "\n")
    return compiled


_pipelines: dict[str, type] = {}  # the commit's own, from before the first of ours took its place


def _used() -> float:
    """Seconds of processors of this process and of what it has run."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def old_side(arguments: argparse.Namespace) -> None:
    """As `one_side`, with the farm of a commit that has one package, `kiln`: compiles what --specs lists."""
    from kiln import farm, toolchain
    from kiln.plan_model import CompileSpec
    from kiln.progress import make_progress
    from kiln.store import Store

    def variant_of(name: str, spec: dict) -> SimpleNamespace:
        kept = {field.name: spec[field.name] for field in fields(CompileSpec)}
        pairs = {key: tuple(map(tuple, kept[key])) for key in ("signature", "constants", "divisible", "options")}
        return SimpleNamespace(name=name, waiver=None, spec=CompileSpec(**{**kept, **pairs}))

    site = arguments.site or Path(next(path for path in sys.path if (Path(path) / "triton").is_dir()))
    chain, scratch = toolchain.find_toolchain(site), Path(arguments.scratch)
    sample = [variant_of(**row) for row in json.loads(arguments.specs.read_text())]
    store = Store(scratch / "store")
    options, notes = farm.FarmOptions(scratch / "logs", jobs=arguments.jobs), scratch / "stages"
    compiler = partial(importlib.import_module("turns").compile_by_stage, str(notes))  # as workers import it
    before = _of_children()
    with make_progress() as progress:
        result = farm.run(sample, chain, store, options, progress, compile_variant=compiler)
    took = _of_children() - before
    if result.failures:
        sys.exit("\n".join(f"{failure.variant}: {failure.message}" for failure in result.failures))
    codes = [hashlib.sha256(store.load(result.outcomes[one.name]).code).hexdigest() for one in sample]
    stages: dict[str, float] = {}
    for line in notes.read_text().splitlines():
        for stage, seconds in json.loads(line).items():
            stages[stage] = stages.get(stage, 0.0) + seconds
    print(json.dumps({"seconds": took, "images": result.compiled, "digest": "", "stages": stages, "codes": codes}))


def _of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run_side(tree: Path, seed: int, arguments: argparse.Namespace) -> dict:
    with tempfile.TemporaryDirectory(prefix="kiln-bench-") as scratch:
        words = [sys.executable, str(Path(__file__).resolve()), "--targets", arguments.targets]
        words += ["--select", arguments.select, "--limit", str(arguments.limit), "--jobs", str(arguments.jobs)]
        words += ["--cache", str(arguments.cache), "--scratch", scratch, "--seed", str(seed)]
        words += ["--site", str(arguments.site)] if arguments.site else []
        words += ["--specs", str(arguments.specs)] if arguments.specs else []
        modules = [str(tree / "v3python"), str(Path(__file__).resolve().parent)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(modules)}
        done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.returncode)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="a checkout of the commit to compare with")
    parser.add_argument("--targets", required=True, help="as build.sh takes them")
    parser.add_argument("--select", default="", help="as KILN_SELECT")
    parser.add_argument("--limit", type=int, default=20, help="variants a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--site", type=Path, help="the site-packages with Triton; default: this Python's")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir(), "kiln-turns"), help="of zig's")
    parser.add_argument("--json", type=Path, help="write all figures there")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scratch", help=argparse.SUPPRESS)  # of one side
    parser.add_argument("--specs", type=Path, help=argparse.SUPPRESS)  # where this tree's side says what it compiles
    arguments = parser.parse_args()
    if arguments.scratch:
        is_old = importlib.util.find_spec("kiln_build") is None
        (old_side if is_old else one_side)(arguments)
        return 0
    if arguments.before is None:
        parser.error("--before is missing: a checkout of the commit to compare with")
    rounds, equal = [], True
    is_old = not (arguments.before / "v3python" / "kiln_build").is_dir()
    for number in range(arguments.rounds):
        trees = {"before": arguments.before.resolve(), "after": ROOT}
        order = list(trees) if (arguments.seed + number) % 2 == 0 else list(reversed(trees))
        if is_old:
            arguments.specs = (arguments.cache / f"specs-{number}.json").resolve()
            if order[0] == "before":  # which needs the list first
                run_side(ROOT, arguments.seed + number, arguments)
        sides = {side: run_side(trees[side], arguments.seed + number, arguments) for side in order}
        before, after = sides["before"], sides["after"]
        alike = sum(one == other for one, other in zip(before["codes"], after["codes"], strict=True))
        same = f"{alike} of {len(after['codes'])} with equal code"
        if not is_old:
            same = "equal bytes" if before["digest"] == after["digest"] else "OTHER BYTES"
            equal = equal and before["digest"] == after["digest"]
        rounds.append(sides | {"ratio": before["seconds"] / after["seconds"]})
        print(
            f"round {number + 1}: before {before['seconds'] / before['images']:.2f}, after "
            f"{after['seconds'] / after['images']:.2f} seconds of processors an image ({after['images']} images), "
            f"{rounds[-1]['ratio']:.2f} times fewer; {same}",
            flush=True,
        )
    print(f"median: {statistics.median(one['ratio'] for one in rounds):.2f} times fewer")
    if arguments.json:
        arguments.json.write_text(json.dumps({"targets": arguments.targets, "rounds": rounds}, indent=1) + "\n")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
