"""What befalls a cluster's parts at moments that no test of whole clusters meets."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import threading
from types import SimpleNamespace

import pytest

pytest.importorskip("distributed", reason="Dask is not installed")

from distributed.comm import CommClosedError

from kiln_build.farm.cluster import agent, client, wire
from kiln_build.farm.cluster.bundle import Bundle
from kiln_build.farm.cluster.client import DaskExecutor
from kiln_build.farm.cluster.mailbox import Mailbox
from kiln_build.farm.cluster.runs import Runs
from kiln_build.farm.cluster.wire import Order, Reply, Session
from kiln_build.farm.executor import Died, Raised, Task
from kiln_recipe.errors import ArtifactError, CompileError, EnvironmentProblem, RecipeError

SESSION = Session("5" * 32, b"", "", 1)


async def nothing(*_, **__):
    pass


def test_what_is_killed_while_its_sources_are_awaited_is_given_to_no_process(tmp_path, monkeypatch):
    dask_worker = SimpleNamespace(
        id="one", name="one", address="tcp://one", local_directory=str(tmp_path),
        loop=SimpleNamespace(asyncio_loop=None), state=SimpleNamespace(nthreads=1),
    )  # fmt: skip
    shop = agent._Workshop(dask_worker)
    monkeypatch.setitem(agent._shops, "one", shop)
    monkeypatch.setattr(agent._Crew, "take", lambda *_: pytest.fail("it was given to a process"))

    def ask(coroutine, _loop):
        coroutine.close()
        return SimpleNamespace(result=str)  # nobody had begun with it

    def host(_session):
        agent.Agent(None).transition("key", "executing", "cancelled")  # as when its build is interrupted

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", ask)
    monkeypatch.setattr(shop, "_host", host)
    reply = shop.run(Order(SESSION, 7, b"", None, True), "key")
    assert (reply.kind, reply.reason) == (wire.MOVED, "it was killed before it began") and shop.running == {}


def scheduler(identity) -> SimpleNamespace:
    """A client whose scheduler answers so."""
    asked = SimpleNamespace(register_worker_plugin=nothing, identity=identity, set_metadata=nothing)
    return SimpleNamespace(
        scheduler=asked, status="running", subscribe_topic=lambda *_: None, close=nothing, cancel=nothing, run=nothing
    )


def test_a_scheduler_that_goes_before_its_first_answer_is_waited_for():
    async def gone(**_):
        raise CommClosedError("in <TCP>: Stream is closed")

    connected = []

    async def connect():
        connected.append(1)
        return scheduler(gone)

    workers = DaskExecutor("tcp://127.0.0.1:1", 1)
    workers._connect = connect
    with workers:
        while len(connected) < 2:  # it tries again; else this raises what ended the build
            workers.wait(0.05)
    assert any("is gone; waiting for it" in notice for notice in workers.notices())


def test_a_build_that_has_enough_does_not_wait_for_a_scheduler_that_does_not_answer():
    async def connect():
        await asyncio.sleep(600)

    workers = DaskExecutor("tcp://127.0.0.1:1", 1)
    workers._connect = connect
    with workers:
        assert workers.wait(0.2) == []


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n" + b"x" * 5000])
def test_what_listens_there_and_is_no_scheduler_of_dask_ends_the_build(monkeypatch, answer):
    """A wrong port is a likely mistake."""
    monkeypatch.setattr(client, "_CONNECT_SECONDS", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = []

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    taken.append(listener.accept()[0])
                    taken[-1].sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        with DaskExecutor(address, 1) as workers, pytest.raises(EnvironmentProblem, match=f"no scheduler .* {address}"):
            workers.wait(60)
        listener.shutdown(socket.SHUT_RDWR)
    assert taken


class Roll:
    """Two workers."""

    is_unsure = False

    def __init__(self):
        self.excluded = []

    def name(self, address):
        return address

    def exclude(self, address, reason):
        self.excluded.append((address, reason))

    def capacity(self):
        return SimpleNamespace(tasks=2 - len(self.excluded), memory=1)


@pytest.mark.parametrize("fault", [RecipeError("k.py:1: cannot be read"), ArtifactError("an object is damaged")])
def test_what_one_machine_raises_ends_no_build_while_there_is_another(tmp_path, fault):
    async def settle():
        roll, mailbox = Roll(), Mailbox()
        runs = Runs(SESSION, 2, roll, mailbox, asyncio.Event())
        for number in (1, 2):
            runs.take(Task(number, print, (), tmp_path / f"log {number}"))
        (first, second) = runs._runs.values()
        first.worker, second.worker = "ann", "bob"
        runs._settle(first, Reply(wire.RAISED, fault=wire.fault_of(fault), worker="ann"))
        runs._settle(second, Reply(wire.RAISED, fault=wire.fault_of(CompileError("no", "ttir")), worker="bob"))
        return roll.excluded, mailbox.wait(0), mailbox.notices()

    excluded, events, notices = asyncio.run(settle())
    assert excluded == [("ann", str(fault))] and "warning: ann is given nothing more" in notices[0]
    ends = [event for event in events if isinstance(event, (Died, Raised))]
    assert ends[0] == Died(1, "ann is out of order", 0, lost=True)
    assert isinstance(ends[1], Raised) and isinstance(ends[1].error, CompileError)


def test_sources_of_which_a_cleaner_has_taken_some_are_there_again(tmp_path):
    bundle = Bundle({"0/k.py": b"x = 1", "0/common.py": b""}, {"f": "0/k.py"}, "1")
    files = [tmp_path / bundle.digest[:16] / name for name in bundle.files]
    host = bundle.unpack(tmp_path, "store", SimpleNamespace())
    files[0].unlink()
    files[1].write_bytes(b"cut")
    assert bundle.unpack(tmp_path, "store", SimpleNamespace()) == host
    assert [file.read_bytes() for file in files] == [b"x = 1", b""] and host.sources["f"] == str(files[0])


def test_a_mailbox_takes_any_descriptor():
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit[1] < 2048 and limit[1] != resource.RLIM_INFINITY:
        pytest.skip("fewer than 2,048 files may be open")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limit[0], 2048), limit[1]))
    opened = [os.dup(0) for _ in range(1100)]
    try:
        mailbox = Mailbox()
        mailbox.wake()
        assert mailbox.wait(60) == []
        mailbox.close()
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
