"""What a build keeps in its workspace for the next: files under a name that tells what they were made of, each with its
own digest beside it. One that is not what it was when it was made is made again.

<file>         what was made
<file>.sha256  64 hexadecimal digits and a newline; written last

Of parts of files there are many, and they are small: `Pieces` keeps each in one file that begins with its digest.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from kiln_recipe import digests
from kiln_recipe.console.appear import appear


def is_whole(path: Path) -> bool:
    """Whether the file is there as it was sealed."""
    if not path.is_file() or not _seal(path).is_file():
        return False
    try:
        return _seal(path).read_text() == f"{digests.of_file(path)}\n"
    except (OSError, UnicodeDecodeError):
        return False


def seal(path: Path) -> None:
    """Remembers what the file holds."""
    with appear(_seal(path)) as fresh:
        fresh.write_text(f"{digests.of_file(path)}\n")


def clear(folder: Path, pattern: str) -> None:
    """Removes the files of a folder that are named so, and their seals."""
    for path in folder.glob(pattern):
        for old in (_seal(path), path):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(old)


def _seal(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


@dataclass(frozen=True)
class Pieces:
    """Parts of what a build makes, by the digest of all that decides their bytes. It is a cache: what cannot be kept is
    made again, and so is what was damaged.

    Attributes:
        folder: holds a file for each, named by its key: 32 bytes, the SHA-256 of the key and the piece, then the piece.
        most_bytes: what `trim` leaves at most.
    """

    folder: Path
    most_bytes: int

    def get(self, key: str) -> bytes | None:
        """The piece, or None if it is not there as it was put. Marks it as used."""
        path = self.folder / key
        try:
            data = path.read_bytes()
            digest, piece = data[:32], data[32:]
            if _digest_in(key, piece) != digest:
                return None
            os.utime(path)
        except OSError:
            return None
        return piece

    def put(self, key: str, piece: bytes) -> None:
        """Keeps a piece; it appears by rename, so builds that share the folder do not disturb each other."""
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            with appear(self.folder / key) as fresh:
                fresh.write_bytes(_digest_in(key, piece) + piece)

    def trim(self) -> None:
        """Removes those that were used longest ago, until the others are small enough together."""
        found = []
        with contextlib.suppress(OSError):
            for entry in os.scandir(self.folder):
                with contextlib.suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    found.append((status.st_mtime_ns, status.st_size, entry.path))
        left = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if left <= self.most_bytes:
                return
            with contextlib.suppress(OSError):
                os.unlink(path)
            left -= size


def _digest_in(key: str, piece: bytes) -> bytes:
    """Of a piece in its place: one that lies in another's has a wrong one."""
    return hashlib.sha256(key.encode() + piece).digest()
