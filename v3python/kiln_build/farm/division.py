"""Divides the images of a plan among shards, for those who have a matrix of jobs and no scheduler.

The longest image goes first, each to the shard that has least to do by then (Graham, 1969: no shard takes more than 4/3
of the least possible). What is divided is the whole plan, whatever a store has of it: so the division is the same on
every machine for the same images and records, also while other shards fill the store. Images that take equally long are
near relatives, so each shard gets its part of these, and an edit of one kernel is work for all.
"""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Mapping
from pathlib import Path

from kiln_recipe.errors import UsageError


def divide(seconds: Mapping[str, float], count: int) -> dict[str, int]:
    """The number of the shard, from 1 to `count`, that makes each image.

    Args:
        seconds: by key of the image, what it will take.
    """
    loads = [(0.0, number) for number in range(1, count + 1)]
    division = {}
    for key, took in sorted(seconds.items(), key=lambda item: (-item[1], item[0])):
        load, number = loads[0]
        heapq.heapreplace(loads, (load + took, number))
        division[key] = number
    return division


def refuse_live(durations: Path, store: str) -> None:
    """Refuses the records that running builds add to: shards that start one after another would divide differently.

    Args:
        store: a folder, or an address.

    Raises:
        UsageError: the file is the store's own.
    """
    with contextlib.suppress(OSError):
        if durations.samefile(Path(store) / "durations"):
            raise UsageError(
                f"{durations} changes while shards run, and each would divide the plan in another way; give all of "
                "them the same copy of it"
            )
