"""JSON as its standard has it: Python's module also reads, and writes, NaN and Infinity, which other readers refuse
and comparisons let pass. Standard library only."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from kiln_recipe.errors import cut


def read(text: str | bytes) -> Any:
    """What a text says.

    Raises:
        ValueError: it is not valid JSON, or has a number that is not finite; names the field, "rows[0].seconds".
    """
    try:
        try:
            return json.loads(text, parse_float=_finite, parse_constant=_finite)
        except _NotFinite as error:
            # Of a field that is given twice the last counts, and the number may be the first.
            place, value = next(_not_finite(json.loads(text), ""), ("a field that is given twice", str(error)))
            raise ValueError(f"{cut(place, 200) or 'it'} is {value}, which is not a finite number") from None
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def nulled(value: Any) -> Any:
    """The same value, with null for each number that is not finite: what JSON has for a result that is none."""
    if isinstance(value, dict):
        return {name: nulled(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [nulled(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class _NotFinite(ValueError):
    pass


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):  # 1e999 as well
        raise _NotFinite(cut(text))
    return value


def _not_finite(value: Any, place: str) -> Iterator[tuple[str, str]]:
    """Where numbers that are not finite stand, and what they are."""
    if isinstance(value, dict):
        for name, one in value.items():
            yield from _not_finite(one, f"{place}.{name}" if place else name)
    elif isinstance(value, list):
        for number, one in enumerate(value):
            yield from _not_finite(one, f"{place}[{number}]")
    elif isinstance(value, float) and not math.isfinite(value):
        yield place, {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
