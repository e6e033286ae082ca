"""The farm's decisions: events go in, instructions come out. No input or output, no threads, and no clock of its own.

What it decides: what it is told to try first goes first; then the longest job, so that none is left over when all
others are done; jobs that are short beside what is left for a worker may wait, and go in the order in which they were
given, which is that in which somebody wants them; how many run at once is bounded by a number and by memory; a job that
takes too long is killed and not tried again; a job whose worker died is tried again, with twice the memory if memory
was the reason; a job that failed by itself is not tried again.
"""

from __future__ import annotations

import enum
import heapq
import itertools
import math
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from kiln_build.farm.estimates import Estimates, kind_of


@dataclass(frozen=True)
class Policy:
    """How jobs are run.

    Attributes:
        jobs: how many run at once.
        memory: bytes that all jobs that run at once may take together; one job alone may always run.
        job_memory: bytes that a job may take at its first attempt.
        timeout: seconds after which a job is killed.
        attempts: how often a job is tried whose worker dies.
    """

    jobs: int
    memory: int
    job_memory: int
    timeout: float = math.inf
    attempts: int = 3


@dataclass(frozen=True)
class Start:
    """Run this job now; it may take `memory` bytes."""

    name: str
    attempt: int
    memory: int


@dataclass(frozen=True)
class Kill:
    """End this attempt now, and report it as died."""

    name: str
    attempt: int


Instruction = Start | Kill

_MOST_LOSSES = 10  # of machines under a job before it is to blame after all
_RECENT = 16  # jobs whose pace the estimate of the rest follows
_FEW = 4  # of them that tell a pace
_WIDE = 1.5  # from where on the slowest pace to the fastest is worth telling
_SHORT = 20  # how often a job must go into what is left for a worker to be short: with 10, some builds took longer
_STALE = 0.75  # of what was left for a worker; with less (or that much more) left it is asked again what is short


class End(enum.Enum):
    """How a job ended."""

    DONE = "done"
    FAILED = "failed"  # by itself: the same would happen again
    TIMEOUT = "timeout"
    CRASH = "crash"  # its worker died at each attempt
    CANCELLED = "cancelled"


@dataclass(frozen=True)
class Outcome:
    """How a job ended, after how many attempts, and what is to be said about it."""

    end: End
    attempts: int
    message: str = ""


@dataclass
class _Job:
    name: str
    order: int
    memory: int
    is_first: bool
    attempt: int = 0
    losses: int = 0  # of its attempts: those that ended with their machine
    estimate: float = 0.0
    is_short: bool = False  # beside what is left for a worker
    since: float | None = None  # its clock runs since then; None: not begun, or it waits for somebody
    used: float = 0.0  # seconds on its clock before that
    end: End | None = None  # how it will have ended once it is dead

    @property
    def rank(self) -> tuple[int, bool, float, int]:
        """The job of the highest rank is started first: retries, what goes first, the longest of those that are not
        short, then in the order given."""
        return self.attempt, self.is_first, 0.0 if self.is_short else self.estimate, -self.order


