"""Loads a kernel's module, and the files beside it that it imports, from their sources as they are now.

Nothing of it enters `sys.modules`, and nothing is taken from there: two families may both have a `common.py`, and a
program that loads a kernel may have one of its own. No byte code is read or written: a file that is edited within a
second, at equal length, is another file all the same.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from kiln_recipe.read.fingerprint import ALLOWED_MODULES


def remember_blocks() -> None:
    """From now on this process finds where a function ends once for equal lines. Triton asks Python for the source of
    each function, which tokenizes it; kernels share most of their functions: it is half of the time to load them."""
    split = inspect.getblock

    @lru_cache(1024)
    def block(lines: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(split(lines))

    inspect.getblock = lambda lines: list(block(tuple(lines)))  # type: ignore[assignment]


def remember_trees(function: type) -> None:
    """From now on this process parses equal functions once: Triton's front end parses each at each call that has other
    types, forty an image, and changes no tree.

    Args:
        function: triton's JITFunction.
    """
    parse = function.parse  # type: ignore[attr-defined]
    trees: dict[str, ast.Module] = {}

    def remembered(self: Any) -> ast.Module:
        if self.src not in trees:
            trees[self.src] = parse(self)
        return trees[self.src]

    function.parse = remembered  # type: ignore[attr-defined]


def load(path: Path) -> ModuleType:
    """Executes the file at `path` as a module; each call anew.

    Raises:
        whatever it raises: mistakes.py says where.
    """
    return _Folder(path.parent).load(path, f"kiln_kernel_{path.stem}")


class _Folder:
    """The modules of one `load`, by the names that they import each other by."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.modules: dict[str, ModuleType] = {}
        self.builtins = {**vars(builtins), "__import__": self.import_}

    def import_(
        self,
        name: str,
        global_names: Mapping[str, object] | None = None,
        local_names: Mapping[str, object] | None = None,
        names: Sequence[str] = (),
        level: int = 0,
    ) -> ModuleType:
        """What `import` calls: files beside the kernel here, all else as everywhere."""
        path = self.folder / f"{name}.py"
        if level == 0 and name.partition(".")[0] not in ALLOWED_MODULES and path.is_file():
            return self.modules.get(name) or self.load(path, name)
        return builtins.__import__(name, global_names, local_names, names, level)

    def load(self, path: Path, name: str) -> ModuleType:
        stat, text = path.stat(), path.read_bytes()
        module = ModuleType(name)
        module.__file__ = str(path)
        module.__dict__["__builtins__"] = self.builtins
        self.modules[name] = module
        _remember(path, stat, text)
        try:
            exec(compile(text, str(path), "exec", dont_inherit=True), module.__dict__)
        except BaseException:
            del self.modules[name]
            raise
        return module


def _remember(path: Path, stat: os.stat_result, text: bytes) -> None:
    """Triton reads functions' sources through linecache: it must be what is executed here."""
    lines = text.decode("utf-8-sig", "replace").splitlines(keepends=True)
    linecache.cache[str(path)] = (stat.st_size, stat.st_mtime, lines, str(path))
