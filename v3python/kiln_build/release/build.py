"""The order of a build: plan, farm, judge, pack, generate, native, release. Each step is a module of its own.

A step whose inputs are those of the last time finds its result under the digest of its inputs and does nothing.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from kiln_build.artifacts import manifest, pack
from kiln_build.base import machine
from kiln_build.cache.access import read_access
from kiln_build.cache.layered import open_layered
from kiln_build.farm import division, farm
from kiln_build.farm.durations import Durations
from kiln_build.farm.job import COMPILED, SHARED, Job
from kiln_build.native import adapters, library, native
from kiln_build.options import naming
from kiln_build.options.options import Options
from kiln_build.options.variables import Shard
from kiln_build.origin import bill, notices, provenance
from kiln_build.origin.timeline import Timeline
from kiln_build.release import assemble, families, package, release, replacement, summary
from kiln_build.release.families import Families
from kiln_build.store.store import Store, StoredImage
from kiln_build.store.stores import open_store
from kiln_recipe import digests as content
from kiln_recipe import targets as target_table
from kiln_recipe.compile import lock, toolchain
from kiln_recipe.compile.toolchain import Toolchain
from kiln_recipe.console.progress import Progress, make_progress
from kiln_recipe.console.spelling import spell_seconds
from kiln_recipe.console.tables import plural
from kiln_recipe.errors import ArtifactError
from kiln_recipe.plan import plan
from kiln_recipe.plan.model import Plan, Variant
from kiln_recipe.selection import spell_selection

_ATTEMPTS = 3  # to have every image whole: a disk that damages what it is given ends the build
_COMPILE_TO_PACK = 8  # a full profile's compiles take fourteen times as long as packing, of processors


def build(options: Options) -> Path | None:
    """Builds a release; returns the tarball's path. Of a shard it compiles the images, and returns None.

    Raises:
        KilnError: bad input, or a step that failed; the tarball of an earlier build stays as it was.
    """
    if options.build.shard is None:
        options.output.mkdir(parents=True, exist_ok=True)  # first: the progress may be written there
    with make_progress(log_json=options.build.log_json) as progress:
        if options.build.shard is not None:
            _build_shard(options, options.build.shard, progress)
            return None
        chosen = families.choose(options.source, options.build)
        name = naming.name_of(options.version, options.build, chosen.only or chosen.added, bool(chosen.only))
        named = replace(options, version=name)
        tarball = named.output / release.tarball_name(named.version)
        try:
            with contextlib.ExitStack() as held:
                return _build(named, chosen, tarball, progress, held)
        except replacement.InTheWay:
            raise
        except BaseException:
            if replacement.is_finished(tarball):
                progress.message(f"{tarball} is from an earlier build and was not changed")
            raise


def _build(options: Options, chosen: Families, tarball: Path, progress: Progress, held: contextlib.ExitStack) -> Path:
    """
    Args:
        held: what stays open until the build is over.
    """
    timeline, began_at = Timeline(), time.time()
    timeline.step("plan")
    replacement.check_names(tarball)
    the_plan = make_plan(options, chosen)
    summary.begin(options, the_plan, tarball, progress)
    for warning in the_plan.warnings if not options.build.no_image else ():
        progress.message(f"warning: {warning}")
    the_lock = lock.read_lock(options.input / lock.LOCK_NAME)
    toolchains = _find_toolchains(options, the_lock, progress)
    if not options.build.replace:
        identities = {name: chain.identity for name, chain in toolchains.items()}
        replacement.check_before(
            tarball,
            replacement.Inputs(
                options.commit,
                options.dirty,
                options.patches,
                identities,
                lambda: {Job.of(variant.spec, identities[variant.target]).key for variant in the_plan.variants},
            ),
        )
    store = held.enter_context(_opened_store(options, progress))
    packs: dict[str, Path] = {}
    harvest = None
    workers = options.build.jobs or machine.usable_cpus()
    compiler = _compiler(options)
    if not options.build.no_image:
        toolchains = _with_heap(toolchains, options, compiler)
        with store.in_use():
            if options.build.from_store:
                _refuse_missing(the_plan, toolchains, store, options, progress)
            timeline.step("compile")
            harvest, planned = _whole_harvest(the_plan, toolchains, store, options, progress, timeline)
            timeline.step("pack")
            packs = assemble.write_packs(planned, store, workers, progress.message)
    progress.message("linking the libraries")
    timeline.step("link")
    archives = {one.package: options.cache / the_lock.source_of(one.package).name for one in native.VENDORED}
    indexes = {name: pack.read_pack(path) for name, path in packs.items()}
    header = package.version_header((options.source / "include/kiln/version.h.in").read_text(), options.version)
    sources = [assemble.family_of(r, the_plan, harvest, indexes, options.version) for r in the_plan.recipes]
    files = {name: target_table.by_name(name).pack_file for name in packs}
    texts = notices.collect(options.source, options.site, archives)
    digests = {files[name]: index.index_digest for name, index in indexes.items()}
    native.write_generated(sources, options.workspace / "build/generated", digests, texts)
    first = options.targets[0].name
    adapted = [
        adapter
        for adapter in adapters.find(options.source, options.site_of(first), toolchains[first].identity)
        if adapter.over in {family.name for family in sources}
    ]
    libraries = native.build_libraries(
        options.source,
        native.extract_sources(the_lock, options.cache, options.workspace / "build"),
        header,
        sources,
        adapted,
        compiler,
        options.workspace / "build/lib",
        workers,
    )
    timeline.step("assemble")
    stage = options.workspace / "build/stage/kiln"
    source = manifest.Source(commit=options.commit, dirty=options.dirty, patches=options.patches)
    release.lay_out(
        release.Contents(
            version=options.version,
            libraries=libraries,
            families=[family.name for family in sources],
            packs={files[name]: path for name, path in packs.items()},
            headers=_headers(options.source, header, sources),
            adapters=adapted,
            templates=options.source / "cmake",
            notices=texts,
            bill=bill.of_release(
                bill.Facts(
                    tree=options.source,
                    version=options.version,
                    source=source,
                    lock=the_lock,
                    lock_digest=content.of_file(options.input / lock.LOCK_NAME),
                    toolchains=tuple(dict.fromkeys(toolchains.values())),
                    added=chosen.added,
                )
            ),
        ),
        stage,
    )
    document = manifest.make_manifest(
        manifest.Inputs(
            version=options.version,
            profile=options.build.profile,
            selection=spell_selection(options.build.selection),
            families=chosen.only,
            ptx=options.build.ptx,
            source=source,
            tools=made_by(compiler, the_lock),
            targets=options.targets,
            toolchains=toolchains,
            packs=indexes,
            waivers=manifest.summarize_waivers(the_plan.variants, harvest.missing if harvest else {}),
            verifications=manifest.load_verifications(options.source / "docs/measurements/verified"),
            ptx_versions={i.digest: i.info.ptx_version for i in harvest.images.values()} if harvest else {},
        ),
        stage,
        release.PLATFORM,
    )
    (stage / manifest.PATH).parent.mkdir(parents=True, exist_ok=True)
    (stage / manifest.PATH).write_bytes(manifest.encode(document))
    timeline.step("tarball")
    made = release.make_release(stage, options.output, options.version, options.build.replace)
    added = [recipe for recipe in the_plan.recipes if recipe.family in chosen.added]
    names = [recipe.family for recipe in the_plan.recipes]
    provenance.write(provenance.Run(options, the_lock, names, added, stage, began_at, time.time()), made)
    timeline.write(options.version, made)
    if options.build.costs:
        summary.costs(timeline.costs.write(options.version, made), progress)
    summary.end(options, the_plan, indexes, made, time.monotonic() - timeline.began, progress)
    return made


def find_toolchains(options: Options, the_lock: lock.Lock) -> dict[str, Toolchain]:
    """The toolchain of each target; each installed Triton is read once."""
    wheels = the_lock.members_of("triton")
    sites = dict.fromkeys(options.site_of(target.name) for target in options.targets)
    found = {site: toolchain.find_toolchain(site, wheels) for site in sites}
    return {target.name: found[options.site_of(target.name)] for target in options.targets}


def make_plan(options: Options, chosen: Families) -> Plan:
    """The plan of a build of these families."""
    asked = options.build
    rules = options.source / "tuning"
    return plan.make_plan(chosen.recipes, options.targets, asked.profile, asked.selection, rules, asked.configurations)


def _whole_harvest(
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
            harvest = _harvest(the_plan.variants, toolchains, store, options, progress, timeline, ahead)
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
                _refuse_missing(the_plan, toolchains, store, options, progress)
    name, problem = next(iter(damaged.items()))
    raise ArtifactError(f"{plural(len(damaged), 'image')} damaged again after a second compile, {name}: {problem}")


def _ahead(the_plan: Plan, folder: Path, store: Store, options: Options) -> assemble.Ahead:
    """What packs while others compile: a processor for eight that compile; of a machine that waits for others all."""
    processors = machine.usable_cpus()
    workers = processors if options.build.scheduler else max(1, (options.build.jobs or processors) // _COMPILE_TO_PACK)
    own = open_store(store.location, lambda _: None)  # of damage hears who looks at all images in the end
    return assemble.Ahead(the_plan, options.build.ptx, own, assemble.kept_groups(folder), workers)


def _harvest(
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


def _build_shard(options: Options, shard: Shard, progress: Progress) -> None:
    """Compiles one part of the plan into the store."""
    the_plan = make_plan(options, families.choose(options.source, options.build))
    the_lock = lock.read_lock(options.input / lock.LOCK_NAME)
    toolchains = _find_toolchains(options, the_lock, progress)
    keys, division = _divided(the_plan, toolchains, options, shard.count)
    mine = [variant for variant in the_plan.variants if division[keys[variant.name]] == shard.index]
    summary.begin_shard(options, the_plan, shard, len(mine), progress)
    timeline = Timeline()
    toolchains = _with_heap(toolchains, options, _compiler(options))
    with _opened_store(options, progress) as store, store.in_use():
        harvest = _harvest(mine, toolchains, store, options, progress, timeline)
    summary.end_shard(shard, len(harvest.images), store.location, time.monotonic() - timeline.began, progress)


@contextlib.contextmanager
def _opened_store(options: Options, progress: Progress) -> Iterator[Store]:
    """The store, with the cache behind it if there is one; in the end what has yet to go to it goes."""
    access = read_access(options.build) if options.build.cache else None
    store = open_store(options.store, lambda text: progress.message(f"warning: {text}"))
    if access is not None and options.build.cache:
        workers = options.build.jobs or machine.usable_cpus()
        store = open_layered(store, options.build.cache, access, workers, progress.message)
    try:
        yield store
    except BaseException:
        store.close(at_once=True)
        raise
    store.close()


def _divided(
    the_plan: Plan, toolchains: Mapping[str, Toolchain], options: Options, count: int
) -> tuple[dict[str, str], dict[str, int]]:
    """The key of each variant, by name, and the shard of each key: by what its first variant will take."""
    if options.build.durations:
        division.refuse_live(Path(options.build.durations), options.store)
    known = division.read_durations(Path(options.build.durations)) if options.build.durations else {}
    expected = Durations(known)
    keys, seconds = {}, {}
    for variant in the_plan.variants:
        key = keys[variant.name] = Job.of(variant.spec, toolchains[variant.target].identity).key
        if key not in seconds:
            seconds[key] = expected(variant).seconds
    return keys, division.divide(seconds, count)


def _refuse_missing(
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
        _, by_key = _divided(the_plan, toolchains, options, options.build.shards)
        shards = {name: by_key[key] for name, key in missing.items()}
    summary.refuse_missing(missing, shards, options.build.shards or 0, len(needed), store.location, progress)


def _find_toolchains(options: Options, the_lock: lock.Lock, progress: Progress) -> dict[str, Toolchain]:
    """`find_toolchains`, with what is to be said of them."""
    toolchains = find_toolchains(options, the_lock)
    for chain in dict.fromkeys(toolchains.values()):
        if chain.warning:
            progress.message(f"warning: {chain.warning}")
    return toolchains


def _with_heap(
    toolchains: Mapping[str, Toolchain], options: Options, compiler: library.Compiler
) -> dict[str, Toolchain]:
    folder = options.workspace / "build/lib"
    return {
        name: native.with_heap(chain, options.targets, options.source, compiler, folder)
        for name, chain in toolchains.items()
    }


def _farm_options(options: Options) -> farm.FarmOptions:
    """How this build compiles. Workers allocate by Kiln's own library."""
    made = farm.FarmOptions.of(options.build, options.workspace)
    memory = native.build_memory(options.source, _compiler(options), options.workspace / "build/lib")
    return replace(made, executor=partial(made.executor, preload=memory))


