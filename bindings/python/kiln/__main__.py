"""`python -m kiln info [--json]`: what is installed, and what it can run on."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence

_USAGE = "usage: python -m kiln info [--json]"


def main(words: Sequence[str]) -> int:
    """Runs a command; returns the exit code: 2 for a word that cannot be, 141 where nobody reads what it prints."""
    try:
        code = _run(words)
        if sys.stdout:  # a parent may have closed it
            sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader of `python -m kiln info | head` has gone
        # What nobody takes must not make the interpreter complain when it ends.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in filter(None, (sys.stdout, sys.stderr)):
            try:
                stream.flush()
            except OSError:
                os.dup2(nowhere, stream.fileno())
        return 128 + signal.SIGPIPE


def _run(words: Sequence[str]) -> int:
    if list(words) in (["-h"], ["--help"], ["help"]):
        print(f"{_USAGE}\n\nPrints version, targets with packs, drivers and devices; with --json, for programs.")
        return 0
    if not words or words[0] != "info" or any(word != "--json" for word in words[1:]):
        wrong = next((w for i, w in enumerate(words) if w != ("--json" if i else "info")), "")
        print(f"kiln: {f'unknown word {wrong!r}' if wrong else 'which command?'}; {_USAGE}", file=sys.stderr)
        return 2
    from kiln import info

    found = info()
    print(json.dumps(found.as_dict(), indent=2) if "--json" in words else found)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
