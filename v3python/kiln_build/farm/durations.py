"""What compiles will take. The order of a build's jobs, `kiln plan`, shards and simulations stand on what is said here.

Recorded is what a store remembers of every compile (`Store.durations`): seconds of processors, which do not depend on
what else the machine had to do, or the clock's where a store has only these.
"""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kiln_build.farm.estimates import Estimates
from kiln_recipe import targets
from kiln_recipe.errors import UsageError

if TYPE_CHECKING:
    from kiln_build.store.store import Took
    from kiln_recipe.plan.model import Variant
    from kiln_recipe.targets import Target

# Of what a target's compiler usually takes for a kernel that multiplies matrices. In a build with 64 workers, such a
# kernel took 1.4 to 1.8 s in the mean, those of elements and rows 0.5, those by Hopper's asynchronous products 5.4.
_WITHOUT_PRODUCTS, _BY_WARPGROUPS = 0.3, 3.3
# Of the names that products have: dot, dot_scaled, warpgroup_mma, tcgen05_mma, mma_v2, wmma, mfma; gamma is none.
_PRODUCT = re.compile(r"\b((?:[^\W_]*_)*(?:dot|w?g?mma|mfma)(?:_\w+)?)\(")


class Basis(enum.Enum):
    """What an expectation stands on."""

    RECORDED = "recorded"  # the variant itself was compiled before
    KIN = "kin"  # variants of the same kernel were: on the same target, or on one of the same family
    USUAL = "usual"  # nothing of the kind was: what a target's compiler usually takes


class Expected(NamedTuple):
    """Seconds of one processor that a compile will take, and what that stands on."""

    seconds: float
    basis: Basis


class Durations:
    """What variants are expected to take: `Durations(store.durations())(variant).seconds`.

    Equal records give equal numbers, on every machine.

    Args:
        recorded: what variants took, by name.
    """

    def __init__(self, recorded: Mapping[str, Took]) -> None:
        self.known = work(recorded)
        self._own = Estimates(self.known)
        self._families = Estimates({})
        for name, seconds in self.known.items():
            head, _, target = name.rpartition("@")
            if (there := _target(target)) is not None:
                for group in there.groups:
                    # Of one target's relatives a name is without its last bracket: here the target is that bracket.
                    self._families.add(f"{head}[{target}]@{group}", seconds / there.compile_seconds)

    def __bool__(self) -> bool:
        """Whether anything was recorded."""
        return bool(self.known)

    def __call__(self, variant: Variant) -> Expected:
        """What a variant will take: what it took; else the mean of its nearest kin."""
        name = variant.name
        if (took := self.known.get(name)) is not None:
            return Expected(took, Basis.RECORDED)
        if (seconds := self._own(name)) is not None:
            return Expected(seconds, Basis.KIN)
        head, _, target = name.rpartition("@")
        there = targets.by_name(target)
        for group in reversed(there.groups):  # the narrowest first
            if (share := self._families(f"{head}[{target}]@{group}")) is not None:
                return Expected(share * there.compile_seconds, Basis.KIN)
        return Expected(there.compile_seconds * _share(variant.spec.source, variant.spec.function), Basis.USUAL)


def work(recorded: Mapping[str, Took]) -> dict[str, float]:
    """Seconds of one processor that variants took, by name."""
    return {name: took.work for name, took in recorded.items()}


@functools.cache
def _target(name: str) -> Target | None:
    """The target of a recorded name; None if this Kiln has none such."""
    try:
        return targets.by_name(name)
    except UsageError:
        return None


@functools.cache
def _share(source: str, function: str) -> float:
    """Of what a target's compiler usually takes, by the names of what a kernel's files call."""
    from kiln_recipe.read import fingerprint

    files = fingerprint.sources(Path(source), function)
    texts = (file.read_text(errors="replace") for file in files)
    calls = {name for text in texts for name in _PRODUCT.findall(text)}
    return _BY_WARPGROUPS if "warpgroup_mma" in calls else 1.0 if calls else _WITHOUT_PRODUCTS
