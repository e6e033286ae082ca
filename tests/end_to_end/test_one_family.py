"""A release without attention: `kiln build --recipe` of a family of one's own, and all that reads it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import nativebuild
import pytest

from builds import ROOT, Builder, Built, unpack
from kiln_build.cli import main

RECIPE = str(ROOT / "examples/family/recipe.yaml")
WITHOUT = {"KILN_SELECT": "", "KILN_RECIPES": ""}
TARBALL = "kiln-0.1.0b+only.norm-manylinux_2_28_x86_64-shared.tar.gz"


@pytest.fixture(scope="module")
def norm(release: Built, tmp_path_factory) -> Path:
    """Its tarball, unpacked beside it."""
    base = tmp_path_factory.mktemp("norm")
    builder = Builder(release, base, release.copy_workspace(base / "w"))
    done = builder.run(output=base / "o", more=["--recipe", RECIPE], **WITHOUT)
    assert done.stdout == f"{base / 'o' / TARBALL}\n"
    unpack(base / "o" / TARBALL, base)
    return base / "o" / TARBALL


def test_variables_say_the_same(release, builder, norm):
    asked = {"KILN_RECIPES": RECIPE, "KILN_SELECT": ""}
    builder.run(KILN_FAMILIES="norm", **asked)
    builder.run(output=builder.base / "again", KILN_FAMILIES="KILN_RECIPES", **asked)
    for folder in ("out", "again"):
        assert (builder.base / folder / TARBALL).read_bytes() == norm.read_bytes()


def test_it_has_nothing_of_attention_and_is_whole(norm, capsys):
    kiln = norm.parents[1] / "kiln"
    libraries = {path.name for path in (kiln / "lib").glob("*.so*")}
    assert libraries == {"libkiln.so", "libkiln.so.0", "libkiln_norm.so"}
    assert not [path for path in kiln.rglob("*") if "aotriton" in path.name or "flash" in path.name]
    assert main(["inspect", str(norm), "--verify"]) == 0
    out = capsys.readouterr().out
    assert "kiln 0.1.0b+only.norm " in out and "families    norm\n" in out and "whole: " in out
    assert main(["list", str(kiln), "--target", "sm_90"]) == 0
    assert "norm.rms_norm/rms_norm" in capsys.readouterr().out


def test_its_kernels_are_launched(norm):
    """On the recording driver."""
    words = [ROOT / "tests/end_to_end/built_calls.py", norm.parents[1] / "kiln/lib", nativebuild.fake_alone() / "lib"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["wheel", "{}", "wheels"], "has no attention, which Kiln's Python package is for: it was built for norm"),
        (["coverage", "{}", "--model", "head_dim=64"], "has no images of the family flash, whose calls coverage is"),
    ],
)
def test_what_is_about_attention_says_that_there_is_none(norm, capsys, monkeypatch, words, sentence):
    monkeypatch.chdir(norm.parent)
    assert main([word.format(norm.name) for word in words]) == 2
    said = capsys.readouterr()
    assert f"kiln: {norm.name} {sentence}" in said.err and not said.out and len(said.err.splitlines()) == 1


@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")
@pytest.mark.parametrize(("component", "is_there"), [("norm", True), ("flash", False), ("aotriton", False)])
def test_find_package(norm, tmp_path, component, is_there):
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.18)\nproject(consumer C)\n"
        f"find_package(kiln 0.1 REQUIRED COMPONENTS {component})\n"
        f'file(WRITE "${{CMAKE_BINARY_DIR}}/c.c" "")\nadd_library(c SHARED "${{CMAKE_BINARY_DIR}}/c.c")\n'
        f"target_link_libraries(c PRIVATE kiln::{component})\n"
    )
    words = ["cmake", "-S", tmp_path, "-B", tmp_path / "b", f"-DCMAKE_PREFIX_PATH={norm.parents[1] / 'kiln'}"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.returncode == 0) == is_there, done.stderr
    assert is_there or f"This release has no {component}; its families: norm" in " ".join(done.stderr.split())
