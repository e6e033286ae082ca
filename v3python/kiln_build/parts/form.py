"""A delta's file: what leads from one tarball to another. Little-endian:

    delta   = head section*                 ; sections fill `size` bytes and end the file
    head    = "KILNDELT" version:u32=1 zero:u32 size:u64 digest:byte[32] before end end head_digest:byte[32]
    end     = bytes:u64 digest:byte[32]     ; of a tarball: first the one that one has, then the one that comes out
    section = kind:u32 zero:u32 stored:u64 plain:u64 byte[stored]

    sections in order: CONTENTS, an INDEX for each pack line of it, MANIFEST, and in the order of the manifest's files a
                       FILE for each that is new; for a new pack, instead, a section for each group that is new
    CONTENTS = line*        ; a zstd frame; line = "pack " path " " bytes | "link " path " " file, each with a newline
    INDEX    = a frame of the pack's header and index, patched from that of the pack of the same path
    MANIFEST = a frame of the manifest, patched from the other's, followed by the hexadecimal digests in the indexes
    FILE     = a frame of the file, patched from the one that `like` finds for it
    STORED   = a group as it is in the pack
    RAW      = a frame of those of a group's images that are new, one behind the other, patched from the images whose
               places they take (regroup.py)
    SPLIT    = the same with both arranged by opcode, as in a pack (artifacts/split.py)
               what has no bytes has none in its section either, and no frame

`digest` is the SHA-256 of all sections, `head_digest` of the head before it. A frame is zstd's; "patched from" means
that the other is its dictionary, of raw content. A file counts as new if no file of the other tarball has its digest, a
group if no pack has one with its.

Nothing is decoded before digests are right: those of the delta, and of the tarball that it is for. Still a delta may
come from anybody, so whatever it decodes to has a limit, and what comes out must have the digest that the head states.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from kiln_build.base import tarball
from kiln_recipe import digests
from kiln_recipe.errors import ArtifactError, EnvironmentProblem

MAGIC = b"KILNDELT"
VERSION = 1
CONTENTS, INDEX, MANIFEST, FILE, STORED, RAW, SPLIT = range(1, 8)
LARGEST_SECTION = 64 << 20  # bytes, decoded: a library's limit

_HEAD = struct.Struct("<8sIIQ32sQ32sQ32s")
_SECTION = struct.Struct("<IIQQ")
_DIGEST = 32


@dataclass(frozen=True)
class End:
    """A tarball at one end of a delta: its size in bytes, and its SHA-256."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Section:
    """`plain`: bytes that `data` decodes to."""

    kind: int
    plain: int
    data: bytes


def end_of(path: Path) -> End:
    """
    Raises:
        EnvironmentProblem: it cannot be read.
    """
    try:
        digest, size = digests.measure_file(path)
    except OSError as error:
        raise EnvironmentProblem(f"{path} cannot be read ({error.strerror})") from error
    return End(size, digest)


def write(file: BinaryIO, before: End, after: End, sections: Iterator[Section]) -> None:
    """Writes a delta to a new file."""
    file.write(bytes(_HEAD.size + _DIGEST))
    digest, size = hashlib.sha256(), 0
    for section in sections:
        for piece in (_SECTION.pack(section.kind, 0, len(section.data), section.plain), section.data):
            file.write(piece)
            digest.update(piece)
            size += len(piece)
    head = _HEAD.pack(
        MAGIC, VERSION, 0, size, digest.digest(), before.bytes, bytes.fromhex(before.sha256), after.bytes,
        bytes.fromhex(after.sha256),
    )  # fmt: skip
    file.seek(0)
    file.write(head + hashlib.sha256(head).digest())


class Reader:
    """A delta, whose digests are right: it is read once, section by section.

    Args:
        budget: bytes that all sections together may decode to, for each byte of the tarball before and of the delta.

    Attributes:
        before, after: the tarballs.
        left: bytes that may still be decoded.

    Raises:
        ArtifactError: it is no delta, of another format, truncated or damaged; also from `take`.
        EnvironmentProblem: it cannot be read.
    """

    def __init__(self, path: Path, budget: int) -> None:
        self.path = path
        try:
            self._file = tarball.open_file(path)
        except OSError as error:
            raise EnvironmentProblem(
                f"{path} cannot be read ({error.strerror}); give a delta of `kiln delta`"
            ) from error
        try:
            self._read_head()
        except BaseException:
            self._file.close()
            raise
        self.left = budget * (self.before.bytes + self._end)

    def __enter__(self) -> Reader:  # noqa: PYI034  (Self needs Python 3.11)
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _read_head(self) -> None:
        head = self._file.read(_HEAD.size + _DIGEST)
        if head[: len(MAGIC)] != MAGIC:
            raise ArtifactError(f"{self.path} is not a delta: it must begin with {MAGIC.decode()}")
        if len(head) < _HEAD.size + _DIGEST:
            raise self.wrong("is truncated in its head")
        version = struct.unpack_from("<I", head, len(MAGIC))[0]
        if version != VERSION:
            raise ArtifactError(f"{self.path} is a delta of format {version}; this Kiln reads format {VERSION}")
        if hashlib.sha256(head[: _HEAD.size]).digest() != head[_HEAD.size :]:
            raise self.wrong("is damaged: its head does not have its digest")
        _, _, zero, size, digest, old_size, old, new_size, new = _HEAD.unpack_from(head)
        if zero:
            raise self.wrong("is malformed in its head")
        self.before, self.after = End(old_size, old.hex()), End(new_size, new.hex())
        found, there = digests.measure(iter(lambda: self._file.read(1 << 20), b""))
        if there != size:
            raise self.wrong(
                f"is {'truncated' if there < size else 'too long'}: it should have {size} bytes behind its head"
            )
        if found != digest.hex():
            raise self.wrong("is damaged: its sections do not have the digest that its head states")
        self._file.seek(len(head))
        self._end = len(head) + size

    def take(self, what: str, *kinds: int, limit: int = LARGEST_SECTION) -> Section:
        """The next section, which has to be of one of these kinds.

        Args:
            what: that it is for, in sentences.
            limit: bytes that it may decode to.
        """
        head = self._file.read(_SECTION.size)
        if len(head) < _SECTION.size:
            raise self.wrong(f"ends before {what}")
        kind, zero, stored, plain = _SECTION.unpack(head)
        if kind not in kinds or zero or stored > self._end - self._file.tell():
            raise self.wrong(f"has no section for {what} where it should be")
        if plain > limit:
            raise self.wrong(f"has {plain} bytes for {what}; {limit} is the limit")
        self.spend(plain)
        return Section(kind, plain, self._file.read(stored))

    def spend(self, size: int) -> None:
        """Counts bytes of what comes out."""
        self.left -= size
        if self.left < 0:
            raise self.wrong("would expand to more than any release does")

    def finish(self) -> None:
        """Nothing must be left."""
        if self._file.read(1):
            raise self.wrong("has sections that belong to nothing")

    def wrong(self, sentence: str) -> ArtifactError:
        return ArtifactError(f"the delta {self.path} {sentence}")
