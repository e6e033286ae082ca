"""What `kiln sign` looks for in wheels: nothing in them but what their RECORD names, to the byte."""

from __future__ import annotations

import io
import shutil
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minisign_keys
from kiln_build.base.wheel_file import Wheel, write_wheel
from kiln_build.cli import main
from kiln_build.trust import wheels
from kiln_recipe.errors import ArtifactError

FILES = {"p/__init__.py": b"import os\n" * 100, "p/data.pack": bytes(range(256)), "p/empty": b""}
INFO = "a_package-1.0b0.dist-info"


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    return write_wheel(Wheel("a-package", "1.0b0", "py3-none-any", "kiln", "Name: a\n", FILES),
                       tmp_path_factory.mktemp("made"))  # fmt: skip


@pytest.fixture
def wheel(made, tmp_path) -> Path:
    return Path(shutil.copy(made, tmp_path))


def added(data: bytes, name: str, content: bytes = b"x") -> bytes:
    """The archive with one more member, as any program adds one."""
    buffer = io.BytesIO(data)
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "a") as archive:
        warnings.simplefilter("ignore")  # of a name that is there already
        archive.writestr(name, content)
    return buffer.getvalue()


def rewritten(data: bytes, name: str, change: Callable[[bytes], bytes] | None) -> bytes:
    """The archive written anew with another content of a member; None: without it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(buffer, "w") as archive:
        for info in old.infolist():
            if info.filename != name:
                archive.writestr(info, old.read(info))
            elif change:
                archive.writestr(info, change(old.read(info)))
    return buffer.getvalue()


def with_gap(data: bytes) -> bytes:
    """Bytes between the last member and the directory, whose place is put right."""
    at = int.from_bytes(data[-6:-2], "little")
    return data[:at] + b"hidden" + data[at:-6] + (at + 6).to_bytes(4, "little") + data[-2:]


def test_what_a_build_writes_is_whole(made):
    wheels.check(made)
    assert wheels.version_of(made.name) == "1.0b0"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: b"#!/bin/sh\n" + data, "has bytes before p/__init__.py that belong to no member"),
        (lambda data: data + b"x", "has bytes around its directory"),
        (lambda data: data[:-2] + b"\4\0evil", "has bytes around its directory"),
        (with_gap, "has bytes around its directory"),
        (lambda data: added(data, "p/__init__.py"), "has p/__init__.py twice"),
        (lambda data: added(data, "evil.pth"), "has evil.pth, which its RECORD does not name"),
        (lambda data: added(data, "../evil.py"), "not a file below its top, '../evil.py'"),
        (lambda data: added(data, "/evil.py"), "not a file below its top, '/evil.py'"),
        (lambda data: added(data, "p\\evil.py"), "not a file below its top"),
        (lambda data: added(data, "p/evil/"), "not a file below its top"),
        (lambda data: added(data, "bomb.pth", bytes(1 << 20)), "has bomb.pth, which its RECORD does not name"),
        (lambda data: rewritten(data, "p/empty", None), "lacks p/empty, which its RECORD names"),
        (lambda data: rewritten(data, f"{INFO}/RECORD", None), f"has no {INFO}/RECORD"),
        (
            lambda data: rewritten(data, f"{INFO}/RECORD", lambda text: text + b"x,,\n"),
            "lacks x, which its RECORD names",
        ),
        (lambda data: rewritten(data, f"{INFO}/RECORD", lambda text: text * 2), "is not a list of names, digests"),
        (lambda data: rewritten(data, f"{INFO}/RECORD", lambda text: b"x"), "is not a list of names, digests"),
        (lambda data: rewritten(data, "p/data.pack", lambda data: data[::-1]), "p/data.pack does not have the digest"),
        (lambda data: data.replace(b"p/empty", b"p/emptY", 1), "says something else before p/empty"),
        (lambda data: data[:-30], "is damaged, or no wheel"),
        (lambda data: b"not a wheel", "is damaged, or no wheel"),
        (lambda data: b"", "is damaged, or no wheel"),
    ],
)
def test_what_hides_in_a_wheel_is_named(wheel, change, said):
    data = wheel.read_bytes()
    wheel.write_bytes(change(data))
    assert wheel.read_bytes() != data
    with pytest.raises(ArtifactError, match=".*") as caught:
        wheels.check(wheel)
    assert said in str(caught.value) and str(wheel) in str(caught.value), caught.value


@given(st.data())
@settings(deadline=None)
def test_no_byte_of_what_is_read_can_change(made, tmp_path_factory, data):
    """What no program reads may: times, modes and the versions that made it."""
    whole = bytearray(made.read_bytes())
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    path = tmp_path_factory.mktemp("flipped") / made.name
    path.write_bytes(whole)
    with zipfile.ZipFile(made) as archive:
        before = {info.filename: archive.read(info) for info in archive.infolist()}
    try:
        wheels.check(path)
    except ArtifactError:
        return
    with zipfile.ZipFile(path) as archive:
        assert before == {info.filename: archive.read(info) for info in archive.infolist()}


@pytest.mark.parametrize("name", ["x.whl", "a-1.0.whl", "a-b-c-d-e.whl", "a b-1.0-py3-none-any.whl"])
def test_a_name_that_is_no_wheels(wheel, name, tmp_path, capsys):
    keys = minisign_keys.make(tmp_path)
    wheel.rename(wheel.with_name(name))
    assert main(["sign", str(tmp_path), "--key", str(keys.secret)]) == ArtifactError.exit_code
    assert f"{name} is not the name of a wheel" in capsys.readouterr().err


def test_nothing_is_signed_that_is_not_whole(wheel, tmp_path, capsys):
    keys = minisign_keys.make(tmp_path)
    wheel.write_bytes(added(wheel.read_bytes(), "evil.pth"))
    assert main(["sign", str(tmp_path), "--key", str(keys.secret)]) == ArtifactError.exit_code
    assert "evil.pth" in capsys.readouterr().err and not [*tmp_path.glob("*.sha256*")]
