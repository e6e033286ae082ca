"""A release's tarball: its grammar, its writer and its reader.

    tarball = gzip+                ; together one archive of tar.py
    gzip    = 1f 8b 08 00 00 00 00 00 00 ff deflate crc:u32 size:u32
              ; no name, no time; each but the last holds MEMBER_BYTES or up to MEMBER_SLACK more
    archive = member "kiln", a folder, then all below it: in the order of their paths, each below a folder that is
              there, owners 0 without names, time 1980-01-01, modes by `mode_of`; a symbolic link leads to a name beside
              it; then all hard links, in the order of their paths, each to a file of this archive

Of a file's paths the one in the fewest folders, and of those the last, is the member with the content; the others are
hard links to it. So what lies near the top can be extracted without the rest.

One file has one spelling but for what deflate leaves open. The reader refuses every other; it needs only the standard
library, and memory for one block and the paths. What expands to more than MOST_EXPANSION times its size, or has more
than MOST_MEMBERS members, is refused too.
"""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

from kiln_build.base import tar
from kiln_recipe.errors import ArtifactError, EnvironmentProblem

TOP = "kiln"
TIME = 315532800  # 1980-01-01: the earliest that every archive format can hold
MEMBER_BYTES = 64 << 20  # of gzip; one is compressed in memory
MEMBER_SLACK = 1 << 20  # the writer's largest piece
MOST_EXPANSION = 100  # a release's is 2 to 10
MOST_MEMBERS = 1 << 16  # a release has some hundred; their paths are kept in memory
_HEAD = bytes.fromhex("1f8b08000000000000ff")
_GZIP_LEVEL = 6  # packs do not shrink; higher levels buy less than 1 % for twice the time


def mode_of(member: tar.Member) -> int:
    """Libraries may be executed, as some packagers' tools expect of them; what the stage's umask was does not count. A
    hard link has the mode of its file."""
    if member.kind in ("folder", "link"):
        return 0o755 if member.kind == "folder" else 0o777
    folder, _, name = (member.link if member.kind == "hard link" else member.name).rpartition("/")
    is_library = ".so" in name and folder.rpartition("/")[2] == "lib"
    return 0o755 if is_library or name.endswith(".pyz") else 0o644


DIALECT = tar.Dialect(time=TIME, owner="", mode=mode_of)


@dataclass
class Order:
    """Holds paths below the top folder against their order; each must stand below a folder that came before, and hard
    links behind all else.

    Attributes:
        last: the path, whether it was a hard link's first.
        kinds: by path, of all that came.
    """

    last: tuple[bool, str] = (False, "")
    kinds: dict[str, str] = field(default_factory=dict)

    def problem(self, path: str, kind: str, link: str) -> str:
        """What is wrong with the next path, or "". `link`: of a hard link the file's path."""
        parent = path.rpartition("/")[0]
        if parent and self.kinds.get(parent) != "folder":
            return f"{path} appears without its folder"
        if path in self.kinds:
            return f"{path} appears twice"
        place = (kind == "hard link", path)
        if place < self.last:
            return f"{path} is not in order"
        if kind == "hard link":
            if self.kinds.get(link) != "file":
                return f"{path} is a hard link to {link}, which is not a file before it"
            if _nearest([path, link]) == path:
                return f"{path} is a hard link to {link}; of the two paths {path} has to be the file"
        self.last = place
        self.kinds[path] = kind
        return ""


def _nearest(paths: Sequence[str]) -> str:
    """Which of a file's paths is the member with the content: lib/kiln.images/, not lib/aotriton.images/."""
    return max(paths, key=lambda path: (-path.count("/"), path))


def pieces(stage: Path) -> Iterator[bytes]:
    """The tarball of the folder `stage`, piece by piece.

    Raises:
        EnvironmentProblem: the folder holds something that is neither a file, a folder nor a link, or too much.
        ValueError: a name is not plain, or too long, or a file too large.
    """
    return compressed(archive(stage))


def archive(stage: Path) -> Iterator[bytes]:
    """The folder as an uncompressed tar, in pieces: names sorted, and nothing of who made it, when and where."""
    yield tar.header(tar.Member(TOP, "folder"), DIALECT)
    size = tar.BLOCK
    for below, path in staged(stage):
        link = f"{TOP}/{below.link}" if below.kind == "hard link" else below.link
        member = replace(below, name=f"{TOP}/{below.name}", link=link)
        yield tar.header(member, DIALECT)
        size += tar.BLOCK
        if member.kind == "file":
            with path.open("rb") as file:
                while piece := file.read(MEMBER_SLACK):
                    yield piece
            yield tar.padding(member.size)
            size += member.size + len(tar.padding(member.size))
    yield tar.end(size)


def staged(stage: Path) -> Iterator[tuple[tar.Member, Path]]:
    """What is in a folder, as members of an archive in their order, by their paths below it, with their own.

    Raises:
        EnvironmentProblem: as `pieces`.
    """
    paths = {path.relative_to(stage).as_posix(): path for path in stage.rglob("*")}
    if len(paths) >= MOST_MEMBERS:
        raise EnvironmentProblem(
            f"{stage} holds {len(paths)} files and folders; a release holds fewer than {MOST_MEMBERS}"
        )
    originals = _originals(paths)
    below = [*sorted(paths.keys() - originals.keys()), *sorted(originals)]
    for name in below:
        path = paths[name]
        if original := originals.get(name):
            member = tar.Member(name, "hard link", link=original)
        elif path.is_symlink():
            member = tar.Member(name, "link", link=os.readlink(path))
        elif path.is_dir():
            member = tar.Member(name, "folder")
        elif path.is_file():
            member = tar.Member(name, "file", path.stat().st_size)
        else:
            raise EnvironmentProblem(f"{path} is neither a file, a folder nor a link; a release holds no other")
        yield member, path


