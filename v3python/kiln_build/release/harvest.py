"""The images of a build: what the store has, what the farm compiles, what must be compiled again, and which packs they
are for. One part of a plan may be all that is wanted, as of a shard."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from kiln_build.base import machine
from kiln_build.cache import traffic
from kiln_build.cache.access import read_access
from kiln_build.cache.layered import open_layered
from kiln_build.farm import division, farm
from kiln_build.farm.durations import Durations
from kiln_build.farm.job import COMPILED, SHARED, Job
from kiln_build.farm.options import FarmOptions
from kiln_build.native import library, native
from kiln_build.options.options import Options
from kiln_build.origin import records
from kiln_build.origin.timeline import Timeline
from kiln_build.release import assemble, summary
from kiln_build.store.store import Store, StoredImage
from kiln_build.store.stores import open_store
from kiln_recipe.compile.toolchain import Toolchain
from kiln_recipe.console.progress import Progress
from kiln_recipe.console.spelling import say, spell_seconds
from kiln_recipe.console.tables import plural
from kiln_recipe.errors import ArtifactError, EnvironmentProblem
from kiln_recipe.plan.model import Plan, Variant

_ATTEMPTS = 3  # to have every image whole: a disk that damages what it is given ends the build
_COMPILE_TO_PACK = 8  # a full profile's compiles take fourteen times as long as packing, of processors


@contextlib.contextmanager
def opened_store(options: Options, progress: Progress) -> Iterator[Store]:
    """The store, with the cache behind it if there is one; in the end what has yet to go to it goes."""
    access = read_access(options.build) if options.build.cache else None
    must_exist = options.build.from_store and not options.build.cache  # a new one has no image, and can get none
    store = open_store(options.store, lambda text: progress.message(f"warning: {text}"), there=must_exist)
    if access is not None and options.build.cache:
        workers = options.build.jobs or machine.usable_cpus()
        store = open_layered(store, options.build.cache, access, workers, progress.message)
    try:
        yield store
    except BaseException:
        store.close(at_once=True)
        raise
    store.close()


def with_heap(
    toolchains: Mapping[str, Toolchain], options: Options, compiler: library.Compiler
) -> dict[str, Toolchain]:
    """The toolchains, with the library that makes an assembler's bytes equal on every host."""
    folder = options.workspace / "build/lib"
    return {
        name: native.with_heap(chain, options.targets, options.source, compiler, folder)
        for name, chain in toolchains.items()
    }


def compiler_of(options: Options) -> library.Compiler:
    """The C++ compiler of a build: zig, without its caches of other builds."""
    return native.own_zig(options.workspace / "zig")


def gather_whole(
    the_plan: Plan,
    toolchains: Mapping[str, Toolchain],
    store: Store,
    options: Options,
    progress: Progress,
    timeline: Timeline,
) -> tuple[assemble.Harvest, list[assemble.PackPlan]]:
    """All images and the packs that they are for, every image that has yet to be packed read and held against what is
    stated of it. What is damaged is compiled again.

    Raises:
        ArtifactError: what was compiled again is damaged too.
    """
    folder = options.workspace / "build/packs"
    with _ahead(the_plan, folder, store, options) as ahead:
        for _ in range(_ATTEMPTS):
            harvest = gather(the_plan.variants, toolchains, store, options, progress, timeline, ahead)
            planned = [
                assemble.plan_pack(target, the_plan, harvest, options.version, options.build.ptx, folder)
                for target in options.targets
            ]
            damaged: dict[str, str] = {}
            for one in planned:
                if not one.is_written:
                    damaged |= assemble.damaged(one, harvest, store)
            if not damaged:
                return harvest, planned
            for name, problem in damaged.items():
                progress.message(f"warning: the image of {name} is damaged ({problem}); it is to be compiled again")
            if options.build.from_store:
                refuse_missing(the_plan, toolchains, store, options, progress)
    name, problem = next(iter(damaged.items()))
    raise ArtifactError(f"{plural(len(damaged), 'image')} damaged after being compiled again twice, {name}: {problem}")


def gather(
    wanted: Sequence[Variant],
    toolchains: Mapping[str, Toolchain],
    store: Store,
    options: Options,
    progress: Progress,
    timeline: Timeline,
    ahead: assemble.Ahead | None = None,
) -> assemble.Harvest:
    """The images of these variants, compiled where the store has none: one run of the farm for each Triton. `ahead`
    hears what becomes of them."""
    outcomes: dict[str, StoredImage | farm.Failure] = {}
    keys: dict[str, str] = {}
    for chain in dict.fromkeys(toolchains.values()):
        variants = [v for v in wanted if toolchains[v.target] == chain]
        ordered = ahead.in_order(variants) if ahead else variants
        hears: dict[str, Any] = {"arrived": ahead.add} if ahead else {}
        result = farm.run(ordered, chain, store, _farm_options(options), progress, **hears)
        if not options.build.from_store and _forget_misfits(variants, result, store, progress):
            timeline.add_jobs(result.attempts, result.jobs)
            _add_costs(timeline, variants, result)
            result = farm.run(ordered, chain, store, _farm_options(options), progress, **hears)
        outcomes |= result.outcomes
        keys |= result.keys
        timeline.add_jobs(result.attempts, result.jobs)
        _add_costs(timeline, variants, result)
        progress.message(
            f"{result.compiled} images compiled, {result.reused} from the store, {result.shared} shared by equal IR; "
            f"{spell_seconds(result.wall_seconds)} with {plural(result.jobs, 'worker')}"
        )
    harvest = assemble.judge_all(wanted, outcomes, keys)
    for reason, count in Counter(harvest.missing.values()).items():
        progress.message(f"{count} images are left out, as the recipe says: {reason}")
    return harvest


