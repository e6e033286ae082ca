"""The executor of a Dask cluster, as a build has it.

Each task is a task of Dask's, which chooses the worker, and chooses another if that is lost before the task has begun.
What has begun there is reported as lost; whether it is run again is for the scheduler of the build to decide. All that
speaks to the cluster runs in one thread, on one event loop; the build's thread takes events out of a queue.

A scheduler that goes away takes its tasks with it: those that had begun are lost, the others are submitted again once
it is back. Its workers, if they come back too, get the agent and the sources from the new scheduler.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import importlib
import operator
import os
import pickle
import select
import signal
import threading
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic

import distributed
from toolz import pipe

from kiln_build.farm.cluster import agent, wire
from kiln_build.farm.cluster.bundle import There, bundle_of
from kiln_build.farm.cluster.roll import Roll
from kiln_build.farm.cluster.wire import Order, Reply, Session
from kiln_build.farm.executor import Began, Capacity, Died, Event, Executor, Id, Raised, Returned, Task, Waits
from kiln_build.farm.job import Host
from kiln_recipe.errors import ArtifactError, EnvironmentProblem, KilnError, ToolchainError

if TYPE_CHECKING:
    from kiln_recipe.compile.toolchain import Toolchain

_CONNECT_SECONDS = 15.0  # to a scheduler that nothing is known of
_RETURN_SECONDS = 600.0  # that a scheduler may be away, or stand still
_SILENT_SECONDS = 30.0  # without an answer after which the user is told
_KILL_SECONDS = 10.0  # in which a worker must say that it has killed a task
_LOOK_SECONDS = 15.0  # between looks at the workers when nothing is heard of them
_CLOSE_SECONDS = 5.0
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


class DaskExecutor(Executor[Id]):
    """An `Executor` whose workers are processes of the machines of a Dask cluster.

    Args:
        address: of the scheduler: tcp://host:8786, tls://host:8786.
        workers, initializer, arguments, bytes_per_worker, preload: as `StartExecutor` has them. A `Host` among the
            arguments is replaced by that of each worker's machine, which gets the sources that it names, and the
            library to preload.
        security: of a tls:// address.
        find: finds the toolchain of a worker's machine; picklable.
    """

    def __init__(
        self,
        address: str,
        workers: int,
        initializer: Callable[..., Any] | None = None,
        arguments: tuple = (),
        *,
        bytes_per_worker: int = 2 << 30,
        temporary: Path | None = None,  # noqa: ARG002  (theirs are in the folders of Dask's workers)
        preload: Path | None = None,
        security: distributed.Security | None = None,
        find: Callable[[], Toolchain] = agent.find_installed,
    ) -> None:
        self.address = address
        self._limit = workers
        self._security = security
        host = next((argument for argument in arguments if isinstance(argument, Host)), None)
        bundle = bundle_of(host, preload) if host else None
        self._plugin = agent.Agent(bundle, find)
        there = tuple(There() if isinstance(argument, Host) else argument for argument in arguments)
        self._session = Session(
            uuid.uuid4().hex,
            pickle.dumps((initializer, there)),
            bundle.digest if bundle else "",
            bytes_per_worker,
        )
        self._roll = Roll(bundle.toolchain if bundle else "", bytes_per_worker)
        self._waiting: deque[_Run[Id]] = deque()
        self._runs: dict[Id, _Run[Id]] = {}
        self._by_number: dict[int, _Run[Id]] = {}
        self._by_key: dict[str, _Run[Id]] = {}
        self._is_suspicious = False  # Dask has failed on a worker that it did not name: from now on we do
        self._stuck: set[str] = set()  # keys that Dask had no worker for when it was last asked
        self._count = 0
        self._events: deque[Event[Id]] = deque()
        self._notices: deque[str] = deque()
        self._problem: KilnError | None = None
        self._fault: KilnError | None = None  # of the last worker that was out of order
        self._wake_reader, self._wake_writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._loop = asyncio.new_event_loop()
        self._thread: threading.Thread | None = None
        self._client: Any = None
        self._news = asyncio.Event()
        self._closing = asyncio.Event()
        self._followers: set[asyncio.Task] = set()

    # ---- of the build's thread ----

    def __enter__(self) -> DaskExecutor[Id]:
        self._thread = threading.Thread(target=self._run_loop, name="kiln-dask", daemon=True)
        self._thread.start()
        return self

    def submit(self, task: Task[Id]) -> None:
        self._loop.call_soon_threadsafe(self._take, task)

    def kill(self, id: Id) -> None:
        self._loop.call_soon_threadsafe(self._kill, id)

    def wait(self, timeout: float | None) -> list[Event[Id]]:
        if not self._events and self._problem is None:
            limit = min(x for x in (timeout, 1e6) if x is not None)
            select.select([self._wake_reader], [], [], limit)
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_reader, 4096)
        events = [self._events.popleft() for _ in range(len(self._events))]
        if self._problem is not None and not events:
            raise self._problem
        return events

    def wake(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):
            os.write(self._wake_writer, b"!")

    def capacity(self) -> Capacity | None:
        return self._roll.capacity()

    def notices(self) -> list[str]:
        return [self._notices.popleft() for _ in range(len(self._notices))]

    def summary(self) -> list[str]:
        return self._roll.summary()

    def close(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            self._loop.call_soon_threadsafe(self._closing.set)
            thread.join()
            os.close(self._wake_reader)
            os.close(self._wake_writer)
            self._wake_reader = self._wake_writer = -1

    # ---- of the loop's thread, as all below ----

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._main())
        except KilnError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001  (whatever it is, the build must hear of it)
            self._fail(
                EnvironmentProblem(f"the cluster {self.address} cannot be used: {type(error).__name__}: {error}")
            )
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())

    async def _main(self) -> None:
        closing = asyncio.ensure_future(self._closing.wait())
        lost_at: float | None = None
        try:
            while not closing.done():
                try:
                    self._client = await self._connect()
                except (OSError, TimeoutError, ValueError) as error:
                    if lost_at is None or time.monotonic() - lost_at > _RETURN_SECONDS:
                        raise EnvironmentProblem(
                            f"no scheduler of Dask answers at {self.address} ({_spell(error)}); start one there with "
                            "`dask scheduler`, or name another with KILN_SCHEDULER"
                        ) from error
                    await asyncio.wait([closing], timeout=1.0)
                    continue
                if lost_at is not None:
                    self._notices.append(f"the scheduler {self.address} is back")
                await self._serve(closing)
                if not closing.done():
                    lost_at = time.monotonic()
                    self._scheduler_is_gone()
        finally:
            closing.cancel()
            await self._leave()

    async def _connect(self) -> Any:
        return await distributed.Client(
            self.address,
            asynchronous=True,
            set_as_default=False,
            security=self._security,
            timeout=_CONNECT_SECONDS,
            name="kiln",
        )

    async def _serve(self, closing: asyncio.Future) -> None:
        """Until the scheduler is gone, or the build has enough."""
        client = self._client
        client.subscribe_topic(agent.topic_of(self._session.name), self._hear)
        client.subscribe_topic(agent.NEWS, lambda _: self._news.set())
        client.subscribe_topic("all", self._hear_of_workers)
        self._news.set()
        # Workers that cannot load it answer with an error, which says less than that they do not announce themselves.
        plugin = {"plugin": pickle.dumps(self._plugin), "name": self._plugin.name, "idempotent": True}
        self._follow_up(_quietly(client.scheduler.register_worker_plugin(**plugin)))
        began, last = time.monotonic(), 0.0
        about = await self._answered(client.scheduler.identity(n_workers=0), closing)
        if dashboard := about and about["services"].get("dashboard"):
            self._notices.append(f"dashboard: {client.dashboard_link or dashboard}")
        while not closing.done() and client.status == "running":
            if self._news.is_set() or time.monotonic() - last > _LOOK_SECONDS or self._roll.is_unsure:
                self._news.clear()
                last = time.monotonic()
                try:
                    about = await self._answered(client.scheduler.identity(n_workers=-1), closing)
                except OSError:
                    break
                if about is None:
                    break
                for notice in self._roll.look(about["workers"], self.address, time.monotonic() - began):
                    self._notices.append(notice)
                if problem := self._roll.problem(self.address):
                    raise self._fault or problem
                await self._free(client, closing)
                self._fill()
            waiting = asyncio.ensure_future(self._news.wait())
            await asyncio.wait([closing, waiting], timeout=0.5, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()

    async def _answered(self, asked: Any, closing: asyncio.Future) -> dict[str, Any] | None:
        """What the scheduler says, which may stand still: its connections do; None once the build has enough.

        Raises:
            EnvironmentProblem: it has stood still for as long as it may be away.
        """
        answer, began, is_told = asyncio.ensure_future(asked), time.monotonic(), False
        try:
            while not closing.done():
                await asyncio.wait([answer, closing], timeout=_SILENT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                if answer.done():
                    return answer.result()
                if time.monotonic() - began > _RETURN_SECONDS:
                    raise EnvironmentProblem(f"the scheduler {self.address} has not answered for ten minutes")
                if not is_told and not closing.done():
                    is_told = True
                    self._notices.append(f"warning: the scheduler {self.address} does not answer; waiting for it")
        finally:
            answer.cancel()
        return None

    async def _free(self, client: Any, closing: asyncio.Future) -> None:
        """Takes back what Dask has had no worker for at two looks: since it was submitted, the machine with as much
        memory as it asks for may have gone, or all that it was offered to."""
        keys = list(self._by_key)
        try:
            states = await self._answered(client.scheduler.get_task_status(keys=keys), closing) if keys else {}
        except OSError:
            return
        stuck = {key for key, state in (states or {}).items() if state == "no-worker"}
        for key in stuck & self._stuck:
            if (run := self._by_key.get(key)) and not run.slot:
                future = run.future
                self._wait_again(run)
                self._follow_up(_cancel(future))
        self._stuck = stuck

    def _take(self, task: Task[Id]) -> None:
        self._count += 1
        run = _Run(task, self._count)
        self._runs[task.id] = run
        self._waiting.append(run)
        self._fill()

    def _kill(self, id: Id) -> None:
        run = self._runs.get(id)
        if run is None or run.is_killed:
            return
        run.is_killed = True
        if run in self._waiting:
            self._waiting.remove(run)
            self._end(run, Died(id, "killed before it started", signal.SIGKILL))
        elif run.future is not None:
            self._follow_up(self._see_it_killed(run))

    async def _see_it_killed(self, run: _Run[Id]) -> None:
        await run.future.cancel(force=True)
        if not run.worker:
            self._end(run, Died(run.task.id, "killed before it started", signal.SIGKILL))
            return
        limit = time.monotonic() + _KILL_SECONDS
        while not run.has_ended and time.monotonic() < limit:
            await asyncio.sleep(0.02)
        self._lose(run, f"{self._roll.name(run.worker)} does not answer")

    def _fill(self) -> None:
        """Submits what the workers can run."""
        client, capacity = self._client, self._roll.capacity()
        if client is None or client.status != "running":
            return
        while self._waiting and len(self._by_key) < min(self._limit, capacity.tasks):
            run = self._waiting.popleft()
            self._submit(client, run)
            self._follow_up(self._follow(run))

    def _follow_up(self, what: Any) -> None:
        follower = self._loop.create_task(what)
        self._followers.add(follower)
        follower.add_done_callback(self._followers.discard)

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
            self._lose(run, f"Dask says {_spell(error)}")
            return
        run.worker = culprit
        self._blame(run, EnvironmentProblem(f"Dask fails to run jobs on {self._roll.name(culprit)}: {_spell(error)}"))

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
            self._notices.append(f"warning: {name} sent back what is damaged ({error}); it is given nothing more")
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
        fault = wire.exception_of(reply.fault) if reply.fault else RuntimeError("nothing is known of it")
        if reply.kind == wire.BROKEN or isinstance(fault, (EnvironmentProblem, ToolchainError)):
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
            self._fail(problem)
            return
        self._fault = problem  # what is said if those that have yet to announce themselves are of no use either
        self._news.set()
        self._notices.append(f"warning: {name} is given nothing more: {problem}")
        self._lose(run, f"{name} is out of order")

    def _write_log(self, task: Task[Id], reply: Reply) -> None:
        try:
            if reply.kind != wire.RETURNED:
                with task.log.open("ab" if task.is_retry else "wb") as file:
                    file.write(reply.log)
            elif not task.is_retry:
                task.log.unlink(missing_ok=True)
        except OSError as error:
            self._fail(EnvironmentProblem(f"cannot write the log {task.log}: {error.strerror}"))

    def _began(self, run: _Run[Id], worker: str) -> None:
        if not run.slot:
            run.worker = worker
            taken = {other.slot for other in self._runs.values()}
            run.slot = next(number for number in range(1, len(taken) + 2) if number not in taken)
            self._tell(Began(run.task.id, run.slot))

    def _hear(self, event: tuple[float, dict[str, Any]]) -> None:
        """An agent has said something of a task."""
        message = event[1]
        run = self._by_number.get(message["number"])
        if run is None or run.has_ended:
            return
        if message["what"] == wire.WAITS:
            self._tell(Waits(run.task.id))
        elif message["what"] != wire.BEGAN:
            self._answer(run, message["reply"])
        elif run.slot:
            self._tell(Began(run.task.id, run.slot))
        else:
            self._began(run, message["worker"])

    def _hear_of_workers(self, event: tuple[float, dict[str, Any]]) -> None:
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

    def _move(self, run: _Run[Id], reason: str) -> None:
        """The task is no longer where it was. Dask takes it to another worker, where it begins if it has not begun."""
        future = run.future
        if run.slot or run.is_killed:
            self._lose(run, reason)
        elif run.among is None and self._roll.only() is None:
            return
        else:  # Dask was told the names of workers, which may all be gone
            self._wait_again(run)
        if future is not None and self._client.status == "running":
            self._follow_up(_cancel(future))

    def _scheduler_is_gone(self) -> None:
        client, self._client = self._client, None
        self._notices.append(f"warning: the scheduler {self.address} is gone; waiting for it")
        self._follow_up(_quietly(client.close(timeout=1)))
        self._roll.clear()
        for run in sorted(self._by_key.values(), key=lambda run: -run.number):
            if run.slot or run.is_killed:
                self._lose(run, "the scheduler is gone")
            else:
                self._wait_again(run)

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
            self._tell(event)
            self._fill()

    def _forget(self, run: _Run[Id]) -> None:
        self._by_number.pop(run.number, None)
        self._by_key.pop(run.key, None)

    def _tell(self, event: Event[Id]) -> None:
        self._events.append(event)
        self.wake()

    def _fail(self, problem: Exception) -> None:
        if self._problem is None:
            self._problem = problem if isinstance(problem, KilnError) else EnvironmentProblem(str(problem))
        self.wake()

    async def _leave(self) -> None:
        """Has the cluster forget us: what it runs for us is killed."""
        client, self._client = self._client, None
        if client is None:
            return
        if client.status == "running":
            futures = [run.future for run in self._by_key.values() if run.future is not None]
            with contextlib.suppress(Exception):
                await asyncio.wait_for(client.cancel(futures, force=True), _CLOSE_SECONDS)
            with contextlib.suppress(Exception):
                keys = [agent.BEGUN, self._session.name]
                await asyncio.wait_for(client.scheduler.set_metadata(keys=keys, value={}), _CLOSE_SECONDS)
            with contextlib.suppress(Exception):
                await asyncio.wait_for(
                    client.run(
                        agent.end_session, self._session.name, workers=self._roll.accepted, on_error="ignore",
                    ),
                    _CLOSE_SECONDS,
                )  # fmt: skip
        for follower in list(self._followers):
            follower.cancel()
        await _quietly(asyncio.wait_for(client.close(timeout=2), _CLOSE_SECONDS))


async def _cancel(future: Any) -> None:
    await _quietly(future.cancel(force=True))


async def _quietly(what: Any) -> None:
    with contextlib.suppress(Exception, asyncio.CancelledError):
        await what


def _spell(error: object) -> str:
    text = str(error)
    if len(text) > _MOST_WORDS:  # a pickle, where an exception's class is not known here
        text = f"{text[:_MOST_WORDS]}..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
