"""What a build gives to each worker of a Dask cluster: the agent, a plugin of Dask's, which has tasks run by processes.

A Dask worker compiles nothing itself. One of its threads hands a task to this machine's `LocalExecutor`, and waits for
what becomes of it; so limits of memory, kills, crashes and logs are what they are on the machine that builds. The agent
announces which toolchain is installed here, as a resource of the worker: Dask gives no job to a worker that has not
announced the one which the job's key is of.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import sysconfig
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distributed import Worker, WorkerPlugin, get_worker

from kiln_build.base import ROOT
from kiln_build.farm.cluster import child, wire
from kiln_build.farm.cluster.bundle import Bundle
from kiln_build.farm.cluster.wire import Order, Reply, Session
from kiln_build.farm.executor import Began, Died, Event, Raised, Returned, Task, Waits
from kiln_build.farm.local import LocalExecutor
from kiln_build.farm.options import free_memory
from kiln_build.options import variables
from kiln_build.store.stores import open_store
from kiln_recipe.compile import lock
from kiln_recipe.compile.toolchain import find_toolchain
from kiln_recipe.errors import EnvironmentProblem, KilnError

if TYPE_CHECKING:
    from kiln_recipe.compile.toolchain import Toolchain

SLOTS, MEMORY, TOOLCHAIN = "kiln", "kiln-memory", "kiln-toolchain-"  # names of resources; the last with an identity
NEWS = "kiln-workers"  # the topic on which workers say that they have announced themselves
BEGUN = "kiln-begun"  # the scheduler's metadata of tasks: by session and number, the worker that began with it
_IDLE = 30.0  # seconds after which a session's processes end that nobody has ended: its build is gone
_BUNDLE_PATIENCE = 60.0  # seconds; Dask gives a new worker its tasks and its plugins at the same time
_MOST_LOG = 1 << 18  # bytes of a log that go back
_GOING_ON = ("executing", "long-running", "memory", "waiting", "ready", "constrained")


def resource_of(identity: str) -> str:
    """The resource by which a worker announces a toolchain."""
    return TOOLCHAIN + identity[:32]


def topic_of(session: str) -> str:
    """On which a session's agents report."""
    return f"kiln-{session}"


def find_installed() -> Toolchain:
    """The toolchain in the environment that this process runs in, held against the lock of this Kiln.

    Raises:
        KilnError: there is none.
    """
    wheels = lock.read_lock(ROOT / "input" / lock.LOCK_NAME).members_of("triton")
    return find_toolchain(Path(sysconfig.get_paths()["purelib"]), wheels)


class Agent(WorkerPlugin):
    """The plugin. It stays with the cluster; its name says which sources it brings, so that they travel once.

    Args:
        bundle: the sources; None: what the tasks need is there.
        find: finds the toolchain of a worker's machine.
    """

    idempotent = True

    def __init__(self, bundle: Bundle | None, find: Callable[[], Toolchain] = find_installed) -> None:
        self.bundle = bundle
        self.find = find
        self.name = f"kiln-{bundle.digest if bundle else 'bare'}"

    async def setup(self, worker: Worker) -> None:
        shop = _shops.setdefault(worker.id, _Workshop(worker))
        await shop.announce(self.find)
        if self.bundle is not None:
            shop.bundles[self.bundle.digest] = self.bundle

    def transition(self, key: Any, _start: str, finish: str, **_: Any) -> None:
        if finish not in _GOING_ON and (shop := _shop_of(key)):
            shop.kill(key)

    async def teardown(self, worker: Worker) -> None:
        if worker.status.name.startswith("clos") and (shop := _shops.pop(worker.id, None)):
            await asyncio.to_thread(shop.close)


def run_task(data: bytes) -> bytes:
    """What Dask runs in a thread of a worker: takes an order, gives a reply, both encoded. Raises nothing: an exception
    would travel pickled."""
    worker = get_worker()
    try:
        reply = _shops[worker.id].run(wire.decode_order(data), worker.get_current_task())
    except Exception as error:  # noqa: BLE001  (whatever it is, the build must hear of it)
        reply = Reply(wire.BROKEN, fault=wire.fault_of(error), worker=worker.address)
    return wire.encode(reply)


async def end_session(name: str, dask_worker: Worker) -> None:
    """Kills the processes of a session; for `Client.run`."""
    if shop := _shops.get(dask_worker.id):
        await asyncio.to_thread(shop.end, name)


_shops: dict[str, _Workshop] = {}  # by the worker's id: a process may have several


def _shop_of(key: Any) -> _Workshop | None:
    return next((shop for shop in list(_shops.values()) if key in shop.running), None)


@dataclass
class _Errand:
    """An order that Dask has given to this worker.

    Attributes:
        crew: that has it; None: the scheduler is being asked, or the sources are awaited.
    """

    number: int
    crew: _Crew | None = None
    is_killed: bool = False


