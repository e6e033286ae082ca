"""The ledger of images: what each image of the full profile takes, kept in the repository (`ledger/`).

Keys are computed without compiling, so that a tree whose images are not those of its ledger is found in seconds. An
update compiles what has new keys alone; a sample compiles some of the rest anew, and compares.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from kiln_build.artifacts.reader import select
from kiln_build.base import machine
from kiln_build.difference.images import Facts, Place, counted, former
from kiln_build.farm import farm
from kiln_build.farm.farm import Failure, FarmResult
from kiln_build.farm.options import FarmOptions
from kiln_build.ledger import file as ledger_file
from kiln_build.ledger.file import Ledger, Line, short
from kiln_build.ledger.reasons import since
from kiln_build.ledger.shares import is_modelled, shares_of
from kiln_build.release import assemble
from kiln_build.store.store import Store, StoredImage
from kiln_recipe import targets
from kiln_recipe.compile.toolchain import Toolchain
from kiln_recipe.console.progress import Progress
from kiln_recipe.errors import EnvironmentProblem, KilnError, UsageError
from kiln_recipe.images.image import ImageInfo
from kiln_recipe.model import Recipe
from kiln_recipe.plan import plan
from kiln_recipe.plan.model import Variant
from kiln_recipe.targets import Target

PROFILE = "full"  # which has all of core
_SECONDS_BETWEEN_SAVES = 120.0


@dataclass(frozen=True)
class Shelf:
    """What the tree makes of a family on a target, and what its ledger says.

    Attributes:
        places: each variant, by its place.
        keys: of each, 64 digits.
        kept: the ledger's file as it is; None if there is none.
    """

    family: str
    target: Target
    path: Path
    places: Mapping[Place, Variant]
    keys: Mapping[Place, str]
    kept: Ledger | None

    @property
    def lines(self) -> Mapping[Place, Line]:
        return self.kept.lines if self.kept else {}

    def is_known(self, place: Place) -> bool:
        """Whether the ledger has the image that the tree makes."""
        line = self.lines.get(place)
        return line is not None and line.key == short(self.keys[place])


@dataclass(frozen=True)
class Difference:
    """Where a ledger is not the tree's; names of variants.

    Attributes:
        missing: the ledger lacks them.
        changed: their keys are others.
        gone: the tree has none of that name.
        miscounted: their blocks are not what the limits in targets.yaml make of their registers.
    """

    missing: tuple[str, ...]
    changed: tuple[str, ...]
    gone: tuple[str, ...]
    miscounted: tuple[str, ...]

    @property
    def is_empty(self) -> bool:
        return not (self.missing or self.changed or self.gone or self.miscounted)


def kept_targets(folder: Path, asked: Sequence[Target] | None = None) -> tuple[Target, ...]:
    """The targets that were asked for; if none were, those that have a ledger in the folder.

    Raises:
        UsageError: no ledger can be kept for one, or there is none.
    """
    able = tuple(target for target in targets.load() if target.residency)
    for target in asked or ():
        if target not in able:
            raise UsageError(
                f"{target.name} has no ledger: targets.yaml lacks the limits of its multiprocessor (residency); "
                f"targets that can have a ledger are {', '.join(one.name for one in able)}"
            )
    if asked:
        return tuple(asked)
    names = ledger_file.targets_of(folder)
    if kept := tuple(target for target in able if target.name in names):
        return kept
    raise UsageError(f"{folder} has no ledger of any target; name some with --targets, and --update makes theirs")


def shelves(
    recipes: Sequence[Recipe], asked: Sequence[Target], chain: Toolchain, folder: Path, in_order: bool = True
) -> tuple[Shelf, ...]:
    """A Shelf for each family and target.

    Raises:
        ArtifactError: a file is not a ledger.
        LedgerError: with `in_order`, lines of one are out of order.
    """
    places: dict[tuple[str, str], dict[Place, Variant]] = {}
    for variant in plan.make_plan(recipes, asked, PROFILE).variants:
        places.setdefault((variant.family, variant.target), {})[_place(variant)] = variant
    identity = chain.identity
    found = []
    for (family, target), variants in places.items():
        path = ledger_file.path_of(folder, family, target)
        keys = {place: variant.spec.key(identity) for place, variant in variants.items()}
        kept = ledger_file.read(path, in_order)
        found.append(Shelf(family, targets.by_name(target), path, variants, keys, kept))
    return tuple(found)


def selected(all_shelves: Sequence[Shelf], choices: Mapping[str, tuple[str, ...]]) -> frozenset[str]:
    """Names of the variants that a selection means, as `kiln list --select` does.

    Raises:
        UsageError: no variant has such a name or value.
    """
    rows = [
        {
            **place._asdict(),
            "target": shelf.target.name,
            "kernel": f"{shelf.family}.{place.kernel}",
            "name": variant.name,
        }
        for shelf in all_shelves
        for place, variant in shelf.places.items()
    ]
    return frozenset(row["name"] for row in select(rows, dict(choices), set()))


def compare(shelf: Shelf, names: frozenset[str]) -> Difference:
    """The tree's keys against the ledger's. `names`: of the variants to look at; what is gone is looked at always."""
    missing: list[str] = []
    changed: list[str] = []
    for place, variant in shelf.places.items():
        if variant.name in names and not shelf.is_known(place):
            (changed if place in shelf.lines else missing).append(variant.name)
    gone = [shelf.kept.name(place) for place in shelf.lines if place not in shelf.places] if shelf.kept else []
    miscounted = [
        shelf.places[place].name
        for place, line in shelf.lines.items()
        if place in shelf.places and line.facts is not None and line.facts != _recounted(line.facts, shelf.target)
    ]
    return Difference(tuple(missing), tuple(changed), tuple(gone), tuple(miscounted))


def facts_of(info: ImageInfo, target: Target) -> Facts:
    """What the ledger has of an image."""
    return counted(target, info.registers, info.spills, info.shared, info.threads // target.warp_size)


def _recounted(facts: Facts, target: Target) -> Facts:
    return counted(target, facts.registers, facts.spills, facts.shared, facts.warps, facts.share)


def _place(variant: Variant) -> Place:
    kernel = f"{variant.operation}/{variant.kernel}"
    return Place(kernel, variant.functional, variant.configuration, variant.specialization)


# ---- an update ----


@dataclass
class Update:
    """An update on its way.

    Attributes:
        chain: the toolchain that compiles.
        names: of the variants that are brought up to date if their keys are new.
        facts: of the images that are there, by the variant's name; None: the recipe lets it be without.
        shares: modelled, by the variant's name.
    """

    shelves: Sequence[Shelf]
    chain: Toolchain
    names: frozenset[str]
    facts: dict[str, Facts | None] = field(default_factory=dict)
    shares: dict[str, int] = field(default_factory=dict)

    @property
    def wanted(self) -> list[Variant]:
        """Those whose images are to be looked at: new keys."""
        return [
            variant
            for shelf in self.shelves
            for place, variant in shelf.places.items()
            if variant.name in self.names and not shelf.is_known(place)
        ]

    def run(self, store: Store, options: FarmOptions, progress: Progress, run: Callable = farm.run) -> FarmResult:
        """Compiles what the store lacks. The files are written every two minutes, and in the end, however it ends.

        Raises:
            BuildFailed: variants failed; the ledger has all others.
            Interrupted: what was done is in the store and in the ledger.
        """
        wanted = self.wanted
        keys = {variant.name: shelf.keys[place] for shelf in self.shelves for place, variant in shelf.places.items()}

        def save() -> None:
            there = {v.name: image for v in wanted if (image := store.get(keys[v.name])) is not None}
            self.judge([v for v in wanted if v.name in there], there)
            self.save()

        try:
            with store.in_use():
                result = run(wanted, self.chain, store, options, _Saving(progress, save))
                failed = self.judge(wanted, result.outcomes)
                self.save()
                self.model(store, options.jobs, progress)
        except BaseException:
            with contextlib.suppress(KilnError):  # a full disk: what ended the run says more
                save()
            raise
        self.save()
        if failed:  # all at once, so that equal reasons are given once
            assemble.judge_all([variant for variant in wanted if variant.name in failed], result.outcomes, keys)
        return result

    def judge(self, variants: Sequence[Variant], outcomes: Mapping[str, StoredImage | Failure]) -> dict[str, str]:
        """Takes the facts of what is fit; gives the names of those that a build would refuse, and why."""
        failed = {}
        for variant in variants:
            fit, reason = assemble.judge_one(variant, outcomes[variant.name])
            if reason:
                failed[variant.name] = reason
            else:
                self.facts[variant.name] = facts_of(fit.info, targets.by_name(variant.target)) if fit else None
        return failed

    def model(self, store: Store, jobs: int | None, progress: Progress) -> None:
        """Models the images of AMD targets whose share is not known, as far as the store has them."""
        wanted = {}
        for shelf in self.shelves:
            for place, variant in shelf.places.items() if is_modelled(shelf.target) else ():
                facts = shelf.lines[place].facts if shelf.is_known(place) else self.facts.get(variant.name)
                if variant.name not in self.names or facts is None or facts.share is not None:
                    continue
                if image := store.get(shelf.keys[place]):
                    wanted[variant.name] = (shelf.family, shelf.target.name, place, image)
        try:
            self.shares |= shares_of(wanted, store, jobs or machine.usable_cpus(), progress)
        except EnvironmentProblem as error:
            progress.message(f"{len(wanted)} images are not modelled: {error}")

    def save(self) -> list[Ledger]:
        """Writes the files; gives what they say."""
        written = []
        for shelf in self.shelves:
            ledger = Ledger(
                shelf.family,
                shelf.target.name,
                short(self.chain.identity),
                self.chain.triton_version,
                dict(self.lines(shelf)),
                is_modelled(shelf.target),
            )
            if ledger != shelf.kept or not shelf.path.exists():
                ledger_file.write(shelf.path, ledger)
            written.append(ledger)
        return written

    def lines(self, shelf: Shelf) -> Iterator[tuple[Place, Line]]:
        """The lines of a file: the new ones, and those of the old that the tree still has, if only by another name."""
        for place, variant in shelf.places.items():
            old_place = former(place, shelf.lines, shelf.places)
            old = shelf.lines[old_place] if old_place else None
            if variant.name in self.facts:
                facts = self.with_share(variant, self.facts[variant.name])
                yield place, Line(short(shelf.keys[place]), facts, since(old, facts))
            elif old and old_place:  # under that name until its successor is compiled, which is compared with it
                facts = _recounted(old.facts, shelf.target) if old.facts else None
                facts = self.with_share(variant, facts) if old_place == place else facts
                yield old_place, Line(old.key, facts, since(old, facts))

    def with_share(self, variant: Variant, facts: Facts | None) -> Facts | None:
        """The facts of a variant with its share, if that was modelled."""
        return replace(facts, share=self.shares[variant.name]) if facts and variant.name in self.shares else facts


class _Saving(Progress):
    """Passes on what it is told, and saves now and then."""

    def __init__(self, progress: Progress, save: Callable[[], object]) -> None:
        self._progress, self._save, self._saved = progress, save, time.monotonic()

    def start(self, *arguments, **more) -> None:
        self._progress.start(*arguments, **more)

    def advance(self, amount: int) -> None:
        self._progress.advance(amount)

    def done(self, *arguments, **more) -> None:
        self._progress.done(*arguments, **more)
        if time.monotonic() - self._saved > _SECONDS_BETWEEN_SAVES:
            self._save()
            self._saved = time.monotonic()

    def message(self, text: str, **facts: object) -> None:
        self._progress.message(text, **facts)

    def close(self) -> None:
        self._progress.close()


# ---- a sample ----


def seed_of(all_shelves: Sequence[Shelf]) -> str:
    """What a sample is drawn by: equal ledgers have equal samples."""
    text = "".join(ledger_file.render(shelf.kept) for shelf in all_shelves if shelf.kept)
    return short(hashlib.sha256(text.encode()).hexdigest())


def draw(all_shelves: Sequence[Shelf], names: frozenset[str], count: int, seed: str) -> list[tuple[Shelf, Place]]:
    """At most `count` images that the ledger has, no image twice: as many of each target, and of its kernels in
    proportion to the square root of how many images they have, so that small kernels are drawn too."""
    ranked = []
    for shelf in all_shelves:
        images: dict[str, Place] = {}
        for place, variant in shelf.places.items():
            if variant.name in names and shelf.is_known(place):
                images.setdefault(shelf.keys[place], place)
        of_kernel: dict[str, int] = {}
        for place in images.values():
            of_kernel[place.kernel] = of_kernel.get(place.kernel, 0) + 1
        # Drawn without putting back, by weights: the smallest of -log(u) / weight (Efraimidis and Spirakis, 2006).
        places = sorted(
            images.values(),
            key=lambda place: -math.log(_uniform(seed, shelf.places[place].name)) * math.sqrt(of_kernel[place.kernel]),
        )
        ranked += [(rank, shelf.path, shelf, place) for rank, place in enumerate(places)]
    ranked.sort(key=lambda entry: entry[:2])
    return [(shelf, place) for _, _, shelf, place in ranked[:count]]


def _uniform(seed: str, name: str) -> float:
    """Above 0 and below 1."""
    drawn = hashlib.sha256(f"{seed} {name}".encode()).digest()[:8]
    return (int.from_bytes(drawn, "big") + 0.5) / 2**64


def check_sample(
    drawn: Sequence[tuple[Shelf, Place]],
    chain: Toolchain,
    store: Store,
    options: FarmOptions,
    progress: Progress,
    run: Callable = farm.run,
) -> list[str]:
    """Compiles what was drawn, and gives a sentence for each image that is not as the ledger says.

    Args:
        store: an empty one, so that everything is compiled.
    """
    variants = [shelf.places[place] for shelf, place in drawn]
    found = Update((), chain, frozenset())
    with store.in_use():
        outcomes = run(variants, chain, store, options, progress).outcomes
        failed = found.judge(variants, outcomes)
        modelled = {
            shelf.places[place].name: (shelf.family, shelf.target.name, place, image)
            for shelf, place in drawn
            if (kept := shelf.lines[place].facts)
            and kept.share is not None
            and isinstance(image := outcomes[shelf.places[place].name], StoredImage)
        }
        try:
            found.shares = shares_of(modelled, store, options.jobs or machine.usable_cpus(), progress)
        except EnvironmentProblem as error:
            progress.message(f"the sample is not modelled: {error}")
    wrong = []
    for shelf, place in drawn:
        variant, kept = shelf.places[place], shelf.lines[place].facts
        if variant.name in failed:
            wrong.append(
                f"{variant.name}: a build would refuse it ({failed[variant.name]}); the ledger says {_spelled(kept)}"
            )
            continue
        now = found.with_share(variant, found.facts[variant.name])
        if now != (replace(kept, share=now.share) if now and kept and now.share is None else kept):
            wrong.append(f"{variant.name}: {_spelled(now)}; the ledger says {_spelled(kept)}")
    return wrong


def _spelled(facts: Facts | None) -> str:
    if facts is None:
        return "no image"
    share = f", 0.{facts.share:03} of the matrix peak by the model" if facts.share else ""
    return (
        f"{facts.registers} registers, {facts.spills} bytes spilled, {facts.shared} bytes shared, {facts.warps} warps, "
        f"{facts.blocks} blocks per multiprocessor{share}"
    )
