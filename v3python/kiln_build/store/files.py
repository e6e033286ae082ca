"""The files of a store: how they lie, and what of them is whole.

    <root>/
      format                      "kiln-store 2" and a newline
      index/<k2>/<key>            an entry: what the variant with this key was compiled to
      ir/<i2>/<ir>                an entry: what an IR with this digest was compiled to
      objects/<d2>/<digest>.zst   one zstd frame; <digest> is the SHA-256 of what it decodes to
      locks/<ir>                  locked by the process that compiles this IR
      locks/durations             locked by who adds to durations, or writes it anew
      builds/<name>               locked by a running build; its mtime is when the build began
      gc                          locked by the one gc that may run
      durations                   advice for the scheduler: lines of JSON, as durations.py has them
    entry = digest "\\n" content;  content = JSON of `Entry`;  digest = its SHA-256, 64 hexadecimal digits
    <k2>, <i2>, <d2> = the first two digits of the name that follows

Every file but `durations` and the locks appears by rename, complete, and never changes: a kill -9 leaves at worst a
file under a temporary name, and an image that is written twice is the same file. Nothing is synced to disk: what a
power cut truncates, or anything else damages or exchanges, is found by its size, digest or name, removed, and compiled
again. An entry's mtime is its last use, and that is all that `gc` needs to know. Entries of format 1, which had neither
digest nor name, are of keys that are no longer asked for; `gc` removes them.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec
import zstandard

from kiln_build.base.folder import SharedFolder, Unreadable
from kiln_build.store.store import StoredImage
from kiln_recipe.digests import is_digest
from kiln_recipe.errors import ArtifactError, EnvironmentProblem, escaped

T = TypeVar("T")

_FORMAT, _EARLIER_FORMAT = b"kiln-store 2\n", b"kiln-store 1\n"
_NAMES = {"format", "index", "ir", "objects", "locks", "builds", "gc", "durations", "lost+found"}
_LEVEL = 3  # cubins shrink to a third at 0.3 ms each; what is released is compressed anew
_LARGEST_ENTRY = 1 << 16  # bytes; they have some hundreds
_LARGEST_OBJECT = 1 << 28  # bytes; a corrupt frame must not make us allocate what it claims


class Entry(msgspec.Struct, frozen=True):
    """An image, and the stored sizes of its objects: they find a truncated one without reading it. `name`: the path of
    the entry in the store, "index/<k2>/<key>"."""

    name: str
    image: StoredImage
    sizes: dict[str, int]


class Earlier(msgspec.Struct, frozen=True):
    """What an entry of format 1 was, of which nothing is believed."""

    image: StoredImage
    sizes: dict[str, int]


def print_warning(text: str) -> None:
    """To standard error."""
    print(escaped(f"warning: {text}", has_lines=False), file=sys.stderr, flush=True)


class StoreFiles:
    """The files of the store in the folder `root`, which the first write creates.

    Args:
        root: the folder; may be absent or empty.
        warn: is given a sentence for each thing that was found broken and was removed.

    Raises:
        EnvironmentProblem: `root` holds something else; from any method: it is full, or cannot be read or written.
        ArtifactError: `root` is a store of another format.
    """

    def __init__(self, root: Path, warn: Callable[[str], None]) -> None:
        self.root = root
        self.folder = SharedFolder(root)
        self._warn = warn
        self._removed: set[str] = set()  # digests of the objects that we have said of that they are gone
        self._is_new = self._check_format()
        self._compressor = zstandard.ZstdCompressor(level=_LEVEL)
        self._decompressor = zstandard.ZstdDecompressor()
        self._decoder, self._earlier = msgspec.json.Decoder(Entry), msgspec.json.Decoder(Earlier)

    def begin(self) -> None:
        """Before the first write: a new store says what it is."""
        if self._is_new:
            self.folder.write(self.root / "format", _FORMAT)
            self._is_new = False

    def path(self, kind: str, name: str) -> Path:
        """Where a digest of a kind lies: "index", "ir", "objects" or "locks"."""
        if not is_digest(name):
            raise ValueError(f"{name!r} is not a digest of 64 hexadecimal digits")
        if kind == "locks":
            return self.root / kind / name
        return self.root / kind / name[:2] / (f"{name}.zst" if kind == "objects" else name)

    def list(self, kind: str) -> Iterator[tuple[Path, int, int]]:
        """Path, size and mtime (ns) of each file of a kind, and of whatever stands in the place of one."""
        for file in self.folder.files(kind):
            with contextlib.suppress(FileNotFoundError):
                status = file.stat(follow_symlinks=False)
                yield Path(file.path), status.st_size, status.st_mtime_ns

    def strange_folders(self, kind: str) -> Iterator[Path]:
        """What stands in the place of a folder of this kind, or of one in it."""
        top = self.root / kind
        with contextlib.suppress(FileNotFoundError):
            if not self.folder.is_folder(top):
                os.lstat(top)
                yield top
                return
            yield from (Path(e.path) for e in os.scandir(top) if not e.is_dir() and not e.name.startswith("."))

    # ---- entries ----

    def entry(self, path: Path) -> Entry | None:
        """The entry, if it and its objects are whole; what is not is removed."""
        found = self.any_entry(path)
        return found if isinstance(found, Entry) else None

    def any_entry(self, path: Path) -> Entry | Earlier | None:
        """`entry`, or what tells that one of an earlier format is there, which is left alone."""
        try:
            data, status = self.folder.read(path, _LARGEST_ENTRY)
        except FileNotFoundError:
            return None
        except Unreadable as problem:
            self._discard(path, problem.status, f"entry {path.name} of the store {self.root} {problem}")
            return None
        try:
            entry = self._decode_entry(path, data)
        except _Broken as broken:
            self._discard(path, status, f"entry {path.name} of the store {self.root} {broken}")
            return None
        if isinstance(entry, Earlier):
            return entry
        for digest, size in entry.sizes.items():
            if not self._is_there(self.path("objects", digest), size):
                # Once is enough: of an object that was removed just now its user has been told why.
                known = digest in self._removed
                self._discard(path, status, None if known else f"object {digest} is missing from the store {self.root}")
                return None
        return entry

    def put_entry(self, path: Path, image: StoredImage, sizes: dict[str, int]) -> None:
        """Writes an entry."""
        entry = msgspec.to_builtins(Entry(self._name(path), image, sizes))
        if not image.info.descriptors:  # so that an entry without any is what it was before there were some
            entry["image"]["info"].pop("descriptors", None)
        content = msgspec.json.encode(entry)
        self._write(path, hashlib.sha256(content).hexdigest().encode() + b"\n" + content)

    def remove_entry(self, path: Path, reason: str | None = None) -> None:
        """Removes an entry that is whole and yet wrong, as is found out elsewhere."""
        with contextlib.suppress(FileNotFoundError):
            text = f"entry {path.name} of the store {self.root} {reason}"
            self._discard(path, os.lstat(path), text if reason else None)

    def _decode_entry(self, path: Path, data: bytes) -> Entry | Earlier:
        digest, _, content = data.partition(b"\n")
        if hashlib.sha256(content).hexdigest().encode() != digest:
            with contextlib.suppress(ValueError):
                return self._earlier.decode(data)
            raise _Broken("is corrupt")
        try:
            entry = self._decoder.decode(content)
            for name in entry.sizes:
                self.path("objects", name)
        except ValueError:  # msgspec's errors are ValueErrors too
            raise _Broken("is of another version") from None
        if entry.name != self._name(path):
            raise _Broken(f"is that of {entry.name}")
        return entry

    def _name(self, path: Path) -> str:
        """What an entry calls itself: its place, so that none serves in another's."""
        return path.relative_to(self.root).as_posix()

    # ---- objects ----

    def object(self, digest: str) -> bytes:
        """What an object holds, verified.

        Raises:
            ArtifactError: it is missing, truncated or corrupt, and is removed.
        """
        path = self.path("objects", digest)
        try:
            return _again_if_missing(lambda: self._decode(path))
        except FileNotFoundError:
            raise ArtifactError(f"object {digest} is missing from the store {self.root}; build again") from None
        except _Broken as broken:
            self._remove_object(path, broken)
            raise ArtifactError(f"object {digest} of the store {self.root} {broken}; build again") from None

    def check_object(self, path: Path) -> bool:
        """Whether an object is whole, or gone meanwhile; one that is not is removed."""
        try:
            self._decode(path)
        except FileNotFoundError:
            pass
        except _Broken as broken:
            self._remove_object(path, broken)
            return False
        return True

    def put_object(self, content: bytes, sizes: dict[str, int]) -> str:
        """Keeps `content`; returns its digest, under which its stored size is added to `sizes`."""
        digest = hashlib.sha256(content).hexdigest()
        path = self.path("objects", digest)
        # The mark keeps a gc that is at work from removing it between here and the entry.
        if self.folder.touch(path):
            try:
                self._decode(path)
                sizes[digest] = os.stat(path).st_size
                return digest
            except FileNotFoundError:
                pass
            except _Broken as broken:
                self._remove_object(path, broken)
        data = self._compressor.compress(content)
        sizes[digest] = len(data)
        self._write(path, data)
        self._removed.discard(digest)
        return digest

    def _is_there(self, path: Path, size: int) -> bool:
        try:
            status = _again_if_missing(lambda: os.lstat(path))
            if stat.S_ISREG(status.st_mode) and status.st_size == size:
                return True
            # Another zstd gives another size: not the size, but what is in it, makes an object wrong.
            self._decode(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise self.folder.problem("read", path, error) from error
        except _Broken as broken:
            self._remove_object(path, broken)
            return False
        return True

    def _decode(self, path: Path) -> bytes:
        """What an object holds; its name is the digest of that."""
        try:
            data, status = self.folder.read(path, _LARGEST_OBJECT)
        except Unreadable as problem:
            raise _Broken(str(problem), problem.status) from None
        try:
            if not 0 <= zstandard.frame_content_size(data) <= _LARGEST_OBJECT:
                raise _Broken("is corrupt", status)
            content = self._decompressor.decompress(data, allow_extra_data=False)
        except zstandard.ZstdError:
            raise _Broken("is truncated" if _is_truncated(data) else "is corrupt", status) from None
        if hashlib.sha256(content).hexdigest() != path.stem:
            raise _Broken("is corrupt", status)
        return content

    # ---- what is broken ----

    def _write(self, path: Path, data: bytes) -> None:
        self.begin()
        for folder in (path.parents[1], path.parent):
            if not self.folder.is_folder(folder):
                self.strange_folder(folder)
        self.folder.write(path, data)

    def strange_folder(self, path: Path) -> None:
        """Removes what stands in the place of one of the store's folders. Nothing happens if another process has put a
        folder there meanwhile: a file's removal, unlike a rename, never takes a folder."""
        self._remove(lambda: _unlink(path), f"{self._name(path)} of the store {self.root} is not a folder")

    def _discard(self, path: Path, status: os.stat_result | None, reason: str | None) -> None:
        """Removes what is broken, and says so; if another process has put something whole there, that stays."""
        if status is not None:
            self._remove(lambda: self.folder.remove_same(path, status), reason)

    def _remove(self, remove: Callable[[], bool], reason: str | None) -> None:
        """Says why, and what came of it, unless `remove` tells that there was nothing to remove."""
        try:
            if not remove():
                return
            consequence = "removed; it will be compiled again"
        except OSError as error:
            consequence = f"it cannot be removed ({error.strerror})"
        if reason:
            self._warn(f"{reason}: {consequence}")

    def _remove_object(self, path: Path, broken: _Broken) -> None:
        self._removed.add(path.stem)
        self._discard(path, broken.status, f"object {path.stem} of the store {self.root} {broken}")

    def _check_format(self) -> bool:
        """Whether the store has to be told its format: there is none yet, or an earlier Kiln has made it."""
        try:
            found, _ = self.folder.read(self.root / "format", 1 << 12)
        except FileNotFoundError:
            found = b""
        except Unreadable as problem:
            if self.root.is_dir() and problem.status and not stat.S_ISREG(problem.status.st_mode):
                raise ArtifactError(f"{self.root}/format {problem}; remove that file, and the store can be used again")
            raise EnvironmentProblem(f"cannot read {self.root}: format {problem}")
        if found in (_FORMAT, _EARLIER_FORMAT):
            return found != _FORMAT
        if found:
            told = found[:40].decode(errors="replace").strip()
            raise ArtifactError(f"{self.root} is a store of another format ({told!r} instead of 'kiln-store 2')")
        if self.root.is_dir():
            other = [name for name in os.listdir(self.root) if not name.startswith(".") and name not in _NAMES]
            if other:
                raise EnvironmentProblem(
                    f"{self.root} is not a store: it holds {other[0]!r}; name an empty or a new folder"
                )
            if (self.root / "index").exists():  # each entry is believed by its own digest and name alone
                self._warn(f"the store {self.root} has lost its format file; it is read as kiln-store 2")
        return True


def find_store(folder: Path) -> Path:
    """The store that `folder` is, or that lies in it as in a build's workspace.

    Raises:
        EnvironmentProblem: there is none.
    """
    for root in (folder / "store", folder):
        if (root / "format").is_file() or (root / "index").is_dir():
            return root
    raise EnvironmentProblem(f"{folder} is not a store; name a folder that builds have filled")


def _again_if_missing(look: Callable[[], T]) -> T:
    """Looks twice: a gc that is about to remove an object puts it back if it sees that it has been marked meanwhile."""
    try:
        return look()
    except FileNotFoundError:
        time.sleep(0.02)
        return look()


def _unlink(path: Path) -> bool:
    """Removes what is not a folder; False if nothing else is there."""
    try:
        os.unlink(path)
    except (FileNotFoundError, IsADirectoryError):
        return False
    return True


def _is_truncated(data: bytes) -> bool:
    """Whether a zstd frame ends too early."""
    reader = zstandard.ZstdDecompressor().decompressobj()
    try:
        for start in range(0, len(data), 1024):  # little at a time: a corrupt frame may stand for gigabytes
            reader.decompress(data[start : start + 1024])
    except zstandard.ZstdError:
        return False
    return not reader.eof


class _Broken(Exception):
    """An entry or object is not what its name says; the text says what it is instead, "is truncated" or "is corrupt".

    Attributes:
        status: of an object's file.
    """

    def __init__(self, reason: str, status: os.stat_result | None = None) -> None:
        super().__init__(reason)
        self.status = status
