"""From a kernel's file to the text of a recipe."""

from __future__ import annotations

import os
import re
from pathlib import Path

from kiln_build.skeleton import source, text
from kiln_build.skeleton.guess import guess
from kiln_build.skeleton.sketch import Sketch, plain
from kiln_recipe.errors import EnvironmentProblem, RecipeError, UsageError
from kiln_recipe.model import FAMILY
from kiln_recipe.read import fingerprint
from kiln_recipe.read.recipe import TAKEN_NAMES

_NAMELESS = ("kernel", "kernels", "triton_kernels", "main", "__init__")


def skeleton(path: Path, names: tuple[str, ...], folder: Path) -> str:
    """The recipe of the kernels of a file.

    Args:
        names: of the kernels; none: the only one.
        folder: that the recipe is for.

    Raises:
        EnvironmentProblem: the file cannot be read.
        RecipeError: it has no kernel that a recipe can have.
        UsageError: it has several, or not those that are named.
    """
    read = source.read(path)
    names = source.chosen(read, names)
    sketches: list[Sketch] = []
    for name in names:
        constants = source.check(read, name)
        sketch = guess(read.functions[name], constants, fingerprint.language(path, name), read.helpers)
        if not sketch.arguments:
            raise RecipeError(
                f"{path}:{read.functions[name].lineno}: {name} has constexpr parameters alone, none of which a call "
                "could decide; an operation needs a tensor or a scalar"
            )
        while any(sketch.name == other.name for other in sketches):
            sketch.name += "_"
        sketches.append(sketch)
    relative = os.path.relpath(path.resolve(), folder.resolve())
    return text.recipe(_family(path, sketches[0].name), relative, sketches)


def write(path: Path, names: tuple[str, ...], output: Path) -> int:
    """Writes a recipe; returns how many places there are to check.

    Raises:
        UsageError: there is a file already.
        EnvironmentProblem: it cannot be written.
        as `skeleton`.
    """
    written = skeleton(path, names, output.parent)
    try:
        with output.open("x", encoding="utf-8") as file:  # never one that came meanwhile
            file.write(written)
    except FileExistsError:
        raise UsageError(
            f"{output} exists and stays as it is; give --output a name that does not exist yet, or -"
        ) from None
    except OSError as error:
        raise EnvironmentProblem(f"{output} cannot be written ({error.strerror}); give another --output") from error
    return written.count(text.TODO)


def _family(path: Path, operation: str) -> str:
    stem = operation if path.stem in _NAMELESS else path.stem
    name = re.sub("[^a-z0-9_]", "_", plain(stem).lower()).strip("_")
    name = name if name[:1].isalpha() else f"k{name}"
    return f"{name}_family" if name in TAKEN_NAMES or name == FAMILY else name
