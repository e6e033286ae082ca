"""Tasks on their way through a Dask cluster: which are submitted, where each is, and what becomes of it.

What has begun on a worker and is lost with it is reported as lost; what has not begun is submitted again. All of it is
used by the thread of the cluster's loop alone.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import importlib
import operator
import pickle
import signal
import time
from collections import Counter, deque
from dataclasses import dataclass
from typing import Any, Generic

import distributed
from toolz import pipe

from kiln_build.farm.cluster import wire
from kiln_build.farm.cluster.mailbox import Mailbox
from kiln_build.farm.cluster.roll import Roll
from kiln_build.farm.cluster.wire import Order, Reply, Session
from kiln_build.farm.executor import Began, Died, Event, Id, Raised, Returned, Task, Waits, free_number
from kiln_recipe.errors import ArtifactError, CompileError, EnvironmentProblem, KilnError

_KILL_SECONDS = 10.0  # in which a worker must say that it has killed a task
_MOST_WORDS = 200  # letters of an error
_MODULE = "kiln_build.farm.cluster.agent"


@dataclass(eq=False)
class _Run(Generic[Id]):
    """A task on its way."""

    task: Task[Id]
    number: int
    key: str = ""
    future: Any = None
    among: list[str] | None = None  # the workers that it was submitted to; None: any that fits
    worker: str = ""  # its address, once the task has begun there
    slot: int = 0  # the worker's number, for the build
    is_killed: bool = False
    has_ended: bool = False


class Runs(Generic[Id]):
    """
    Args:
        limit: tasks that are submitted at once.
        news: set where the workers are to be looked at again.

    Attributes:
        client: Dask's, while there is a scheduler.
        fault: of the last worker that was out of order.
    """

    def __init__(self, session: Session, limit: int, roll: Roll, mailbox: Mailbox[Id], news: asyncio.Event) -> None:
        self._session, self._limit, self._roll, self._mailbox, self._news = session, limit, roll, mailbox, news
        self.client: Any = None
        self.fault: KilnError | None = None
        self._waiting: deque[_Run[Id]] = deque()
        self._runs: dict[Id, _Run[Id]] = {}
        self._by_number: dict[int, _Run[Id]] = {}
        self._by_key: dict[str, _Run[Id]] = {}
        self._is_suspicious = False  # Dask has failed on a worker that it did not name: from now on we do
        self._stuck: set[str] = set()  # keys that Dask had no worker for when it was last asked
        self._count = 0
        self._followers: set[asyncio.Task] = set()

    def take(self, task: Task[Id]) -> None:
        """Has a task run as soon as a worker is free."""
        self._count += 1
        run = _Run(task, self._count)
        self._runs[task.id] = run
        self._waiting.append(run)
        self.fill()

    def kill(self, id: Id) -> None:
        """Ends a task; nothing happens if it has ended."""
        run = self._runs.get(id)
        if run is None or run.is_killed:
            return
        run.is_killed = True
        if run in self._waiting:
            self._waiting.remove(run)
            self._end(run, Died(id, "killed before it started", signal.SIGKILL))
        elif run.future is not None:
            self.follow_up(self._see_it_killed(run))

    def fill(self) -> None:
        """Submits what the workers can run."""
        client, capacity = self.client, self._roll.capacity()
        if client is None or client.status != "running":
            return
        while self._waiting and len(self._by_key) < min(self._limit, capacity.tasks):
            run = self._waiting.popleft()
            if not run.has_ended:
                self._submit(client, run)
                self.follow_up(self._follow(run))

    def hear(self, event: tuple[float, dict[str, Any]]) -> None:
        """An agent has said something of a task."""
        message = event[1]
        run = self._by_number.get(message["number"])
        if run is None or run.has_ended:
            return
        if message["what"] == wire.WAITS:
            self._mailbox.tell(Waits(run.task.id))
        elif message["what"] != wire.BEGAN:
            self._answer(run, message["reply"])
        elif run.slot:
            self._mailbox.tell(Began(run.task.id, run.slot))
        else:
            self._began(run, message["worker"])

    def hear_of_workers(self, event: tuple[float, dict[str, Any]]) -> None:
        """The scheduler has a worker more or less."""
        message = event[1]
        action = message.get("action") if isinstance(message, dict) else None
        if action == "remove-worker":
            name = self._roll.name(message["worker"])
            self._roll.remove(message["worker"])
            for key in (*message["processing-tasks"], *message["lost-computed-tasks"]):
                if run := self._by_key.get(key):
                    self._move(run, f"{name} is gone")
        if action in ("remove-worker", "add-worker"):
            self._news.set()

    def free(self, stuck: set[str]) -> None:
        """Takes back what Dask has had no worker for at two looks: since it was submitted, the machine with as much
        memory as it asks for may have gone, or all that it was offered to.

        Args:
            stuck: keys of what it has none for now.
        """
        for key in stuck & self._stuck:
            if (run := self._by_key.get(key)) and not run.slot and not run.is_killed:
                future = run.future
                self._wait_again(run)
                self.follow_up(_cancel(future))
        self._stuck = stuck

    def lose_scheduler(self) -> None:
        """The scheduler is gone, and its tasks with it: what had begun is lost, the rest waits for another."""
        self.client = None
        for run in sorted(self._by_key.values(), key=lambda run: -run.number):
            if run.slot or run.is_killed:
                self._lose(run, "the scheduler is gone")
            else:
                self._wait_again(run)

    @property
    def keys(self) -> list[str]:
        """Dask's, of what is submitted."""
        return list(self._by_key)

    @property
    def futures(self) -> list[Any]:
        """Dask's, of what is submitted."""
        return [run.future for run in self._by_key.values() if run.future is not None]

    def follow_up(self, what: Any) -> None:
        """Has something go on in the background."""
        follower = asyncio.get_running_loop().create_task(what)
        self._followers.add(follower)
        follower.add_done_callback(self._followers.discard)

    def stop_following(self) -> None:
        """Ends what goes on in the background."""
        for follower in list(self._followers):
            follower.cancel()

    # ---- inside ----

    async def _see_it_killed(self, run: _Run[Id]) -> None:
        await run.future.cancel(force=True)
        if not run.worker:
            self._end(run, Died(run.task.id, "killed before it started", signal.SIGKILL))
            return
        limit = time.monotonic() + _KILL_SECONDS
        while not run.has_ended and time.monotonic() < limit:
            await asyncio.sleep(0.02)
        self._lose(run, f"{self._roll.name(run.worker)} does not answer")

    def _submit(self, client: Any, run: _Run[Id]) -> None:
        task = run.task
        self._count += 1
        run.number = self._count  # of this submission: what is heard of an earlier one is not of this
        run.key = f"kiln-task-{self._session.name}-{run.number}"
        self._by_number[run.number] = self._by_key[run.key] = run
        work = pickle.dumps((task.function, task.arguments))
        order = Order(self._session, run.number, work, task.data_limit, is_received=task.receive is not None)
        resources = self._roll.resources(task.memory)
        run.among = self._roll.only()
        if self._is_suspicious:
            taken = Counter(worker for other in self._by_key.values() for worker in other.among or ())
            run.among = [self._roll.freest(taken)]
        # Named by what any scheduler has: Dask's unpickles what it is given, and need not have Kiln.
        run.future = client.submit(
            pipe, _MODULE, importlib.import_module, operator.methodcaller("run_task", wire.encode(order)),
            key=run.key, pure=False, resources=resources, workers=run.among,
        )  # fmt: skip

    async def _follow(self, run: _Run[Id]) -> None:
        """Waits for the end of a submission, which may no longer be the one that counts."""
        future = run.future
        try:
            data = await future
        except (asyncio.CancelledError, concurrent.futures.CancelledError):
            pass  # by us, or with the scheduler
        except Exception as error:  # noqa: BLE001  (Dask hands on whatever was raised elsewhere)
            if not run.has_ended and run.future is future:
                self._dask_failed(run, error)
        else:
            if not run.has_ended and run.future is future:
                self._answer(run, data)
        finally:
            future.release()

    def _dask_failed(self, run: _Run[Id], error: Exception) -> None:
        """The agent raises nothing, so a worker's Dask is out of order. Which worker's, Dask does not say."""
        culprit = run.among[0] if run.among and len(run.among) == 1 else ""
        self._is_suspicious = not culprit
        if not culprit or isinstance(error, distributed.KilledWorker):
            self._lose(run, f"Dask says {spell(error)}")
            return
        run.worker = culprit
        self._blame(run, EnvironmentProblem(f"Dask fails to run jobs on {self._roll.name(culprit)}: {spell(error)}"))

    def _answer(self, run: _Run[Id], data: object) -> None:
        """Dask has brought a reply."""
        task = run.task
        try:
            reply = wire.decode_reply(data)
            run.worker = run.worker or reply.worker
            value: Any = None
            if reply.kind == wire.RETURNED:
                value = task.receive(reply.value) if task.receive else wire.loads(reply.value)
        except ArtifactError as error:
            name = self._roll.name(run.worker)
            self._mailbox.say(f"warning: {name} sent back what is damaged ({error}); it is given nothing more")
            self._roll.exclude(run.worker, f"sent back what is damaged: {error}")
            self._lose(run, f"{name} sent back what is damaged ({error})")
            self._news.set()
            return
        self._settle(run, reply, value)

    def _settle(self, run: _Run[Id], reply: Reply, value: Any = None) -> None:
        """The task has ended, and its worker has said how."""
        id = run.task.id
        if reply.kind == wire.MOVED:
            self._lose(run, reply.reason)
            return
        self._began(run, run.worker)
        fault = wire.exception_of(reply.fault) if reply.fault else RuntimeError("it gave no reason")
        is_verdict = isinstance(fault, CompileError) or not isinstance(fault, KilnError)
        if reply.kind == wire.BROKEN or (reply.kind == wire.RAISED and not is_verdict):
            self._blame(run, fault)
            return
        self._write_log(run.task, reply)
        if reply.kind == wire.RETURNED:
            self._roll.count(run.worker, reply.seconds)
            self._end(run, Returned(id, value))
        elif reply.kind == wire.RAISED:
            self._end(run, Raised(id, fault))
        else:
            self._end(run, Died(id, reply.reason, reply.signal))

    def _blame(self, run: _Run[Id], fault: Exception) -> None:
        """A machine cannot do the work. Others may; if there is none, the build ends."""
        problem = fault
        if not isinstance(problem, KilnError):
            problem = EnvironmentProblem(f"workers cannot start: {type(fault).__name__}: {fault}")
        name = self._roll.name(run.worker)
        self._roll.exclude(run.worker, str(problem))
        if not self._roll.capacity().tasks and not self._roll.is_unsure:
            self._mailbox.fail(problem)
            return
        self.fault = problem  # what is said if those that have yet to announce themselves are of no use either
        self._news.set()
        self._mailbox.say(f"warning: {name} is given nothing more: {problem}")
        self._lose(run, f"{name} is out of order")

    def _write_log(self, task: Task[Id], reply: Reply) -> None:
        try:
            if reply.kind != wire.RETURNED:
                with task.log.open("ab" if task.is_retry else "wb") as file:
                    file.write(reply.log)
            elif not task.is_retry:
                task.log.unlink(missing_ok=True)
        except OSError as error:
            self._mailbox.fail(EnvironmentProblem(f"cannot write the log {task.log}: {error.strerror}"))

    def _began(self, run: _Run[Id], worker: str) -> None:
        if not run.slot:
            run.worker = worker
            run.slot = free_number({other.slot for other in self._runs.values()})
            self._mailbox.tell(Began(run.task.id, run.slot))

    def _move(self, run: _Run[Id], reason: str) -> None:
        """The task is no longer where it was. Dask takes it to another worker, where it begins if it has not begun."""
        future = run.future
        if run.slot or run.is_killed:
            self._lose(run, reason)
        elif run.among is None and self._roll.only() is None:
            return
        else:  # Dask was told the names of workers, which may all be gone
            self._wait_again(run)
        if future is not None and self.client.status == "running":
            self.follow_up(_cancel(future))

    def _wait_again(self, run: _Run[Id]) -> None:
        """What has not begun is to be submitted anew."""
        self._forget(run)
        run.future = None
        self._waiting.appendleft(run)

    def _lose(self, run: _Run[Id], reason: str) -> None:
        self._end(run, Died(run.task.id, reason, 0, lost=True))

    def _end(self, run: _Run[Id], event: Event[Id]) -> None:
        if not run.has_ended:
            run.has_ended = True
            if self._runs.get(run.task.id) is run:
                del self._runs[run.task.id]
            self._forget(run)
            self._mailbox.tell(event)
            self.fill()

    def _forget(self, run: _Run[Id]) -> None:
        self._by_number.pop(run.number, None)
        self._by_key.pop(run.key, None)


async def _cancel(future: Any) -> None:
    await quietly(future.cancel(force=True))


async def quietly(what: Any) -> None:
    """Waits for something, and bears with its failure."""
    with contextlib.suppress(Exception, asyncio.CancelledError):
        await what


def spell(error: object) -> str:
    """An exception's class and words, cut off where they are long."""
    text = str(error)
    if len(text) > _MOST_WORDS:  # a pickle, where an exception's class is not known here
        text = f"{text[:_MOST_WORDS]}..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
