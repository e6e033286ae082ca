"""Wheels as files: zip archives that every tool reads, the same bytes from the same contents."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kiln_build.base import wheel_file
from kiln_build.base.wheel_file import Wheel, write_wheel
from kiln_recipe.errors import EnvironmentProblem

METADATA = "Metadata-Version: 2.4\nName: a-package\nVersion: 1.0b0\n\nÄ page.\n"


def a_wheel(files: dict[str, Path | bytes], **more: object) -> Wheel:
    licences = {"LICENSE": "A licence.\n", "licences/zstd.txt": "Another.\n"}
    return Wheel(
        "a-package", "1.0b0", "py3-none-any", "kiln 1.0b", METADATA, files, **{"licences": licences} | more
    )  # fmt: skip


def test_what_is_in_it(tmp_path):
    (tmp_path / "a.py").write_text("import b\n" * 1000)
    files = {"p/a.py": tmp_path / "a.py", "p/lib/libx.so.0": os.urandom(1000), "p/lib/y.pack": bytes(9999), "p/e": b""}
    path = write_wheel(a_wheel(files), tmp_path)
    assert path.name == "a_package-1.0b0-py3-none-any.whl"
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        names = archive.namelist()
        described = ["METADATA", "WHEEL", "licenses/LICENSE", "licenses/licences/zstd.txt", "RECORD"]
        assert names == [*sorted(files), *(f"a_package-1.0b0.dist-info/{name}" for name in described)]
        for name, content in files.items():
            assert archive.read(name) == (content.read_bytes() if isinstance(content, Path) else content)
        facts = {info.filename: info for info in archive.infolist()}
        assert {info.date_time for info in facts.values()} == {(1980, 1, 1, 0, 0, 0)}
        assert facts["p/a.py"].compress_type == zipfile.ZIP_DEFLATED and facts["p/a.py"].compress_size < 200
        assert {facts[name].compress_type for name in ("p/lib/libx.so.0", "p/lib/y.pack", "p/e")} == {0}
        modes = {name: info.external_attr >> 16 for name, info in facts.items()}
        assert modes["p/lib/libx.so.0"] == 0o100755 and modes["p/a.py"] == modes[names[-1]] == 0o100644
        assert archive.read(names[-5]).decode() == METADATA
        wheel = archive.read(names[-4]).decode()
        assert wheel.splitlines() == ["Wheel-Version: 1.0", "Generator: kiln 1.0b", "Root-Is-Purelib: false",
                                      "Tag: py3-none-any"]  # fmt: skip
        rows = list(csv.reader(io.StringIO(archive.read(names[-1]).decode())))
        assert [row[0] for row in rows] == names and rows[-1][1:] == ["", ""]
        for name, digest, size in rows[:-1]:
            data = archive.read(name)
            assert digest == "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
            assert int(size) == len(data)


def test_pip_takes_it(tmp_path):
    path = write_wheel(a_wheel({"a_package_of_kilns_tests.py": b"x = 3\n"}), tmp_path)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-index", "--no-deps", "-q"]
    done = subprocess.run([*pip, "--target", tmp_path / "t", path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "t/a_package_of_kilns_tests.py").read_text() == "x = 3\n"


def test_order_time_and_umask_are_no_part_of_it(tmp_path):
    files = {f"p/{name}": name.encode() * 50 for name in "dacb"}
    before = os.umask(0)
    try:
        first = write_wheel(a_wheel(files), tmp_path).read_bytes()
        os.umask(0o077)
        os.environ["TZ"], zone = "Asia/Tokyo", os.environ.get("TZ")
        second = write_wheel(a_wheel(dict(sorted(files.items()))), tmp_path).read_bytes()
    finally:
        os.umask(before)
        os.environ.pop("TZ") if zone is None else os.environ.update(TZ=zone)
    assert first == second


@settings(max_examples=60, deadline=None)
@given(
    files=st.dictionaries(
        st.text(st.characters(codec="utf-8", exclude_characters='/\\\0,"\r\n'), min_size=1, max_size=20),
        st.binary(max_size=400),
        max_size=6,
    )
)
def test_any_contents(files, tmp_path_factory):
    folder = tmp_path_factory.mktemp("w")
    named = {f"p/{name}": data for name, data in files.items()}
    with zipfile.ZipFile(write_wheel(a_wheel(named), folder)) as archive:
        assert archive.testzip() is None and {name: archive.read(name) for name in named} == named


def test_what_cannot_be_written(tmp_path, monkeypatch):
    with pytest.raises(EnvironmentProblem, match=r"cannot write .*nowhere/a_package-1.0b0-py3-none-any.whl: No such"):
        write_wheel(a_wheel({}), tmp_path / "nowhere")
    with pytest.raises(EnvironmentProblem, match=r"cannot write /out/a_package-1.0b0-py3-none-any.whl: No such"):
        write_wheel(a_wheel({}), tmp_path / ".passing", Path("/out"))
    monkeypatch.setattr(wheel_file, "_LARGEST", 1000)
    with pytest.raises(EnvironmentProblem, match="p/b.pack makes its wheel larger than 4 GiB"):
        write_wheel(a_wheel({"p/b.pack": bytes(1001)}), tmp_path)
    assert list(tmp_path.iterdir()) == [], "nothing half done is left"
