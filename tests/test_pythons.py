"""Whose headers there are: Pythons that are found, and why one will not do."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from kiln_build.native import pythons
from kiln_build.native.pythons import Headers, headers_of, python_commands
from kiln_recipe.errors import EnvironmentProblem

GOOD = {
    "implementation": "cpython", "version": [3, 12], "full": "3.12.1", "free_threaded": False, "debug": False,
    "machine": "linux-x86_64",
}  # fmt: skip


@pytest.fixture
def stand_in(tmp_path):
    """A function that makes a Python which says these facts of itself."""

    def make(**facts: object) -> str:
        include = tmp_path / "include"
        include.mkdir(exist_ok=True)
        (include / "Python.h").write_text("")
        path = tmp_path / "python"
        said = json.dumps({**GOOD, "include": [str(include)], **facts})
        path.write_text(f"#!/bin/sh\ncat <<'END'\n{said}\nEND\n")
        path.chmod(0o755)
        return str(path)

    return make


def test_tags():
    def of(*version: int) -> Headers:
        return Headers(version, ".".join(map(str, version)), ())

    assert of(3, 10).tags == ("cp310", "cp310") and of(3, 10).file_name == "_core.cpython-310-x86_64-linux-gnu.so"
    assert of(3, 11).tags == ("cp311", "cp311") and not of(3, 11).is_stable
    for later in ((3, 12), (3, 13), (3, 14)):
        assert of(*later).tags == ("cp312", "abi3") and of(*later).file_name == "_core.abi3.so"


def test_this_python():
    try:
        found = headers_of(sys.executable)
    except EnvironmentProblem as error:
        pytest.skip(str(error))
    assert found.version == sys.version_info[:2] and any((f / "Python.h").is_file() for f in found.include)


def test_one_that_will_do(stand_in, tmp_path):
    assert headers_of(stand_in()) == Headers((3, 12), "3.12.1", (tmp_path / "include",))


def test_headers_that_debian_keeps_elsewhere(stand_in, tmp_path):
    """Its pyconfig.h names another by a path below /usr/include, of which nothing else may be seen."""
    include, beside = tmp_path / "include/python3.12", tmp_path / "include/x86_64-linux-gnu/python3.12"
    command = stand_in(include=[str(include)])
    for folder in (include, beside):
        folder.mkdir(parents=True)
        (folder / "pyconfig.h").write_text("")
    (include / "Python.h").write_text("")
    assert headers_of(command) == Headers((3, 12), "3.12.1", (include,), (beside,))
    (beside / "pyconfig.h").unlink()
    assert headers_of(command).multiarch == ()


REFUSED = [
    ({"implementation": "pypy"}, "is not supported by Kiln's extension, which needs CPython 3.10 or later"),
    ({"version": [3, 9], "full": "3.9.1"}, "(Python 3.9.1) is not supported by Kiln's extension"),
    ({"free_threaded": True}, "is a free-threaded build, which Kiln's extension does not support; name another"),
    ({"debug": True}, "is a debug build"),
    ({"machine": "linux-aarch64"}, "is for linux-aarch64; Kiln's extension supports linux-x86_64"),
    ({"include": ["/nowhere"]}, "has no headers: /nowhere/Python.h does not exist; install its development package"),
]


@pytest.mark.parametrize(("facts", "sentence"), REFUSED)
def test_one_that_will_not(stand_in, facts, sentence):
    with pytest.raises(EnvironmentProblem) as failure:
        headers_of(stand_in(**facts))
    assert sentence in str(failure.value) and "\n" not in str(failure.value)


@pytest.mark.parametrize("text", ["", "no JSON", "exit 3"])
def test_what_is_no_python(tmp_path, text):
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    for command in (str(path), str(tmp_path / "nowhere"), str(tmp_path)):
        with pytest.raises(EnvironmentProblem, match="cannot be run as a Python; name one that is installed"):
            headers_of(command)


def test_where_they_are_looked_for(tmp_path):
    def make(*names: str) -> None:
        for name in names:
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("#!/bin/sh\n")
            path.chmod(0o755)

    make("bin/python3.13", "bin/python3.9", "bin/python3", *(f".pyenv/versions/{v}/bin/python" for v in (
        "3.9.1", "3.12.2", "3.12.10", "3.14.0t", "pypy3.10-7.3", "3.13-dev", "2.7.18")))  # fmt: skip
    environment = {"PATH": str(tmp_path / "bin"), "HOME": str(tmp_path)}
    found = [Path(command) for command in python_commands(environment)]
    assert found[0] == Path(os.path.normpath(sys.executable)) and found[1] == tmp_path / "bin/python3.13"
    assert [path.parts[-3] for path in found[2:]] == ["3.12.10", "3.12.2", "3.9.1"]
    moved = {"PATH": "", "PYENV_ROOT": str(tmp_path / ".pyenv")}
    assert python_commands(moved)[1:] == tuple(map(str, found[2:]))
    assert python_commands({}) == (os.path.normpath(sys.executable),)
    assert pythons.STABLE == (3, 12)
