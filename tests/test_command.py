"""`./kiln`: what it installs, when, and that nothing of the caller's folder gets into it."""

from __future__ import annotations

import os
import shutil
import subprocess
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
