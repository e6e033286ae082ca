"""Checkouts that the tests of rebuilds and of merges take releases from: small ones whose build.sh stands in for a
build, and one of this tree."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from kiln_build.front import source
from kiln_recipe.compile.lock import LOCK_NAME

ROOT = Path(__file__).resolve().parents[1]


def git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=A", "-c", "user.email=a@b", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def checkout_of(folder: Path, build: str) -> Path:
    """The folder, made a repository of one commit: this tree's lock, and a build.sh of that text."""
    (folder / "input").mkdir(parents=True)
    shutil.copy(ROOT / "input" / LOCK_NAME, folder / "input")
    (folder / "build.sh").write_text(build)
    return _committed(folder)


def checkout_of_this_tree(folder: Path) -> Path:
    """The folder, made a repository of one commit: this tree as it is."""
    source.copy_tree(ROOT, folder, source.Origin("unknown", False))
    (folder / source.ORIGIN_NAME).unlink()
    return _committed(folder)


def _committed(folder: Path) -> Path:
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "One")
    return folder
