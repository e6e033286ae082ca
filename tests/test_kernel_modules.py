"""Kernels' modules from their sources: always the file as it is, and nothing that a program has imported."""

from __future__ import annotations

import ast
import inspect
import os
import sys
import types
from pathlib import Path

import pytest

from kiln_recipe.compile import kernel_modules, mistakes


def write(path: Path, text: str) -> Path:
    """Writes a file whose time is always the same: what goes by times and sizes cannot tell versions apart."""
    path.write_text(text)
    os.utime(path, (1_000_000_000, 1_000_000_000))
    return path


def test_each_load_is_the_file_as_it_is(tmp_path):
    path = write(tmp_path / "k.py", "VALUE = 1\n\n\ndef f():\n    return 1\n")
    first = kernel_modules.load(path)
    write(path, "VALUE = 2\n\n\ndef f():\n    return 2\n")
    second = kernel_modules.load(path)
    assert (first.VALUE, second.VALUE, first.f(), second.f()) == (1, 2, 1, 2)
    assert "return 2" in inspect.getsource(second.f), "Triton reads the source that is executed"
    assert first is not second and not list(tmp_path.rglob("*.pyc"))


def test_files_beside_it_are_its_own(tmp_path, monkeypatch):
    write(tmp_path / "shared.py", "from math import floor\nfrom deeper import DEPTH\nWHOSE = floor(DEPTH)\n")
    write(tmp_path / "deeper.py", "DEPTH = 7.5\n")
    write(tmp_path / "math.py", "raise RuntimeError('a module of that name is allowed, and is Python's')\n")
    path = write(tmp_path / "k.py", "import math\nfrom shared import WHOSE\nfrom deeper import DEPTH\n")
    other = types.ModuleType("shared")
    monkeypatch.setitem(sys.modules, "shared", other)
    module = kernel_modules.load(path)
    assert (module.WHOSE, module.DEPTH) == (7, 7.5)
    assert sys.modules["shared"] is other and "deeper" not in sys.modules and not hasattr(other, "WHOSE")
    write(tmp_path / "deeper.py", "DEPTH = 9.5\n")
    assert kernel_modules.load(path).WHOSE == 9


def test_files_that_import_each_other(tmp_path):
    write(tmp_path / "a.py", "X = 1\nfrom b import Y\n")
    write(tmp_path / "b.py", "Y = 2\nfrom a import X\n")
    path = write(tmp_path / "k.py", "from a import X, Y\n")
    assert vars(kernel_modules.load(path))["Y"] == 2


@pytest.mark.parametrize(
    ("text", "line", "error"),
    [("x = 1\ny = 1 / 0\n", 2, ZeroDivisionError), ("x = (\n", 1, SyntaxError), ("import nowhere\n", 1, ImportError)],
)
def test_what_a_file_raises_is_placed(tmp_path, text, line, error):
    write(tmp_path / "beside.py", text)
    path = write(tmp_path / "k.py", "\nfrom beside import x\n")
    with pytest.raises(error) as raised:
        kernel_modules.load(path)
    assert mistakes.place_of(raised.value, tmp_path) == f"{tmp_path}/beside.py:{line}"
    write(tmp_path / "beside.py", "x = 3\n")
    assert kernel_modules.load(path).x == 3


def test_remembered_blocks_are_those_of_python(monkeypatch):
    """Of equal lines, of others at the same place, and of a caller that changes what it got."""
    plain = inspect.getblock
    monkeypatch.setattr(inspect, "getblock", plain)  # put back in the end
    kernel_modules.remember_blocks()
    first = ["def f():\n", "    return 1\n", "\n", "x = 2\n"]
    other = ["def f():\n", "    y = 2\n", "    # more\n", "    return y\n", "z = 3\n"]
    for lines in (first, other, first, other):
        found = inspect.getblock(lines)
        assert found == plain(list(lines))
        found.append("mine")


def test_remembered_trees_are_those_of_the_source():
    """Of equal sources one tree; of a source that was replaced, its own."""

    class Function:
        def __init__(self, src):
            self.src = src

        def parse(self):
            return ast.parse(self.src)

    kernel_modules.remember_trees(Function)
    one, other = Function("def f():\n    return 1\n"), Function("def f():\n    return 1\n")
    assert one.parse() is other.parse() and ast.dump(one.parse()) == ast.dump(ast.parse(one.src))
    other.src = "def f():\n    return 2\n"
    assert ast.dump(other.parse()) == ast.dump(ast.parse(other.src)) != ast.dump(one.parse())
