"""kiln-build, installed from its wheel: a recipe of one's own becomes a release in any folder; its kernels are called.

The workspace and the store are those of the small release, so that nothing is installed or compiled twice.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import nativebuild
import pytest

from builds import NAME, ROOT, SELECTION, TARGETS, VERSION, unpack
from kiln_build.base.wheel_file import write_wheel
from kiln_build.cli import wheel as verb
from kiln_build.release import wheel

pytestmark = pytest.mark.slow(40)


@pytest.fixture(scope="module")
def kiln_command(release, tmp_path_factory) -> Path:
    """The command of an environment with nothing but kiln-build."""
    folder = tmp_path_factory.mktemp("an environment")
    contents = wheel.Contents(NAME, (), {}, {}, {}, {"LICENSE": (ROOT / "LICENSE").read_text()})
    for one in (wheel.cli_wheel(contents, ROOT), wheel.recipe_wheel(contents, ROOT), verb.build_wheel(contents)):
        write_wheel(one, folder)
    base = os.path.realpath(release.python)  # the same Python, or the workspace would be set up again
    subprocess.run([base, "-m", "venv", folder / "env"], check=True)
    pip = [folder / "env/bin/pip", "install", "-q", "--no-index", "--find-links", folder, wheel.BUILD]
    done = subprocess.run(pip, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "env/bin/kiln"


def call(command: Path, folder: Path, *words: object, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("KILN", "PYTHON"))}
    caches = {"XDG_CACHE_HOME": str(folder / "caches"), "HOME": str(folder)}
    done = subprocess.run(
        [command, *map(str, words)], cwd=folder, env=kept | caches | variables, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def built(release, kiln_command, tmp_path_factory) -> Path:
    """The release of a kernel author, unpacked in the author's folder, which had the recipe and its kernels alone."""
    folder = tmp_path_factory.mktemp("an author")
    shutil.copytree(ROOT / "examples/family", folder / "norm")
    if (ROOT / "input/cache").is_dir():  # else all is fetched
        (folder / "input").mkdir()
        (folder / "input/cache").symlink_to(ROOT / "input/cache")
    variables = {
        "KILN_ENGINE": "none",
        "KILN_STORE": str(release.workspace / "store"),
        "KILN_RECIPES": "norm/recipe.yaml",
        "KILN_SELECT": SELECTION["KILN_SELECT"],
    }
    done = call(kiln_command, folder, "build", "input", release.workspace, "output", VERSION, TARGETS, **variables)
    (tarball,) = (folder / "output").glob("*.tar.gz")
    assert done.stdout == f"{tarball}\n"
    unpack(tarball, folder)
    return folder


def test_its_release_is_that_of_the_checkout(built, release):
    """Byte for byte: the same source of the same commit, wherever it lies."""
    (tarball,) = (built / "output").glob("*.tar.gz")
    assert tarball.name == release.tarball.name and tarball.read_bytes() == release.tarball.read_bytes()


def test_its_example_compiles_and_runs(built):
    lib = built / "kiln/lib"
    words = ["-std=gnu99", "-Wall", "-Wextra", "-Werror", "call.c", "-I", built / "kiln/include", "-L", lib]
    libraries = ["-Wl,--as-needed", "-lkiln_norm", "-lkiln", "-ldl", "-lm", f"-Wl,-rpath,{lib}", "-o", "call"]
    done = subprocess.run(["cc", *words, *libraries], cwd=built / "norm", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    done = subprocess.run([built / "norm/call"], capture_output=True, text=True)
    said = "right" if done.returncode == 0 else "no GPU"
    assert done.returncode in (0, 77) and said in done.stdout, done.stdout + done.stderr


def test_its_kernels_are_launched(built):
    """On the recording driver."""
    script = ROOT / "tests/end_to_end/built_calls.py"
    words = [sys.executable, script, built / "kiln/lib", nativebuild.fake_alone() / "lib"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_its_other_verbs(built, kiln_command):
    """What they need is installed from the locked files into the user's cache."""
    call(kiln_command, built, "plan", "--help")
    (tree,) = (built / "caches/kiln").iterdir()
    if (ROOT / "input/cache").is_dir():
        (tree / "input/cache").symlink_to(ROOT / "input/cache")
    done = call(kiln_command, built, "plan", "sm_90", "--recipe", "norm/recipe.yaml")
    assert "norm.rms_norm/rms_norm" in done.stdout and "profile core" in done.stdout
    assert "norm" in call(kiln_command, built, "recipes", "norm/recipe.yaml").stdout
    verified = call(kiln_command, built, "inspect", next((built / "output").glob("*.tar.gz")), "--verify")
    assert "whole" in verified.stdout, verified.stdout
