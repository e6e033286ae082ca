"""The modelled shares that ledgers have of AMD images: for what `kiln plan` shows of a plan, and for releases."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from kiln_build.ledger import file as ledger_file
from kiln_recipe.plan.model import KernelPlan, Variant

if TYPE_CHECKING:
    from kiln_build.difference import compare


class Shares:
    """Modelled shares of the matrix peak (docs/model.md), of what the ledger in a folder has.

    Args:
        folder: of a ledger; need not be there.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[tuple[str, str], Mapping[tuple[str, ...], int]] = {}

    def __call__(self, kernel: KernelPlan, functional: str, configuration: str, specialization: str) -> int | None:
        """Thousandths; None of what is not modelled, or multiplies no matrices."""
        of = kernel.family, kernel.target.name
        if of not in self._known:
            kept = ledger_file.read(ledger_file.path_of(self._folder, *of), in_order=False)
            self._known[of] = {
                place: line.facts.share for place, line in kept.lines.items() if line.facts and line.facts.share
            } if kept and kept.has_shares else {}  # fmt: skip
        name = f"{kernel.operation}/{kernel.kernel.name}"
        return self._known[of].get((name, functional, configuration, specialization))

    def of_variant(self, kernel: KernelPlan, variant: Variant) -> int | None:
        return self(kernel, variant.functional, variant.configuration, variant.specialization)


def known_shares(folders: Sequence[Path]) -> compare.Shares:
    """What ledgers know of modelled shares: by family, target and key."""

    @cache
    def of(family: str, target: str) -> dict[str, int]:
        found: dict[str, int] = {}
        for folder in folders:
            kept = ledger_file.read(ledger_file.path_of(folder, family, target), in_order=False)
            for line in kept.lines.values() if kept else ():
                if line.facts and line.facts.share is not None:
                    found[line.key] = line.facts.share
        return found

    return lambda family, target, key: of(family, target).get(ledger_file.short(key))


def spell_shares(found: Iterable[int | None]) -> str:
    """ "0.433", "0.433-0.512" of several, "" if none is known."""
    known = sorted({one for one in found if one})
    return "-".join(f"{one / 1000:.3f}" for one in dict.fromkeys((known[0], known[-1]))) if known else ""


def said_of_shares(kernel: KernelPlan, functionals: Sequence[str], configuration: str, shares: Shares) -> str:
    """ "; modelled 0.433, BLOCK_M=64 ... 0.451": the share of what is taken, and of the best where that is another."""
    first = kernel.kernel.specializations[0].name
    names = [one.name for one in kernel.configurations]
    said = spell_shares(shares(kernel, functional, configuration, first) for functional in functionals)
    better = [
        (share - own, name, share)
        for functional in functionals
        if (own := shares(kernel, functional, configuration, first))
        for name in names
        if (share := shares(kernel, functional, name, first)) and share > own
    ]
    if better:
        _, name, share = max(better)
        said += f"; {name} reaches {share / 1000:.3f}"
    return f"; modelled {said}" if said else ""