class _Workshop:
    """What the agents of one Dask worker share."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.bundles: dict[str, Bundle] = {}
        self.running: dict[Any, _Errand] = {}  # by the key of Dask's
        self.place = Path(worker.local_directory).absolute() / "kiln"
        self.slots = max(1, worker.state.nthreads)
        self.toolchain: Toolchain | None = None
        self.problem = ""
        self._announced = False
        self._crews: dict[str, _Crew] = {}
        self._lock = threading.Lock()

    async def announce(self, find: Callable[[], Toolchain]) -> None:
        """Says what this worker is able to do, once."""
        if self._announced:
            return
        self._announced = True
        try:
            self.toolchain = await asyncio.to_thread(find)
        except KilnError as error:
            self.problem = str(error)
        memory = free_memory(self.worker.memory_manager.memory_limit)
        resources = {SLOTS: float(self.slots), MEMORY: float(memory)}
        if self.toolchain is not None:
            resources[resource_of(self.toolchain.identity)] = float(self.slots)
        await self.worker.set_resources(**resources)
        self.worker.log_event(NEWS, {"worker": self.worker.address, "problem": self.problem})

    def run(self, order: Order, key: Any) -> Reply:
        """Has an order run, and waits for its end.

        Dask runs what a lost worker was doing on another at once. Whether that is wanted is for the build to say, which
        may have heard nothing yet: so a submission is begun on one machine and on no other.
        """
        errand = self.running[key] = _Errand(order.number)  # from here on it may be killed
        try:
            return self._run(order, errand)
        finally:
            self.running.pop(key, None)

    def _run(self, order: Order, errand: _Errand) -> Reply:
        began = time.monotonic()
        try:
            first = asyncio.run_coroutine_threadsafe(self._begun_by(order), self.worker.loop.asyncio_loop).result()
        except (OSError, TimeoutError, asyncio.TimeoutError) as error:  # no fault of this machine's
            reason = f"{self.worker.address} could not ask the scheduler whether another had begun with it ({error})"
            return self._said(Reply(wire.MOVED, reason=reason), began)
        if first:
            return self._said(Reply(wire.MOVED, reason=f"{first} had begun with it and is gone"), began)
        try:
            host = self._host(order.session)
        except (KilnError, OSError) as error:
            return self._said(Reply(wire.BROKEN, fault=wire.fault_of(error)), began)
        done: Future[Reply] = Future()
        with self._lock:
            if errand.is_killed:
                return self._said(Reply(wire.MOVED, reason="it was killed before it began"), began)
            crew = self._crews.get(order.session.name)
            if crew is None or crew.has_ended:
                crew = self._crews[order.session.name] = _Crew(self, order.session, host)
                crew.start()
            errand.crew = crew
            crew.take(order, done)
        return self._said(done.result(), began)

    def kill(self, key: Any) -> None:
        """Ends a task; nothing happens if it has ended."""
        if errand := self.running.get(key):
            with self._lock:
                errand.is_killed = True
                if errand.crew is not None:
                    errand.crew.kill(errand.number)

    def end(self, session: str) -> None:
        """Ends a session's processes, and waits until they are dead."""
        with self._lock:
            crew = self._crews.pop(session, None)
        if crew is not None:
            crew.end()

    def close(self) -> None:
        """Ends all sessions."""
        for session in list(self._crews):
            self.end(session)

    def preload(self, session: Session) -> Path | None:
        """What is preloaded into the processes of a session, whose host there is."""
        return self.bundles[session.bundle].preload(self.place / "sources") if session.bundle else None

    def leave(self, crew: _Crew) -> bool:
        """For a crew that has nothing to do: whether it may go."""
        with self._lock:
            if crew.has_work:
                return False
            crew.has_ended = True
            if self._crews.get(crew.session.name) is crew:
                del self._crews[crew.session.name]
            return True

    def gone(self, crew: _Crew) -> None:
        """From now on the crew is given nothing."""
        with self._lock:
            crew.has_ended = True

    def _said(self, reply: Reply, began: float) -> Reply:
        address, seconds = self.worker.address, time.monotonic() - began
        return Reply(
            reply.kind, reply.value, reply.fault, reply.reason, reply.signal, reply.log, worker=address, seconds=seconds
        )

    async def _begun_by(self, order: Order) -> str:
        """The worker that began with an order before; "": none did, and now this one has.

        Raises:
            OSError, TimeoutError: the scheduler does not answer.
        """
        scheduler, keys = self.worker.scheduler, [BEGUN, order.session.name, order.number]
        first: str = await scheduler.get_metadata(keys=keys, default="")
        if not first:
            await scheduler.set_metadata(keys=keys, value=self.worker.address)
        return first

    def _host(self, session: Session) -> Any:
        if not session.bundle:
            return None
        if self.toolchain is None:
            raise EnvironmentProblem(self.problem)
        limit = time.monotonic() + _BUNDLE_PATIENCE
        while session.bundle not in self.bundles:
            if time.monotonic() > limit:
                raise EnvironmentProblem(f"the worker {self.worker.name} was not given the sources of the build")
            time.sleep(0.05)
        store = variables.read(variables.BUILD, os.environ)["store"] or str(self.place / "store")
        with self._lock:
            return self.bundles[session.bundle].unpack(self.place / "sources", store, self.toolchain)


