"""Sends images to a cache in the background, while a build goes on."""

from __future__ import annotations

import queue
import threading
import time

from kiln_build.cache.remote import Remote
from kiln_build.store.store import Store
from kiln_build.store.stores import open_store
from kiln_recipe.errors import KilnError

_MOST = 20_000  # keys that wait; more are not sent, and are no loss but of time
_SENDERS = 4


class Uploads:
    """The queue and its threads, which begin with the first image. Keys wait, not images: a sender reads the image from
    the local store when it comes to it."""

    def __init__(self, remote: Remote, location: str) -> None:
        self._remote, self._location = remote, location
        self._queue: queue.Queue[str] = queue.Queue(_MOST)
        self._threads: list[threading.Thread] = []
        self._closed = threading.Event()
        self._known: set[str] = set()
        self._lock = threading.Lock()
        self._is_counted = False  # what is under way is among `left`
        self.left = 0  # images that were not sent

    def add(self, key: str) -> None:
        """Sends the image of a key, once."""
        if key in self._known or self._remote.is_read_only:
            return
        self._known.add(key)
        if not self._put(key):
            with self._lock:
                self.left += 1
            return
        if len(self._threads) < _SENDERS:
            thread = threading.Thread(target=self._send_all, daemon=True)
            self._threads.append(thread)
            thread.start()

    def flush(self, seconds: float) -> None:
        """Waits until all are sent, at most so long, and ends."""
        deadline = time.monotonic() + seconds
        while self._queue.unfinished_tasks and not self._remote.budget.is_spent and time.monotonic() < deadline:
            time.sleep(0.02)
        self._closed.set()
        with self._lock:
            self._is_counted = True
            self.left += self._queue.unfinished_tasks

    def _put(self, key: str) -> bool:
        """Whether a key waits now to be sent."""
        if self._remote.budget.is_spent:
            return False
        try:
            self._queue.put_nowait(key)
        except queue.Full:
            return False
        return True

    def _send_all(self) -> None:
        # What is wrong with the local store is said by the build, which reads the same.
        store: Store = open_store(self._location, lambda text: None)
        while not self._closed.is_set():
            try:
                key = self._queue.get(timeout=0.2)
            except queue.Empty:
                continue
            is_sent = self._send(store, key)
            with self._lock:
                self.left += not is_sent and not self._is_counted
                self._queue.task_done()

    def _send(self, store: Store, key: str) -> bool:
        try:
            stored = store.get(key)
            return stored is not None and self._remote.send(key, store.load(stored), stored.ir, stored.seconds)
        except KilnError:
            return False
