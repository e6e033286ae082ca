"""Servers of a cache that draw a request out: it ends when its time is over, whatever they send."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import pytest

from kiln_build.cache import http
from kiln_build.cache.access import Access
from kiln_build.cache.http import HttpTransport
from kiln_build.cache.transport import Failed

NAME = "0" * 64
DRAWN_OUT = {  # what is sent at once, and then again and again
    "the status": (b"HTTP/1.1 2", b"0"),
    "a header": (b"HTTP/1.1 200 OK\r\nX: ", b"a"),
    "headers": (b"HTTP/1.1 200 OK\r\n", b"X: a\r\n"),
    "answers before the answer": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "the size of a chunk": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;", b"a"),
    "a body": (b"HTTP/1.1 200 OK\r\nContent-Length: 90\r\n\r\n", b"a"),
    "a body without an end": (b"HTTP/1.1 200 OK\r\n\r\n", b"a"),
    "nothing": (b"", b""),
}
HEADS = [what for what in DRAWN_OUT if "body" not in what and "chunk" not in what]  # whoever puts reads no more


class DrawnOut:
    """A server that answers each connection so. A context manager."""

    def __init__(self, first: bytes, then: bytes) -> None:
        self._first, self._then = first, then
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._serve, daemon=True)]
        self.port = self._listener.getsockname()[1]

    def __enter__(self) -> DrawnOut:  # noqa: PYI034
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                thread = threading.Thread(target=self._answer, args=(self._listener.accept()[0],), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.recv(1 << 16)
            connection.sendall(self._first)
            while not self._is_over.wait(0.05):
                connection.sendall(self._then)


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(http, "_WHOLE", 0.5)


@pytest.mark.parametrize(
    ("method", "what"),
    [*(("get", what) for what in DRAWN_OUT), *(("put", what) for what in HEADS)],
)
def test_a_request_ends_however_it_is_drawn_out(impatient, method, what):
    with DrawnOut(*DRAWN_OUT[what]) as server:
        transport = HttpTransport(f"http://127.0.0.1:{server.port}", Access(), 2)
        more = {"get": 100, "put": b"data"}[method]
        began = time.monotonic()
        with pytest.raises(Failed, match=r"^its answer did not end within 0\.5\d* s$"):
            getattr(transport, method)("ac", NAME, more)
        assert time.monotonic() - began < 60, "without a limit it would never end"
        transport.close()


def test_what_is_under_way_ends_when_the_cache_is_closed():
    with DrawnOut(*DRAWN_OUT["a header"]) as server:
        transport = HttpTransport(f"http://127.0.0.1:{server.port}", Access(), 2)
        failures: list[Failed] = []

        def ask() -> None:
            try:
                transport.get("ac", NAME, 1 << 26)
            except Failed as failure:
                failures.append(failure)

        thread = threading.Thread(target=ask)
        thread.start()
        time.sleep(0.3)
        transport.close()
        thread.join(60)
        assert not thread.is_alive() and str(failures[0]) == "it is not asked any more"


def test_nothing_watches_where_nothing_is_asked():
    with DrawnOut(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", b"") as server:
        transport = HttpTransport(f"http://127.0.0.1:{server.port}", Access(), 2)
        assert transport.get("ac", NAME, 100) is None
        limit = time.monotonic() + 60
        while any(thread.name == "kiln-cache-patience" for thread in threading.enumerate()):
            assert time.monotonic() < limit, "it watches without an end"
            time.sleep(0.05)
        assert transport.get("ac", NAME, 100) is None
        transport.close()
