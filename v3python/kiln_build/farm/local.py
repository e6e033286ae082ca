"""The executor of this machine: warm worker processes, each kept apart from the others and from us.

Why not a pool from elsewhere: `concurrent.futures` breaks with its first dead worker. Pebble survives that, but lets
its workers share one pipe under one lock, so that a worker killed at the wrong moment breaks it all the same; it kills
a worker and not the assembler that the worker has started; and it looks for deaths and timeouts ten times a second.
Here each worker has a socket of its own, a session of its own that is killed as a whole, and its death wakes us.

What ends with what: a worker's death ends all that it has started (its process group is killed before its number can
be given to another). Our death, be it by kill -9, ends the workers twice over: each has asked the kernel to follow us
(PR_SET_PDEATHSIG), and the guardian (guardian.py) kills their groups, assemblers included.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import IO, Any, Generic, cast

from kiln_build.farm import guardian, worker
from kiln_build.farm.executor import Began, Died, Event, Executor, Id, Raised, Returned, Task, Waits, free_number
from kiln_build.farm.worker import Order
from kiln_recipe.errors import ArtifactError, EnvironmentProblem, KilnError

_START_ATTEMPTS = 3
# A worker allocates and frees the same hundreds of MB again and again: in huge pages, and not given back in between,
# that takes 4 % less of a compile. Another C library than glibc reads none of it.
_TUNABLES = ":".join(
    f"glibc.malloc.{name}"
    for name in ("hugetlb=1", "top_pad=16777216", "trim_threshold=1073741824", "mmap_threshold=268435456")
)
_BOOT = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from kiln_build.farm.worker import main; main(*map(int, sys.argv[2:]))"
)
_PACKAGES = str(Path(__file__).resolve().parents[2])


@dataclass
class _Worker(Generic[Id]):
    process: subprocess.Popen
    connection: Connection
    log: Path
    pidfd: int | None
    number: int  # the lowest that no other worker has
    is_ready: bool = False
    task: Task[Id] | None = None
    tasks: int = 0


class LocalExecutor(Executor[Id]):
    """An `Executor` whose workers are processes of this machine, started when they are first needed.

    Args:
        workers, initializer, arguments, bytes_per_worker, temporary, preload: as `StartExecutor` has them.
        tasks_per_worker: after so many, a worker is replaced.
    """

    def __init__(
        self,
        workers: int,
        initializer: Callable[..., Any] | None = None,
        arguments: tuple = (),
        *,
        tasks_per_worker: int = 1000,
        bytes_per_worker: int = 2 << 30,
        temporary: Path | None = None,
        preload: Path | None = None,
    ) -> None:
        self._limit = workers
        self._initializer = initializer
        self._arguments = arguments
        self._tasks_per_worker = tasks_per_worker
        self._bytes_per_worker = bytes_per_worker
        self._temporary = temporary
        self._preload = preload
        self._workers: list[_Worker[Id]] = []
        self._queue: deque[Task[Id]] = deque()
        self._events: deque[Event[Id]] = deque()
        self._failed_starts = 0
        self._started = 0
        self._wake_reader, self._wake_writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._folder: Path | None = None
        self._guardian: subprocess.Popen | None = None

    def submit(self, task: Task[Id]) -> None:
        self._queue.append(task)
        self._assign()

    def kill(self, id: Id) -> None:
        for task in list(self._queue):
            if task.id == id:
                self._queue.remove(task)
                self._events.append(Died(id, "killed before it started", signal.SIGKILL))
        for one in list(self._workers):
            if one.task is not None and one.task.id == id:
                self._bury(one)

    def wait(self, timeout: float | None) -> list[Event[Id]]:
        if not self._events:
            # Deaths are seen by the descriptor of the process; where there is none (Linux before 5.3), by the end of
            # the connection, unless a child holds it open: so look for those twice a second.
            blind = any(one.pidfd is None for one in self._workers)
            limit = min(x for x in (timeout, 0.5 if blind else None, 1e6) if x is not None)
            sources: list[Any] = [self._wake_reader]
            for one in self._workers:
                sources += [one.connection] if one.pidfd is None else [one.connection, one.pidfd]
            ready = set(wait(sources, limit))
            if self._wake_reader in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_reader, 4096)
            for one in list(self._workers):
                if one.connection in ready:
                    self._receive(one)
                elif one.pidfd in ready or (blind and self._is_dead(one)):
                    self._bury(one)
            self._assign()
        events = list(self._events)
        self._events.clear()
        return events

    def wake(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):
            os.write(self._wake_writer, b"!")

    def close(self) -> None:
        for one in list(self._workers):
            self._bury(one)
        self._queue.clear()
        if self._guardian is not None:
            with contextlib.suppress(OSError):
                cast(IO[bytes], self._guardian.stdin).close()
            self._guardian.wait()
            self._guardian = None
        if self._wake_writer >= 0:
            os.close(self._wake_reader)
            os.close(self._wake_writer)
            self._wake_reader = self._wake_writer = -1

    # ---- inside ----

    def _assign(self) -> None:
        """Gives waiting tasks to idle workers, and starts workers for those that remain."""
        for one in list(self._workers):
            if not self._queue:
                return
            if one.is_ready and one.task is None:
                task = self._queue.popleft()
                order = Order(task.function, task.arguments, str(task.log), task.is_retry, task.data_limit)
                try:
                    one.connection.send(order)
                except OSError:  # it has died while idle
                    self._queue.appendleft(task)
                    self._bury(one)
                    continue
                one.task = task
                one.tasks += 1
                self._events.append(Began(task.id, one.number))
        starting = sum(not one.is_ready for one in self._workers)
        for _ in range(min(len(self._queue) - starting, self._limit - len(self._workers))):
            self._start()

    def _start(self) -> None:
        ours, theirs = Pipe()
        self._started += 1
        try:
            folder = self._make_folder() / str(self._started)
            log = folder / "log"
            folder.mkdir()
            tunables = ":".join(filter(None, (os.environ.get("GLIBC_TUNABLES"), _TUNABLES)))
            with log.open("wb") as output, self._preloaded() as library:
                # By its descriptor: a path may have what LD_PRELOAD splits at.
                preload = {"LD_PRELOAD": f"/proc/self/fd/{library.fileno()}"} if library else {}
                process = subprocess.Popen(
                    [sys.executable, "-c", _BOOT, _PACKAGES, str(theirs.fileno()), str(os.getpid())],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=os.environ | {"TMPDIR": str(folder), "GLIBC_TUNABLES": tunables} | preload,
                    pass_fds=[theirs.fileno(), *([library.fileno()] if library else [])],
                    start_new_session=True,
                )
        except OSError as error:
            raise EnvironmentProblem(f"cannot start a worker process: {error.strerror or error}") from error
        finally:
            theirs.close()
        pidfd = None
        with contextlib.suppress(OSError):
            pidfd = os.pidfd_open(process.pid)
        taken = {other.number for other in self._workers}
        one: _Worker[Id] = _Worker(process, ours, log, pidfd, free_number(taken))
        self._workers.append(one)
        self._tell_guardian(f"+{process.pid}\n")
        with contextlib.suppress(OSError):  # a death will be seen by `wait`
            ours.send(sys.path)
            ours.send((self._initializer, self._arguments))

    def _preloaded(self) -> contextlib.AbstractContextManager[IO[bytes] | None]:
        return self._preload.open("rb") if self._preload else contextlib.nullcontext()

    def _receive(self, one: _Worker[Id]) -> None:
        try:
            message = one.connection.recv()
        except (EOFError, OSError):
            self._bury(one)
            return
        except Exception as error:  # noqa: BLE001  (its class cannot be imported here)
            message = (worker.RAISED, RuntimeError(f"the task's result cannot be read: {error}"), 0)
        kind, *values = message
        if kind == worker.READY:
            one.is_ready = True
            self._failed_starts = 0
        elif kind == worker.BROKEN:
            broken = values[0]
            if isinstance(broken, KilnError):
                raise broken
            raise EnvironmentProblem(f"workers cannot start: {type(broken).__name__}: {broken}") from broken
        elif one.task is not None and kind == worker.WAITS:
            self._events.append(Waits(one.task.id))
        elif one.task is not None and kind == worker.RESUMES:
            self._events.append(Began(one.task.id, one.number))
        elif one.task is not None:
            result, size = values
            self._events.append(received(one.task, result) if kind == worker.DONE else Raised(one.task.id, result))
            one.task = None
            if size > self._bytes_per_worker or one.tasks >= self._tasks_per_worker:
                self._bury(one)

    def _bury(self, one: _Worker[Id]) -> None:
        """Kills a worker and all that it has started, and reports its task, if it has one."""
        # First the group, then the reaping: until then the number cannot belong to anybody else.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(one.process.pid, signal.SIGKILL)
        code = one.process.wait()
        self._workers.remove(one)
        self._tell_guardian(f"-{one.process.pid}\n")
        if one.task is not None:
            self._events.append(Died(one.task.id, spell_exit(code), -code if code < 0 else 0))
        elif not one.is_ready and self._queue:
            self._failed_starts += 1
            if self._failed_starts >= _START_ATTEMPTS:
                said = one.log.read_text(errors="replace").strip().splitlines()[-3:]
                raise EnvironmentProblem(
                    f"workers end before they are ready ({spell_exit(code)})" + "".join(f"\n  {line}" for line in said),
                    has_lines=True,
                )
        one.connection.close()
        if one.pidfd is not None:
            os.close(one.pidfd)
        guardian.remove(str(one.log.parent))

    def _is_dead(self, one: _Worker[Id]) -> bool:
        return os.waitid(os.P_PID, one.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _make_folder(self) -> Path:
        """For the workers' temporary files: Triton leaves its own behind when it is killed."""
        if self._folder is None:
            if self._temporary is not None:
                self._temporary.mkdir(parents=True, exist_ok=True)
            self._folder = Path(tempfile.mkdtemp(prefix="kiln-workers-", dir=self._temporary)).absolute()
        return self._folder

    def _tell_guardian(self, line: str) -> None:
        if self._guardian is None:
            self._guardian = subprocess.Popen(
                [sys.executable, "-I", "-S", guardian.__file__, str(self._make_folder())],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        with contextlib.suppress(OSError):  # somebody has killed it: the workers still follow us by themselves
            orders = cast(IO[bytes], self._guardian.stdin)  # a pipe, as was asked for
            orders.write(line.encode())
            orders.flush()


def received(task: Task[Id], result: Any) -> Returned[Id] | Died[Id]:
    """The end of a task that has returned `result`."""
    try:
        return Returned(task.id, task.receive(result) if task.receive else result)
    except ArtifactError as error:
        return Died(task.id, f"its worker sent back what is damaged ({error})", 0, lost=True)


def spell_exit(code: int) -> str:
    """What a return code of `subprocess` means: "killed by SIGABRT", "exited with code 3"."""
    if code >= 0:
        return f"exited with code {code}"
    with contextlib.suppress(ValueError):
        return f"killed by {signal.Signals(-code).name}"
    return f"killed by signal {-code}"
