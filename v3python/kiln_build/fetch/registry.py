"""Where the registry's files are to be had: the package client's own configuration, read and followed.

The configuration is pip's (`pip config list`, which includes PIP_* variables): index-url, extra-index-url, find-links,
no-index, cert, client-cert and proxy. Indexes answer in JSON (PEP 691) or HTML (PEP 503); file: addresses and plain
folders do too.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

import requests

from kiln_recipe.errors import ToolchainError

_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
_DEFAULT_INDEX = "https://pypi.org/simple"


@dataclass(frozen=True)
class ClientConfiguration:
    """What the package client is told.

    Attributes:
        indexes: addresses, the first first.
        find_links: folders and pages with files, looked at before the indexes.
        verify: certificates to trust (a file), or True: the system's.
        client_certificate: a file, or None.
        proxy: an address, or None: as the environment says.
    """

    indexes: tuple[str, ...]
    find_links: tuple[str, ...]
    verify: str | bool = True
    client_certificate: str | None = None
    proxy: str | None = None


@dataclass(frozen=True)
class Candidate:
    """A place where a file can be had.

    Attributes:
        url: an http(s) or file address.
        sha256, size, requires_python: what the index says of it, if it does.
    """

    name: str
    url: str
    sha256: str | None = None
    size: int | None = None
    requires_python: str | None = None


def read_configuration(ca_bundle: Path | None = None, python: str = sys.executable) -> ClientConfiguration:
    """The client's configuration as `python -m pip` sees it.

    Args:
        ca_bundle: certificates to trust instead of those that the client is told.

    Raises:
        ToolchainError: pip does not run.
    """
    done = subprocess.run([python, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ToolchainError(f"`{python} -m pip config list` failed: {done.stderr.strip()}; the Python needs pip")
    return parse_configuration(done.stdout, ca_bundle)


def parse_configuration(listing: str, ca_bundle: Path | None = None) -> ClientConfiguration:
    """`pip config list` as a configuration: sections of commands go before global, variables before both."""
    values: dict[str, tuple[int, str]] = {}
    for line in listing.splitlines():
        match = re.fullmatch(r"(:env:|global|install|download)\.([a-z-]+)=(.*)", line.strip())
        if match:
            rank = {"global": 0, "install": 1, "download": 2, ":env:": 3}[match[1]]
            try:
                text = str(ast.literal_eval(match[3]))
            except (SyntaxError, ValueError):
                text = match[3]
            if rank >= values.get(match[2], (0, ""))[0]:
                values[match[2]] = (rank, text)
    setting = {name: text for name, (_, text) in values.items()}
    indexes = [setting.get("index-url", _DEFAULT_INDEX), *setting.get("extra-index-url", "").split()]
    if setting.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        indexes = []
    return ClientConfiguration(
        indexes=tuple(dict.fromkeys(indexes)),
        find_links=tuple(dict.fromkeys(setting.get("find-links", "").split())),
        verify=str(ca_bundle) if ca_bundle else setting.get("cert") or True,
        client_certificate=setting.get("client-cert"),
        proxy=setting.get("proxy"),
    )


class Registry:
    """Looks files up; asks each page once. Any thread may use it."""

    def __init__(self, configuration: ClientConfiguration, timeout: float = 60.0) -> None:
        self._configuration = configuration
        self._timeout = timeout
        self._local = threading.local()
        self._lock = threading.Lock()
        self._pages: dict[str, tuple[Candidate, ...]] = {}

    def request(self, url: str, headers: Mapping[str, str]) -> requests.Response:
        """A streamed GET as the client would send it. Raises requests' own errors."""
        session = getattr(self._local, "session", None)
        if session is None:
            session = self._local.session = requests.Session()
        proxy = self._configuration.proxy
        return session.get(
            url,
            headers=dict(headers),
            stream=True,
            timeout=self._timeout,
            verify=self._configuration.verify,
            cert=self._configuration.client_certificate,
            proxies={"http": proxy, "https": proxy} if proxy else None,
        )

    def candidates(self, package: str) -> Iterator[Candidate]:
        """Every file of a package, place by place in the client's order.

        Raises:
            requests.RequestException: an index that cannot be asked now; asking again may help.
        """
        for place in self._configuration.find_links:
            yield from self._page(place)
        project = re.sub(r"[-_.]+", "-", package).lower()
        for index in self._configuration.indexes:
            yield from self._page(f"{index.rstrip('/')}/{project}/")

    def places(self) -> str:
        """For sentences: what was asked."""
        # Addresses may hold passwords.
        hidden = (re.sub(r"//[^/@]*@", "//", place) for place in self._configuration.find_links)
        indexes = len(self._configuration.indexes)
        return ", ".join([*hidden, f"{indexes} index{'' if indexes == 1 else 'es'} of pip's configuration"])

    def _page(self, place: str) -> tuple[Candidate, ...]:
        with self._lock:
            if place not in self._pages:
                self._pages[place] = tuple(self._read(place))
            return self._pages[place]

    def _read(self, place: str) -> Iterator[Candidate]:
        split = urllib.parse.urlsplit(place)
        if split.scheme in ("http", "https"):
            yield from self._ask(place)
            return
        path = Path(urllib.parse.unquote(split.path)) if split.scheme == "file" else Path(place).expanduser()
        if path.is_dir() and (path / "index.html").is_file():
            path = path / "index.html"
        if path.is_file() and path.suffix in (".html", ".htm"):
            yield from parse_html(path.read_text("utf-8", "replace"), path.absolute().as_uri())
        elif path.is_dir():
            for file in sorted(path.iterdir()):
                yield Candidate(file.name, file.absolute().as_uri())

    def _ask(self, url: str) -> Iterator[Candidate]:
        with self.request(url, {"Accept": _ACCEPT}) as response:
            if response.status_code in (403, 404, 410):  # not known there; another place may have it
                return
            response.raise_for_status()
            if "json" in response.headers.get("Content-Type", ""):
                for file in response.json()["files"]:
                    address = urllib.parse.urljoin(response.url, file["url"])
                    digest = file.get("hashes", {}).get("sha256")
                    yield Candidate(file["filename"], address, digest, file.get("size"), file.get("requires-python"))
            else:
                yield from parse_html(response.text, response.url)


def parse_html(text: str, base: str) -> list[Candidate]:
    """The files that an index page in HTML links to."""
    reader = _Links(base)
    reader.feed(text)
    reader.close()
    return reader.found


class _Links(HTMLParser):
    def __init__(self, base: str) -> None:
        super().__init__()
        self._base = base
        self.found: list[Candidate] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        address = dict(attrs).get("href")
        if not address:
            return
        if tag == "base":
            self._base = urllib.parse.urljoin(self._base, address)
        if tag == "a":
            url, fragment = urllib.parse.urldefrag(urllib.parse.urljoin(self._base, address))
            name = os.path.basename(urllib.parse.unquote(urllib.parse.urlsplit(url).path))
            digest = re.fullmatch(r"sha256=([0-9a-f]{64})", fragment)
            python = dict(attrs).get("data-requires-python")
            self.found.append(Candidate(name, url, digest[1] if digest else None, None, python or None))
