"""Plan to images: looks up what the store has, has the rest compiled. Joins store, scheduler, executor and progress."""

from __future__ import annotations

import contextlib
import hashlib
import math
import re
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from kiln_build.farm import durations, job
from kiln_build.farm.course import Attempt, AttemptId, Course, Result
from kiln_build.farm.executor import Executor, Task
from kiln_build.farm.job import Host, Job, JobResult
from kiln_build.farm.options import FarmOptions
from kiln_build.farm.schedule import End, Policy, Scheduler, Start
from kiln_build.store.store import Store, StoredImage
from kiln_build.store.upkeep import Contradictions
from kiln_recipe.compile.compile import compile_variant, prepare_worker
from kiln_recipe.console.progress import FAILED, Progress
from kiln_recipe.console.spelling import spell_estimate
from kiln_recipe.console.tables import plural
from kiln_recipe.errors import EnvironmentProblem, Interrupted
from kiln_recipe.images import judge

if TYPE_CHECKING:
    from kiln_recipe.compile.toolchain import Toolchain
    from kiln_recipe.console.progress import Remaining
    from kiln_recipe.plan.model import Variant

# RLIMIT_DATA counts what is reserved, of which not all is ever touched.
_RESERVED_PER_RESIDENT = 2
_SECONDS_BETWEEN_ESTIMATES = 0.1
_LOOK_SECONDS = 0.5  # between looks at workers that come and go


# What a waiver is about: the variant itself. A worker that the machine killed says nothing of it.
WAIVABLE = ("compile", "timeout")


@dataclass(frozen=True)
class Failure:
    """A variant without an image.

    Attributes:
        variant: its name.
        kind: "compile": the tools rejected it; "timeout"; "crash": its worker or a tool died at each attempt.
        message: a sentence.
        log: the file with all that was printed, or None.
    """

    variant: str
    kind: str
    message: str
    log: str | None


@dataclass(frozen=True)
class FarmResult:
    """What became of each variant, by name, and where the time went.

    Attributes:
        outcomes: an image in the store, or a failure.
        keys: the key of each.
        compiled: images that were compiled.
        reused: variants whose image the store had.
        shared: variants that took the image of another with an equal key or equal IR.
        jobs: workers.
        wall_seconds: of all this.
        compile_seconds: of the compiler, all workers together, as they measured it.
        attempts: in the order in which they ended.
        stages: by the name of each variant that was compiled, or whose IR was, seconds of processors by stage.
    """

    outcomes: Mapping[str, StoredImage | Failure]
    keys: Mapping[str, str]
    compiled: int
    reused: int
    shared: int
    jobs: int
    wall_seconds: float
    compile_seconds: float
    attempts: Sequence[Attempt] = ()
    stages: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def failures(self) -> list[Failure]:
        """Those without an image."""
        return [outcome for outcome in self.outcomes.values() if isinstance(outcome, Failure)]


