"""Content-addressed images, shared by many processes, builds, users and machines.

    <root>/
      format                      "kiln-store 1" and a newline
      index/<k2>/<key>            an entry: what the variant with this key was compiled to
      ir/<i2>/<ir>                an entry: what an IR with this digest was compiled to
      objects/<d2>/<digest>.zst   one zstd frame; <digest> is the SHA-256 of what it decodes to
      locks/<ir>                  locked by the process that compiles this IR
      builds/<name>               locked by a running build; its mtime is when the build began
      gc                          locked by the one gc that may run
      durations                   lines of JSON, ["variant", seconds]; advice for the scheduler, the last line wins
    entry = JSON of `_Entry`;  <k2>, <i2>, <d2> = the first two digits of the name that follows

Every file but `durations` and the locks appears by rename, complete, and never changes: a kill -9 leaves at worst a
file under a temporary name, and an image that is written twice is the same file. Nothing is synced to disk: what a
power cut truncates is found by its size or digest, removed, and compiled again. An entry's mtime is its last use, and
that is all that `gc` needs to know.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
import zstandard

from kiln.errors import ArtifactError, EnvironmentProblem
from kiln.folder import SharedFolder
from kiln.image import Image, ImageInfo

T = TypeVar("T")

_FORMAT = b"kiln-store 1\n"
_NAMES = {"format", "index", "ir", "objects", "locks", "builds", "gc", "durations", "lost+found"}
_DIGEST = re.compile(r"[0-9a-f]{64}")
_LEVEL = 3  # cubins shrink to a third at 0.3 ms each; what is released is compressed anew
_LARGEST_OBJECT = 1 << 28  # bytes; a corrupt frame must not make us allocate what it claims
_ABANDONED_NS = 3600 * 10**9  # a temporary file of that age belongs to nobody


class StoredImage(msgspec.Struct, frozen=True):
    """An image that lies in a store.

    Attributes:
        digest: SHA-256 of its code, for `Store.read`.
        info: facts of the image.
        ptx: SHA-256 of its PTX, for `Store.read`, or None.
        ir: digest of the IR that it was compiled from.
        seconds: what compiling it took.
    """

    digest: str
    info: ImageInfo
    ptx: str | None
    ir: str
    seconds: float


class _Entry(msgspec.Struct, frozen=True):
    image: StoredImage
    sizes: dict[str, int]  # of the stored objects: finds a truncated one without reading it


@dataclass(frozen=True)
class StoreInfo:
    """Counts of a store; `bytes` is what its objects and entries take."""

    root: str
    variants: int
    irs: int
    objects: int
    bytes: int
    running_builds: int


@dataclass(frozen=True)
class Verified:
    """What `Store.verify` looked at, and what it had to remove."""

    objects: int
    entries: int
    removed_objects: tuple[str, ...]
    removed_entries: tuple[str, ...]


@dataclass(frozen=True)
class Collected:
    """What `Store.gc` removed, what the store takes now, and how much of that running builds hold on to, in bytes."""

    removed_images: int
    removed_bytes: int
    bytes: int
    protected_bytes: int


def _print_warning(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr, flush=True)


class Store:
    """A store in the folder `root`, which the first write creates. Cheap to make; each process makes its own.

    Args:
        root: the folder; may be absent or empty.
        warn: is given a sentence for each thing that was found broken and was removed.

    Raises:
        EnvironmentProblem: `root` holds something else; from any method: it is full, or cannot be read or written.
        ArtifactError: `root` is a store of another format.
    """

    def __init__(self, root: Path, warn: Callable[[str], None] = _print_warning) -> None:
        self.root = Path(root)
        self.warn = warn
        self._folder = SharedFolder(self.root)
        self._is_new = self._check_format()
        self._compressor = zstandard.ZstdCompressor(level=_LEVEL)
        self._decompressor = zstandard.ZstdDecompressor()
        self._decoder = msgspec.json.Decoder(_Entry)

    # ---- images ----

    def get(self, key: str) -> StoredImage | None:
        """The image of the variant with this key, or None. Counts as a use."""
        return self._get(self._path("index", key))

    def get_ir(self, ir: str) -> StoredImage | None:
        """An image that was compiled from this IR, or None. Counts as a use."""
        return self._get(self._path("ir", ir))

    def put(self, key: str, image: Image, ir: str, seconds: float) -> StoredImage:
        """Keeps an image under its key and its IR."""
        sizes: dict[str, int] = {}
        digest = self._put_object(image.code, sizes)
        ptx = None if image.ptx is None else self._put_object(image.ptx.encode(), sizes)
        stored = StoredImage(digest, image.info, ptx, ir, round(seconds, 4))
        self._put_entry(self._path("ir", ir), _Entry(stored, sizes))
        self._put_entry(self._path("index", key), _Entry(stored, sizes))
        return stored

    def alias(self, key: str, ir: str) -> StoredImage | None:
        """Keeps the image of this IR under another key; None if there is no such image (any more)."""
        entry = self._checked(self._path("ir", ir))
        if entry is None or not self._folder.touch(self._path("ir", ir)):
            return None
        self._put_entry(self._path("index", key), entry)
        return entry.image

    def read(self, digest: str) -> bytes:
        """The code or PTX with this digest, verified.

        Raises:
            ArtifactError: it is missing or corrupt; a corrupt one is removed, so that the next build makes it anew.
        """
        path = self._path("objects", digest)
        try:
            return _again_if_missing(lambda: self._decode(path, digest))
        except FileNotFoundError:
            raise ArtifactError(f"object {digest} is missing from the store {self.root}; build again") from None
        except _Corrupt:
            self._remove(path, f"object {digest} of the store {self.root} is corrupt")
            raise ArtifactError(f"object {digest} of the store {self.root} was corrupt; build again") from None

    def load(self, stored: StoredImage) -> Image:
        """The whole image, verified; errors as in `read`."""
        ptx = None if stored.ptx is None else self.read(stored.ptx).decode()
        return Image(self.read(stored.digest), stored.info, ptx)

    # ---- who works on it ----

    def claim(
        self, ir: str, waiting: Callable[[], AbstractContextManager] = contextlib.nullcontext
    ) -> AbstractContextManager[None]:
        """Holds off every other process that claims this IR, until left; waits until it may, within `waiting()`.

        Where the file system has no locks it does not wait: at worst an image is compiled twice, to equal bytes.
        """
        self._begin()
        return self._folder.locked(self._path("locks", ir), waiting)

    def in_use(self) -> AbstractContextManager[None]:
        """Protects from `gc` what is looked up or put from now until left, by whatever process. Builds enter it."""
        self._begin()
        name = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        return self._folder.locked(self.root / "builds" / name)

    # ---- durations ----

    def durations(self) -> dict[str, float]:
        """Seconds that variants took, by name. Advice only: may lack some, and be old."""
        path = self.root / "durations"
        try:
            lines = path.read_bytes().splitlines()
        except OSError:
            return {}
        known: dict[str, float] = {}
        decoder = msgspec.json.Decoder(tuple[str, float])
        for line in lines:
            with contextlib.suppress(msgspec.DecodeError):  # torn by a kill, or by two machines that wrote at once
                name, seconds = decoder.decode(line)
                known[name] = seconds
        if len(lines) > 2 * len(known) + 1000:
            with contextlib.suppress(EnvironmentProblem):
                self._folder.write(path, b"".join(msgspec.json.encode(pair) + b"\n" for pair in known.items()))
        return known

    def record_duration(self, name: str, seconds: float) -> None:
        """Remembers what a variant took, for every later build."""
        self._begin()
        with contextlib.suppress(EnvironmentProblem):  # advice is not worth a failed build
            self._folder.append(self.root / "durations", msgspec.json.encode((name, round(seconds, 3))) + b"\n")

    # ---- housekeeping ----

    def info(self) -> StoreInfo:
        """Counts and sizes; opens no file."""
        sizes = {kind: [size for _, size, _ in self._list(kind)] for kind in ("index", "ir", "objects")}
        return StoreInfo(
            root=str(self.root),
            variants=len(sizes["index"]),
            irs=len(sizes["ir"]),
            objects=len(sizes["objects"]),
            bytes=sum(map(sum, sizes.values())),
            running_builds=len(self._running_builds()),
        )

    def verify(self) -> Verified:
        """Reads everything, and removes what is corrupt and what refers to it."""
        objects = entries = 0
        removed_objects, removed_entries = [], []
        for path, _, _ in self._list("objects"):
            objects += 1
            digest = path.stem
            try:
                self._decode(path, digest)
            except FileNotFoundError:
                continue
            except _Corrupt:
                self._remove(path, f"object {digest} of the store {self.root} is corrupt")
                removed_objects.append(digest)
        for kind in ("index", "ir"):
            for path, _, _ in self._list(kind):
                entries += 1
                if self._checked(path) is None:
                    removed_entries.append(f"{kind}/{path.name}")
        return Verified(objects, entries, tuple(removed_objects), tuple(removed_entries))

    def gc(self, max_bytes: int) -> Collected:
        """Removes the least recently used images until the store takes at most `max_bytes`.

        What running builds have looked up or put stays, even if the store is larger then. Also clears away what killed
        processes left behind.
        """
        self._begin()
        with self._folder.locked(self.root / "gc"):
            return self._collect(max_bytes)

    def _collect(self, max_bytes: int) -> Collected:
        now = self._folder.now_ns()
        protected_from = min([now, *self._running_builds()])
        self._clear_abandoned(now)

        uses: dict[str, list[tuple[Path, int, int]]] = {}  # the entries of an image, by its digest
        members: dict[str, set[str]] = {}  # the objects of an image
        for kind in ("index", "ir"):
            for path, size, mtime in self._list(kind):
                entry = self._checked(path)
                if entry is not None:
                    uses.setdefault(entry.image.digest, []).append((path, size, mtime))
                    members.setdefault(entry.image.digest, set()).update(entry.sizes)
        holders: dict[str, int] = {}  # how many images have an object
        for objects in members.values():
            for digest in objects:
                holders[digest] = holders.get(digest, 0) + 1
        stored = {path.stem: (path, size, mtime) for path, size, mtime in self._list("objects")}

        total = before = sum(size for _, size, _ in stored.values()) + sum(
            size for entries in uses.values() for _, size, _ in entries
        )
        removed = protected = 0
        for image, entries in sorted(uses.items(), key=lambda item: max(mtime for _, _, mtime in item[1])):
            if max(mtime for _, _, mtime in entries) >= protected_from:
                protected += sum(size for _, size, _ in entries)
                protected += sum(stored[digest][1] for digest in members[image] if digest in stored)
            elif total > max_bytes:
                gone = [size for path, size, mtime in entries if self._folder.remove_unless_used(path, mtime)]
                total -= sum(gone)
                if len(gone) < len(entries):  # somebody has just come for it
                    continue
                removed += 1
                for digest in members[image]:
                    holders[digest] -= 1
                    if not holders[digest]:
                        total -= self._collect_object(stored.pop(digest, None), protected_from)
        for digest, found in stored.items():  # put by a process that died before it wrote the entry
            if digest not in holders and found[2] < now - _ABANDONED_NS:
                total -= self._collect_object(found, protected_from)
        return Collected(removed, before - total, total, protected)

    def _collect_object(self, found: tuple[Path, int, int] | None, protected_from: int) -> int:
        if found is None or found[2] >= protected_from:
            return 0
        path, size, mtime = found
        return size if self._folder.remove_unless_used(path, mtime) else 0

    def _clear_abandoned(self, now: int) -> None:
        for kind in ("index", "ir", "objects"):
            for file in self._folder.files(kind, hidden=True):
                with contextlib.suppress(OSError):
                    if file.stat().st_mtime_ns < now - _ABANDONED_NS:
                        os.unlink(file.path)
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self.root / "locks"):
                self._folder.is_locked(self.root / "locks" / name)  # removes those that nobody holds

    def _running_builds(self) -> list[int]:
        """When each of them began, in nanoseconds."""
        began = []
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self.root / "builds"):
                path = self.root / "builds" / name
                with contextlib.suppress(FileNotFoundError):
                    mtime = path.stat().st_mtime_ns
                    if self._folder.is_locked(path):
                        began.append(mtime)
        return began

    # ---- files ----

    def _path(self, kind: str, name: str) -> Path:
        if not _DIGEST.fullmatch(name):
            raise ValueError(f"{name!r} is no digest of 64 hexadecimal digits")
        if kind == "locks":
            return self.root / kind / name
        return self.root / kind / name[:2] / (f"{name}.zst" if kind == "objects" else name)

    def _list(self, kind: str) -> Iterator[tuple[Path, int, int]]:
        """Path, size and mtime (ns) of each file of a kind."""
        for file in self._folder.files(kind):
            with contextlib.suppress(FileNotFoundError):
                status = file.stat()
                yield Path(file.path), status.st_size, status.st_mtime_ns

    def _get(self, path: Path) -> StoredImage | None:
        entry = self._checked(path)
        # The mark must come after the reading, and fail if gc has taken the entry meanwhile.
        return entry.image if entry is not None and self._folder.touch(path) else None

    def _checked(self, path: Path) -> _Entry | None:
        """The entry, if it and its objects are whole; what is not is removed."""
        try:
            data = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise self._folder.problem("read", path, error) from error
        try:
            entry = self._decoder.decode(data)
            files = [(self._path("objects", digest), size) for digest, size in entry.sizes.items()]
        except ValueError:  # msgspec's errors are ValueErrors too
            self._remove(path, f"entry {path.name} of the store {self.root} is corrupt or of another version")
            return None
        for file, size in files:
            try:
                found = _again_if_missing(lambda file=file: os.stat(file).st_size)
            except FileNotFoundError:
                self._remove(path, f"object {file.stem} is missing from the store {self.root}")
                return None
            # Another zstd gives another size: not the size, but what is in it, makes an object wrong.
            if found != size and not self._is_whole(file, file.stem):
                self._remove(file, f"object {file.stem} of the store {self.root} has {found} bytes instead of {size}")
                self._remove(path, None)
                return None
        return entry

    def _is_whole(self, path: Path, digest: str) -> bool:
        try:
            self._decode(path, digest)
            return True
        except (_Corrupt, FileNotFoundError):
            return False

    def _decode(self, path: Path, digest: str) -> bytes:
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self._folder.problem("read", path, error) from error
        try:
            if not 0 <= zstandard.frame_content_size(data) <= _LARGEST_OBJECT:
                raise _Corrupt
            content = self._decompressor.decompress(data)
        except zstandard.ZstdError:
            raise _Corrupt from None
        if hashlib.sha256(content).hexdigest() != digest:
            raise _Corrupt
        return content

    def _put_object(self, content: bytes, sizes: dict[str, int]) -> str:
        digest = hashlib.sha256(content).hexdigest()
        path = self._path("objects", digest)
        # The mark keeps a gc that is at work from removing it between here and the entry.
        if self._folder.touch(path) and self._is_whole(path, digest):
            with contextlib.suppress(FileNotFoundError):
                sizes[digest] = os.stat(path).st_size
                return digest
        data = self._compressor.compress(content)
        sizes[digest] = len(data)
        self._begin()
        self._folder.write(path, data)
        return digest

    def _put_entry(self, path: Path, entry: _Entry) -> None:
        self._begin()
        self._folder.write(path, msgspec.json.encode(entry))

    def _begin(self) -> None:
        """Before the first write: a new store says what it is."""
        if self._is_new:
            self._folder.write(self.root / "format", _FORMAT)
            self._is_new = False

    def _check_format(self) -> bool:
        """Whether there is no store yet."""
        try:
            found = (self.root / "format").read_bytes()
        except FileNotFoundError:
            found = b""
        except OSError as error:
            raise self._folder.problem("read", self.root, error) from error
        if found == _FORMAT:
            return False
        if found:
            told = found[:40].decode(errors="replace").strip()
            raise ArtifactError(f"{self.root}: a store of another format ({told!r} instead of 'kiln-store 1')")
        if self.root.is_dir():
            other = [name for name in os.listdir(self.root) if not name.startswith(".") and name not in _NAMES]
            if other:
                raise EnvironmentProblem(f"{self.root}: no store, it holds {other[0]!r}; name an empty or a new folder")
        return True

    def _remove(self, path: Path, reason: str | None) -> None:
        try:
            os.unlink(path)
            consequence = "removed, it will be compiled anew"
        except FileNotFoundError:
            return
        except OSError as error:
            consequence = f"it cannot be removed ({error.strerror})"
        if reason:
            self.warn(f"{reason}: {consequence}")


def _again_if_missing(look: Callable[[], T]) -> T:
    """Looks twice: a gc that is about to remove an object puts it back if it sees that it has been marked meanwhile."""
    try:
        return look()
    except FileNotFoundError:
        time.sleep(0.02)
        return look()


class _Corrupt(Exception):
    """An object is not what its name says."""
