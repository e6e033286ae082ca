"""One file of the download cache: resumed, retried, and checked before it takes its name.

A file on its way is `<name>.part`, with what its server said of it in `<name>.part.json`; both outlive a kill, and the
next run goes on where the last one stopped. Two processes may fill one cache: the one that holds the lock of a part
works on it, the other waits and finds the file.
"""

from __future__ import annotations

import contextlib
import datetime
import email.utils
import errno
import fcntl
import json
import os
import random
import re
import threading
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import requests
import urllib3

from kiln_build.base.folder import is_same_file
from kiln_build.fetch.registry import Candidate, Registry
from kiln_recipe import digests
from kiln_recipe.compile.lock import Lock, LockedAddress, LockedFile, difference, has_size
from kiln_recipe.console.appear import appear
from kiln_recipe.console.progress import Progress
from kiln_recipe.errors import ToolchainError

_BLOCK = 1 << 18
_RETRIED_CODES = frozenset({408, 425, 429, 500, 502, 503, 504})
_LONGEST_PAUSE = 30.0
_LONGEST_ASKED_PAUSE = 120.0


@dataclass(frozen=True)
class Patience:
    """How long to go on.

    Attributes:
        attempts: in a row that bring no new byte, before a file is given up; each time its bytes are wrong counts too.
        first_pause: seconds before the second attempt; doubled for each further one, and drawn at random below that.
    """

    attempts: int = 6
    first_pause: float = 0.5


class Stopped(Exception):
    """Another file failed for good, or the user stopped us."""


class Download:
    """Brings one file; runs on a thread of its own."""

    def __init__(
        self,
        lock: Lock,
        file: LockedFile | LockedAddress,
        cache: Path,
        registry: Registry,
        progress: Progress,
        stop: threading.Event,
        patience: Patience,
    ) -> None:
        self.name = file.name
        self._file = file
        self._package = lock.package_of(file.name)
        self._final = cache / file.name
        self._part = cache / f"{file.name}.part"
        self._note = cache / f"{file.name}.part.json"
        self._registry = registry
        self._progress = progress
        self._stop = stop
        self._patience = patience
        self._counted = 0  # bytes that the progress was told of

    def run(self) -> None:
        with _own_part(self._part, self._stop) as descriptor:
            if has_size(self._final, self._file.size):  # another process was quicker
                with contextlib.suppress(FileNotFoundError):
                    self._part.unlink()
                self._count(self._file.size)
            else:
                self._bring(descriptor)
        self._progress.done(self.name, outcome="fetched")

    def _bring(self, descriptor: int) -> None:
        fruitless, best, refused = 0, 0, 0
        while True:
            candidates: list[Candidate] = []
            try:
                candidates = self._candidates()
                # Wrong bytes: another place may have the right ones.
                self._attempt(descriptor, candidates[refused % len(candidates)])
                return
            except _WrongBytes as wrong:
                reason, pause, best = str(wrong), None, 0
                refused += 1
                fruitless += 1
            except (_AttemptFailed, requests.RequestException) as error:
                reason, pause = spell_error(error), getattr(error, "pause", None)
                size = os.fstat(descriptor).st_size
                fruitless = 1 if size > best else fruitless + 1
                best = max(best, size)
            if fruitless >= self._patience.attempts:
                raise ToolchainError(f"{self.name} could not be fetched after {fruitless} attempts: {reason}")
            longest = min(self._patience.first_pause * 2 ** (fruitless - 1), _LONGEST_PAUSE)
            drawn = random.uniform(longest / 2, longest)
            if self._stop.wait(max(drawn, min(pause or 0.0, _LONGEST_ASKED_PAUSE))):
                raise Stopped

    def _candidates(self) -> list[Candidate]:
        """Places that have the file.

        Raises:
            ToolchainError: none has it.
        """
        if isinstance(self._file, LockedAddress):
            return [Candidate(self.name, self._file.url)]
        assert self._package is not None  # as every locked file has but those by address
        named = [c for c in self._registry.candidates(self._package.name) if c.name == self.name]
        if not named:
            raise ToolchainError(
                f"{self.name} cannot be found ({self._package.requirement}; looked in: {self._registry.places()})"
            )
        right = [candidate for candidate in named if candidate.sha256 in (None, self._file.sha256)]
        if not right:
            raise ToolchainError(
                f"{self.name}: expected SHA-256 {self._file.sha256}, but the index offers {named[0].sha256}"
            )
        return right

    def _attempt(self, descriptor: int, candidate: Candidate) -> None:
        if candidate.url.startswith("file:"):
            os.ftruncate(descriptor, 0)
            path = Path(urllib.parse.unquote(urllib.parse.urlsplit(candidate.url).path))
            with path.open("rb") as source:
                self._append(descriptor, 0, iter(lambda: source.read(_BLOCK), b""))
        else:
            self._request(descriptor, candidate.url)
        self._accept(descriptor)

    def _request(self, descriptor: int, url: str) -> None:
        have = os.fstat(descriptor).st_size
        if have > self._file.size:
            have = 0
        if have == self._file.size:
            return  # complete, but not yet checked: killed just then
        headers = {"Accept-Encoding": "identity"}  # sizes and ranges are of the file, not of its compression
        if have:
            headers["Range"] = f"bytes={have}-"
            note = self._read_note()
            if note.get("url") == url and note.get("validator"):
                headers["If-Range"] = note["validator"]
        try:
            with self._registry.request(url, headers) as response:
                start = self._start(response, have)
                self._write_note(url, response)
                self._append(descriptor, start, _stream(response))
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS):
                raise
            raise _AttemptFailed(spell_error(error))
        if os.fstat(descriptor).st_size < self._file.size:
            raise _AttemptFailed("the connection ended early")

    def _start(self, response: requests.Response, have: int) -> int:
        """Where the body of a response belongs in the file."""
        code = response.status_code
        if code == 206:
            span = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
            if span and int(span[1]) <= have:
                return int(span[1])
            raise _AttemptFailed(
                f"resumed at byte {have}, but the server answered {response.headers.get('Content-Range')}"
            )
        if code == 200:  # it has changed, or knows no ranges
            return 0
        if code == 416:
            with contextlib.suppress(OSError):
                os.truncate(self._part, 0)
        if code in _RETRIED_CODES or code == 416:
            raise _AttemptFailed(f"the server answered {code} {response.reason}", _asked_pause(response))
        raise ToolchainError(f"{self.name} could not be fetched: the server answered {code} {response.reason}")

    def _append(self, descriptor: int, start: int, blocks: Iterator[bytes]) -> None:
        os.ftruncate(descriptor, start)
        os.lseek(descriptor, start, os.SEEK_SET)
        self._count(start)
        position = start
        for block in blocks:
            if self._stop.is_set():
                raise Stopped
            view = memoryview(block)
            while view:
                view = view[os.write(descriptor, view) :]
            position += len(block)
            self._count(position)
            if position > self._file.size:
                break  # no need to read on: it cannot be right

    def _accept(self, descriptor: int) -> None:
        """Gives the file its name, if it is what is locked."""
        os.fsync(descriptor)
        os.lseek(descriptor, 0, os.SEEK_SET)
        digest, size = digests.measure(iter(lambda: os.read(descriptor, _BLOCK), b""))
        problem = difference(self._file, size, digest)
        if problem:
            os.ftruncate(descriptor, 0)
            self._count(0)
            raise _WrongBytes(problem)
        self._count(size)
        os.fchmod(descriptor, 0o644)
        os.replace(self._part, self._final)
        with contextlib.suppress(FileNotFoundError):
            self._note.unlink()

    def _count(self, position: int) -> None:
        if position != self._counted:
            self._progress.advance(position - self._counted)
            self._counted = position

    def _read_note(self) -> dict[str, str]:
        try:
            note = json.loads(self._note.read_text())
        except (OSError, ValueError):
            return {}
        return note if isinstance(note, dict) else {}

    def _write_note(self, url: str, response: requests.Response) -> None:
        tag = response.headers.get("ETag", "")
        # A weak tag promises equal meaning, not equal bytes.
        validator = tag if tag.startswith('"') else response.headers.get("Last-Modified", "")
        with appear(self._note) as fresh:
            fresh.write_text(json.dumps({"url": url, "validator": validator}))