def run(
    variants: Iterable[Variant],
    toolchain: Toolchain,
    store: Store,
    options: FarmOptions,
    progress: Progress,
    *,
    arrived: Callable[[Sequence[str], StoredImage | Failure], None] = lambda _names, _outcome: None,
    compile_variant: Callable = compile_variant,
    prepare_worker: Callable = prepare_worker,
    contradictions: Contradictions = judge.contradictions,
) -> FarmResult:
    """The images of all variants, compiled where the store has none.

    All are tried; those that fail are in the result. The caller holds `store.in_use()` until it has read the images,
    unless the store cannot be emptied meanwhile.

    Args:
        variants: in the order in which somebody wants their images; it counts as far as it makes nothing longer.
        arrived: while there is something to compile, is told what became of variants, by their names, once it is so;
            by the thread that has called.
        compile_variant, prepare_worker: as in compile.py; a stand-in for tests must be importable by workers.
        contradictions: where an image that comes from another machine contradicts what is stated of it.

    Raises:
        Interrupted: Ctrl-C, SIGTERM or SIGHUP; what was done is in the store.
        EnvironmentProblem, ToolchainError: nothing can be compiled here: a full disk, a read-only store, no Triton ...
    """
    began = time.monotonic()
    asked = _Asked.of(variants, toolchain.identity)
    found: dict[str, StoredImage | Failure] = {}
    tally = _Tally()
    store.prefetch(asked.names, progress)
    for key, names in asked.names.items():
        if (stored := store.get(key)) is not None:
            found[key] = stored
            tally.reused += len(names)
    missing = {names[0]: key for key, names in asked.names.items() if key not in found}
    workers = options.workers(len(missing))
    if missing:
        _refuse_unwritable(store, len(missing), len(asked.names))
        if found:
            progress.message(f"{tally.reused} of {asked.count} images are in the store")
        for key, image in found.items():
            arrived(asked.names[key], image)
        wanted = {name: asked.jobs[key] for name, key in missing.items()}
        arguments = (Host(asked.sources, toolchain, store.location), prepare_worker, compile_variant)
        changed = _changed(wanted, {asked.jobs[key].spec.fingerprint for key in found})

        def ended(name: str, outcome: StoredImage | Failure) -> None:
            arrived(asked.names[missing[name]], outcome)

        one_run = _Farm(wanted, asked.waived, store, options, workers, progress, tally, changed, contradictions, ended)
        outcomes = one_run.run(arguments)
        workers = one_run.workers
        found |= {key: outcomes[name] for name, key in missing.items()}
        tally.shared += sum(
            len(asked.names[key]) - 1 for key in missing.values() if not isinstance(found[key], Failure)
        )
    else:  # for programs, which wait for the end of the phase
        progress.start(0, 0.0, title="compile")
        progress.close()
    return FarmResult(
        {name: _outcome_of(name, found[key]) for key, names in asked.names.items() for name in names},
        keys={name: key for key, names in asked.names.items() for name in names},
        compiled=tally.compiled,
        reused=tally.reused,
        shared=tally.shared,
        jobs=workers,
        wall_seconds=time.monotonic() - began,
        compile_seconds=tally.seconds,
        attempts=tally.attempts,
        stages=tally.stages,
    )


@dataclass(frozen=True)
class _Asked:
    """What a farm is asked for.

    Attributes:
        names: of the variants, by the key that they have in common; the first is compiled for all of them.
        jobs: by key.
        sources: paths of the kernels' files, by fingerprint.
        waived: names of those that may fail.
    """

    names: dict[str, list[str]] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    waived: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, variants: Iterable[Variant], identity: str) -> _Asked:
        asked = cls()
        for variant in variants:
            if variant.waiver is not None:
                asked.waived.add(variant.name)
            one = Job.of(variant.spec, identity)
            asked.names.setdefault(one.key, []).append(variant.name)
            asked.jobs.setdefault(one.key, one)
            asked.sources.setdefault(variant.spec.fingerprint, variant.spec.source)
        return asked

    @property
    def count(self) -> int:
        """Of variants."""
        return sum(map(len, self.names.values()))


def _refuse_unwritable(store: Store, missing: int, count: int) -> None:
    """
    Args:
        missing, count: images that the store lacks, and all.

    Raises:
        EnvironmentProblem: what is compiled cannot be kept.
    """
    if reason := store.refusal():
        raise EnvironmentProblem(
            f"{missing} of {count} images are not in the store {store.location}, and it cannot be written ({reason}); "
            "give KILN_STORE a folder that you may write to, such as a copy of it"
        )


def _outcome_of(name: str, outcome: StoredImage | Failure) -> StoredImage | Failure:
    """What became of a variant, by what became of the first with its key."""
    return replace(outcome, variant=name) if isinstance(outcome, Failure) else outcome


