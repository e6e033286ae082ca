"""The repository's own ledger is the tree's: every image that the tree makes is in it, with what it takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kiln_recipe import targets

ROOT = Path(__file__).resolve().parents[1]
TARGETS = {target.name for target in targets.load() if target.residency}


def kiln_ledger(*words: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "v3python")}
    command = [sys.executable, "-m", "kiln_build", "ledger", *words]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


def test_every_image_is_in_the_ledger_and_what_is_worse_has_a_reason():
    done = kiln_ledger("--json")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    images = {one["target"]: one["images"] for one in json.loads(done.stdout)["ledgers"]}
    assert set(images) == TARGETS and min(images.values()) > 500


@pytest.mark.slow(25)
def test_images_drawn_from_it_are_as_it_says():
    done = kiln_ledger("--sample", "4", "--jobs", "2")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "4 images compiled, 0 differ from the ledger" in done.stdout
