"""What runs tasks is to those who have them run: `Executor`, its tasks, and the events that it reports.

An executor knows nothing of kernels and decides nothing: it starts the tasks that it is given, kills those that it is
told to kill, and reports what became of each. Decisions are the scheduler's. An implementation is a module beside this
one, and a choice in `FarmOptions.of`; tests/executor_contract.py holds every implementation to what is written here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

Id = TypeVar("Id", bound=Hashable)


def free_number(taken: Collection[int]) -> int:
    """The number of a worker that begins beside others, as `Began` has it: the lowest that is free."""
    return next(number for number in range(1, len(taken) + 2) if number not in taken)


@dataclass(frozen=True)
class Task(Generic[Id]):
    """Something to run in a worker.

    Attributes:
        id: by which events name it; no two tasks that are under way may have the same.
        function, arguments: picklable; the function must be importable from a module other than `__main__`. They, and
            what the function returns or raises, may go to another machine and back.
        log: the file, of this machine, for all that it prints; it is removed if the task returns and is no retry. It is
            there when the task's last event is reported.
        is_retry: add to the log of the attempt before.
        data_limit: bytes of memory that each of its processes may reserve (RLIMIT_DATA), or None.
        memory: bytes that it will take, about: where machines differ, it runs on one that has them. None: not known.
        receive: makes the result of the bytes that the function returns, in our process; raises ArtifactError if they
            are not what they should be. An executor whose workers are elsewhere unpickles nothing that they send: a
            function without it returns plain data.
    """

    id: Id
    function: Callable[..., Any]
    arguments: tuple
    log: Path
    is_retry: bool = False
    data_limit: int | None = None
    memory: int | None = None
    receive: Callable[[bytes], Any] | None = None


@dataclass(frozen=True)
class Began(Generic[Id]):
    """The task runs now, or goes on after `Waits`. `worker`: the number of the worker that runs it, counted from 1; no
    two that run at once have the same. Two events of a task are equal whichever it is."""

    id: Id
    worker: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Waits(Generic[Id]):
    """The task waits for the work of another (worker.waiting)."""

    id: Id


@dataclass(frozen=True)
class Returned(Generic[Id]):
    """The task is done."""

    id: Id
    value: Any


@dataclass(frozen=True)
class Raised(Generic[Id]):
    """The task raised; the traceback is in its log."""

    id: Id
    error: Exception


@dataclass(frozen=True)
class Died(Generic[Id]):
    """The task's worker is no more: "killed by SIGKILL". `signal` is 0 if it exited, or was lost otherwise.

    `lost`: it is no fault of the task's, as far as is known: its machine is gone, does not answer, is out of order, or
    sent back what is damaged. `reason` is a sentence then, without its full stop.
    """

    id: Id
    reason: str
    signal: int
    lost: bool = False


Event = Began[Id] | Waits[Id] | Returned[Id] | Raised[Id] | Died[Id]


@dataclass(frozen=True)
class Capacity:
    """What the workers of an executor can do together: tasks at once, and bytes of memory."""

    tasks: int
    memory: int


class Executor(Protocol[Id]):
    """Runs tasks, each in a worker: a process that is kept apart from the others and from us.

    A context manager, used by one thread; `wake` alone may be called from others, and from signal handlers.

    Concurrency: at most `workers` tasks run at once, the others wait, and begin in the order in which they were
    submitted. A worker runs one task at a time, and one after another.

    Events: of each task `Began`, then perhaps pairs of `Waits` and `Began`, then one of `Returned`, `Raised` and
    `Died`, which is its last; a task that is killed before it begins has `Died` alone. Whatever a task does ends no
    other task and not us: exceptions of any kind, results that cannot travel, `sys.exit`, a signal, too much memory.

    Interruption: leaving the context, by an exception too, kills whatever still runs. When this process dies, be it by
    SIGKILL, its workers and all that they have started die within seconds.

    Raises, from `submit` and `wait`: EnvironmentProblem, if workers cannot be started or reached. A KilnError that the
    initializer raises is raised as it is; of several machines, one where it does is given no more, and the last one's
    is raised.
    """

    def __enter__(self) -> Executor[Id]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, task: Task[Id]) -> None:
        """Runs a task as soon as a worker is free. Does not wait."""

    def kill(self, id: Id) -> None:
        """Ends a task now, with all that it has started; `Died` follows. Nothing happens if it has ended before."""

    def wait(self, timeout: float | None) -> list[Event[Id]]:
        """What has happened since the last call, in order; waits for something to, at most `timeout` seconds (None: for
        ever). An empty list where nothing has: the time is over, or `wake` was called."""

    def capacity(self) -> Capacity | None:
        """What can run now, where workers come and go; `wait` does not return for that. None: what was asked for."""
        return None

    def notices(self) -> list[str]:
        """Sentences for the user, new since the last call; `wait` does not return for them."""
        return []

    def summary(self) -> list[str]:
        """What the workers have done, for the user, where there are machines to compare."""
        return []

    def wake(self) -> None:
        """Makes a `wait` that goes on, or else the next one, return. May be called after `close`."""

    def close(self) -> None:
        """Kills all workers and what they have started. May be called twice."""


class StartExecutor(Protocol):
    """Makes an executor."""

    def __call__(
        self,
        workers: int,
        initializer: Callable[..., Any] | None = None,
        arguments: tuple = (),
        *,
        bytes_per_worker: int = ...,
        temporary: Path | None = None,
        preload: Path | None = None,
    ) -> Executor[Any]:
        """
        Args:
            workers: how many tasks run at once.
            initializer, arguments: called in each worker before its first task; picklable. An executor whose workers
                are on another machine puts a `job.Host` of that machine in place of the one among the arguments.
            bytes_per_worker: a worker that has grown beyond this is replaced.
            temporary: the folder for the workers' temporary files, made if it is not there; None: the system's.
            preload: a library that is preloaded into workers, and into nothing that they run; None: none.
        """
