"""What people read: a line on standard error, times, sizes. Standard library only."""

from __future__ import annotations

import os
import sys

from kiln_recipe.errors import EnvironmentProblem, escaped, forget_output

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def say(text: str, *, has_lines: bool = False) -> None:
    """One line for the user; standard output is for results only. Never fails: the exit code still counts.

    Args:
        has_lines: its line breaks are our own; else they are those of a name, and are spelled.
    """
    if not sys.stderr:  # a parent may have closed it; `print` would take standard output then
        return
    try:
        print(escaped(f"kiln: {text}", has_lines=has_lines), file=sys.stderr, flush=True)
    except OSError:
        forget_output()


def print_text(text: str, *, has_lines: bool = True) -> None:
    """A result that people read, on standard output; `has_lines` as of `say`."""
    print(escaped(text, has_lines=has_lines))


def print_made(result: str, what: str) -> None:
    """The result of a command that has made something, on standard output. Names of files are written in the bytes that
    they have: a script opens them.

    Args:
        what: says that it was made: "the release /out/x was made".

    Raises:
        EnvironmentProblem: it cannot be written there, which is no fault of the disk that was written to.
        BrokenPipeError: the reader has gone.
    """
    try:
        bytes_of = getattr(sys.stdout, "buffer", None)
        if bytes_of is None:  # a parent has closed it, or it is a notebook's
            print(result, flush=True)
        else:
            sys.stdout.flush()
            bytes_of.write(os.fsencode(result + "\n"))
            bytes_of.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        forget_output()
        raise EnvironmentProblem(f"{what}, but standard output cannot be written ({error.strerror})") from error


def spell_seconds(seconds: float) -> str:
    """4.2 s, 2:05 or 1:02:05."""
    if seconds < 10:
        return f"{max(seconds, 0.0):.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def spell_estimate(seconds: float) -> str:
    """The same for what is only estimated: 45 s, 12 min, 2.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"


def spell_size(number: float) -> str:
    """1.5 GiB, 20.0 MiB, 512 bytes."""
    for unit in ("T", "G", "M", "K"):
        if number >= UNITS[unit]:
            return f"{number / UNITS[unit]:.1f} {unit}iB"
    return f"{number:.0f} bytes"
