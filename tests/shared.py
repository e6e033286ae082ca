"""What several tests need and none changes: made once for a run of pytest, whatever the number of its processes.

The process that starts a run makes the folder, tells it to the workers of pytest-xdist (conftest.py) and removes it at
the end. A test that changes what lies in it works on a copy of its own.
"""

from __future__ import annotations

import atexit
import fcntl
import shutil
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

_folder: Path | None = None


def folder() -> Path:
    """The run's folder. A script that pytest did not start has one for itself."""
    global _folder
    if _folder is None:
        _folder = Path(tempfile.mkdtemp(prefix="kiln-shared-"))
        atexit.register(shutil.rmtree, _folder, ignore_errors=True)
    return _folder


def use(path: Path) -> None:
    """Takes the folder of the process that started this one."""
    global _folder
    _folder = path


def once(name: str, make: Callable[[Path], object], within: Path | None = None) -> Path:
    """The folder `name`, which make(folder) filled in the first process that asked; the others wait for it.

    Args:
        within: where it lies, if not in the run's folder; there what an earlier run made is taken.

    Raises:
        AssertionError: making it failed, here or in another process. It is not tried again.
    """
    parent = within or folder()
    parent.mkdir(parents=True, exist_ok=True)
    place, made, failed = parent / name, parent / f"{name}.made", parent / f"{name}.failed"
    with (parent / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if failed.exists() and not within:
            raise AssertionError(f"{name} could not be made:\n{failed.read_text()}")
        if not made.exists():
            shutil.rmtree(place, ignore_errors=True)  # of a process that was killed
            place.mkdir()
            try:
                make(place)
            except Exception:
                failed.write_text(traceback.format_exc())
                raise
            made.touch()
    return place
