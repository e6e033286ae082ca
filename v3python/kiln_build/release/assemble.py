"""Images to packs and tables: what the farm gave is judged, put into its slots, and handed to the writers.

Compressing a pack is most of the work of writing it. `Ahead` does it while images still come, and leaves what it made
among the groups that a workspace keeps. `write_packs` asks for nothing else: what was not made in time, or was made of
other images than the pack gets after all, costs time and no byte.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import queue
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec

from kiln_build.artifacts import pack, pack_writer, split
from kiln_build.artifacts.left_out import NO_KEY
from kiln_build.artifacts.pack import KernelSlots, Pack, Slot
from kiln_build.base import kept
from kiln_build.farm.farm import WAIVABLE, Failure
from kiln_build.native import argument_files, generate, native
from kiln_build.native.family_header import family_header
from kiln_build.store.store import Store, StoredImage
from kiln_recipe import targets as target_table
from kiln_recipe.console.progress import and_more
from kiln_recipe.errors import ArtifactError, BuildFailed, KilnError
from kiln_recipe.images import elf, elf_file, judge
from kiln_recipe.model import Recipe
from kiln_recipe.plan import plan
from kiln_recipe.plan.model import KernelPlan, Plan, Variant
from kiln_recipe.targets import Target

# Groups of packs that a workspace keeps compressed: ten times what the full profile of a target takes.
_GROUPS_BYTES = 256 << 20
# What a pack's bytes depend on.
_WRITERS = (pack.__file__, pack_writer.__file__, split.__file__, elf.__file__, elf_file.__file__)


@dataclass(frozen=True)
class Harvest:
    """What the farm gave and the judge let pass.

    Attributes:
        images: by variant name.
        missing: by variant name the reason why a waived variant has none.
        keys: of all variants, by name.
    """

    images: Mapping[str, StoredImage]
    missing: Mapping[str, str]
    keys: Mapping[str, str]


def judge_one(variant: Variant, outcome: StoredImage | Failure) -> tuple[StoredImage | None, str]:
    """Its image, or None, and the reason why a build must refuse the variant: "" where its recipe waives it."""
    if isinstance(outcome, Failure):
        reason = outcome.message + (f" (log: {outcome.log})" if outcome.log else "")
        is_waivable = outcome.kind in WAIVABLE
    else:
        target = target_table.by_name(variant.target)
        verdict = judge.verdict(outcome.info, target, variant.parameter_count, variant.spill_allowance)
        if not verdict:
            return outcome, ""
        reason, is_waivable = "its image " + "; it ".join(verdict), True
    return None, "" if is_waivable and variant.waiver is not None else reason


def judge_all(
    variants: Sequence[Variant], outcomes: Mapping[str, StoredImage | Failure], keys: Mapping[str, str]
) -> Harvest:
    """Every image against its target's limits.

    Raises:
        BuildFailed: variants failed or are unfit that no recipe waives; names each, its reason and its log. Of those
            that the compiler rejected in the same words the first is named and the others are counted.
    """
    images: dict[str, StoredImage] = {}
    missing: dict[str, str] = {}
    failed: dict[str, list[tuple[str, str]]] = {}  # names and reasons, by what makes failures equal
    for variant in variants:
        outcome = outcomes[variant.name]
        image, reason = judge_one(variant, outcome)
        if image is not None:
            images[variant.name] = image
        elif not reason and variant.waiver is not None:
            missing[variant.name] = variant.waiver
        else:
            same = outcome.message if isinstance(outcome, Failure) and outcome.kind == "compile" else variant.name
            failed.setdefault(same, []).append((variant.name, reason))
    if failed:
        lines = [f"{sum(map(len, failed.values()))} of {len(variants)} variants failed:"]
        for (name, reason), *more in failed.values():
            lines.append(f"  {name}{f' {and_more(len(more))}' if more else ''}: {reason}")
        if any(_is_of_backend(outcomes[name]) for names in failed.values() for name, _ in names):
            lines.append("`targets` or `unavailable` in the recipe leaves out what a backend does not compile")
        raise BuildFailed("\n".join(lines))
    return Harvest(images, missing, keys)


def _is_of_backend(outcome: StoredImage | Failure) -> bool:
    """Whether a compile failed without a mistake in the kernel's source, which has a place."""
    return isinstance(outcome, Failure) and outcome.kind == "compile" and not re.match(r".*:\d+: ", outcome.message)


@dataclass(frozen=True)
class PackPlan:
    """The pack of a target before it is written.

    Attributes:
        path: where it is kept, under the digest of all that its bytes depend on.
        kernels: what it holds.
        images: whose code and, if they are packed, PTX it holds, by name of the variant.
        with_ptx: whether they are.
    """

    target: Target
    path: Path
    version: str
    kernels: Sequence[KernelSlots]
    images: Mapping[str, StoredImage]
    with_ptx: bool

    @property
    def is_written(self) -> bool:
        """Whether the pack is there, every byte as it was written."""
        return kept.is_whole(self.path)


