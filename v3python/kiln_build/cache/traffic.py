"""What `kiln store` does with a cache: push, pull and stats."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TypeVar

from kiln_build.cache.access import Access
from kiln_build.cache.budget import Budget
from kiln_build.cache.layered import CONNECTIONS, open_layered
from kiln_build.cache.remote import Remote
from kiln_build.cache.transport import open_transport
from kiln_build.store.store import Store
from kiln_build.store.stores import open_store
from kiln_recipe.console.progress import Progress
from kiln_recipe.console.spelling import spell_size
from kiln_recipe.console.tables import plural
from kiln_recipe.errors import KilnError, UsageError

T = TypeVar("T")
_SENDERS = 4


@dataclass(frozen=True)
class Traffic:
    """What came of it.

    Attributes:
        cache: its address.
        images: that it was about.
        there: of them were there before: in the cache for push and stats, in the store for pull.
        moved: went or came.
        lost: did neither: the cache lacks them, the store does, or it failed.
        bytes: that went or came.
        problem: what the cache failed to do; "" if nothing.
    """

    cache: str
    images: int
    there: int
    moved: int
    lost: int
    bytes: int
    problem: str

    def spell(self) -> str:
        """A line for users."""
        text = f"{self.cache}: {plural(self.images, 'image')}, {self.there} were there, {self.moved} moved "
        text += f"({spell_size(self.bytes)}), {self.lost} not"
        return text + (f"; {self.problem}" if self.problem else "")


def push(local: Store, address: str, access: Access, keys: Sequence[str] | None, progress: Progress) -> Traffic:
    """Sends the images of these keys, or all, that a cache lacks."""
    if access.is_read_only:
        raise UsageError("KILN_CACHE_MODE=read-only: nothing may go to the cache; unset it to push")
    remote = _remote(address, access, progress)

    def send(key: str) -> str:
        found = remote.has(key)
        if found or found is None:
            return "there" if found else "lost"
        # Each thread has its own; what is broken is said by the next build.
        store = open_store(local.location, lambda text: None)
        try:
            stored = store.get(key)
            is_sent = stored is not None and remote.send(key, store.load(stored), stored.ir, stored.seconds)
        except KilnError:
            is_sent = False
        return "moved" if is_sent else "lost"

    return _count(local, address, remote, send, keys, _SENDERS, progress)


def stats(local: Store, address: str, access: Access, keys: Sequence[str] | None, progress: Progress) -> Traffic:
    """How many of the images of these keys, or of all that the store has, a cache has."""
    remote = _remote(address, access, progress)
    return _count(local, address, remote, lambda k: "there" if remote.has(k) else "lost", keys, CONNECTIONS, progress)


def pull(local: Store, address: str, access: Access, keys: Sequence[str] | None, progress: Progress) -> Traffic:
    """Fetches the images of these keys that the store lacks."""
    asked = list(keys or ())
    there = sum(local.get(key) is not None for key in asked)
    # By however little it is faster: nothing is compiled here in its place.
    store = open_layered(local, address, access, 0, progress.message)
    store.prefetch(asked, progress)
    counts, why = store.remote.counts, store.remote.budget.problem
    store.close(at_once=True)
    moved = counts["hits"]
    return Traffic(address, len(asked), there, moved, len(asked) - there - moved, counts["bytes in"], why)


ACTIONS: dict[str, Callable[[Store, str, Access, Sequence[str] | None, Progress], Traffic]] = {
    "push": push,
    "pull": pull,
    "stats": stats,
}


def _remote(address: str, access: Access, progress: Progress) -> Remote:
    budget = Budget(CONNECTIONS, 0.0)
    return Remote(open_transport(address, access, CONNECTIONS), access, budget, progress.message)


def _count(
    local: Store, address: str, remote: Remote, do: Callable[[str], str], keys: Sequence[str] | None, threads: int,
    progress: Progress,
) -> Traffic:  # fmt: skip
    asked = list(keys if keys is not None else local.keys())
    counts = {"there": 0, "moved": 0, "lost": 0}
    progress.start(len(asked), title="cache", unit="image")
    for outcome in _each(do, asked, threads):
        counts[outcome] += 1
        progress.advance(1)
    progress.close()
    remote.close()
    return Traffic(address, len(asked), **counts, bytes=remote.counts["bytes out"], problem=remote.budget.problem)


def _each(do: Callable[[str], T], keys: Iterable[str], threads: int) -> Iterator[T]:
    """What `do` gives for each, as it comes."""
    waiting, running = deque(keys), set[Future[T]]()
    with ThreadPoolExecutor(threads, "kiln-cache") as pool:
        while waiting or running:
            while waiting and len(running) < 4 * threads:
                running.add(pool.submit(do, waiting.popleft()))
            done, running = wait(running, None, FIRST_COMPLETED)
            yield from (future.result() for future in done)
