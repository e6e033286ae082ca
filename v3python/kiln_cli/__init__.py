"""The command `kiln`: finds its verbs among what is installed, and hands them the words.

A distribution brings verbs by entry points of the group `kiln.verbs`: a verb's name, and a function that takes all
words, the verb first, and returns the exit code. kiln-runtime brings `info`, kiln-build those of the build. Standard
library only.
"""

import sys
from collections.abc import Sequence

GROUP = "kiln.verbs"


def main(words: "Sequence[str] | None" = None) -> int:
    """Runs a verb; returns the exit code. What takes long to import is imported where an interruption gets a word."""
    try:
        from kiln_cli import verbs

        return verbs.run([*(sys.argv[1:] if words is None else words)])
    except KeyboardInterrupt:
        print("kiln: interrupted", file=sys.stderr)
        return 130
