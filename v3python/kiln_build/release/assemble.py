"""Images to packs and tables: what the farm gave is judged, put into its slots, and handed to the writers."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

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
from kiln_recipe.errors import ArtifactError, BuildFailed
from kiln_recipe.images import elf, judge
from kiln_recipe.model import Recipe
from kiln_recipe.plan import plan
from kiln_recipe.plan.model import KernelPlan, Plan, Variant
from kiln_recipe.targets import Target

# Groups of packs that a workspace keeps compressed: ten times what the full profile of a target takes.
_GROUPS_BYTES = 256 << 20
_WRITERS = (pack.__file__, pack_writer.__file__, split.__file__, elf.__file__)  # what a pack's bytes depend on


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
        [astuple(kernel) for kernel in kernels],
        [astuple(infos[slot.image]) for kernel in kernels for slot in kernel.slots if slot.image],
    ]
    digest = hashlib.sha256(json.dumps(inputs).encode()).hexdigest()[:16]
    path = folder / f"{target.vendor}-{target.name}-{digest}.pack"
    return PackPlan(target, path, version, kernels, images, with_ptx)


def write_pack(planned: PackPlan, store: Store, workers: int) -> None:
    """Writes a pack, unless it is written; `workers` processors work on it.

    Raises:
        ArtifactError: an image is damaged.
        EnvironmentProblem: it cannot be written.
    """
    if planned.is_written:
        return
    target, path = planned.target, planned.path
    path.parent.mkdir(parents=True, exist_ok=True)
    kept.clear(path.parent, f"{target.vendor}-{target.name}-*.pack")
    infos = {image.digest: image.info for image in planned.images.values()}
    groups = kept.Pieces(path.parent / "groups", _GROUPS_BYTES)
    pack_writer.write_pack(
        path, target.name, split.INSTRUCTIONS[target.instructions], planned.version, planned.kernels,
        infos.__getitem__, store.read, elf.code_ranges, workers, groups,
    )  # fmt: skip
    groups.trim()
    kept.seal(path)


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
