"""How both halves of build.sh end: Ctrl-C, SIGTERM and SIGHUP, and errors. Standard library only."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable

from kiln_build.front.signals import SIGNALS, let_through
from kiln_build.options.failure_log import log_failure
from kiln_recipe import errors
from kiln_recipe.console.spelling import say
from kiln_recipe.errors import KilnError


def _nothing(number: int) -> None:
    pass


def guarded(half: Callable[[Interruption], int], log_json: str | None = None) -> int:
    """Runs a half; returns its exit code. What a user did or can mend becomes one sentence.

    Args:
        log_json: KILN_LOG_JSON, where that sentence is the last line.
    """
    interruption = Interruption()
    problem: KilnError | None
    try:
        with interruption:
            errors.need_output()
            code = half(interruption)
            sys.stdout.flush()
            return code
    except KilnError as error:
        problem = error
    except BrokenPipeError:  # the reader of the result has gone
        errors.forget_output()
        return 128 + signal.SIGPIPE
    except OSError as error:
        problem = errors.of_system(error, "the workspace or the output")
        if problem is None:
            log_failure(log_json, f"{type(error).__name__}: {error}", KilnError.exit_code)
            raise
        errors.forget_output()
    except KeyboardInterrupt:
        say(str(interruption))
        log_failure(log_json, str(interruption), interruption.exit_code)
        return interruption.exit_code
    except Exception as error:  # a defect of ours
        log_failure(log_json, f"{type(error).__name__}: {error}", KilnError.exit_code)
        raise
    say(str(problem), has_lines=problem.has_lines)
    log_failure(log_json, str(problem), problem.exit_code)
    return problem.exit_code


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
        self._before = [signal.getsignal(number) for number in SIGNALS]
        for number, before in zip(SIGNALS, self._before):
            if number != signal.SIGHUP or before != signal.SIG_IGN:  # nohup
                signal.signal(number, self._handle)
        let_through()  # the parent process may have held them back until now
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in zip(SIGNALS, self._before):
            # Ignored since our own processes were told to end: this one is among them, and the signal may still come.
            if signal.getsignal(number) != signal.SIG_IGN:
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
