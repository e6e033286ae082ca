"""A package index over HTTP on the loopback that misbehaves as it is told: cuts, 503, ignored ranges, wrong bytes."""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler

from loopback import Loopback


@dataclass
class Faults:
    """How often each file (or index page) is still served wrongly; counted down."""

    cuts: Counter = field(default_factory=Counter)
    unavailable: Counter = field(default_factory=Counter)
    ignored_ranges: Counter = field(default_factory=Counter)
    wrong_bytes: Counter = field(default_factory=Counter)
    retry_after: str | None = None
    change_etag: Counter = field(default_factory=Counter)
    html: bool = False

    def take(self, fault: Counter, name: str) -> bool:
        if fault[name] > 0:
            fault[name] -= 1
            return True
        return False


class FaultyIndex(Loopback):
    """Serves `files` (name: (package, bytes)) as /simple/<package>/ and /files/<name>. A context manager."""

    def __init__(self, files: Mapping[str, tuple[str, bytes]], faults: Faults | None = None) -> None:
        self.files = dict(files)
        self.faults = faults or Faults()
        self.requests: list[tuple[str, str | None, str | None]] = []  # path, Range, If-Range
        self._lock = threading.Lock()

    def __enter__(self) -> FaultyIndex:  # noqa: PYI034
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                with outer._lock:
                    outer._answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self.serve(Handler)
        return self

    @property
    def url(self) -> str:
        return f"{self.origin}/simple"

    def served(self, name: str) -> list[tuple[str | None, str | None]]:
        """(Range, If-Range) of each request for a file."""
        return [(asked, condition) for path, asked, condition in self.requests if path == f"/files/{name}"]

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        self.requests.append((handler.path, handler.headers.get("Range"), handler.headers.get("If-Range")))
        name = handler.path.rstrip("/").rpartition("/")[2]
        if self.faults.take(self.faults.unavailable, name):
            headers = {"Retry-After": self.faults.retry_after} if self.faults.retry_after else {}
            self._send(handler, 503, b"later", headers)
        elif handler.path.startswith("/simple/"):
            self._index(handler, name)
        elif name in self.files:
            self._file(handler, name)
        else:
            self._send(handler, 404, b"", {})

    def _index(self, handler: BaseHTTPRequestHandler, package: str) -> None:
        names = [name for name, (of, _) in self.files.items() if of == package]
        if not names:
            self._send(handler, 404, b"", {})
        elif self.faults.html:
            links = "".join(f'<a href="../../files/{name}">{name}</a>\n' for name in names)
            self._send(handler, 200, f"<html><body>{links}</body></html>".encode(), {"Content-Type": "text/html"})
        else:
            rows = [{"filename": name, "url": f"../../files/{name}", "hashes": {}} for name in names]
            kind = {"Content-Type": "application/vnd.pypi.simple.v1+json"}
            self._send(handler, 200, json.dumps({"files": rows}).encode(), kind)

    def _file(self, handler: BaseHTTPRequestHandler, name: str) -> None:
        data = self.files[name][1]
        if self.faults.take(self.faults.wrong_bytes, name):
            data = bytes(byte ^ 0x55 for byte in data)
        version = self.faults.change_etag[name]
        tag = f'"{name}-{version}"'
        headers = {"ETag": tag, "Accept-Ranges": "bytes"}
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", handler.headers.get("Range", ""))
        condition = handler.headers.get("If-Range")
        code, start, end = 200, 0, len(data)
        if asked and condition in (None, tag) and not self.faults.take(self.faults.ignored_ranges, name):
            code, start = 206, int(asked[1])
            end = min(end, int(asked[2] or end) + 1)
            if start >= len(data):
                self._send(handler, 416, b"", {"Content-Range": f"bytes */{len(data)}"})
                return
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
        body = data[start:end]
        cut = len(body) // 3 if self.faults.take(self.faults.cuts, name) else None
        self._send(handler, code, body, headers, cut)

    @staticmethod
    def _send(
        handler: BaseHTTPRequestHandler, code: int, body: bytes, headers: Mapping[str, str], cut: int | None = None
    ) -> None:
        handler.send_response(code)
        for key, value in headers.items():
            handler.send_header(key, value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body if cut is None else body[:cut])
        if cut is not None:
            handler.wfile.flush()
            handler.close_connection = True