class _Crew:
    """The processes of one session, and the one thread that has them work. It has a thread and is none: which names are
    taken there differs between versions of Python."""

    def __init__(self, shop: _Workshop, session: Session, host: Any) -> None:
        self.session = session
        self._thread = threading.Thread(target=self._run, name=f"kiln-{session.name[:8]}", daemon=True)
        self.has_ended = False
        self._shop = shop
        self._orders: queue.SimpleQueue[tuple[Order, Future[Reply]] | int | None] = queue.SimpleQueue()
        self._open: dict[int, Future[Reply]] = {}
        self._killed: set[int] = set()
        self._logs = shop.place / "logs"
        self._store: str = host.store if host else ""
        # Dask's nanny tells malloc to give memory back at once, which takes a compiler time.
        os.environ.pop("MALLOC_TRIM_THRESHOLD_", None)
        self._executor: LocalExecutor[int] = LocalExecutor(
            shop.slots,
            child.start,
            (session.start, host),
            bytes_per_worker=session.bytes_per_worker,
            temporary=shop.place / "tmp",
            preload=shop.preload(session),
        )

    @property
    def has_work(self) -> bool:
        return bool(self._open) or not self._orders.empty()

    def take(self, order: Order, done: Future[Reply]) -> None:
        """Has an order run; `done` gets the reply. Under the workshop's lock."""
        self._tell((order, done))

    def kill(self, number: int) -> None:
        self._tell(number)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._tell(None)
        self._thread.join()

    # ---- inside ----

    def _run(self) -> None:
        fault = wire.fault_of(EnvironmentProblem("the worker was told to end"))
        try:
            self._logs.mkdir(parents=True, exist_ok=True)
            with contextlib.ExitStack() as held:
                if self._store:
                    held.enter_context(open_store(self._store).in_use())
                held.enter_context(self._executor)
                self._work()
        except Exception as error:  # noqa: BLE001  (whatever it is, the build must hear of it)
            fault = wire.fault_of(error)
        self._shop.gone(self)
        for done in self._open.values():
            done.set_result(Reply(wire.BROKEN, fault=fault))
        while not self._orders.empty():
            if isinstance(given := self._orders.get(), tuple):
                given[1].set_result(Reply(wire.BROKEN, fault=fault))

    def _tell(self, what: tuple[Order, Future[Reply]] | int | None) -> None:
        self._orders.put(what)
        self._executor.wake()

    def _work(self) -> None:
        busy = time.monotonic()
        while True:
            for event in self._executor.wait(_IDLE):
                self._handle(event)
            if self.has_work:
                busy = time.monotonic()
            elif time.monotonic() - busy >= _IDLE and self._shop.leave(self):
                return
            while not self._orders.empty():
                given = self._orders.get()
                if given is None:
                    return
                if isinstance(given, tuple):
                    self._submit(*given)
                else:
                    self._killed.add(given)
                    self._executor.kill(given)

    def _submit(self, order: Order, done: Future[Reply]) -> None:
        self._open[order.number] = done
        work = (order.work, order.is_received)
        log = self._log(order.number)
        self._executor.submit(Task(order.number, child.work, work, log, is_retry=True, data_limit=order.data_limit))

    def _handle(self, event: Event[int]) -> None:
        if isinstance(event, Began):
            self._report(event.id, {"what": wire.BEGAN})
        elif isinstance(event, Waits):
            self._report(event.id, {"what": wire.WAITS})
        else:
            reply = self._reply(event)
            if event.id in self._killed:  # Dask forgets a task that was cancelled: what it printed goes another way
                self._killed.discard(event.id)
                self._report(event.id, {"what": reply.kind, "reply": wire.encode(reply)})
            self._open.pop(event.id).set_result(reply)

    def _reply(self, event: Event[int]) -> Reply:
        log = self._log(event.id)
        said = b""
        with contextlib.suppress(OSError):
            if not isinstance(event, Returned):
                with log.open("rb") as file:
                    file.seek(max(0, log.stat().st_size - _MOST_LOG))
                    said = file.read()
            log.unlink()
        if isinstance(event, Returned):
            return Reply(wire.RETURNED, value=event.value)
        if isinstance(event, Raised):
            return Reply(wire.RAISED, fault=wire.fault_of(event.error), log=said)
        assert isinstance(event, Died)
        return Reply(wire.DIED, reason=event.reason, signal=event.signal, log=said)

    def _report(self, number: int, message: dict[str, Any]) -> None:
        worker = self._shop.worker
        message |= {"number": number, "worker": worker.address}
        worker.log_event(topic_of(self.session.name), message)

    def _log(self, number: int) -> Path:
        return self._logs / f"{self.session.name}-{number}.log"
