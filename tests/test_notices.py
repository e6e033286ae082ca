"""Notices: every text is there, taken from the locked packages where they have it."""

from __future__ import annotations

import importlib.metadata
import tarfile
from pathlib import Path

import pytest

from kiln_build.origin import notices
from kiln_recipe.errors import ToolchainError
from small_release import ROOT

SITE = Path(importlib.metadata.distribution("triton").locate_file("."))


@pytest.fixture
def sources(tmp_path) -> dict[str, Path]:
    """As the source distributions of zstandard and pymonocypher hold licences."""
    paths = {}
    for package, inside, text in (
        ("zstandard", "zstd/LICENSE", "BSD License\n\nFor Zstandard software\n"),
        ("pymonocypher", "LICENSE.txt", "Monocypher as a whole is dual-licensed.\n"),
    ):
        paths[package] = tmp_path / f"{package}-1.tar.gz"
        (tmp_path / "LICENSE").write_text(text)
        with tarfile.open(paths[package], "w:gz") as tar:
            tar.add(tmp_path / "LICENSE", f"{package}-1/{inside}")
    return paths


def test_every_text(sources):
    texts = notices.collect(ROOT, SITE, sources)
    assert texts["LICENSE"].startswith("MIT License")
    assert "For Zstandard software" in texts["licences/zstd.txt"]
    assert "Monocypher" in texts["licences/monocypher.txt"]
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
    assert texts == notices.collect(ROOT, SITE, sources)


def test_a_triton_from_source_may_lack_its_text(sources, tmp_path):
    texts = notices.collect(ROOT, tmp_path / "site", sources)
    assert texts["licences/triton.txt"] == (ROOT / "notices/triton.txt").read_text()


def test_a_missing_text_is_an_error(tmp_path):
    empty = tmp_path / "zstandard.tar.gz"
    tarfile.open(empty, "w:gz").close()
    with pytest.raises(ToolchainError, match="the licence of zstd is not at zstandard:zstd/LICENSE"):
        notices.collect(ROOT, SITE, {"zstandard": empty})


def test_texts_of_wheels(sources):
    release = notices.collect(ROOT, SITE, sources)
    texts = notices.with_extension(release, ROOT, SITE)
    assert set(texts) - set(release) == {"licences/nanobind.txt", "licences/robin-map.txt"}
    assert texts["NOTICES.txt"].startswith(release["NOTICES.txt"]) and "In: _core.*.so" in texts["NOTICES.txt"]
    assert "Wenzel Jakob" in texts["licences/nanobind.txt"] and "MIT License" in texts["licences/robin-map.txt"]


def test_every_committed_text_is_used():
    listed = "".join((ROOT / "notices" / name).read_text() for name in ("notices.yaml", "extension.yaml"))
    for path in (ROOT / "notices").glob("*.txt"):
        assert path.name in listed
