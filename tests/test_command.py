"""`./kiln`: what it installs, when, and that nothing of the caller's folder gets into it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from kiln_build.front import command
from kiln_recipe.errors import ToolchainError

pytestmark = pytest.mark.slow(20)

ROOT = Path(__file__).resolve().parents[1]
SETTING_UP = "kiln: packages: setting up"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """What of the tree the command needs, with a space in its path and the cache of this one."""
    copy = tmp_path_factory.mktemp("a") / "check out"
    for name in ("v3python", "tritonsrc", "tuning", "csrc", "include"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "input").mkdir()
    for name in ("kiln", "build.sh", "input/toolchain.lock.yaml", "input/front.lock", "input/README.md"):
        shutil.copy(ROOT / name, copy / name)
    (copy / "input/cache").symlink_to(ROOT / "input/cache")
    return copy


def call(checkout: Path, *words: object, cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("KILN", "PYTHON"))}
    return subprocess.run(
        [str(checkout / "kiln"), *map(str, words)], cwd=cwd or checkout, env=kept | variables,
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "group"),
    [
        ((), "nothing"),
        (("--version",), "nothing"),
        (("ledger", "--help"), "nothing"),
        (("clean", "place"), "nothing"),
        (("fetch", "--verify"), "nothing"),
        (("fetch", "--unbundle=file"), "nothing"),
        (("fetch", "--bundle", "file"), "front"),
        (("targets",), "front"),
        (("plan", "sm_90"), "front"),
        (("plan", "sm_90", "--store", "place"), "reading"),
        (("inspect", "file"), "reading"),
        (("apply", "file"), "packing"),
        (("ledger",), "everything"),
        (("no such verb",), "front"),
    ],
)
def test_what_a_call_needs(monkeypatch, words, group):
    monkeypatch.delenv("KILN_STORE", raising=False)
    assert command.group_of(words) == group


def test_what_needs_nothing_installs_nothing(checkout, tmp_path):
    for words in ((), ("--version",), ("plan", "--help"), ("fetch", "--verify", "--input", tmp_path)):
        said = call(checkout, *words)
        assert SETTING_UP not in said.stderr and "Traceback" not in said.stderr
    assert not (checkout / ".kiln").exists()
    assert not [*(checkout / "v3python").rglob("__pycache__")]


@pytest.mark.parametrize(
    ("words", "variables", "code", "said"),
    [
        (["wheel"], {}, 2, "`kiln wheel` lacks artifact, output"),
        (["wheel", "r.tar.gz"], {}, 2, "`kiln wheel` lacks output"),
        (["wheel", "r.tar.gz", ""], {}, 2, "the output is empty; give the folder for the wheels"),
        (["wheel", "/nowhere", "out"], {}, 7, "/nowhere cannot be read (No such file or directory); give a release"),
        (["wheel", "input", "out", "--target", "sm_91"], {}, 2, "unknown target 'sm_91'; the nearest is sm_90, "),
        (["list"], {}, 2, "`kiln list` lacks artifact"),
        (["list", "/nowhere"], {}, 7, "/nowhere cannot be read"),
        (["inspect"], {}, 2, "nothing to inspect"),
        (["plan", "sm_91"], {}, 2, "unknown target 'sm_91'"),
        (["plan", "--tuning", ""], {}, 2, "--tuning is empty; give a folder with tuned rules"),
        (["plan"], {"KILN_SOURCE": "foo"}, 2, "KILN_SOURCE=foo is unknown; expected one of tag, tree"),
        (["plan"], {"KILN_STORE": "build.sh"}, 7, "KILN_STORE=build.sh is a file; give a folder"),
        (["plan"], {"KILN_STORE": "/proc/store"}, 7, "KILN_STORE=/proc/store cannot be written"),
        (["targets"], {"KILN_CA_BUNDLE": "/nowhere"}, 7, "KILN_CA_BUNDLE=/nowhere is not a file"),
        (["targets", "nope"], {}, 2, "unknown target 'nope'; the targets are gfx908"),
        (["recipes", "--schema", "recipe.yaml"], {}, 2, "--schema is the same for all recipes"),
        (["ledger", "--seed", "1"], {}, 2, "--seed is for --sample alone"),
        (["store", "gc"], {}, 2, "`kiln store gc` needs the size"),
        (["build", "input", "w", "o", "0.1", "sm_91"], {}, 2, "unknown target 'sm_91'"),
        (
            ["build", "input", "w", "o", "0.1", "sm_90", "--sign", "/"],
            {},
            7,
            "the key is to be in /, which is a folder",
        ),
        (
            ["build", "input", "w", "o", "0.1", "sm_90", "--sign", "/etc/passwd"],
            {},
            2,
            "/etc/passwd is not a secret key",
        ),
        (["build", "input", "w", "o", "0.1", "sm_90", "--sign", "env:A"], {"A": "x"}, 2, "the key is not a secret key"),
        (["build", "input", "w", "o", "0.1", "sm_90", "--log-json", "-1"], {}, 2, "--log-json=-1 is not a descriptor"),
        (["fetch"], {"KILN_JOBS": "none"}, 2, "KILN_JOBS=none is invalid"),
        (["doctor", "--input", ""], {}, 2, "--input is empty"),
        (["no such verb"], {}, 2, "unknown command 'no such verb'"),
    ],
)
def test_what_is_refused_installs_nothing(checkout, words, variables, code, said):
    done = call(checkout, *words, **variables)
    assert done.returncode == code and done.stdout == ""
    assert done.stderr.startswith(f"kiln: {said}") and done.stderr.count("\n") == 1
    assert not (checkout / ".kiln").exists()


BUILD = ("build", "input", "w", "o", "0.1", "sm_90")


@pytest.fixture(scope="module")
def first_packages(tmp_path_factory) -> Path:
    """A workspace for `./kiln` that the tests below share: others need a checkout without .kiln."""
    return tmp_path_factory.mktemp("first") / "packages"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((*BUILD, "--recipe", "text"), 3, "/text:1: the file is 'some words'; it must be a mapping"),
        ((*BUILD, "--family", "nope"), 2, "--family (KILN_FAMILIES) names 'nope', which is not a family; the families"),
        ((*BUILD, "--shard", "1/2", "--durations", "text"), 2, "/text says of no variant what it took; give a copy"),
        (("simulate", "--matrix", "text"), 3, "text:1: the file is 'some words'; it must be a mapping"),
        (("simulate", "sm_90", "--durations", "text"), 2, "text says of no variant what it took"),
        (("simulate", "sm_90", "--recipe", "text"), 3, "/text:1: the file is 'some words'; it must be a mapping"),
    ],
)
def test_files_of_another_kind_are_refused_with_the_first_packages_alone(checkout, first_packages, words, code, said):
    (checkout / "text").write_text("some words\n")
    done = call(checkout, *words, KILN_WORKSPACE=str(first_packages))
    assert done.returncode == code and done.stdout == "" and "adding" not in done.stderr
    assert said in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("word", "code", "said"),
    [
        (
            "/proc/kiln",
            7,
            "workspace /proc/kiln cannot be written (No such file or directory); give a folder that you may",
        ),
        ("tmpfs", 2, "KILN_WORKSPACE=tmpfs is for build.sh alone; give a folder"),
        ("input", 7, "holds 'README.md', which no build makes; give an empty or new folder, by KILN_WORKSPACE: "),
        ("build.sh", 7, "build.sh is a file; give a folder"),
    ],
)
def test_packages_that_cannot_be_kept_there(checkout, word, code, said):
    done = call(checkout, "targets", KILN_WORKSPACE=word)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1), done.stderr
    assert said in done.stderr and ("KILN_WORKSPACE" in done.stderr or word == "build.sh")


def test_a_checkout_that_cannot_be_written_is_used_with_another_folder(checkout, tmp_path):
    """A file in the place of .kiln stands for what root may write as well."""
    (checkout / ".kiln").touch()
    try:
        done = call(checkout, "targets")
        assert done.returncode == 7 and "KILN_WORKSPACE" in done.stderr and "tmpfs" not in done.stderr
        done = call(checkout, "plan", "sm_90", cwd=tmp_path, KILN_WORKSPACE="own place")
        assert done.returncode == 0 and f"{SETTING_UP} {tmp_path / 'own place/venv'}" in done.stderr
        done = call(checkout, "store", "info", "--store", tmp_path, cwd=tmp_path, KILN_WORKSPACE="own place")
        assert "adding zstandard" in done.stderr and "is not a store" in done.stderr
    finally:
        (checkout / ".kiln").unlink()


def test_output_that_is_closed_is_refused(checkout):
    done = subprocess.run(["bash", "-c", "./kiln plan sm_90 >&-"], cwd=checkout, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (
        7,
        "kiln: standard output is closed; leave it open, or send it to a file or /dev/null\n",
    )
    assert not (checkout / ".kiln").exists()


def test_a_damaged_lock_ends_in_a_sentence(checkout):
    lock = checkout / "input/front.lock"
    text = lock.read_text()
    lock.write_text("gone\n" + text)
    try:
        said = call(checkout, "targets")
    finally:
        lock.write_text(text)
    assert said.returncode == ToolchainError.exit_code
    assert "front.lock is damaged: 'gone' is not a package with its digests" in said.stderr
    assert "Traceback" not in said.stderr


def test_the_first_call_sets_up_and_says_so(checkout, tmp_path):
    """Two at once: one installs, the other waits. From a folder with modules of names that Kiln imports."""
    for name in ("yaml.py", "msgspec.py", "kiln.py", "inspect.py"):
        (tmp_path / name).write_text("raise SystemExit('the caller\\'s own module was imported')\n")
    linked = tmp_path / "linked"
    linked.symlink_to(checkout / "kiln")
    words = [[str(checkout / "kiln"), "targets"], [str(linked), "targets"]]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KILN")}
    both = [
        subprocess.Popen(w, cwd=tmp_path, env=kept, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for w in words
    ]
    outputs = [process.communicate(timeout=600) for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert all("gfx942" in output for output, _ in outputs)
    assert sum(error.count(SETTING_UP) for _, error in outputs) == 1

    said = call(checkout, "plan", "sm_90", cwd=tmp_path)
    assert said.returncode == 0 and not said.stderr and "variants for 1 target" in said.stdout
    said = call(checkout, "plan", "sm_91")
    assert said.returncode == 2 and said.stderr.startswith("kiln: ") and "Traceback" not in said.stderr


def test_what_reads_releases_gets_what_it_needs(checkout, tmp_path):
    said = call(checkout, "store", "info", "--store", tmp_path)
    assert said.returncode == 7 and "is not a store" in said.stderr
    assert "kiln: packages: adding zstandard and pyelftools" in said.stderr
    said = call(checkout, "inspect", tmp_path)
    assert said.returncode == 6 and "packages:" not in said.stderr and "is not an unpacked release" in said.stderr


def test_another_lock_is_installed_anew(checkout):
    lock = checkout / "input/front.lock"
    lock.write_text("# as a later commit may have it\n" + lock.read_text())
    said = call(checkout, "targets")
    assert said.returncode == 0 and SETTING_UP in said.stderr
    assert SETTING_UP not in call(checkout, "targets").stderr


def can_hold_back() -> bool:
    return subprocess.run(["env", "--block-signal=INT", "true"], capture_output=True, check=False).returncode == 0


def interrupting(path: Path, where: str, python: str) -> None:
    """A Python that gets an interruption while it starts, if `where` is among its words."""
    path.write_text(f'#!/bin/bash\nif [[ $* == *{where}* ]]; then kill -INT $$; fi\nexec "{python}" "$@"\n')
    path.chmod(0o755)


def test_an_interruption_while_either_python_starts_is_no_traceback(checkout, tmp_path):
    if not can_hold_back():
        pytest.skip("env cannot hold signals back here")
    assert call(checkout, "targets").returncode == 0
    interrupting(tmp_path / "python", "command.py", shutil.which("python3"))
    said = call(checkout, "targets", KILN_PYTHON=str(tmp_path / "python"))
    assert (said.returncode, said.stdout, said.stderr) == (130, "", "kiln: interrupted by SIGINT\n")

    second = checkout / ".kiln/venv/bin/python"
    real = second.readlink()
    second.unlink()
    interrupting(second, "kiln_build.cli", str(second.with_name("python3")))
    try:
        said = call(checkout, "targets")
    finally:
        second.unlink()
        second.symlink_to(real)
    assert (said.returncode, said.stdout, said.stderr) == (
        130,
        "",
        "kiln: interrupted by SIGINT; what was done is kept\n",
    )


def test_an_interruption_at_any_time_is_said_or_comes_too_late(checkout):
    """The whole process group gets it, as from a terminal."""
    if not can_hold_back():
        pytest.skip("env cannot hold signals back here")
    began = time.monotonic()
    whole = call(checkout, "targets")
    length = time.monotonic() - began
    codes = []
    for part in range(1, 26):
        process = subprocess.Popen(
            [str(checkout / "kiln"), "targets"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
        time.sleep(length * part / 25)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
        output, error = process.communicate(timeout=60)
        codes.append(process.returncode)
        if process.returncode == 0:
            assert (output, error) == (whole.stdout, "")
        elif process.returncode == 130:
            assert error in ("kiln: interrupted by SIGINT\n", "kiln: interrupted by SIGINT; what was done is kept\n")
        else:  # for a moment nobody of ours is there: bash has let go, env has not begun
            assert (process.returncode, output, error) == (-signal.SIGINT, "", "")
    assert codes.count(130) > 5 and codes.count(-signal.SIGINT) < 4
