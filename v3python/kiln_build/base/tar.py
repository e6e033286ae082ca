"""Tar as Kiln writes and reads it. Each archive has one spelling, so no two programs can find different things in it.

    archive = member* zero:byte[1024] zero*   ; to a multiple of 10240 bytes, and nothing behind that
    member  = long? header content zero*      ; to a multiple of 512 bytes
    long    = header name "\\0" zero*          ; of GNU tar, for a name of more than 100 bytes: kind "L"
    header  = name:byte[100] mode:oct[8] uid:oct[8] gid:oct[8] size:oct[12] time:oct[12] sum:byte[8] kind:byte[1]
              link:byte[100] magic:byte[8] owner:byte[32] group:byte[32] zero:byte[16] prefix:byte[155] zero:byte[12]
    oct[n]  = n - 1 octal digits, "\\0"; uid and gid are 0; sum = 6 octal digits of the sum of all bytes, "\\0 "
    kind    = "0" file, "1" hard link, "2" symbolic link, "5" folder, whose name ends with "/"

What differs between a release and a bundle is a `Dialect`. The reader takes a name, a kind, a size and a link out of a
header, writes the header anew, and refuses what is not the same to the byte. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kiln_recipe.errors import ArtifactError

BLOCK = 512
RECORD = 20 * BLOCK
_LARGEST = 0o77777777777  # of a member, in bytes
_LONGEST_NAME = 1000
_PIECE = 1 << 20
KINDS = {"file": b"0", "hard link": b"1", "link": b"2", "folder": b"5"}
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+!-]*(/[A-Za-z0-9_][A-Za-z0-9_.+!-]*)*")

# Where a header's fields end, in order; for sentences.
_FIELDS = (
    ("name", 100), ("mode", 108), ("owner's number", 116), ("group's number", 124), ("size", 136), ("time", 148),
    ("checksum", 156), ("kind", 157), ("link", 257), ("magic", 265), ("owner", 297), ("group", 329), ("device", 345),
    ("name's prefix", 500), ("padding", 512),
)  # fmt: skip


@dataclass(frozen=True)
class Member:
    """One thing in an archive.

    Attributes:
        name: "kiln/lib/libkiln.so.0", without a "/" at its end.
        kind: "file", "folder", "link" (a symbolic one) or "hard link".
        size: bytes of a file. link: where a symbolic link leads; of a hard link the file's name in this archive.
    """

    name: str
    kind: str
    size: int = 0
    link: str = ""


@dataclass(frozen=True)
class Dialect:
    """What all headers of an archive share. `mode` gives a member's; `gnu`: GNU tar's magic and its long names, else
    those of POSIX, which splits a name of more than 100 bytes at a "/"."""

    time: int
    owner: str
    mode: Callable[[Member], int]
    gnu: bool = False


def is_plain(name: str) -> bool:
    """Whether a member may have this name: letters, digits and "_.+!-" between single "/", nothing hidden, no ".."."""
    return _PLAIN.fullmatch(name) is not None


def header(member: Member, dialect: Dialect) -> bytes:
    """All that stands before a member's content.

    Raises:
        ValueError: no header can hold it.
    """
    if not is_plain(member.name):
        raise ValueError(f"the name {member.name!r} is not plain; letters, digits and '_.+!-' are")
    if member.kind == "link" and (not is_plain(member.link) or "/" in member.link or len(member.link) > 100):
        raise ValueError(f"{member.name} leads to {member.link!r}; a link leads to a name beside it")
    if member.kind == "hard link" and (not is_plain(member.link) or len(member.link) > 100):
        raise ValueError(
            f"{member.name} is a hard link to {member.link!r}; one leads to a plain name of at most 100 bytes"
        )
    if not 0 <= member.size <= _LARGEST:
        raise ValueError(f"{member.name} is too large")
    if member.size and member.kind != "file":  # other programs read what follows as members
        raise ValueError(f"the {member.kind} {member.name} has a size; only files have content")
    name = member.name.encode() + (b"/" if member.kind == "folder" else b"")
    before, prefix = b"", b""
    if len(name) > 100 and dialect.gnu and len(name) < _LONGEST_NAME:
        text = name + b"\0"
        before = _block(b"././@LongLink", 0, len(text), 0, b"L", b"", "", True, b"") + _padded(text)
        name = name[:100]
    elif len(name) > 100:
        prefix, name = _split(name)
    mode = dialect.mode(member)
    link = member.link.encode()
    kind = KINDS[member.kind]
    return before + _block(name, mode, member.size, dialect.time, kind, link, dialect.owner, dialect.gnu, prefix)


def padding(size: int) -> bytes:
    """What follows a member's content of so many bytes."""
    return bytes(-size % BLOCK)


def end(size: int) -> bytes:
    """What follows the last member of an archive that has so many bytes so far."""
    return bytes(2 * BLOCK + -(size + 2 * BLOCK) % RECORD)


