"""Which combinations of choices a side has images for, and what serves those that it has none for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from kiln_build.difference.side import Side
from kiln_build.difference.tables import Choice
from kiln_recipe.selection import values_of

_MOST_RULES = 1000  # that are looked at for a reason; a kernel of Kiln's has fewer than a hundred


@dataclass(frozen=True)
class Combination:
    """A combination of choices of a kernel, or one of its implementations, that one side alone has images for.

    Attributes:
        kernel: "flash.attn_fwd/attn_fwd.hopper".
        is_lost: the first side has it; else the second.
        instead: what serves it on the other side: "attn_fwd.general", "head_dim=128"; "": nothing.
        reason: why the second has none, as its build says; "" where it has, or none is given.
    """

    target: str
    kernel: str
    functional: str
    is_lost: bool
    instead: str = ""
    reason: str = ""

    @property
    def sort(self) -> str:
        """ "lost", "gained", or "elsewhere" of what the other side serves in another way."""
        return "elsewhere" if self.instead else "lost" if self.is_lost else "gained"


def compare(before: Side, after: Side) -> list[Combination]:
    """What one side alone has images for, of the targets that both have."""
    common = [target for target in before.targets if target in after.targets]
    sides = Served(before), Served(after)
    return [
        found
        for is_lost, (one, other) in ((True, sides), (False, sides[::-1]))
        for target in common
        for found in _only(one, other, target, is_lost)
    ]


def _only(one: Served, other: Served, target: str, is_lost: bool) -> Iterator[Combination]:
    for kernel, functionals in one.kernels.get(target, {}).items():
        there = other.kernels.get(target, {}).get(kernel, {})
        for functional in functionals:
            if functional in there:
                continue
            instead = other.instead(target, kernel, functional)
            reason = other.reason(target, kernel, functional) if is_lost and not instead else ""
            yield Combination(target, kernel, functional, is_lost, instead, reason)


class Served:
    """What a side has images for: by target and kernel its functionals."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self.kernels: dict[str, dict[str, dict[str, None]]] = {}
        for row in side.rows:
            if row["image"] is not None:
                functionals = self.kernels.setdefault(row["target"], {}).setdefault(row["kernel"], {})
                functionals[row["functional"]] = None
        self._known: dict[tuple[str, str, tuple[str, ...]], set[tuple[str, ...]]] = {}
        self._alike: dict[tuple[str, str], list[str]] = {}  # by target and kernel its implementations
        for target, kernels in self.kernels.items():
            for kernel in kernels:
                self._alike.setdefault((target, _without_implementation(kernel)), []).append(kernel)

    def instead(self, target: str, kernel: str, functional: str) -> str:
        """What serves a combination that this kernel has no image for: another implementation with these choices, or
        the values that stand in for those of the call."""
        choices = values_of(functional)
        own = _without_implementation(kernel)
        family, _, operation = kernel.partition("/")[0].partition(".")
        wider = {name: self._served(family, operation, name, value) for name, value in choices.items()}
        changed = " ".join(f"{name}={value}" for name, value in wider.items() if value != choices[name])
        for wanted, said in ((choices, ""), (wider, changed)):
            for other in self._alike.get((target, own), ()):
                if self.has(target, other, wanted):
                    name = "" if other == kernel else other.partition("/")[2]
                    if text := " with ".join(part for part in (name, said) if part):
                        return text
        return ""

    def has(self, target: str, kernel: str, choices: Mapping[str, str]) -> bool:
        """Whether a kernel has an image with these choices, as far as it depends on them."""
        functionals = self.kernels.get(target, {}).get(kernel)
        if not functionals:
            return False
        names = tuple(name for name in values_of(next(iter(functionals))) if name in choices)
        place = (target, kernel, names)
        if place not in self._known:
            every = map(values_of, functionals)
            self._known[place] = {tuple(one.get(name, "") for name in names) for one in every}
        return tuple(choices[name] for name in names) in self._known[place]

    @cached_property
    def _choices(self) -> dict[tuple[str, str, str], Choice]:
        return {
            (family.name, operation, choice.name): choice
            for family in self.side.families.values()
            for operation, choices in family.choices.items()
            for choice in choices
        }

    def _served(self, family: str, operation: str, name: str, value: str) -> str:
        """The value that serves calls for this one, by the library's tables; itself where they are not known."""
        choice = self._choices.get((family, operation, name))
        if choice is None or value not in choice.spellings:
            return value
        return choice.spellings[choice.served[choice.spellings.index(value)]]

    def reason(self, target: str, kernel: str, functional: str) -> str:
        """Why the build has no image: of a variant that there is, else by the rule that leaves it out."""
        choices = values_of(functional)
        if said := self._unavailable.get((target, kernel, functional)):
            return said
        found = [
            rule
            for rule in self._rules.get((target, kernel), ())[:_MOST_RULES]
            if all(choices.get(name) in values for name, values in (rule.get("where") or {}).items())
        ]
        if not found:
            return ""

        def distance(rule: Mapping[str, Any]) -> tuple[bool, bool]:
            """Nearest is what speaks of a choice; farthest what is about some configurations alone."""
            said = rule["reason"].split()
            return not any(f"{name}={value}" in said for name, value in choices.items()), "configurations" in rule

        return min(found, key=distance)["reason"]

    @cached_property
    def _unavailable(self) -> dict[tuple[str, str, str], str]:
        rows = (row for row in self.side.rows if row["unavailable"])
        return {(row["target"], row["kernel"], row["functional"]): row["unavailable"] for row in rows}

    @cached_property
    def _rules(self) -> dict[tuple[str, str], list[dict[str, Any]]]:
        rules: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for rule in self.side.rules:
            rules.setdefault((rule["target"], rule["kernel"]), []).append(rule)
        return rules


def _without_implementation(kernel: str) -> str:
    """ "attn_fwd/attn_fwd" of "flash.attn_fwd/attn_fwd.hopper"."""
    return kernel.partition(".")[2].partition(".")[0]


def spell(functionals: Sequence[str]) -> str:
    """Several combinations in one line: "dtype=fp16,bf16 head_dim=64", with "some of" before it if they are not all of
    these values' combinations."""
    values: dict[str, dict[str, None]] = {}
    for functional in functionals:
        for name, value in values_of(functional).items():
            values.setdefault(name, {})[value] = None
    count = 1
    for one in values.values():
        count *= len(one)
    said = " ".join(f"{name}={','.join(one)}" for name, one in values.items())
    return said if count == len({*functionals}) else f"some of {said}"


def grouped(found: Iterable[Combination]) -> list[list[Combination]]:
    """The combinations, those together that differ in nothing but their choices and the reasons."""
    groups: dict[tuple[Any, ...], list[Combination]] = {}
    for one in found:
        groups.setdefault((one.target, one.kernel, one.is_lost, one.instead), []).append(one)
    return list(groups.values())
