"""A folder that many processes, users and machines write at once: its files, and locks.

Nothing is synced to disk, and nothing has to be locked to read or to write a file. All locks are flock(2): the kernel
drops them with their process, and network file systems carry them. If the folder is a group's (its setgid bit is set),
everything in it may be written by the group.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from kiln.appear import appear
from kiln.errors import EnvironmentProblem

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
_READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)


def is_same_file(descriptor: int, path: Path) -> bool:
    """Whether an open file still stands at `path`: who opens a lock file and then locks it must ask, for another may
    have removed it in between."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


class SharedFolder:
    """The files of `root`, which the first write creates. Names that begin with a dot are nobody's business.

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

    def write(self, path: Path, data: bytes) -> None:
        """A file that appears complete, by rename, in the place of an older one if there is one."""
        try:
            with appear(path) as fresh:
                with open(self._open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb", buffering=0) as file:
                    while data:
                        data = data[file.write(data) :]
        except OSError as error:
            raise self.problem("write", path, error) from error

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
        self, path: Path, waiting: Callable[[], AbstractContextManager] = contextlib.nullcontext
    ) -> Iterator[None]:
        """Holds the lock file `path` alone; waits until it may. The file goes when the lock does.

        If it has to wait it does so within `waiting()`. Where there can be no lock (a file system without them, a
        folder that we may only read) it holds nothing.
        """
        try:
            descriptor = self._lock(path, waiting)
        except OSError as error:
            raise self.problem("lock", path, error) from error
        try:
            yield
        finally:
            if descriptor is not None:
                with contextlib.suppress(OSError):
                    os.unlink(path)
                os.close(descriptor)

    def is_locked(self, path: Path) -> bool:
        """Whether somebody holds the lock file; one that nobody holds is removed."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        except OSError:
            return True  # another user's, in a folder that is not a group's: we cannot know
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_same_file(descriptor, path):
                with contextlib.suppress(OSError):
                    os.unlink(path)
            return False
        except OSError:
            return True
        finally:
            os.close(descriptor)

    def files(self, kind: str, hidden: bool = False) -> Iterator[os.DirEntry]:
        """The files in the subfolders of `kind`, in no order; they may vanish while one looks. `hidden`: the others."""
        with contextlib.suppress(FileNotFoundError), os.scandir(self.root / kind) as folders:
            for folder in folders:
                with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder.path) as files:
                    for file in files:
                        if file.name.startswith(".") == hidden:
                            yield file

    def touch(self, path: Path) -> bool:
        """Marks a file as used now; False if it is not there (any more)."""
        try:
            os.utime(path)
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno not in _READ_ONLY:  # what we may only read, we cannot mark
                raise self.problem("mark", path, error) from error
        return True

    def remove_unless_used(self, path: Path, last_use_ns: int) -> bool:
        """Removes a file unless it was marked or written after `last_use_ns`; exact, whatever others do meanwhile."""
        aside = path.with_name(f".gone-{uuid.uuid4().hex}")
        try:
            os.rename(path, aside)  # from here on `touch` fails: whoever comes now sees no file
            if os.stat(aside).st_mtime_ns <= last_use_ns:
                os.unlink(aside)
                return True
            os.replace(aside, path)
            return False
        except FileNotFoundError:
            return False
        except OSError as error:
            raise self.problem("remove", path, error) from error

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
        return EnvironmentProblem(f"cannot {what} {path}: {error.strerror or error}")

    def _open(self, path: Path, flags: int) -> int:
        self.make()
        try:
            descriptor = os.open(path, flags | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:
            self._make_folder(path.parent)
            descriptor = os.open(path, flags | os.O_CLOEXEC, 0o666)
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

    def _lock(self, path: Path, waiting: Callable[[], AbstractContextManager]) -> int | None:
        while True:
            try:
                descriptor = self._open(path, os.O_RDWR | os.O_CREAT)
            except EnvironmentProblem:
                raise
            except OSError as error:
                if error.errno in _READ_ONLY:
                    return None
                raise
            try:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    with waiting():
                        fcntl.flock(descriptor, fcntl.LOCK_EX)
                if is_same_file(descriptor, path):
                    return descriptor
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
                os.close(descriptor)
                return None
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)  # its last holder has removed it since we opened it
