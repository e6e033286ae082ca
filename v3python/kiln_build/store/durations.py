"""Lines of recorded durations, as a store keeps them and `kiln simulate --durations` reads them.

A line is JSON, ["variant", seconds, cpu]: seconds by the clock and of processors. Earlier lines lack the last. Of
several lines of one variant the last counts; a line that is none of these is passed over: it was torn by a kill, or by
two machines that wrote at once.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from kiln_build.store.store import Took, is_time

LARGEST = 1 << 29  # bytes of a file; 271,294 variants take 40 million, and up to twice that until the file is tidied


def encode(name: str, took: Took) -> bytes:
    """A line, with its end; times to the millisecond."""
    values = [name, *(round(seconds, 3) for seconds in took if seconds is not None)]
    return msgspec.json.encode(values) + b"\n"


def decode(data: bytes, passed_over: Callable[[str], None] = lambda lines: None) -> dict[str, Took]:
    """What lines say, by name.

    Args:
        passed_over: is told how many lines say nothing, "2 of 5 lines are damaged". The last one counts only with its
            end: it may still be on its way.
    """
    known: dict[str, Took] = {}
    lines = data.split(b"\n")
    damaged = 0
    for number, line in enumerate(lines, 1):
        try:
            name, *seconds = _decode(line)
        except msgspec.DecodeError:
            damaged += number < len(lines)
            continue
        if all(map(is_time, seconds)):
            known[name] = Took(*seconds)
        else:
            damaged += 1
    if damaged:
        passed_over(f"{damaged} of {len(lines) - 1} lines are damaged" if len(lines) > 2 else "its line is damaged")
    return known


def _decode(line: bytes) -> tuple[str, float] | tuple[str, float, float]:
    try:
        return _LINE.decode(line)
    except msgspec.ValidationError:
        return _EARLIER.decode(line)


_LINE = msgspec.json.Decoder(tuple[str, float, float])
_EARLIER = msgspec.json.Decoder(tuple[str, float])
