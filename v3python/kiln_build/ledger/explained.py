"""Which rule chose which configuration of a planned kernel, in lines for people: `kiln plan --explain`."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kiln_build.ledger.planned import said_of_shares
from kiln_recipe.console.tables import plural
from kiln_recipe.model import spelled
from kiln_recipe.plan import plan

if TYPE_CHECKING:
    from kiln_build.ledger.planned import Shares
    from kiln_recipe.plan.model import Functional, KernelPlan


def explain(kernel: KernelPlan, shares: Shares | None = None) -> list[str]:
    """For each bin the configuration that a call takes if everything is available, and the rule: once for all compiled
    functionals of which the same is true. Then for each reason how many functionals are left out for it.

    Args:
        shares: those of what the kernel's first specialization has are told too.
    """
    available = set(range(kernel.slots)) - set(kernel.absent)
    bins = [name or "always" for name in bin_names(kernel)]
    width = max(map(len, bins))
    functionals: dict[tuple[tuple[str, str, str], ...], list[Functional]] = {}
    left_out: Counter[str] = Counter()
    for number, (functional, row) in enumerate(zip(kernel.functionals, plan.explain(kernel, available))):
        if all(decision.configuration is None for decision in row):
            left_out[kernel.absent[kernel.slot(number, 0, 0)]] += 1
            continue
        taken = tuple(
            (name, kernel.configurations[decision.configuration].name, decision.rule or "no rule fits: first available")
            for name, decision in zip(bins, row)
            if decision.configuration is not None  # as of a functional in every bin or in none
        )
        functionals.setdefault(taken, []).append(functional)
    lines = []
    for taken, alike in functionals.items():
        lines += _names(alike, len(functionals) == 1, bool(left_out))
        for name, configuration, rule in taken:
            said = said_of_shares(kernel, [one.name for one in alike], configuration, shares) if shares else ""
            lines.append(f"  {name:{width}}  {configuration}  ({rule}{said})")
    return lines + [f"left out: {plural(number, 'functional')}: {reason}" for reason, number in left_out.items()]


def _names(functionals: Sequence[Functional], every: bool, left_out: bool) -> list[str]:
    """What stands above the bins of functionals that are alike: "all 16 functionals:", or of a part of them "6
    functionals: dtype=fp16,bf16 head_dim=64,128,256" if each combination of these values is one, else each one's name.

    Args:
        every: these are all that are compiled.
        left_out: there are others, which are not.
    """
    if len(functionals) == 1:
        return [functionals[0].name or "(no choices)"]
    if every:
        return [f"all {len(functionals)} functionals{' that are compiled' if left_out else ''}:"]
    values = {name: dict.fromkeys(spelled(f.values[name]) for f in functionals) for name in functionals[0].values}
    if math.prod(map(len, values.values())) == len(functionals):
        combined = " ".join(f"{name}={','.join(each)}" for name, each in values.items())
        return [f"{len(functionals)} functionals: {combined}"]
    return [functional.name for functional in functionals]


def bin_names(kernel: KernelPlan) -> list[str]:
    """ "seqlen < 1024, occupancy >= 4": each bin of the look-up, in its order."""
    names = [""]
    for axis in kernel.kernel.bins:
        edges = [None, *axis.edges, None]
        spelled = []
        for low, high in itertools.pairwise(edges):
            bounds = [f"{low} <= "] if low is not None else []
            spelled.append("".join([*bounds, axis.name, f" < {high}" if high is not None else ""]))
        names = [f"{before}, {own}" if before else own for before in names for own in spelled]
    return names
