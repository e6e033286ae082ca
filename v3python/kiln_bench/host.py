"""Runs host_time.py with a release's Python packages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln_bench import host_time

if TYPE_CHECKING:
    from kiln_bench.release.places import Place

PART = "host"
_SCRIPT = Path(__file__).with_name("host_time.py")
_LIMIT = 300.0  # seconds


def row(place: Place, side: str, seconds: float | None = None) -> dict[str, Any]:
    """A row of the results: microseconds of a call by each way that Python has to it, or why there are none.

    Args:
        seconds: the budget of the whole run; None: there is none.
    """
    found: dict[str, Any] = {"part": PART, "side": side, "microseconds": {}, "refused": {}, "wrong": {}, "images": {}}
    if place.site is None:
        return found | {"skipped": place.without_site}
    before = os.environ.get("PYTHONPATH", "")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (place.site, before)))}
    batches = host_time.BATCHES if seconds is None else max(5, min(host_time.BATCHES, int(seconds / 3)))
    command = [sys.executable, str(_SCRIPT), str(batches)]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=_LIMIT)
    except subprocess.TimeoutExpired:
        return found | {"skipped": f"it took more than {_LIMIT:.0f} s"}
    try:
        said = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return found | {"skipped": f"its Python package cannot be measured ({lines[-1]})"}
    return found | said | {"images": {side: said["images"]}}
