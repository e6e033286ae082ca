"""The Pythons of this host whose headers an extension can be compiled with."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kiln_recipe.errors import EnvironmentProblem

OLDEST = (3, 10)
STABLE = (3, 12)  # the first Python whose stable ABI has what nanobind needs
NEWEST = (3, 14)  # of those that are looked for by name
_MULTIARCH = "x86_64-linux-gnu"  # where Debian has the headers that differ by machine

_ASK = """
import json, sys, sysconfig
paths = sysconfig.get_paths()
print(json.dumps({
    "implementation": sys.implementation.name,
    "version": list(sys.version_info[:2]),
    "full": sys.version.split()[0],
    "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    "debug": bool(sysconfig.get_config_var("Py_DEBUG")),
    "machine": sysconfig.get_platform(),
    "include": sorted({paths["include"], paths["platinclude"]}),
}))
"""


@dataclass(frozen=True)
class Headers:
    """The headers of a CPython.

    Attributes:
        version: (3, 11).
        full: "3.11.7".
        include: folders.
        multiarch: folders whose headers those of `include` name by the last two parts of their path, as Debian's
            pyconfig.h does: /usr/include/x86_64-linux-gnu/python3.11.
    """

    version: tuple[int, int]
    full: str
    include: tuple[Path, ...]
    multiarch: tuple[Path, ...] = ()

    @property
    def is_stable(self) -> bool:
        """Whether an extension built with them is for the stable ABI."""
        return self.version >= STABLE

    @property
    def tags(self) -> tuple[str, str]:
        """Python and ABI tag of a wheel: ("cp311", "cp311"), ("cp312", "abi3")."""
        version = STABLE if self.is_stable else self.version
        python = "cp{}{}".format(*version)
        return python, "abi3" if self.is_stable else python

    @property
    def file_name(self) -> str:
        """What such a Python calls the extension."""
        if self.is_stable:
            return "_core.abi3.so"
        return "_core.cpython-{}{}-x86_64-linux-gnu.so".format(*self.version)


def headers_of(python: str) -> Headers:
    """The headers of a Python.

    Args:
        python: its command.

    Raises:
        EnvironmentProblem: it cannot be run, has no headers, or is one that Kiln's extension is not made for.
    """
    try:
        done = subprocess.run([python, "-I", "-c", _ASK], capture_output=True, text=True, timeout=60)
        facts = json.loads(done.stdout) if done.returncode == 0 else None
    except (OSError, ValueError, subprocess.TimeoutExpired):
        facts = None
    if facts is None:
        raise EnvironmentProblem(
            f"{python} cannot be run as a Python; name one that is installed, by its command or its path"
        )
    name = f"{python} (Python {facts['full']})"
    if facts["implementation"] != "cpython" or tuple(facts["version"]) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise EnvironmentProblem(f"{name} is not supported by Kiln's extension, which needs CPython {oldest} or later")
    if facts["free_threaded"] or facts["debug"]:
        kind = "free-threaded" if facts["free_threaded"] else "debug"
        raise EnvironmentProblem(f"{name} is a {kind} build, which Kiln's extension does not support; name another")
    if facts["machine"] != "linux-x86_64":
        raise EnvironmentProblem(f"{name} is for {facts['machine']}; Kiln's extension supports linux-x86_64")
    include = tuple(Path(folder) for folder in facts["include"])
    if not any((folder / "Python.h").is_file() for folder in include):
        raise EnvironmentProblem(
            f"{name} has no headers: {include[0]}/Python.h does not exist; "
            "install its development package (python3.X-dev, python3.X-devel)"
        )
    beside = (folder.parent / _MULTIARCH / folder.name for folder in include)
    multiarch = tuple(folder for folder in beside if (folder / "pyconfig.h").is_file())
    return Headers(tuple(facts["version"]), facts["full"], include, multiarch)


def python_commands(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Commands of Pythons that may have headers: the one that runs, then python3.10 and later on PATH, then pyenv's;
    of each version the newest of pyenv's first. None of them has been run."""
    names = [f"python{OLDEST[0]}.{minor}" for minor in range(OLDEST[1], NEWEST[1] + 1)]
    found = [sys.executable, *(shutil.which(name, path=environment.get("PATH", "")) for name in names)]
    root = Path(environment.get("PYENV_ROOT") or Path(environment.get("HOME", "/nonexistent")) / ".pyenv")
    folders = [(_numbers(path.name), path) for path in (root / "versions").glob("3.*") if _numbers(path.name)]
    found += [str(path / "bin/python") for _, path in sorted(folders, reverse=True)]
    return tuple(dict.fromkeys(os.path.normpath(command) for command in found if command))


def _numbers(name: str) -> tuple[int, ...]:
    """(3, 11, 7) of "3.11.7"; () of what is no release."""
    return tuple(map(int, name.split("."))) if re.fullmatch(r"3(\.[0-9]{1,4}){2}", name) else ()
