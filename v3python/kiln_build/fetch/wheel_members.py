"""What is in a wheel, by the list that it carries (RECORD). Of a wheel on a server only the end and that list are
read, where the server serves ranges; a wheel of Triton has 250 MB."""

from __future__ import annotations

import base64
import csv
import io
import re
import urllib.parse
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from kiln_build.fetch.registry import Registry
from kiln_recipe.errors import ToolchainError

if TYPE_CHECKING:
    from typing_extensions import Buffer

_BLOCK = 1 << 16  # bytes asked for at once
_LARGEST_RECORD = 16 << 20  # bytes; PyTorch's has 2 MB
_LARGEST = 1 << 32  # bytes: no wheel has more


def members_of(name: str, url: str, registry: Registry) -> Mapping[str, str]:
    """SHA-256 of each file of the wheel `name` at `url`, by its path.

    Raises:
        ToolchainError: it is not a wheel, or its RECORD cannot be read.
        requests.RequestException: the server cannot be asked now.
    """
    local = local_path(url)
    try:
        if local is not None:
            with zipfile.ZipFile(local) as wheel:
                return _record(wheel)
        with io.BufferedReader(_Remote(url, registry), _BLOCK) as file, zipfile.ZipFile(file) as wheel:
            return _record(wheel)
    except (
        zipfile.BadZipFile, zlib.error, csv.Error, OSError, EOFError, KeyError, ValueError, RuntimeError,
    ) as error:  # fmt: skip
        # RequestException is an OSError too, and means something else.
        if type(error).__module__.startswith("requests"):
            raise
        remedy = "give the folder with the wheel as find-links"
        if not isinstance(error, _NoRangesError):
            remedy = "the index must have a whole wheel"
        raise ToolchainError(f"{name}: its contents cannot be read ({error}); {remedy}")


def local_path(url: str) -> Path | None:
    """The path of a file's address; None for another address."""
    split = urllib.parse.urlsplit(url)
    return Path(urllib.parse.unquote(split.path)) if split.scheme == "file" else None


def _record(wheel: zipfile.ZipFile) -> dict[str, str]:
    (name,) = [name for name in wheel.namelist() if re.fullmatch(r"[^/]+\.dist-info/RECORD", name)]
    if wheel.getinfo(name).file_size > _LARGEST_RECORD:
        raise ValueError(f"{name} has more than {_LARGEST_RECORD >> 20} MiB")
    rows = csv.reader(io.StringIO(wheel.read(name).decode()))
    digests = {row[0]: row[1] for row in rows if len(row) == 3 and row[1].startswith("sha256=")}
    return {path: _hexadecimal(digest.removeprefix("sha256=")) for path, digest in digests.items()}


def _hexadecimal(text: str) -> str:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).hex()


class _NoRangesError(OSError):
    """A server that serves files only as a whole."""


class _Remote(io.RawIOBase):
    """A file on a server, read by ranges."""

    def __init__(self, url: str, registry: Registry) -> None:
        self._url, self._registry, self._place = url, registry, 0
        self._size = 0
        self._ask(0, 1)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._place = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._size}[whence]
        return self._place

    def tell(self) -> int:
        return self._place

    def readinto(self, buffer: Buffer) -> int:
        room = memoryview(buffer)
        wanted = min(len(room), self._size - self._place)
        if wanted <= 0:
            return 0
        data = self._ask(self._place, wanted)
        room[: len(data)] = data
        self._place += len(data)
        return len(data)

    def _ask(self, start: int, count: int) -> bytes:
        headers = {"Range": f"bytes={start}-{start + count - 1}", "Accept-Encoding": "identity"}
        with self._registry.request(self._url, headers) as response:
            response.raise_for_status()
            served = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", response.headers.get("Content-Range", ""))
            if response.status_code != 206 or not served or int(served[1]) != start or int(served[3]) > _LARGEST:
                raise _NoRangesError("its server does not support ranges")
            self._size = int(served[3])
            data = response.raw.read(count)
        if not data:
            raise OSError("its server ended early")
        return data
