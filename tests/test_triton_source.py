"""Triton from source: the plumbing, with a small project in Triton's place. Real Triton's sources are not at hand here,
and its build, hours on two cores, was not run.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from kiln_build.front import packages, triton
from kiln_recipe.compile.toolchain import SOURCES_NAME, find_toolchain
from kiln_recipe.errors import ToolchainError

ROOT = Path(__file__).resolve().parents[1]
HASH = "86b69c31642e98f8357df62c09d118ad1da4e16a"

# A project that makes a wheel named triton if it is given LLVM, and no network; its own build backend, so that the
# test needs no setuptools.
BACKEND = """
import os, pathlib, time, zipfile
def build_wheel(folder, config_settings=None, metadata_directory=None):
    llvm = pathlib.Path(os.environ["LLVM_SYSPATH"])
    assert (llvm / "lib" / "libMLIR.a").read_text() == "archive", "no LLVM"
    assert os.environ["LLVM_LIBRARY_DIR"] == str(llvm / "lib")
    assert os.environ["TRITON_OFFLINE_BUILD"] == "ON" and "127.0.0.1" in os.environ["https_proxy"]
    assert os.environ["HOME"].endswith("/work/home") and os.environ["MAX_JOBS"] in "13"
    name, info = "triton-3.9.0+git86b69c31-py3-none-any.whl", "triton-3.9.0+git86b69c31.dist-info"
    time.sleep(0.3)
    with zipfile.ZipFile(pathlib.Path(folder, name), "w") as wheel:
        wheel.writestr("triton_stand_in.py", "VALUE = 39\\n")
        for file in ("nvidia/bin/ptxas", "nvidia/lib/libdevice.10.bc", "amd/lib/ockl.bc", "amd/lib/ocml.bc"):
            wheel.writestr("triton/backends/" + file, file)
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
    sources = triton.find_sources(folder)
    site = triton.build_from_source(sources, folder, place, "", 3, said.append)
    assert (site / "triton_stand_in.py").read_text() == "VALUE = 39\n"
    assert site.parent == place / "toolchains" and len(said) == 1
    assert triton.build_from_source(sources, folder, place, "", None, said.append) == site
    assert len(said) == 1  # built once


def test_what_it_was_built_from_is_part_of_its_identity(place, folder):
    """Two sources of one version, and the wheel of that version, are three toolchains."""
    source(folder)
    sources = triton.find_sources(folder)
    site = triton.build_from_source(sources, folder, place, "", 1, lambda text: None)
    stated = json.loads((site / SOURCES_NAME).read_text())
    assert stated["source archive"] == hashlib.sha256(sources.archive.read_bytes()).hexdigest()
    assert stated["LLVM archive"] == hashlib.sha256(sources.llvm.read_bytes()).hexdigest()
    first = find_toolchain(site, {})
    assert set(stated.items()) <= set(first.files)
    source(folder, README="a comment: the wheel's bytes stay what they are")
    second = find_toolchain(
        triton.build_from_source(triton.find_sources(folder), folder, place, "", 1, lambda text: None), {}
    )
    (site / SOURCES_NAME).unlink()
    wheel = find_toolchain(site, {})
    assert first.triton_version == second.triton_version == wheel.triton_version
    assert len({first.identity, second.identity, wheel.identity}) == 3
    (site / SOURCES_NAME).write_text("[]")
    with pytest.raises(ToolchainError, match="does not say what its Triton was built from"):
        find_toolchain(site, {})


def test_a_long_build_says_that_it_goes_on(place, folder, monkeypatch):
    monkeypatch.setattr(triton, "_SECONDS_BETWEEN_LINES", 0.1)
    source(folder)
    said: list[str] = []
    triton.build_from_source(triton.find_sources(folder), folder, place, "", 1, said.append)
    assert said[1] == "triton: still building after 0 minutes"


def test_a_missing_archive_is_said_before_anything_is_done(tmp_path, folder):
    """By build.sh itself: neither a workspace nor an environment is made."""
    (folder / "toolchain.lock.yaml").touch()
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("KILN_", "PYTHON"))}
    words = [str(folder), str(tmp_path / "w"), str(tmp_path / "o"), "0.1", "sm_90"]
    done = subprocess.run(
        ["bash", str(ROOT / "build.sh"), *words],
        env={**kept, "KILN_TRITON": "source", "KILN_ENGINE": "none", "KILN_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    (line,) = done.stderr.splitlines()
    assert done.returncode == 5 and line.startswith("kiln: KILN_TRITON=source needs one triton-<ref>.tar.gz in ")
    assert not (tmp_path / "w").exists()


def test_a_build_that_fails_shows_its_last_words_and_its_log(place, folder):
    source(folder, **{"backend.py": "raise SystemExit('no compiler here')"})
    with pytest.raises(ToolchainError, match="Triton could not be built from triton-main.tar.gz: .*log: .*triton.log"):
        triton.build_from_source(triton.find_sources(folder), folder, place, "", 1, lambda text: None)
    assert "no compiler here" in (place / "logs" / "triton.log").read_text()
    assert list((place / "toolchains").iterdir()) == []


def test_what_must_be_in_the_input(folder):
    def said() -> str:
        with pytest.raises(ToolchainError) as caught:
            triton.find_sources(folder)
        return str(caught.value)

    assert "needs one triton-<ref>.tar.gz in" in said() and "there is none" in said()
    source(folder)
    (folder / "llvm-86b69c31-almalinux-x64.tar.gz").unlink()
    assert "needs llvm-86b69c31-almalinux-x64.tar.gz, which is not in" in said()
    source(folder, **{"cmake/llvm-hash.txt": "main"})
    assert "cmake/llvm-hash.txt says 'main', which is not a commit" in said()
    archive(folder / "triton-main.tar.gz", {"triton-main/setup.py": ""})
    assert "has no <folder>/cmake/llvm-hash.txt" in said()
    (folder / "triton-main.tar.gz").write_bytes(b"\x1f\x8b rubbish")
    assert "cannot be read" in said()
    archive(folder / "triton-other.tar.gz", {})
    assert "there are several: triton-main.tar.gz, triton-other.tar.gz" in said()
