"""Compiles the executor: machine/*.c and hip.c, and of tests/runtime what reads an image's parameters."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

HERE = Path(__file__).resolve().parent
RUNTIME = HERE.parent / "runtime"
SOURCES = [*sorted((HERE / "machine").glob("*.c")), HERE / "hip.c", RUNTIME / "fake_image.c"]
HEADERS = [*sorted((HERE / "machine").glob("*.h")), RUNTIME / "fake_internal.h", RUNTIME / "fake_driver.h"]
# Floating-point operations are executed as they are written: none fused, none assumed not to trap or to have no NaN.
FLAGS = [
    "-std=gnu11", "-O3", "-march=native", "-ffp-contract=off", "-frounding-math", "-fno-trapping-math",
    "-g", "-fPIC", "-Wall", "-Wextra",
    "-Werror", "-fvisibility=hidden", f"-I{HERE / 'machine'}", f"-I{RUNTIME}",
]  # fmt: skip
NAME = "libexecutor.so"
AS_DRIVER = "libamdhip64.so.6"  # by which a program finds it


def _digest(flags: list[str], sources: list[Path]) -> str:
    """Of all that the result depends on; a processor may lack what another has."""
    try:
        processor = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags"))
    except (OSError, StopIteration):
        processor = ""
    found = hashlib.sha256(repr((flags, processor)).encode())
    for path in sources + HEADERS:
        found.update(path.read_bytes())
    return found.hexdigest()[:24]


@cache
def library(*flags: str) -> Path:
    """The path of the executor's library, compiled if it is not there yet, for the user's next run too. Beside it lies
    the same under the driver's name.

    Args:
        flags: for the compiler besides, -fsanitize=undefined for example.

    Raises:
        SystemExit: there is no C compiler, or it failed.
    """
    every = [*FLAGS, *flags]
    folder = Path(tempfile.gettempdir()) / f"kiln-executor-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    made = folder / _digest(every, SOURCES)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (made / NAME).is_file():
            made.mkdir(exist_ok=True)
            with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
                objects = list(pool.map(lambda source: _compiled(folder / "objects", every, source), SOURCES))
            _link(made, every, objects)
    return made / NAME


def _compiled(folder: Path, flags: list[str], source: Path) -> Path:
    """A source's object, which is kept: of many only one may have changed."""
    folder.mkdir(exist_ok=True)
    made = folder / f"{source.stem}-{_digest(flags, [source])}.o"
    if not made.is_file():
        partial = made.with_suffix(".partial.o")
        _run(["cc", *flags, "-c", str(source), "-o", str(partial)])
        partial.replace(made)
    return made


def _link(folder: Path, flags: list[str], objects: list[Path]) -> None:
    partial = folder / f"partial-{NAME}"
    _run(["cc", *flags, "-shared", *map(str, objects), "-o", str(partial), "-lm", "-ldl", "-lpthread"])
    link = folder / AS_DRIVER
    link.unlink(missing_ok=True)
    link.symlink_to(NAME)
    partial.replace(folder / NAME)


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        sys.exit("the executor needs a C compiler by the name cc; install one (Debian: gcc)")
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    print(library())
