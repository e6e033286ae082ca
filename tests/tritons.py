"""Other versions of Triton than the toolchain's, for tests of kiln.jit: each in a folder of its own beside the tests'
environment, installed from triton.lock when it is first asked for.

Two are tested by default, the oldest and the newest, since each is 200 MB to fetch and up to 1 GB on disk; with
KILN_TEST_TRITON=all every one is.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

_LOCK = Path(__file__).with_name("triton.lock")
# By version, oldest first, what pip is to be told: a line and its hashes.
PINS = {
    pin[2]: pin[0] for pin in re.finditer(r"^(triton==([\d.]+).*?) \\\n(?: .*\n)+", _LOCK.read_text(), re.MULTILINE)
}


def chosen() -> list[str]:
    """The versions to test, of those that there are for this Python."""
    there = [version for version, pin in PINS.items() if _is_for_us(pin)]
    return there if os.environ.get("KILN_TEST_TRITON") == "all" else [there[0], there[-1]]


def _is_for_us(pin: str) -> bool:
    marker = Requirement(pin.partition(" \\\n")[0]).marker
    return marker is None or marker.evaluate()


def installed(version: str) -> Path:
    """The folder to import a version from. Skips the test if it cannot be installed."""
    folder = Path(sys.prefix).parent / "tritons"
    place = folder / version
    folder.mkdir(exist_ok=True)
    with open(folder / f"{version}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.is_dir():
            _install(version, place)
    return place


def begin(folder: str, version: str) -> None:
    """Makes this process one that has the version in a folder."""
    sys.path.insert(0, folder)
    import triton

    assert triton.__version__ == version and triton.__file__.startswith(folder)


def _install(version: str, place: Path) -> None:
    made = Path(tempfile.mkdtemp(prefix=f"{version}-", dir=place.parent))
    try:
        pin = made / "pin.txt"
        pin.write_text(PINS[version])
        flags = "--require-hashes --no-deps --only-binary :all: --no-cache-dir --quiet --disable-pip-version-check"
        pip = [sys.executable, "-m", "pip", "install", *flags.split()]
        done = subprocess.run(
            [*pip, "--target", str(made / "site"), "-r", str(pin)], capture_output=True, text=True, check=False
        )
        assert "HASHES" not in done.stderr, done.stderr  # another file than is locked is no reason to go on
        if done.returncode:
            pytest.skip(f"Triton {version} could not be installed: {done.stderr.strip().splitlines()[-1]}")
        os.replace(made / "site", place)
    finally:
        shutil.rmtree(made)
