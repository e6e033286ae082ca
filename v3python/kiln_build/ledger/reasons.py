"""What became worse of images, and the reasons that the repository gives for it: `ledger/reasons.yaml`.

    reasons:
      - images: "flash.attn_fwd/attn_fwd[dtype=bf16 head_dim=64 *][*][aligned]@sm_90"   # `*` stands for any text
        blocks: {from: 2, to: 1}      # covers images that had at most 2 blocks and have at least 1
        spills: {from: 0, to: 16}     # covers images that spilled at least 0 bytes and spill at most 16
        share: {from: 480, to: 450}   # covers images that by the model reached at most 0.48 of the peak, and reach 0.45
        reason: why that is right

An image that holds fewer blocks needs a reason with `blocks`, one that spills more one with `spills`, and one that is
slower by the model of AMD's images (docs/model.md) one with `share`. A reason that applies to nothing any more, in one
of its measures, is a mistake: it would cover the next change in silence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

import msgspec

from kiln_build.difference.images import MEASURES, Facts, Was, Worse, measures, pairs
from kiln_build.ledger.file import Ledger, Line
from kiln_recipe.documents import document

FILE = "reasons.yaml"


class Change(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """From what to what a number may have gone."""

    before: int = msgspec.field(name="from")
    after: int = msgspec.field(name="to")


class Reason(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """Why images may be worse than they were."""

    images: str
    reason: str
    blocks: Change | None = None
    spills: Change | None = None
    share: Change | None = None

    @property
    def measures(self) -> list[str]:
        """Those that it speaks of: "blocks", "spills", "share"."""
        return [measure for measure in MEASURES if getattr(self, measure)]

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        return re.compile(".*".join(map(re.escape, self.images.split("*"))))


class _Shape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    reasons: list[Reason] = []


def since(before: Line | None, after: Facts | None) -> Was | None:
    """What a new line of a ledger keeps of the one that it replaces: the best that the image took, in each measure."""
    known = [facts for facts in (before.was, before.facts) if facts] if before else []
    if not known:
        return None
    shares = [x.share for x in known if x.share is not None]
    best = Was(
        min(x.registers for x in known), min(x.spills for x in known), max(x.blocks for x in known),
        max(shares, default=None),
    )  # fmt: skip
    return best if measures(best, after) else None


def worse_in(ledger: Ledger) -> list[Worse]:
    """What the ledger itself says has become worse."""
    return [
        Worse(ledger.name(place), measure, line.was, line.facts, "the ledger's `was`")
        for place, line in ledger.lines.items()
        if line.was
        for measure in measures(line.was, line.facts)
    ]


def worse_than(before: Ledger, after: Ledger, revision: str) -> list[Worse]:
    """What is worse in a ledger than in that of another revision; what only one of them has is no matter."""
    old, new = ({place: line.facts for place, line in ledger.lines.items()} for ledger in (before, after))
    return [worse for pair in pairs(old, new) for worse in pair.worse(after.name(pair.place), revision)]


def read(folder: Path) -> list[Reason]:
    """The reasons that stand beside the ledger; none where there is no file.

    Raises:
        RecipeError: the file is malformed; the sentence begins with file:line.
    """
    path = folder / FILE
    if not path.exists():
        return []
    found = document.read(path, _Shape)
    for number, reason in enumerate(found.value.reasons):
        if not reason.measures:
            found.fail(("reasons", number), "applies to nothing; give it blocks: {from: 2, to: 1}, spills or share")
        for measure in reason.measures:
            change = getattr(reason, measure)
            more = change.after - change.before
            if more <= 0 if measure == "spills" else more >= 0:
                keys = ("reasons", number, measure)
                found.fail(keys, f"{measure} from {change.before} to {change.after} is not worse, and needs no reason")
        if not reason.reason.strip():
            found.fail(("reasons", number, "reason"), "the reason is empty; say why this is acceptable")
    return found.value.reasons


def uncovered(worse: Iterable[Worse], reasons: Sequence[Reason]) -> list[Worse]:
    """Those that no reason covers."""
    return [one for one in worse if not any(covers(reason, one) for reason in reasons)]


def unused(worse: Sequence[Worse], reasons: Sequence[Reason]) -> list[Reason]:
    """Those that cover nothing. One that covers something in one of its measures alone is given without that one."""
    found = []
    for reason in reasons:
        used = {one.measure for one in worse if covers(reason, one)}
        rest = msgspec.structs.replace(reason, **dict.fromkeys(used))
        if rest.measures:
            found.append(rest)
    return found


def covers(reason: Reason, worse: Worse) -> bool:
    """Whether it is about this image, and this change lies within its own."""
    change = getattr(reason, worse.measure)
    if change is None or not reason.pattern.fullmatch(worse.name):
        return False
    before, after = worse.change
    if worse.measure == "spills":
        return before >= change.before and after <= change.after
    return before <= change.before and after >= change.after
