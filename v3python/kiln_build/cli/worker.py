"""`kiln worker`: compiles for the builds of a Dask cluster, with the locked toolchain, until it is stopped."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from kiln_build.options import variables
from kiln_build.options.options import check_environment
from kiln_recipe.console.spelling import say
from kiln_recipe.console.usage import Parser, filled
from kiln_recipe.errors import EnvironmentProblem, KilnError, UsageError

EXAMPLE = """\
kiln worker tcp://head:8786
kiln worker tcp://head:8786 --again -- --nthreads 8 --memory-limit 32GiB --name node7
KILN_SCHEDULER_TLS=certificates kiln worker tls://head:8786"""

_PR_SET_PDEATHSIG = 1
_PAUSE = 3.0  # seconds before a worker is started again, and between calls of a scheduler that does not answer
_CONNECT_SECONDS = 5.0
_END_SECONDS = 20.0  # that Dask's worker has to end; Slurm gives a job 30 s after SIGTERM
_USAGE = UsageError.exit_code  # of Dask's command line too


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "scheduler",
        type=filled("the scheduler", "its address, as tcp://host:8786"),
        help="address of the scheduler: tcp://host:8786 or tls://host:8786",
    )
    parser.add_argument(
        "--again", action="store_true", help="start again when Dask's worker ends, as it does with its scheduler"
    )
    parser.add_behind(
        "options",
        filled("an option", "one of `dask worker`'s, or leave it out"),
        "options of `dask worker`, behind --; default: one job a processor",
    )


def check(arguments: argparse.Namespace) -> None:
    check_environment()
    if variables.scheduler_address("scheduler", arguments.scheduler) is None:
        raise UsageError("the scheduler is empty; give its address, as tcp://host:8786")


def run(arguments: argparse.Namespace) -> int:
    from kiln_build.farm.cluster import connect

    asked = variables.read(variables.BUILD, os.environ)
    files = connect.certificates(arguments.scheduler, asked["scheduler_tls"], "worker")
    options = [word for name, path in files.items() for word in (f"--{name.replace('client-', '')}", path)]
    command = [sys.executable, "-m", "dask", "worker", arguments.scheduler, *options, "--no-dashboard"]
    while True:
        _await_scheduler(arguments.scheduler)
        code = _work([*command, *arguments.options])
        if code == _USAGE or not arguments.again:
            break
        say(f"the worker has ended with {code}; it starts again")
        time.sleep(_PAUSE)
    if code == KilnError.exit_code:
        raise EnvironmentProblem("`dask worker` has ended with 1; what it said stands above")
    return code


def _await_scheduler(address: str) -> None:
    """Returns once something answers at a scheduler's address. Dask's own worker waits as well, but says so in a way
    that nobody reads, and can be ended only with tracebacks."""
    host, _, port = address.partition("://")[2].rpartition(":")
    is_told = False
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
        except OSError as error:
            if not is_told:
                is_told = True
                say(f"no scheduler answers at {address} ({error.strerror or error}); waiting for one")
            time.sleep(_PAUSE)
        else:
            return


def _work(command: Sequence[str]) -> int:
    """Runs Dask's worker until it ends; returns what a shell would say of it. An interruption ends it, with all that it
    has started."""
    # For the processes that it starts; this one may have been started without.
    modules = os.pathsep.join([str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": modules.rstrip(os.pathsep)}
    libc = ctypes.CDLL(None)
    # In a session of its own, so that a Ctrl-C reaches it once, from here.
    process = subprocess.Popen(
        command,
        env=environment,
        start_new_session=True,
        preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM),
    )
    try:
        code = process.wait()
    except KeyboardInterrupt:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_SECONDS)
        raise
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return code if code >= 0 else 128 - code
