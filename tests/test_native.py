"""What the libraries are compiled from, and how: zstd's source out of its archive, and flags that CMake has too."""

from __future__ import annotations

import contextlib
import hashlib
import io
import re
import tarfile
from pathlib import Path

import pytest

from kiln import native, words
from kiln.errors import ToolchainError, UsageError
from small_release import ROOT


def archive(path: Path, files: dict[str, str]) -> str:
    """Writes a source distribution with these files; returns its digest."""
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(f"zstandard-1/{name}")
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_zstd_is_that_of_its_archive(tmp_path):
    path, folder = tmp_path / "zstandard.tar.gz", tmp_path / "build"
    digest = archive(
        path, {"zstd/zstd.c": "1", "zstd/zstd.h": "2", "zstd/only.h": "3", "zstd/LICENSE": "", "c/c.c": ""}
    )
    old = native.extract_zstd(path, digest, folder)
    assert {p.name: p.read_text() for p in old.iterdir()} == {"zstd.c": "1", "zstd.h": "2", "only.h": "3"}
    (folder / "zstd").mkdir()
    (folder / "lib").mkdir()
    digest = archive(path, {"zstd/zstd.c": "new", "zstd/zstd.h": "new"})
    new = native.extract_zstd(path, digest, folder)
    assert {p.name: p.read_text() for p in new.iterdir()} == {"zstd.c": "new", "zstd.h": "new"}
    assert sorted(p.name for p in folder.iterdir()) == ["lib", f"zstd-{digest}"]
    written = (new / "zstd.c").stat().st_mtime_ns
    assert native.extract_zstd(path, digest, folder) == new and (new / "zstd.c").stat().st_mtime_ns == written


def test_an_extraction_that_was_killed_is_begun_anew(tmp_path, monkeypatch):
    path = tmp_path / "zstandard.tar.gz"
    digest = archive(path, {"zstd/zstd.c": "source", "zstd/zstd.h": "header"})
    write, written = Path.write_bytes, []

    def killed(self: Path, data: bytes) -> int:
        if written:
            raise KeyboardInterrupt
        written.append(self.name)
        return write(self, data)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", killed)
        with pytest.raises(KeyboardInterrupt):
            native.extract_zstd(path, digest, tmp_path / "build")
    assert written == ["zstd.c"]
    done = native.extract_zstd(path, digest, tmp_path / "build")
    assert sorted(p.name for p in done.iterdir()) == ["zstd.c", "zstd.h"]
    assert list((tmp_path / "build").iterdir()) == [done]


def test_an_archive_that_is_not_what_is_locked(tmp_path):
    path = tmp_path / "zstandard.tar.gz"
    digest = archive(path, {"zstd/zstd.c": "source"})
    native.extract_zstd(path, digest, tmp_path / "build")
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))  # of the same size
    with pytest.raises(ToolchainError, match=f"zstandard.tar.gz has SHA-256 .* the toolchain's lock says {digest}; "):
        native.extract_zstd(path, digest, tmp_path / "build")
    path.unlink()
    with pytest.raises(ToolchainError, match="zstandard.tar.gz cannot be read .*; `kiln fetch` brings it"):
        native.extract_zstd(path, digest, tmp_path / "build")


def test_an_archive_without_the_source(tmp_path):
    digest = archive(tmp_path / "a.tar.gz", {"zstd/zstd.h": "header"})
    with pytest.raises(ToolchainError, match=re.escape("does not hold zstd's C source (zstd/zstd.c)")):
        native.extract_zstd(tmp_path / "a.tar.gz", digest, tmp_path / "build")


def in_cmake(call: str) -> list[str]:
    """The words of CMakeLists.txt's commands that begin with `call`, without conditions of generator expressions."""
    text = (ROOT / "CMakeLists.txt").read_text()
    words = " ".join(re.findall(rf"^ *{re.escape(call)} ([^()]*(?:\$\{{\w+\}}[^()]*)*)\)", text, re.MULTILINE)).split()
    return [re.sub(r"^\$<.*:|>$", "", word) for word in words]


def test_cmake_compiles_and_links_with_the_same_flags():
    """Those of a build type and of a language's standard CMake writes itself."""
    compiled = {*in_cmake("target_compile_options(${name} PRIVATE")}
    compiled |= {f"-D{word}" for word in in_cmake("target_compile_definitions(${name} PRIVATE")}
    own = {"-O2", "-DNDEBUG", "-g0", "-fPIC", "-std=c++17"}
    assert compiled == {*native.COMMON_FLAGS, *native.CXX_FLAGS} - own
    zstd = {f"-D{word}" for word in in_cmake("target_compile_definitions(kiln PRIVATE")}
    assert zstd == {*native.ZSTD_FLAGS} - {"-w"}
    linked = {word.replace("${PROJECT_SOURCE_DIR}/", "") for word in in_cmake("target_link_options(${name} PRIVATE")}
    own = {"-shared", "-Wl,--build-id=none", "-Wl,-s"}
    beside = {"-Wl,--enable-new-dtags", "-Wl,--version-script=${exports}"}
    assert linked == {*native.LINK_FLAGS} - own | beside
    text = (ROOT / "CMakeLists.txt").read_text()
    assert "cxx_std_17" in text and "POSITION_INDEPENDENT_CODE ON" in text


VERSIONS = (
    "0.1",
    "0.1.0b",
    "1.2rc1",
    "10.20.30post4",
    "1.0a1b2",
    "1.2-b",
    "1.2.3.4",
    "01.2",
    "1.02",
    "1.2.03",
    "0.0",
    "99999.1",
    "100000.1",
    "1.2.99999999999",
    "1",
    "1.2B",
    "1.2 ",
    "",
)


def test_generated_sources_are_left_as_cmake_takes_them(tmp_path):
    folder = tmp_path / "build/generated"
    one = native.FamilySources("one", "one's tables", (), ())
    other = native.FamilySources("other", "other's tables", (), (), "/* other */")
    native.write_generated([one, other], folder)
    assert {path.name: path.read_text() for path in folder.iterdir()} == {
        "one.cc": "one's tables", "other.cc": "other's tables", "other.h": "/* other */"
    }  # fmt: skip
    native.write_generated([one], folder)
    assert [path.name for path in folder.iterdir()] == ["one.cc"]


def test_cmake_takes_the_same_versions():
    pattern = re.search(r'NOT KILN_VERSION MATCHES "(.*)"\)', (ROOT / "CMakeLists.txt").read_text())[1]
    taken = []
    for version in VERSIONS:
        with contextlib.suppress(UsageError):
            taken.append(words.check_version(version))
    assert [version for version in VERSIONS if re.fullmatch(pattern.replace(r"\\", "\\"), version)] == taken
    assert 0 < len(taken) < len(VERSIONS)