@dataclass
class _Tally:
    compiled: int = 0
    reused: int = 0
    shared: int = 0
    seconds: float = 0.0
    attempts: Sequence[Attempt] = ()
    stages: dict[str, Mapping[str, float]] = field(default_factory=dict)

    def add(self, name: str, result: JobResult) -> None:
        setattr(self, result.how, getattr(self, result.how) + 1)
        self.seconds += result.seconds
        if result.stages:
            self.stages[name] = result.stages


@dataclass
class _Farm:
    """One run: what its course asks for and tells, kept in the store and told to the user."""

    wanted: Mapping[str, Job]  # by the name of their variant
    waived: Collection[str]  # names of those that may fail
    store: Store
    options: FarmOptions
    workers: int
    progress: Progress
    tally: _Tally
    first: Collection[str]  # names of those that are compiled before the others
    contradictions: Contradictions  # in images that come back
    ended: Callable[[str, StoredImage | Failure], None]  # is told what became of a job
    images: dict[str, StoredImage] = field(default_factory=dict)
    left: Remaining = None  # as it was last worked out, and when
    left_at: float = -math.inf

    def run(self, arguments: tuple) -> dict[str, StoredImage | Failure]:
        """Runs all jobs, in workers that `job.prepare` makes ready with these arguments."""
        self.most = self.workers
        if self.options.elsewhere:
            self.workers = 0  # nobody is there yet
        policy = Policy(
            jobs=self.workers,
            memory=self.options.usable_memory(),
            job_memory=self.options.job_memory,
            timeout=self.options.timeout,
            attempts=self.options.attempts,
        )
        self.scheduler = Scheduler(self.wanted, policy, durations.work(self.store.durations(tidy=True)), self.first)
        self._make_logs()
        workers: Executor[AttemptId] = self.options.executor(
            self.most,
            job.prepare,
            arguments,
            bytes_per_worker=max(self.options.job_memory, 1 << 29),
            temporary=self.options.temporary,
        )
        with _interruptible(workers.wake) as interruption, workers, contextlib.closing(self.progress):
            while self._follow(workers) < math.inf and not self.workers and not interruption:
                workers.wait(_LOOK_SECONDS)
            estimate = self.scheduler.remaining(time.monotonic())
            about = f", about {spell_estimate(estimate)}" if estimate else ""
            self.progress.message(
                f"{plural(len(self.wanted), 'image')} to compile, {plural(self.workers, 'worker')}{about}"
            )
            self.progress.start(len(self.wanted), estimate, title="compile")
            course = Course(self.scheduler, workers, self, time.monotonic, partial(self._follow, workers))
            self.tally.attempts = course.attempts
            course.run(lambda: interruption)
            for line in workers.summary():
                self.progress.message(line)
        if interruption:
            left = len(self.wanted) - len(self.images)
            raise Interrupted(
                f"interrupted by {interruption[0].name}: {len(self.images)} images were compiled and are kept, "
                f"{left} are left for the next run",
                interruption[0],
            )
        return {name: self.images.get(name) or self._failure(name) for name in self.wanted}

    def _follow(self, workers: Executor[AttemptId]) -> float:
        """Passes on what the executor has to say, and takes as many workers as there are now; gives the seconds after
        which they may be others."""
        for notice in workers.notices():
            self.progress.message(notice)
        capacity = workers.capacity()
        if capacity is None:
            return math.inf
        jobs = min(self.most, capacity.tasks)
        self.scheduler.resize(jobs, capacity.memory)
        self.workers = max(jobs, self.workers)
        return _LOOK_SECONDS

    def task(self, start: Start) -> Task[AttemptId]:
        one, sends = self.wanted[start.name], self.options.elsewhere
        return Task(
            id=(start.name, start.attempt),
            function=job.run_and_send if sends else job.run,
            arguments=(one,),
            log=self._log(start.name),
            is_retry=start.attempt > 1,
            data_limit=_RESERVED_PER_RESIDENT * start.memory,
            memory=start.memory,
            receive=partial(job.receive, one, self.contradictions) if sends else None,
        )

    def returned(self, name: str, result: Result, now: float) -> None:
        done = cast(JobResult, result)  # what the task's function returns
        image = done.image
        if done.sent is not None:
            image = self.store.put(self.wanted[name].key, done.sent, image.ir, image.seconds)
        self.images[name] = image
        for warning in done.warnings:
            self.progress.message(f"warning: {warning}")
        self.tally.add(name, done)
        self.store.share(self.wanted[name].key)
        if done.how == job.COMPILED:
            self.store.record_duration(name, done.seconds, done.cpu)
        self.progress.done(name, done.seconds, done.how, remaining=self._left(now))
        self.ended(name, image)

    def explain(self, name: str, reason: str) -> str:
        said = _telling_line(self._log(name))
        return f"{reason} ({said})" if said else reason

    def retried(self, name: str, attempt: int, reason: str) -> None:
        self.progress.message(f"{name}: {reason}; trying again ({attempt + 1} of {self.options.attempts})")

    def lost(self, name: str, reason: str) -> None:
        self.progress.message(f"{name}: {reason}; it is started again")

    def _left(self, now: float) -> Remaining:
        """Worked out a few times a second: it takes a step for each worker."""
        if now - self.left_at >= _SECONDS_BETWEEN_ESTIMATES:
            self.left, self.left_at = self.scheduler.spread(now) or self.scheduler.remaining(now), now
        return self.left

    def failed(self, name: str, seconds: float, now: float) -> None:
        if self.scheduler.outcomes[name].end is End.CANCELLED:
            return
        failure = self._failure(name)
        self.ended(name, failure)
        if name in self.waived and failure.kind in WAIVABLE:
            self.progress.done(name, outcome="waived", remaining=self._left(now))
            return
        detail = failure.message + (f" (log: {failure.log})" if failure.log else "")
        self.progress.done(name, seconds, FAILED, detail=detail, remaining=self._left(now))

    def _failure(self, name: str) -> Failure:
        outcome, log = self.scheduler.outcomes[name], self._log(name)
        kind = "compile" if outcome.end is End.FAILED else outcome.end.value
        return Failure(name, kind, outcome.message, str(log) if log.exists() and log.stat().st_size else None)

    def _log(self, name: str) -> Path:
        readable = re.sub(r"[^A-Za-z0-9._=@-]+", "_", name)[:160]
        return self.options.logs / f"{readable}-{hashlib.sha256(name.encode()).hexdigest()[:8]}.log"

    def _make_logs(self) -> None:
        try:
            self.options.logs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise EnvironmentProblem(f"cannot make the folder for logs {self.options.logs}: {error.strerror}")


@contextlib.contextmanager
def _interruptible(wake: Callable[[], None]) -> Iterator[list[signal.Signals]]:
    """Gives a list that the first signal to stop is put into; Python's own handlers would break us off anywhere."""
    received: list[signal.Signals] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def handle(number: int, _frame: object) -> None:
        received.append(signal.Signals(number))
        wake()

    previous = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup, and jobs in the background of a script
            previous[number] = signal.signal(number, handle)
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _changed(wanted: Mapping[str, Job], known: Collection[str]) -> frozenset[str]:
    """Names of the jobs whose kernel's source is not among the `known` fingerprints, of which the store has images: it
    is new, or was edited, and its author wants to hear first whether it compiles."""
    return frozenset(name for name, one in wanted.items() if one.spec.fingerprint not in known)


_TELLING = re.compile(r"assert|error|out of memory|bad_alloc|fatal", re.IGNORECASE)


def _telling_line(log: Path) -> str:
    """The last line of a log that seems to say why a process died; "" if none does."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 65536))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    said = (line.strip() for line in reversed(lines) if _TELLING.search(line))
    return next((line[:200] for line in said if not line.startswith(("Fatal Python error", "File "))), "")
