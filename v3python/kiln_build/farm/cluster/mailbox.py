"""What the thread of a cluster's loop tells the thread of the build: events, notices, and what ends the build."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from multiprocessing import connection
from typing import Generic

from kiln_build.farm.executor import Event, Id
from kiln_recipe.errors import EnvironmentProblem, KilnError


class Mailbox(Generic[Id]):
    """Filled by one thread, emptied by another; `wake` may be called by any, and by signal handlers."""

    def __init__(self) -> None:
        self._events: deque[Event[Id]] = deque()
        self._notices: deque[str] = deque()
        self._problem: KilnError | None = None
        self._reader, self._writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    # ---- of the loop's thread ----

    def tell(self, event: Event[Id]) -> None:
        """Something has happened to a task."""
        self._events.append(event)
        self.wake()

    def say(self, notice: str) -> None:
        """A sentence for the user."""
        self._notices.append(notice)

    def fail(self, problem: Exception) -> None:
        """The build cannot go on. The first such problem counts."""
        if self._problem is None:
            self._problem = problem if isinstance(problem, KilnError) else EnvironmentProblem(str(problem))
        self.wake()

    # ---- of the build's thread ----

    def wait(self, timeout: float | None) -> list[Event[Id]]:
        """As `Executor.wait`; a problem is raised once all events are taken."""
        if not self._events and self._problem is None:
            limit = min(x for x in (timeout, 1e6) if x is not None)
            connection.wait([self._reader], limit)
        with contextlib.suppress(BlockingIOError):
            os.read(self._reader, 4096)
        events = [self._events.popleft() for _ in range(len(self._events))]
        if self._problem is not None and not events:
            raise self._problem
        return events

    def notices(self) -> list[str]:
        """Sentences that are new since the last call."""
        return [self._notices.popleft() for _ in range(len(self._notices))]

    def wake(self) -> None:
        """Makes a `wait` return that goes on, or else the next one. May be called after `close`."""
        with contextlib.suppress(BlockingIOError, OSError):
            os.write(self._writer, b"!")

    def close(self) -> None:
        """Nothing is told or waited for any more. May be called twice."""
        for descriptor in {self._reader, self._writer} - {-1}:
            os.close(descriptor)
        self._reader = self._writer = -1
