"""Where a build works: a folder that is kept, or one on a memory file system that is removed at the end.

Standard library only: this runs before any package is installed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from kiln_build.base import machine
from kiln_build.base.folder import is_same_file
from kiln_build.options.words import WORKSPACE_LOCK, WORKSPACE_PARTS
from kiln_recipe.console.spelling import say, spell_size
from kiln_recipe.errors import EnvironmentProblem

GIB = 1 << 30
MEMORY_NEEDED = 6 * GIB  # packages 2, store and caches 2, and something for the tarball and the compilers
DISK_NEEDED_AT_FIRST = 5 * GIB // 2
DISK_NEEDED = GIB // 4

_NOBODYS = {"lost+found"}  # in the root of a file system that is empty otherwise
_MEMORY_PREFIX = "kiln-workspace-"
_REMOVALS = 20


@dataclass(frozen=True)
class MemoryFolder:
    """A folder on a memory file system, and why it will not do ("" if it will)."""

    path: Path
    free: int
    refusal: str


def memory_folders(mounts: str, runtime_folder: str | None, available: int, needed: int) -> list[MemoryFolder]:
    """The memory file systems of this host, the best first.

    Args:
        mounts: the text of /proc/self/mounts.
        runtime_folder: $XDG_RUNTIME_DIR.
        available: bytes of memory that are free; a file system may promise more.
        needed: bytes that a build needs.
    """
    rows = [line.split() for line in mounts.splitlines()]
    places = [row[1].encode().decode("unicode_escape") for row in rows if len(row) > 3 and row[2] in ("tmpfs", "ramfs")]
    preferred = ["/dev/shm", *([runtime_folder] if runtime_folder else []), "/tmp"]
    inside = [p for p in preferred if any(p == place or p.startswith(f"{place}/") for place in places)]
    skipped = ("/proc", "/sys", "/run/credentials", "/run/lock")
    others = [place for place in places if not place.startswith(skipped) and not place.startswith("/dev")]
    found = []
    for place in dict.fromkeys([*inside, *others]):
        try:
            status = os.statvfs(place)
        except OSError:
            continue
        free = min(status.f_bavail * status.f_frsize, available)
        refusal = ""
        if status.f_flag & os.ST_RDONLY or not os.access(place, os.W_OK | os.X_OK):
            refusal = "not writable"
        elif status.f_flag & os.ST_NOEXEC:
            refusal = "mounted noexec"
        elif free < needed:
            refusal = f"{spell_size(free)} free"
        found.append(MemoryFolder(Path(place), free, refusal))
    return sorted(found, key=lambda folder: bool(folder.refusal))


def make_memory_workspace(say: Callable[[str], None], needed: int = MEMORY_NEEDED) -> Path:
    """A fresh folder on the first memory file system with room; tells which, and how much room it has.

    What dead builds left there is removed first.

    Raises:
        EnvironmentProblem: none will do; names each and why.
    """
    folders = memory_folders(
        Path("/proc/self/mounts").read_text(), os.environ.get("XDG_RUNTIME_DIR"), machine.usable_memory(), needed
    )
    for folder in folders:
        if folder.refusal and not folder.refusal.endswith("free"):
            continue
        _remove_dead(folder.path)
        if not folder.refusal:
            path = Path(tempfile.mkdtemp(prefix=_MEMORY_PREFIX, dir=folder.path))
            say(f"workspace: {path} in memory, {spell_size(folder.free)} free; removed at the end")
            return path
    tried = "; ".join(f"{folder.path}: {folder.refusal}" for folder in folders) or "there is none"
    raise EnvironmentProblem(
        f"no memory file system has the {spell_size(needed)} that a build needs ({tried}); give a folder as workspace"
    )


@contextlib.contextmanager
def own_workspace(path: Path, say: Callable[[str], None], clean: bool, *, installs: bool = True) -> Iterator[Path]:
    """Holds a workspace, one build at a time; makes the folder, empties it if `clean`, checks its room.

    Args:
        clean: remove what builds made there, but for the Python that we run on.
        installs: the build will install packages there.

    Raises:
        EnvironmentProblem: it cannot be made or written, or has too little room.
    """
    was_there = path.exists()
    with locked(path, say):
        if clean:
            ours = os.path.realpath(sys.prefix)
            clean_workspace(path, [name for name in WORKSPACE_PARTS if os.path.realpath(path / name) == ours])
        try:
            check_room(path, installs)
        except EnvironmentProblem:
            _leave_nothing(path, was_there)
            raise
        yield path


def _leave_nothing(path: Path, was_there: bool) -> None:
    """Takes the lock, which we hold, out of a folder with nothing else in it, and the folder away if it is new."""
    with contextlib.suppress(OSError):
        if [entry.name for entry in path.iterdir()] == [WORKSPACE_LOCK]:
            (path / WORKSPACE_LOCK).unlink()
            if not was_there:
                path.rmdir()


@contextlib.contextmanager
def locked(path: Path, say: Callable[[str], None], *, wait: bool = True, or_else: str = "or tmpfs") -> Iterator[None]:
    """Holds a workspace's lock; makes the folder.

    A folder becomes a workspace only while it is new or empty: cleaning one may then remove all that builds make, and
    never touches a home, a checkout or a root that somebody named by mistake.

    Args:
        or_else: the end of what is said where the folder will not do: what else to give, and how.

    Raises:
        EnvironmentProblem: it cannot be made or written, or has something in it that no build made; or it is in use,
            and we shall not wait.
    """
    while True:
        lock = _open_lock(path, or_else)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not wait:
                    raise EnvironmentProblem(
                        f"workspace {path} is in use by another Kiln process; wait until it ends, or stop it"
                    )
                say(f"workspace: {path} is in use by another Kiln process; waiting for it")
                fcntl.flock(lock, fcntl.LOCK_EX)
            if not is_same_file(lock, path / WORKSPACE_LOCK):
                continue  # it was taken for a dead build's, and removed
            yield
            return
        finally:
            os.close(lock)


def _open_lock(path: Path, or_else: str) -> int:
    try:
        path.mkdir(parents=True, exist_ok=True)
        if not is_workspace(path) and (strange := sorted({entry.name for entry in path.iterdir()} - _NOBODYS)):
            raise EnvironmentProblem(
                f"workspace {path} holds {strange[0]!r}, which no build makes; give an empty or new folder, {or_else}"
            )
        return os.open(path / WORKSPACE_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise EnvironmentProblem(
            f"workspace {path} cannot be written ({error.strerror}); give a folder that you may write to, {or_else}"
        )


def part_to_keep(path: Path, name: str, what: str) -> Path | None:
    """Where in a workspace a command may keep what it would otherwise do again. A folder that is new or empty becomes a
    workspace, as by a build: else `./kiln` would find in its own folder what no build makes.

    Args:
        name: one of WORKSPACE_PARTS.
        what: is kept, for the sentence that is said where nothing may be.
    """
    if not is_workspace(path):
        try:
            os.close(_open_lock(path, "by KILN_WORKSPACE"))
        except EnvironmentProblem as problem:
            say(f"{what} are not kept for the next time: {problem}")
            return None
    return path / name


def is_workspace(path: Path) -> bool:
    """Whether a build has worked there."""
    return (path / WORKSPACE_LOCK).is_file()


def check_room(path: Path, installs: bool = True) -> None:
    """
    Raises:
        EnvironmentProblem: the file system is too full for a build, or for the packages that it `installs`.
    """
    needed = DISK_NEEDED_AT_FIRST if installs and not (path / "venv").is_dir() else DISK_NEEDED
    status = os.statvfs(path)
    free = status.f_bavail * status.f_frsize
    if free < needed:
        raise EnvironmentProblem(
            f"workspace {path} has {spell_size(free)} free, and a build needs {spell_size(needed)}; "
            "give a folder with more room"
        )
    if status.f_flag & os.ST_NOEXEC:
        raise EnvironmentProblem(
            f"workspace {path} is mounted noexec, but compilers must run from it; give another folder"
        )


def clean_workspace(path: Path, keep: Collection[str] = ()) -> list[str]:
    """Removes what builds made in a workspace, but for `keep`, and nothing else; returns the names.

    Raises:
        EnvironmentProblem: there is a release in it, or something cannot be removed.
    """
    for name in WORKSPACE_PARTS:
        if name not in keep and (release := _find_release(path / name)):
            raise EnvironmentProblem(f"{release} is a release, which is not removed; move it, or remove it yourself")
    removed = []
    for name in WORKSPACE_PARTS:
        if name in keep:
            continue
        try:
            if (path / name).is_symlink() or (path / name).is_file():
                (path / name).unlink()
            elif (path / name).is_dir():
                shutil.rmtree(path / name)
            else:
                continue
        except OSError as error:
            raise EnvironmentProblem(
                f"{path / name} cannot be removed ({error.strerror}); remove it, or give another workspace"
            )
        removed.append(name)
    return removed


def _find_release(folder: Path) -> Path | None:
    """A finished tarball below a folder, which somebody put there: builds take no output in one of their own."""
    for place, _, files in () if folder.is_symlink() else os.walk(folder):
        for name in files:
            if name.startswith("kiln-") and name.endswith(".tar.gz.sha256") and name.removesuffix(".sha256") in files:
                return Path(place, name.removesuffix(".sha256"))
    return None


def _remove_dead(place: Path) -> None:
    """Removes memory workspaces whose build was killed: their lock is free."""
    for path in place.glob(f"{_MEMORY_PREFIX}*"):
        try:
            descriptor = os.open(path / WORKSPACE_LOCK, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue  # another user's, or not yet locked
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_same_file(descriptor, path / WORKSPACE_LOCK):  # else its build has just made it anew
                shutil.rmtree(path, ignore_errors=True)
        except OSError:
            pass  # alive
        finally:
            os.close(descriptor)


def remove(place: Path) -> None:
    """Removes a workspace in memory; what a build that was just killed still writes there, too."""
    for _ in range(_REMOVALS):
        shutil.rmtree(place, ignore_errors=True)
        if not place.exists():
            return
        time.sleep(0.05)