class Scheduler:
    """Decides over a set of jobs, each known by its name.

    Tell it what happened by `started`, `waits`, `finished`, `failed`, `died` and `cancel`; ask `step` what to do. An
    event of an attempt that is over is ignored, so a result that comes late or twice does no harm.
    """

    def __init__(
        self,
        names: Iterable[str],
        policy: Policy,
        durations: Mapping[str, float] | None = None,
        first: Collection[str] = (),
    ) -> None:
        """
        Args:
            durations: by name, what jobs took before.
            first: names of jobs that are started before the others.
        """
        self.policy = policy
        self.outcomes: dict[str, Outcome] = {}
        self._estimates = Estimates(durations or {})
        # What waits, the highest rank last, from where it is taken: jobs with an estimate, and those without.
        self._known: list[_Job] = []
        self._unknown = [
            _Job(name, order, policy.job_memory, is_first=name in first)
            for order, name in enumerate(dict.fromkeys(names))
        ]
        self._running: dict[str, _Job] = {}
        self._taken = 0  # bytes of memory, by what runs
        self._kinds: Counter[tuple[str, str]] = Counter()  # of what runs
        self._deadlines: list[tuple[float, int, _Job]] = []  # a heap; what is no longer so is dropped when met
        self._numbers = itertools.count()
        self._stopping = False
        self._samples = 0
        self._pending_seconds = 0.0
        self._recent: deque[tuple[float, float]] = deque(maxlen=_RECENT)  # (estimate, seconds) of what ended last
        self._sort()

    # ---- events ----

    def started(self, name: str, attempt: int, now: float) -> None:
        """The job's clock runs from now on: its worker has begun, or goes on after `waits`."""
        if (job := self._current(name, attempt)) and job.since is None:
            job.since = now
            if (deadline := self._deadline(job)) < math.inf:
                heapq.heappush(self._deadlines, (deadline, next(self._numbers), job))

    def waits(self, name: str, attempt: int, now: float) -> None:
        """The job waits for somebody else: its clock stands still until `started`."""
        if (job := self._current(name, attempt)) and job.since is not None:
            job.used += now - job.since
            job.since = None

    def finished(self, name: str, attempt: int, seconds: float, work: float | None = None) -> None:
        """The job is done and took `seconds`; also if it was about to be killed. `work`: seconds of a processor, from
        which others are estimated; else the same."""
        if job := self._current(name, attempt):
            self._end(job, End.DONE)
            if job.estimate > 0:
                self._recent.append((job.estimate, seconds))
            self._learn(name, seconds if work is None else work)

    def failed(self, name: str, attempt: int, message: str) -> None:
        """The job failed by itself."""
        if job := self._current(name, attempt):
            self._end(job, End.FAILED, message)

    def resize(self, jobs: int, memory: int) -> None:
        """From now on so many run at once, with so much memory: workers came or went."""
        self.policy = replace(self.policy, jobs=jobs, memory=memory)

    def died(self, name: str, attempt: int, message: str, out_of_memory: bool = False, *, lost: bool = False) -> None:
        """The job's worker is no more; `out_of_memory`: that may be why. `lost`: its machine is, or does not answer:
        that is no attempt of the job's, and where it took too long, it was not the job."""
        job = self._current(name, attempt)
        if job is None:
            return
        is_lost = lost and job.losses < _MOST_LOSSES
        if is_lost:
            job.losses += 1
        if is_lost and job.end is not End.CANCELLED:
            job.end = None
            self._again(job)
        elif job.end is not None:
            limit = f"took longer than {self.policy.timeout:g} s" if job.end is End.TIMEOUT else ""
            self._end(job, job.end, limit)
        elif job.attempt - job.losses >= self.policy.attempts:
            self._end(job, End.CRASH, f"{message}, {job.attempt} times in a row" if job.attempt > 1 else message)
        else:
            most = self.policy.memory or math.inf  # none where no worker is left just now
            self._again(job, int(min(2 * job.memory, most)) if out_of_memory else 0)

    def cancel(self) -> None:
        """Nothing is to be started any more, and what runs is to be killed."""
        self._stopping = True

    # ---- what to do ----

    def step(self, now: float) -> list[Instruction]:
        """What is to be done now. Each instruction is given once."""
        instructions: list[Instruction] = []
        if self._stopping:
            for job in self._running.values():
                if job.end is None:
                    job.end = End.CANCELLED
                    instructions.append(Kill(job.name, job.attempt))
            for job in (*self._known, *self._unknown):
                self.outcomes[job.name] = Outcome(End.CANCELLED, job.attempt)
            self._known.clear()
            self._unknown.clear()
        while self.next_deadline() <= now:
            _, _, job = heapq.heappop(self._deadlines)
            job.end = End.TIMEOUT
            instructions.append(Kill(job.name, job.attempt))
        while len(self._running) < self.policy.jobs and (picked := self._pick()):
            picked.attempt += 1
            self._running[picked.name] = picked
            self._taken += picked.memory
            self._kinds[kind_of(picked.name)] += 1
            instructions.append(Start(picked.name, picked.attempt, picked.memory))
        return instructions

    @property
    def is_over(self) -> bool:
        """Whether every job has ended."""
        return not self._known and not self._unknown and not self._running

    def next_deadline(self) -> float:
        """When `step` will have something to kill if nothing happens until then; infinity if never."""
        while self._deadlines:
            deadline, _, job = self._deadlines[0]
            if self._running.get(job.name) is job and job.end is None and self._deadline(job) == deadline:
                return deadline
            heapq.heappop(self._deadlines)
        return math.inf

    def remaining(self, now: float) -> float | None:
        """Seconds until all is done, as far as is known, if the rest takes as much longer or shorter than its estimates
        as the last jobs did; None if nothing is known."""
        return self._remaining(now, _pace(self._recent)) if self._estimates else None

    def spread(self, now: float) -> tuple[float, float] | None:
        """`remaining` from and to, by the fastest and the slowest few of the last jobs; None where these are close."""
        every = list(self._recent)
        paces = [_pace(every[n : n + _FEW]) for n in range(0, len(every) - _FEW + 1, _FEW)]
        if len(paces) < 2 or max(paces) < _WIDE * min(paces):
            return None
        return self._remaining(now, min(paces)), self._remaining(now, max(paces))

    # ---- inside ----

    def _current(self, name: str, attempt: int) -> _Job | None:
        job = self._running.get(name)
        return job if job is not None and job.attempt == attempt else None

    def _remaining(self, now: float, pace: float) -> float:
        left = [max(0.0, pace * job.estimate - self._clock(job, now)) for job in self._running.values()]
        return max([(pace * self._pending_seconds + sum(left)) / max(1, self.policy.jobs), *left])

    @property
    def _left(self) -> float:
        """Seconds of what has not begun, for each worker."""
        return self._pending_seconds / max(1, self.policy.jobs)

    def _clock(self, job: _Job, now: float) -> float:
        return job.used + (now - job.since if job.since is not None else 0.0)

    def _deadline(self, job: _Job) -> float:
        return math.inf if job.since is None else job.since + self.policy.timeout - job.used

    def _end(self, job: _Job, end: End, message: str = "") -> None:
        self._leave(job)
        self.outcomes[job.name] = Outcome(end, job.attempt, message)

    def _again(self, job: _Job, memory: int = 0) -> None:
        """The job runs no longer, and will be started again, with `memory` at least."""
        self._leave(job)
        job.memory = max(job.memory, memory)
        job.since, job.used = None, 0.0
        self._known.append(job)  # at the end, from where they are taken: it was before all that still wait
        self._pending_seconds += job.estimate

    def _leave(self, job: _Job) -> None:
        """The job runs no longer."""
        del self._running[job.name]
        self._taken -= job.memory
        kind = kind_of(job.name)
        self._kinds[kind] -= 1
        if not self._kinds[kind]:
            del self._kinds[kind]

    def _pick(self) -> _Job | None:
        """Takes the next job: one of a kind of which nothing is known, so that something will be; else the longest
        that memory allows. (A job that needs more memory than is free now lets others pass: better late than idle.)"""
        free = self.policy.memory - self._taken if self._running else math.inf
        if free < self.policy.job_memory:  # which every job needs at least
            return None
        if not self._left_at_sort * _STALE <= self._left <= self._left_at_sort / _STALE:
            self._sort()
        known, unknown = self._find(self._known, free), None
        if self._unknown_kinds.keys() - self._kinds.keys():
            unknown = self._find(self._unknown, free, self._kinds)
        if known is None and unknown is None:
            unknown = self._find(self._unknown, free)
        is_known = unknown is None or (known is not None and self._known[known].rank > self._unknown[unknown].rank)
        index = known if is_known else unknown
        if index is None:
            return None
        job = (self._known if is_known else self._unknown).pop(index)
        if not is_known:
            job.estimate = self._estimates.mean
            self._unknown_kinds -= Counter([kind_of(job.name)])
        self._pending_seconds = max(0.0, self._pending_seconds - job.estimate)
        return job

    @staticmethod
    def _find(jobs: list[_Job], free: float, without: Collection[tuple[str, str]] = ()) -> int | None:
        """Where the last of these is that takes no more memory than is free, and is of no kind of `without`."""
        for index in range(len(jobs) - 1, -1, -1):
            if jobs[index].memory <= free and not (without and kind_of(jobs[index].name) in without):
                return index
        return None

    def _learn(self, name: str, seconds: float) -> None:
        if self._guesses == 0:  # what waits is all known from before, so that this changes nothing
            return
        self._estimates.add(name, seconds)
        self._samples += 1
        if self._samples >= 1.5 * self._samples_at_sort:  # so that a long build sorts a few dozen times
            self._sort()

    def _sort(self) -> None:
        """Puts what waits into its order, by what is known now."""
        before = self._pending_seconds
        waiting = [*self._known, *self._unknown]
        for job in waiting:
            estimate = self._estimates(job.name)
            job.estimate = math.inf if estimate is None else estimate
        self._pending_seconds = sum(job.estimate for job in waiting if job.estimate < math.inf)
        self._pending_seconds += self._estimates.mean * sum(job.estimate == math.inf for job in waiting)
        self._left_at_sort = self._left
        for job in waiting:
            job.is_short = _SHORT * job.estimate < self._left
        waiting.sort(key=lambda job: job.rank)
        self._guesses = sum(job.name not in self._estimates for job in waiting)
        self._known = [job for job in waiting if job.estimate < math.inf]
        self._unknown = [job for job in waiting if job.estimate == math.inf]
        self._unknown_kinds = Counter(kind_of(job.name) for job in self._unknown)
        if before > 0 and self._pending_seconds > 0:  # what the estimates have learned is not to be counted twice
            learned = self._pending_seconds / before
            self._recent = deque(((estimate * learned, took) for estimate, took in self._recent), _RECENT)
        self._samples_at_sort = self._samples


def _pace(ended: Collection[tuple[float, float]]) -> float:
    """How much longer than its estimate a job takes, by those that ended; 1 where these are too few to tell."""
    return sum(took for _, took in ended) / sum(estimate for estimate, _ in ended) if len(ended) >= _FEW else 1.0
