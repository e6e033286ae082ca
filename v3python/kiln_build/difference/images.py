"""Images of two builds, paired by what they are of, and in what one of them is worse. The ledger of images and releases
are compared by this module alone."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from kiln_recipe.images import occupancy
from kiln_recipe.targets import Target

MEASURES = ("blocks", "spills", "share")
UNITS = {
    "blocks": "blocks a multiprocessor", "spills": "bytes spilled per thread",
    "share": "thousandths of the matrix peak by the model",
}  # fmt: skip
_MOST_CONFIGURATIONS = 255  # of a kernel in a release that Kiln made
_NOISE = 0.03  # by which a share may be smaller without being worse: what a loop's phases change


class Place(NamedTuple):
    """Which variant of a family on a target: "attn_fwd/attn_fwd", "dtype=bf16 ...", "BLOCK_M=128 ...", "aligned"."""

    kernel: str
    functional: str
    configuration: str
    specialization: str

    @property
    def heading(self) -> str:
        return f"{self.kernel} {self.functional}".rstrip()

    def name(self, family: str, target: str) -> str:
        """As Variant.name."""
        kernel, *rest = self
        return f"{family}.{kernel}{''.join(f'[{part}]' for part in rest)}@{target}"


@dataclass(frozen=True)
class Facts:
    """What an image takes.

    Attributes:
        registers, spills: of a thread, spills in bytes.
        shared: bytes of a block.
        warps: of a block.
        blocks: that a multiprocessor holds at once; 0 where its limits are not known.
        share: thousandths of the matrix units' peak that its main loop reaches by the model (docs/model.md); 0 of one
            that multiplies no matrices, None if not known.
    """

    registers: int
    spills: int
    shared: int
    warps: int
    blocks: int
    share: int | None = None

    @property
    def resident(self) -> int:
        return self.blocks * self.warps


@dataclass(frozen=True)
class Was:
    """What an image took before it became worse. `share`: None if it was not known."""

    registers: int
    spills: int
    blocks: int
    share: int | None = None


@dataclass(frozen=True)
class Worse:
    """An image that became worse in one measure.

    Attributes:
        name: of the variant.
        measure: "blocks", "spills" or "share".
        since: what it is compared with: "the ledger's own earlier line", "HEAD^", a release.
    """

    name: str
    measure: str
    before: Was | Facts
    after: Facts | None
    since: str

    @property
    def change(self) -> tuple[int, int]:
        now = getattr(self.after, self.measure) if self.after else 0
        return getattr(self.before, self.measure), now

    @property
    def sentence(self) -> str:
        """ "NAME: blocks a multiprocessor: 1, before 2; registers: 156, before 128 (HEAD^)"."""
        return f"{self.name}: {self.clause} ({self.since})"

    @property
    def clause(self) -> str:
        """The sentence without the image and what it is compared with."""
        if self.after is None:
            return f"has no image; it had one, with {self.before.registers} registers"
        old, new = self.change
        return (
            f"{UNITS[self.measure]}: {new}, before {old}; registers: {self.after.registers}, before "
            f"{self.before.registers}"
        )


class Pair(NamedTuple):
    """A variant of two builds. `old_place`: what it was called in the first; facts are None where there is no image."""

    old_place: Place
    place: Place
    before: Facts | None
    after: Facts | None

    def worse(self, name: str, since: str) -> list[Worse]:
        """In what the second is worse."""
        if self.before is None:
            return []
        return [Worse(name, one, self.before, self.after, since) for one in measures(self.before, self.after)]


def counted(target: Target, registers: int, spills: int, shared: int, warps: int, share: int | None = None) -> Facts:
    """Facts with the blocks that follow from the target's limits."""
    facts = Facts(registers, spills, shared, warps, 0, share)
    limits = target.residency
    return replace(facts, blocks=occupancy.blocks(limits, registers, shared, warps)) if limits else facts


def measures(before: Was | Facts | None, after: Facts | None) -> tuple[str, ...]:
    """In what an image is worse than it was."""
    if before is None:
        return ()
    if after is None:
        return ("blocks",)
    found = []
    if after.blocks < before.blocks:
        found.append("blocks")
    if after.spills > before.spills:
        found.append("spills")
    if before.share and after.share is not None and after.share < before.share * (1 - _NOISE):
        found.append("share")
    return tuple(found)


def pairs(before: Mapping[Place, Facts | None], after: Mapping[Place, Facts | None]) -> Iterator[Pair]:
    """The variants that both builds have, of a family on a target, in the order of the second."""
    alike: dict[tuple[str, str, str], list[Place]] = {}
    for place in before:
        alike.setdefault((place.kernel, place.functional, place.specialization), []).append(place)
    for place, facts in after.items():
        others: Collection[Place] = alike.get((place.kernel, place.functional, place.specialization), ())
        if len(others) > _MOST_CONFIGURATIONS:
            others = [place] if place in before else []
        if (old := former(place, others, after)) is not None:
            yield Pair(old, place, before[old], facts)


def former(place: Place, lines: Collection[Place], now: Container[Place]) -> Place | None:
    """Where an earlier build has the image of a place: the place itself, or the one whose configuration was the same
    but for settings that were added or taken away since, as a limit of registers is; None if there is none.

    Args:
        lines: the places of that build.
        now: today's places; one that still exists cannot be another's former place.
    """
    if place in lines:
        return place
    settings = set(place.configuration.split())
    found: list[tuple[int, Place]] = []
    for other in lines:
        if other._replace(configuration=place.configuration) == place and other not in now:
            others = set(other.configuration.split())
            if others <= settings or settings <= others:
                found.append((len(settings ^ others), other))
    return min(found, default=(0, None))[1]
