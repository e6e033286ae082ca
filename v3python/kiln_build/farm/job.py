"""One job of the farm: compile a variant, unless an equal one exists, and keep its image.

A `Job` travels to the worker that runs it, which may be on another machine. It names all that it needs by digest: the
kernel's source by its fingerprint, the toolchain by its identity. Where these are on the worker's machine, `Host` says,
which the worker is given at its start, by `prepare`. The worker puts the image into the store that its machine reaches.
Where that may not be the build's, the image travels too: `run_and_send` gives plain bytes, and `receive` checks them.
"""

from __future__ import annotations

import contextlib
import hashlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec

from kiln_build.farm.worker import waiting
from kiln_build.store.files import print_warning
from kiln_build.store.store import Store, StoredImage, is_time
from kiln_build.store.stores import open_store
from kiln_build.store.upkeep import Contradictions
from kiln_recipe import targets
from kiln_recipe.compile.stages import cpu_seconds
from kiln_recipe.digests import is_digest
from kiln_recipe.errors import ArtifactError, CompileError, EnvironmentProblem
from kiln_recipe.images.image import Image
from kiln_recipe.plan.model import CompileSpec

if TYPE_CHECKING:
    from kiln_recipe.compile.compile import Compiled
    from kiln_recipe.compile.toolchain import Toolchain

COMPILED, SHARED, REUSED = "compiled", "shared", "reused"


@dataclass(frozen=True)
class Job:
    """An image to be made.

    Attributes:
        key: its content address, under which the store has it afterwards.
        spec: what it is compiled from, without the path of the source, which its fingerprint stands for.
        toolchain: identity of the toolchain that compiles it.
    """

    key: str
    spec: CompileSpec
    toolchain: str

    @classmethod
    def of(cls, spec: CompileSpec, toolchain: str) -> Job:
        """The job of a spec. Here alone a build works out a key."""
        return cls(spec.key(toolchain), replace(spec, source=""), toolchain)

    def encode(self) -> bytes:
        """As JSON, which `decode` reads."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> Job:
        """The job that `encode` wrote.

        Raises:
            msgspec.DecodeError: it is none.
        """
        return msgspec.json.decode(data, type=cls)


@dataclass(frozen=True)
class Host:
    """Where on a worker's machine that is which jobs name by digest.

    Attributes:
        sources: files of kernels, by the fingerprint of the function.
        toolchain: the one that is installed there.
        store: the location of the store, as that machine reaches it.
    """

    sources: Mapping[str, str]
    toolchain: Toolchain
    store: str

    def spec_of(self, job: Job) -> CompileSpec:
        """The job's spec, with the path of its source here.

        Raises:
            EnvironmentProblem: the source or the toolchain is not here, or this machine would make another image of it.
        """
        what = f"{job.spec.function} for {job.spec.target}"
        if job.toolchain != self.toolchain.identity:
            raise EnvironmentProblem(
                f"{what} is to be compiled by the toolchain {job.toolchain[:12]}, and this machine has "
                f"{self.toolchain.identity[:12]}; give its workers the one of the build"
            )
        path = self.sources.get(job.spec.fingerprint)
        if path is None:
            raise EnvironmentProblem(
                f"the source of {what} (fingerprint {job.spec.fingerprint[:12]}) is not on this machine; give its "
                "workers the sources of the build"
            )
        if targets.by_name(job.spec.target).vendor == "nvidia" and not self.toolchain.heap:
            raise EnvironmentProblem(
                f"{what} would not have equal bytes on every machine: workers for NVIDIA need the library of "
                "csrc/assembler/heap.c (native.with_heap)"
            )
        # The table of targets, and what is taken from an image, are part of the key and not of the job.
        if job.spec.key(job.toolchain) != job.key:
            raise EnvironmentProblem(
                f"this machine's Kiln would make another image of {what} than the one that planned it; "
                "give its workers the Kiln of the build"
            )
        return replace(job.spec, source=path)


@dataclass(frozen=True)
class JobResult:
    """What a job gives.

    Attributes:
        image: where it lies in the store.
        how: COMPILED; SHARED: the image of an equal IR was taken; REUSED: another build has made it meanwhile.
        seconds: of the compiler by the clock, waits for others not counted.
        cpu: seconds of processors that it took, with the assemblers that it ran.
        stages: of those, what each stage of the compile took (kiln_recipe.compile.stages).
        warnings: a sentence for each thing that was found broken in the store on the way.
        sent: the image itself, where it is not in the build's store yet.
    """

    image: StoredImage
    how: str
    seconds: float
    cpu: float = 0.0
    stages: Mapping[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    sent: Image | None = None


class _Sent(msgspec.Struct, frozen=True):
    """A job's result and image as they travel, in MessagePack."""

    key: str
    image: StoredImage
    how: str
    seconds: float
    cpu: float
    stages: dict[str, float]
    warnings: tuple[str, ...]
    code: bytes
    ptx: bytes | None


