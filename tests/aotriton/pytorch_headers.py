"""PyTorch's own headers, of the wheels that pytorch/headers.lock names; nothing else of a wheel is kept."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import nativebuild

LOCK = Path(__file__).resolve().parent / "pytorch/headers.lock"
PLATFORMS = ("macosx_14_0_arm64", "macosx_11_0_arm64")

# Which interfaces a version's headers compile against; the last is what that PyTorch is meant for.
INTERFACES = {
    "2.9": ("0.11",), "2.10": ("0.11",), "2.11": ("0.11",), "2.12": ("0.11",), "2.13": ("0.12", "0.13"),
    "2.14": ("0.12", "0.13"), "2.15": ("0.12", "0.13", "0.14"),
}  # fmt: skip


def locked() -> dict[str, str]:
    """The full version of each, by the first two numbers."""
    return {full.rpartition(".")[0]: full for full in re.findall(r"^torch==(\S+)", LOCK.read_text(), re.MULTILINE)}


def include(version: str) -> Path:
    """The folder include/ of a version, "2.15"; downloaded once.

    Raises:
        subprocess.CalledProcessError: the package client does not give the wheel that is locked.
    """
    full = locked()[version]
    folder = nativebuild.cache() / f"torch-headers-{full}"
    if not folder.is_dir():
        with tempfile.TemporaryDirectory(dir=nativebuild.cache()) as place:
            unpacked = Path(place) / "unpacked"
            with zipfile.ZipFile(_download(full, Path(place))) as wheel:
                wheel.extractall(unpacked, [name for name in wheel.namelist() if name.startswith("torch/include/")])
            os.rename(unpacked, folder)
    return folder / "torch/include"


def _download(full: str, place: Path) -> Path:
    (line,) = (line for line in LOCK.read_text().splitlines() if line.startswith(f"torch=={full} "))
    (place / "lock").write_text(line + "\n")
    platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:",
         *platforms, "--python-version", "3.12", "--dest", place, "--requirement", place / "lock"],
        check=True,
    )  # fmt: skip
    return next(place.glob("torch-*.whl"))
