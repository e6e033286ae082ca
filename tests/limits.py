"""Runs `kiln` as users do, in a process that may take so much memory and processor time and no more."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MOST_MEMORY = 256 << 20  # resident, the interpreter's own 25 MiB included
_ADDRESSES = 1 << 30  # what ends a run away before it hurts the machine
_SECONDS = 120


@dataclass(frozen=True)
class Run:
    """How a command ended: `seconds` of the processor, `memory` is its largest resident set."""

    code: int
    out: str
    err: str
    seconds: float
    memory: int


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESSES, _ADDRESSES))
    resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def kiln(*words: object, program: tuple[str, ...] = ("-m", "kiln_build"), **variables: str) -> Run:
    """Runs `python -m kiln ...`."""
    environment = {
        "PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join((str(ROOT / "v3python"), str(ROOT / "tests"))),
        **{name: os.environ[name] for name in ("PYTHONPYCACHEPREFIX", "TMPDIR") if name in os.environ}, **variables,
    }  # fmt: skip
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, tempfile.TemporaryFile("r+") as ended:
        # Linux counts what a process had in memory before it became another program, so a child of pytest would start
        # with all that pytest has: one small process lies between.
        subprocess.run(
            [sys.executable, "-I", "-S", __file__, str(ended.fileno()), sys.executable, *program, *map(str, words)],
            stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment, pass_fds=(ended.fileno(),), check=True,
        )  # fmt: skip
        out.seek(0)
        err.seek(0)
        ended.seek(0)
        texts = [stream.read(1 << 20).decode(errors="replace") for stream in (out, err)]
        code, seconds, memory = json.load(ended)
    return Run(code, *texts, seconds, memory)


def _between(descriptor: str, *command: str) -> None:
    """Runs a command with limits, and writes how it ended: [code, seconds, bytes]."""
    child = subprocess.Popen(command, preexec_fn=_limit)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    with open(int(descriptor), "w") as ended:
        json.dump([child.returncode, usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10], ended)


if __name__ == "__main__":
    _between(*sys.argv[1:])
