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
from aotriton_interface import VERSIONS, library_of, symbols_of
from elftools.elf.elffile import ELFFile
from fake_release import hip_headers
from nativebuild import ROOT

import shared
from kiln_build.native import adapters, native

SOURCES = ROOT / "csrc/aotriton"


@pytest.fixture(scope="module", params=["the machine's compiler", *(f"zig {version}" for version in VERSIONS)])
def library(request, release, tmp_path_factory) -> Path:
    if request.param.startswith("the machine"):
        return library_of(release.lib, VERSIONS[0])
    if not importlib.util.find_spec("ziglang"):
        pytest.skip("there is no ziglang")
    version = request.param.partition(" ")[2]
    return library_of(by_zig(release), version)


def by_zig(release) -> Path:
    """A folder with the libraries as a release's compiler makes them, of the fake release's tables."""
    compiler = native.zig_compiler(sys.executable, nativebuild.cache() / "zig", "")
    site = hip_headers().parents[3]

    def build(folder: Path) -> None:
        family = native.FamilySources(
            "flash", (release.folder / "flash.cc").read_text(), tuple(nativebuild.FLASH),
            (ROOT / "include/kiln/flash.h",), generated=nativebuild.flash_headers(),
        )  # fmt: skip
        header = (release.folder / "include/kiln/version.h").read_text()
        whole = [adapter for adapter in adapters.find(ROOT, site, "") if adapter.is_whole]
        jobs = len(os.sched_getaffinity(0))
        made = native.build_libraries(
            ROOT, nativebuild.vendored(), header, [family], whole, compiler, folder / "built", jobs
        )
        for adapter in whole:
            os.link(made[adapter.library], folder / adapter.library)

    return shared.once("aotriton-zig", build)


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


def test_it_needs_the_c_library_alone(elf, library):
    """Wheels of PyTorch take what is called libaotriton_v2*.so*, and change where libraries look for others."""
    assert set(dynamic(elf, "DT_NEEDED")) <= {"libc.so.6", "libdl.so.2", "ld-linux-x86-64.so.2"}
    assert not dynamic(elf, "DT_RUNPATH") and not dynamic(elf, "DT_RPATH")
    assert dynamic(elf, "DT_SONAME") == [library.name]


def test_it_exports_aotritons_functions_and_nothing_else(elf, library):
    symbols = elf.get_section_by_name(".dynsym").iter_symbols()
    exported = {s.name for s in symbols if s.entry.st_shndx != "SHN_UNDEF" and s.entry.st_info.bind != "STB_LOCAL"}
    templates = {name for name in exported if re.match(r"_ZNK?8aotriton10TensorViewILi[1-4]E", name)}
    constructors = {name for name in exported if "attn_fwd_paramsC2E" in name or "attn_bwd_paramsC2E" in name}
    version = library.name.removeprefix("libaotriton_v2.so.").rpartition(".")[0]
    assert exported - templates - constructors == symbols_of(version) | {"kiln_aotriton_error"}
    assert len(constructors) == 2 and len(templates) >= 4 * 14
    arrays = {f"_ZN8aotriton10TensorViewILi{n}EE{kind}ElSt5arrayImLm{n}EES3_NS_5DTypeE"
              for n in (1, 2, 3, 4) for kind in ("C1", "C2")}  # fmt: skip
    with_types = {name for name in exported if re.search(r"St\d|NSt|S[absdio](?![\d_])", name)}
    assert with_types == arrays, "no type of std:: but where callers have it"
    versions = elf.get_section_by_name(".gnu.version_d")
    assert versions is None, "names without versions, as AOTriton's are"


def test_nothing_runs_when_it_is_loaded_or_unloaded(elf):
    assert not [s.name for s in elf.iter_sections() if s.name in (".init_array", ".fini_array", ".ctors", ".dtors")]


def test_it_is_built_on_the_interface_alone():
    """Of the tree it knows include/ only; headers go one way; what all versions share knows none of them."""
    files = {path.relative_to(SOURCES): path for path in SOURCES.rglob("*") if path.suffix in (".cc", ".h")}
    public = {str(path.relative_to(ROOT / "include")) for path in (ROOT / "include").rglob("*.h")}
    includes = {}
    for name, path in files.items():
        includes[name] = set()
        for header in re.findall(r'^#include [<"](.*)[>"]', path.read_text(), re.M):
            own = Path(os.path.normpath(name.parent / header))
            if own in files:
                includes[name].add(own)
                assert name.parent != Path() or own.parent == Path(), f"{name} includes {header}"
            elif "/" in header and not header.startswith("hip/"):
                assert header in public and (name.parent != Path() or not header.startswith("aotriton/")), header

    def below(name: Path) -> set[Path]:
        return includes[name].union(*map(below, includes[name]))

    assert not [name for name in includes if name in below(name)]
    assert max(len(path.read_text().splitlines()) for path in files.values()) <= 400
