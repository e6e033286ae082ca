"""The members of a release, of a tarball and of the folder that it was unpacked to alike. Standard library only."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kiln_build.base import tarball
from kiln_recipe.errors import ArtifactError


@dataclass(frozen=True)
class Entry:
    """A member of a release: `kind` is "file", "folder", "link", of a tarball "hard link", of a folder "other"; `path`
    is below the top folder, "" itself; `source` is the file that it was found in; `link`: where a symbolic link leads,
    or a hard link's file, by its path; `mode` is an unpacked file's."""

    path: str
    kind: str
    source: Path
    link: str = ""
    size: int = 0
    content: Iterable[bytes] = ()
    mode: int = 0

    def blocks(self) -> Iterator[bytes]:
        """The contents of a file, in blocks; read it before asking for the next entry, and once.

        Raises:
            ArtifactError: what it is in is truncated or corrupt, or cannot be read.
        """
        try:
            yield from self.content
        except OSError as error:
            raise ArtifactError(f"{self.source} cannot be read ({error.strerror})") from error


class Content:
    """A member's content, read as a file is, and measured on the way."""

    def __init__(self, entry: Entry) -> None:
        self._blocks, self._digest = entry.blocks(), hashlib.sha256()
        self._block, self._at = b"", 0

    def read(self, size: int) -> bytes:
        """So many bytes, or what is left."""
        pieces = []
        while size > 0:
            if self._at == len(self._block):
                self._block, self._at = next(self._blocks, b""), 0
                if not self._block:
                    break
                self._digest.update(self._block)
            piece = self._block[self._at : self._at + size]
            self._at += len(piece)
            size -= len(piece)
            pieces.append(piece)
        return b"".join(pieces)

    def finish(self) -> str:
        """SHA-256 of all of it; what is left is read."""
        for block in self._blocks:
            self._digest.update(block)
        return self._digest.hexdigest()


def tarball_entries(path: Path, hear: Callable[[bytes], object] = lambda data: None) -> Iterator[Entry]:
    """`hear` gets all of the tarball, as `tarball.members` has it.

    Raises:
        ArtifactError: it is not what Kiln writes, or cannot be read.
    """
    try:
        for below, member, content in tarball.members(path, hear):
            link = member.link.removeprefix(f"{tarball.TOP}/") if member.kind == "hard link" else member.link
            yield Entry(below, member.kind, path, link, member.size, content)
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read ({error.strerror})") from error


def folder_entries(root: Path) -> Iterator[Entry]:
    """
    Raises:
        ArtifactError: something cannot be read.
    """
    for path in sorted(root.rglob("*"), key=lambda p: p.relative_to(root).as_posix()):
        name = path.relative_to(root).as_posix()
        try:
            if path.is_symlink():
                yield Entry(name, "link", path, os.readlink(path))
            elif path.is_dir():
                yield Entry(name, "folder", path)
            elif path.is_file():
                with tarball.open_file(path) as file:
                    status, blocks = os.fstat(file.fileno()), iter(lambda: file.read(1 << 20), b"")
                    yield Entry(name, "file", path, "", status.st_size, blocks, stat.S_IMODE(status.st_mode))
            else:
                yield Entry(name, "other", path)
        except OSError as error:
            raise ArtifactError(f"{path} cannot be read ({error.strerror})") from error
