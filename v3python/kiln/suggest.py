"""What somebody may have meant by a word that is unknown. Standard library only."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str], what: str = "fields") -> str:
    """ "did you mean 'x'? the fields are x, y, z"."""
    known = list(known)
    close = difflib.get_close_matches(word, known, 1, 0.6)
    listed = f"the {what} are {', '.join(known)}" if known else f"there are no {what}"
    return f"did you mean {close[0]!r}? {listed}" if close else listed
