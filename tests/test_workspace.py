"""Workspaces: memory file systems are judged, folders held, emptied and checked for room."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from kiln_build.front import workspace
from kiln_build.front.workspace import GIB, make_memory_workspace, memory_folders, own_workspace
from kiln_recipe.errors import EnvironmentProblem

SOURCE = Path(__file__).resolve().parents[1] / "v3python"


@pytest.fixture
def small_tmpfs(tmp_path):
    """A memory file system of 64 MiB; with options, remounted."""
    place = tmp_path / "small fs"
    place.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(place)], capture_output=True, text=True, check=False
    )
    if made.returncode != 0:
        pytest.skip(f"cannot mount a tmpfs here: {made.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=False)


def mounts_of(*places: Path) -> str:
    return "".join(f"tmpfs {str(place).replace(' ', chr(92) + '040')} tmpfs rw 0 0\n" for place in places)


def test_a_small_and_a_noexec_file_system_are_refused_with_the_reason(small_tmpfs):
    (found,) = memory_folders(mounts_of(small_tmpfs), None, 100 * GIB, GIB)
    assert (found.path, found.refusal) == (small_tmpfs, "64.0 MiB free")
    (found,) = memory_folders(mounts_of(small_tmpfs), None, 100 * GIB, 1 << 20)
    assert found.refusal == ""
    (found,) = memory_folders(mounts_of(small_tmpfs), None, 1 << 19, 1 << 20)
    assert found.refusal == "512.0 KiB free"  # the memory itself is gone
    subprocess.run(["mount", "-o", "remount,noexec", str(small_tmpfs)], check=True)
    (found,) = memory_folders(mounts_of(small_tmpfs), None, 100 * GIB, 1 << 20)
    assert found.refusal == "mounted noexec"


def test_no_file_system_with_room_names_each(monkeypatch):
    monkeypatch.setattr(workspace.machine, "usable_memory", lambda: GIB)
    said: list[str] = []
    with pytest.raises(EnvironmentProblem, match=r"has the 6.0 GiB that a build needs \(.*GiB free.*give a folder"):
        make_memory_workspace(said.append)
    assert said == []


def memory_or_skip():
    mounts = Path("/proc/self/mounts").read_text()
    if all(folder.refusal for folder in memory_folders(mounts, None, GIB, 1 << 20)):
        pytest.skip("this host has no memory file system that programs can run from")


def test_a_memory_workspace_says_where_and_how_much_and_removes_dead_ones():
    memory_or_skip()
    said: list[str] = []
    first = make_memory_workspace(said.append, needed=1 << 20)
    assert said[0].startswith(f"workspace: {first} in memory, ") and "GiB free; removed at the end" in said[0]
    with own_workspace_of_any_size(first):
        second = make_memory_workspace(said.append, needed=1 << 20)
        assert first.exists()  # alive
    (second / "x").touch()
    third = make_memory_workspace(said.append, needed=1 << 20)
    assert not first.exists() and second.exists()  # the second was never locked: it may be just beginning
    for path in (second, third):
        (path / "x").unlink(missing_ok=True)
        path.rmdir()


def own_workspace_of_any_size(path):
    return workspace.locked(path, lambda text: None)


def test_a_workspace_that_is_removed_before_it_is_locked_is_made_anew(tmp_path, monkeypatch):
    """Another build may take it for a dead one's between the opening of the lock file and the lock."""
    path = tmp_path / f"{workspace._MEMORY_PREFIX}x"
    flock, calls = workspace.fcntl.flock, []

    def slow(descriptor, how):
        calls.append(how)
        if len(calls) == 1:
            workspace._remove_dead(tmp_path)
            assert not path.exists()
        flock(descriptor, how)

    monkeypatch.setattr(workspace.fcntl, "flock", slow)
    with own_workspace_of_any_size(path):
        assert workspace.is_workspace(path)
        workspace._remove_dead(tmp_path)
        assert workspace.is_workspace(path)


def test_a_workspace_that_was_made_anew_is_not_removed_for_its_dead_namesake(tmp_path, monkeypatch):
    path = tmp_path / f"{workspace._MEMORY_PREFIX}x"
    path.mkdir()
    (path / workspace.WORKSPACE_LOCK).touch()
    flock = workspace.fcntl.flock

    def slow(descriptor, how):
        (path / workspace.WORKSPACE_LOCK).unlink()  # a third build is faster, and the first goes on in a new folder
        (path / workspace.WORKSPACE_LOCK).touch()
        flock(descriptor, how)

    monkeypatch.setattr(workspace.fcntl, "flock", slow)
    workspace._remove_dead(tmp_path)
    assert workspace.is_workspace(path)


