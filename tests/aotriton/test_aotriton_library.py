"""libaotriton_v2.so as a file: what it needs, what it exports, and what it is made of."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from pathlib import Path

import hardening
import nativebuild
import pytest
from aotriton_interface import SYMBOLS
from elftools.elf.elffile import ELFFile
from fake_release import hip_headers
from nativebuild import ROOT, run

from kiln_build.native import native

SOURCES = ROOT / "csrc/aotriton"


@pytest.fixture(scope="module", params=["the machine's compiler", "the release's compiler"])
def library(request, release, tmp_path_factory) -> Path:
    if request.param.startswith("the machine"):
        return release.lib / "libaotriton_v2.so.0"
    if not importlib.util.find_spec("ziglang"):
        pytest.skip("there is no ziglang")
    folder = tmp_path_factory.mktemp("zig")
    compiler = native.zig_compiler(sys.executable, nativebuild.cache() / "zig", "")
    environment = {**os.environ, **dict(compiler.environment)}
    flags, library, objects = native.read_flags(ROOT), folder / "libaotriton_v2.so.0", []
    for source in sorted(SOURCES.glob("*.cc")):
        objects.append(folder / f"{source.name}.o")
        run([*compiler.cxx, *flags.cxx, "-Werror", "-I", release.folder / "include",
             "-isystem", hip_headers(), "-c", source, "-o", objects[-1]], env=environment)  # fmt: skip
    run([*compiler.c, *flags.library, f"-Wl,--version-script={SOURCES / 'exports.map'}", *objects,
         "-Wl,-soname,libaotriton_v2.so.0", "-Wl,--enable-new-dtags", "-Wl,-rpath,$ORIGIN",
         release.lib / "libkiln.so.0", release.lib / "libkiln_flash.so", "-ldl", "-o", library],
        env=environment)  # fmt: skip
    return library


@pytest.fixture
def elf(library):
    with library.open("rb") as file:
        yield ELFFile(file)


def dynamic(elf: ELFFile, kind: str) -> list[str]:
    """The strings of the dynamic section's entries of a kind: DT_NEEDED, DT_SONAME, DT_RUNPATH."""
    tags = elf.get_section_by_name(".dynamic").iter_tags(kind)
    return [getattr(tag, kind.removeprefix("DT_").lower()) for tag in tags]


def test_it_is_hardened(library):
    hardening.check(library)


def test_it_needs_the_c_library_and_what_lies_beside_it(elf):
    needed = set(dynamic(elf, "DT_NEEDED"))
    assert {"libkiln.so.0", "libkiln_flash.so"} <= needed
    assert needed <= {"libkiln.so.0", "libkiln_flash.so", "libc.so.6", "libdl.so.2"}
    assert dynamic(elf, "DT_RUNPATH") == ["$ORIGIN"]
    assert dynamic(elf, "DT_SONAME") == ["libaotriton_v2.so.0"]


def test_it_exports_aotritons_functions_and_nothing_else(elf):
    symbols = elf.get_section_by_name(".dynsym").iter_symbols()
    exported = {s.name for s in symbols if s.entry.st_shndx != "SHN_UNDEF" and s.entry.st_info.bind != "STB_LOCAL"}
    assert exported == SYMBOLS
    assert not [name for name in exported if re.search(r"St\d|NSt|S[absdio](?![\d_])", name)], "no type of std::"
    versions = elf.get_section_by_name(".gnu.version_d")
    assert versions is None, "names without versions, as AOTriton's are"


def test_nothing_runs_when_it_is_loaded_or_unloaded(elf):
    assert not [s.name for s in elf.iter_sections() if s.name in (".init_array", ".fini_array", ".ctors", ".dtors")]


def test_it_is_built_on_the_interface_alone():
    """Of the tree it knows include/ only; headers go one way."""
    includes = {
        path.name: re.findall(r'^#include [<"](.*)[>"]', path.read_text(), re.M)
        for path in SOURCES.iterdir()
        if path.suffix in (".cc", ".h")
    }
    public = {str(path.relative_to(ROOT / "include")) for path in (ROOT / "include").rglob("*.h")}
    for name, used in includes.items():
        for header in used:
            if "/" in header and not header.startswith("hip/"):
                assert header in public, f"{name} includes {header}"

    def below(name: str) -> set[str]:
        own = {header for header in includes[name] if header in includes}
        return own.union(*map(below, own))

    assert not [name for name in includes if name in below(name)]
    assert max(len(path.read_text().splitlines()) for path in SOURCES.iterdir()) <= 400
