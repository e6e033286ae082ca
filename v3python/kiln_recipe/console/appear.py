"""Files and folders that appear complete, by rename. Runs wherever Python does: the inspector of a release needs it."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

from kiln_recipe.errors import is_full, unwritable


@contextlib.contextmanager
def appear(path: Path) -> Iterator[Path]:
    """Gives a free name beside `path`; the file that is there in the end takes the name `path`, by rename.

    If it fails on the way nothing of it is left, and what stood at `path` stands there still.
    """
    fresh = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}")
    try:
        yield fresh
        os.replace(fresh, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(fresh)
        if isinstance(error, OSError) and str(error.filename) == str(fresh):  # a name that nobody has given
            error.filename = str(path)
        raise


def write_whole(path: Path, content: str | bytes) -> None:
    """Writes a file, which appears complete; a text as UTF-8.

    Raises:
        EnvironmentProblem: it cannot be written.
    """
    try:
        with appear(path) as fresh:
            fresh.write_bytes(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise unwritable(path, error) from error


@contextlib.contextmanager
def passing_folder(prefix: str, within: Path) -> Iterator[Path]:
    """An empty folder for as long as it is needed; also an interruption while it is being removed leaves nothing.

    Raises:
        EnvironmentProblem: the disk of `within` is full.
    """
    fresh = Path(tempfile.mkdtemp(prefix=prefix, dir=within))
    try:
        yield fresh
    except OSError as error:
        if is_full(error) and not error.filename:  # as of a write, which does not say where
            raise unwritable(within, error) from error
        raise
    finally:
        try:
            shutil.rmtree(fresh)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise


@contextlib.contextmanager
def appear_folder(path: Path) -> Iterator[Path]:
    """`appear` for a folder, which is there and empty at first; the folder at `path` is removed before the rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        os.chmod(fresh, 0o755)
        yield fresh
        if path.exists():
            shutil.rmtree(path)
        os.replace(fresh, path)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
