"""Ends what a server draws out: a request that takes too long loses its sockets, whatever it waits for.

Timeouts of sockets hold from one piece to the next. A server that sends a byte a second, of its headers or between two
chunks, keeps a request for as long as it likes.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection

from kiln_build.cache.transport import Failed

_LOOK = 0.1  # seconds between two looks at what is under way


@dataclass(eq=False)
class _Request:
    deadline: float  # of time.monotonic
    is_late: bool = False
    sockets: list[socket.socket] = field(default_factory=list)


_here = threading.local()  # `request`: the one that this thread is about


class Patience:
    """Called by several threads at once. What is under way when it is closed ends at once."""

    def __init__(self) -> None:
        self._requests: set[_Request] = set()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._watcher: threading.Thread | None = None

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Around a request of this thread, retries included.

        Raises:
            Failed: it took longer. What it has read by then may end anywhere.
        """
        request = _Request(time.monotonic() + seconds)
        with self._lock:
            self._requests.add(request)
            if self._watcher is None:
                self._watcher = threading.Thread(target=self._watch, name="kiln-cache-patience", daemon=True)
                self._watcher.start()
        _here.request = request
        try:
            yield
        except Failed:
            if not request.is_late:
                raise
        finally:
            del _here.request
            with self._lock:
                self._requests.discard(request)
        if self._closed.is_set():
            raise Failed("it is not asked any more")
        if request.is_late:
            raise Failed(f"its answer did not end within {seconds:.3g} s")

    def close(self) -> None:
        """Ends what is under way."""
        self._closed.set()
        self._end(float("inf"))

    def _watch(self) -> None:
        """Looks for as long as there is something to look at."""
        while not self._closed.wait(_LOOK):
            self._end(time.monotonic())
            with self._lock:
                if not self._requests:
                    self._watcher = None
                    return

    def _end(self, now: float) -> None:
        with self._lock:  # while it is held, none of these is over, and none of the sockets another's
            for request in self._requests:
                if request.deadline < now:
                    request.is_late = True
                    for one in request.sockets:
                        with suppress(OSError):  # it is closed
                            socket.socket.shutdown(one, socket.SHUT_RDWR)  # not TLS's, which would wait for the other


class _Watched(HTTPConnection):
    """Tells the request that this thread is about which socket it uses."""

    def connect(self) -> None:
        super().connect()
        self._use()

    def putrequest(self, method: str, url: str, *words: bool, **more: bool) -> None:
        self._use()
        super().putrequest(method, url, *words, **more)

    def _use(self) -> None:
        request: _Request | None = getattr(_here, "request", None)
        if request is None or self.sock is None:
            return
        request.sockets.append(self.sock)
        if request.is_late or request.deadline < time.monotonic():
            raise TimeoutError("there is no time left")


class _WatchedTls(_Watched, HTTPSConnection):
    pass


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Watched


class _TlsPool(HTTPSConnectionPool):
    ConnectionCls = _WatchedTls


POOLS = {"http": _Pool, "https": _TlsPool}  # of urllib3's PoolManager
