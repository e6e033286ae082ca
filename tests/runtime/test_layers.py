"""The runtime's files in the order of docs/runtime.md: each knows only those above it."""

from __future__ import annotations

import re

from elftools.elf.elffile import ELFFile
from nativebuild import CORE, ROOT


def layers() -> list[str]:
    """The sources in the order of the table in docs/runtime.md, 'The core'."""
    text = (ROOT / "docs/runtime.md").read_text().split("\n## The core\n", 1)[1]
    rows = re.findall(r"^\| (`.*?) \|", text.split("\n\n*", 1)[0], re.M)
    return [name for row in rows for name in re.findall(r"`(\w+\.cc)`", row)]


def test_the_table_has_every_source():
    assert sorted(layers()) == (CORE / "sources.txt").read_text().split()


def test_calls_go_one_way(built):
    """By the symbols of the objects: what a file calls by name is defined above it, or in itself."""
    place = {name: number for number, name in enumerate(layers())}
    defines, needs = {}, {}
    for name in place:
        with (built / "objects" / f"{name}.o").open("rb") as file:
            symbols = list(ELFFile(file).get_section_by_name(".symtab").iter_symbols())
        needs[name] = {s.name for s in symbols if s.entry.st_shndx == "SHN_UNDEF"}
        for symbol in symbols:
            if symbol.entry.st_shndx != "SHN_UNDEF" and symbol.entry.st_info.bind == "STB_GLOBAL":
                defines[symbol.name] = name
    assert any(defines.get(symbol) == "error.cc" for symbol in needs["launch.cc"])  # it sees something
    wrong = {
        f"{name} calls {symbol} of {defines[symbol]}"
        for name in place
        for symbol in needs[name]
        if symbol in defines and place[defines[symbol]] >= place[name]
    }
    assert not wrong


def test_what_kiln_open_is_told_is_read_in_one_place(built):
    """The environment too."""
    readers = []
    for name in layers():
        with (built / "objects" / f"{name}.o").open("rb") as file:
            symbols = ELFFile(file).get_section_by_name(".symtab").iter_symbols()
            readers += [name for symbol in symbols if symbol.name in ("getenv", "secure_getenv")]
    assert readers == ["options.cc"]


def test_headers_go_one_way():
    """No header includes itself by way of others, and what the runtime is built on knows nothing of it."""
    includes = {
        path.name: set(re.findall(r'^#include "(\w+\.h)"', path.read_text(), re.M)) for path in CORE.glob("*.*")
    }

    def all_of(name: str) -> set[str]:
        found, waiting = set(), {name}
        while waiting:
            new = {other for each in waiting for other in includes.get(each, ())} - found
            found |= new
            waiting = new
        return found

    assert not [name for name in includes if name in all_of(name)]
    table = layers()
    for name in table[: table.index("hip.cc") + 1]:
        assert not all_of(name) & {"runtime.h", "dispatch.h"}, name
