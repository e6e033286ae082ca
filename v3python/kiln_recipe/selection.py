"""Which variants of recipes a build takes: its profile, and a selection of families, operations and values of choices.

Standard library only: build.sh refuses bad words before any package is installed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from kiln_recipe.errors import UsageError

if TYPE_CHECKING:  # Python 3.8 has no such expressions
    Selection = tuple[tuple[str, tuple[str, ...]], ...]

PROFILES = ("core", "full")
CHOSEN, ALL = CONFIGURATIONS = ("chosen", "all")  # those that a look-up can choose, or also the others
# What a selection can name besides choices and kernels, and how several are called. No choice may have such a name.
SELECTED_NAMES = {"family": "families", "operation": "operations"}


def parse_selection(text: str, source: str = "KILN_SELECT") -> Selection:
    """'dtype=bf16;head_dim=64,128' as (("dtype", ("bf16",)), ("head_dim", ("64", "128"))).

    Sorted, so that selections that mean the same are equal. Which choices and values exist is the plan's to know.
    `source`: what the errors call it.

    Raises:
        UsageError: it is not of that form, or names a choice twice.
    """
    selection: dict[str, tuple[str, ...]] = {}
    if text.strip() and not text.strip("; \t\n"):
        raise UsageError(
            f"{source}={text!r} names no choice; expected for example 'dtype=bf16;head_dim=64,128', or nothing"
        )
    parts = [part.strip() for part in text.split(";")]
    if not parts[-1]:  # nothing at all, or one ';' at the end
        parts.pop()
    for part in parts:
        if not part:
            raise UsageError(
                f"{source}={text!r} has an empty choice; expected for example 'dtype=bf16;head_dim=64,128'"
            )
        name, equals, values = (word.strip() for word in part.partition("="))
        split = tuple(value.strip() for value in values.split(","))
        if not (name and equals and all(split)):
            raise UsageError(
                f"{source}: {part!r} is not choice=value,value; expected for example 'dtype=bf16;head_dim=64,128'"
            )
        if name in selection:
            raise UsageError(f"{source} names {name!r} twice; give all its values at once: {name}=first,second")
        selection[name] = tuple(sorted(set(split), key=lambda value: (len(value) if value.isdecimal() else 0, value)))
    return tuple(sorted(selection.items()))


def spell_selection(selection: Selection) -> str:
    """The text that `parse_selection` reads as `selection`."""
    return ";".join(f"{name}={','.join(values)}" for name, values in selection)


def values_of(words: str) -> dict[str, str]:
    """{"dtype": "bf16", "head_dim": "64"} of "dtype=bf16 head_dim=64", a functional or a configuration."""
    return dict(word.partition("=")[::2] for word in words.split())


def unknown(
    settings: Sequence[Mapping[str, str]], choices: Iterable[tuple[str, Sequence[str]]]
) -> tuple[str, str | None, list[str]] | None:
    """The first of a selection's names or values that nothing has: (name, None, all names that there are) or (name,
    value, all values of that name); None if all are known.

    Args:
        settings: by name, the value of each thing that may be selected.
    """
    for name, wanted in choices:
        there = list(dict.fromkeys(one[name] for one in settings if name in one))
        if not there:
            return name, None, list(dict.fromkeys(known for one in settings for known in one))
        for value in wanted:
            if value not in there:
                return name, value, there
    return None
