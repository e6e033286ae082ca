"""The order of a build: plan, harvest, pack, generate, native, release. Each step is a module of its own.

A step whose inputs are those of the last time finds its result under the digest of its inputs and does nothing.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from kiln_build.artifacts import manifest, pack
from kiln_build.base import machine
from kiln_build.farm.job import Job
from kiln_build.native import adapters, library, native
from kiln_build.options import naming
from kiln_build.options.options import Options
from kiln_build.options.variables import Shard
from kiln_build.origin import bill, notices, provenance, records
from kiln_build.origin.timeline import Timeline
from kiln_build.release import assemble, families, package, release, replacement, summary
from kiln_build.release.families import Families
from kiln_build.release.harvest import (
    compiler_of,
    divided,
    gather,
    gather_whole,
    hand_over,
    opened_store,
    refuse_missing,
    with_heap,
)
from kiln_recipe import digests as content
from kiln_recipe import targets as target_table
from kiln_recipe.compile import lock, toolchain
from kiln_recipe.compile.toolchain import Toolchain
from kiln_recipe.console.progress import Progress, make_progress
from kiln_recipe.plan import plan
from kiln_recipe.plan.model import Plan
from kiln_recipe.selection import spell_selection


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
        if options.build.durations:  # refused also where nothing is missing, and so no image is in a shard
            records.read(Path(options.build.durations))
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
    store = held.enter_context(opened_store(options, progress))
    packs: dict[str, Path] = {}
    harvest = None
    workers = options.build.jobs or machine.usable_cpus()
    compiler = compiler_of(options)
    if not options.build.no_image:
        toolchains = with_heap(toolchains, options, compiler)
        with store.in_use():
            if options.build.from_store:
                refuse_missing(the_plan, toolchains, store, options, progress)
            timeline.step("compile")
            harvest, planned = gather_whole(the_plan, toolchains, store, options, progress, timeline)
            timeline.step("pack")
            packs = assemble.write_packs(planned, store, workers, progress.message)
    progress.message("linking the libraries")
    timeline.step("link")
    state = _State(options, chosen, the_lock, the_plan, toolchains, harvest, packs, compiler)
    linked = _link(state, workers)
    timeline.step("assemble")
    stage = options.workspace / "build/stage/kiln"
    _stage(state, linked, stage)
    timeline.step("tarball")
    made = release.make_release(stage, options.output, options.version, options.build.replace)
    added = [recipe for recipe in the_plan.recipes if recipe.family in chosen.added]
    names = [recipe.family for recipe in the_plan.recipes]
    provenance.write(provenance.Run(options, the_lock, names, added, stage, began_at, time.time()), made)
    timeline.write(options.version, made)
    if options.build.costs:
        path = timeline.costs.write(options.version, made)
        summary.costs(json.loads(path.read_text()), progress)
        progress.message(f"the same as JSON: {path}")
    summary.end(options, the_plan, state.indexes, made, time.monotonic() - timeline.began, progress)
    return made


@dataclass(frozen=True)
class _State:
    """What a build has once it has images; `harvest` is None and `packs` empty of one without. `packs`: by target."""

    options: Options
    chosen: Families
    lock: lock.Lock
    plan: Plan
    toolchains: Mapping[str, Toolchain]
    harvest: assemble.Harvest | None
    packs: Mapping[str, Path]
    compiler: library.Compiler

    @cached_property
    def indexes(self) -> dict[str, pack.Pack]:
        """Of the packs, by target."""
        return {name: pack.read_pack(path) for name, path in self.packs.items()}

    @cached_property
    def files(self) -> dict[str, str]:
        """What the packs are called in a release, by target."""
        return {name: target_table.by_name(name).pack_file for name in self.packs}


@dataclass(frozen=True)
class _Linked:
    """What is linked, and what it was linked of: headers and texts that go into the release too."""

    libraries: Mapping[str, Path]
    families: Sequence[native.FamilySources]
    adapters: Sequence[adapters.Adapter]
    version_header: str
    notices: Mapping[str, str]


def _link(state: _State, workers: int) -> _Linked:
    """Generates the families' tables, and links the libraries."""
    options = state.options
    header = package.version_header((options.source / "include/kiln/version.h.in").read_text(), options.version)
    families = [
        assemble.family_of(recipe, state.plan, state.harvest, state.indexes, options.version)
        for recipe in state.plan.recipes
    ]
    archives = {one.package: options.cache / state.lock.source_of(one.package).name for one in native.VENDORED}
    texts = notices.collect(options.source, options.site, archives)
    digests = {state.files[name]: index.index_digest for name, index in state.indexes.items()}
    native.write_generated(families, options.workspace / "build/generated", digests, texts)
    first = options.targets[0].name
    adapted = [
        adapter
        for adapter in adapters.find(options.source, options.site_of(first), state.toolchains[first].identity)
        if adapter.over in {family.name for family in families}
    ]
    libraries = native.build_libraries(
        options.source,
        native.extract_sources(state.lock, options.cache, options.workspace / "build"),
        header,
        families,
        adapted,
        state.compiler,
        options.workspace / "build/lib",
        workers,
    )
    return _Linked(libraries, families, adapted, header, texts)


