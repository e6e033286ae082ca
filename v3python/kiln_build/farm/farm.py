"""Plan to images: looks up what the store has, has the rest compiled. Joins store, scheduler, executor and progress."""

from __future__ import annotations

import contextlib
import hashlib
import re
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kiln_build.base import machine
from kiln_build.farm import durations, executor, job
from kiln_build.farm.executor import Executor, StartExecutor, Task
from kiln_build.farm.job import Host, Job, JobResult, ToolDied
from kiln_build.farm.local import LocalExecutor
from kiln_build.farm.schedule import End, Kill, Policy, Scheduler
from kiln_build.options.variables import BuildVariables
from kiln_build.store.store import Store, StoredImage
from kiln_recipe.compile.compile import compile_variant, prepare_worker
from kiln_recipe.console.progress import FAILED, Progress
from kiln_recipe.console.spelling import spell_estimate
from kiln_recipe.console.tables import plural
from kiln_recipe.errors import CompileError, EnvironmentProblem, Interrupted, KilnError

if TYPE_CHECKING:
    from kiln_recipe.compile.toolchain import Toolchain
    from kiln_recipe.plan.model import Variant

# What a compile of the largest kernels takes resident (docs/build.md, 'The farm'); more is found out by trying.
JOB_MEMORY = 1 << 30
# RLIMIT_DATA counts what is reserved, of which not all is ever touched.
_RESERVED_PER_RESIDENT = 2
_HEADROOM = 0.9  # of the memory that is free when we begin: others live here too


# What a waiver is about: the variant itself. A worker that the machine killed says nothing of it.
WAIVABLE = ("compile", "timeout")

_Attempt = tuple[str, int]  # the name of a job and which attempt at it, by which the executor knows it


@dataclass(frozen=True)
class FarmOptions:
    """How a farm runs.

    Attributes:
        logs: the folder for the logs of jobs that fail.
        temporary: the folder for the temporary files of compilers; None: the system's.
        jobs: compiles at once; None: as many as processors and memory allow.
        timeout: seconds that one job may take.
        attempts: how often a job is tried whose worker dies.
        memory: bytes that all jobs may take together; None: what is free.
        job_memory: bytes that one job may take at first; twice as much each time that this was too little.
        executor: what starts the workers.
    """

    logs: Path
    temporary: Path | None = None
    jobs: int | None = None
    timeout: float = 300.0
    attempts: int = 3
    memory: int | None = None
    job_memory: int = JOB_MEMORY
    executor: StartExecutor = LocalExecutor

    @classmethod
    def of(cls, build: BuildVariables, folder: Path) -> FarmOptions:
        """As a build asks for; logs and temporary files go to `folder`. What it runs on is chosen here."""
        return cls(folder / "logs", folder / "tmp", jobs=build.jobs, timeout=build.job_timeout, executor=LocalExecutor)


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