def _add_costs(timeline: Timeline, variants: Sequence[Variant], result: farm.FarmResult) -> None:
    how = {attempt.name: attempt.outcome for attempt in result.attempts}
    by_name = {variant.name: variant for variant in variants}
    for name, stages in result.stages.items():
        one = by_name[name]
        timeline.costs.add(f"{one.family}.{one.operation}/{one.kernel}", one.target, stages, how.get(name) == SHARED)


def _compiler(options: Options) -> library.Compiler:
    return native.own_zig(options.workspace / "zig")


def _headers(source: Path, version_header: str, families: Sequence[native.FamilySources]) -> dict[str, Path | str]:
    """The public headers by their path below include/: the core's and the families'."""
    headers: dict[str, Path | str] = {f"kiln/{name}": source / "include/kiln" / name for name in native.CORE_HEADERS}
    for family in families:
        headers |= family.public
    return headers | {"kiln/version.h": version_header}


def made_by(compiler: library.Compiler, the_lock: lock.Lock) -> tuple[manifest.Tool, ...]:
    """What made bytes of the release besides Triton. With digests stand the files that are the same for every Python,
    as the release is."""
    zig = the_lock.wheel_of("ziglang", lock.running_python())
    sources = {one.package: the_lock.source_of(one.package) for one in native.VENDORED}
    versions = {package.name: package.version for package in the_lock.packages}
    return (
        manifest.Tool(name="compiler", version=compiler.identity, sha256=zig.sha256),
        *(
            manifest.Tool(name=f"{package}'s source", version=versions[package], sha256=source.sha256)
            for package, source in sources.items()
        ),
        *(manifest.Tool(name=name, version=importlib.metadata.version(name)) for name in ("zstandard", "deflate")),
    )
