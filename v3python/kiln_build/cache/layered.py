"""A local store with a cache behind it. What the cache has is fetched into the local store, many images at once; what
is compiled goes to the cache in the background. Workers know the local store alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext

from kiln_build.cache.access import Access
from kiln_build.cache.budget import Budget
from kiln_build.cache.entry import Entry
from kiln_build.cache.remote import Remote
from kiln_build.cache.transport import open_transport
from kiln_build.cache.uploads import Uploads
from kiln_build.store.store import Collected, Store, StoredImage, StoreInfo, Took, Verified
from kiln_recipe.console.progress import Progress
from kiln_recipe.console.spelling import spell_size
from kiln_recipe.console.tables import plural
from kiln_recipe.images.image import Image

CONNECTIONS = 16
_AHEAD = 64  # images that are fetched or wait to be put at once
_FLUSH = 10.0  # seconds that a build waits at its end for what has yet to go
_SECONDS = 2.5  # of a processor that an image takes to compile, about
_NAMED = 20  # things that are not believed, each said; more are counted

_Fetched = tuple[Entry, Image] | None


class LayeredStore(Store):
    """A `Store`: `local`, and what a cache adds to it.

    Args:
        address: what the cache is called in sentences.
        remote: makes it, given what hears of things that are not believed.
        say: is given what users are to know.
    """

    def __init__(
        self,
        local: Store,
        address: str,
        remote: Callable[[Callable[[str], None]], Remote],
        say: Callable[[str], None],
    ) -> None:
        self.local, self._address, self._say = local, address, say
        self._heard: deque[str] = deque()  # by threads; said by the one that uses this store
        self._doubted = 0
        self.remote = remote(self._heard.append)
        self._uploads = Uploads(self.remote, local.location)
        self._asked: set[str] = set()
        self._is_over = False
        self._told = ""  # why the cache is left alone, or asked no more

    @property
    def location(self) -> str:
        return self.local.location

    # ---- images ----

    def get(self, key: str) -> StoredImage | None:
        if (stored := self.local.get(key)) is not None or key in self._asked:
            return stored
        self.prefetch([key])
        return self.local.get(key)

    def holds(self, key: str) -> bool:
        return self.local.holds(key)

    def prefetch(self, keys: Iterable[str], progress: Progress | None = None) -> None:
        # In the order of their keys, which is none: what comes first tells how the rest will be.
        missing = sorted(key for key in keys if key not in self._asked and self.local.get(key) is None)
        self._asked.update(missing)
        if not missing or self._is_asked_no_more or self.local.refusal():
            return
        if progress is not None:
            progress.start(len(missing), title="cache", unit="image")
        try:
            for key, found in self._fetch(missing):
                if found is not None:
                    entry, image = found
                    self.local.put(key, image, entry.ir, entry.seconds)
                if progress is not None:
                    progress.advance(1)
        finally:
            if progress is not None:
                progress.close()
            self._tell()

    def share(self, key: str) -> None:
        self._uploads.add(key)
        self._tell()

    def get_ir(self, ir: str) -> StoredImage | None:
        return self.local.get_ir(ir)

    def put(self, key: str, image: Image, ir: str, seconds: float) -> StoredImage:
        return self.local.put(key, image, ir, seconds)

    def alias(self, key: str, ir: str) -> StoredImage | None:
        return self.local.alias(key, ir)

    def read(self, digest: str) -> bytes:
        return self.local.read(digest)

    def load(self, stored: StoredImage) -> Image:
        return self.local.load(stored)

    def forget(self, key: str, stored: StoredImage) -> None:
        self._asked.add(key)  # what the cache has of it may be the same
        self.local.forget(key, stored)

    def keys(self) -> Iterator[str]:
        return self.local.keys()

    def refusal(self) -> str:
        return self.local.refusal()

    # ---- who works on it, durations, upkeep: the local store's ----

    def claim(
        self, ir: str, waiting: Callable[[], AbstractContextManager] = nullcontext
    ) -> AbstractContextManager[bool]:
        return self.local.claim(ir, waiting)

    def in_use(self) -> AbstractContextManager[bool]:
        return self.local.in_use()

    def durations(self, *, tidy: bool = False) -> dict[str, Took]:
        return self.local.durations(tidy=tidy)

    def record_duration(self, name: str, seconds: float, cpu: float | None = None) -> None:
        self.local.record_duration(name, seconds, cpu)

    def info(self) -> StoreInfo:
        return self.local.info()

    def verify(self) -> Verified:
        return self.local.verify()

    def collect(self, max_bytes: int) -> Collected:
        return self.local.collect(max_bytes)

    def close(self, *, at_once: bool = False) -> None:
        """Waits a little for what has yet to go, and says what came and went."""
        if self._is_over:
            return
        self._is_over = True
        self._uploads.flush(0.0 if at_once else _FLUSH)
        self._tell()
        counts = self.remote.counts
        text = f"cache {self._address}: {plural(counts['hits'], 'image')} fetched ({spell_size(counts['bytes in'])}), "
        text += f"{counts['misses']} not there, {counts['sent']} sent ({spell_size(counts['bytes out'])})"
        if counts["unusable"]:
            text += f", {counts['unusable']} unusable"
        if self._uploads.left:
            text += f"; {self._uploads.left} not sent: `kiln store push` sends them"
        self._say(text)
        self.remote.close()

    # ---- inside ----

    @property
    def _is_asked_no_more(self) -> bool:
        return self.remote.budget.is_spent or bool(self.remote.budget.slow)

    def _fetch(self, keys: list[str]) -> Iterator[tuple[str, _Fetched]]:
        """What the cache has of these, as it comes; ends early if the cache is to be left alone."""
        budget, pool = self.remote.budget, ThreadPoolExecutor(min(CONNECTIONS, len(keys)), "kiln-cache")
        began, came, answers = budget.clock(), 0, 0
        waiting = deque(keys)
        running: dict[Future[_Fetched], str] = {}
        try:
            while (waiting or running) and not self._is_asked_no_more:
                while waiting and len(running) < _AHEAD:
                    key = waiting.popleft()
                    running[pool.submit(self.remote.fetch, key)] = key
                done, _ = wait(running, 1.0, FIRST_COMPLETED)
                for future in done:
                    found = future.result()
                    came += found is not None
                    answers += 1
                    yield running.pop(future), found
                self._tell()
                budget.gave(came, answers, budget.clock() - began)
        finally:  # what is under way ends by itself within seconds, and nobody waits for it
            pool.shutdown(wait=False, cancel_futures=True)

    def _tell(self) -> None:
        """Says what threads have heard, and once that the cache is left alone."""
        while self._heard:
            self._doubted += 1
            text = self._heard.popleft()
            if self._doubted <= _NAMED:
                self._say(f"warning: {text}")
            elif self._doubted == _NAMED + 1:
                self._say("warning: more entries of the cache are unusable; they are counted at the end")
        budget = self.remote.budget
        why = budget.why or (budget.slow if not self._told else "")
        if why and why != self._told:
            self._told = why
            self._say(f"the cache {self._address} is not asked any more: {why}")


def open_layered(local: Store, address: str, access: Access, workers: int, say: Callable[[str], None]) -> LayeredStore:
    """A local store with the cache at an address behind it.

    Args:
        workers: how many images this machine compiles at once: a cache that is slower than they are is left alone.

    Raises:
        UsageError: there is no cache of this kind.
    """
    transport = open_transport(address, access, CONNECTIONS)
    budget = Budget(CONNECTIONS, workers / _SECONDS)
    return LayeredStore(local, address, lambda said: Remote(transport, access, budget, said), say)
