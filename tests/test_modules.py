"""Modules stand in Technical.md's table, in order: each imports only from those above it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KILN = ROOT / "v3python" / "kiln"
LAST = ("cli/__init__.py", "__main__.py")  # the command line loads its verbs by name


def rows() -> dict[str, int]:
    """The row of the table that each module stands in; a folder's name stands for all in it."""
    text = (ROOT / "Technical.md").read_text().partition("Modules of `v3python/kiln/`")[2].partition("\n## ")[0]
    table = [re.findall(r"`([^`]+)`", line.split("|")[1]) for line in text.splitlines() if line.startswith("| `")]
    found: dict[str, int] = {}
    for number, names in enumerate(table):
        for name in names:
            pattern = f"{name}*.py" if name.endswith("/") else name.replace("<verb>", "*")
            for path in KILN.glob(pattern):
                found.setdefault(path.relative_to(KILN).as_posix(), number)
    return found


def modules() -> list[str]:
    paths = (path.relative_to(KILN).as_posix() for path in KILN.rglob("*.py"))
    return sorted(path for path in paths if path != "__init__.py" and path not in LAST)


def imported(path: Path) -> Iterator[str]:
    """Kiln's modules that a file imports, anywhere in it, but for the sake of types alone."""
    tree = ast.parse(path.read_bytes())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            file = Path(*name.split(".")[1:]).with_suffix(".py") if name.startswith("kiln.") else None
            if file is not None and (KILN / file).is_file():
                yield file.as_posix()


def test_each_module_stands_in_the_table():
    table = rows()
    assert [module for module in modules() if module not in table] == []


def test_each_module_imports_only_from_those_above_it():
    table = rows()
    wrong = [
        f"{module} imports {other}"
        for module in modules()
        for other in imported(KILN / module)
        if other != "errors.py" and table.get(other, -1) > table.get(module, len(table))
    ]
    assert wrong == []


def test_no_modules_import_each_other():
    others = {module: set(imported(KILN / module)) for module in modules()}
    left = dict(others)
    while free := [module for module, needed in left.items() if not needed & left.keys() - {module}]:
        for module in free:
            del left[module]
    assert left == {}


def test_argparse_is_the_command_lines():
    """What reads recipes and plans builds knows nothing of how commands are spelled."""
    users = {module for module in modules() if "usage.py" in imported(KILN / module)}
    assert {module for module in users if not module.startswith("cli/")} == set()
