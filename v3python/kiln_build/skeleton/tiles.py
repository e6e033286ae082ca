"""How many elements a program works on: values of the constants that are sides of its tile."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kiln_build.skeleton.facts import Facts
from kiln_build.skeleton.tensors import Axis, Tensor

MOST = 4096  # elements of a tile: many more, and an image takes minutes to compile, and spills
_BESIDE_A_WHOLE = 4  # rows, say, of which each is held whole


class Tiles:
    """The constants of a kernel that are sides of tiles, and what they may be so that no tile is too large."""

    def __init__(self, facts: Facts, tensors: Sequence[Tensor], constants: Sequence[str]) -> None:
        self._facts = facts
        lengths = {name: length.named("constant") for name, length in facts.ranges.items()}
        named = {name for length in lengths.values() for name in length}
        self.blocks = [name for name in constants if name in named | facts.tiling]
        self._wholes = {
            name for name in named - facts.tiling if any(self.holds(name, axis) for t in tensors for axis in t.axes)
        }
        ranges = ({a.name for axis in t.axes for a in axis.index if a.kind == "range"} for t in tensors)
        self._tiles = [{name for place in places for name in lengths.get(place, ())} for places in ranges]

    def holds(self, constant: str, axis: Axis) -> bool:
        """Whether a constant that is no step holds an axis whole."""
        ranges = {name for name, length in self._facts.ranges.items() if length.bare("constant") == [constant]}
        is_range = any(atom.kind == "range" and atom.name in ranges for atom in axis.index)
        return is_range and constant not in self._facts.tiling

    def whole(self, constant: str) -> tuple[int, int]:
        """What a side may be that holds a dimension whole."""
        if self._facts.dotted:
            return 64, 128
        largest = MOST
        for tile in (tile for tile in self._tiles if constant in tile):
            wholes = tile & self._wholes
            largest = min(largest, _root(MOST // _BESIDE_A_WHOLE ** len(tile - wholes), len(wholes)))
        return max(largest // 4, 1), largest

    def block(self, constant: str) -> int:
        """What a side may be that is a part of a dimension."""
        if self._facts.dotted:
            return 32 if re.search("K$|_K_", constant.upper()) else 64
        mine = [tile for tile in self._tiles if constant in tile]
        if any(tile & self._wholes for tile in mine):
            return _BESIDE_A_WHOLE
        if (sides := max(map(len, mine), default=0)) > 2:
            return _root(MOST, sides)
        return 1024 if len(self.blocks) < 2 else 64 if constant == self.blocks[-1] else 32


def _root(product: int, count: int) -> int:
    """The largest power of two of which so many make no more than a product."""
    return 1 << (max(product, 1).bit_length() - 1) // count
