"""What `kiln store` does with a cache: push, pull and stats."""

from __future__ import annotations

import threading
from collections import Counter, deque
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
from kiln_recipe.errors import EnvironmentProblem, KilnError, UsageError

T = TypeVar("T")
_SENDERS = 4


@dataclass(frozen=True)
class Traffic:
    """What came of a command.

    Attributes:
        cache: its address.
        images: how many the command was about.
        problem: what the cache failed to do; "" if nothing.
    """

    cache: str
    images: int
    problem: str

    def spell(self) -> str:
        """A line for users: what was counted."""
        raise NotImplementedError


@dataclass(frozen=True)
class Pushed(Traffic):
    """What came of a push.

    Attributes:
        there: images that the cache had before.
        sent: images that it has now; `bytes`: of them and their entries.
        not_sent: images that the store lacks, or that the cache did not take.
    """

    there: int
    sent: int
    bytes: int
    not_sent: int

    def spell(self) -> str:
        return (
            f"{self.cache}: {plural(self.images, 'image')}, {self.there} already there, {self.sent} sent "
            f"({spell_size(self.bytes)}), {self.not_sent} not sent"
        )


@dataclass(frozen=True)
class Pulled(Traffic):
    """What came of a pull.

    Attributes:
        there: images that the store had before.
        fetched: images that it has now; `bytes`: that came, what was not believed included.
        not_fetched: images that neither has, `unusable` among them: those that the cache has and nobody should use.
    """

    there: int
    fetched: int
    bytes: int
    not_fetched: int
    unusable: int

    def spell(self) -> str:
        text = f"{self.cache}: {plural(self.images, 'image')}, {self.there} already in the store, {self.fetched} "
        text += f"fetched ({spell_size(self.bytes)}), {self.not_fetched} not fetched"
        return text + (f", {self.unusable} of them unusable" if self.unusable else "")


@dataclass(frozen=True)
class Counted(Traffic):
    """What a cache has.

    Attributes:
        there: images that it has.
        missing: images that it does not have, or in an entry that would not be believed.
        unknown: images that it did not answer for.
    """

    there: int
    missing: int
    unknown: int

    def spell(self) -> str:
        text = f"{self.cache} has {self.there} of {plural(self.images, 'image')}"
        return text + (f", and did not answer for {self.unknown}" if self.unknown else "")


def push(local: Store, address: str, access: Access, keys: Sequence[str] | None, progress: Progress) -> Pushed:
    """Sends the images of these keys, or all, that a cache lacks.

    Raises:
        UsageError: nothing may go to the cache.
    """
    if access.is_read_only:
        raise UsageError("KILN_CACHE_MODE=read-only: nothing may go to the cache; unset it to push")
    remote = _remote(address, access, progress)
    own = threading.local()

    def send(key: str) -> str:
        found = remote.has(key)
        if found or found is None:
            return "there" if found else "not sent"
        try:
            if not hasattr(own, "store"):  # each thread has one
                own.store = open_store(local.location, lambda text: progress.message(f"warning: {text}"))
            store: Store = own.store
            stored = store.get(key)
            is_sent = stored is not None and remote.send(key, store.load(stored), stored.ir, stored.seconds)
        except KilnError as error:
            progress.message(f"warning: the image of {key[:16]} cannot be sent: {error}")
            is_sent = False
        return "sent" if is_sent else "not sent"

    asked, counts = _each_counted(local, send, keys, _SENDERS, progress)
    remote.close()
    return Pushed(
        address, asked, remote.budget.problem, counts["there"], counts["sent"], remote.counts["bytes out"],
        counts["not sent"],
    )  # fmt: skip


def stats(local: Store, address: str, access: Access, keys: Sequence[str] | None, progress: Progress) -> Counted:
    """How many of the images of these keys, or of all that the store has, a cache has."""
    remote = _remote(address, access, progress)
    asked, counts = _each_counted(local, remote.has, keys, CONNECTIONS, progress)
    remote.close()
    return Counted(address, asked, remote.budget.problem, counts[True], counts[False], counts[None])


def pull(local: Store, address: str, access: Access, keys: Sequence[str] | None, progress: Progress) -> Pulled:
    """Fetches the images of these keys that the store lacks.

    Raises:
        EnvironmentProblem: it lacks some, and cannot be written.
    """
    asked = list(keys or ())
    there = _there(local, asked)
    if there < len(asked) and (reason := local.refusal()):
        raise EnvironmentProblem(
            f"the store {local.location} cannot be written ({reason}), so nothing can be fetched into it; name "
            "another with --store"
        )
    # By however little it is faster: nothing is compiled here in its place.
    store = open_layered(local, address, access, 0, progress.message)
    store.prefetch(asked, progress)
    remote = store.remote
    remote.close()
    # What was still on its way when the cache was given up is counted there, and is not in the store.
    now = _there(local, asked)
    unusable = remote.counts["unusable"]
    problem = remote.budget.problem or (
        f"it has {plural(unusable, 'image')} that nobody should use" if unusable else ""
    )
    return Pulled(
        address, len(asked), problem, there, now - there, remote.counts["bytes in"], len(asked) - now, unusable,
    )  # fmt: skip


ACTIONS: dict[str, Callable[[Store, str, Access, Sequence[str] | None, Progress], Traffic]] = {
    "push": push,
    "pull": pull,
    "stats": stats,
}


def _there(local: Store, keys: Iterable[str]) -> int:
    return sum(local.get(key) is not None for key in keys)


def _remote(address: str, access: Access, progress: Progress) -> Remote:
    budget = Budget(CONNECTIONS, 0.0)
    return Remote(open_transport(address, access, CONNECTIONS), access, budget, progress.message)


def _each_counted(
    local: Store, do: Callable[[str], T], keys: Sequence[str] | None, threads: int, progress: Progress
) -> tuple[int, Counter[T]]:
    """How many images there are, and how often `do` gave what for their keys."""
    asked = list(keys if keys is not None else local.keys())
    counts: Counter[T] = Counter()
    progress.start(len(asked), title="cache", unit="image")
    for outcome in _each(do, asked, threads):
        counts[outcome] += 1
        progress.advance(1)
    progress.close()
    return len(asked), counts


def _each(do: Callable[[str], T], keys: Iterable[str], threads: int) -> Iterator[T]:
    """What `do` gives for each, as it comes."""
    waiting, running = deque(keys), set[Future[T]]()
    with ThreadPoolExecutor(threads, "kiln-cache") as pool:
        while waiting or running:
            while waiting and len(running) < 4 * threads:
                running.add(pool.submit(do, waiting.popleft()))
            done, running = wait(running, None, FIRST_COMPLETED)
            yield from (future.result() for future in done)
