"""Processes whose package `kiln` is the one that is tested."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INSIDE = Path(__file__).resolve().parent / "inside"


def python(site: Path, *words: object, interpreter: object = sys.executable) -> subprocess.CompletedProcess[str]:
    """Runs a Python whose `kiln` is that of `site`; with the modules of inside/, and ffi."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "KILN"))}
    environment |= {
        "PYTHONPATH": os.pathsep.join(map(str, (site, INSIDE, ROOT / "tests/runtime"))),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    words = [str(word) for word in (interpreter, *words)]
    return subprocess.run(words, env=environment, capture_output=True, text=True, cwd=INSIDE, timeout=900)
