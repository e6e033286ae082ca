"""The signals that end a command, held back where nobody could say a word about them. Standard library only."""

from __future__ import annotations

import signal
import sys
from typing import NoReturn

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


def hold_back() -> None:
    """From here on they wait; a program that this process becomes, or starts, takes that over."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def let_through() -> None:
    """They come again, those that waited at once."""
    if hasattr(signal, "pthread_sigmask"):  # systems that lack it inspect releases too
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def leave(code: int) -> NoReturn:
    """Ends a program whose result is out: an interruption while Python puts itself away would change the exit code."""
    if hasattr(signal, "pthread_sigmask"):
        hold_back()
    exec("")  # CPython then forgets an interruption within a dataclass's making, for which `python -m` exits with 130
    sys.exit(code)
