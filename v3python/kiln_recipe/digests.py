"""SHA-256 of files, and of what comes in blocks; how it is written. Standard library only."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from pathlib import Path

PATTERN = "[0-9a-f]{64}"
_BLOCK = 1 << 20
_DIGEST = re.compile(PATTERN)


def is_digest(text: str) -> bool:
    """Whether a text can be a digest."""
    return _DIGEST.fullmatch(text) is not None


def measure(blocks: Iterable[bytes], tell: Callable[[int], object] = lambda size: None) -> tuple[str, int]:
    """SHA-256 and size of what comes in blocks; `tell` hears the size of each."""
    digest, size = hashlib.sha256(), 0
    for block in blocks:
        digest.update(block)
        size += len(block)
        tell(len(block))
    return digest.hexdigest(), size


def measure_file(path: Path, tell: Callable[[int], object] = lambda size: None) -> tuple[str, int]:
    """SHA-256 and size of a file."""
    with path.open("rb") as file:
        return measure(iter(lambda: file.read(_BLOCK), b""), tell)


def of_file(path: Path) -> str:
    """SHA-256 of a file."""
    return measure_file(path)[0]


def of_text(text: str) -> str:
    """SHA-256 of a text, as UTF-8."""
    return hashlib.sha256(text.encode()).hexdigest()