class Attempt(NamedTuple):
    """An attempt at a compile. Times are time.monotonic()'s; `outcome`: how JobResult has it, or "failed", "died"."""

    worker: int
    began: float
    ended: float
    outcome: str
    name: str


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
    compile_variant: Callable = compile_variant,
    prepare_worker: Callable = prepare_worker,
) -> FarmResult:
    """The images of all variants, compiled where the store has none.

    All are tried; those that fail are in the result. The caller holds `store.in_use()` until it has read the images,
    unless the store cannot be emptied meanwhile.

    Args:
        compile_variant, prepare_worker: as in compile.py; a stand-in for tests must be importable by workers.

    Raises:
        Interrupted: Ctrl-C, SIGTERM or SIGHUP; what was done is in the store.
        EnvironmentProblem, ToolchainError: nothing can be compiled here: a full disk, a read-only store, no Triton ...
    """
    began = time.monotonic()
    identity = toolchain.identity
    by_key: dict[str, list[str]] = {}
    jobs: dict[str, Job] = {}
    sources: dict[str, str] = {}
    waived: set[str] = set()
    for variant in variants:
        if variant.waiver is not None:
            waived.add(variant.name)
        one = Job.of(variant.spec, identity)
        by_key.setdefault(one.key, []).append(variant.name)
        jobs.setdefault(one.key, one)
        sources.setdefault(variant.spec.fingerprint, variant.spec.source)
    found: dict[str, StoredImage | Failure] = {}
    tally = _Tally()
    for key, names in by_key.items():
        if (stored := store.get(key)) is not None:
            found[key] = stored
            tally.reused += len(names)
    missing = {names[0]: key for key, names in by_key.items() if key not in found}
    workers = _workers(options, len(missing))
    if missing:
        if reason := store.refusal():
            images = f"{len(missing)} of {len(by_key)} images"
            raise EnvironmentProblem(
                f"{images} are not in the store {store.location}, and it cannot be written ({reason}); give KILN_STORE "
                "a folder that you may write to, such as a copy of it"
            )
        if found:
            progress.message(f"{tally.reused} of {sum(map(len, by_key.values()))} images are in the store")
        wanted = {name: jobs[key] for name, key in missing.items()}
        arguments = (Host(sources, toolchain, store.location), prepare_worker, compile_variant)
        changed = _changed(wanted, {jobs[key].spec.fingerprint for key in found})
        outcomes = _Farm(wanted, waived, store, options, workers, progress, tally, changed).run(arguments)
        found |= {key: outcomes[name] for name, key in missing.items()}
    else:  # for programs, which wait for the end of the phase
        progress.start(0, 0.0, title="compile")
        progress.close()
    outcomes = {}
    for key, names in by_key.items():
        for name in names:
            outcome = found[key]
            if isinstance(outcome, Failure):
                outcome = Failure(name, outcome.kind, outcome.message, outcome.log)
            elif name != names[0] and names[0] in missing:
                tally.shared += 1
            outcomes[name] = outcome
    return FarmResult(
        outcomes,
        keys={name: key for key, names in by_key.items() for name in names},
        compiled=tally.compiled,
        reused=tally.reused,
        shared=tally.shared,
        jobs=workers,
        wall_seconds=time.monotonic() - began,
        compile_seconds=tally.seconds,
        attempts=tally.attempts,
    )


@dataclass
class _Tally:
    compiled: int = 0
    reused: int = 0
    shared: int = 0
    seconds: float = 0.0
    attempts: list[Attempt] = field(default_factory=list)

    def add(self, result: JobResult) -> None:
        setattr(self, result.how, getattr(self, result.how) + 1)
        self.seconds += result.seconds


