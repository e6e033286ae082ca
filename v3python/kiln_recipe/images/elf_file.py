"""What stands in an ELF file of 64 bits that `elf_limits.check` has passed: its sections, symbols and notes. pyelftools
takes twenty times as long for these.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

SECTION = struct.Struct("<IIQQQQIIQQ")
SYMBOL = struct.Struct("<IBBHQQ")
SYMBOL_TABLES, NOTE, EMPTY = (2, 11), 7, (0, 8)
_NOTE_HEADER = struct.Struct("<III")
_PROGRAM, _EXECUTABLE = 1, 4


class Section(NamedTuple):
    """A section's header, as ELF has it; `name` is a place in the section of names."""

    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    entry: int

    @property
    def is_code(self) -> bool:
        """Whether it has machine code."""
        return self.kind == _PROGRAM and bool(self.flags & _EXECUTABLE)


def sections(code: bytes) -> list[Section]:
    """The headers of the sections of a file."""
    (start,) = struct.unpack_from("<Q", code, 40)
    (count,) = struct.unpack_from("<H", code, 60)
    return [Section(*row) for row in SECTION.iter_unpack(code[start : start + count * SECTION.size])]


def named(code: bytes) -> list[tuple[str, Section]]:
    """The sections of a file, with their names."""
    rows = sections(code)
    (names,) = struct.unpack_from("<H", code, 62)
    return [(_text(code, rows[names].offset + row.name), row) for row in rows]


def content(code: bytes, section: Section) -> bytes:
    """The bytes of a section of a file."""
    return b"" if section.kind in EMPTY else code[section.offset : section.offset + section.size]


def symbols(code: bytes, table: Section, name: str) -> list[int]:
    """The numbers of the symbols of that name, in a table of a file.

    Raises:
        ValueError: it is no table of symbols.
    """
    if table.kind not in SYMBOL_TABLES:
        raise ValueError("its symbol table is malformed")
    start, wanted = sections(code)[table.link].offset, name.encode() + b"\0"
    places = (start + row[0] for row in SYMBOL.iter_unpack(content(code, table)))
    return [number for number, place in enumerate(places) if code.startswith(wanted, place)]


def notes(code: bytes) -> Iterator[tuple[bytes, int, bytes]]:
    """Name, kind and content of each note of a file.

    Raises:
        ValueError: one is cut off.
    """
    for section in sections(code):
        data, place = (content(code, section) if section.kind == NOTE else b""), 0
        while place < len(data):
            if place + _NOTE_HEADER.size > len(data):
                raise ValueError("a note is cut off")
            name, size, kind = _NOTE_HEADER.unpack_from(data, place)
            begin = place + _NOTE_HEADER.size
            start = begin + name + -name % 4
            if start + size > len(data):
                raise ValueError("a note is cut off")
            yield data[begin : begin + name], kind, data[start : start + size]
            place = start + size + -size % 4


def _text(code: bytes, start: int) -> str:
    return code[start : code.index(b"\0", start)].decode(errors="replace")