def hand_over(harvest: assemble.Harvest, options: Options, progress: Progress) -> None:
    """Sees that the cache has the images of a shard whose store is its workspace's: nothing else brings them to the
    other shards'. As long as the cache answers, what it lacks is sent.

    Raises:
        EnvironmentProblem: it still lacks some.
    """
    address = options.build.cache
    if options.build.store or not address or (access := read_access(options.build)).is_read_only:
        return
    keys = sorted({harvest.keys[name] for name in harvest.images})
    store = open_store(options.store, lambda text: progress.message(f"warning: {text}"))
    with store.in_use():
        pushed = traffic.push(store, address, access, keys, progress)
    progress.message(pushed.spell())
    if pushed.not_sent:
        raise EnvironmentProblem(
            f"the cache {address} lacks {pushed.not_sent} of the {plural(len(keys), 'image')} of this shard"
            f"{f' ({pushed.problem})' if pushed.problem else ''}, which are in the store {store.location} alone; once "
            "the cache takes them, run the shard again, or `kiln store push`"
        )


def divided(
    the_plan: Plan, toolchains: Mapping[str, Toolchain], options: Options, count: int
) -> tuple[dict[str, str], dict[str, int]]:
    """The key of each variant, by name, and the shard of each key: by what its first variant will take."""
    if options.build.durations:
        division.refuse_live(Path(options.build.durations), options.store)
    known = records.read(Path(options.build.durations), say) if options.build.durations else {}
    expected = Durations(known)
    keys, seconds = {}, {}
    for variant in the_plan.variants:
        key = keys[variant.name] = Job.of(variant.spec, toolchains[variant.target].identity).key
        if key not in seconds:
            seconds[key] = expected(variant).seconds
    return keys, division.divide(seconds, count)


def refuse_missing(
    the_plan: Plan, toolchains: Mapping[str, Toolchain], store: Store, options: Options, progress: Progress
) -> None:
    """
    Raises:
        MissingImages: the store lacks images. One that may be missing is compiled like in any build: that it cannot be
            is kept nowhere.
    """
    needed: dict[str, str] = {}  # by key, the first variant
    for variant in the_plan.variants:
        if variant.waiver is None:
            needed.setdefault(Job.of(variant.spec, toolchains[variant.target].identity).key, variant.name)
    store.prefetch(needed, progress)
    missing = {name: key for key, name in needed.items() if store.get(key) is None}
    if not missing:
        return
    shards: dict[str, int] = {}
    if options.build.shards:
        _, by_key = divided(the_plan, toolchains, options, options.build.shards)
        shards = {name: by_key[key] for name, key in missing.items()}
    summary.refuse_missing(missing, shards, options.build.shards or 0, len(needed), store.location, progress)


# ---- inside ----


def _ahead(the_plan: Plan, folder: Path, store: Store, options: Options) -> assemble.Ahead:
    """What packs while others compile: a processor for eight that compile; of a machine that waits for others all."""
    processors = machine.usable_cpus()
    workers = processors if options.build.scheduler else max(1, (options.build.jobs or processors) // _COMPILE_TO_PACK)
    own = open_store(store.location, lambda _: None)  # of damage hears who looks at all images in the end
    return assemble.Ahead(the_plan, options.build.ptx, own, assemble.kept_groups(folder), workers)


def _forget_misfits(variants: Sequence[Variant], result: farm.FarmResult, store: Store, progress: Progress) -> bool:
    """Forgets images that this build must refuse and has not compiled: what a store or a cache says of them need not be
    so. Whether there were any."""
    compiled = {result.keys[one.name] for one in result.attempts if one.outcome == COMPILED}
    misfits = {}
    for variant in variants:
        outcome, key = result.outcomes[variant.name], result.keys[variant.name]
        reason = assemble.judge_one(variant, outcome)[1]
        if reason and isinstance(outcome, StoredImage) and key not in compiled:
            misfits[variant.name] = reason
            store.forget(key, outcome)
    if misfits:
        name, reason = next(iter(misfits.items()))
        more = f", and {len(misfits) - 1} more like it" if len(misfits) > 1 else ""
        progress.message(
            f"warning: the image of {name} was not compiled here, and {reason}{more}; to be compiled again"
        )
    return bool(misfits)


def _farm_options(options: Options) -> FarmOptions:
    """How this build compiles. Workers allocate by Kiln's own library."""
    made = FarmOptions.of(options.build, options.workspace)
    memory = native.build_memory(options.source, compiler_of(options), options.workspace / "build/lib")
    return replace(made, executor=partial(made.executor, preload=memory))


def _add_costs(timeline: Timeline, variants: Sequence[Variant], result: farm.FarmResult) -> None:
    how = {attempt.name: attempt.outcome for attempt in result.attempts}
    by_name = {variant.name: variant for variant in variants}
    for name, stages in result.stages.items():
        one = by_name[name]
        timeline.costs.add(f"{one.family}.{one.operation}/{one.kernel}", one.target, stages, how.get(name) == SHARED)