class ToolDied(Exception):
    """A child process of the compiler was killed by a signal: no verdict on the variant."""

    def __init__(self, message: str, out_of_memory: bool) -> None:
        super().__init__(message, out_of_memory)
        self.message = message
        self.out_of_memory = out_of_memory


@dataclass
class _Worker:
    """What `prepare` makes of a process."""

    host: Host
    store: Store
    compile_variant: Callable[..., Compiled]


_worker: _Worker | None = None
_warnings: list[str] = []  # of the job that runs


def prepare(host: Host, prepare_worker: Callable[[Toolchain], None], compile_variant: Callable[..., Compiled]) -> None:
    """Makes this process one that can `run` jobs; an executor's initializer.

    Args:
        prepare_worker, compile_variant: as in compile.py.

    Raises:
        KilnError: the toolchain cannot be used, or the store not be opened.
    """
    global _worker
    prepare_worker(host.toolchain)
    _worker = _Worker(host, open_store(host.store, _warn), compile_variant)


def run(job: Job) -> JobResult:
    """Makes sure that the store has the image of a job under its key.

    Raises:
        CompileError: the variant is at fault; what the tools printed is in the job's log, no longer in the error: that
            tells the worker that the log wants no traceback of Kiln's.
        ToolDied, MemoryError: it may do better another time.
        EnvironmentProblem: the store cannot be written, or this machine lacks what the job names.
    """
    if _worker is None:
        raise RuntimeError("this process was not made ready by job.prepare")
    _warnings.clear()
    result = _run(job, _worker)
    return replace(result, warnings=tuple(_warnings))


def run_and_send(job: Job) -> bytes:
    """`run`, for a build whose store is elsewhere: the result and the image, as `receive` reads them.

    Raises:
        as `run`; ArtifactError: the store here has lost the image between, twice.
    """
    result = run(job)
    try:
        return _sent(job, result)
    except ArtifactError as error:  # what the store had of it is damaged, and removed by now
        again = run(job)
        return _sent(job, replace(again, warnings=(*result.warnings, str(error), *again.warnings)))


def _sent(job: Job, result: JobResult) -> bytes:
    store, image = cast(_Worker, _worker).store, result.image
    ptx = None if image.ptx is None else store.read(image.ptx)
    code = store.read(image.digest)
    stages = dict(result.stages)
    sent = _Sent(job.key, image, result.how, result.seconds, result.cpu, stages, result.warnings, code, ptx)
    return msgspec.msgpack.encode(sent)