@dataclass
class _Farm:
    """One run: passes events and instructions between executor and scheduler, and keeps the user informed."""

    wanted: Mapping[str, Job]  # by the name of their variant
    waived: Collection[str]  # names of those that may fail
    store: Store
    options: FarmOptions
    workers: int
    progress: Progress
    tally: _Tally
    first: Collection[str]  # names of those that are compiled before the others
    images: dict[str, StoredImage] = field(default_factory=dict)
    began: dict[str, float] = field(default_factory=dict)  # when the first attempt did
    running: dict[_Attempt, tuple[int, float]] = field(default_factory=dict)  # by which worker, and since when

    def run(self, arguments: tuple) -> dict[str, StoredImage | Failure]:
        """Runs all jobs, in workers that `job.prepare` makes ready with these arguments."""
        policy = Policy(
            jobs=self.workers,
            memory=_memory(self.options),
            job_memory=self.options.job_memory,
            timeout=self.options.timeout,
            attempts=self.options.attempts,
        )
        self.scheduler = Scheduler(self.wanted, policy, durations.work(self.store.durations()), self.first)
        self._make_logs()
        workers: Executor[_Attempt] = self.options.executor(
            self.workers,
            job.prepare,
            arguments,
            bytes_per_worker=max(self.options.job_memory, 1 << 29),
            temporary=self.options.temporary,
        )
        with _interruptible(workers.wake) as interruption, workers, contextlib.closing(self.progress):
            estimate = self.scheduler.remaining(time.monotonic())
            about = f", about {spell_estimate(estimate)}" if estimate else ""
            self.progress.message(
                f"{plural(len(self.wanted), 'image')} to compile, {plural(self.workers, 'worker')}{about}"
            )
            self.progress.start(len(self.wanted), estimate, title="compile")
            while not self.scheduler.is_over:
                if interruption:
                    self.scheduler.cancel()
                for instruction in self.scheduler.step(time.monotonic()):
                    if isinstance(instruction, Kill):
                        workers.kill((instruction.name, instruction.attempt))
                    else:
                        workers.submit(self._task(instruction.name, instruction.attempt, instruction.memory))
                timeout = self.scheduler.next_deadline() - time.monotonic()
                for event in workers.wait(max(0.0, timeout)):
                    self._handle(event)
        if interruption:
            left = len(self.wanted) - len(self.images)
            raise Interrupted(
                f"interrupted by {interruption[0].name}: {len(self.images)} images were compiled and are kept, "
                f"{left} are left for the next run",
                interruption[0],
            )
        return {name: self.images.get(name) or self._failure(name) for name in self.wanted}

    def _task(self, name: str, attempt: int, memory: int) -> Task[_Attempt]:
        return Task(
            id=(name, attempt),
            function=job.run,
            arguments=(self.wanted[name],),
            log=self._log(name),
            is_retry=attempt > 1,
            data_limit=_RESERVED_PER_RESIDENT * memory,
        )

    def _handle(self, event: executor.Event[_Attempt]) -> None:
        name, attempt = event.id
        now = time.monotonic()
        self._note(event, now)
        if isinstance(event, executor.Began):
            self.began.setdefault(name, now)
            self.scheduler.started(name, attempt, now)
        elif isinstance(event, executor.Waits):
            self.scheduler.waits(name, attempt, now)
        elif isinstance(event, executor.Returned):
            self._returned(name, attempt, event.value, now)
        elif isinstance(event, executor.Died):
            # SIGKILL is how the kernel takes memory back, SIGABRT how C++ says that it got none.
            perhaps_memory = event.signal in (signal.SIGKILL, signal.SIGABRT)
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
            self._report_end(name, now)

    def _note(self, event: executor.Event[_Attempt], now: float) -> None:
        """Keeps when an attempt began, and what became of it."""
        if isinstance(event, executor.Began):
            self.running.setdefault(event.id, (event.worker, now))
        elif not isinstance(event, executor.Waits) and event.id in self.running:
            outcome = "died" if isinstance(event, executor.Died) else FAILED
            if isinstance(event, executor.Returned):
                outcome = event.value.how
            self.tally.attempts.append(Attempt(*self.running.pop(event.id), now, outcome, event.id[0]))

    def _returned(self, name: str, attempt: int, result: JobResult, now: float) -> None:
        self.scheduler.finished(name, attempt, result.seconds)
        self.images[name] = result.image
        for warning in result.warnings:
            self.progress.message(f"warning: {warning}")
        self.tally.add(result)
        if result.how == job.COMPILED:
            self.store.record_duration(name, result.seconds, result.cpu)
        self.progress.done(name, result.seconds, result.how, remaining=self._left(now))

    def _left(self, now: float) -> float | tuple[float, float] | None:
        return self.scheduler.spread(now) or self.scheduler.remaining(now)

    def _died(self, name: str, attempt: int, reason: str, perhaps_memory: bool) -> None:
        said = _telling_line(self._log(name))
        reason += f" ({said})" if said else ""
        self.scheduler.died(name, attempt, reason, perhaps_memory)
        if name in self.scheduler.outcomes:
            self._report_end(name, time.monotonic())
        else:
            self.progress.message(f"{name}: {reason}; trying again ({attempt + 1} of {self.options.attempts})")

    def _report_end(self, name: str, now: float) -> None:
        if self.scheduler.outcomes[name].end is End.CANCELLED:
            return
        failure = self._failure(name)
        if name in self.waived and failure.kind in WAIVABLE:
            self.progress.done(name, outcome="waived", remaining=self._left(now))
            return
        detail = failure.message + (f" (log: {failure.log})" if failure.log else "")
        seconds = now - self.began.get(name, now)  # a worker may die before it begins
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


def _workers(options: FarmOptions, missing: int) -> int:
    by_memory = max(1, _memory(options) // options.job_memory)
    return max(1, min(options.jobs or machine.usable_cpus(), by_memory, missing))


def _memory(options: FarmOptions) -> int:
    return options.memory if options.memory is not None else int(_HEADROOM * machine.usable_memory())


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
