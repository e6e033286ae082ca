"""Files and folders that appear complete, or not at all. What a store makes of it is in test_store.py."""

from __future__ import annotations

import contextlib
import os

import pytest

from kiln_build.base.folder import SharedFolder, is_same_file
from kiln_recipe.console.appear import appear, appear_folder


class Broken(Exception):
    pass


def test_a_file_appears_when_it_is_complete(tmp_path):
    path = tmp_path / "a file"
    path.write_text("old")
    with appear(path) as fresh:
        fresh.write_text("new")
        assert fresh.parent == tmp_path and path.read_text() == "old"
    assert path.read_text() == "new" and os.listdir(tmp_path) == ["a file"]


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(Broken), appear(path) as fresh:
        fresh.write_text("half")
        raise Broken
    with pytest.raises(FileNotFoundError), appear(path):
        pass  # nothing was written
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["file"]


def test_a_folder_appears_in_the_place_of_another(tmp_path):
    path = tmp_path / "new" / "folder"
    for name in ("first", "second"):
        with appear_folder(path) as fresh:
            (fresh / name).touch()
        assert os.listdir(path) == [name] and path.stat().st_mode & 0o777 == 0o755
    with pytest.raises(Broken), appear_folder(path) as fresh:
        (fresh / "third").touch()
        raise Broken
    assert os.listdir(path) == ["second"] and os.listdir(path.parent) == ["folder"]


def test_a_folder_that_cannot_be_replaced_leaves_nothing_half_made(tmp_path, monkeypatch):
    (tmp_path / "folder").mkdir()
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(16, "busy")))
    with pytest.raises(OSError, match="busy"), appear_folder(tmp_path / "folder"):
        pass
    assert all(not name.startswith(".") for name in os.listdir(tmp_path))


def test_a_lock_file_that_was_removed_is_not_the_same(tmp_path):
    path = tmp_path / "lock"
    descriptor = os.open(path, os.O_CREAT)
    assert is_same_file(descriptor, path)
    path.unlink()
    assert not is_same_file(descriptor, path)
    path.touch()
    assert not is_same_file(descriptor, path)
    os.close(descriptor)


def test_a_lock_that_another_holds_is_not_waited_for_for_ever(tmp_path):
    one, other = SharedFolder(tmp_path), SharedFolder(tmp_path)
    waited = []

    @contextlib.contextmanager
    def waiting():
        waited.append("waits")
        yield

    with one.locked(tmp_path / "lock") as is_held:
        assert is_held
        with other.locked(tmp_path / "lock", waiting, patience=0.05) as is_held:
            assert not is_held and waited == ["waits"]
        assert one.is_locked(tmp_path / "lock")  # and who gave up has taken nothing away
    with other.locked(tmp_path / "lock", waiting, patience=0.05) as is_held:
        assert is_held and waited == ["waits"]
    assert os.listdir(tmp_path) == []
