"""Notices: every text is there, taken from the locked packages where they have it."""

from __future__ import annotations

import importlib.metadata
import tarfile
from pathlib import Path

import pytest

from kiln_build.release import notices
from kiln_recipe.errors import ToolchainError
from small_release import ROOT

SITE = Path(importlib.metadata.distribution("triton").locate_file("."))


@pytest.fixture
def zstandard_source(tmp_path) -> Path:
    """As the source distribution of zstandard holds zstd's licence."""
    path = tmp_path / "zstandard-0.25.0.tar.gz"
    (tmp_path / "LICENSE").write_text("BSD License\n\nFor Zstandard software\n")
    with tarfile.open(path, "w:gz") as tar:
        tar.add(tmp_path / "LICENSE", "zstandard-0.25.0/zstd/LICENSE")
    return path


def test_every_text(zstandard_source):
    texts = notices.collect(ROOT, SITE, zstandard_source)
    assert texts["LICENSE"].startswith("MIT License")
    assert "For Zstandard software" in texts["licences/zstd.txt"]
    assert "LLVM Exceptions" in texts["licences/llvm.txt"]
    assert "Zig contributors" in texts["licences/zig.txt"]
    assert "Philippe Tillet" in texts["licences/triton.txt"]
    assert "University of Illinois/NCSA" in texts["licences/rocm-device-libs.txt"]
    assert "NVIDIA" in texts["licences/libdevice.txt"]
    assert "public domain" in texts["licences/pyelftools.txt"] and "Tomer Filiba" in texts["licences/construct.txt"]
    for name in texts:
        if name.startswith("licences/"):
            assert name in texts["NOTICES.txt"]
    assert all(len(line) <= 120 for line in texts["NOTICES.txt"].splitlines())
    assert str(SITE) not in "".join(texts.values())
    assert texts == notices.collect(ROOT, SITE, zstandard_source)


def test_a_triton_from_source_may_lack_its_text(zstandard_source, tmp_path):
    texts = notices.collect(ROOT, tmp_path / "site", zstandard_source)
    assert texts["licences/triton.txt"] == (ROOT / "notices/triton.txt").read_text()


def test_a_missing_text_is_an_error(tmp_path):
    empty = tmp_path / "zstandard.tar.gz"
    tarfile.open(empty, "w:gz").close()
    with pytest.raises(ToolchainError, match="the licence of zstd is not at zstandard:zstd/LICENSE"):
        notices.collect(ROOT, SITE, empty)


def test_texts_of_wheels(zstandard_source):
    release = notices.collect(ROOT, SITE, zstandard_source)
    texts = notices.with_extension(release, ROOT, SITE)
    assert set(texts) - set(release) == {"licences/nanobind.txt", "licences/robin-map.txt"}
    assert texts["NOTICES.txt"].startswith(release["NOTICES.txt"]) and "In: _core.*.so" in texts["NOTICES.txt"]
    assert "Wenzel Jakob" in texts["licences/nanobind.txt"] and "MIT License" in texts["licences/robin-map.txt"]


def test_every_committed_text_is_used():
    listed = "".join((ROOT / "notices" / name).read_text() for name in ("notices.yaml", "extension.yaml"))
    for path in (ROOT / "notices").glob("*.txt"):
        assert path.name in listed