class _WrongBytes(Exception):
    """The whole file came, and is not what is locked."""


class _AttemptFailed(Exception):
    """This attempt failed; another may not. `pause` is what the server asked for, in seconds."""

    def __init__(self, reason: str, pause: float | None = None) -> None:
        super().__init__(reason)
        self.pause = pause


@contextlib.contextmanager
def _own_part(part: Path, stop: threading.Event) -> Iterator[int]:
    """Opens a part and holds its lock, waiting for another process that does."""
    while True:
        descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if stop.wait(0.1):
                        raise Stopped
            if is_same_file(descriptor, part):  # else the other has renamed what we had opened
                yield descriptor
                return
        finally:
            os.close(descriptor)


def _stream(response: requests.Response) -> Iterator[bytes]:
    """The body as it comes: what has arrived is not lost when the connection breaks within a block."""
    return iter(lambda: response.raw.read1(_BLOCK, decode_content=False), b"")


def _asked_pause(response: requests.Response) -> float | None:
    text = response.headers.get("Retry-After", "").strip()
    if text.isdecimal():
        return float(text)
    try:
        moment = email.utils.parsedate_to_datetime(text)
    except (TypeError, ValueError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.timezone.utc)
    return max(0.0, (moment - datetime.datetime.now(datetime.timezone.utc)).total_seconds())


def spell_error(error: Exception) -> str:
    """The cause of a network error, without the layers around it."""
    if isinstance(error, (urllib3.exceptions.IncompleteRead, urllib3.exceptions.ProtocolError)):
        return "the connection ended early"
    cause: BaseException = error
    while True:
        inner = getattr(cause, "reason", None) or next((a for a in cause.args if isinstance(a, BaseException)), None)
        if not isinstance(inner, BaseException):
            break
        cause = inner
    text = str(cause.args[-1]) if cause.args else str(cause)
    return re.sub(r"//[^/@\s]*@", "//", text) or type(cause).__name__
