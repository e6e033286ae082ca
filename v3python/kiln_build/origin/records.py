"""Recorded durations in a file that a user names: a copy of a store's `durations`, or a build's .timeline.json."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kiln_build.origin import timeline_file
from kiln_build.store import durations
from kiln_build.store.store import Took
from kiln_recipe.console.files import read_given
from kiln_recipe.errors import ArtifactError, EnvironmentProblem, UsageError

_RIGHT = "give a copy of a store's file durations, or the .timeline.json of a build that compiled"


def read(path: Path, warn: Callable[[str], object] = lambda text: None) -> dict[str, Took]:
    """What variants took, by name; nothing of an empty file, which a new store's is.

    Args:
        warn: is given a sentence where lines are damaged.

    Raises:
        EnvironmentProblem: the file cannot be read.
        UsageError: it is too large, or says of no variant what it took.
    """
    try:
        data = read_given(path, timeline_file.LARGEST + 1)
    except OSError as error:
        raise EnvironmentProblem(f"the durations in {path} cannot be read ({error.strerror}); {_RIGHT}") from error
    if len(data) > timeline_file.LARGEST:
        raise UsageError(f"{path} has more than {timeline_file.LARGEST >> 20} MiB; {_RIGHT}")
    damaged: list[str] = []
    known = _of_timeline(data) if data.lstrip().startswith(b"{") else durations.decode(data, damaged.append)
    if data and not known:
        raise UsageError(f"{path} says of no variant what it took; {_RIGHT}")
    if damaged:
        warn(f"warning: durations in {path}: {damaged[0]}: passed over")
    return known


def _of_timeline(data: bytes) -> dict[str, Took]:
    """By the clock, from a job's beginning to its end; nothing of a file that is no timeline."""
    try:
        jobs = timeline_file.parse(data, "").jobs
    except ArtifactError:
        return {}
    return {job.name: Took(job.seconds) for job in jobs if job.outcome == "compiled"}
