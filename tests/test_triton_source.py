"""Triton from source: the plumbing, with a small project in Triton's place. Real Triton's sources are not at hand here,
and its build, hours on two cores, was not run.
"""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from kiln.errors import ToolchainError
from kiln.front import packages, triton

ROOT = Path(__file__).resolve().parents[1]
HASH = "86b69c31642e98f8357df62c09d118ad1da4e16a"

# A project that makes a wheel named triton if it is given LLVM, and no network; its own build backend, so that the
# test needs no setuptools.
BACKEND = """
import os, pathlib, zipfile
def build_wheel(folder, config_settings=None, metadata_directory=None):
    llvm = pathlib.Path(os.environ["LLVM_SYSPATH"])
    assert (llvm / "lib" / "libMLIR.a").read_text() == "archive", "no LLVM"
    assert os.environ["LLVM_LIBRARY_DIR"] == str(llvm / "lib")
    assert os.environ["TRITON_OFFLINE_BUILD"] == "ON" and "127.0.0.1" in os.environ["https_proxy"]
    assert os.environ["HOME"].endswith("/work/home")
    name, info = "triton-3.9.0+git86b69c31-py3-none-any.whl", "triton-3.9.0+git86b69c31.dist-info"
    with zipfile.ZipFile(pathlib.Path(folder, name), "w") as wheel:
        wheel.writestr("triton_stand_in.py", "VALUE = 39\\n")
        wheel.writestr(info + "/METADATA", "Metadata-Version: 2.1\\nName: triton\\nVersion: 3.9.0+git86b69c31\\n")
        wheel.writestr(info + "/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(info + "/RECORD", "")
    return name
"""
PROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'


def archive(path: Path, files: dict[str, str]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))
    return path


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "the input"
    place.mkdir()
    (place / "install_triton.sh").write_bytes((ROOT / "input" / "install_triton.sh").read_bytes())
    (place / packages.FRONT_LOCK).write_text("")
    archive(place / "llvm-86b69c31-almalinux-x64.tar.gz", {"llvm-86b69c31-almalinux-x64/lib/libMLIR.a": "archive"})
    return place


def source(folder: Path, **more: str) -> Path:
    files = {
        "setup.py": "",
        "pyproject.toml": PROJECT,
        "backend.py": BACKEND,
        "cmake/llvm-hash.txt": HASH + "\n",
        **more,
    }
    return archive(folder / "triton-main.tar.gz", {f"triton-main/{name}": text for name, text in files.items()})


@pytest.fixture
def place(tmp_path, folder):
    packages.prepare_front(tmp_path / "w", folder, None, lambda text: None)
    return tmp_path / "w"


def test_a_source_archive_becomes_the_toolchain(place, folder):
    source(folder)
    said: list[str] = []
    site = triton.build_from_source(folder, place, "", said.append)
    assert (site / "triton_stand_in.py").read_text() == "VALUE = 39\n"
    assert site.parent == place / "toolchains" and len(said) == 1
    assert triton.build_from_source(folder, place, "", said.append) == site
    assert len(said) == 1  # built once


def test_a_build_that_fails_shows_its_last_words_and_its_log(place, folder):
    source(folder, **{"backend.py": "raise SystemExit('no compiler here')"})
    with pytest.raises(ToolchainError, match="Triton could not be built from triton-main.tar.gz: .*log: .*triton.log"):
        triton.build_from_source(folder, place, "", lambda text: None)
    assert "no compiler here" in (place / "logs" / "triton.log").read_text()
    assert list((place / "toolchains").iterdir()) == []


def test_what_must_be_in_the_input(tmp_path, folder):
    def said() -> str:
        with pytest.raises(ToolchainError) as caught:
            triton.build_from_source(folder, tmp_path, "", lambda text: None)
        return str(caught.value)

    assert "needs one triton-<ref>.tar.gz in" in said() and "there is none" in said()
    source(folder)
    (folder / "llvm-86b69c31-almalinux-x64.tar.gz").unlink()
    assert "is built with llvm-86b69c31-almalinux-x64.tar.gz, which is not in" in said()
    source(folder, **{"cmake/llvm-hash.txt": "main"})
    assert "cmake/llvm-hash.txt says 'main', which is no commit" in said()
    archive(folder / "triton-main.tar.gz", {"triton-main/setup.py": ""})
    assert "has no <folder>/cmake/llvm-hash.txt" in said()
    (folder / "triton-main.tar.gz").write_bytes(b"\x1f\x8b rubbish")
    assert "cannot be read" in said()
    archive(folder / "triton-other.tar.gz", {})
    assert "there are several: triton-main.tar.gz, triton-other.tar.gz" in said()
