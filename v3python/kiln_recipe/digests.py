"""SHA-256 of files, and of what comes in blocks. Standard library only."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

_BLOCK = 1 << 20


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
