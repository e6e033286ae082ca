"""Which families a build or a plan is of: those of the source tree and of KILN_RECIPES, or what KILN_FAMILIES names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kiln_build.options.variables import NAMED, BuildVariables
from kiln_build.origin import records
from kiln_recipe.errors import UsageError
from kiln_recipe.model import Recipe
from kiln_recipe.read import recipe
from kiln_recipe.suggest import nearest


@dataclass(frozen=True)
class Families:
    """What is built.

    Attributes:
        added: the families of KILN_RECIPES among them.
        only: all of them, sorted, if one of the tree's own is left out; else empty.
    """

    recipes: tuple[Recipe, ...]
    added: tuple[str, ...]
    only: tuple[str, ...]


def choose(tree: Path, build: BuildVariables) -> Families:
    """The families that `build` asks for. The tree's recipes are read only if they are needed.

    Raises:
        UsageError: there is no such family.
        RecipeError: a recipe does not hold.
    """
    found = recipe.find(tree)
    paths = {Path(path).resolve(): Path(path) for path in build.recipes}  # a file counts once, however it is named
    if build.families == (NAMED,):
        return _families([], [recipe.load(path) for path in paths.values()], bool(found))
    own = [recipe.load(path) for path in found]
    named_too = {one.family for one in own if paths.pop(one.path.resolve(), None) and NAMED in build.families}
    named = [recipe.load(path) for path in paths.values()]
    there = dict.fromkeys(one.family for one in (*own, *named))
    for name in build.families:
        if name not in there and name != NAMED:
            raise UsageError(
                f"--family (KILN_FAMILIES) names {name!r}, which is not a family; {nearest(name, there, 'families')}; "
                "--recipe (KILN_RECIPES) adds others"
            )
    if not build.families:
        return _families(own, named, False)
    chosen = [one for one in own if one.family in named_too.union(build.families)]
    more = [one for one in named if one.family in build.families or NAMED in build.families]
    return _families(chosen, more, len(chosen) < len(own))


def check_files(tree: Path, build: BuildVariables) -> None:
    """Reads what `build` names, with the packages of input/front.lock alone: wrong files are said before the others
    are installed.

    Raises:
        UsageError, RecipeError: as `choose`; or there are no durations in the file that should have them.
        EnvironmentProblem: a file cannot be read.
    """
    choose(tree, build)
    if build.durations:
        records.read(Path(build.durations))


def _families(own: list[Recipe], named: list[Recipe], only: bool) -> Families:
    every = (*own, *named)
    added = tuple(one.family for one in named)
    return Families(every, added, tuple(sorted({one.family for one in every})) if only else ())
