"""What somebody may have meant by a word that is unknown. Standard library only."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

from kiln_recipe.dtypes import SYNONYMS


def nearest(word: str, known: Iterable[str], what: str = "fields") -> str:
    """ "did you mean 'x'? the fields are x, y, z"."""
    known = list(known)
    close = _close(word, known)
    listed = f"the {what} are {', '.join(known)}" if known else f"there are no {what}"
    return f"did you mean {close[0]!r}? {listed}" if close else listed


def nearest_of_many(word: str, known: Iterable[str], what: str, most: int = 8) -> str:
    """As `nearest`, with those alone that are most like the word where there are many."""
    known = list(known)
    if len(known) <= most:
        return nearest(word, known, what)
    alike = difflib.get_close_matches(word, known, most, 0.0)
    return f"{nearest(word, alike, f'nearest {what}')}, and there are {len(known) - len(alike)} more"


def guess(word: str, known: Iterable[str]) -> str:
    """ " (did you mean 'x'?)", or "" if nothing is near: where the known ones are too many to list."""
    close = _close(word, list(known))
    return f" (did you mean {close[0]!r}?)" if close else ""


def _close(word: str, known: Sequence[str]) -> list[str]:
    same = SYNONYMS.get(word.removeprefix("torch.").removeprefix("tl.").lower())
    if same is not None and same in known:
        return [same]
    if _is_number(word):
        return _nearest_number(int(word), [other for other in known if _is_number(other)])
    if word.startswith("--"):  # options are alike in their dashes, which say nothing
        return [f"--{one}" for one in difflib.get_close_matches(word[2:], [name[2:] for name in known], 1, 0.6)]
    return difflib.get_close_matches(word, known, 1, 0.6)


def _is_number(word: str) -> bool:
    return re.fullmatch("[0-9]{1,9}", word) is not None


def _nearest_number(number: int, known: list[str]) -> list[str]:
    """The nearest number in a list, unless one of the two is more than twice the other: digits say nothing of that."""
    close = sorted(known, key=lambda other: abs(int(other) - number))[:1]
    return [other for other in close if max(int(other), number) <= 2 * min(int(other), number)]
