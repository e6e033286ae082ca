"""Which parameters are tensors, and what their axes are: strides and sizes, told by the addresses that are computed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kiln_build.skeleton.facts import Block, Facts
from kiln_build.skeleton.values import INDICES, Atom, Term, Value


@dataclass
class Axis:
    """One dimension of a tensor.

    Attributes:
        stride: the parameter that is its stride; None: it has none.
        factors: sizes whose product is its stride, of a tensor that must be contiguous.
        index: what varies along it.
        constants: constexpr parameters in its index, by the atom that they multiply; with none the atom stands alone.
        size: the parameter that is its size.
    """

    stride: str | None = None
    factors: frozenset[str] = frozenset()
    index: frozenset[Atom] = frozenset()
    constants: dict[Atom, frozenset[str]] = field(default_factory=dict)
    size: str | None = None


@dataclass
class Tensor:
    """A parameter that is a pointer or a tensor descriptor.

    Attributes:
        kinds: what is done with it: "load", "store", "atomic_add" ...
        flags: constants that must be true for any of that.
        box: of a descriptor, the constant that is each side of its tile; None where that is not known.
    """

    parameter: str
    kinds: set[str]
    axes: list[Axis]
    flags: frozenset[str] = frozenset()
    is_index: bool = False
    box: tuple[str | None, ...] | None = None


def sizes_of(facts: Facts, parameters: Sequence[str]) -> set[str]:
    """The parameters that an index is compared with, or that loops go to."""
    found = {name for left, right in facts.compared if left.varies for name in right.bare("parameter")}
    found |= {name for _, bound in facts.loops.values() for name in bound.bare("parameter")}
    found |= {name for block in facts.blocks for value in block.shape for name in value.bare("parameter")}
    return {name for name in parameters if name in found and not is_stride(name)}


def is_stride(name: str) -> bool:
    return re.search("stride|(^|_)ld[a-z]?($|_)", name.lower()) is not None


def read(facts: Facts, parameters: Sequence[str]) -> list[Tensor]:
    """The tensors of a kernel with these parameters, in their order."""
    pointers = {access.pointer for access in facts.accesses} | {block.pointer for block in facts.blocks}
    named = {name for name in parameters if re.search("ptr|pointer", name.lower())}
    sizes = sizes_of(facts, parameters) - pointers
    owned = pointers | named | facts.descriptors.keys()
    others = [name for name in parameters if name not in owned]
    tensors = []
    for name in parameters:
        if name in facts.descriptors:
            kinds = {"store"} if name in facts.described else {"load"}
            axes = [_axis(value) for value in facts.descriptors[name]]
            tensors.append(Tensor(name, kinds, axes, box=tuple(tile_of(axis, axis.index) for axis in axes)))
        elif name in pointers or name in named:
            accesses = [access for access in facts.accesses if access.pointer == name]
            flags = frozenset.intersection(*(access.flags for access in accesses)) if accesses else frozenset()
            kinds = {access.kind for access in accesses} or {"load"}
            blocks = [block for block in facts.blocks if block.pointer == name]
            addresses = [access.address for access in accesses if any(access.address.atoms)]
            axes = _of_block(blocks[0]) if blocks else _of_addresses(addresses, others, sizes)
            tensors.append(Tensor(name, kinds, axes, flags))
    known = {tensor.parameter: tensor for tensor in tensors}
    for access in facts.accesses:  # what is used in the address of another has integers
        for name in access.address.named("data"):
            if (source := name.partition("@")[0]) in known and source != access.pointer:
                known[source].is_index = True
    for tensor in tensors:
        for axis in tensor.axes:
            axis.size = axis.size or _size(axis, facts, sizes)
    return tensors


def _of_block(block: Block) -> list[Axis]:
    axes = []
    for place, stride in enumerate(block.strides or block.shape):
        offset = block.offsets[place] if place < len(block.offsets) else Value()
        axis = _axis(offset)
        axis.stride = next(iter(stride.bare("parameter")), None) if block.strides else None
        size = block.shape[place].bare("parameter") if place < len(block.shape) else []
        axis.size = size[0] if size else None
        axes.append(axis)
    return axes


def _axis(index: Value) -> Axis:
    axis = Axis()
    for term in index:
        _add(axis, term)
    return axis


def _add(axis: Axis, term: Term) -> None:
    atoms = [atom for atom in term if atom.kind in INDICES]
    axis.index |= frozenset(atoms)
    constants = frozenset(atom.name for atom in term if atom.kind == "constant")
    for atom in atoms:
        axis.constants[atom] = axis.constants.get(atom, frozenset()) | constants


def tile_of(axis: Axis, atoms: Iterable[Atom]) -> str | None:
    """The constant that is the tile's side along an axis: it multiplies all of these, where others group some."""
    found = [axis.constants[atom] for atom in atoms if axis.constants.get(atom)]
    if not found:
        return None
    return min(frozenset.intersection(*found) or frozenset.union(*found))


def _of_addresses(addresses: Iterable[Value], parameters: Sequence[str], sizes: set[str]) -> list[Axis]:
    """The axes of a tensor that is read and written by these addresses.

    Args:
        parameters: those that are no tensors.
    """
    groups: dict[frozenset[str], Axis] = {}
    for address in addresses:
        for term in address:
            names = frozenset(atom.name for atom in term if atom.kind == "parameter").intersection(parameters)
            varies = any(atom.kind in (*INDICES, "data") for atom in term)
            if not varies and not (names and all(map(is_stride, names)) and len(names) == 1):
                continue
            key, strides = names, names - sizes
            if len(names) > 1 and strides:  # a flattened index: batch * heads + head
                key = frozenset(sorted(strides, key=lambda name: (not is_stride(name), parameters.index(name)))[:1])
            _add(groups.setdefault(key, Axis()), term)
    axes = []
    for key, axis in groups.items():
        if key and not key & sizes:
            axis.stride = min(key)
        else:
            axis.factors = key
        axes.append(axis)
    place = {name: number for number, name in enumerate(parameters)}
    return sorted(axes, key=lambda axis: (axis.stride is None, place.get(axis.stride or "", 0), -len(axis.factors)))


def _size(axis: Axis, facts: Facts, sizes: set[str]) -> str | None:
    """The size that the index along an axis is compared with, by the comparison that is most like it."""
    best: tuple[int, str | None] = (0, None)
    for left, right in facts.compared:
        names = [name for name in right.bare("parameter") if name in sizes]
        likeness = _likeness(axis.index, left.indices)
        if names and likeness > best[0]:
            best = (likeness, names[0])
    if best[1] is None:
        bounds = (facts.loops[atom.name][1] for atom in axis.index if atom.kind == "loop" and atom.name in facts.loops)
        names = [name for bound in bounds for name in bound.bare("parameter") if name in sizes]
        return names[0] if names else None
    return best[1]


def _likeness(one: frozenset[Atom], other: frozenset[Atom]) -> int:
    if one and one == other:
        return 4
    kinds = {atom.kind for atom in one & other}
    return 3 if "range" in kinds else 2 if "step" in kinds else 1 if "loop" in kinds else 0
