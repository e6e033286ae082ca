"""A folder that many processes, users and machines write at once: its files, and locks.

Nothing is synced to disk, and nothing has to be locked to read or to write a file. All locks are flock(2): the kernel
drops them with their process, and network file systems that are mounted so carry them. If the folder is a group's (its
setgid bit is set), everything in it may be written by the group.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import os
import socket
import stat
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from kiln_recipe.console.appear import appear
from kiln_recipe.errors import EnvironmentProblem, is_full

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
_READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)
# What the file is to blame for, and not the process, which may lack memory or descriptors.
_UNREADABLE = (errno.EACCES, errno.EPERM, errno.EIO, errno.ELOOP, errno.ENXIO, errno.ENOTDIR, errno.ENODEV)

_ABANDONED = 7 * 86400.0  # seconds; no build takes as long


class Unreadable(Exception):
    """What stands at a path is not a file that can be read; the text says what it is: "is a folder".

    Attributes:
        status: of what stands there; None if that is not known either.
    """

    def __init__(self, reason: str, status: os.stat_result | None) -> None:
        super().__init__(reason)
        self.status = status


_NEVER_WAIT = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


def is_same_file(descriptor: int, path: Path) -> bool:
    """Whether an open file still stands at `path`: who opens a lock file and then locks it must ask, for another may
    have removed it in between."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Holds the lock of a folder itself, which leaves no file there; on a file system without such locks nothing."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


