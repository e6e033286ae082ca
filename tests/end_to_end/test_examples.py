"""The C examples against the release, in each of the ways that their pages show."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from builds import ROOT
from kiln_build import cli

pytestmark = pytest.mark.slow(10)

NO_GPU = 77


@pytest.fixture
def examples(tmp_path) -> Path:
    return Path(shutil.copytree(ROOT / "examples", tmp_path / "examples"))


def build(*words: object, cwd: Path, **variables: str) -> None:
    done = subprocess.run(
        [str(word) for word in words], cwd=cwd, env=os.environ | variables, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def run(program: Path) -> None:
    """Right, or one sentence that there is no GPU."""
    done = subprocess.run([str(program)], capture_output=True, text=True)
    assert done.returncode in (0, NO_GPU), done.stdout + done.stderr
    assert done.stdout.count("\n") == 1 and not done.stderr
    assert ("right" in done.stdout) if done.returncode == 0 else ("no GPU" in done.stdout)


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_a_compiler_alone(release, examples, compiler):
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    lib = release.prefix / "lib"
    build(compiler, "-std=gnu99", "-Wall", "-Wextra", "-Werror", "attention.c", "-I", release.prefix / "include",
          "-L", lib, "-lkiln_flash", "-lkiln", "-ldl", "-lm", f"-Wl,-rpath,{lib}", "-o", "attention",
          cwd=examples / "c")  # fmt: skip
    run(examples / "c/attention")


@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")
def test_cmake(release, examples):
    build("cmake", "-S", ".", "-B", "build", f"-DCMAKE_PREFIX_PATH={release.prefix}", cwd=examples / "cmake")
    build("cmake", "--build", "build", cwd=examples / "cmake")
    run(examples / "cmake/build/attention")


@pytest.mark.skipif(shutil.which("pkg-config") is None, reason="pkg-config is not installed")
def test_pkg_config(release, examples):
    build("make", cwd=examples / "pkgconfig", PKG_CONFIG_PATH=str(release.prefix / "lib/pkgconfig"))
    run(examples / "pkgconfig/attention")


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_a_family_of_ones_own_by_name(release, examples, compiler):
    """With the header that the build generated: the family's library is needed because its tables are asked for."""
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    lib = release.prefix / "lib"
    build(compiler, "-std=gnu99", "-Wall", "-Wextra", "-Werror", "call.c", "-I", release.prefix / "include", "-L", lib,
          "-Wl,--as-needed", "-lkiln_norm", "-lkiln", "-ldl", "-lm", f"-Wl,-rpath,{lib}", "-o", "call",
          cwd=examples / "family")  # fmt: skip
    run(examples / "family/call")
    needed = subprocess.run(["readelf", "-d", examples / "family/call"], capture_output=True, text=True).stdout
    assert "[libkiln_norm.so]" in needed


def test_a_kernel_with_several_implementations(wide_release, capsys):
    """Each on its own targets; what only tensor descriptors need is said of their images alone."""
    assert cli.main(["inspect", str(wide_release.prefix), "--verify"]) == 0
    capsys.readouterr()
    assert cli.main(["list", str(wide_release.prefix), "--json"]) == 0
    rows = [row for row in json.loads(capsys.readouterr().out) if row["kernel"].startswith("matmul.")]
    found = {(row["target"], row["kernel"].rpartition(".")[2]) for row in rows}
    assert found == {("sm_90", "hopper"), ("sm_90", "general"), ("gfx942", "cdna"), ("gfx942", "general")}
    for row in rows:
        is_hopper = row["kernel"].endswith(".hopper")
        assert (row.get("ptx_version"), len(row.get("descriptors", ()))) == (("8.6", 3) if is_hopper else (None, 0))
    assert (
        "KILN_API const kiln_family* kiln_matmul_family" in (wide_release.prefix / "include/kiln/matmul.h").read_text()
    )