def test_no_room(small_tmpfs):
    with pytest.raises(EnvironmentProblem, match=r"has 64.0 MiB free, and a build needs 2.5 GiB"):
        with own_workspace(small_tmpfs / "w", print, False):
            pass
    with pytest.raises(EnvironmentProblem, match=r"has 64.0 MiB free, and a build needs 256.0 MiB"):
        with own_workspace(small_tmpfs / "w", print, False, installs=False):
            pass
    assert not (small_tmpfs / "w").exists(), "what is refused leaves nothing"
    (small_tmpfs / "w/venv").mkdir(parents=True)
    (small_tmpfs / "w" / workspace.WORKSPACE_LOCK).touch()
    with pytest.raises(EnvironmentProblem, match=r"has 64.0 MiB free"), own_workspace(small_tmpfs / "w", print, False):
        pass
    assert workspace.is_workspace(small_tmpfs / "w"), "but for a workspace that was there"


def test_a_folder_that_cannot_be_made():
    with pytest.raises(EnvironmentProblem, match="workspace /proc/none cannot be written"):
        with own_workspace(Path("/proc/none"), print, False):
            pass


def test_a_file_in_its_place(tmp_path):
    (tmp_path / "w").touch()
    with pytest.raises(EnvironmentProblem, match=r"workspace .*/w cannot be written \(File exists\)"):
        with own_workspace(tmp_path / "w", print, False):
            pass


def test_one_build_at_a_time(tmp_path):
    said: list[str] = []
    order: list[str] = []

    def second():
        with own_workspace(tmp_path, said.append, False):
            order.append("second")

    with own_workspace(tmp_path, said.append, False):
        thread = threading.Thread(target=second)
        thread.start()
        while not said:
            time.sleep(0.01)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
    assert said == [f"workspace: {tmp_path} is in use by another Kiln process; waiting for it"]


def test_a_killed_build_leaves_no_lock(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from kiln_build.front.workspace import own_workspace\n"
        "with own_workspace(Path(sys.argv[1]), print, False): print('held', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    assert process.stdout.readline() == b"held\n"
    process.kill()
    process.wait()
    process.stdout.close()
    said: list[str] = []
    with own_workspace(tmp_path, said.append, False):
        assert said == []


def test_a_folder_with_something_in_it_becomes_no_workspace(tmp_path):
    (tmp_path / "letters").mkdir()
    with (
        pytest.raises(EnvironmentProblem, match="holds 'letters', which no build makes"),
        own_workspace(tmp_path, print, True),
    ):
        raise AssertionError("it must not be held")
    assert [path.name for path in tmp_path.iterdir()] == ["letters"]
    with pytest.raises(EnvironmentProblem, match="which no build makes"), own_workspace(Path("/"), print, True):
        raise AssertionError("it must not be held")


def test_clean_keeps_what_is_not_ours(tmp_path):
    with own_workspace(tmp_path, print, False):
        pass
    for name in ("store", "venv", "mine"):
        (tmp_path / name).mkdir()
    (tmp_path / "other").symlink_to(tmp_path / "mine")
    (tmp_path / "zig").symlink_to(tmp_path / "mine")
    with own_workspace(tmp_path, print, True):
        assert {path.name for path in tmp_path.iterdir()} == {".kiln-workspace", "mine", "other"}


def test_a_release_is_never_cleaned_away(tmp_path):
    with own_workspace(tmp_path, print, False):
        pass
    (tmp_path / "build" / "mine").mkdir(parents=True)
    (tmp_path / "tmp").mkdir()
    release = tmp_path / "build" / "mine" / "kiln-0.1.0b-manylinux_2_28_x86_64-shared.tar.gz"
    release.touch()
    release.with_name(f"{release.name}.sha256").touch()
    with pytest.raises(EnvironmentProblem, match="shared.tar.gz is a release, which is not removed; move it"):
        workspace.clean_workspace(tmp_path)
    assert release.exists() and (tmp_path / "tmp").exists()
    assert workspace.clean_workspace(tmp_path, ["build"]) == ["tmp"]
    release.with_name(f"{release.name}.sha256").unlink()  # what a build left that was killed
    assert workspace.clean_workspace(tmp_path) == ["build"]


def test_clean_keeps_the_python_that_we_run_on(tmp_path, monkeypatch):
    with own_workspace(tmp_path, print, False):
        pass
    for name in ("store", "venv"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    with own_workspace(tmp_path, print, True):
        assert {path.name for path in tmp_path.iterdir()} == {".kiln-workspace", "venv"}
    monkeypatch.setattr(sys, "prefix", "/usr")
    with own_workspace(tmp_path, print, True):
        assert {path.name for path in tmp_path.iterdir()} == {".kiln-workspace"}


def test_what_cannot_be_removed_is_one_sentence(small_tmpfs):
    place = small_tmpfs.parent / "w"
    with own_workspace(place, print, False):
        pass
    (place / "store" / "held").mkdir(parents=True)
    subprocess.run(["mount", "--bind", str(small_tmpfs), str(place / "store" / "held")], check=True)
    try:
        with pytest.raises(EnvironmentProblem, match="store cannot be removed .*busy.*; remove it, or give another"):
            with own_workspace(place, print, True):
                pass
    finally:
        subprocess.run(["umount", str(place / "store" / "held")], check=True)
