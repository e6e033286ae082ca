"""What the axes of a tensor are called: as its strides are, as its sizes are, or as usual."""

from __future__ import annotations

import re

from kiln_build.skeleton.sketch import RESERVED
from kiln_build.skeleton.tensors import Axis, Tensor

_USUAL = {2: ("row", "column"), 3: ("batch", "row", "column"), 4: ("batch", "head", "row", "column")}


def named(tensor: Tensor, name: str) -> tuple[list[str], str]:
    """The names of a tensor's axes, and what to check about them.

    Args:
        name: of the tensor, in the recipe.
    """
    rank = len(tensor.axes)
    found = []
    for axis in tensor.axes:
        match = re.fullmatch(rf"stride_{re.escape(name)}_?([A-Za-z][A-Za-z_]*)", axis.stride or "")
        found.append(match[1] if match else "")
    if all(found) and len(set(found)) == rank:
        return found, ""
    usual = _USUAL.get(rank, tuple("abcdefgh"[:rank]))
    by_size = [_of_size(axis) for axis in tensor.axes]
    names = [size or word for size, word in zip(by_size, usual)]
    if len(set(names)) < rank:
        by_size, names = [""] * rank, list(usual)
    guessed = [word for size, word in zip(by_size, names) if not size]
    doubt = f"no stride or size names {' and '.join(guessed)}: is it that?" if guessed and rank > 2 else ""
    return names, doubt


def _of_size(axis: Axis) -> str:
    """ "head" of heads, "row" of n_rows, of letters and of N nothing."""
    word = re.sub("^(n|num)_", "", (axis.size or "").lower())
    word = {"cols": "column", "col": "column"}.get(word, word[:-1] if re.search("[^s]s$", word) else word)
    return word if re.fullmatch("[a-z]{3,}(_[a-z]+)*", word) and word not in RESERVED else ""


def plural(word: str) -> str:
    return f"{word}es" if re.search("(s|x|z|ch|sh)$", word) else f"{word}s"
