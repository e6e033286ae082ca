"""One build in simulated time: the farm's scheduler and course, on workers that wait for nothing."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kiln_build.farm.course import AttemptId, Course
from kiln_build.farm.executor import Task
from kiln_build.farm.options import JOB_MEMORY, FarmOptions, workers_for
from kiln_build.farm.schedule import End, Policy, Scheduler, Start
from kiln_build.foresight.costs import Costs
from kiln_build.foresight.virtual import Clock, Pretended, VirtualExecutor

_NO_LOG = Path("/dev/null")
_TOLD = 500  # jobs between two calls of `advance`


@dataclass(frozen=True)
class Work:
    """An image that a build needs.

    Attributes:
        name: of its variant.
        seconds: that its compile takes on one core.
        memory: bytes that its compile takes at its peak.
    """

    name: str
    seconds: float
    memory: int = 0


@dataclass(frozen=True)
class Cluster:
    """What a build runs on.

    Attributes:
        workers: compiles at once.
        spot: workers lost in an hour, as a share of those that run.
        dies: when a worker is lost, by number: seconds from the first job's submission.
        memory: bytes for each worker.
        timeout, attempts: as `FarmOptions` has them.
        seed: of what is lost.
    """

    workers: int
    spot: float = 0.0
    dies: Mapping[int, float] = field(default_factory=dict)
    memory: int = 4 << 30
    timeout: float = FarmOptions.timeout
    attempts: int = FarmOptions.attempts
    seed: int = 0


@dataclass(frozen=True)
class Forecast:
    """What is foreseen of a build. Seconds are of simulated time.

    Attributes:
        workers: those that are used; never more than there are images to compile.
        compiled, fetched, failed: images.
        lost: workers that were lost, with what they were doing.
        before: seconds before the first worker starts: planning, look-ups, what a cache has.
        compile: from the workers' start to the last image.
        after: packing and linking.
        packing: seconds of cores, all together, that packing and linking take.
        busy: seconds of workers with a job, all together, those included whose work was lost.
        moved: bytes to and from workers and the cache.
    """

    workers: int
    compiled: int
    fetched: int
    failed: int
    lost: int
    before: float
    compile: float
    after: float
    packing: float
    busy: float
    moved: int

    @property
    def makespan(self) -> float:
        """Seconds from the build's start to its release."""
        return self.before + self.compile + self.after

    @property
    def idle(self) -> float:
        """The share of the workers' time, while there are any, in which they have no job."""
        paid = self.workers * self.compile
        return max(0.0, 1 - self.busy / paid) if paid else 0.0

    @property
    def core_hours(self) -> float:
        """What is paid for: every worker from the first job to the last, one core before, and what packs after that."""
        return (self.workers * self.compile + self.before + self.packing) / 3600

    def document(self) -> dict[str, float | int]:
        """For programs."""
        return {
            "workers": self.workers,
            "compiled": self.compiled,
            "fetched": self.fetched,
            "failed": self.failed,
            "lost_workers": self.lost,
            "seconds": round(self.makespan, 2),
            "seconds_before": round(self.before, 2),
            "seconds_compiling": round(self.compile, 2),
            "seconds_after": round(self.after, 2),
            "busy_core_hours": round(self.busy / 3600, 4),
            "core_hours": round(self.core_hours, 4),
            "idle": round(self.idle, 4),
            "bytes": self.moved,
        }


def cached(works: Sequence[Work], share: float, seed: int) -> list[bool]:
    """Which images a cache has, of which it has about that share: each by a digest of its name, so that one that has
    more has what one with less has."""
    return [zlib.crc32(f"{seed} {work.name}".encode()) < share * 2**32 for work in works]


def simulate(
    works: Sequence[Work],
    cluster: Cluster,
    costs: Costs,
    *,
    known: Mapping[str, float] | None = None,
    hits: Sequence[bool] = (),
    advance: Callable[[int], None] = lambda _: None,
) -> Forecast:
    """Foresees a build of these images.

    Args:
        known: seconds that the scheduler knows of earlier builds, by name; None: what each will take.
        hits: which of the images the cache has; none if empty.
        advance: is told how many more images are done.
    """
    missing = [work for work, hit in zip(works, hits) if not hit] if hits else list(works)
    fetched = len(works) - len(missing)
    advance(fetched)
    clock, jobs = Clock(), _Jobs({work.name: work for work in missing}, advance)
    memory = cluster.workers * cluster.memory
    workers = workers_for(len(missing), cluster.workers, memory)
    executor = VirtualExecutor(workers, clock, costs.start_up, costs.handling, cluster.spot, cluster.dies, cluster.seed)
    policy = Policy(workers, memory, JOB_MEMORY, cluster.timeout, cluster.attempts)
    durations = {work.name: work.seconds for work in missing} if known is None else known
    jobs.transfer = costs.transfer
    course = Course(Scheduler(jobs.works, policy, durations), executor, jobs, clock)
    course.run()
    advance(jobs.untold)
    ends = [outcome.end for outcome in course.scheduler.outcomes.values()]
    compiled = ends.count(End.DONE)
    return Forecast(
        workers=workers if missing else 0,
        compiled=compiled,
        fetched=fetched,
        failed=len(ends) - compiled,
        lost=executor.lost,
        before=costs.start + costs.look_up * len(works) + costs.fetch * fetched,
        compile=clock.now,
        after=costs.link + costs.pack * len(works) / max(1, costs.packers),
        packing=costs.link + costs.pack * len(works),
        busy=executor.busy,
        moved=len(course.attempts) * costs.job_bytes + (compiled + fetched) * costs.image_bytes,
    )


@dataclass
class _Jobs:
    """The jobs of a simulated build, as its course knows them."""

    works: Mapping[str, Work]
    advance: Callable[[int], None]
    transfer: float = 0.0
    untold: int = 0

    def task(self, start: Start) -> Task[AttemptId]:
        work = self.works[start.name]
        return Task((start.name, start.attempt), self._pretend, (work, start.memory), _NO_LOG)

    def _pretend(self, work: Work, memory: int) -> Pretended:
        if work.memory > memory:
            # It grows as it goes on, and ends where it has grown to what it may take.
            return Pretended(work.seconds * memory / work.memory, error=MemoryError())
        return Pretended(work.seconds + self.transfer)

    def returned(self, *_: object) -> None:
        self._tell()

    def explain(self, _name: str, reason: str) -> str:
        return reason

    def retried(self, *_: object) -> None:
        """Its time counts, by the attempt that was lost."""

    def lost(self, *_: object) -> None:
        """As for what is tried again."""

    def failed(self, *_: object) -> None:
        self._tell()

    def _tell(self) -> None:
        self.untold += 1
        if self.untold == _TOLD:
            self.advance(self.untold)
            self.untold = 0
