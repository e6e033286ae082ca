"""One job of the farm, as a worker runs it: compile a variant, unless an equal one exists, and keep its image.

Joins compile.py, which knows no store, to the store, on the worker's side: images never travel between processes.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from kiln_build.farm import worker
from kiln_build.store.files import print_warning
from kiln_build.store.store import Store, StoredImage
from kiln_recipe.errors import ArtifactError, CompileError
from kiln_recipe.images.image import Image

if TYPE_CHECKING:
    from kiln_recipe.compile.compile import Compiled
    from kiln_recipe.compile.toolchain import Toolchain
    from kiln_recipe.plan.model import CompileSpec

COMPILED, SHARED, REUSED = "compiled", "shared", "reused"


@dataclass(frozen=True)
class JobResult:
    """What a job gives.

    Attributes:
        image: where it lies in the store.
        how: COMPILED; SHARED: the image of an equal IR was taken; REUSED: another build has made it meanwhile.
        seconds: of the compiler, waits for others not counted.
        warnings: a sentence for each thing that was found broken in the store on the way.
    """

    image: StoredImage
    how: str
    seconds: float
    warnings: tuple[str, ...] = ()


class ToolDied(Exception):
    """A child process of the compiler was killed by a signal: no verdict on the variant."""

    def __init__(self, message: str, out_of_memory: bool) -> None:
        super().__init__(message, out_of_memory)
        self.message = message
        self.out_of_memory = out_of_memory


def run(
    compile_variant: Callable[..., Compiled], spec: CompileSpec, toolchain: Toolchain, key: str, root: Path
) -> JobResult:
    """Makes sure that the store has the image of `spec` under `key`.

    Raises:
        CompileError: the variant is at fault; what the tools printed is in the job's log, no longer in the error: that
            tells the worker that the log wants no traceback of Kiln's.
        ToolDied, MemoryError: it may do better another time.
        EnvironmentProblem: the store cannot be written.
    """
    store = _store(root)
    _warnings.clear()
    result = _run(compile_variant, spec, toolchain, key, store)
    return replace(result, warnings=tuple(_warnings))


def _run(
    compile_variant: Callable[..., Compiled], spec: CompileSpec, toolchain: Toolchain, key: str, store: Store
) -> JobResult:
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
                held.enter_context(store.claim(ir, clock.stopped))
                image = _image_of(store, ir)
                if image is not None:
                    held.close()
            yield image

        try:
            compiled = compile_variant(spec, toolchain, reuse)
        except CompileError as error:
            print("" if _is_in_log(error.log) else error.log, error, f"stage: {error.stage}", sep="\n", file=sys.stderr)
            _raise_if_no_verdict(error)
            raise CompileError(str(error), error.stage) from None
        seconds = clock.seconds()
        if compiled.shared:
            stored = store.alias(key, compiled.ir)
            if stored is not None:
                return JobResult(stored, SHARED, seconds)
        return JobResult(store.put(key, compiled.image, compiled.ir, seconds), COMPILED, seconds)


class _Clock:
    """Seconds since it was made, without those while it was stopped."""

    def __init__(self) -> None:
        self._began = time.perf_counter()

    def seconds(self) -> float:
        return time.perf_counter() - self._began

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        began = time.perf_counter()
        with worker.waiting():
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


_stores: dict[Path, Store] = {}
_warnings: list[str] = []  # of the job that runs


def _warn(text: str) -> None:
    print_warning(text)  # into the job's log, which is kept if it fails
    _warnings.append(text)


def _store(root: Path) -> Store:
    if root not in _stores:
        _stores[root] = Store(root, _warn)
    return _stores[root]
