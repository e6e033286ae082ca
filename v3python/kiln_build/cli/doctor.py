"""`kiln doctor`: looks at this host, and says what would keep a build from working."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from kiln_build.base import ROOT
from kiln_recipe.console.spelling import print_text, spell_size
from kiln_recipe.console.usage import path
from kiln_recipe.errors import EnvironmentProblem, KilnError

EXAMPLE = """
kiln doctor                       exit code 7 if a build would not work
kiln doctor --input input --json
"""


@dataclass(frozen=True)
class Finding:
    """One thing looked at. `state`: "good", "note" (worth knowing), "bad" (a build would not work)."""

    state: str
    what: str
    detail: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--input",
        type=path("--input", "the folder input/ of the source tree, or a copy of it"),
        default=ROOT / "input",
        metavar="FOLDER",
        help="default: input/",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="as JSON: a list, with state (good, note, bad), what and detail of each finding",
    )


def run(arguments: argparse.Namespace) -> int:
    findings = list(examine(arguments.input.absolute()))
    if arguments.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        for finding in findings:
            print_text(f"{finding.state:4}  {finding.what:12} {finding.detail}", has_lines=False)
    return EnvironmentProblem.exit_code if any(finding.state == "bad" for finding in findings) else 0


def examine(folder: Path) -> Iterator[Finding]:
    """All findings, for the input folder `folder`."""
    for part in (_python, _machine, _memory, _source, _variables, _engines):
        yield from part()
    yield from _cache(folder)
    yield from _toolchain(folder)


def _python() -> Iterator[Finding]:
    version = platform.python_version()
    fits = (3, 10) <= sys.version_info[:2] <= (3, 14) and sys.implementation.name == "cpython"
    detail = f"{sys.implementation.name} {version}, {sys.executable}"
    yield Finding("good" if fits else "bad", "python", detail + ("" if fits else "; needed: CPython 3.10 to 3.14"))
    missing = [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]
    if missing:
        yield Finding("bad", "python", f"{' and '.join(missing)} are missing (Debian: apt install python3-venv)")


def _machine() -> Iterator[Finding]:
    libc, version = platform.libc_ver()
    system = f"{platform.system()} {platform.machine()}, {libc} {version}"
    good = platform.machine() == "x86_64" and libc == "glibc" and _numbers(version) >= (2, 28)
    yield Finding("good" if good else "bad", "system", system + ("" if good else "; needed: x86_64 and glibc 2.28"))


def _memory() -> Iterator[Finding]:
    from kiln_build.base import machine
    from kiln_build.front import workspace

    available = machine.usable_memory()
    yield Finding("good", "memory", f"{spell_size(available)} available, {os.cpu_count()} processors")
    mounts = Path("/proc/self/mounts").read_text()
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    folders = workspace.memory_folders(mounts, runtime, available, workspace.MEMORY_NEEDED)
    fit = next((f for f in folders if not f.refusal), None)
    if fit:
        yield Finding("good", "tmpfs", f"{fit.path}, {spell_size(fit.free)} free")
    else:
        tried = "; ".join(f"{f.path}: {f.refusal}" for f in folders) or "none"
        yield Finding("note", "tmpfs", f"the workspace `tmpfs` would not work here ({tried}); a folder does")


def _source() -> Iterator[Finding]:
    from kiln_build.front import source

    if not shutil.which("git"):
        yield Finding("note", "git", "not installed: tags cannot be built, and the commit is recorded as unknown")
    origin = source.describe(ROOT)
    yield Finding(
        "good", "source", f"{ROOT}, commit {origin.commit[:12]}" + (", changed since" if origin.dirty else "")
    )


def _variables() -> Iterator[Finding]:
    from kiln_build.options.options import check_variables
    from kiln_build.options.variables import BUILD, DOOR, VARIABLES, read

    for name in VARIABLES:
        if os.environ.get(name):
            yield Finding("note", "variable", f"{name}={os.environ[name]}")
    try:
        for warning in check_variables(os.environ):
            yield Finding("note", "variable", warning)
        read((*BUILD, *DOOR), os.environ)
    except KilnError as error:
        yield Finding("bad", "variable", str(error))


def _engines() -> Iterator[Finding]:
    """As build.sh chooses, but for the registry of a base image, which is not asked: this looks at the host alone."""
    from kiln_build.front import engine
    from kiln_build.options.variables import CONTAINER_ENGINES

    asked = os.environ.get("KILN_ENGINE") or "auto"
    if asked == "none":
        yield Finding("good", "engines", "none, as KILN_ENGINE says: this host builds")
        return
    base = os.environ.get("KILN_BASE_IMAGE") or engine.default_base(ROOT / engine.DOCKERFILE)
    reasons = []
    for name in [asked] if asked in CONTAINER_ENGINES else CONTAINER_ENGINES:
        if reason := engine.trouble(name):
            reasons.append(f"{name}: {reason}")
            continue
        if engine.has_base(name, base):
            yield Finding("good", "engines", f"{name} answers, and has the base image")
        else:
            answers = f"{name} answers, and has no base image: a build asks the registry of {base}"
            yield Finding("note", "engines", f"{answers}, unless KILN_ENGINE=none")
        return
    tried = "; ".join(reasons)
    if asked in CONTAINER_ENGINES:
        yield Finding("bad", "engines", f"KILN_ENGINE={asked} does not work here ({tried}); leave it out, or say none")
    else:
        yield Finding("good", "engines", f"none works: this host builds, which needs none ({tried})")


def _cache(folder: Path) -> Iterator[Finding]:
    if importlib.util.find_spec("msgspec") is None or importlib.util.find_spec("yaml") is None:
        yield Finding("note", "cache", "not looked at: that needs msgspec and PyYAML, which build.sh installs")
        return
    from kiln_recipe.compile.lock import LOCK_NAME, read_lock, running_python

    try:
        lock = read_lock(folder / LOCK_NAME)
    except KilnError as error:
        yield Finding("bad", "cache", str(error))
        return
    wanted = lock.wanted([running_python()])
    # Sizes only: `kiln fetch --verify` reads the bytes.
    missing = [file for file in wanted if not _has_size(folder / "cache" / file.name, file.size)]
    if missing:
        size = spell_size(sum(file.size for file in missing))
        detail = f"{len(missing)} of {len(wanted)} files are missing, {size}; `kiln fetch` downloads them"
        yield Finding("note", "cache", detail)
    else:
        yield Finding("good", "cache", f"{len(wanted)} files for Python {running_python()}")


def _toolchain(folder: Path) -> Iterator[Finding]:
    if importlib.util.find_spec("triton") is None:
        yield Finding("note", "triton", "not installed for this Python; build.sh installs it into its workspace")
        return
    from kiln_recipe.compile.lock import LOCK_NAME, read_lock
    from kiln_recipe.compile.toolchain import find_toolchain

    try:
        wheels = read_lock(folder / LOCK_NAME).members_of("triton")
        found = find_toolchain(Path(sysconfig.get_paths()["purelib"]), wheels)
        yield Finding("good", "triton", f"{found.triton_version}, identity {found.identity[:16]}")
    except KilnError as error:
        yield Finding("note", "triton", str(error))


def _has_size(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())
