"""What stands around a command: every failure becomes one sentence on standard error, and an exit code."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

from kiln_recipe import errors
from kiln_recipe.console import usage
from kiln_recipe.console.spelling import say
from kiln_recipe.errors import EnvironmentProblem, KilnError


def run_verb(verb: ModuleType, name: str, words: Sequence[str] | None) -> int:
    """Runs a verb for itself, "tune"; returns the exit code.

    Args:
        verb: has SUMMARY, EXAMPLE, add_arguments(parser), check(arguments) and run(arguments) -> exit code.
        words: the first is its name; None: those that this process was started with, whose first is the program's.
    """

    def begun(words: list[str]) -> int:
        parser = usage.Parser(f"kiln {name}", verb.SUMMARY, verb.EXAMPLE)
        verb.add_arguments(parser)
        arguments = parser.read(words[1:])
        if arguments is None:
            return 0
        verb.check(arguments)
        return verb.run(arguments)

    return guarded(begun, [name, *sys.argv[1:]] if words is None else words)


def guarded(run: Callable[[list[str]], int], words: Sequence[str]) -> int:
    """Runs a command on its words, the first of which is its name; returns the exit code."""
    try:
        errors.need_output()
        if hasattr(sys.stdout, "reconfigure"):  # of files' names, which a terminal's encoding may lack
            sys.stdout.reconfigure(errors="backslashreplace")
        try:
            return run([*words])
        finally:
            sys.stdout.flush()  # what a command found stands before the sentence of what is wrong with it
    except KilnError as error:
        say(str(error), has_lines=error.has_lines)
        return error.exit_code
    except MemoryError:
        say(f"memory ran out in `kiln {words[0]}`; give it more, or a smaller file")
        return EnvironmentProblem.exit_code
    except KeyboardInterrupt as interruption:  # with the signal, if it was not Python's own handler that raised it
        received = signal.Signals(*(interruption.args[:1] or (signal.SIGINT,)))
        say(f"interrupted by {received.name}; what was done is kept")
        return 128 + received
    except BrokenPipeError:  # the reader of `kiln list | head` has gone
        errors.forget_output()
        return 128 + signal.SIGPIPE
    except OSError as error:
        problem = errors.of_system(error)
        if problem is None:
            raise
        errors.forget_output()
        say(str(problem))
        return problem.exit_code