def receive(job: Job, contradictions: Contradictions, data: bytes) -> JobResult:
    """What `run_and_send` sent, checked: nothing is believed of a machine that is not in its bytes.

    Args:
        contradictions: where an image contradicts what is stated of it (judge.contradictions).

    Raises:
        ArtifactError: it is truncated or damaged, or is another job's.
    """
    try:
        sent = msgspec.msgpack.decode(data, type=_Sent)
        ptx = None if sent.ptx is None else sent.ptx.decode()
    except (msgspec.DecodeError, TypeError, UnicodeDecodeError) as error:
        raise ArtifactError(f"a result is truncated or damaged: {error}") from error
    if sent.key != job.key:
        raise ArtifactError(f"the image of the key {sent.key[:12]!r} came where that of {job.key[:12]} was asked for")
    stated = sent.image
    digests = (hashlib.sha256(sent.code).hexdigest(), sent.ptx and hashlib.sha256(sent.ptx).hexdigest())
    if digests != (stated.digest, stated.ptx):
        raise ArtifactError(f"the image of {job.key[:12]} does not have the digest that was stated of it")
    times = (sent.seconds, sent.cpu, stated.seconds, *sent.stages.values())
    if not is_digest(stated.ir) or sent.how not in (COMPILED, SHARED, REUSED) or not all(map(is_time, times)):
        raise ArtifactError(f"what is stated of the image of {job.key[:12]} cannot be")
    if wrong := contradictions(stated.info, sent.code):
        raise ArtifactError(f"the image of {job.key[:12]} is not what is stated of it: it {'; it '.join(wrong)}")
    image = Image(sent.code, stated.info, ptx)
    return JobResult(stated, sent.how, sent.seconds, sent.cpu, sent.stages, sent.warnings, image)


def _run(job: Job, worker: _Worker) -> JobResult:
    store, key = worker.store, job.key
    known = store.get(key)
    if known is not None:
        return JobResult(known, REUSED, 0.0)
    clock = _Clock()
    with contextlib.ExitStack() as held:

        @contextlib.contextmanager
        def reuse(ir: str) -> Iterator[Image | None]:
            image = _image_of(store, ir)
            if image is None:
                # Held until the image is in the store, which is after the compiler has left this.
                if not held.enter_context(store.claim(ir, clock.stopped)):
                    _warn(f"a process that compiles the same as {job.key[:12]} stands still; it is compiled once more")
                image = _image_of(store, ir)
                if image is not None:
                    held.close()
            yield image

        try:
            compiled = worker.compile_variant(worker.host.spec_of(job), worker.host.toolchain, reuse)
        except CompileError as error:
            print("" if _is_in_log(error.log) else error.log, error, f"stage: {error.stage}", sep="\n", file=sys.stderr)
            _raise_if_no_verdict(error)
            raise CompileError(str(error), error.stage) from None
        seconds, cpu = clock.seconds(), clock.cpu()
        if compiled.shared:
            stored = store.alias(key, compiled.ir)
            if stored is not None:
                return JobResult(stored, SHARED, seconds, cpu, compiled.stages)
        stored = store.put(key, compiled.image, compiled.ir, seconds)
        return JobResult(stored, COMPILED, seconds, cpu, compiled.stages)


class _Clock:
    """Seconds since it was made, without those while it was stopped; and of processors, since then."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._cpu = cpu_seconds()

    def seconds(self) -> float:
        return time.perf_counter() - self._began

    def cpu(self) -> float:
        return cpu_seconds() - self._cpu

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        began = time.perf_counter()
        with waiting():
            yield
        self._began += time.perf_counter() - began


def _image_of(store: Store, ir: str) -> Image | None:
    stored = store.get_ir(ir)
    if stored is not None:
        with contextlib.suppress(ArtifactError):  # corrupt, and removed: as good as none
            return store.load(stored)
    return None


def _is_in_log(text: str) -> bool:
    """Whether the tools' words are in the job's log already, where a worker's standard error goes."""
    with contextlib.suppress(OSError):
        sys.stderr.flush()
        return text[:1000] in Path("/proc/self/fd/2").read_text(errors="replace")
    return False


def _raise_if_no_verdict(error: BaseException | None) -> None:
    """Raises what is behind a compile error if that says nothing about the variant."""
    while error is not None:
        if isinstance(error, MemoryError):
            raise MemoryError("out of memory") from None
        if isinstance(error, subprocess.CalledProcessError) and error.returncode < 0:
            tool = Path(error.cmd[0] if isinstance(error.cmd, (list, tuple)) else str(error.cmd).split()[0]).name
            number = -error.returncode
            raise ToolDied(f"{tool} was killed by signal {number}", out_of_memory=number in (6, 9)) from None
        error = error.__cause__ or error.__context__


def _warn(text: str) -> None:
    print_warning(text)  # into the job's log, which is kept if it fails
    _warnings.append(text)
