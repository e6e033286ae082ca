"""Files that a command line names: where they are, and whether what is there may be replaced. Standard library only."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from kiln_recipe.errors import EnvironmentProblem, UsageError, unwritable


def absolute(word: str | Path, cwd: Path) -> Path:
    """`word` as an absolute path without '..'; symbolic links stay as they are named."""
    return Path(os.path.normpath(cwd / word))


def check_new_file(word: str | Path, cwd: Path, what: str, begins: bytes, kind_of_file: str) -> Path:
    """Where a file that the user names is to be written: at the end of its links, so that these stay.

    A file that is there is replaced only if it is of the same kind: a slip of the keyboard must not cost a release.

    Args:
        what: the sentence's first word, "--html".
        begins: what all files of this kind begin with.
        kind_of_file: "page of `kiln inspect`".

    Raises:
        UsageError: a file of another kind is there, or it is the word by which some commands mean standard output.
        EnvironmentProblem: something is there that is no file, there is no such folder, or none can be written there.
    """
    if str(word) == "-":
        raise UsageError(f"{what} - would be a file called '-'; give its name, or ./- for that one")
    path = absolute(word, cwd)
    try:
        path = path.resolve()
        kind = path.stat().st_mode
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise EnvironmentProblem(f"{what} {word}: there is no folder {path.parent}; make it, or name another")
    except (OSError, RuntimeError) as error:  # RuntimeError: of links that lead in a circle, before Python 3.13
        reason = getattr(error, "strerror", None) or error
        raise EnvironmentProblem(f"{what} {word} cannot be written ({reason}); give another name")
    else:
        if not stat.S_ISREG(kind):
            raise EnvironmentProblem(
                f"{what} {word} is {kind_of(path)}; give a file, or a name that does not exist yet"
            )
        if not is_of_kind(path, begins):
            raise UsageError(
                f"{what} {word} exists and is not a {kind_of_file}, so it stays; give a name that does not exist yet"
            )
    try:
        tempfile.TemporaryFile(dir=path.parent).close()  # as it will appear: by rename, from beside it
    except OSError as error:
        raise unwritable(path, error) from error
    return path


def check_apart(paths: Mapping[str, Path]) -> None:
    """
    Args:
        paths: where a command is to write, as `check_new_file` gives it, by the option, "--html".

    Raises:
        UsageError: two are one file: the later would replace the earlier.
    """
    seen: dict[Path, str] = {}
    for option, path in paths.items():
        if (other := seen.setdefault(path, option)) != option:
            raise UsageError(f"{other} and {option} are both {path}; give each a name of its own")


@contextlib.contextmanager
def output_folder(word: str) -> Iterator[Path]:
    """The folder that a word of the command line names for what is made; it is made too. Where nothing comes of it,
    what was made is removed again, unless there is something in it.

    Raises:
        EnvironmentProblem: it cannot be made.
    """
    output = Path(os.path.realpath(word))  # resolve() has no OSError for links that lead in a circle
    new = [folder for folder in (output, *output.parents) if not os.path.lexists(folder)]
    try:
        output = _made_folder(output)
        yield output
    except BaseException:
        with contextlib.suppress(OSError):
            for folder in new:
                folder.rmdir()
        raise


def _made_folder(output: Path) -> Path:
    try:
        output.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise EnvironmentProblem(
            f"the output {output} is {kind_of(output)}; give a folder, or a name that does not exist yet"
        ) from None
    except OSError as error:
        raise EnvironmentProblem(f"{output} cannot be made ({error.strerror}); give another folder") from error
    return output


def is_of_kind(path: Path, begins: bytes) -> bool:
    """Whether what is there may be written to: a file that begins so or is empty, no file, or nothing at all."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return True
        with path.open("rb") as file:
            found = file.read(len(begins))
    except OSError:
        return not path.is_file()
    return found == begins or not found


def read_given(word: str | Path, limit: int) -> bytes:
    """What the file or the pipe that a command line names holds, up to `limit` bytes. A pipe is read to its end, if
    somebody has it open to write: one that nobody writes to would make us wait for ever.

    Raises:
        OSError: it cannot be read.
    """
    with open(os.open(word, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY), "rb", buffering=0) as file:
        first = file.read(1)  # None: there is a writer, who has not written yet
        if first == b"" and stat.S_ISFIFO(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EPIPE, "nobody writes to this pipe")
        os.set_blocking(file.fileno(), True)
        data = first or b""
        while (first is None or first) and len(data) < limit and (more := file.read(limit - len(data))):
            data += more
    return data


def what_keeps(descriptor: str, other: int) -> str:
    """Why a descriptor that a word names cannot be used: "is not open", or "cannot be written"; "" if nothing does.

    Args:
        descriptor: digits.
        other: with which it cannot be: os.O_RDONLY of one that is written, os.O_WRONLY of one that is read.
    """
    import fcntl  # a POSIX system's; who looks into a release may have another

    try:
        mode = fcntl.fcntl(int(descriptor), fcntl.F_GETFL) & os.O_ACCMODE
    except (OSError, OverflowError):
        return "is not open"
    return "" if mode != other else "cannot be written" if other == os.O_RDONLY else "cannot be read"


def kind_of(path: Path) -> str:
    if path.is_file():
        return "a file"
    for is_such, kind in (
        (path.is_dir, "a folder"),
        (path.is_fifo, "a pipe"),
        (path.is_socket, "a socket"),
        (path.is_block_device, "a device"),
        (path.is_char_device, "a device"),
    ):
        if is_such():
            return kind
    return "a dangling link" if path.is_symlink() and not path.exists() else "no folder"
