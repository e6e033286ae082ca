"""What may be compiled of a kernel: its configurations and the spills that they are allowed, which a recipe says itself
or which stand in tuning/<family>/space/<kernel>.yaml, a table for each group of targets."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from kiln_recipe.documents.document import Document, Keys, read
from kiln_recipe.documents.file import ConfigurationsShape, SpaceShape, SpillShape
from kiln_recipe.errors import RecipeError
from kiln_recipe.read.implementations import Implementation
from kiln_recipe.read.scope import Scope, check_name, read_expression
from kiln_recipe.suggest import nearest

_FOLDERS_ABOVE = 2  # the recipe's own, where the folder tuning/ may lie


@dataclass(frozen=True)
class Entry:
    """Configurations, and where they stand."""

    shape: ConfigurationsShape
    keys: Keys
    targets_keys: Keys


@dataclass(frozen=True)
class Space:
    """A kernel's configurations.

    Attributes:
        document, keys: where they stand.
        is_own: the kernel's implementations do not share them.
        definitions: names for conditions, each with its keys and its expression.
        spills: of `document`, under the key "spills".
    """

    document: Document
    keys: Keys
    is_own: bool
    entries: tuple[Entry, ...]
    definitions: tuple[tuple[str, Keys, str], ...] = ()
    spills: tuple[SpillShape, ...] = ()

    def scope(self, scope: Scope) -> Scope:
        """A scope of conditions that knows the definitions besides.

        Raises:
            RecipeError: one does not hold, or no condition reads it.
        """
        conditions = [str(entry.shape.where) for entry in self.entries if entry.shape.where is not None]
        conditions += [text for _, _, text in self.definitions]
        for name, keys, text in self.definitions:
            check_name(self.document, keys, name, "a condition")
            if scope.knows(name) or name in scope.words:
                self.document.fail(keys, f"{name!r} means something else already; give the condition another name")
            if not any(re.search(rf"(?<![\w.]){name}(?![\w.])", condition) for condition in conditions):
                self.document.fail(keys, f"no condition reads {name!r}")
            scope = scope.with_word(name, f"({read_expression(self.document, keys, text, scope).text})")
        return scope


def find_folder(recipe: Path, family: str) -> Path | None:
    """The folder tuning/<family>/space beside a recipe, or up to two folders above it."""
    above = recipe.resolve().parents[: _FOLDERS_ABOVE + 1]
    return next((f for folder in above if (f := folder / "tuning" / family / "space").is_dir()), None)


def read_space(implementation: Implementation, name: str, folder: Path | None) -> Space:
    """The configurations of an implementation of a kernel: its own, or those that implementations share.

    Args:
        name: of the kernel.
        folder: of the family, as `find_folder` gives it.

    Raises:
        RecipeError: they are said nowhere or twice, or their file lacks the shape.
    """
    document, keys, written = implementation.document, implementation.keys, implementation.shape.configurations
    is_only = not implementation.name
    says_itself = bool(written) and "configurations" in implementation.own
    own_file = None if is_only else _file(folder, f"{name}.{implementation.name}")
    path = own_file or (None if says_itself and not is_only else _file(folder, name))
    is_own = is_only or says_itself or own_file is not None
    here = (*keys, "configurations")
    if path is None:
        if not written:
            wanted = f"tuning/{document.value.family}/space/{name}.yaml, beside the recipe or above it"
            document.fail(keys, f"the kernel {name} lacks configurations: list them here or in {wanted}")
        listed = tuple(Entry(shape, (*here, i), (*here, i, "targets")) for i, shape in enumerate(written))
        return Space(document, here, is_own, listed)
    if says_itself if own_file else written:
        document.fail(here, f"{path} has configurations of the kernel too; leave out one")
    found = read(path, SpaceShape)
    entries = []
    for t, table in enumerate(found.value.tables):
        for r, row in enumerate(table.rows):
            rows = ConfigurationsShape(targets=table.targets, core=row.core, full=row.full, where=row.where)
            entries.append(Entry(rows, ("tables", t, "rows", r), ("tables", t, "targets")))
    definitions = tuple((n, ("define", n), str(text)) for n, text in found.value.define.items())
    return Space(found, ("tables",), is_own, tuple(entries), definitions, found.value.spills)


def _file(folder: Path | None, name: str) -> Path | None:
    path = folder / f"{name}.yaml" if folder else None
    return path if path and path.is_file() else None


def refuse_strangers(folder: Path | None, family: str, kernels: Iterable[str]) -> None:
    """Raises RecipeError for a file of configurations that are of no kernel."""
    known = list(kernels)
    for path in sorted(folder.glob("*.y*ml")) if folder else ():
        if path.stem not in known or path.suffix != ".yaml":
            near = nearest(path.stem, known, "kernels")
            raise RecipeError(f"{path}:1: {family} has no kernel {path.stem!r}; {near}, each in <kernel>.yaml")
