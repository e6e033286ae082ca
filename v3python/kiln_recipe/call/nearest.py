"""The refusal of a call that no variant serves: what it asked for, and the nearest functional that exists. What the
runtime says of it (csrc/core/unsupported.cc), in Python."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

from kiln_recipe.call.evaluate import DTYPE_NAMES, Call, Refusal, is_wanted
from kiln_recipe.model import Choice, Kernel

MOST_COMBINATIONS = 1 << 22  # what an error may cost to word

# Whether a call can get a kernel's functional (its number): some bin of the look-up leads to a configuration for it.
Exists = Callable[[Kernel, int], bool]


def unsupported(call: Call, failed: Sequence[Kernel], target: str, why: str | None, exists: Exists) -> Refusal:
    """The refusal of a call.

    Args:
        failed: the implementations of the kernel that has no variant; none where some choice has no value that serves.
        why: the reason, if one is known.
    """
    asked = " ".join(f"{c.name}={_spelled(call, c)}" for c in _of_images(call))
    sentence = f"{call.name} has no image for {asked} on {target}" + (f": {why}" if why else "")
    places = _nearest(call, failed, exists)
    if places is None:
        return Refusal("UNSUPPORTED", f"{sentence}, nor for anything similar")
    found = " ".join(f"{c.name}={c.spellings[places[c.name]]}" for c in _of_images(call))
    return Refusal("UNSUPPORTED", f"{sentence}; the nearest that exists is {found}")


def _nearest(call: Call, failed: Sequence[Kernel], exists: Exists) -> dict[str, int] | None:
    """By choice the place of its value in the nearest combination that exists; None if there is none. One that leads to
    the same functionals of the kernel that failed would fail as the call does."""
    choices = _of_images(call)
    if math.prod(len(choice.values) for choice in choices) > MOST_COMBINATIONS:
        return None
    wanted = [step for step in call.operation.steps if _may_be_wanted(call, step[0])]
    names = [choice.name for choice in choices]
    best, least = None, (0, 0)
    for combination in itertools.product(*(range(len(choice.values)) for choice in choices)):
        places = dict(zip(names, combination))
        distance = _distance(call, places)
        if best is not None and distance >= least:
            continue
        if failed and all(places[name] == call.chosen[name] for kernel in failed for name in kernel.choices):
            continue
        if all(any(exists(kernel, call.number_of(kernel, places)) for kernel in step) for step in wanted):
            best, least = places, distance
    return best


def _of_images(call: Call) -> list[Choice]:
    """The choices that images differ by: the other, if there is one, has all its values tried."""
    return [choice for choice in call.operation.choices if choice.match != "first_that_fits"]


def _distance(call: Call, places: dict[str, int]) -> tuple[int, int]:
    """How many choices differ from what the call asks, and by how much in all."""
    apart = [abs(c.numbers[places[c.name]] - call.asked[c.name]) for c in _of_images(call)]
    return sum(difference != 0 for difference in apart), sum(apart)


def _may_be_wanted(call: Call, kernel: Kernel) -> bool:
    """As far as that can be told of a call without a value for each choice."""
    try:
        return is_wanted(call, kernel)
    except Refusal:
        return True


def _spelled(call: Call, choice: Choice) -> str:
    """The value that is asked for, as its choice spells it; a dtype by its name even where no choice has it."""
    value = call.asked[choice.name]
    if value in choice.numbers:
        return choice.spellings[choice.numbers.index(value)]
    decides = any(argument.dtype_choice == choice.name for argument in call.operation.arguments)
    return DTYPE_NAMES[value] if decides and value in DTYPE_NAMES else str(value)
