"""Finds Pythons of this host by their version."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def find(version: str) -> str:
    """A Python of this version: pyenv's, or one on PATH that runs."""
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    commands = [*map(str, root.glob(f"versions/{version}.*/bin/python")), shutil.which(f"python{version}")]
    for command in filter(None, commands):
        if subprocess.run([command, "-c", ""], capture_output=True).returncode == 0:
            return command
    pytest.skip(f"needs a Python {version}")
