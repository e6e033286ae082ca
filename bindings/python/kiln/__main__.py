"""`python -m kiln info [--json]`: what is installed, and what it can run on; `python -m kiln bench`: how fast;
`python -m kiln tune`: which configurations are the fastest; `python -m kiln verify-device`: which images are right."""

from __future__ import annotations

import errno
import importlib
import json
import os
import signal
import sys
from collections.abc import Sequence

from kiln_recipe.errors import NotServed

_OF_BENCH = {
    "bench": "kiln_bench.command", "tune": "kiln_bench.tune.command", "verify-device": "kiln_bench.verify.command",
}  # fmt: skip
_USAGE = f"usage: python -m kiln info [--json], or one of {', '.join(_OF_BENCH)} with --help"


def main(words: Sequence[str]) -> int:
    """Runs a command; returns the exit code: 2 for an invalid argument, 5 where the libraries cannot be loaded, 7
    where what it prints cannot be written, 10 where no pack can be used, 141 where the output is not read; for
    the commands of kiln_bench, theirs."""
    if words and words[0] in _OF_BENCH:
        return importlib.import_module(_OF_BENCH[words[0]]).main(words)
    code, text = _answer(words)
    if code not in (0, NotServed.exit_code):
        _say(text)
        return code
    try:
        print(text)
        if sys.stdout:  # a parent may have closed it
            sys.stdout.flush()
    except BrokenPipeError:  # the reader of `python -m kiln info | head` has gone
        _drop_output()
        return 128 + signal.SIGPIPE
    except OSError as error:
        _drop_output()
        room = "; make room on its disk" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        _say(f"kiln: the output cannot be written ({error.strerror}){room}")
        return 7
    if code:
        _say("kiln: no pack can be used, so nothing can run; the `targets` and `problem` that it prints tell more")
    return code


def _say(text: str) -> None:
    if not sys.stderr:
        return
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:  # that cannot be written either; the exit code still says it
        _drop_output()


def _drop_output() -> None:
    """Output that cannot be written must not make the interpreter complain when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            os.dup2(nowhere, stream.fileno())


def _answer(words: Sequence[str]) -> tuple[int, str]:
    """The exit code, and what is printed: where the command fails, the sentence for standard error."""
    if words and (words[0] == "help" or {"-h", "--help"} & {*words}):
        return 0, (
            f"{_USAGE}\n\nPrints version, targets with packs, drivers and devices; with --json, for programs.\n"
            f"Exits with {NotServed.exit_code} if no pack can be used."
        )
    if not words or words[0] != "info" or any(word != "--json" for word in words[1:]):
        wrong = next((w for i, w in enumerate(words) if w != ("--json" if i else "info")), "")
        return 2, f"kiln: {f'unknown argument {wrong!r}' if wrong else 'a command is missing'}; {_USAGE}"
    try:
        from kiln import info
    except ImportError as error:  # in a checkout, say
        return 5, f"kiln: {error}"
    found = info()
    code = 0 if found.targets else NotServed.exit_code
    return code, json.dumps(found.as_dict(), indent=2) if "--json" in words else str(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
