"""build.sh as users run it, up to where the build begins; whole builds are in test_build.py and tests/container."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kiln_build.front import source

ROOT = Path(__file__).resolve().parents[1]
INPUT = ROOT / "input"


def environment(**variables: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("KILN_", "PYTHON"))}
    return {**kept, "KILN_PYTHON": sys.executable, "KILN_ENGINE": "none", **variables}


def door(*words: object, cwd: Path = ROOT, tree: Path = ROOT, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", os.path.relpath(tree / "build.sh", cwd), *map(str, words)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=environment(**variables),
        check=False,
        timeout=300,
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("front door")


@pytest.fixture(scope="module")
def damaged(tmp_path_factory):
    """An input that is refused once the first packages are there."""
    folder = tmp_path_factory.mktemp("damaged") / "input"
    folder.mkdir()
    (INPUT / "cache").mkdir(exist_ok=True)
    for name in ("cache", "front.lock"):
        (folder / name).symlink_to(INPUT / name)
    (folder / "toolchain.lock.yaml").write_text("packages: [\n")
    return folder


def refused(place: Path, *, code: int = 2, **changes) -> str:
    words = {"input": INPUT, "workspace": place / "work space", "output": place / "out", "version": "0.1.0b"}
    words |= {"targets": "sm_90"}
    variables = {key: value for key, value in changes.items() if key.startswith("KILN_")}
    words |= {key: value for key, value in changes.items() if key in words}
    done = door(*words.values(), **variables)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr and done.stdout == ""
    assert not (place / "work space").exists()
    return done.stderr.splitlines()[-1]


OUTPUTS = [(">&-", "--help"), (">&-", "i w o 1.0 sm_90"), ("<&- >&- 2>&-", "i w o 1.0 sm_90"), (">/dev/full", "--help")]


def test_without_words_usage_and_examples():
    done = door()
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("usage: bash build.sh <input> <workspace|tmpfs> <output> <version>")
    assert 'bash build.sh input tmpfs output 0.1.0b "MI300X;MI200;Navi31;sm_80;sm_90"' in done.stderr


def test_help_names_every_variable():
    done = door("--help")
    assert done.returncode == 0
    from kiln_build.options.variables import VARIABLES

    assert all(re.search(rf"^  {name} ", done.stdout, re.MULTILINE) for name in VARIABLES)


@pytest.mark.parametrize(("output", "words"), OUTPUTS)
def test_output_that_cannot_be_written(output, words):
    done = subprocess.run(
        ["bash", "-c", f"bash build.sh {words} {output}"],
        cwd=ROOT, env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 7
    assert "standard output is closed" in done.stderr or "No space left on device" in done.stderr or "2>" in output


@pytest.mark.parametrize("count", [1, 4, 6])
def test_a_wrong_number_of_words(count):
    done = door(*"abcdef"[:count])
    assert done.returncode == 2
    assert f"takes five arguments, but got {count}; quote the targets" in done.stderr


@pytest.mark.parametrize(
    ("targets", "said"),
    [
        ("sm_91", "unknown target 'sm_91'; the nearest is sm_90"),
        ("MI300X;;sm_90", "empty target in 'MI300X;;sm_90'"),
        ("90-virtual", "target '90-virtual' asks for PTX alone"),
        ("MI300X-virtual", "target 'MI300X-virtual' asks for PTX, which AMD's GPUs have not; say gfx942"),
        ("gfx90a:xnack+", "target 'gfx90a:xnack+' names features; say gfx90a"),
    ],
)
def test_bad_targets(place, targets, said):
    line = refused(place, targets=targets)
    assert line.startswith(f"kiln: {said}") and any(name in line for name in ("gfx942", "sm_120"))


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        ({"version": "0.1/2"}, 2, "version '0.1/2' is not X.Y or X.Y.Z"),
        ({"input": "/no where"}, 7, "input /no where is not a folder"),
        ({"output": "/proc/out"}, 7, "output /proc/out cannot be written"),
        ({"workspace": "/proc/work"}, 7, "workspace /proc/work cannot be written"),
        ({"targets": ""}, 2, "the fifth argument names no target"),
        ({"KILN_PROFILE": "big"}, 2, "KILN_PROFILE=big is unknown"),
        ({"KILN_ENGINE": "lxc"}, 2, "KILN_ENGINE=lxc is unknown"),
        ({"KILN_RECIPES": "gone.yaml"}, 7, "KILN_RECIPES names"),
        ({"KILN_LOG_JSON": "/nowhere/x"}, 7, "KILN_LOG_JSON=/nowhere/x cannot be made: there is no folder /nowhere; "),
        ({"KILN_LOG_JSON": "/"}, 7, "KILN_LOG_JSON=/ is a folder; give a file, or an open descriptor's number"),
        ({"KILN_SELECT": "dtype=bf16;;"}, 2, "KILN_SELECT='dtype=bf16;;' has an empty choice; expected for example"),
        ({"KILN_PYTHON": "/usr/bin/false"}, 7, "KILN_PYTHON=/usr/bin/false is not a CPython 3.10 to 3.14"),
        ({"KILN_CA_BUNDLE": "gone.pem"}, 7, "KILN_CA_BUNDLE=gone.pem is not a file"),
        ({"KILN_BASE_IMAGE": "b"}, 2, "KILN_ENGINE=none builds without a container, but KILN_BASE_IMAGE"),
        (
            {"KILN_STORE": "/dev/null"},
            7,
            "KILN_STORE=/dev/null is a device; give a folder, or a name that does not exist yet",
        ),
        ({"workspace": INPUT / "README.md"}, 7, f"workspace {INPUT}/README.md is a file; give a folder"),
        (
            {"KILN_RECIPES": "examples/family"},
            7,
            "KILN_RECIPES names examples/family, which is a folder; give the file",
        ),
    ],
)
def test_bad_input(place, changes, code, said):
    assert refused(place, code=code, **changes).startswith(f"kiln: {said}")
    assert not (place / "out").exists()


@pytest.mark.parametrize(("targets", "code"), [("sm_91", 2), ("sm_90", 5)])
def test_the_log_of_a_failed_build_ends_with_the_sentence_and_the_code(tmp_path, damaged, targets, code):
    """Refused by the first half, and by the second."""
    log = tmp_path / "log"
    words = [damaged, tmp_path / "work", tmp_path / "out", "0.1.0b", targets]
    done = door(*words, KILN_LOG_JSON=os.path.relpath(log, ROOT))
    assert done.returncode == code, done.stderr
    last = json.loads(log.read_text().splitlines()[-1])
    assert (last["event"], last["code"]) == ("error", code)
    assert f"kiln: {last['text']}\n" in done.stderr and log.read_text().count('"error"') == 1


def test_an_unknown_variable_is_a_warning(place):
    done = door(INPUT, place / "work space", place / "out", "0.1", "sm_91", KILN_HOME="1")
    assert "kiln: warning: KILN_HOME is set, but nothing reads it; `bash build.sh --help` lists" in done.stderr


def test_no_python(tmp_path):
    (tmp_path / "bin").mkdir()
    for tool in ("bash", "dirname", "cat"):
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool))
    variables = environment(PATH=str(tmp_path / "bin"))
    del variables["KILN_PYTHON"]
    if Path("/opt/python/cp312-cp312/bin/python3").exists():
        pytest.skip("a manylinux image always has one")
    done = subprocess.run(
        ["bash", str(ROOT / "build.sh"), "i", "w", "o", "1.0", "sm_90"],
        capture_output=True,
        text=True,
        env=variables,
        check=False,
    )
    assert done.returncode == 7
    assert "this host has no CPython 3.10 to 3.14 with venv; install one" in done.stderr


def test_a_python_that_says_nothing_is_none(tmp_path):
    done = door("i", "w", "o", "1.0", "sm_90", KILN_PYTHON="/bin/true")
    assert done.returncode == 7 and "KILN_PYTHON=/bin/true is not a CPython 3.10 to 3.14" in done.stderr


def test_without_a_path_python_is_known_by_its_folder():
    kept = {key: value for key, value in environment().items() if key not in ("PATH", "KILN_PYTHON")}
    words = [shutil.which("bash"), str(ROOT / "build.sh"), "--python-path"]
    done = subprocess.run(words, env=kept, capture_output=True, text=True, check=False)
    if done.returncode == 7:
        assert "no CPython" in done.stderr  # none where a shell looks by itself
    else:
        assert Path(done.stdout.strip()).is_absolute()


def test_a_folder_that_is_gone(tmp_path):
    folder = tmp_path / "gone"
    folder.mkdir()
    script = 'cd "$1" && rmdir "$1" && exec bash "$2" i w o 1.0 sm_90'
    words = ["bash", "-c", script, "bash", str(folder), str(ROOT / "build.sh")]
    done = subprocess.run(words, capture_output=True, text=True, env=environment(), check=False)
    assert done.returncode == 7
    assert done.stderr.splitlines()[-1] == "kiln: the current folder no longer exists; change to another"


def test_an_interruption_while_python_starts_is_no_traceback(tmp_path):
    if subprocess.run(["env", "--block-signal=INT", "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("env cannot hold signals back here")
    slow = tmp_path / "python"
    slow.write_text(
        f'#!/bin/bash\nif [[ $* == *door.py* ]]; then touch "{tmp_path}/ready"; sleep 0.5; fi\n'
        f'exec "{sys.executable}" "$@"\n'
    )
    slow.chmod(0o755)
    words = ["bash", str(ROOT / "build.sh"), str(INPUT), str(tmp_path / "w"), str(tmp_path / "o"), "0.1", "sm_91"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=environment(KILN_PYTHON=str(slow)))
    while not (tmp_path / "ready").exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (130, "kiln: interrupted by SIGINT\n")


def memory_workspaces() -> set[Path]:
    return {path for place in ("/dev/shm", "/tmp", "/run") for path in Path(place).glob("kiln-workspace-*")}


def start_in_memory(place: Path) -> tuple[subprocess.Popen[str], Path]:
    """A build on tmpfs, and its workspace once that is there."""
    words = [str(INPUT), "tmpfs", str(place / "out"), "0.1", "sm_90"]
    process = subprocess.Popen(
        ["bash", str(ROOT / "build.sh"), *words], stderr=subprocess.PIPE, text=True, env=environment()
    )
    line = process.stderr.readline()
    if "no memory file system" in line:
        process.communicate()
        pytest.skip(line)
    made = re.fullmatch(r"kiln: workspace: (\S+) in memory, [0-9.]+ GiB free; removed at the end\n", line)
    assert made, line
    return process, Path(made[1])


@pytest.mark.parametrize(
    ("number", "code", "to_group"),
    [(signal.SIGINT, 130, True), (signal.SIGTERM, 143, False), (signal.SIGHUP, 129, False)],
)
def test_an_interruption_removes_the_memory_workspace(place, number, code, to_group):
    process, made = start_in_memory(place)
    while not (made / "venv").exists():
        time.sleep(0.02)
    time.sleep(1.0)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == code
    assert not made.exists() and "Traceback" not in said
    removed = f"kiln: workspace: {made} is removed with everything in it; a folder as workspace would be kept"
    assert sorted(said.splitlines()[-2:]) == [f"kiln: interrupted by {number.name}", removed]


def test_a_failure_removes_the_memory_workspace_too(place, damaged):
    before = memory_workspaces()
    done = door(damaged, "tmpfs", place / "out", "0.1", "sm_90")
    if "no memory file system" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 5 and "toolchain.lock.yaml" in done.stderr
    assert memory_workspaces() <= before


def test_a_memory_workspace_of_a_killed_build_is_removed_by_the_next(place, damaged):
    process, made = start_in_memory(place)
    while not (made / ".kiln-workspace").exists():
        time.sleep(0.02)
    time.sleep(0.5)
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 30
    while made.exists() and time.monotonic() < deadline:  # a pip of the dead build may still be at it
        door(damaged, "tmpfs", place / "out", "0.1", "sm_90")
    assert not made.exists()


@pytest.fixture
def repository(tmp_path):
    """A checkout with a tag 1.0 whose build.sh tells what it was given."""
    if shutil.which("git") is None:
        pytest.skip("needs git")
    root = source.copy_tree(ROOT, tmp_path / "a checkout", source.Origin("", False))
    (root / ".source.json").unlink()
    real = (root / "build.sh").read_text()
    (root / "build.sh").write_text(
        'echo "tag: $0 | $* | $KILN_SOURCE"; cat "$(dirname "$0")/.source.json"; exit ${TAG_EXIT:-0}\n'
    )
    identity = {
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@b",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@b",
    }
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "x"], ["tag", "1.0"]):
        subprocess.run(["git", *words], cwd=root, check=True, env={**os.environ, **identity})
    (root / "build.sh").write_text(real)
    return root


def test_a_tag_is_built_by_its_own_build_sh(repository, tmp_path):
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=repository, capture_output=True, text=True).stdout.strip()
    work = tmp_path / "w"
    done = door("a checkout/input", "w", "o", "1.0", "MI300X;sm_90", cwd=tmp_path, tree=repository)
    assert done.returncode == 0, done.stderr
    (first,) = done.stderr.splitlines()
    second, third = done.stdout.splitlines()
    assert first == f"kiln: source: git tag 1.0 (commit {commit[:12]}), by its own build.sh"
    words = f"{repository / 'input'} {work} {tmp_path / 'o'} 1.0 MI300X;sm_90"
    assert second == f"tag: {work / 'source' / 'tag-1.0' / 'build.sh'} | {words} | tree"
    assert third == f'{{"commit": "{commit}", "dirty": false, "patches": ""}}'


def test_the_exit_code_of_a_tags_build_is_ours(repository, tmp_path):
    assert door("a checkout/input", "w", "o", "1.0", "x", cwd=tmp_path, tree=repository, TAG_EXIT="4").returncode == 4


def test_the_tree_is_built_if_asked_for_or_if_there_is_no_tag(repository, tmp_path):
    for version, kind in (("1.0", "tree"), ("1.1", "tag")):
        done = door("a checkout/input", "w", "o", version, "sm_91", cwd=tmp_path, tree=repository, KILN_SOURCE=kind)
        assert done.returncode == 2 and done.stdout == "" and "unknown target 'sm_91'" in done.stderr


def test_patches_of_the_input_are_applied_to_a_copy(repository, tmp_path):
    folder = repository / "input" / "patch-1.1"
    folder.mkdir()
    patch = "--- a/build.sh\n+++ b/build.sh\n@@ -1,2 +1,3 @@\n #!/usr/bin/env bash\n+echo patched\n"
    second = (repository / "build.sh").read_text().splitlines()[1]
    (folder / "0001.patch").write_text(f"{patch} {second}\n")
    done = door("a checkout/input", "w", "o", "1.1", "sm_91", cwd=tmp_path, tree=repository)
    assert f"kiln: source: with 1 patch of {folder}" in done.stderr.splitlines() and done.stdout == "patched\n"
    assert done.returncode == 2 and "unknown target 'sm_91'" in done.stderr
    assert "patched" not in (repository / "build.sh").read_text()
    (folder / "0001.patch").write_text(f"{patch} something else\n")
    done = door("a checkout/input", "w", "o", "1.1", "sm_91", cwd=tmp_path, tree=repository)
    assert done.returncode == 2 and "0001.patch does not apply" in done.stderr


def test_nothing_is_left_in_the_home_or_the_tree(tmp_path, damaged):
    home = tmp_path / "home"
    home.mkdir()
    before = {path for path in ROOT.rglob("__pycache__") if ".venv" not in path.parts}
    assert door(damaged, tmp_path / "w", tmp_path / "o", "0.1", "sm_90", HOME=str(home)).returncode == 5
    assert list(home.rglob("*")) == []
    assert {path for path in ROOT.rglob("__pycache__") if ".venv" not in path.parts} == before
