"""Ctrl-C, SIGTERM and SIGHUP, alike in both halves of build.sh. Standard library only."""

from __future__ import annotations

import signal
from collections.abc import Callable

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _nothing(number: int) -> None:
    pass


class Interruption:
    """While it is held, the first of SIGNALS raises KeyboardInterrupt(number), once; later ones are only told of.

    Attributes:
        received: the first signal, or None.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self.first: Callable[[int], None] = _nothing  # called with the signal's number before the exception is raised
        self.again: Callable[[int], None] = _nothing

    def __enter__(self) -> Interruption:  # noqa: PYI034  (Self needs Python 3.11)
        self._before = [signal.signal(number, self._handle) for number in SIGNALS]
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # whoever started us may have held them back until now
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in zip(SIGNALS, self._before):
            signal.signal(number, handler)

    @property
    def exit_code(self) -> int:
        """What a shell would say of a process that the signal ended."""
        return 128 + (self.received or signal.SIGINT)

    def __str__(self) -> str:
        return f"interrupted by {(self.received or signal.SIGINT).name}"

    def ignore(self) -> None:
        """From here on nothing interrupts: things are put in order."""
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    def _handle(self, number: int, _frame: object) -> None:
        if self.received is not None:
            self.again(number)
            return
        self.received = signal.Signals(number)
        self.first(number)
        raise KeyboardInterrupt(number)
