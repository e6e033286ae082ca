"""Processes that run tasks on the GPU, beside each other. A call that breaks the device, or hangs, costs its process:
the task is answered by what went wrong, and another process takes the place."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection, Pipe
from pathlib import Path

TIMEOUT = 240.0  # of one task, the driver's compilation of PTX included


class _Process:
    def __init__(self, worker: list[str], timeout: float) -> None:
        self.timeout = timeout
        self.connection, theirs = Pipe()
        command = [sys.executable, *worker, str(theirs.fileno())]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment)
        theirs.close()

    def ask(self, task: tuple) -> dict | None:
        """The answer; None if there will be none."""
        try:
            self.connection.send(task)
            return self.connection.recv() if self.connection.poll(self.timeout) else None
        except (EOFError, OSError):
            return None

    def end(self) -> int:
        self.connection.close()
        try:
            return self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


class Pool:
    """Of processes that run a worker: worker.py, or a program by its own path and arguments, which gets the descriptor
    behind them."""

    def __init__(
        self, prefix: Path, processes: int, worker: list[str] | None = None, timeout: float = TIMEOUT
    ) -> None:  # fmt: skip
        self._worker = worker or [str(Path(__file__).with_name("worker.py")), str(prefix)]
        self._timeout, self._here, self._processes = timeout, threading.local(), []
        self._executor = ThreadPoolExecutor(processes)

    def submit(self, name: str, *arguments: object) -> Future:
        """Runs a task of worker.py; the future's result is what it returned, or {"fault": sentence}."""
        return self._executor.submit(self._run, (name, *arguments))

    def map(self, name: str, arguments: list[tuple]) -> list[dict]:
        futures = [self.submit(name, *one) for one in arguments]
        return [future.result() for future in futures]

    def _run(self, task: tuple) -> dict:
        process = getattr(self._here, "process", None)
        if process is None:
            process = self._here.process = _Process(self._worker, self._timeout)
            self._processes.append(process)
        answer = process.ask(task)
        if answer is None or answer.get("is_broken"):
            self._here.process = None
            if answer is None:
                process.process.kill()  # if it hangs; else it is gone
            code = process.end()
            answer = answer or {"fault": f"{str(task)[:300]}: the process gave no answer and ended with {code}"}
        return answer

    def close(self) -> None:
        self._executor.shutdown(cancel_futures=True)
        for process in self._processes:  # all end beside each other
            process.connection.close()
        for process in self._processes:
            process.end()


def serve(connection: Connection, tasks: dict) -> None:
    """Answers until the other side closes."""
    while True:
        try:
            name, *arguments = connection.recv()
        except EOFError:
            return
        connection.send(tasks[name](*arguments))
