"""What a store of compiled images is to those who use it: `Store`, and the plain data that it gives.

An implementation is a module beside this one, and a line in `stores.py`. tests/store_contract.py holds every
implementation to what is written here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from kiln_recipe.images.image import Image, ImageInfo

if TYPE_CHECKING:
    from kiln_recipe.console.progress import Progress


class StoredImage(msgspec.Struct, frozen=True):
    """An image that is in a store.

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


class Took(NamedTuple):
    """What compiling a variant took: seconds by the clock, without waits for others, and seconds of processors, with
    those of the assemblers that it ran; None where only the clock's were recorded."""

    seconds: float
    cpu: float | None = None

    @property
    def work(self) -> float:
        """Seconds that it takes on a processor of its own: what else ran at the time lengthens only the other."""
        return self.seconds if self.cpu is None else min(self.seconds, self.cpu)


def is_time(seconds: float) -> bool:
    """Whether a number that a file or another machine states can be how long something took."""
    return 0 <= seconds < math.inf


@dataclass(frozen=True)
class StoreInfo:
    """Counts of a store; `root` says where it is, and `bytes` what its objects and entries take."""

    root: str
    variants: int
    irs: int
    objects: int
    bytes: int
    running_builds: int


@dataclass(frozen=True)
class Verified:
    """What `verify` looked at, and what it had to remove. `earlier`: entries of an earlier format, left alone."""

    objects: int
    entries: int
    earlier: int
    removed_objects: tuple[str, ...]
    removed_entries: tuple[str, ...]


@dataclass(frozen=True)
class Collected:
    """What `collect` removed, what the store takes now, and how much of that running builds hold on to, in bytes."""

    removed_images: int
    removed_bytes: int
    bytes: int
    protected_bytes: int


class Store(Protocol):
    """Content-addressed images.

    Names: a key (`CompileSpec.key`) names a variant's image, an IR's digest names an image that was compiled from it,
    and a digest names bytes. All three are 64 hexadecimal digits; anything else raises ValueError.

    Concurrency: any number of processes, on any number of machines, use one store at the same time, each through an
    object of its own. What one has put, the next look-up of any other finds. Equal names mean equal bytes, so two that
    put the same thing do no harm to each other. One object is used by one thread at a time.

    Interruption: a process may be killed anywhere. What it had put before is found; what it was putting is either found
    whole, or not found. Its claims end with it, and so does its `in_use`.

    Damage: nothing is believed that was not checked. What is missing, truncated or corrupt is removed, the store's
    `warn` hears a sentence about it, and the look-up is a miss, so that the image is compiled again.

    Raises, from every method: EnvironmentProblem, if the store cannot be reached, read or written, or is full.
    """

    @property
    def location(self) -> str:
        """Where it is: what `stores.open_store` opens the same store by, in any process that can reach it."""

    # ---- images ----

    def get(self, key: str) -> StoredImage | None:
        """The image of the variant with this key, or None. Counts as a use."""

    def holds(self, key: str) -> bool:
        """Whether the store itself has an image of the variant with this key. Counts as no use."""

    def get_ir(self, ir: str) -> StoredImage | None:
        """An image that was compiled from this IR, or None. Counts as a use."""

    def put(self, key: str, image: Image, ir: str, seconds: float) -> StoredImage:
        """Keeps an image under its key and its IR. Both find it once this returns, and not before its bytes are there.
        What was damaged of it is replaced."""

    def alias(self, key: str, ir: str) -> StoredImage | None:
        """Keeps the image of this IR under another key; None if there is no such image (any more)."""

    def read(self, digest: str) -> bytes:
        """The code or PTX with this digest, verified.

        Raises:
            ArtifactError: it is missing, truncated or corrupt, and removed, so that the next build makes it anew.
        """

    def load(self, stored: StoredImage) -> Image:
        """The whole image, verified; errors as in `read`."""

    def forget(self, key: str, stored: StoredImage) -> None:
        """Removes the entries by which this image is found; the next look-up of them is a miss."""

    def keys(self) -> Iterator[str]:
        """The keys of all images, in no order. Counts as no use."""

    def prefetch(self, keys: Iterable[str], progress: Progress | None = None) -> None:
        """Announces keys that will be looked up, for a store that has to get images from afar. The caller may have
        claims of none of them."""

    def share(self, key: str) -> None:
        """Announces that a process which has this store by its location has put, or found, the image of this key: a
        store in front of others passes it on."""

    def close(self, *, at_once: bool = False) -> None:
        """Ends what a store does in the background; the object is used no more. Never fails a build.

        Args:
            at_once: nothing is waited for.
        """

    def refusal(self) -> str:
        """Why nothing can be put here, "Read-only file system"; "" if it can be, or is not known beforehand."""
        return ""

    # ---- who works on it ----

    def claim(self, ir: str, waiting: Callable[[], AbstractContextManager] = ...) -> AbstractContextManager[bool]:
        """Holds off every other process that claims this IR, until left; waits until it may, within `waiting()`, which
        is not entered if there is nothing to wait for. Claims of other IRs are not held off.

        A store that cannot lock does not wait, and no store waits for ever: who has the claim may stand still. Gives
        False then. At worst an image is compiled twice, to equal bytes.
        """

    def in_use(self) -> AbstractContextManager[bool]:
        """Protects from `collect` what is looked up or put from now until left, by any process. Builds enter it."""

    # ---- durations ----

    def durations(self, *, tidy: bool = False) -> dict[str, Took]:
        """What variants took, by name. Advice only: may lack some, and be old. `tidy`: what is damaged, or said again
        since, is removed from the records."""

    def record_duration(self, name: str, seconds: float, cpu: float | None = None) -> None:
        """Remembers what a variant took, as `Took` has it, for every later build. Never fails a build."""

    # ---- upkeep ----

    def info(self) -> StoreInfo:
        """Counts and sizes."""

    def verify(self) -> Verified:
        """Reads everything, and removes what is broken and what refers to it."""

    def collect(self, max_bytes: int) -> Collected:
        """Removes the least recently used images until the store takes at most `max_bytes`.

        What running builds have looked up or put stays, even if the store is larger then. Also clears away what killed
        processes left behind.
        """
