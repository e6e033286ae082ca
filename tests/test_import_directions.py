"""What `.importlinter` cannot say of the packages in v3python."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGES = Path(__file__).resolve().parents[1] / "v3python"
# A worker that compiles gives itself an environment of a few names, whatever started it.
WORKER = "kiln_recipe/compile/compile.py"
MOST = 12  # modules, what one can hold in mind


def folders() -> list[Path]:
    return sorted(path.parent for path in PACKAGES.glob("kiln_*/**/__init__.py"))


@pytest.mark.parametrize("part", ["kiln_recipe", "kiln_build/base"])
def test_nothing_below_options_reads_an_environment_variable(part):
    readers = set()
    for path in (PACKAGES / part).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Attribute) and node.attr in ("environ", "environb", "getenv"):
                readers.add(path.relative_to(PACKAGES).as_posix())
    assert readers - {WORKER} == set()


@pytest.mark.parametrize("folder", folders(), ids=lambda path: path.name)
def test_a_package_is_small_and_says_what_it_is(folder):
    tree = ast.parse((folder / "__init__.py").read_bytes())
    assert len(ast.get_docstring(tree) or "") > 40
    verbs = folder.name == "cli"
    assert verbs or len([path for path in folder.glob("*.py") if path.name != "__init__.py"]) <= MOST
