"""What follows from the number of a program, tl.program_id: which indices, and so which axes of tensors."""

from __future__ import annotations

from collections.abc import Iterable

from kiln_build.skeleton.facts import Facts
from kiln_build.skeleton.tensors import Axis
from kiln_build.skeleton.values import Atom


def used(facts: Facts, axes: Iterable[Axis]) -> set[str]:
    """The axes of the launch that a kernel asks for its place along."""
    indices = [atom for axis in axes for atom in axis.index]
    compared = [atom for pair in facts.compared for value in pair for atom in value.atoms]
    inner = [atom for pair in (*facts.steps.values(), *facts.loops.values()) for value in pair for atom in value.atoms]
    return {atom.name for atom in (*indices, *compared, *inner) if atom.kind == "program"}


def following(facts: Facts, axis: Axis, program: str) -> list[Atom]:
    """What follows from the place along an axis of the launch in the index along a tensor's axis."""
    return [atom for atom in axis.index if program in _roots(facts, atom) and not _is_wrapped(facts, atom)]


def _is_wrapped(facts: Facts, atom: Atom) -> bool:
    """Whether an index is a tile's elements, taken round at the end of the tensor, and not the tile's number."""
    return atom.kind == "step" and any(inner.kind == "range" for inner in facts.steps[atom.name][0].atoms)


def _roots(facts: Facts, atom: Atom, depth: int = 8) -> set[str]:
    """The axes of the launch that an index follows from."""
    if atom.kind == "program":
        return {atom.name}
    table = facts.steps if atom.kind == "step" else facts.loops if atom.kind == "loop" else {}
    if atom.name not in table or not depth:
        return set()
    return {root for inner in table[atom.name][0].atoms for root in _roots(facts, inner, depth - 1)}
