"""An HTTP server on the loopback, in a thread of its own."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, *_: object) -> None:
        """A client that was killed, or went away, is no error of the server's."""


class Loopback:
    """A context manager's half: `serve` begins, leaving it ends."""

    def serve(self, handler: type[BaseHTTPRequestHandler]) -> None:
        self._server = _Server(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"
