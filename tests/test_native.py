"""What the libraries are compiled from, and how: zstd's source out of its archive, and flags that CMake has too."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from kiln_build.native import library, native
from kiln_build.options import words
from kiln_recipe.errors import ToolchainError, UsageError
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
    old = native.extract_source(native.VENDORED[0], path, digest, folder)
    assert {p.name: p.read_text() for p in old.iterdir()} == {"zstd.c": "1", "zstd.h": "2", "only.h": "3"}
    (folder / "zstd").mkdir()
    (folder / "lib").mkdir()
    digest = archive(path, {"zstd/zstd.c": "new", "zstd/zstd.h": "new"})
    new = native.extract_source(native.VENDORED[0], path, digest, folder)
    assert {p.name: p.read_text() for p in new.iterdir()} == {"zstd.c": "new", "zstd.h": "new"}
    assert sorted(p.name for p in folder.iterdir()) == ["lib", f"zstd-{digest}"]
    written = (new / "zstd.c").stat().st_mtime_ns
    assert native.extract_source(native.VENDORED[0], path, digest, folder) == new
    assert (new / "zstd.c").stat().st_mtime_ns == written
    digest = archive(path, {"monocypher.c": "1", "monocypher.h": "2", "c_monocypher.c": "3", "test/monocypher.c": "4"})
    other = native.extract_source(native.VENDORED[1], path, digest, folder)
    assert {p.name: p.read_text() for p in other.iterdir()} == {"monocypher.c": "1", "monocypher.h": "2"}
    assert new.is_dir()


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "zstd.c").write_text("changed"),
        lambda folder: (folder / "zstd.h").unlink(),
        lambda folder: (folder / "more.h").write_text("more"),
        lambda folder: (shutil.rmtree(folder), folder.write_text("a file")),
        lambda folder: (shutil.rmtree(folder), folder.symlink_to("nowhere")),
    ],
)
def test_sources_that_were_changed_are_unpacked_again(tmp_path, damage):
    digest = archive(tmp_path / "a.tar.gz", {"zstd/zstd.c": "source", "zstd/zstd.h": "header"})
    done = native.extract_source(native.VENDORED[0], tmp_path / "a.tar.gz", digest, tmp_path / "build")
    damage(done)
    assert native.extract_source(native.VENDORED[0], tmp_path / "a.tar.gz", digest, tmp_path / "build") == done
    assert {p.name: p.read_text() for p in done.iterdir()} == {"zstd.c": "source", "zstd.h": "header"}


def test_what_is_kept_is_made_again_if_it_is_damaged(tmp_path):
    made = []

    def make(work: Path) -> None:
        made.append(work)
        (work / "library").write_bytes(b"bytes")

    def build() -> Path:
        return library.build_once(tmp_path / "lib", "library", ("settings",), {"a.c": b"source"}, make)

    path = build()
    assert build() == path and len(made) == 1
    for number, damage in enumerate([b"bytfs", b"", b"bytes and more"], 2):
        path.write_bytes(damage)
        assert build() == path and path.read_bytes() == b"bytes" and len(made) == number
    path.unlink()
    os.mkfifo(path)
    assert build() == path and path.read_bytes() == b"bytes" and len(made) == 5
    path.with_name(f"{path.name}.sha256").unlink()
    assert build() == path and len(made) == 6 and build() == path and len(made) == 6


def test_only_what_changed_is_compiled_again(tmp_path, monkeypatch):
    compiled: list[str] = []

    def run(_compiler: library.Compiler, command: list[str], work: Path) -> None:
        if "-c" in command:
            compiled.append(command[command.index("-c") + 1])
        (work / command[command.index("-o") + 1]).write_bytes(b"made")

    def build(tables: str, version: str) -> set[str]:
        """What is compiled."""
        compiled.clear()
        family = native.FamilySources("one", tables, (ROOT / "csrc/flash/entries.cc",), ())
        native.build_libraries(ROOT, {"zstd": tmp_path}, version, [family], [], compiler, tmp_path / "lib", 1)
        return set(compiled)

    monkeypatch.setattr(library, "run", run)
    compiler = library.Compiler(("cc",), ("c++",), (), "a compiler")
    (tmp_path / "zstd.c").write_text("/* zstd */")
    every = build("// tables", "/* 1 */")
    assert {"zstd/zstd.c", "csrc/core/pack.cc", "family/tables.cc", "family/entries.cc"} < every
    assert build("// tables", "/* 1 */") == set()
    assert build("// other tables", "/* 1 */") == {"family/tables.cc"}
    assert build("// other tables", "/* 2 */") == every - {"zstd/zstd.c"}, "the header of the version changed"


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
            native.extract_source(native.VENDORED[0], path, digest, tmp_path / "build")
    assert written == ["zstd.c"]
    done = native.extract_source(native.VENDORED[0], path, digest, tmp_path / "build")
    assert sorted(p.name for p in done.iterdir()) == ["zstd.c", "zstd.h"]
    assert list((tmp_path / "build").iterdir()) == [done]


def test_an_archive_that_is_not_what_is_locked(tmp_path):
    path = tmp_path / "zstandard.tar.gz"
    digest = archive(path, {"zstd/zstd.c": "source"})
    native.extract_source(native.VENDORED[0], path, digest, tmp_path / "build")
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))  # of the same size
    with pytest.raises(ToolchainError, match=f"zstandard.tar.gz has SHA-256 .* the toolchain's lock says {digest}; "):
        native.extract_source(native.VENDORED[0], path, digest, tmp_path / "build")
    path.unlink()
    with pytest.raises(ToolchainError, match="zstandard.tar.gz cannot be read .*; `kiln fetch` downloads it"):
        native.extract_source(native.VENDORED[0], path, digest, tmp_path / "build")


def test_an_archive_without_the_source(tmp_path):
    digest = archive(tmp_path / "a.tar.gz", {"zstd/zstd.h": "header"})
    with pytest.raises(ToolchainError, match=re.escape("does not hold the C source zstd.c")):
        native.extract_source(native.VENDORED[0], tmp_path / "a.tar.gz", digest, tmp_path / "build")


def listed() -> dict[str, list[str]]:
    """csrc/flags.txt by what its flags are for."""
    lines = (ROOT / "csrc/flags.txt").read_text().splitlines()
    kinds: dict[str, list[str]] = {}
    for kind, flag in (line.split() for line in lines if not line.startswith("#")):
        kinds.setdefault(kind, []).append(flag)
    return kinds


def test_flags_of_the_releases_compiler():
    flags, kinds = native.read_flags(ROOT), listed()
    own = {"-O2", "-g0", "-DNDEBUG"}
    assert {*flags.c} == own | {*kinds["compile"], *kinds["optimized"]}
    assert {*flags.cxx} == {*flags.c, *kinds["c++"], "-std=c++17"}
    assert {*flags.zstd} == {*flags.c, *kinds["zstd"], "-w"}
    assert {*flags.linked} == {*kinds["link"], "-shared", "-Wl,--build-id=none", "-Wl,-s"}
    assert {*flags.library} == {*flags.linked, *kinds["library"]}
    assert {"-fstack-protector-strong", "-D_FORTIFY_SOURCE=2", "-Wl,-z,relro", "-Wl,-z,now"} <= {
        *flags.c,
        *flags.linked,
    }


@pytest.mark.skipif(not shutil.which("cmake"), reason="needs cmake")
@pytest.mark.parametrize("build_type", ["Release", "RelWithDebInfo", "Debug"])
def test_cmake_compiles_and_links_with_the_same_flags(tmp_path, build_type):
    """All that are listed; those that want an optimizing compiler, where it is one."""
    (tmp_path / "zstd").mkdir()
    (tmp_path / "zstd/zstd.c").touch()
    (tmp_path / "zstd/monocypher.c").touch()
    command = ["cmake", "-S", ROOT, "-B", tmp_path / "build", "-G", "Unix Makefiles",
               f"-DKILN_ZSTD_SOURCE={tmp_path / 'zstd'}", f"-DKILN_MONOCYPHER_SOURCE={tmp_path / 'zstd'}",
               "-DKILN_VERSION=1.2.3", f"-DCMAKE_BUILD_TYPE={build_type}",
               "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    kinds = listed()
    optimized = set() if build_type == "Debug" else {*kinds["optimized"]}
    for unit in json.loads((tmp_path / "build/compile_commands.json").read_text()):
        words = {*shlex.split(unit["command"])}
        name = Path(unit["file"]).name
        wanted = {*kinds["compile"]} | optimized | {*kinds["zstd" if name.endswith(".c") else "c++"]}
        assert wanted <= words, (name, wanted - words)
        others = {*kinds["c++" if name.endswith(".c") else "zstd"], *kinds["optimized"]} - wanted
        assert not others & words, (name, others & words)
    link = {*shlex.split((tmp_path / "build/CMakeFiles/kiln.dir/link.txt").read_text())}
    assert {*kinds["link"], *kinds["library"]} <= link


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
    native.write_generated([one, other], folder, {}, {})
    assert {path.name: path.read_text() for path in folder.iterdir()} == {
        "one.cc": "one's tables", "other.cc": "other's tables", "other.h": "/* other */"
    }  # fmt: skip
    packs = {"nvidia-sm_90.pack": "ab" * 32, "amd-gfx942.pack": "cd" * 32}
    native.write_generated([one], folder, packs, {"LICENSE": "A licence", "licences/zstd.txt": "Another"})
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} == {
        "one.cc", "packs.txt", "notices/LICENSE", "notices/licences/zstd.txt"
    }  # fmt: skip
    lines = (folder / "packs.txt").read_text().splitlines()
    assert lines == [f"{'cd' * 32}  amd-gfx942.pack", f"{'ab' * 32}  nvidia-sm_90.pack"]
    headers = {"one/arguments.h": "// the family's", "torch/arguments.h": "// an adapter's"}
    native.write_generated([native.FamilySources("one", "one's tables", (), (), generated=headers)], folder, {}, {})
    assert (folder / "torch/arguments.h").read_text() == "// an adapter's"
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*.h")} == {*headers}


def test_cmake_takes_the_same_versions():
    pattern = re.search(r'NOT public_version MATCHES "(.*)"\)', (ROOT / "CMakeLists.txt").read_text())[1]
    taken = []
    for version in VERSIONS:
        with contextlib.suppress(UsageError):
            taken.append(words.check_version(version))
    assert [version for version in VERSIONS if re.fullmatch(pattern.replace(r"\\", "\\"), version)] == taken
    assert 0 < len(taken) < len(VERSIONS)