class Reader:
    """Reads an archive, each byte of it: iterate over its members; `blocks()` reads the content of the one at hand.

    Args:
        read: gives up to so many bytes, none at the end.
        name: what errors call the archive.

    Raises (from iterating and from blocks):
        ArtifactError: it is not what Kiln writes in this dialect.
    """

    def __init__(self, read: Callable[[int], bytes], dialect: Dialect, name: str) -> None:
        self._read, self._dialect, self._name = read, dialect, name
        self._at, self._left, self._size = 0, 0, 0

    def __iter__(self) -> Iterator[Member]:
        while (member := self._next()) is not None:
            yield member
            for _ in self.blocks():
                pass
            if self._take(-self._size % BLOCK).strip(b"\0"):
                raise self._wrong(f"{member.name} is followed by bytes that are not zero")

    def blocks(self) -> Iterator[bytes]:
        """What is left of the content of the member at hand."""
        while self._left:
            data = self._take(min(self._left, _PIECE))
            self._left -= len(data)
            yield data

    def _next(self) -> Member | None:
        start = self._at
        raw = block = self._take(BLOCK)
        if not block.strip(b"\0"):
            self._end(start)
            return None
        long = b""
        if block[156:157] == b"L" and self._dialect.gnu:
            size = self._number(block)
            if not 100 < size <= _LONGEST_NAME:
                raise self._wrong(f"the header at byte {start} announces a name of {size} bytes")
            text = self._take(size + -size % BLOCK)
            long, block = text[: size - 1], self._take(BLOCK)
            raw += text + block
        member = self._member(block, long, start)
        try:
            written = header(member, self._dialect)
        except ValueError as error:
            raise self._wrong(str(error)) from error
        if written != raw:
            difference = next((n for n, (a, b) in enumerate(zip(written, raw)) if a != b), min(len(written), len(raw)))
            field = next(name for name, last in _FIELDS if difference % BLOCK < last)
            raise self._wrong(f"the header of {member.name} has another {field} than Kiln writes")
        self._left = self._size = member.size
        return member

    def _member(self, block: bytes, long: bytes, start: int) -> Member:
        kind = next((kind for kind, byte in KINDS.items() if byte == block[156:157]), None)
        if kind is None:
            raise self._wrong(f"the header at byte {start} is not of a file, a folder or a link")
        prefix = block[345:500].rstrip(b"\0")
        name = long or (prefix + b"/" if prefix else b"") + block[:100].rstrip(b"\0")
        if kind == "folder":
            name = name[:-1] if name.endswith(b"/") else name
        try:
            link = block[157:257].rstrip(b"\0").decode("ascii") if kind in ("link", "hard link") else ""
            return Member(name.decode("ascii"), kind, self._number(block), link)
        except UnicodeDecodeError as error:
            raise self._wrong(f"the header at byte {start} has a name that is not ASCII") from error

    def _number(self, block: bytes) -> int:
        if not re.fullmatch(rb"[0-7]{11}\0", block[124:136]):
            raise self._wrong(f"the header at byte {self._at - BLOCK} has no size")
        return int(block[124:135], 8)

    def _end(self, start: int) -> None:
        """Checks what follows the first empty block, which was read."""
        size = len(end(start)) - BLOCK
        if self._take(size).strip(b"\0") or self._read(1):
            raise ArtifactError(f"{self._name} has bytes after the end of its tar")

    def _take(self, size: int) -> bytes:
        pieces, left = [], size
        while left:
            data = self._read(left)
            if not data:
                raise ArtifactError(
                    f"{self._name} is truncated or corrupt (its tar ends at byte {self._at + size - left})"
                )
            pieces.append(data)
            left -= len(data)
        self._at += size
        return b"".join(pieces)

    def _wrong(self, sentence: str) -> ArtifactError:
        return ArtifactError(f"{self._name} is corrupt: {sentence}")


def _block(
    name: bytes, mode: int, size: int, time: int, kind: bytes, link: bytes, owner: str, gnu: bool, prefix: bytes
) -> bytes:
    block = bytearray(BLOCK)
    for at, text in (
        (0, name), (100, b"%07o" % mode), (108, b"%07o" % 0), (116, b"%07o" % 0), (124, b"%011o" % size),
        (136, b"%011o" % time), (148, b" " * 8), (156, kind), (157, link),
        (257, b"ustar  \0" if gnu else b"ustar\x0000"), (265, owner.encode()), (297, owner.encode()), (345, prefix),
    ):  # fmt: skip
        block[at : at + len(text)] = text
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def _split(name: bytes) -> tuple[bytes, bytes]:
    """A long name's prefix and rest, at the first "/" that makes both fit."""
    for at in (match.start() for match in re.finditer(b"/", name[:-1])):
        if at <= 155 and len(name) - at - 1 <= 100:
            return name[:at], name[at + 1 :]
    raise ValueError(f"the name {name.decode()} is too long")


def _padded(data: bytes) -> bytes:
    return data + padding(len(data))
