"""What an image may ask of its reader: held against its bytes before anything else is read of it.

pyelftools believes what a file states: it unpacks compressed sections, reads a table of as many entries as a header
counts, and looks for the end of a name as far as the file goes. A cubin or code object needs little of any of that.
"""

from __future__ import annotations

import struct

from kiln_recipe.errors import ArtifactError
from kiln_recipe.images.elf_file import EMPTY, NOTE, SECTION, SYMBOL, SYMBOL_TABLES, Section, sections

_HASH, _GNU_HASH, _COMPRESSED = 5, 0x6FFFFFF6, 0x800

# The largest image of the full profile, with line information, has 40 sections, 8 segments, 60 symbols.
MOST_SECTIONS, MOST_SEGMENTS, MOST_SYMBOLS = 256, 64, 4096
LONGEST_NAME = 1024
MOST_NOTES = 256 << 10  # bytes
MOST_ATTRIBUTES = 256 << 10  # bytes of .nv.info


def check(code: bytes) -> None:
    """Holds a 64-bit little-endian ELF file against the limits.

    Raises:
        ArtifactError: it is beyond one of them, or states what is not in it.
    """
    try:
        segments, row, count, names = struct.unpack_from("<HHHH", code, 56)
        _check_header(code, segments, row, count, names)
        rows = sections(code)
    except struct.error as error:
        raise ArtifactError("its header is cut off") from error
    notes = total = symbols = 0
    for name, kind, flags, _, offset, size, link, _, _, entry in rows:
        _check_name(code, rows, names, name)
        if kind in EMPTY:
            continue
        total += size
        if offset + size > len(code):
            raise ArtifactError("a section ends beyond its end")
        if flags & _COMPRESSED:
            raise ArtifactError("it has a compressed section; no image has")
        notes += size if kind == NOTE else 0
        if kind in SYMBOL_TABLES:
            symbols += size // SYMBOL.size
            if entry != SYMBOL.size or size % SYMBOL.size or symbols > MOST_SYMBOLS:
                raise ArtifactError(f"its symbol table is malformed, or has more than {MOST_SYMBOLS} symbols")
            for symbol, *_ in SYMBOL.iter_unpack(code[offset : offset + size]):
                _check_name(code, rows, link, symbol)
        if kind in (_HASH, _GNU_HASH):
            _check_hash(code[offset : offset + size], kind)
    if total > 2 * len(code):
        raise ArtifactError("its sections overlap")
    if notes > MOST_NOTES:
        raise ArtifactError(f"it has {notes} bytes of notes; an image has {MOST_NOTES} at most")


def _check_header(code: bytes, segments: int, row: int, count: int, names: int) -> None:
    (segment_row,) = struct.unpack_from("<H", code, 54)
    first_segment, first_section = struct.unpack_from("<QQ", code, 32)
    if row != SECTION.size or not 0 < count <= MOST_SECTIONS or names >= count:
        raise ArtifactError(f"its section headers are malformed, or there are more than {MOST_SECTIONS}")
    if segments > MOST_SEGMENTS or (segments and segment_row != 56):
        raise ArtifactError(f"its program headers are malformed, or there are more than {MOST_SEGMENTS}")
    if first_section + count * row > len(code):
        raise ArtifactError("its section headers lie beyond its end")
    if segments and first_segment + segments * segment_row > len(code):
        raise ArtifactError("its program headers lie beyond its end")


def _check_name(code: bytes, rows: list[Section], table: int, name: int) -> None:
    if table >= len(rows):
        raise ArtifactError("a name is in no section of strings")
    start = rows[table].offset + name
    if start >= len(code) or code.find(b"\0", start, start + LONGEST_NAME) < 0:
        raise ArtifactError(f"a name has no end, or more than {LONGEST_NAME} bytes")


def _check_hash(table: bytes, kind: int) -> None:
    if kind == _HASH:
        buckets, chains = struct.unpack_from("<II", table) if len(table) >= 8 else (len(table), 0)
        needed = 8 + 4 * (buckets + chains)
    else:
        buckets, _, bloom = struct.unpack_from("<III", table) if len(table) >= 16 else (len(table), 0, 0)
        needed = 16 + 8 * bloom + 4 * buckets
    if needed > len(table) or len(table) > 64 << 10:
        raise ArtifactError("a table of hashes is malformed")
