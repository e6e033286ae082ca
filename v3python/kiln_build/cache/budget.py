"""How long a build bears with a cache: one that fails is left alone from then on, and one whose images come more
slowly than they are compiled is asked for no more."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_IN_A_ROW = 4  # failures after which a cache counts as dead
_LOST = 10.0  # seconds of a build's time that failures may cost in all
GRACE = 10.0  # seconds before a cache must give images faster than this machine compiles them
_SHARE = 0.05  # of what compiling an image takes, that asking for it may take where it is not there


class Budget:
    """Called by several threads at once.

    Args:
        threads: how many ask at once: what one waits costs the build its share.
        pace: images a second that this machine compiles, about.
        clock: seconds, as time.monotonic.
    """

    def __init__(self, threads: int, pace: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._threads, self._pace, self.clock = threads, pace, clock
        self._lock = threading.Lock()
        self._row, self._lost = 0, 0.0
        self.failures = 0
        self.why = self.last = ""
        self.slow = ""  # why nothing more is asked for

    @property
    def problem(self) -> str:
        """Why the cache is left alone, or what failed though it is not; "" if nothing did."""
        return self.why or (f"{self.failures} requests failed, the last by {self.last}" if self.failures else "")

    @property
    def is_spent(self) -> bool:
        """Whether the cache is to be left alone; `why` says why."""
        return bool(self.why)

    def succeeded(self) -> None:
        """A request was answered, with whatever."""
        with self._lock:
            self._row = 0

    def failed(self, reason: str, seconds: float) -> None:
        """A request failed after so long, retries included."""
        with self._lock:
            self._row += 1
            self.failures += 1
            self.last = reason
            self._lost += seconds / self._threads
            if self._row >= _IN_A_ROW:
                self._spend(f"{self._row} requests in a row failed, the last by {reason}")
            elif self._lost > _LOST:
                self._spend(f"{self.failures} requests failed and took {self._lost:.0f} s, the last by {reason}")

    def gave(self, images: int, asked: int, seconds: float) -> None:
        """All images that came by now, of how many answers, in so long."""
        if (images + _SHARE * asked) < self._pace * (seconds - GRACE):
            self.slow = f"{images} images, of {asked} asked for, in {seconds:.0f} s is slower than compiling them"

    def _spend(self, why: str) -> None:
        self.why = self.why or why
