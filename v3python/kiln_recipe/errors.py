"""Every way in which Kiln fails on purpose, each with its documented exit code.

A user's mistake is a `KilnError`: one sentence that names the input, what is wrong and what would be right. The command
line prints that sentence and exits with the class's code; anything else that escapes is a defect of Kiln's and exits
with 1.
"""

from __future__ import annotations

import errno
import os
import sys

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class KilnError(RuntimeError):
    """Base of all deliberate failures; `str(error)` is the sentence for the user.

    Attributes:
        exit_code: the command line's.
        has_lines: it is a sentence and lines below it, such as the variants that failed, or what a compiler printed.
        status, status_name: the kiln_status of the C interface that says the same, as the package kiln has it; 0 where
            none does.
    """

    exit_code = 1
    has_lines = False
    status = 0
    status_name = "KILN_OK"


class ArgumentError(KilnError, ValueError):
    """An invalid argument: a wrong rank, dtype or size, a value out of range, arrays that do not fit."""

    status, status_name = 1, "KILN_E_ARGUMENT"


class UsageError(ArgumentError):
    """An invalid argument, target, version or selection."""

    exit_code = 2


class RecipeError(KilnError, ValueError):
    """An invalid recipe, kernel source or tuning file; the sentence starts with file:line."""

    exit_code = 3


class CompileError(KilnError):
    """Triton or an assembler rejected a variant, or its image exceeds its target's limits.

    Attributes:
        stage: where it failed: "source", "ttir", "ttgir", "llir", "assemble", "judge".
        log: what the tools printed.
    """

    exit_code = 4

    def __init__(self, message: str, stage: str = "", log: str = "") -> None:
        super().__init__(message)
        self.stage = stage
        self.log = log


class BuildFailed(KilnError):
    """Variants failed; the build made no release."""

    exit_code = 4
    has_lines = True


class ToolchainError(KilnError):
    """The toolchain is incomplete, cannot be downloaded, or differs from its lock."""

    exit_code = 5


class ArtifactError(KilnError):
    """A pack, tarball, image, store entry, ledger or file of results is truncated, corrupt or has another format."""

    exit_code = 6


class EnvironmentProblem(KilnError):
    """A file or folder is missing, or cannot be read or written; a disk is full; the host lacks a tool."""

    exit_code = 7

    def __init__(self, message: str, *, has_lines: bool = False) -> None:
        super().__init__(message)
        self.has_lines = has_lines


class NativeBuildError(KilnError):
    """The C++ compiler rejected the runtime or the generated tables."""

    exit_code = 8
    has_lines = True


class LedgerError(KilnError):
    """The ledger of images does not match the tree, or images got worse without a stated reason."""

    exit_code = 9


class NotServed(KilnError):
    """`kiln coverage --check` found a use that is not served, `kiln info` no pack that can be used, `kiln bench` or
    `kiln verify-device` no image for the GPU, `kiln tune` nothing to choose, or `kiln tune --check` calls that could be
    faster."""

    exit_code = 10


class WrongResult(KilnError):
    """`kiln bench`, `kiln tune` or `kiln verify-device` found wrong results of Kiln's."""

    exit_code = 11


class TrustError(KilnError):
    """A signature is missing or wrong, by a key that is not trusted, or of something else than it stands beside."""

    exit_code = 12


class MissingImages(KilnError):
    """`kiln build --from-store`: images that the release needs are not in the store; the build made no release."""

    exit_code = 13
    has_lines = True


class Interrupted(KilnError):
    """Ctrl-C or another signal to end; what was done is kept. The exit code is the shell's: 128 and the signal."""

    exit_code = 130

    def __init__(self, message: str, number: int = 2) -> None:
        super().__init__(message)
        self.exit_code = 128 + number


def of_system(error: OSError, place: str = "the output") -> EnvironmentProblem | None:
    """The sentence for an error of the operating system that has no better one; None if it tells of no
    file and no full disk: then it may be a defect of ours.

    Args:
        place: what was written to, where the error does not name it.
    """
    if is_full(error):
        full = error.filename2 or error.filename or place
        return EnvironmentProblem(f"{full} cannot be written ({error.strerror}); make room on its disk")
    if error.filename:
        return EnvironmentProblem(
            f"{error.filename} cannot be used ({error.strerror}); name another path, or make this one accessible"
        )
    return None


def is_full(error: OSError) -> bool:
    """Whether a disk has no room, or fails."""
    return error.errno in _FULL


def unwritable(path: object, error: OSError) -> EnvironmentProblem:
    """The sentence for a file or a folder that cannot be written."""
    right = "make room on its disk" if is_full(error) else "give a name in a folder that can be written to"
    return EnvironmentProblem(f"cannot write {path}: {error.strerror or error}; {right}")


def need_output() -> None:
    """
    Raises:
        EnvironmentProblem: standard output is closed: what is printed would be lost, or land in the next file opened.
    """
    if not sys.stdout:
        raise EnvironmentProblem("standard output is closed; leave it open, or send it to a file or /dev/null")


def forget_output() -> None:
    """Output that cannot be written must not make the interpreter complain when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream:
                stream.flush()
        except OSError:
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def cut(spelled: str, most: int = 80) -> str:
    """The beginning of a text that a sentence quotes: a file of another kind may hold one of any length."""
    return spelled if len(spelled) <= most else f"{spelled[: most - 3]}..."


def escaped(text: str, *, has_lines: bool = True) -> str:
    """The text for a terminal: what is not printable is spelled, "\\x1b"; with `has_lines`, line breaks stay."""
    kept = "\n" if has_lines else ""
    return "".join(c if c.isprintable() or c in kept else c.encode("unicode_escape").decode() for c in text)
