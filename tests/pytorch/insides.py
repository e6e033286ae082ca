"""Runs a file of inside/ by a pytest of its own, where `kiln` is the package that users import."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
INSIDE = HERE / "inside"


def run(site: Path, name: str, *words: str) -> str:
    """pytest's output for a file, whose failures are one here.

    Args:
        site: a folder of tests/bindings/python_site.py.
    """
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-ra", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", INSIDE,
         INSIDE / name, *words],
        env={**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{HERE}", "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    return done.stdout
