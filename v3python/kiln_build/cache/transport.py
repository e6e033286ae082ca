"""What carries entries and blobs to a cache and back: `Transport`; `open_transport` chooses one by the address.

To add one: a module beside `http.py` with a class that has these methods, and a line in `_KINDS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from kiln_build.cache.access import Access
from kiln_build.options.words import scheme_of
from kiln_recipe.errors import UsageError

AC, CAS = "ac", "cas"  # entries by key, and blobs by digest


class Failed(Exception):
    """The cache did not do what it was asked; the text says how it failed, and holds no secret."""


class Transport(Protocol):
    """Small objects by name. Called by several threads at once.

    Raises, from every method: Failed. A call ends within some seconds, whatever the other side does.
    """

    def get(self, kind: str, name: str, limit: int) -> bytes | None:
        """What is under a name; None if nothing is. More than `limit` bytes are a failure, and not read."""

    def put(self, kind: str, name: str, data: bytes) -> None:
        """Puts, or replaces."""

    def close(self) -> None:
        """Ends its connections."""


def _http(address: str, access: Access, connections: int) -> Transport:
    from kiln_build.cache.http import HttpTransport

    return HttpTransport(address, access, connections)


def _s3(address: str, access: Access, connections: int) -> Transport:
    from kiln_build.cache.s3 import S3Transport

    return S3Transport(address, access, connections)


_KINDS: dict[str, Callable[[str, Access, int], Transport]] = {"http": _http, "https": _http, "s3": _s3}


def open_transport(address: str, access: Access, connections: int) -> Transport:
    """
    Args:
        connections: threads that will use it at once.

    Raises:
        UsageError: there is no cache of this kind, or it takes no such access.
        EnvironmentProblem: it needs a package that is not installed.
    """
    scheme = scheme_of(address)
    if scheme not in _KINDS:
        raise UsageError(f"the cache {address} is of an unknown kind; give an address with {', '.join(_KINDS)}")
    return _KINDS[scheme](address, access, connections)
