"""What a variable of a kernel is made of, as far as a recipe needs to know it: a sum of products of atoms."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

_MOST_TERMS = 48  # beyond these a value is no address that one could read


INDICES = ("program", "range", "loop", "step")


class Atom(NamedTuple):
    """Where a factor comes from.

    Attributes:
        kind: "parameter", "constant" (a constexpr parameter), "program" (tl.program_id), "range" (tl.arange), "loop" (a
            loop's variable), "step" (what // or % gives) or "data" (what is computed from what was loaded, or with
            floating numbers).
        name: of a parameter or constant, the number of a program's axis, or what tells this place from others.
    """

    kind: str
    name: str


Term = frozenset[Atom]


class Value(tuple[Term, ...]):
    """The terms of a sum, in the order of the source. A number is the term without atoms; 0 is no term."""

    __slots__ = ()

    @staticmethod
    def of(kind: str, name: str) -> Value:
        return Value((frozenset([Atom(kind, name)]),))

    def plus(self, other: Value) -> Value:
        return Value(tuple(dict.fromkeys((*self, *other)))[:_MOST_TERMS])

    def times(self, other: Value) -> Value:
        return Value(tuple(dict.fromkeys(a | b for a in self for b in other))[:_MOST_TERMS])

    @property
    def atoms(self) -> frozenset[Atom]:
        return frozenset(atom for term in self for atom in term)

    @property
    def indices(self) -> frozenset[Atom]:
        """The atoms that are not the same for all elements that a launch works on."""
        return frozenset(atom for atom in self.atoms if atom.kind in INDICES)

    @property
    def varies(self) -> bool:
        return bool(self.indices)

    def bare(self, kind: str) -> list[str]:
        """The names of terms that are one atom of this kind."""
        return [atom.name for term in self if len(term) == 1 for atom in term if atom.kind == kind]

    def named(self, kind: str) -> set[str]:
        return {atom.name for atom in self.atoms if atom.kind == kind}


NUMBER = Value((frozenset(),))
ZERO = Value()

# What a name stands for: a value, or several of them that were returned or written together.
Bound = Value | list["Bound"]


def flat(bound: Bound) -> Value:
    """One value: of several, their sum."""
    if isinstance(bound, Value):
        return bound
    return total(map(flat, bound))


def total(values: Iterable[Value]) -> Value:
    result = ZERO
    for value in values:
        result = result.plus(value)
    return result


def merged(one: Bound, other: Bound) -> Bound:
    """What is one or the other."""
    if not isinstance(one, Value) and not isinstance(other, Value) and len(one) == len(other):
        return [merged(a, b) for a, b in zip(one, other)]
    return flat(one).plus(flat(other))


def parts(bound: Bound, count: int) -> Sequence[Bound]:
    """What `count` names get of one."""
    if not isinstance(bound, Value) and len(bound) == count:
        return bound
    return [flat(bound)] * count
