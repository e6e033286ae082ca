"""What a build keeps in its workspace for the next: files under a name that tells what they were made of, each with its
own digest beside it. One that is not what it was when it was made is made again.

<file>         what was made
<file>.sha256  64 hexadecimal digits and a newline; written last
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from kiln_recipe import digests
from kiln_recipe.console.appear import appear


def is_whole(path: Path) -> bool:
    """Whether the file is there as it was sealed."""
    if not path.is_file() or not _seal(path).is_file():
        return False
    try:
        return _seal(path).read_text() == f"{digests.of_file(path)}\n"
    except (OSError, UnicodeDecodeError):
        return False


def seal(path: Path) -> None:
    """Remembers what the file holds."""
    with appear(_seal(path)) as fresh:
        fresh.write_text(f"{digests.of_file(path)}\n")


def clear(folder: Path, pattern: str) -> None:
    """Removes the files of a folder that are named so, and their seals."""
    for path in folder.glob(pattern):
        for old in (_seal(path), path):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(old)


def _seal(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")
