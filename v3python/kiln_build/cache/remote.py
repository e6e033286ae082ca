"""What a cache is asked, and what of its answers is believed: entries and blobs become images, and images them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from kiln_build.cache import entry
from kiln_build.cache.access import Access
from kiln_build.cache.budget import Budget
from kiln_build.cache.entry import Blob, Entry, Unusable
from kiln_build.cache.transport import AC, CAS, Failed, Transport
from kiln_build.store.upkeep import Contradictions
from kiln_build.trust import minisign
from kiln_recipe.errors import TrustError
from kiln_recipe.images import judge
from kiln_recipe.images.image import Image

T = TypeVar("T")


class Remote:
    """A cache; used by several threads at once. No method raises for what the other side does.

    Args:
        said: is given a sentence for each thing that came and is not believed.
        contradictions: where an image contradicts what is stated of it; None: as `judge` has it.

    Attributes:
        counts: "hits", "misses", "unusable", "sent" images; "bytes in" and "bytes out".
    """

    def __init__(
        self,
        transport: Transport,
        access: Access,
        budget: Budget,
        said: Callable[[str], None],
        contradictions: Contradictions | None = None,
    ) -> None:
        self._transport, self._access, self.budget = transport, access, budget
        self._said, self._contradictions = said, contradictions or judge.contradictions
        self._lock = threading.Lock()
        self._blobs: set[str] = set()  # what we have put
        self.counts: Counter[str] = Counter()

    @property
    def is_read_only(self) -> bool:
        return self._access.is_read_only

    def fetch(self, key: str) -> tuple[Entry, Image] | None:
        """The image of a key, and its entry; None if there is none that can be believed."""
        try:
            found = self._fetch(key)
        except Failed:
            return None
        except Unusable as problem:
            self._count("unusable")
            self._said(f"{problem}; it is not used")
            return None
        self._count("hits" if found else "misses")
        return found

    def has(self, key: str) -> bool | None:
        """Whether there is an entry that would be believed; None if the cache does not answer."""
        try:
            return self._entry(key) is not None
        except Failed:
            return None
        except Unusable:
            return False

    def send(self, key: str, image: Image, ir: str, seconds: float) -> bool:
        """Puts an image, its blobs first; whether that went well. What is there is replaced."""
        packed = entry.pack(key, image, ir, seconds)
        signature = b""
        if self._access.key is not None:
            signature = minisign.sign(self._access.key, [packed.content], entry.comment(key)).spell()
        try:
            for name, frame in packed.blobs.items():
                if name not in self._blobs:
                    self._put(CAS, name, frame)
                    with self._lock:
                        self._blobs.add(name)
            self._put(AC, key, entry.encode(packed, signature))
        except Failed:
            return False
        self._count("sent")
        return True

    def close(self) -> None:
        self._transport.close()

    # ---- inside ----

    def _fetch(self, key: str) -> tuple[Entry, Image] | None:
        if (found := self._entry(key)) is None:
            return None
        code, ptx = self._blob(found.code, key), self._blob(found.ptx, key) if found.ptx else None
        if code is None or (found.ptx and ptx is None):  # the server has made room
            return None
        if wrong := self._contradictions(found.info, code):
            raise Unusable(f"{_what(key)} has an image that {'; it '.join(wrong)}")
        try:
            return found, Image(code, found.info, None if ptx is None else ptx.decode())
        except UnicodeDecodeError:
            raise Unusable(f"{_what(key)} has PTX that is not a text") from None

    def _entry(self, key: str) -> Entry | None:
        """
        Raises:
            Failed: the cache does not answer.
            Unusable: what is under the key is not to be believed.
        """
        data = self._ask(lambda: self._transport.get(AC, key, entry.LARGEST_ENTRY))
        if data is None:
            return None
        self._count("bytes in", len(data))
        try:
            content, signature = entry.split(data)
            self._check_signature(key, content, signature)
            return entry.decode(content, key)
        except Unusable as problem:
            raise Unusable(f"{_what(key)} {problem}") from None

    def _check_signature(self, key: str, content: bytes, signature: bytes) -> None:
        """
        Raises:
            Unusable: it must be signed by a trusted key, and is not.
        """
        if not self._access.trusted:
            return
        if not signature:
            raise Unusable("is not signed")
        try:
            made = minisign.read_signature(signature, "its signature")
        except TrustError as error:
            raise Unusable(f"is not signed: {error}") from None
        if made.comment != entry.comment(key).encode():
            raise Unusable("is signed as something else")
        if not any(minisign.is_signed(one, made, [content]) for one in self._access.trusted):
            raise Unusable("is not signed by a key that is trusted")

    def _blob(self, blob: Blob, key: str) -> bytes | None:
        frame = self._ask(lambda: self._transport.get(CAS, blob.blob, blob.stored))
        if frame is None:
            return None
        self._count("bytes in", len(frame))
        try:
            return entry.unpack(blob, frame)
        except Unusable as problem:
            raise Unusable(f"the cache's blob {blob.blob[:16]} of {key[:16]} {problem}") from None

    def _put(self, kind: str, name: str, data: bytes) -> None:
        self._ask(lambda: self._transport.put(kind, name, data))
        self._count("bytes out", len(data))

    def _ask(self, request: Callable[[], T]) -> T:
        """
        Raises:
            Failed: it failed, or the cache is left alone by now.
        """
        if self.budget.is_spent:
            raise Failed(self.budget.why)
        began = self.budget.clock()
        try:
            answer = request()
        except Exception as error:  # noqa: BLE001  (whatever a library makes of what the other side does)
            failure = error if isinstance(error, Failed) else Failed(f"{type(error).__name__}: {error}"[:200])
            self.budget.failed(str(failure), self.budget.clock() - began)
            raise failure from None
        self.budget.succeeded()
        return answer

    def _count(self, what: str, number: int = 1) -> None:
        with self._lock:
            self.counts[what] += number


def _what(key: str) -> str:
    return f"the cache's entry of {key[:16]}"
