"""The command line: one module a verb, loaded only when it is asked for. `base/verbs.py` lists the verbs.

Each `cli/<verb>.py` (verify_device.py of verify-device) has `add_arguments(parser)` and `run(arguments) -> int`. It may
have `check(arguments)`, which refuses what can be refused with the standard library alone, variables included;
`check_files(arguments)`, which reads files that the words name, with the packages of input/front.lock alone, before
`./kiln` installs others, and which `run` does not rely on; and EXAMPLE, lines for its help.
What it does stands behind the colon of its docstring's first line: '`kiln targets`: the GPUs that Kiln compiles for.'
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import kiln_build
from kiln_build.base.verbs import VERBS
from kiln_build.front.interruption import Interruption
from kiln_recipe.console.guard import guarded
from kiln_recipe.console.usage import Parser
from kiln_recipe.errors import EnvironmentProblem, UsageError
from kiln_recipe.suggest import nearest

_EXAMPLES = (
    'kiln plan "MI300X;sm_90"                      what a build would compile, and how long that takes',
    "kiln coverage core --model config.json        whether such a build serves a model",
    "kiln recipes --new my/kernel.py               a recipe for a kernel of your own",
    "kiln inspect output/kiln-....tar.gz --verify  whether a release is whole",
)
# Modules that verbs import only where they compress what they have made, by what a verb needs.
_LATE = {"packing": ("zstandard", "deflate"), "everything": ("zstandard", "deflate"), "cluster": ("distributed",)}


def main(words: Sequence[str] | None = None) -> int:
    """Runs one verb; returns the exit code. Mistakes of the user's become one sentence on standard error."""
    return _guarded(_run, [*(sys.argv[1:] if words is None else words)])  # no list(): a verb has that name


def judge(words: Sequence[str]) -> int:
    """What `./kiln` asks before it installs anything: 0, or the exit code with which these words are refused."""
    return _guarded(_judge, [*words])


def judge_files(words: Sequence[str]) -> int:
    """What `./kiln` asks with the packages of input/front.lock, before it installs others: as `judge`."""
    return _guarded(_judge_files, [*words])


def _guarded(run: Callable[[list[str]], int], words: list[str]) -> int:
    def begun(words: list[str]) -> int:
        try:
            with Interruption():  # SIGTERM and SIGHUP remove what is half made, as Ctrl-C does
                return run(words)
        except ModuleNotFoundError as error:
            if (error.name or "kiln").startswith("kiln"):
                raise
            raise EnvironmentProblem(
                f"{words[0]} needs the package {error.name}, which this Python lacks; ./kiln in a source tree "
                "installs what it needs, and a build leaves a Python with all packages in <workspace>/venv/bin/python"
            ) from error

    return guarded(begun, words)


def _run(words: list[str]) -> int:
    if not words:
        print(_overview(), file=sys.stderr)
        return UsageError.exit_code
    if words[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0
    if words[0] in ("-V", "--version", "version"):
        print(f"kiln {kiln_build.__version__}")
        return 0
    module, arguments = _read(words)
    if arguments is None:
        return 0
    _check_packages(VERBS[words[0]].needs)
    return module.run(arguments)


def _judge(words: list[str]) -> int:
    _read(words)
    return 0


def _judge_files(words: list[str]) -> int:
    module, arguments = _read(words)
    if arguments is not None and hasattr(module, "check_files"):
        module.check_files(arguments)
    return 0


def _read(words: Sequence[str]) -> tuple[ModuleType, argparse.Namespace | None]:
    """The verb's module, and what the words say, checked; None if they asked for help, which is printed."""
    verb = words[0]
    if verb not in VERBS:
        raise UsageError(f"unknown command {verb!r}; {nearest(verb, VERBS, 'commands')}")
    try:
        module = importlib.import_module(f"kiln_build.cli.{_module(verb)}")
    except (AttributeError, ImportError, SyntaxError, TypeError):
        _check_python(verb)  # an older one may lack what a module says
        raise
    parser = Parser(f"kiln {verb}", summary(verb), getattr(module, "EXAMPLE", f"kiln {verb}"))
    module.add_arguments(parser)
    arguments = parser.read(words[1:])
    if arguments is not None:
        _check_python(verb)
        if hasattr(module, "check"):
            module.check(arguments)
    return module, arguments


def _module(verb: str) -> str:
    """The name of a verb's module, "verify_device"."""
    return verb.replace("-", "_")


def _check_python(verb: str) -> None:
    lowest = VERBS[verb].python
    if sys.version_info < lowest:
        raise EnvironmentProblem(
            "`kiln {}` needs Python {}.{} or later; this is {}.{}".format(verb, *lowest, *sys.version_info[:2])
        )


def _check_packages(needs: str) -> None:
    """
    Raises:
        ModuleNotFoundError: a package is missing that is imported late, by what compresses a release: said now, and not
            after minutes of work.
    """
    for name in _LATE.get(needs, ()):
        if importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def summary(verb: str) -> str:
    """What a verb does, in one line, read without importing it: `inspect` runs where others could not."""
    source = Path(__file__).with_name(f"{_module(verb)}.py")
    if not source.is_file():
        return ""
    first = (ast.get_docstring(ast.parse(source.read_bytes())) or "").partition("\n")[0]
    text = first.partition(": ")[2] or first
    return text[:1].upper() + text[1:]


def _overview() -> str:
    lines = [
        "Compiles GPU kernels ahead of time, and packs them into releases that need no compiler.",
        "",
        "examples:",
        *(f"  {example}" for example in _EXAMPLES),
        "",
        "usage: kiln <command> [arguments]",
        "",
    ]
    width = max(map(len, VERBS))
    lines += [f"  {verb:{width}} {summary(verb)}" for verb in VERBS]
    lines += ["", "`kiln <command> --help` shows a command's arguments and an example; `kiln --version`, the version."]
    return "\n".join(lines)
