"""`kiln worker`, as users run it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import executor_contract
from kiln_build.cli import main

dask_cluster = pytest.importorskip("dask_cluster", reason="the package distributed is not installed")

pytestmark = pytest.mark.slow(200)


class Worker:
    """A process of `kiln worker`."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.log = folder / "worker.log"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("KILN_", "DASK_"))}
        environment = kept | {"PYTHONPATH": str(Path(__file__).resolve().parents[1] / "v3python")}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "kiln_build", "worker", *words],
                cwd=folder,
                env=environment,
                stdout=log,
                stderr=log,
            )

    @property
    def said(self) -> str:
        return self.log.read_text()

    def wait_for(self, text: str) -> None:
        executor_contract.wait_for(lambda: text in self.said, 200, f"it does not say {text!r}")


@pytest.fixture
def start(tmp_path):
    workers = []

    def begin(*words: str) -> Worker:
        workers.append(Worker(tmp_path, *words))
        return workers[-1]

    yield begin
    for worker in workers:
        with contextlib.suppress(ProcessLookupError):
            worker.process.kill()
        worker.process.wait()


@pytest.fixture
def silent():
    """The address of a port on which nothing answers."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))  # and no listen
        yield f"tcp://127.0.0.1:{one.getsockname()[1]}"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_worker_without_a_scheduler_says_that_it_waits_and_can_be_ended(start, silent, number, code):
    worker = start(silent)
    worker.wait_for(f"kiln: no scheduler answers at {silent} (Connection refused); waiting for one\n")
    worker.process.send_signal(number)
    assert worker.process.wait(200) == code
    assert worker.said.splitlines()[1:] == [f"kiln: interrupted by {number.name}; what was done is kept"]


def test_a_worker_that_is_ended_takes_its_processes_with_it(start, tmp_path):
    (tmp_path / "cluster").mkdir()
    with dask_cluster.running(tmp_path / "cluster") as cluster:
        worker = start(
            cluster.address, "--again", "--", "--nthreads", "1", "--local-directory", str(tmp_path / "local")
        )
        worker.wait_for("Registered to")
        (child,) = _children(worker.process.pid)
        worker.process.send_signal(signal.SIGTERM)
        assert worker.process.wait(200) == 143
        assert "Traceback" not in worker.said
        assert worker.said.endswith("kiln: interrupted by SIGTERM; what was done is kept\n")
        executor_contract.wait_for(lambda: not _living(child), 60, "processes of it are left")


def test_options_that_dask_does_not_know_are_not_tried_again(start, tmp_path):
    (tmp_path / "cluster").mkdir()
    with dask_cluster.running(tmp_path / "cluster") as cluster:
        worker = start(cluster.address, "--again", "--", "--no-such-option")
        assert worker.process.wait(200) == 2
        assert "No such option" in worker.said and "starts again" not in worker.said


def test_what_stands_behind_two_dashes_is_dasks(monkeypatch):
    started: list[list[str]] = []

    def work(command: list[str]) -> int:
        started.append(command)
        return 0

    monkeypatch.setattr("kiln_build.cli.worker._await_scheduler", lambda _: None)
    monkeypatch.setattr("kiln_build.cli.worker._work", work)
    words = ["worker", "tcp://head:8786", "--again", "--", "--nthreads", "8", "--", "word"]
    monkeypatch.setattr("kiln_build.cli.worker._USAGE", 0)  # it does not start again
    assert main(words) == 0 and main([words[0], words[2], words[1]]) == 0
    assert [command[5:] for command in started] == [["--no-dashboard", *words[4:]], ["--no-dashboard"]]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "`kiln worker` lacks scheduler; for example: `kiln worker tcp://head:8786`"),
        (["tcp://head:8786", "--nthreads", "8"], "`kiln worker` has no option '--nthreads'"),
        (["tcp://head:8786", "--again", "--", ""], "an option is empty; give one of `dask worker`'s"),
    ],
)
def test_words_that_it_does_not_take(words, said, capsys):
    assert main(["worker", *words]) == 2
    assert said in capsys.readouterr().err


def _living(group: int) -> list[str]:
    """What processes of a group there are that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _parent, of = path.read_text().rpartition(")")[2].split()[:3]
            if int(of) == group and state != "Z":
                found.append(path.parent.name)
    return found


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
