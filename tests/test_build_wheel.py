"""kiln-build and kiln-cli: what their wheels hold, and the command `kiln` in an environment with nothing else."""

from __future__ import annotations

import os
import re
import subprocess
import venv
import zipfile
from pathlib import Path

import pytest

import kiln_cli
from kiln_build import cli, installed
from kiln_build.base.wheel_file import Wheel, write_wheel
from kiln_build.cli import wheel as verb
from kiln_build.front import source
from kiln_build.release import wheel
from kiln_build.release.wheel_metadata import Material
from kiln_recipe.errors import EnvironmentProblem

ROOT = Path(__file__).resolve().parents[1]
VERBS = [name for name, verb in cli.VERBS.items() if verb.is_packaged]
CONTENTS = wheel.Contents("0.1.0b+full", ("sm_90",), {}, {}, {}, {"LICENSE": "L\n", "NOTICES.txt": "N\n"})
VERSION = "0.1.0b0+full"
RUNS_INFO = "kiln.__main__:main"  # `python -m kiln`


def wheels() -> list[Wheel]:
    return [wheel.cli_wheel(CONTENTS, ROOT), wheel.recipe_wheel(CONTENTS, ROOT), verb.build_wheel(CONTENTS)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """With the three wheels, and with the runtime's, which has nothing but its metadata here."""
    made = tmp_path_factory.mktemp("wheels")
    for one in wheels():
        write_wheel(one, made)
    metadata = wheel.runtime_metadata(CONTENTS, Material("MIT", {}), "")
    write_wheel(Wheel(wheel.RUNTIME, VERSION, "py3-none-any", "test", metadata, {}, {}, wheel.RUNTIME_POINTS), made)
    return made


def environment(place: Path, folder: Path, *packages: str) -> Path:
    """An empty one with these packages; its folder of commands."""
    venv.create(place, with_pip=True)
    command = [place / "bin/python", "-m", "pip", "install", "-q", "--no-index", "--find-links", folder, *packages]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return place / "bin"


def call(bin: Path, *words: object, cwd: Path = Path("/"), **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("KILN", "PYTHON"))}
    return subprocess.run(
        [bin / "kiln", *map(str, words)], env=kept | variables, cwd=cwd, capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def bin(folder, tmp_path_factory) -> Path:
    return environment(tmp_path_factory.mktemp("an environment"), folder, wheel.BUILD)


# ---- the wheels ------------------------------------------------------------------------------------------------------


def test_a_wheel_brings_the_tree_and_nothing_of_its_surroundings(folder):
    (path,) = folder.glob("kiln_build-*.whl")
    assert path.name == f"kiln_build-{VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        names = {*archive.namelist()}
        project = {name.removeprefix("kiln_build/project/") for name in names if "/project/" in name}
        for name in (
            "build.sh", "CMakeLists.txt", "LICENSE", "csrc/core/pack.cc", "csrc/flags.txt", "cmake/kiln.pc.in",
            "include/kiln/kiln.h", "tritonsrc/flash/recipe.yaml", "tuning/flash/sm_90.yaml", "notices/notices.yaml",
            "input/toolchain.lock.yaml", "input/front.lock", "bindings/python/kiln/__init__.py", ".source.json",
        ):  # fmt: skip
            assert name in project, name
            if name != ".source.json":
                assert archive.read(f"kiln_build/project/{name}") == (ROOT / name).read_bytes()
        assert {"kiln_build/cli/plan.py", "kiln_build/native/templates/family.cc.jinja"} <= names
        assert "kiln" not in project, "a checkout's, by which lines that tell what to run call the command ./kiln"
        strange = [name for name in names if "__pycache__" in name or "input/cache" in name or name.endswith(".so")]
        assert not strange and not any(name.startswith(("tests/", "ledger/")) for name in project)
        assert {name.split("/")[1] for name in project if name.startswith("v3python/")} == {"kiln_bench"}
        info = f"kiln_build-{VERSION}.dist-info"
        metadata = archive.read(f"{info}/METADATA").decode().splitlines()
        for line in ("Name: kiln-build", f"Version: {VERSION}", f"Requires-Dist: kiln-cli==={VERSION}",
                     f"Requires-Dist: kiln-recipe==={VERSION}", "License-File: NOTICES.txt"):  # fmt: skip
            assert line in metadata
        assert {f"{info}/licenses/LICENSE", f"{info}/licenses/NOTICES.txt"} <= names
        points = archive.read(f"{info}/entry_points.txt").decode().splitlines()
    assert points == ["[kiln.verbs]", *(f"{name} = kiln_build.installed:main" for name in sorted(VERBS))]


def test_equal_bytes_every_time(folder, tmp_path):
    for one in wheels():
        again = write_wheel(one, tmp_path)
        assert again.read_bytes() == (folder / again.name).read_bytes(), again.name


def test_the_group_has_one_name():
    assert {*wheel.RUNTIME_POINTS} == {kiln_cli.GROUP} and wheel.RUNTIME_POINTS[wheel.VERBS]["info"] == RUNS_INFO


# ---- the command -----------------------------------------------------------------------------------------------------


def test_with_neither_a_sentence_says_what_to_install(folder, tmp_path):
    done = call(environment(tmp_path / "e", folder, wheel.CLI), "plan")
    assert (done.returncode, done.stdout) == (7, "")
    assert done.stderr == (
        "kiln: no command is installed; pip install kiln-runtime (what runs kernels) or kiln-build (what builds them)\n"
    )


def test_it_finds_the_verbs_of_both(folder, bin):
    done = call(bin, "--help")
    assert done.returncode == 0 and all(re.search(rf"^  {name} +kiln-build$", done.stdout, re.M) for name in VERBS)
    assert call(bin, "--version").stdout == f"kiln-build {VERSION}\n"
    assert call(bin).returncode == 2
    done = call(bin, "biuld")
    assert (done.returncode, done.stderr) == (2, "kiln: unknown command 'biuld'; did you mean 'build'?\n")
    done = call(bin, "info")
    assert done.returncode == 2 and done.stderr.endswith("; pip install kiln-runtime (what runs kernels)\n")
    python = bin / "python"
    more = [python, "-m", "pip", "install", "-q", "--no-index", "--find-links", folder, wheel.RUNTIME]
    subprocess.run(more, check=True)
    try:
        assert re.search(r"^  info +kiln-runtime$", call(bin, "--help").stdout, re.M)
        assert call(bin, "--version").stdout == f"kiln-build {VERSION}\nkiln-runtime {VERSION}\n"
        assert subprocess.run([python, "-m", "pip", "check"], capture_output=True).returncode == 0
    finally:
        subprocess.run([python, "-m", "pip", "uninstall", "-q", "-y", wheel.RUNTIME], check=True)


def test_the_verbs_run_from_a_tree_that_is_laid_out_once(bin, tmp_path):
    done = call(bin, "plan", "--help", XDG_CACHE_HOME=str(tmp_path))
    (tree,) = (tmp_path / "kiln").iterdir()
    assert done.stderr == f"kiln: source: that of kiln-build is laid out in {tree}\n"
    assert done.returncode == 0 and "usage: kiln plan " in done.stdout
    assert source.describe(tree) == source.describe(ROOT)
    ours = {path for path in source.tree_files(ROOT) if path.startswith(("v3python/", *wheel.PROJECT))}
    theirs = {path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file()}
    assert theirs - {".source.json"} == ours
    assert all((tree / path).read_bytes() == (ROOT / path).read_bytes() for path in ours)
    again = call(bin, "plan", "--help", XDG_CACHE_HOME=str(tmp_path))
    assert (again.returncode, again.stderr) == (0, "")
    assert [*(tmp_path / "kiln").iterdir()] == [tree]


def test_a_cache_that_cannot_be_written(bin, tmp_path):
    (tmp_path / "kiln").write_text("")
    done = call(bin, "plan", "--help", XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 7 and "set XDG_CACHE_HOME to a folder that can be" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_build_takes_the_words_of_build_sh(bin, tmp_path):
    def said(*words: object, **variables: str) -> str:
        done = call(bin, "build", *words, cwd=tmp_path, XDG_CACHE_HOME=str(tmp_path / "c"), **variables)
        assert done.returncode, done.stdout
        return f"{done.returncode} {done.stderr.splitlines()[-1]}"

    assert "usage: kiln build [-h] [--recipe FILE]" in call(bin, "build", "--help").stdout
    assert said("a", "b").startswith("2 kiln: `kiln build` lacks output, version, targets; for example: `kiln build in")
    assert not (tmp_path / "a").exists()
    five = ("in", "work", "out", "0.1.0b", "sm_90")
    assert "2 kiln: KILN_PROFILE=big is unknown" in said(*five, KILN_PROFILE="big")
    assert {path.name for path in (tmp_path / "in").iterdir()} >= {"toolchain.lock.yaml", "front.lock"}
    assert "2 kiln: version '0.1/2' is not X.Y" in said("in", "work", "out", "0.1/2", "sm_90")
    assert "7 kiln: --log-json=77 is not an open descriptor" in said(*five, "--log-json", "77")
    assert "7 kiln: --recipe names gone.yaml, which is not a file" in said(*five, "--recipe", "gone.yaml")
    recipe = ("--recipe", ROOT / "examples/family/recipe.yaml")
    assert "2 kiln: KILN_PROFILE=big is unknown" in said(*five, *recipe, KILN_PROFILE="big"), "by build.sh"
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters/a").write_text("")
    refused = said("letters", *five[1:])
    assert refused.startswith(f"7 kiln: input {tmp_path}/letters has no toolchain.lock.yaml")
    assert [path.name for path in (tmp_path / "letters").iterdir()] == ["a"], "what is somebody's stays as it is"


def test_downloads_alone_are_an_input_too(tmp_path):
    (tmp_path / "input/cache").mkdir(parents=True)
    (tmp_path / "input/cache/a.whl").write_text("")
    installed.seed(tmp_path / "input", ROOT)
    assert (tmp_path / "input/front.lock").read_bytes() == (ROOT / "input/front.lock").read_bytes()
    assert [path.name for path in (tmp_path / "input/cache").iterdir()] == ["a.whl"]


def test_a_checkout_is_not_installed():
    with pytest.raises(EnvironmentProblem, match="in a checkout use"):
        installed.files()