def _stage(state: _State, linked: _Linked, stage: Path) -> None:
    """Lays the release out, with its manifest, in the folder `stage`."""
    options = state.options
    source = manifest.Source(commit=options.commit, dirty=options.dirty, patches=options.patches)
    release.lay_out(
        release.Contents(
            version=options.version,
            libraries=linked.libraries,
            families=[family.name for family in linked.families],
            packs={state.files[name]: path for name, path in state.packs.items()},
            headers=_headers(options.source, linked.version_header, linked.families),
            adapters=linked.adapters,
            templates=options.source / "cmake",
            notices=linked.notices,
            bill=bill.of_release(
                bill.Facts(
                    tree=options.source,
                    version=options.version,
                    source=source,
                    lock=state.lock,
                    lock_digest=content.of_file(options.input / lock.LOCK_NAME),
                    toolchains=tuple(dict.fromkeys(state.toolchains.values())),
                    added=state.chosen.added,
                )
            ),
        ),
        stage,
    )
    harvest = state.harvest
    document = manifest.make_manifest(
        manifest.Inputs(
            version=options.version,
            profile=options.build.profile,
            selection=spell_selection(options.build.selection),
            families=state.chosen.only,
            ptx=options.build.ptx,
            source=source,
            tools=made_by(state.compiler, state.lock),
            targets=options.targets,
            toolchains=state.toolchains,
            packs=state.indexes,
            waivers=manifest.summarize_waivers(state.plan.variants, harvest.missing if harvest else {}),
            verifications=manifest.load_verifications(options.source / "docs/measurements/verified"),
            ptx_versions={i.digest: i.info.ptx_version for i in harvest.images.values()} if harvest else {},
        ),
        stage,
        release.PLATFORM,
    )
    (stage / manifest.PATH).parent.mkdir(parents=True, exist_ok=True)
    (stage / manifest.PATH).write_bytes(manifest.encode(document))


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


def _build_shard(options: Options, shard: Shard, progress: Progress) -> None:
    """Compiles one part of the plan into the store, and brings it to where the other parts are."""
    the_plan = make_plan(options, families.choose(options.source, options.build))
    the_lock = lock.read_lock(options.input / lock.LOCK_NAME)
    toolchains = _find_toolchains(options, the_lock, progress)
    keys, division = divided(the_plan, toolchains, options, shard.count)
    mine = [variant for variant in the_plan.variants if division[keys[variant.name]] == shard.index]
    summary.begin_shard(options, the_plan, shard, len(mine), progress)
    timeline = Timeline()
    timeline.step("compile")
    toolchains = with_heap(toolchains, options, compiler_of(options))
    with opened_store(options, progress) as store, store.in_use():
        harvest = gather(mine, toolchains, store, options, progress, timeline)
    hand_over(harvest, options, progress)
    if options.build.costs:
        summary.costs(timeline.costs.document(options.version, ""), progress)
    summary.end_shard(shard, len(harvest.images), store.location, time.monotonic() - timeline.began, progress)


def _find_toolchains(options: Options, the_lock: lock.Lock, progress: Progress) -> dict[str, Toolchain]:
    """`find_toolchains`, with what is to be said of them."""
    toolchains = find_toolchains(options, the_lock)
    for chain in dict.fromkeys(toolchains.values()):
        if chain.warning:
            progress.message(f"warning: {chain.warning}")
    return toolchains


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