def plan_pack(target: Target, the_plan: Plan, harvest: Harvest, version: str, with_ptx: bool, folder: Path) -> PackPlan:
    """What the pack of a target will hold, to be kept in `folder`."""
    kernels = [_slots(kernel, the_plan, harvest, with_ptx) for kernel in the_plan.kernels if kernel.target == target]
    names = [v.name for v in the_plan.variants if v.target == target.name and v.name in harvest.images]
    images = {name: harvest.images[name] for name in names}
    infos = {image.digest: image.info for image in images.values()}
    inputs = [
        *(hashlib.sha256(Path(writer).read_bytes()).hexdigest() for writer in _WRITERS),
        target.instructions,
        importlib.metadata.version("zstandard"),
        version,
        kernels,
        [infos[slot.image] for kernel in kernels for slot in kernel.slots if slot.image],
    ]
    digest = hashlib.sha256(msgspec.json.encode(inputs)).hexdigest()[:16]
    path = folder / f"{target.vendor}-{target.name}-{digest}.pack"
    return PackPlan(target, path, version, kernels, images, with_ptx)


def write_packs(planned: Sequence[PackPlan], store: Store, workers: int, say: Callable[[str], None]) -> dict[str, Path]:
    """Writes the packs that are not written; gives all of them by their target's name.

    Args:
        workers: processors that work on it.
        say: is told of each pack when it begins.

    Raises:
        ArtifactError: an image is damaged.
        EnvironmentProblem: one cannot be written.
    """
    for one in planned:
        say(f"packing the images of {one.target.name}")
        if not one.is_written:
            _write_pack(one, store, workers)
    for folder in {one.path.parent for one in planned}:
        kept_groups(folder).trim()
    return {one.target.name: one.path for one in planned}


def _write_pack(planned: PackPlan, store: Store, workers: int) -> None:
    target, path = planned.target, planned.path
    path.parent.mkdir(parents=True, exist_ok=True)
    kept.clear(path.parent, f"{target.vendor}-{target.name}-*.pack")
    infos = {image.digest: image.info for image in planned.images.values()}
    pack_writer.write_pack(
        path, target.name, split.INSTRUCTIONS[target.instructions], planned.version, planned.kernels,
        infos.__getitem__, store.read, elf.code_ranges, workers, kept_groups(path.parent),
    )  # fmt: skip
    kept.seal(path)


def kept_groups(folder: Path) -> kept.Pieces:
    """The compressed groups beside the packs in a folder."""
    return kept.Pieces(folder / "groups", _GROUPS_BYTES)


class Ahead:
    """Compresses the groups of packs as soon as all their images are there, in threads; zstandard needs no lock of
    Python's.

    A context. Leaving it ends the work: what a thread has begun it ends, within seconds; the rest is left to
    `write_packs`. What is damaged or cannot be read is left to it too.

    Args:
        with_ptx: whether packs have the PTX.
        store: for these threads alone.
        groups: get what is made.
        workers: how many groups are compressed at once.
    """

    def __init__(self, the_plan: Plan, with_ptx: bool, store: Store, groups: kept.Pieces, workers: int) -> None:
        self._groups = groups
        self._streams = {target.name: _Stream(target, with_ptx, store) for target in the_plan.targets}
        self._variants: dict[str, Variant] = {}  # in the order of the packs
        for kernel in the_plan.kernels:
            by_slot = {variant.slot: variant for variant in the_plan.variants_of(kernel)}
            specializations = len(kernel.kernel.specializations)
            for slot in pack_writer.in_order(kernel.slots, len(kernel.configurations), specializations):
                if slot in by_slot:
                    self._variants[by_slot[slot].name] = by_slot[slot]
                    self._streams[kernel.target.name].waiting.append(by_slot[slot].name)
        self._came: queue.SimpleQueue[tuple[Sequence[str], StoredImage | Failure] | None] = queue.SimpleQueue()
        self._ready = self._complete()
        self._turn = threading.Lock()  # whose holder takes the next group from `_ready`
        self._is_over = False
        self._pool = ThreadPoolExecutor(workers, "kiln-pack")
        self._workers = workers

    def in_order(self, variants: Sequence[Variant]) -> list[Variant]:
        """These in the order in which their images are used here."""
        places = {name: place for place, name in enumerate(self._variants)}
        return sorted(variants, key=lambda variant: places[variant.name])

    def add(self, names: Sequence[str], outcome: StoredImage | Failure) -> None:
        """What became of the variants of these names; of one that is told twice, the first counts."""
        self._came.put((names, outcome))

    def __enter__(self) -> Ahead:  # noqa: PYI034  (Self needs Python 3.11)
        self._running = [self._pool.submit(self._work) for _ in range(self._workers)]
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._is_over = True
        self._came.put(None)
        self._pool.shutdown()
        if kind is None:
            for one in self._running:
                one.result()  # what it raised is a mistake of ours

    def _work(self) -> None:
        while True:
            with self._turn:
                ready = None if self._is_over else next(self._ready, None)
            if ready is None:
                return
            pack_writer.packed(*ready, self._groups)

    def _complete(self) -> Iterator[tuple[pack_writer.Group, split.Instructions]]:
        """Each group once its images are there."""
        while (came := self._came.get()) is not None:
            names, outcome = came
            for name in names:
                variant = self._variants[name]
                image, refusal = judge_one(variant, outcome)
                if not refusal:  # else the build will fail
                    stream = self._streams[variant.target]
                    stream.known[name] = image
                    for group in stream.complete():
                        yield group, split.INSTRUCTIONS[stream.target.instructions]


