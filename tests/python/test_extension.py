"""The extension of the Python package, by what its files say; and its stub."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import hardening

from kiln import _core

STUB = Path(__file__).resolve().parents[2] / "bindings/python/kiln/_core.pyi"
PACKAGE = Path(_core.__file__).parent


def plain(text: str) -> str:
    """A stub's declarations, however it is laid out."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = " ".join(node.value.split())
    return ast.unparse(tree)


def test_the_stub_is_the_extensions(tmp_path):
    words = ["-m", "nanobind.stubgen", "-q", "-D", "-m", "kiln._core", "-o", str(tmp_path / "_core.pyi")]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    made = (tmp_path / "_core.pyi").read_text()
    assert plain(STUB.read_text()) == plain(made), f"take this, formatted:\n{made}"


def test_the_extension_and_libraries_are_hardened():
    hardening.check(Path(_core.__file__))
    for name in ("libkiln.so.0", "libkiln_flash.so", "libkiln_torch.so"):
        hardening.check(PACKAGE / "lib" / name)


def test_the_package_is_typed():
    assert (Path(STUB).parent / "py.typed").read_bytes() == b""
