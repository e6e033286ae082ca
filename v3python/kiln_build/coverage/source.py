"""Which images there are to serve calls: those of a release, or of what a profile would build."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from kiln_build.artifacts import presence, reader
from kiln_build.base import ROOT
from kiln_recipe import targets
from kiln_recipe.call.dispatch import Tables
from kiln_recipe.errors import UsageError
from kiln_recipe.model import FAMILY, Recipe
from kiln_recipe.plan import plan
from kiln_recipe.plan.model import Variant
from kiln_recipe.plan.slots import NOT_CHOSEN
from kiln_recipe.read import recipe as recipes
from kiln_recipe.selection import PROFILES, parse_selection
from kiln_recipe.targets import Target

if TYPE_CHECKING:
    from kiln_recipe.selection import Selection

RIGHT = "give core, full, a release's tarball, or the folder that it was unpacked to"


@dataclass(frozen=True)
class ReleasedImage:
    """What a release has of a variant: the key of its image, or why there is none."""

    key: str
    lack: str | None


@dataclass
class Source:
    """A profile of this source tree, or a release.

    Attributes:
        name: as the user gave it.
        targets: those that it is for.
        images: of a release by (target, variant); None: of a profile, of which all that is planned counts as there.
        absent: of a release by target why its pack does not serve it, "is missing".
        is_whole: whether a release has all configurations, not only those that its look-ups choose.
    """

    name: str
    profile: str
    selection: Selection
    targets: tuple[Target, ...]
    images: Mapping[tuple[str, ...], ReleasedImage] | None = None
    version: str = ""
    absent: Mapping[str, str] = field(default_factory=dict)
    is_whole: bool = True
    _tables: dict[tuple[str, str, bool], Tables] = field(default_factory=dict, init=False)

    @cached_property
    def _combinations(self) -> set[tuple[str, ...]]:
        return {_combination(place) for place in self.images or ()}

    @cached_property
    def recipe(self) -> Recipe:
        return recipes.load(ROOT / "tritonsrc" / FAMILY / "recipe.yaml")

    def tables(self, target: Target) -> Tables:
        """The dispatch of a target, with the images that there are.

        Raises:
            UsageError: the release has other variants than this source tree's recipe.
        """
        if self.images is None:
            return self._made(target, self.profile, self.selection, None)
        known: set[tuple[str, ...]] = set()

        def lack(variant: Variant) -> str | None:
            known.add(place_of(variant))
            return self._lack(variant)

        made = self._made(target, self.profile, self.selection, lack)
        if known and (unknown := {place for place in self.images if place[0] == target.name} - known):
            raise UsageError(self._stranger("this Kiln", min(unknown)))
        return made

    def built(self, target: Target, profile: str) -> Tables:
        """The dispatch of what a build of a profile, without a selection, would make for a target."""
        return self._made(target, profile, (), None)

    def key(self, variant: Variant) -> str | None:
        """The key of a variant's image; None: of a profile, it is known when it is built."""
        return None if self.images is None else self.images[place_of(variant)].key

    def _made(
        self, target: Target, profile: str, selection: Selection, lack: Callable[[Variant], str | None] | None
    ) -> Tables:
        place = (target.name, profile, lack is not None)
        if place not in self._tables:
            made = partial(Tables, self.recipe, target, profile, selection, ROOT / "tuning")
            self._tables[place] = made() if lack is None else made(lack=lack)
        return self._tables[place]

    def _lack(self, variant: Variant) -> str | None:
        assert self.images is not None
        place = place_of(variant)
        image = self.images.get(place)
        if image is None and not self.is_whole and _combination(place) in self._combinations:
            return NOT_CHOSEN
        if image is None:
            raise UsageError(self._stranger("it", place_of(variant)))
        return image.lack

    def _stranger(self, who: str, place: tuple[str, ...]) -> str:
        target, kernel, *names = place
        variant = f"{kernel}[{']['.join(names)}]@{target}"
        return (
            f"{self.name} is of another source than this Kiln: {who} does not know {variant}; use the kiln of the "
            f"release's version {self.version}"
        )


def _combination(place: tuple[str, ...]) -> tuple[str, ...]:
    """A variant's place without its configuration."""
    target, kernel, functional, _, specialization = place
    return target, kernel, functional, specialization


def open_source(word: str) -> Source:
    """A profile by its name, or a release.

    Raises:
        UsageError: it is something else, or a release without the attention family.
        ArtifactError, EnvironmentProblem: it is malformed, or cannot be read.
    """
    if word in PROFILES:  # a file of this name is ./core
        return Source(word, word, (), tuple(targets.load()))
    artifact = reader.open_artifact(Path(word), RIGHT)
    if not isinstance(artifact, reader.Release):
        raise UsageError(f"{word} is a pack or an image, which does not tell what it was built for; {RIGHT}")
    manifest = artifact.manifest
    own = [row for row in manifest["variants"] if row["kernel"].startswith(f"{FAMILY}.")]
    if not own:
        raise UsageError(f"{word} has no images of the family {FAMILY}, whose calls coverage is about")
    images: dict[tuple[str, ...], ReleasedImage] = {
        (row["target"], row["kernel"], row["functional"], row["configuration"], row["specialization"]): ReleasedImage(
            row["key"], None if row.get("image") else row.get("unavailable") or "the release has no image of it"
        )
        for row in own
    }
    for_targets = tuple(targets.by_name(name) for name in dict.fromkeys(row["target"] for row in own))
    source = Source(
        word, manifest["profile"], (), for_targets, images, manifest["kiln"], presence.absent_packs(artifact),
        all(row["reason"] != NOT_CHOSEN for row in manifest["left_out"]),
    )  # fmt: skip
    source.selection = plan.selection_of(source.recipe, parse_selection(manifest["selection"]))
    return source


def place_of(variant: Variant) -> tuple[str, ...]:
    kernel = f"{variant.family}.{variant.operation}/{variant.kernel}"
    return variant.target, kernel, variant.functional, variant.configuration, variant.specialization
