"""Runs an NVIDIA assembler so that its bytes depend on the PTX and the options alone.

`ptxas` breaks ties by the order of pointers: from one PTX it made one of six cubins, by where its memory lay. Here

- its memory lies at fixed addresses, by a library that is preloaded into it (csrc/assembler/heap.c);
- all that it is called with has a fixed name, in a folder of its own: it copies names into memory, so their lengths
  move what is allocated after them.

Triton composes the command; it is changed where Triton's backend starts it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from kiln_recipe.errors import EnvironmentProblem, ToolchainError

_PROGRAM, _HEAP, _SOURCE, _BINARY = "./ptxas", "./heap.so", "in.ptx", "out.cubin"
_ADDRESSES_IN_USE = 70  # heap.c exits with it


@contextlib.contextmanager
def canonical(backend: ModuleType, heap: str, libraries: str = "") -> Iterator[None]:
    """While it is entered, the assembler that Triton's NVIDIA backend starts runs as the module says.

    Args:
        backend: the module triton.backends.nvidia.compiler.
        heap: path of the library that heap.c was compiled to.
        libraries: LD_LIBRARY_PATH, where a host's C library is found by it.

    Raises:
        EnvironmentProblem: the library cannot be loaded here, or its addresses are in use.
        ToolchainError: this Triton starts its assembler in a way that is not known.
    """
    runs = _Subprocess(heap, libraries)
    kept, backend.subprocess = backend.subprocess, runs  # type: ignore[attr-defined]
    try:
        yield
    finally:
        backend.subprocess = kept  # type: ignore[attr-defined]
    if not runs.count:
        raise ToolchainError("this Triton does not start its assembler by subprocess.run, as Kiln expects it")


def run(
    heap: str, program: str, flags: Sequence[str], source: str, binary: str, libraries: str = "", **options: Any
) -> subprocess.CompletedProcess:
    """Assembles the PTX of the file `source` into the file `binary`.

    Args:
        heap, libraries: as `canonical` has them.
        program, flags: the assembler and its options, but for the files.
        options: those of `subprocess.run`.

    Raises:
        EnvironmentProblem: the library cannot be loaded here, or its addresses are in use.
        subprocess.CalledProcessError: the assembler failed, and `options` ask for this.
    """
    _check_loads(heap, program, libraries)
    with _folder(heap, program) as folder:
        (folder / _SOURCE).symlink_to(os.path.abspath(source))
        command = [_PROGRAM, *flags, _SOURCE, "-o", _BINARY]
        try:
            done = subprocess.run(command, cwd=folder, env=_environment(libraries), **options)
        except subprocess.CalledProcessError as error:
            if error.returncode != _ADDRESSES_IN_USE:
                raise
            raise EnvironmentProblem(
                f"{program} cannot have its memory at the addresses that make its bytes equal on every host, since "
                "they are in use; build without what is preloaded into every program (/etc/ld.so.preload)"
            ) from error
        if (folder / _BINARY).exists():
            shutil.move(folder / _BINARY, binary)
        return done


class _Subprocess:
    """Stands in for the module `subprocess` in Triton's backend."""

    def __init__(self, heap: str, libraries: str) -> None:
        self.count = 0
        self._heap = heap
        self._libraries = libraries

    def __getattr__(self, name: str) -> Any:
        return getattr(subprocess, name)

    def run(self, command: Sequence[str], **options: Any) -> subprocess.CompletedProcess:
        self.count += 1
        program, *flags, source, output, binary = command
        if output != "-o" or not source.endswith(".ptx"):
            raise ToolchainError(
                f"this Triton ends its assembler's command with {' '.join(command[-3:])} instead of a .ptx file, -o "
                "and the file to write"
            )
        return run(self._heap, program, flags, source, binary, self._libraries, **options)


@contextlib.contextmanager
def _folder(heap: str, program: str) -> Iterator[Path]:
    """A new folder with the program and the library under their fixed names."""
    with tempfile.TemporaryDirectory(prefix="kiln-ptxas-") as name:
        folder = Path(name)
        (folder / _PROGRAM).symlink_to(os.path.abspath(program))
        (folder / _HEAP).symlink_to(os.path.abspath(heap))
        yield folder


def _environment(libraries: str) -> dict[str, str]:
    """The heap goes by a name without what LD_PRELOAD splits at."""
    return {"LD_PRELOAD": _HEAP, **({"LD_LIBRARY_PATH": libraries} if libraries else {})}


@functools.cache
def _check_loads(heap: str, program: str, libraries: str) -> None:
    """The loader passes over what it cannot preload, and says so at most: so it is asked what it would load."""
    asking = {**_environment(libraries), "LD_TRACE_LOADED_OBJECTS": "1"}
    with _folder(heap, program) as folder:
        asked = subprocess.run([_PROGRAM], cwd=folder, env=asking, capture_output=True, text=True)
    if _HEAP not in asked.stdout:
        said = (asked.stderr or asked.stdout).strip().splitlines()
        raise EnvironmentProblem(
            f"{heap} cannot be preloaded into {program}, whose bytes would not be equal on every host "
            f"({said[0] if said else 'the loader gives no reason'}); build on Linux for x86-64 with glibc 2.28 or later"
        )