class _Stream:
    """The groups of one pack.

    Attributes:
        waiting: names of the variants whose images come next, in the order of the pack.
        known: by name, images that came; None: there is none.
    """

    def __init__(self, target: Target, with_ptx: bool, store: Store) -> None:
        self.target = target
        self.waiting: deque[str] = deque()
        self.known: dict[str, StoredImage | None] = {}
        kinds = ("image", "ptx") if with_ptx else ("image",)
        self._groupings = [pack_writer.Grouping(kind, store.read, elf.code_ranges) for kind in kinds]

    def complete(self) -> Iterator[pack_writer.Group]:
        """The groups that are complete now and were not before."""
        while self.waiting and self.waiting[0] in self.known:
            image = self.known.pop(self.waiting.popleft())
            slot = Slot(NO_KEY, image.digest, image.ptx) if image else Slot(NO_KEY)
            for grouping in self._groupings:
                try:
                    group = grouping.add(slot)
                except KilnError:  # an image is damaged, or the store gone; no group behind it can be foretold
                    self.waiting.clear()
                    self._groupings = []
                    return
                if group:
                    yield group
        if not self.waiting:
            last, self._groupings = self._groupings, []
            for grouping in last:
                if group := grouping.end():
                    yield group


def damaged(planned: PackPlan, harvest: Harvest, store: Store) -> dict[str, str]:
    """By variant what is wrong with images that a pack is to hold: they are not whole, or not what is stated of them.
    What is damaged is removed from the store, and what leads to it forgotten."""
    found: dict[str, str] = {}
    known: dict[tuple, str] = {}  # what is wrong, by image, PTX and what is stated
    for name, image in planned.images.items():
        stated = (image.digest, image.ptx, image.info)
        if stated not in known:
            try:
                code = store.read(image.digest)
                if planned.with_ptx and image.ptx:
                    store.read(image.ptx)
                known[stated] = "; it ".join(judge.contradictions(image.info, code, planned.target))
            except ArtifactError as error:
                known[stated] = str(error)
        if known[stated]:
            found[name] = known[stated]
            store.forget(harvest.keys[name], image)
    return found


def family_of(
    recipe: Recipe, the_plan: Plan, harvest: Harvest | None, indexes: Mapping[str, Pack], version: str
) -> native.FamilySources:
    """The sources of a family's library. Without images the look-up counts on every variant that no recipe waives."""
    tables = []
    for kernel in the_plan.kernels:
        if kernel.family == recipe.family:
            available = {
                v.slot
                for v in the_plan.variants_of(kernel)
                if (v.waiver is None if harvest is None else v.name in harvest.images)
            }
            tables.append(generate.KernelTables(kernel, plan.lookup(kernel, available)))
    digests = {name: index.index_digest for name, index in indexes.items()}
    source = generate.family_source(recipe, tables, the_plan.targets, the_plan.served, digests, version)
    header = "" if recipe.native.headers else family_header(recipe, version)
    return native.FamilySources(
        recipe.family, source, recipe.native.sources, recipe.native.headers, header, argument_files.family_files(recipe)
    )


def _slots(kernel: KernelPlan, the_plan: Plan, harvest: Harvest, with_ptx: bool) -> KernelSlots:
    slots = [Slot(NO_KEY, reason=kernel.absent.get(number)) for number in range(kernel.slots)]
    for variant in the_plan.variants_of(kernel):
        image = harvest.images.get(variant.name)
        slots[variant.slot] = Slot(
            key=harvest.keys[variant.name],
            image=image.digest if image else None,
            ptx=image.ptx if image and with_ptx else None,
            reason=None if image else harvest.missing[variant.name],
        )
    return KernelSlots(
        family=kernel.family,
        operation=kernel.operation,
        kernel=kernel.kernel.name,
        functionals=tuple(functional.name for functional in kernel.functionals),
        configurations=tuple(configuration.name for configuration in kernel.configurations),
        specializations=tuple(specialization.name for specialization in kernel.kernel.specializations),
        layout=kernel.layout,
        slots=tuple(slots),
    )
