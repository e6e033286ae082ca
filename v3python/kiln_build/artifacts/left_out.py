"""What a build leaves out, as rules: a pack has a slot for every combination of choices that a recipe knows, and most
are in no build. Four in a hundred are compiled; a row for each of the others would be most of a manifest.

Like inspect.py it needs only the standard library.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

from kiln_build.artifacts.pack import KernelSlots, Pack, Slot

NO_KEY = "0" * 64  # of a slot that the build has no variant for
_NO_REASON = "not part of this build"
_CONFIGURATION, _SPECIALIZATION = "configuration", "specialization"
# A rule may also cover variants that were made, which have rows. Looking at no more than this many slots for each that
# is left out keeps the work proportional to the pack, whatever it holds.
_SPREAD = 64


def is_left_out(slot: Slot) -> bool:
    """Whether the build had nothing to compile for this slot."""
    return slot.image is None and slot.key == NO_KEY


def rules_of(pack: Pack) -> list[dict[str, Any]]:
    """The rules that say of each slot without a variant why it has none, each a row of the manifest's `left_out`:
    target, kernel, reason; `where`, by choice the values that it is about; `configurations` and `specializations`
    likewise (what is not named there may be anything); `variants`, how many it leaves out.

    Of what a rule names, that is left out which has no row among the variants. No two rules leave out the same.
    """
    rows = []
    for kernel in pack.kernels:
        name = f"{kernel.family}.{kernel.operation}/{kernel.kernel}"
        rows += [{"target": pack.target, "kernel": name, **rule} for rule in _Kernel(kernel).rules()]
    return rows


class _Kernel:
    """A kernel's slots by their coordinates: a value for each choice, the configuration and the specialization."""

    def __init__(self, kernel: KernelSlots) -> None:
        self.names, functionals = _choices(kernel.functionals)
        self.coordinates = [
            (*functional, configuration, specialization)
            for functional in functionals
            for configuration in kernel.configurations
            for specialization in kernel.specializations
        ]
        self.by_coordinates: dict[tuple[str, ...], list[int]] = {}
        for number, place in enumerate(self.coordinates):
            self.by_coordinates.setdefault(place, []).append(number)
        self.reasons = {n: slot.reason or _NO_REASON for n, slot in enumerate(kernel.slots) if is_left_out(slot)}
        self.all = [len(axis) for axis in self.axes(range(len(self.coordinates)))]

    def axes(self, slots: Sequence[int]) -> list[list[str]]:
        """For each coordinate the values that the slots have."""
        return [list(dict.fromkeys(values)) for values in zip(*(self.coordinates[n] for n in slots))]

    def rules(self) -> Iterator[dict[str, Any]]:
        by_reason: dict[str, list[int]] = {}
        for number, reason in self.reasons.items():
            by_reason.setdefault(reason, []).append(number)
        for reason, slots in by_reason.items():
            for axes, count in self.covers(reason, slots):
                named = {
                    name: axis for name, axis, every in zip(self.names, axes, self.all) if len(axis) < every
                }  # what may be anything is not named
                rule: dict[str, Any] = {"reason": reason, "variants": count}
                for name, key in ((_CONFIGURATION, "configurations"), (_SPECIALIZATION, "specializations")):
                    if name in named:
                        rule[key] = named.pop(name)
                if named:
                    rule["where"] = dict(sorted(named.items()))
                yield rule

    def covers(self, reason: str, slots: list[int]) -> Iterator[tuple[list[list[str]], int]]:
        """Products of values that leave out these slots, which share a reason, and no other."""
        axes = self.axes(slots)
        # Configurations first: a recipe's conditions are about one each.
        splits = [n for n in (len(axes) - 2, *range(len(axes) - 2), len(axes) - 1) if len(axes[n]) > 1]
        if not splits or self.is_exact(reason, axes, len(slots)):
            yield axes, len(slots)
            return
        parts: dict[str, list[int]] = {}
        for number in slots:
            parts.setdefault(self.coordinates[number][splits[0]], []).append(number)
        for part in parts.values():
            yield from self.covers(reason, part)

    def is_exact(self, reason: str, axes: list[list[str]], count: int) -> bool:
        if math.prod(map(len, axes)) > _SPREAD * count:
            return False
        places = (self.by_coordinates.get(place, ()) for place in itertools.product(*axes))
        return all(self.reasons.get(number, reason) == reason for numbers in places for number in numbers)


def _choices(functionals: Sequence[str]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The names of the coordinates, and for each functional, "dtype=bf16 head_dim=64", its values."""
    settings = [tuple(word.partition("=")[::2] for word in functional.split()) for functional in functionals]
    names = [tuple(name for name, _ in setting) for setting in settings]
    ends = (_CONFIGURATION, _SPECIALIZATION)
    if len(set(names)) == 1 and len({*names[0], *ends}) == len(names[0]) + 2:
        return (*names[0], *ends), [tuple(value for _, value in setting) for setting in settings]
    return ("functional", *ends), [(functional,) for functional in functionals]
