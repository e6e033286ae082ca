"""A Dask cluster on loopback, for tests: a scheduler and workers, each a process that can be stopped and killed."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from kiln_build.farm.cluster.client import DaskExecutor

ADDRESS = "KILN_TEST_SCHEDULER"  # of the environment: where `start` finds the cluster, in children too
_TESTS = Path(__file__).resolve().parent


def start(workers: int, initializer=None, arguments: tuple = (), **more) -> DaskExecutor:
    """A `StartExecutor`, of the cluster that the environment names."""
    return DaskExecutor(os.environ[ADDRESS], workers, initializer, arguments, **more)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Cluster:
    """
    Args:
        folder: for what they print and keep.
        options: of the commands `dask scheduler` and `dask worker`.
        protocol: "tcp" or "tls".
    """

    def __init__(self, folder: Path, options: Sequence[str] = (), protocol: str = "tcp") -> None:
        self.folder, self.options, self.protocol = folder, options, protocol
        self.port = free_port()
        self.address = f"{protocol}://127.0.0.1:{self.port}"
        self.scheduler: subprocess.Popen | None = None
        self.workers: dict[str, subprocess.Popen] = {}

    def start_scheduler(self) -> None:
        words = ["scheduler", "--host", f"{self.protocol}://127.0.0.1", "--port", str(self.port), "--no-dashboard"]
        self.scheduler = self._start("scheduler", words)
        limit = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            assert time.monotonic() < limit and self.scheduler.poll() is None, self.said("scheduler")
            time.sleep(0.05)

    def start_worker(
        self, name: str, slots: int = 1, variables: Mapping[str, str] = {}, path: str = "", more: Sequence[str] = ()
    ) -> None:
        local = self.folder / f"{name} local"
        words = ["worker", self.address, "--name", name, "--nthreads", str(slots), "--no-dashboard", "--no-nanny",
                 "--memory-limit", "0", "--local-directory", str(local), *more]  # fmt: skip
        self.workers[name] = self._start(name, words, variables, path)

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def stop(self) -> None:
        for process in (*self.workers.values(), *filter(None, [self.scheduler])):
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()

    def _start(
        self, name: str, words: Sequence[str], variables: Mapping[str, str] = {}, path: str | None = None
    ) -> subprocess.Popen:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("KILN_", "DASK_"))}
        modules = path or os.pathsep.join((str(_TESTS.parent / "v3python"), str(_TESTS)))
        environment = kept | {"PYTHONPATH": modules} | variables
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "dask", *words, *self.options], env=environment, cwd=self.folder, stdout=log,
                stderr=log, stdin=subprocess.DEVNULL,
            )  # fmt: skip


@contextlib.contextmanager
def running(folder: Path, *workers: str, slots: int = 1, **more) -> Iterator[Cluster]:
    """A cluster with these workers."""
    cluster = Cluster(folder, **more)
    try:
        cluster.start_scheduler()
        for name in workers:
            cluster.start_worker(name, slots)
        yield cluster
    finally:
        cluster.stop()
