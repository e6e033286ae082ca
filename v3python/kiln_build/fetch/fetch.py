"""Fills the download cache, several files at once, and checks what is in it. download.py brings one file.

Only what downloads needs more than the standard library: a cache is checked where no package is there yet.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kiln_recipe.compile.lock import Lock, LockedAddress, LockedFile, check_file, has_size
from kiln_recipe.errors import EnvironmentProblem, ToolchainError

if TYPE_CHECKING:
    from kiln_build.fetch.download import Patience
    from kiln_build.fetch.registry import Registry
    from kiln_recipe.console.progress import Progress


def missing_files(files: Sequence[LockedFile | LockedAddress], cache: Path) -> list[LockedFile | LockedAddress]:
    """Those that are not in the cache in their full size. Bytes are not read: `verify_cache` does that."""
    return [file for file in files if not has_size(cache / file.name, file.size)]


def fetch_files(
    lock: Lock,
    files: Sequence[LockedFile | LockedAddress],
    cache: Path,
    registry: Callable[[], Registry],
    progress: Progress,
    *,
    parallel: int = 4,
    patience: Patience | None = None,
) -> list[str]:
    """Downloads what is missing of `files`; returns the names of what was downloaded.

    Args:
        registry: made only if something is missing: a full cache needs no network.
        parallel: how many files at once.
        patience: with a place that does not answer; None: the usual.

    Raises:
        ToolchainError: a file cannot be had, or what can be had is not what is locked; names each such file.
        EnvironmentProblem: the cache cannot be written, or the disk is full.
    """
    wanted = missing_files(files, cache)
    if not wanted:
        return []
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentProblem(f"{cache} cannot be made ({error.strerror}); it must hold the downloads")
    from kiln_build.fetch.download import Download, Patience, Stopped

    patience = patience or Patience()
    place = registry()
    stop = threading.Event()
    progress.start(sum(file.size for file in wanted), title="fetch", unit="B")
    # The longest first, so that no large file is left for the end.
    jobs = [
        Download(lock, file, cache, place, progress, stop, patience) for file in sorted(wanted, key=lambda f: -f.size)
    ]
    failures: list[str] = []
    with ThreadPoolExecutor(parallel, thread_name_prefix="fetch") as pool:
        futures = [pool.submit(job.run) for job in jobs]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            if any(not future.done() or future.exception() for future in futures):
                stop.set()
            progress.close()
    for future in futures:
        failure = future.exception()
        if isinstance(failure, ToolchainError):
            failures.append(str(failure))
        elif isinstance(failure, OSError):
            where = failure.filename or cache
            raise EnvironmentProblem(f"{where}: {failure.strerror}; the cache needs room and to be writable")
        elif failure is not None and not isinstance(failure, Stopped):
            raise failure
    if failures:
        raise ToolchainError("; ".join(failures))
    return [job.name for job in jobs]


@dataclass(frozen=True)
class Verdict:
    """What `verify_cache` found: names of files, and for corrupt ones a sentence."""

    missing: tuple[str, ...]
    corrupt: tuple[str, ...]
    unknown: tuple[str, ...]

    @property
    def good(self) -> bool:
        return not (self.missing or self.corrupt or self.unknown)


def verify_cache(lock: Lock, files: Sequence[LockedFile | LockedAddress], cache: Path, progress: Progress) -> Verdict:
    """Reads every byte of the cache: `files` must be there; whatever else is there must be locked and right."""
    by_name = {file.name: file for file in lock.every_file()}
    present = sorted(path.name for path in cache.iterdir() if not path.name.startswith(".")) if cache.is_dir() else []
    corrupt, unknown = [], []
    progress.start(sum((cache / name).stat().st_size for name in present), title="verify", unit="B")
    for name in present:
        path = cache / name
        if name.removesuffix(".json").removesuffix(".part") in by_name and name not in by_name:
            continue  # on its way
        if name not in by_name or path.is_symlink() or not path.is_file():
            unknown.append(name)
            continue
        problem = check_file(path, by_name[name], progress.advance)
        if problem:
            corrupt.append(problem)
    progress.close()
    return Verdict(tuple(file.name for file in files if file.name not in present), tuple(corrupt), tuple(unknown))
