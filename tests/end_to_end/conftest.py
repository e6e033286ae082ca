"""What the tests here do with the small release of tests/conftest.py: look at it, build it again, break and link it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from builds import ROOT, Builder

sys.path.insert(0, str(ROOT / "tests" / "runtime"))


@pytest.fixture
def builder(release, workspace, tmp_path) -> Builder:
    return Builder(release, tmp_path, workspace)


@pytest.fixture
def tree(tmp_path) -> Path:
    """A copy of the source tree without git, to be changed at will."""
    copy = tmp_path / "tree"
    for name in (
        "v3python",
        "tritonsrc",
        "tuning",
        "csrc",
        "include",
        "bindings",
        "cmake",
        "docs",
        "notices",
        "examples",
    ):
        if (ROOT / name).exists():
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("LICENSE", "CMakeLists.txt"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, copy / name)
    return copy