def _originals(paths: Mapping[str, Path]) -> dict[str, str]:
    """For each path that becomes a hard link, the path of its file."""
    files: dict[tuple[int, int], list[str]] = {}
    for name, path in paths.items():
        status = path.lstat()
        if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
            files.setdefault((status.st_dev, status.st_ino), []).append(name)
    found: dict[str, str] = {}
    for names in files.values():
        original = _nearest(names)
        found |= {name: original for name in names if name != original}
    return found


def compressed(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Compresses by libdeflate, of the locked package: the bytes depend on it and on nothing of the host. More than
    MEMBER_BYTES become several members, which every gunzip joins."""
    import deflate

    gathered, size = [], 0
    for piece in pieces:
        gathered.append(piece)
        size += len(piece)
        if size >= MEMBER_BYTES:
            yield bytes(deflate.gzip_compress(b"".join(gathered), _GZIP_LEVEL))
            gathered, size = [], 0
    if gathered:
        yield bytes(deflate.gzip_compress(b"".join(gathered), _GZIP_LEVEL))


def members(
    path: Path, hear: Callable[[bytes], object] = lambda data: None
) -> Iterator[tuple[str, tar.Member, Iterator[bytes]]]:
    """Each member of a tarball: its path below the top folder, itself, and its content, to be read before the next is
    asked for. All of the file is read, whether a content is wanted or not; `hear` gets it as it is in the file.

    Raises:
        ArtifactError: it is not what Kiln writes.
        OSError: it cannot be read.
    """
    with open_file(path) as file:
        reader = tar.Reader(_Unzipped(file, path, hear).read, DIALECT, str(path))
        order, is_first = Order(), True
        for number, member in enumerate(reader):
            if number >= MOST_MEMBERS:
                raise ArtifactError(f"{path} has more than {MOST_MEMBERS} members; no release does")
            if is_first != (member.name == TOP and member.kind == "folder"):
                what = f"it must start with the folder {TOP}, not with {member.name}"
                raise ArtifactError(f"{path} is corrupt: {what if is_first else f'the top folder {TOP} appears twice'}")
            is_first = False
            below = member.name[len(TOP) + 1 :]
            if member.name.partition("/")[0] != TOP:
                raise ArtifactError(f"{path} is corrupt: {member.name} lies outside of the top folder {TOP}/")
            link = member.link.removeprefix(f"{TOP}/")
            if member.kind == "hard link" and link == member.link:
                raise ArtifactError(f"{path} is corrupt: {below} is a hard link to {link}, outside of {TOP}/")
            if below and (problem := order.problem(below, member.kind, link)):
                raise ArtifactError(f"{path} is corrupt: {problem}")
            yield below, member, reader.blocks()
        if is_first:
            raise ArtifactError(f"{path} is not a release of Kiln's: it is empty")


def open_file(path: Path) -> BinaryIO:
    """Opens a file; a pipe, which may never be written to, or a device, which may never end, is refused.

    Raises:
        ArtifactError: it is not a file.
        OSError: it cannot be opened.
    """
    file = os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise ArtifactError(f"{path} is not a file")
    return file


class WrongSum(ArtifactError):
    """The bytes of a gzip member do not have the CRC or the size behind them; which are wrong it does not tell."""


class _Unzipped:
    """What the gzip members of a release hold; zlib checks the CRC and the size of each."""

    def __init__(self, file: BinaryIO, path: Path, hear: Callable[[bytes], object]) -> None:
        self._file, self._path, self._hear = file, path, hear
        self._budget = MOST_EXPANSION * os.fstat(file.fileno()).st_size + MEMBER_SLACK
        self._data, self._size = b"", 0
        self._member: zlib._Decompress | None = None
        self._first = True

    def read(self, size: int) -> bytes:
        try:
            while True:
                member = self._member or self._begin()
                if member is None:
                    return b""
                data = self._data or self._take()
                if not data:
                    raise EOFError("its gzip stream has no end")
                plain = member.decompress(data, size)
                self._data = member.unused_data if member.eof else member.unconsumed_tail
                self._size += len(plain)
                self._budget -= len(plain)
                if self._budget < 0:
                    raise ArtifactError(
                        f"{self._path} expands to more than {MOST_EXPANSION} times its size; no release does"
                    )
                if member.eof:
                    self._finish()
                if plain:
                    return plain
        except EOFError as error:
            raise ArtifactError(f"{self._path} is truncated ({error})") from error
        except zlib.error as error:
            what = str(error).rpartition(": ")[2]
            kind = WrongSum if what in ("incorrect data check", "incorrect length check") else ArtifactError
            raise kind(f"{self._path} is corrupt (its gzip stream: {what})") from error

    def _take(self) -> bytes:
        data = self._file.read(1 << 16)
        self._hear(data)
        return data

    def _begin(self) -> zlib._Decompress | None:
        """Begins a gzip member; None where there is none."""
        while len(self._data) < len(_HEAD) and (more := self._take()):
            self._data += more
        if not self._data and not self._first:
            return None
        if self._data[: len(_HEAD)] != _HEAD or not (self._first or self._size >= MEMBER_BYTES):
            if self._first:
                raise ArtifactError(f"{self._path} is corrupt: its gzip header is not one that Kiln writes")
            raise ArtifactError(f"{self._path} has bytes after the end of its gzip stream")
        self._member, self._size, self._first = zlib.decompressobj(31), 0, False
        return self._member

    def _finish(self) -> None:
        if not 0 < self._size < MEMBER_BYTES + MEMBER_SLACK:
            raise ArtifactError(f"{self._path} is corrupt: a gzip member holds {self._size} bytes")
        self._member = None
