"""`kiln worker`: compiles for the builds of a Dask cluster, with the locked toolchain, until it is stopped."""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from kiln_build.options import variables
from kiln_build.options.options import check_environment
from kiln_recipe.console.spelling import say
from kiln_recipe.console.usage import filled
from kiln_recipe.errors import UsageError

EXAMPLE = """\
kiln worker tcp://head:8786
kiln worker tcp://head:8786 --again -- --nthreads 8 --memory-limit 32GiB --name node7
KILN_SCHEDULER_TLS=certificates kiln worker tls://head:8786"""

_PR_SET_PDEATHSIG = 1
_PAUSE = 3.0  # seconds before a worker is started again


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "scheduler",
        type=filled("the scheduler", "its address, as tcp://host:8786"),
        help="address of the scheduler: tcp://host:8786 or tls://host:8786",
    )
    parser.add_argument(
        "--again", action="store_true", help="start again when it ends without a signal, as it does with its scheduler"
    )
    parser.add_argument(
        "options",
        nargs="*",
        type=filled("an option", "one of `dask worker`'s, or leave it out"),
        help="options of `dask worker`, behind --; default: one job a processor",
    )


def check(arguments: argparse.Namespace) -> None:
    check_environment()
    if variables.scheduler_address("scheduler", arguments.scheduler) is None:
        raise UsageError("the scheduler is empty; give its address, as tcp://host:8786")


def run(arguments: argparse.Namespace) -> int:
    from kiln_build.farm.cluster import connect

    asked = variables.read(variables.BUILD, os.environ)
    files = connect.certificates(arguments.scheduler, asked["scheduler_tls"])
    options = [word for name, path in files.items() for word in (f"--{name.replace('client-', '')}", path)]
    command = [sys.executable, "-m", "dask", "worker", arguments.scheduler, *options, "--no-dashboard"]
    # For the processes that it starts; this one may have been started without.
    modules = os.pathsep.join([str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": modules.rstrip(os.pathsep)}
    command += arguments.options
    if not arguments.again:
        os.execve(sys.executable, command, environment)
    libc = ctypes.CDLL(None)
    for number in (
        signal.SIGTERM,
        signal.SIGHUP,
    ):  # they end us at once, and by that the worker, which puts itself away
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    while True:
        code = subprocess.run(
            command, env=environment, check=False, preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        ).returncode
        if code < 0:
            return 128 - code
        say(f"the worker has ended with {code}; it starts again")
        time.sleep(_PAUSE)