class SharedFolder:
    """The files of `root`, which the first write creates. Names that begin with a dot are ignored.

    Raises:
        EnvironmentProblem: from any method: the disk is full, or the folder cannot be read or written.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._is_made = False
        self._is_groups = False

    def make(self) -> None:
        """Creates the folder, unless it is there."""
        if self._is_made:
            return
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            self._is_groups = bool(self.root.stat().st_mode & stat.S_ISGID)
            self._is_made = True
        except OSError as error:
            raise self.problem("write", self.root, error) from error

    def refusal(self) -> str:
        """Why nothing can be written here, as the system says it; "" if it can be. Nothing is left of the trial."""
        there = next(folder for folder in (self.root, *self.root.parents) if os.path.lexists(folder))
        try:
            os.rmdir(tempfile.mkdtemp(prefix=".trial-", dir=there))
        except OSError as error:
            return error.strerror or str(error)
        return ""

    def write(self, path: Path, data: bytes) -> None:
        """A file that appears complete, by rename, in the place of an older one if there is one."""
        try:
            with appear(path) as fresh:
                with open(self._open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb", buffering=0) as file:
                    while data:
                        data = data[file.write(data) :]
        except OSError as error:
            raise self.problem("write", path, error) from error

    def read(self, path: Path, limit: int) -> tuple[bytes, os.stat_result]:
        """What a file holds, and its status. Follows no link at `path`, and waits for nothing, as a pipe would make us.

        Raises:
            FileNotFoundError: nothing is there.
            Unreadable: it is not a file, is larger than `limit` bytes, or cannot be read.
        """
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC)
            try:
                status = os.fstat(descriptor)
                if (reason := _is_no_file(status)) is not None:
                    raise Unreadable(reason, status)
                if status.st_size > limit:
                    raise Unreadable(f"has {status.st_size} bytes, which is too many", status)
                with open(descriptor, "rb", buffering=0, closefd=False) as file:
                    return file.readall(), status
            finally:
                os.close(descriptor)
        except FileNotFoundError:
            raise
        except OSError as error:
            if error.errno not in _UNREADABLE:
                raise self.problem("read", path, error) from error
            there = _status(path)
            if there is None and error.errno in (errno.EACCES, errno.EPERM):  # a folder of ours is shut, not this file
                raise self.problem("read", path, error) from error
            reason = _is_no_file(there) if there else None
            raise Unreadable(reason or f"cannot be read ({error.strerror})", there) from error

    def append(self, path: Path, line: bytes) -> None:
        """Adds a line in one write: processes of one machine never mix theirs."""
        try:
            descriptor = self._open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            try:
                os.write(descriptor, line)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise self.problem("write", path, error) from error

    @contextlib.contextmanager
    def locked(
        self,
        path: Path,
        waiting: Callable[[], AbstractContextManager] = contextlib.nullcontext,
        patience: float = math.inf,
    ) -> Iterator[bool]:
        """Holds the lock file `path` alone; waits until it may. The file goes when the lock does. Gives False, and
        holds nothing, where another has held it for all of `patience`, in seconds: a process that stands still does so
        for ever.

        If it has to wait it does so within `waiting()`. Where there can be no lock it holds nothing: on a file system
        without locks there is the file alone, in a folder that we may only read not even that.
        """
        descriptor, is_held = None, True
        try:
            descriptor = self._lock(path, waiting, patience)
        except BlockingIOError:
            is_held = False
        except OSError as error:
            raise self.problem("lock", path, error) from error
        try:
            yield is_held
        finally:
            if descriptor is not None:
                with contextlib.suppress(OSError):
                    os.unlink(path)
                os.close(descriptor)

    def is_locked(self, path: Path) -> bool:
        """Whether a process holds the lock file, or may hold it where there are no locks; one that is not held is
        removed. Without locks its name and its age tell: `_is_left`."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        except OSError:
            return True  # another user's, in a folder that is not a group's: we cannot know
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in _NO_LOCKS or not _is_left(path.name, os.fstat(descriptor)):
                    return True
            if is_same_file(descriptor, path):
                with contextlib.suppress(OSError):
                    os.unlink(path)
            return False
        finally:
            os.close(descriptor)

    def files(self, kind: str, hidden: bool = False) -> Iterator[os.DirEntry]:
        """The files in the subfolders of `kind`, in no order; they may vanish while one looks. `hidden`: the others."""
        for folder in self._entries(self.root / kind):
            for file in self._entries(Path(folder.path)):
                if file.name.startswith(".") == hidden:
                    yield file

    def is_folder(self, path: Path) -> bool:
        """Whether a folder stands there."""
        try:
            return stat.S_ISDIR(os.stat(path).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise self.problem("read", path, error) from error

    def touch(self, path: Path) -> bool:
        """Marks a file as used now; False if it is not there (any more)."""
        try:
            os.utime(path, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            if error.errno not in _READ_ONLY:  # what we may only read, we cannot mark
                raise self.problem("mark", path, error) from error
        return True

    def remove_unless_used(self, path: Path, last_use_ns: int) -> bool:
        """Removes a file unless it was marked or written after `last_use_ns`; exact, whatever others do meanwhile."""
        aside = path.with_name(f".gone-{uuid.uuid4().hex}")
        try:
            os.rename(path, aside)  # from here on `touch` fails: other processes see no file
            if os.stat(aside).st_mtime_ns <= last_use_ns:
                os.unlink(aside)
                return True
            os.replace(aside, path)
            return False
        except FileNotFoundError:
            return False
        except OSError as error:
            raise self.problem("remove", path, error) from error

    def remove_same(self, path: Path, status: os.stat_result) -> bool:
        """Removes what has this status, unless another stands there meanwhile; whether it did.

        A folder that is not empty is left under a hidden name.

        Raises:
            OSError: it cannot be removed.
        """
        aside = path.with_name(f".broken-{uuid.uuid4().hex}")
        try:
            os.rename(path, aside)
        except FileNotFoundError:
            return False
        if not _is_same(os.lstat(aside), status):
            os.replace(aside, path)
            return False
        with contextlib.suppress(OSError):
            (os.rmdir if stat.S_ISDIR(status.st_mode) else os.unlink)(aside)
        return True

    def now_ns(self) -> int:
        """The time by the clock of the file system, which may not be ours."""
        path = self.root / f".now-{uuid.uuid4().hex}"
        try:
            descriptor = self._open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            try:
                return os.fstat(descriptor).st_mtime_ns
            finally:
                os.close(descriptor)
                os.unlink(path)
        except OSError as error:
            raise self.problem("write", path, error) from error

    def problem(self, what: str, path: Path, error: OSError) -> EnvironmentProblem:
        """The sentence for an error of the operating system."""
        right = "make room on its disk" if is_full(error) else "make its folder accessible, or name another"
        return EnvironmentProblem(f"cannot {what} {path}: {error.strerror or error}; {right}")

    def _entries(self, path: Path) -> Iterator[os.DirEntry]:
        try:
            with os.scandir(path) as entries:
                yield from entries
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise self.problem("read", path, error) from error

    def _open(self, path: Path, flags: int) -> int:
        self.make()
        try:
            descriptor = os.open(path, flags | _NEVER_WAIT, 0o666)
        except FileNotFoundError:
            self._make_folder(path.parent)
            descriptor = os.open(path, flags | _NEVER_WAIT, 0o666)
        if self._is_groups:
            with contextlib.suppress(OSError):  # another user's file: that user has done it
                os.fchmod(descriptor, 0o664)
        return descriptor

    def _make_folder(self, path: Path) -> None:
        if path != self.root:
            self._make_folder(path.parent)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path)
            if self._is_groups:
                os.chmod(path, 0o2775)

    def _lock(self, path: Path, waiting: Callable[[], AbstractContextManager], patience: float) -> int | None:
        """
        Raises:
            BlockingIOError: another holds it all the time.
        """
        ends = time.monotonic() + patience
        while True:
            try:
                descriptor = self._open(path, os.O_RDWR | os.O_CREAT)
            except OSError as error:
                if error.errno in _READ_ONLY:
                    return None
                raise
            try:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    with waiting():
                        _wait_for(descriptor, ends)
                if is_same_file(descriptor, path):
                    return descriptor
            except BaseException as error:
                if isinstance(error, OSError) and error.errno in _NO_LOCKS:
                    return descriptor  # what is there tells of us, though it cannot be locked, and goes when we do
                os.close(descriptor)
                raise
            os.close(descriptor)  # its last holder has removed it since we opened it


def _wait_for(descriptor: int, ends: float) -> None:
    """Takes the lock of an open file.

    Raises:
        BlockingIOError: until `ends` another has held it.
    """
    if ends == math.inf:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        return
    pause = 0.001
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= ends:
                raise
        time.sleep(pause)
        pause = min(2 * pause, 0.1)


def _is_same(one: os.stat_result, other: os.stat_result) -> bool:
    """Whether both are of one file, not written in between. A number of a removed file is soon another's, so that
    `samestat` alone would take that for it."""

    def told(status: os.stat_result) -> tuple[int, ...]:
        return status.st_dev, status.st_ino, stat.S_IFMT(status.st_mode), status.st_size, status.st_mtime_ns

    return told(one) == told(other)


def _is_left(name: str, status: os.stat_result) -> bool:
    """Whether a lock file that cannot be locked was left by a process that is gone: one of this host, by its name
    "host-pid-...", or one from days ago."""
    host, _, rest = name.rpartition("-")[0].rpartition("-")
    if host == socket.gethostname() and rest.isdecimal():
        try:
            os.kill(int(rest), 0)
        except (ProcessLookupError, OverflowError):
            return True
        except PermissionError:
            pass  # another user's, which is there
        return False
    return time.time() - status.st_mtime > _ABANDONED


def _status(path: Path) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except OSError:
        return None


def _is_no_file(status: os.stat_result) -> str | None:
    """What it is instead, or None."""
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFLNK: "a link", stat.S_IFSOCK: "a socket"}
    kind = stat.S_IFMT(status.st_mode)
    return None if kind == stat.S_IFREG else f"is {kinds.get(kind, 'a device')} instead of a file"
