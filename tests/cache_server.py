"""A cache of Bazel's HTTP protocol on the loopback, that misbehaves as it is told; and what puts damage into it."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler

from loopback import Loopback


@dataclass
class Faults:
    """What a server does wrongly.

    Attributes:
        status: instead of every answer.
        cut: every body ends half way.
        delay: seconds before each answer.
        drip: seconds between the bytes of a body.
        after: requests that are answered well before any of this.
        dies: closes every connection without an answer.
        redirect: sends GET to this address.
        encoding: what it says of its bodies.
        unsized: it does not say how long they are.
    """

    status: int = 0
    cut: bool = False
    delay: float = 0.0
    drip: float = 0.0
    after: int = 0
    dies: bool = False
    redirect: str = ""
    encoding: str = ""
    unsized: bool = False


@dataclass
class CacheServer(Loopback):
    """Serves `content`, by path. A context manager.

    Attributes:
        authorization: what requests must have, "" for nothing.
        seen: requests by method; connections under "connections".
    """

    faults: Faults = field(default_factory=Faults)
    authorization: str = ""
    content: dict[str, bytes] = field(default_factory=dict)
    seen: Counter = field(default_factory=Counter)
    headers: list[dict[str, str]] = field(default_factory=list)

    def __enter__(self) -> CacheServer:  # noqa: PYI034
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def setup(self) -> None:
                super().setup()
                outer.seen["connections"] += 1

            def do_GET(self) -> None:
                outer._answer(self)

            do_PUT = do_GET

            def log_message(self, *_: object) -> None:
                pass

        self._lock = threading.Lock()
        self.serve(Handler)
        return self

    @property
    def url(self) -> str:
        return f"{self.origin}/kiln"

    def of(self, kind: str) -> dict[str, bytes]:
        """What is under /ac/ or /cas/, by name."""
        return {path.rpartition("/")[2]: data for path, data in self.content.items() if f"/{kind}/" in path}

    def set(self, kind: str, name: str, data: bytes) -> None:
        self.content[f"/kiln/{kind}/{name}"] = data

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        method, faults = handler.command, self.faults
        size = int(handler.headers.get("Content-Length") or 0)
        body = handler.rfile.read(size)
        with self._lock:
            self.seen[method] += 1
            self.seen["requests"] += 1
            self.headers.append(dict(handler.headers))
            is_well = self.seen["requests"] <= faults.after
        if is_well:
            faults = Faults()
        if faults.dies:
            handler.close_connection = True
            return
        time.sleep(faults.delay)
        status, data = 200, b""
        if faults.status:
            status = faults.status
        elif self.authorization and handler.headers.get("Authorization") != self.authorization:
            status = 401
        elif method == "PUT":
            self.content[handler.path] = body
            status = 201
        elif faults.redirect:
            status = 302
        elif handler.path in self.content:
            data = self.content[handler.path]
        else:
            status = 404
        handler.send_response(status)
        if faults.redirect:
            handler.send_header("Location", faults.redirect + handler.path)
        if faults.encoding:
            handler.send_header("Content-Encoding", faults.encoding)
        if faults.unsized:
            handler.close_connection = True
        else:
            handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        if faults.cut:
            data, handler.close_connection = data[: len(data) // 2], True
        if faults.drip:
            for byte in data:
                handler.wfile.write(bytes([byte]))
                time.sleep(faults.drip)
        else:
            handler.wfile.write(data)


def poison(server: CacheServer, every: int) -> int:
    """Damages every so-many-th entry or its image, in turn in four ways; returns how many."""
    entries = sorted(server.of("ac"))
    damaged = 0
    for number, key in enumerate(entries):
        if number % every:
            continue
        damaged += 1
        way = damaged % 4
        if way == 0:
            server.set("ac", key, server.of("ac")[entries[number - 1]])  # of another key
        elif way == 1:
            blob = _blob_of(server.of("ac")[key])
            data = bytearray(server.of("cas")[blob])
            data[len(data) // 2] ^= 1
            server.set("cas", blob, bytes(data))
        elif way == 2:
            server.set("ac", key, hashlib.sha256(key.encode()).digest() * 9)
        else:  # one bit of a fact that the image does not state
            before, after = server.of("ac")[key].split(b'"shared":', 1)
            server.set("ac", key, before + b'"shared":' + bytes([after[0] ^ 1]) + after[1:])
    return damaged


def _blob_of(data: bytes) -> str:
    """The name of the image's blob: 64 digits behind the field's tag, in the first file of an entry."""
    place = data.index(b"\n\x40") + 2
    return data[place : place + 64].decode()
