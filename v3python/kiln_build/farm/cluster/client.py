"""The executor of a Dask cluster, as a build has it.

Each task is a task of Dask's, which chooses the worker, and chooses another if that is lost before the task has begun
(runs.py). What has begun there is reported as lost; whether it is run again is for the scheduler of the build to
decide. All that speaks to the cluster runs in one thread, on one event loop; the build's thread takes events out of a
mailbox.

A scheduler that goes away takes its tasks with it: those that had begun are lost, the others are submitted again once
it is back. Its workers, if they come back too, get the agent and the sources from the new scheduler.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import pickle
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

import distributed
from tornado import httpclient

from kiln_build.farm.cluster import agent
from kiln_build.farm.cluster.bundle import There, bundle_of
from kiln_build.farm.cluster.mailbox import Mailbox
from kiln_build.farm.cluster.roll import Roll
from kiln_build.farm.cluster.runs import Runs, quietly, spell
from kiln_build.farm.cluster.wire import Session
from kiln_build.farm.executor import Capacity, Event, Executor, Id, Task
from kiln_build.farm.job import Host
from kiln_recipe.errors import EnvironmentProblem, KilnError

if TYPE_CHECKING:
    from kiln_recipe.compile.toolchain import Toolchain

_CONNECT_SECONDS = 15.0  # to a scheduler that nothing is known of
_RETURN_SECONDS = 600.0  # that a scheduler may be away, or stand still
_SILENT_SECONDS = 30.0  # without an answer after which the user is told
_LOOK_SECONDS = 15.0  # between looks at the workers when nothing is heard of them
_CLOSE_SECONDS = 5.0


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
        self._mailbox: Mailbox[Id] = Mailbox()
        self._loop = asyncio.new_event_loop()
        self._thread: threading.Thread | None = None
        self._news = asyncio.Event()
        self._closing = asyncio.Event()
        self._runs: Runs[Id] = Runs(self._session, workers, self._roll, self._mailbox, self._news)

    # ---- of the build's thread ----

    def __enter__(self) -> DaskExecutor[Id]:
        self._thread = threading.Thread(target=self._run_loop, name="kiln-dask", daemon=True)
        self._thread.start()
        return self

    def submit(self, task: Task[Id]) -> None:
        self._loop.call_soon_threadsafe(self._runs.take, task)

    def kill(self, id: Id) -> None:
        self._loop.call_soon_threadsafe(self._runs.kill, id)

    def wait(self, timeout: float | None) -> list[Event[Id]]:
        return self._mailbox.wait(timeout)

    def wake(self) -> None:
        self._mailbox.wake()

    def capacity(self) -> Capacity | None:
        return self._roll.capacity()

    def notices(self) -> list[str]:
        return self._mailbox.notices()

    def summary(self) -> list[str]:
        return self._roll.summary()

    def close(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            self._loop.call_soon_threadsafe(self._closing.set)
            thread.join()
        self._mailbox.close()

    # ---- of the loop's thread, as all below ----

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        # What Dask says of connections that break, of versions that differ and of its own coroutines is nothing for the
        # user: what follows from it for the build comes as an error, and is told.
        self._loop.set_exception_handler(lambda *_: None)
        logging.getLogger("distributed").setLevel(logging.CRITICAL + 1)
        warnings.filterwarnings("ignore", module="distributed")
        try:
            self._loop.run_until_complete(self._main())
        except KilnError as error:
            self._mailbox.fail(error)
        except Exception as error:  # noqa: BLE001  (whatever it is, the build must hear of it)
            self._mailbox.fail(
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
                    self._runs.client = await _unless(closing, self._connect())
                except Exception as error:
                    if lost_at is None or time.monotonic() - lost_at > _RETURN_SECONDS:
                        raise EnvironmentProblem(
                            f"no scheduler of Dask answers at {self.address} ({spell(error)}); start one there with "
                            "`dask scheduler`, or name another with KILN_SCHEDULER"
                        ) from error
                    await asyncio.wait([closing], timeout=1.0)
                    continue
                if self._runs.client is None:
                    break
                if lost_at is not None:
                    self._mailbox.say(f"the scheduler {self.address} is back")
                await self._serve(closing)
                if not closing.done():
                    lost_at = time.monotonic()
                    self._scheduler_is_gone()
        finally:
            closing.cancel()
            await self._leave()

    async def _connect(self) -> Any:
        client = distributed.Client(
            self.address,
            asynchronous=True,
            set_as_default=False,
            security=self._security,
            timeout=_CONNECT_SECONDS,
            name="kiln",
        )
        try:  # Dask's own limit is of the connection: what listens there may be something else, which says nothing
            return await asyncio.wait_for(client, _CONNECT_SECONDS)
        except BaseException:
            self._runs.follow_up(quietly(client.close(timeout=1)))
            raise

    async def _serve(self, closing: asyncio.Future) -> None:
        """Until the scheduler is gone, or the build has enough."""
        client = self._runs.client
        client.subscribe_topic(agent.topic_of(self._session.name), self._runs.hear)
        client.subscribe_topic(agent.NEWS, lambda _: self._news.set())
        client.subscribe_topic("all", self._runs.hear_of_workers)
        self._news.set()
        # Workers that cannot load it answer with an error, which says less than that they do not announce themselves.
        plugin = {"plugin": pickle.dumps(self._plugin), "name": self._plugin.name, "idempotent": True}
        self._runs.follow_up(quietly(client.scheduler.register_worker_plugin(**plugin)))
        began, last = time.monotonic(), 0.0
        try:
            about = await self._answered(client.scheduler.identity(n_workers=0), closing)
        except OSError:
            return  # it is gone again
        if dashboard := about and about["services"].get("dashboard"):
            self._runs.follow_up(self._tell_of_dashboard(client.dashboard_link or str(dashboard)))
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
                    self._mailbox.say(notice)
                if problem := self._roll.problem(self.address):
                    raise self._runs.fault or problem
                await self._free(client, closing)
                self._runs.fill()
            waiting = asyncio.ensure_future(self._news.wait())
            await asyncio.wait([closing, waiting], timeout=0.5, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()

    async def _tell_of_dashboard(self, address: str) -> None:
        """Unless a scheduler without bokeh, which names an address all the same, has nothing there."""
        code = 0
        with contextlib.suppress(Exception):  # an address of the cluster's own network need not be one of ours
            answer = await httpclient.AsyncHTTPClient().fetch(
                address, raise_error=False, connect_timeout=3, request_timeout=5, validate_cert=False
            )
            code = answer.code
        if code != 404:
            self._mailbox.say(f"dashboard: {address}")

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
                    raise EnvironmentProblem(
                        f"the scheduler {self.address} has not answered for {_RETURN_SECONDS / 60:g} minutes"
                    )
                if not is_told and not closing.done():
                    is_told = True
                    self._mailbox.say(f"warning: the scheduler {self.address} does not answer; waiting for it")
        finally:
            answer.cancel()
        return None

    async def _free(self, client: Any, closing: asyncio.Future) -> None:
        """Asks Dask what it has no worker for."""
        keys = self._runs.keys
        try:
            states = await self._answered(client.scheduler.get_task_status(keys=keys), closing) if keys else {}
        except OSError:
            return
        self._runs.free({key for key, state in (states or {}).items() if state == "no-worker"})

    def _scheduler_is_gone(self) -> None:
        self._mailbox.say(f"warning: the scheduler {self.address} is gone; waiting for it")
        self._runs.follow_up(quietly(self._runs.client.close(timeout=1)))
        self._roll.clear()
        self._runs.lose_scheduler()

    async def _leave(self) -> None:
        """Has the cluster forget us: what it runs for us is killed."""
        client, self._runs.client = self._runs.client, None
        if client is None:
            return
        if client.status == "running":
            with contextlib.suppress(Exception):
                await asyncio.wait_for(client.cancel(self._runs.futures, force=True), _CLOSE_SECONDS)
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
        self._runs.stop_following()
        await quietly(asyncio.wait_for(client.close(timeout=2), _CLOSE_SECONDS))


async def _unless(closing: asyncio.Future, what: Coroutine[Any, Any, Any]) -> Any:
    """What comes of it; None once the build has enough."""
    task = asyncio.ensure_future(what)
    await asyncio.wait([task, closing], return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        return task.result()
    task.cancel()
    await quietly(task)
    return None
