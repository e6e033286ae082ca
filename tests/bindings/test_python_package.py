"""The Python package on the fake driver: the tests in inside/, each file in a process of its own; and its stubs."""

from __future__ import annotations

import ast
from pathlib import Path

import hardening
import pytest
from subjects import INSIDE, ROOT, python

pytestmark = pytest.mark.slow

STUB = ROOT / "bindings/python/kiln/_core.pyi"


@pytest.mark.parametrize("name", sorted(path.stem for path in INSIDE.glob("test_*.py")))
def test_inside(site, name):
    done = python(site, "-m", "pytest", "-q", "--rootdir", INSIDE, "-c", INSIDE / "pytest.ini", INSIDE / f"{name}.py")
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


def plain(text: str) -> str:
    """A stub's declarations, however it is laid out."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = " ".join(node.value.split())
    return ast.unparse(tree)


def test_the_stub_is_the_extensions(site, tmp_path):
    done = python(site, "-m", "nanobind.stubgen", "-q", "-D", "-m", "kiln._core", "-o", tmp_path / "_core.pyi")
    assert done.returncode == 0, done.stderr
    made = (tmp_path / "_core.pyi").read_text()
    assert plain(STUB.read_text()) == plain(made), f"take this, formatted:\n{made}"


def test_the_extension_and_libraries_are_hardened(site):
    (extension,) = (site / "kiln").glob("_core.*.so")
    hardening.check(extension)
    for name in ("libkiln.so.0", "libkiln_flash.so", "libkiln_torch.so"):
        hardening.check(site / "kiln/lib" / name)


def test_the_package_is_typed():
    assert (Path(STUB).parent / "py.typed").read_bytes() == b""
