"""The store in a folder, shared by many processes, builds, users and machines; files.py says how it lies on disk."""

from __future__ import annotations

import contextlib
import os
import socket
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from kiln_build.base.folder import Unreadable
from kiln_build.store import durations, upkeep
from kiln_build.store.files import StoreFiles, print_warning
from kiln_build.store.store import Collected, Store, StoredImage, StoreInfo, Took, Verified
from kiln_recipe.errors import EnvironmentProblem
from kiln_recipe.images.image import Image

if TYPE_CHECKING:
    from kiln_recipe.console.progress import Progress

_CLAIM_PATIENCE = 600.0  # seconds; twice what a compile may take, unless KILN_TIMEOUT says otherwise
_ADDING_PATIENCE = 0.2  # seconds; it takes some microseconds to add a record, and a tenth of a second to write them all


class LocalStore(Store):
    """A `Store` in the folder `root`, which the first write creates. Cheap to make; each process makes its own.

    Args:
        root: the folder; may be absent or empty.
        warn: is given a sentence for each thing that was found broken and was removed.

    Raises:
        EnvironmentProblem: `root` holds something else; from any method: it is full, or cannot be read or written.
        ArtifactError: `root` is a store of another format.
    """

    def __init__(self, root: Path, warn: Callable[[str], None] = print_warning) -> None:
        self.root = Path(root)
        self.files, self._warn = StoreFiles(self.root, warn), warn

    @property
    def location(self) -> str:
        return str(self.root.absolute())

    # ---- images ----

    def get(self, key: str) -> StoredImage | None:
        return self._get(self.files.path("index", key))

    def holds(self, key: str) -> bool:
        return self.files.entry(self.files.path("index", key)) is not None

    def get_ir(self, ir: str) -> StoredImage | None:
        return self._get(self.files.path("ir", ir))

    def put(self, key: str, image: Image, ir: str, seconds: float) -> StoredImage:
        sizes: dict[str, int] = {}
        digest = self.files.put_object(image.code, sizes)
        ptx = None if image.ptx is None else self.files.put_object(image.ptx.encode(), sizes)
        stored = StoredImage(digest, image.info, ptx, ir, round(seconds, 4))
        self.files.put_entry(self.files.path("ir", ir), stored, sizes)
        self.files.put_entry(self.files.path("index", key), stored, sizes)
        return stored

    def alias(self, key: str, ir: str) -> StoredImage | None:
        entry = self.files.entry(self.files.path("ir", ir))
        if entry is None or not self.files.folder.touch(self.files.path("ir", ir)):
            return None
        self.files.put_entry(self.files.path("index", key), entry.image, entry.sizes)
        return entry.image

    def read(self, digest: str) -> bytes:
        return self.files.object(digest)

    def load(self, stored: StoredImage) -> Image:
        ptx = None if stored.ptx is None else self.read(stored.ptx).decode()
        return Image(self.read(stored.digest), stored.info, ptx)

    def forget(self, key: str, stored: StoredImage) -> None:
        self.files.remove_entry(self.files.path("index", key))
        self.files.remove_entry(self.files.path("ir", stored.ir))

    def keys(self) -> Iterator[str]:
        return (path.name for path, _, _ in self.files.list("index"))

    def prefetch(self, keys: Iterable[str], progress: Progress | None = None) -> None:
        """Nothing is afar."""

    def share(self, key: str) -> None:
        """Nobody else is to have it."""

    def close(self, *, at_once: bool = False) -> None:
        """Nothing goes on."""

    def refusal(self) -> str:
        return self.files.folder.refusal()

    # ---- who works on it ----

    def claim(
        self, ir: str, waiting: Callable[[], AbstractContextManager] = contextlib.nullcontext
    ) -> AbstractContextManager[bool]:
        self.files.begin()  # where the file system has no locks, nothing waits
        return self.files.folder.locked(self.files.path("locks", ir), waiting, _CLAIM_PATIENCE)

    def in_use(self) -> AbstractContextManager[bool]:
        self.files.begin()
        name = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        return self.files.folder.locked(self.root / "builds" / name)

    # ---- durations ----

    def durations(self, *, tidy: bool = False) -> dict[str, Took]:
        path = self.root / "durations"
        try:
            data = self.files.folder.read(path, durations.LARGEST)[0]
        except FileNotFoundError:
            return {}
        except Unreadable as problem:
            self._warn(f"{path} {problem}: nothing is known of what compiles took; remove that file")
            return {}
        damaged: list[str] = []
        known = durations.decode(data, damaged.append)
        done = "passed over"
        if tidy and (damaged or data.count(b"\n") > 2 * len(known) + 1000):
            with contextlib.suppress(EnvironmentProblem, FileNotFoundError, Unreadable), self._adding() as is_held:
                if is_held:
                    known = durations.decode(self.files.folder.read(path, durations.LARGEST)[0])
                    self.files.folder.write(path, b"".join(durations.encode(*pair) for pair in known.items()))
                    done = "removed"
        if damaged:
            self._warn(f"{path}: {damaged[0]}: {done}; such a variant is expected to take as long as its nearest kin")
        return known

    def record_duration(self, name: str, seconds: float, cpu: float | None = None) -> None:
        with contextlib.suppress(EnvironmentProblem):  # advice is not worth a failed build
            self.files.begin()
            with self._adding():
                self.files.folder.append(self.root / "durations", durations.encode(name, Took(seconds, cpu)))

    def _adding(self) -> AbstractContextManager[bool]:
        """Held by who adds a record, and by who writes the file anew: the record would be lost with the older file.
        Where a process stands still that has it, it is not waited for: at worst a record is lost."""
        return self.files.folder.locked(self.root / "locks" / "durations", patience=_ADDING_PATIENCE)

    # ---- upkeep ----

    def info(self) -> StoreInfo:
        return upkeep.info(self.files)

    def verify(self) -> Verified:
        return upkeep.verify(self.files)

    def collect(self, max_bytes: int) -> Collected:
        return upkeep.collect(self.files, max_bytes)

    # ---- inside ----

    def _get(self, path: Path) -> StoredImage | None:
        entry = self.files.entry(path)
        # The mark must come after the reading, and fail if gc has taken the entry meanwhile.
        return entry.image if entry is not None and self.files.folder.touch(path) else None
