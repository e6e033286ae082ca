"""How a run of the farm goes on: instructions to the executor, what became of tasks to the scheduler, to the last job.

Here is what a death or an error means: what is tried again, what is not, and what ends the build. It knows no store, no
image and no time but its clock's, so that a build and a simulation (foresight/) run the same course.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from kiln_build.farm import executor
from kiln_build.farm.executor import Executor, Task
from kiln_build.farm.job import ToolDied
from kiln_build.farm.schedule import Kill, Scheduler, Start
from kiln_recipe.console.progress import FAILED
from kiln_recipe.errors import CompileError, KilnError

AttemptId = tuple[str, int]  # the name of a job and which attempt at it, by which the executor knows it


class Attempt(NamedTuple):
    """An attempt at a compile. Times are the course's clock's; `outcome`: how JobResult has it, or "failed", "died"."""

    worker: int
    began: float
    ended: float
    outcome: str
    name: str


class Result(Protocol):
    """What a task returns, as far as a course asks; `JobResult` is one."""

    @property
    def how(self) -> str:
        """What became of it, in a word."""

    @property
    def seconds(self) -> float:
        """That it took by the clock, waits for others aside."""

    @property
    def cpu(self) -> float:
        """Seconds of processors."""


class Jobs(Protocol):
    """Those whose jobs run: they make the tasks, and hear what became of them."""

    def task(self, start: Start, /) -> Task[AttemptId]:
        """What is submitted for an attempt; its id is (start.name, start.attempt)."""

    def returned(self, name: str, result: Result, now: float, /) -> None:
        """A job is done."""

    def explain(self, name: str, reason: str, /) -> str:
        """Why a job's worker or tool is no more, with what else is known of it."""

    def retried(self, name: str, attempt: int, reason: str, /) -> None:
        """After such a death the job will be tried again."""

    def lost(self, name: str, reason: str, /) -> None:
        """After its machine was lost the job will be started again."""

    def failed(self, name: str, seconds: float, now: float, /) -> None:
        """A job ended without a result, so long after it first began; the scheduler's outcome says how."""


@dataclass
class Course:
    """One run.

    Attributes:
        clock: seconds since some beginning.
        between: called after the events of each wait; gives the seconds after which it wants to be called again.
        attempts: those that have ended, in that order.
    """

    scheduler: Scheduler
    workers: Executor[AttemptId]
    jobs: Jobs
    clock: Callable[[], float]
    between: Callable[[], float] = lambda: math.inf
    attempts: list[Attempt] = field(default_factory=list)
    _began: dict[str, float] = field(default_factory=dict)  # when the first attempt at a job did
    _running: dict[AttemptId, tuple[int, float]] = field(default_factory=dict)  # by which worker, and since when

    def run(self, is_interrupted: Callable[[], object] = lambda: False) -> None:
        """Runs every job to its end; cancels what has not ended once `is_interrupted()`.

        Raises:
            KilnError: an executor's or a task's that is no verdict on one job: nothing can be compiled here.
        """
        patience = math.inf
        while not self.scheduler.is_over:
            if is_interrupted():
                self.scheduler.cancel()
            for instruction in self.scheduler.step(self.clock()):
                if isinstance(instruction, Kill):
                    self.workers.kill((instruction.name, instruction.attempt))
                else:
                    self.workers.submit(self.jobs.task(instruction))
            timeout = self.scheduler.next_deadline() - self.clock()
            for event in self.workers.wait(max(0.0, min(timeout, patience))):
                self._handle(event)
            patience = self.between()

    def _handle(self, event: executor.Event[AttemptId]) -> None:
        name, attempt = event.id
        now = self.clock()
        self._note(event, now)
        if isinstance(event, executor.Began):
            self._began.setdefault(name, now)
            self.scheduler.started(name, attempt, now)
        elif isinstance(event, executor.Waits):
            self.scheduler.waits(name, attempt, now)
        elif isinstance(event, executor.Returned):
            result: Result = event.value
            self.scheduler.finished(name, attempt, result.seconds, result.cpu)
            self.jobs.returned(name, result, now)
        elif isinstance(event, executor.Died):
            # SIGKILL is how the kernel takes memory back, SIGABRT how C++ says that it got none.
            perhaps_memory = event.signal in (signal.SIGKILL, signal.SIGABRT)
            if event.lost:
                self._lost(name, attempt, event.reason)
            else:
                self._died(name, attempt, f"its worker was {event.reason}", perhaps_memory)
        elif isinstance(event.error, MemoryError):
            self._died(name, attempt, "out of memory", True)
        elif isinstance(event.error, ToolDied):
            self._died(name, attempt, event.error.message, event.error.out_of_memory)
        elif isinstance(event.error, KilnError) and not isinstance(event.error, CompileError):
            raise event.error
        else:
            error = event.error
            message = str(error) if isinstance(error, CompileError) else f"{type(error).__name__}: {error}"
            self.scheduler.failed(name, attempt, message)
            self._failed(name, now)

    def _note(self, event: executor.Event[AttemptId], now: float) -> None:
        """Keeps when an attempt began, and what became of it."""
        if isinstance(event, executor.Began):
            self._running.setdefault(event.id, (event.worker, now))
        elif not isinstance(event, executor.Waits) and event.id in self._running:
            outcome = "died" if isinstance(event, executor.Died) else FAILED
            if isinstance(event, executor.Returned):
                outcome = event.value.how
            self.attempts.append(Attempt(*self._running.pop(event.id), now, outcome, event.id[0]))

    def _died(self, name: str, attempt: int, reason: str, perhaps_memory: bool) -> None:
        reason = self.jobs.explain(name, reason)
        self.scheduler.died(name, attempt, reason, perhaps_memory)
        if name in self.scheduler.outcomes:
            self._failed(name, self.clock())
        else:
            self.jobs.retried(name, attempt, reason)

    def _lost(self, name: str, attempt: int, reason: str) -> None:
        """It was no fault of the job's, which is no wiser for it."""
        self.scheduler.died(name, attempt, reason, lost=True)
        if name in self.scheduler.outcomes:
            self._failed(name, self.clock())
        else:
            self.jobs.lost(name, reason)

    def _failed(self, name: str, now: float) -> None:
        self.jobs.failed(name, now - self._began.get(name, now), now)  # a worker may die before it begins
