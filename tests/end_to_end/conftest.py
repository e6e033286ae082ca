"""One small release, built by the front door, that all tests here look at, build again, break and link."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from builds import ROOT, SELECTION, TARBALL, TARGETS, VERSION, Builder, Built, environment, unpack

sys.path.insert(0, str(ROOT / "tests" / "runtime"))


@pytest.fixture(scope="session")
def release(tmp_path_factory) -> Built:
    base = tmp_path_factory.mktemp("a build")  # a space in each path
    workspace, output = base / "work space", base / "out put"
    words = ["bash", str(ROOT / "build.sh"), str(ROOT / "input"), str(workspace), str(output), VERSION, TARGETS]
    done = subprocess.run(words, env=environment(**SELECTION), capture_output=True, text=True, cwd=base)
    assert done.returncode == 0, done.stdout + done.stderr
    return Built(workspace, output, unpack(output / TARBALL, base / "unpacked"), done.stdout + done.stderr)


@pytest.fixture
def builder(release, tmp_path) -> Builder:
    return Builder(release, tmp_path)


@pytest.fixture
def tree(tmp_path) -> Path:
    """A copy of the source tree without git, to be changed at will."""
    copy = tmp_path / "tree"
    for name in ("v3python", "tritonsrc", "tuning", "csrc", "include", "cmake", "docs", "notices", "examples"):
        if (ROOT / name).exists():
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("LICENSE", "CMakeLists.txt"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, copy / name)
    return copy
