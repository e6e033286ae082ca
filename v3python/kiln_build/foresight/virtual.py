"""A clock that jumps, and an executor whose workers take simulated time: what a course runs on in a simulation."""

from __future__ import annotations

import heapq
import itertools
import math
import random
import signal
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from kiln_build.farm.course import AttemptId
from kiln_build.farm.executor import Began, Died, Event, Executor, Raised, Returned, Task

_HOUR = 3600.0


class Clock:
    """Seconds of a simulation."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True)
class Pretended:
    """What a task of a simulation returns, at once: how long it would have run, and what would have come of it.

    Attributes:
        seconds: from its beginning to its end in the worker.
        how, cpu: as `JobResult` has them.
        error: what it would have raised; None if it would have returned.
    """

    seconds: float
    how: str = "compiled"
    error: Exception | None = None

    @property
    def cpu(self) -> float:
        return self.seconds


@dataclass
class _Worker:
    number: int
    ready: float  # when it takes its first task
    dies: float


@dataclass
class _Run:
    """A task in a worker; nothing more is heard of it once it is over."""

    id: AttemptId
    worker: _Worker
    begins: float
    ends: float
    is_over: bool = False


@dataclass
class VirtualExecutor(Executor[AttemptId]):
    """An `Executor` whose tasks are functions that return `Pretended`. Equal arguments and tasks give equal events.

    Args:
        workers: how many tasks run at once; each worker starts when it is first needed, and again after its death.
        start_up: seconds from a worker's start to its first task.
        handling: seconds that whoever builds spends on each event before the next one is looked at.
        loss: how many of the workers are lost in an hour, each with its task: a rate, as of spot machines.
        dies: when the first worker of a number dies, by number; as `loss`, for tests and for what has happened.
        seed: of the losses.

    Attributes:
        lost: workers that were lost.
        busy: seconds that workers had a task, all together.
    """

    workers: int
    clock: Clock
    start_up: float = 0.0
    handling: float = 0.0
    loss: float = 0.0
    dies: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        self.lost = 0
        self.busy = 0.0
        self._dies = dict(self.dies)
        self._dice = random.Random(self.seed)
        self._queue: deque[Task[AttemptId]] = deque()
        self._idle: list[tuple[int, float, _Worker]] = []  # a heap: the lowest number first
        self._numbers = list(range(1, self.workers + 1))  # a heap: of workers that are not there
        self._runs: dict[AttemptId, _Run] = {}
        self._events: list[tuple[float, int, Event[AttemptId], _Run | None]] = []  # a heap
        self._order = itertools.count()

    def submit(self, task: Task[AttemptId]) -> None:
        self._queue.append(task)
        self._assign()

    def kill(self, id: AttemptId) -> None:
        for task in self._queue:
            if task.id == id:
                self._queue.remove(task)
                self._push(self.clock.now, Died(id, "killed before it started", signal.SIGKILL))
                return
        run = self._runs.get(id)
        if run is not None:
            self._bury(run, "killed", signal.SIGKILL)

    def wait(self, timeout: float | None) -> list[Event[AttemptId]]:
        """As `Executor.wait`, of simulated time. What happens at one moment comes at once.

        Raises:
            RuntimeError: it would wait for ever.
        """
        until = self.clock.now + (math.inf if timeout is None else timeout)
        while self._events and self._events[0][3] is not None and self._events[0][3].is_over:
            heapq.heappop(self._events)
        if not self._events and until == math.inf:
            raise RuntimeError("a simulation waits for what never happens")
        if not self._events or self._events[0][0] > until:
            self.clock.now = max(self.clock.now, until)
            return []
        moment = self._events[0][0]
        self.clock.now = max(self.clock.now, moment)
        events = []
        while self._events and self._events[0][0] == moment:
            _, _, event, run = heapq.heappop(self._events)
            if run is None or not run.is_over:
                events.append(event)
                if run is not None and not isinstance(event, Began):
                    self._end(run, event)
        self.clock.now += self.handling * len(events)
        self._assign()
        return events

    def wake(self) -> None:
        """Nobody waits."""
        return

    def close(self) -> None:
        """Forgets what would have happened."""
        self._events.clear()

    # ---- inside ----

    def _push(self, at: float, event: Event[AttemptId], run: _Run | None = None) -> None:
        heapq.heappush(self._events, (at, next(self._order), event, run))

    def _assign(self) -> None:
        while self._queue and (worker := self._take()):
            self._begin(self._queue.popleft(), worker)

    def _take(self) -> _Worker | None:
        while self._idle:
            _, _, worker = heapq.heappop(self._idle)
            if worker.dies > self.clock.now:
                return worker
            self.lost += 1
            heapq.heappush(self._numbers, worker.number)
        if not self._numbers:
            return None
        now, number = self.clock.now, heapq.heappop(self._numbers)
        rate = self.loss / _HOUR  # 0 also of the smallest of losses
        life = self._dice.expovariate(rate) if rate else math.inf
        return _Worker(number, now + self.start_up, min(now + life, self._dies.pop(number, math.inf)))

    def _begin(self, task: Task[AttemptId], worker: _Worker) -> None:
        pretended: Pretended = task.function(*task.arguments)
        begins = max(self.clock.now, worker.ready)
        ends = begins + pretended.seconds
        run = self._runs[task.id] = _Run(task.id, worker, begins, min(ends, worker.dies))
        if begins < worker.dies:
            self._push(begins, Began(task.id, worker.number), run)
        self.busy += max(0.0, min(ends, worker.dies) - begins)
        if worker.dies < ends:
            self._push(worker.dies, Died(task.id, "its machine was lost", 0, lost=True), run)
        elif pretended.error is not None:
            self._push(ends, Raised(task.id, pretended.error), run)
        else:
            self._push(ends, Returned(task.id, pretended), run)

    def _end(self, run: _Run, event: Event[AttemptId]) -> None:
        """A run is over by itself, or with its worker."""
        run.is_over = True
        del self._runs[run.id]
        worker = run.worker
        if isinstance(event, Died):
            self.lost += 1
            heapq.heappush(self._numbers, worker.number)
        else:
            heapq.heappush(self._idle, (worker.number, worker.ready, worker))

    def _bury(self, run: _Run, reason: str, number: int) -> None:
        """Ends a run with its worker."""
        run.is_over = True
        del self._runs[run.id]
        self.busy -= max(0.0, run.ends - max(run.begins, self.clock.now))
        heapq.heappush(self._numbers, run.worker.number)
        self._push(self.clock.now, Died(run.id, reason, number))
