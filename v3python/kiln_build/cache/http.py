"""Bazel's HTTP cache protocol: GET and PUT of /ac/<sha256> and /cas/<sha256>, as bazel-remote and nginx with
WebDAV speak it."""

from __future__ import annotations

import base64
import re

import urllib3
from urllib3.exceptions import HTTPError, MaxRetryError
from urllib3.util import Retry, Timeout

from kiln_build.cache.access import Access
from kiln_build.cache.patience import POOLS, Patience
from kiln_build.cache.transport import Failed

_CONNECT, _READ = 3.0, 4.0  # seconds until a connection stands, and between two pieces of an answer
_WHOLE = 8.0  # seconds of a request, retries included, and
_SLOWEST = 100_000  # ... bytes a second of what it carries
_RETRIES, _REDIRECTS = 1, 2
_AGAIN = (408, 429, 500, 502, 503, 504)  # what is worth another try
_DIGITS = 12  # of a length that may be right
_PIECE = 1 << 16
_CONNECTION = re.compile(r"^(?:<[^>]* object at 0x[^>]*>|\w+\(host=[^)]*\)): ")  # as urllib3 names one


class HttpTransport:
    """A cache at http://host/path or https://host/path.

    Connections are reused. No answer is decompressed: blobs are frames already, and a server that encodes them again
    was not asked to. A redirection to another host is followed without the credentials.
    """

    def __init__(self, address: str, access: Access, connections: int) -> None:
        self._base = address.rstrip("/")
        headers = {"User-Agent": "kiln", "Accept-Encoding": "identity"}
        if access.token:
            headers["Authorization"] = f"Bearer {access.token}"
        elif access.login:
            headers["Authorization"] = (
                f"Basic {base64.b64encode(access.login.encode()).decode()}"  # UTF-8, as RFC 7617 has
            )
        self._pool = urllib3.PoolManager(
            num_pools=4,
            maxsize=connections,
            headers=headers,
            timeout=Timeout(connect=_CONNECT, read=_READ),
            cert_file=access.certificate,
            ca_certs=access.authorities,
            cert_reqs="CERT_REQUIRED",
        )
        self._pool.pool_classes_by_scheme = POOLS
        self._patience = Patience()

    def get(self, kind: str, name: str, limit: int) -> bytes | None:
        with self._patience.within(_WHOLE + limit / _SLOWEST):
            return self._get(kind, name, limit)

    def put(self, kind: str, name: str, data: bytes) -> None:
        with self._patience.within(_WHOLE + len(data) / _SLOWEST):
            self._put(kind, name, data)

    def close(self) -> None:
        self._patience.close()
        self._pool.clear()

    # ---- inside ----

    def _get(self, kind: str, name: str, limit: int) -> bytes | None:
        response = self._ask("GET", kind, name)
        try:
            if response.status == 404:
                self._drain(response)
                return None
            self._need(response, "GET", (200,))
            if (encoding := response.headers.get("Content-Encoding", "identity")) != "identity":
                raise Failed(f"it answered with the encoding {encoding[:40]!r}, which was not asked for")
            size = response.headers.get("Content-Length", "")
            if size.isdecimal() and (len(size) > _DIGITS or int(size) > limit):
                raise Failed(f"it answered with {size[:_DIGITS]} bytes, where at most {limit} are expected")
            return self._read(response, limit)
        finally:
            self._end(response)

    def _put(self, kind: str, name: str, data: bytes) -> None:
        response = self._ask("PUT", kind, name, data)
        try:
            self._need(response, "PUT", (200, 201, 202, 204))
            self._drain(response)
        finally:
            self._end(response)

    def _ask(self, method: str, kind: str, name: str, body: bytes | None = None) -> urllib3.BaseHTTPResponse:
        follows = _REDIRECTS if method != "PUT" else 0
        retries = Retry(
            total=_RETRIES + follows, connect=_RETRIES, read=_RETRIES, status=_RETRIES, redirect=follows, other=0,
            status_forcelist=_AGAIN, allowed_methods=None, backoff_factor=0.2, backoff_jitter=0.2,
            respect_retry_after_header=False, raise_on_status=False, raise_on_redirect=False,
        )  # fmt: skip
        try:
            return self._pool.request(
                method, f"{self._base}/{kind}/{name}", body=body, retries=retries, preload_content=False,
                decode_content=False,
            )  # fmt: skip
        except (HTTPError, OSError, ValueError) as error:
            raise Failed(_spell(error)) from None

    def _need(self, response: urllib3.BaseHTTPResponse, method: str, right: tuple[int, ...]) -> None:
        if response.status not in right:
            why = {401: ": it wants other credentials", 403: ": it does not allow that", 413: ": that is too large"}
            raise Failed(f"it answered {method} with status {response.status}{why.get(response.status, '')}")

    def _read(self, response: urllib3.BaseHTTPResponse, limit: int) -> bytes:
        data = bytearray()
        try:
            while piece := response.read1(_PIECE):
                data += piece
                if len(data) > limit:
                    raise Failed(f"it answered with more than {limit} bytes")
        except (HTTPError, OSError) as error:
            raise Failed(_spell(error)) from None
        return bytes(data)

    def _drain(self, response: urllib3.BaseHTTPResponse) -> None:
        """Reads the short text that comes with an answer, so that the connection can be used again."""
        try:
            response.read1(_PIECE)
        except (HTTPError, OSError) as error:
            raise Failed(_spell(error)) from None

    def _end(self, response: urllib3.BaseHTTPResponse) -> None:
        if response.length_remaining != 0:
            response.close()
        response.release_conn()


def _spell(error: Exception) -> str:
    """What failed, without the address, which the caller says."""
    reason = error.reason if isinstance(error, MaxRetryError) and error.reason else error
    words = reason.args[0] if reason.args and isinstance(reason.args[0], str) else reason
    text = _CONNECTION.sub("", str(words))
    return f"{type(reason).__name__}: {text}"[:200]
