"""The command line: one module a verb, loaded only when it is asked for.

Each `cli/<verb>.py` has `add_arguments(parser)`, `run(arguments) -> int`, and may have EXAMPLE, lines for its help.
What it does stands behind the colon of its docstring's first line: '`kiln targets`: the GPUs that Kiln compiles for.'
"""

from __future__ import annotations

import argparse
import ast
import difflib
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from kiln.errors import EnvironmentProblem, KilnError, UsageError

VERBS = ("targets", "recipes", "plan", "build", "list", "inspect", "store", "clean", "doctor", "fetch")


def main(words: Sequence[str] | None = None) -> int:
    """Runs one verb; returns the exit code. Mistakes of the user's become one sentence on standard error."""
    words = [*(sys.argv[1:] if words is None else words)]  # no list(): the verb of that name may have been imported
    try:
        if not words or words[0] in ("-h", "--help", "help"):
            print(_overview(), file=sys.stdout if words else sys.stderr)
            return 0 if words else UsageError.exit_code
        verb = _verb(words[0])
        module = importlib.import_module(f"kiln.cli.{verb}")
        parser = argparse.ArgumentParser(
            prog=f"kiln {verb}",
            description=summary(verb),
            epilog=_examples(getattr(module, "EXAMPLE", f"kiln {verb}")),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        module.add_arguments(parser)
        code = module.run(parser.parse_args(words[1:]))
        sys.stdout.flush()
        return code
    except KilnError as error:
        print(f"kiln: {error}", file=sys.stderr)
        return error.exit_code
    except ModuleNotFoundError as error:
        if (error.name or "kiln").split(".")[0] == "kiln":
            raise
        print(
            f"kiln: {words[0]} needs the package {error.name}, which this Python does not have; a build leaves a "
            "Python with all packages in <workspace>/venv/bin/python",
            file=sys.stderr,
        )
        return EnvironmentProblem.exit_code
    except KeyboardInterrupt:
        print("kiln: interrupted; what was done is kept", file=sys.stderr)
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # The reader of `kiln list | head` has gone; the interpreter's own flush at exit must not complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def summary(verb: str) -> str:
    """What a verb does, in one line, read without importing it: `inspect` runs where others could not."""
    source = Path(__file__).with_name(f"{verb}.py")
    if not source.is_file():
        return ""
    first = (ast.get_docstring(ast.parse(source.read_bytes())) or "").partition("\n")[0]
    text = first.partition(": ")[2] or first
    return text[:1].upper() + text[1:]


def _verb(word: str) -> str:
    if word in VERBS:
        return word
    nearest = difflib.get_close_matches(word, VERBS, 1, 0)[0]
    raise UsageError(f"unknown command {word!r}; did you mean {nearest}? The commands are {', '.join(VERBS)}")


def _overview() -> str:
    lines = ["usage: kiln <command> [arguments]", ""]
    lines += [f"  {verb:8} {summary(verb)}" for verb in VERBS]
    lines += ["", "`kiln <command> --help` shows a command's arguments and an example."]
    return "\n".join(lines)


def _examples(text: str) -> str:
    lines = text.strip().splitlines()
    return "\n".join([f"example{'s' if len(lines) > 1 else ''}:", *(f"  {line}" for line in lines)])
