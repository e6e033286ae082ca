"""Writes the .lock files beside it from their .in files: each pinned package with the hashes of its files.

Uses the package client's own configuration, as `kiln fetch --relock` does: `python tests/relock.py`.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from packaging.markers import Marker, default_environment
from packaging.requirements import Requirement

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "v3python"))

from kiln_build.fetch.registry import Registry, read_configuration  # noqa: E402
from kiln_build.fetch.relock import locked_files  # noqa: E402
from kiln_recipe.compile.lock import LOCK_NAME, Package, read_lock  # noqa: E402


def main() -> None:
    registry = Registry(read_configuration())
    pythons = read_lock(HERE.parent / "input" / LOCK_NAME).pythons
    for source in sorted(HERE.glob("*.in")):
        _write(source.with_suffix(".lock"), _locked(source, pythons, registry))


def _locked(source: Path, pythons: Sequence[str], registry: Registry) -> str:
    text = source.read_text()
    accepted: dict[str, list[str]] = {}
    for name, digest in re.findall(r"^# accept (\S+) sha256:(\S+)", text, re.MULTILINE):
        accepted.setdefault(name, []).append(digest)
    lines = [f"# Made from {source.name} by `python tests/relock.py`."]
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        wanted = Requirement(line)
        asked = [python for python in pythons if _holds(wanted.marker, python)]
        (pin,) = wanted.specifier
        package = Package(name=wanted.name, version=pin.version, licence="", use="build")
        found = [file.sha256 for file in locked_files(package, asked, registry)]
        digests = sorted({*found, *accepted.get(wanted.name, [])})
        lines.append(" \\\n    ".join([str(wanted), *(f"--hash=sha256:{digest}" for digest in digests)]))
    return "\n".join(lines) + "\n"


def _write(path: Path, text: str) -> None:
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(text)
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)


def _holds(marker: Marker | None, python: str) -> bool:
    environment = {**default_environment(), "python_version": python, "python_full_version": f"{python}.0"}
    return marker is None or marker.evaluate(environment)


if __name__ == "__main__":
    main()
