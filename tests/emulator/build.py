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


def _digest(flags: list[str]) -> str:
    """Of all that the result depends on; a processor may lack what another has."""
    try:
        processor = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags"))
    except (OSError, StopIteration):
        processor = ""
    found = hashlib.sha256(repr((flags, processor)).encode())
    for path in SOURCES + HEADERS:
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
    made = folder / _digest(every)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (made / NAME).is_file():
            made.mkdir(exist_ok=True)
            _compile(made, every)
    return made / NAME


def _compile(folder: Path, flags: list[str]) -> None:
    objects = {source: folder / f"{source.stem}.o" for source in SOURCES}
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(lambda source: _run(["cc", *flags, "-c", str(source), "-o", str(objects[source])]), SOURCES))
    partial = folder / f"partial-{NAME}"
    _run(["cc", *flags, "-shared", *map(str, objects.values()), "-o", str(partial), "-lm", "-ldl", "-lpthread"])
    link = folder / AS_DRIVER
    link.unlink(missing_ok=True)
    link.symlink_to(NAME)
    partial.replace(folder / NAME)
    for path in objects.values():
        path.unlink()


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        sys.exit("the executor needs a C compiler by the name cc; install one (Debian: gcc)")
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    print(library())
