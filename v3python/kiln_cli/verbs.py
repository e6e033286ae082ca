"""The verbs that installed distributions bring, and what is said where the words name none."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version

from kiln_cli import GROUP

_BROUGHT_BY = {"kiln-runtime": "what runs kernels", "kiln-build": "what builds them"}
_USAGE, _ENVIRONMENT = 2, 7  # exit codes, as those of kiln_recipe.errors


def run(words: Sequence[str]) -> int:
    """Runs a verb; returns the exit code."""
    if not sys.stdout:
        return _refuse("standard output is closed; leave it open, or send it to a file or /dev/null", _ENVIRONMENT)
    verbs = find_verbs()
    if not verbs:
        return _refuse(f"no command is installed{_others(verbs)}", _ENVIRONMENT)
    if not words:
        print(_overview(verbs), file=sys.stderr)
        return _USAGE
    if words[0] in ("-h", "--help", "help"):
        print(_overview(verbs))
        return 0
    if words[0] in ("-V", "--version", "version"):
        print("\n".join(_versions(verbs)))
        return 0
    if words[0] not in verbs:
        near = difflib.get_close_matches(words[0], verbs, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"the commands are {', '.join(verbs)}{_others(verbs)}"
        return _refuse(f"unknown command {words[0]!r}; {hint}", _USAGE)
    return verbs[words[0]].load()(words)


def find_verbs() -> Mapping[str, EntryPoint]:
    """The verbs that installed distributions bring, by name."""
    return {point.name: point for point in sorted(entry_points(group=GROUP), key=lambda point: point.name)}


def _overview(verbs: Mapping[str, EntryPoint]) -> str:
    width = max(map(len, verbs))
    lines = [f"  {name:{width}}  {_distribution(point)}" for name, point in verbs.items()]
    return "\n".join(
        ["usage: kiln <command> [arguments]", "", *lines, "", "`kiln <command> --help` tells what a command does."]
    )


def _versions(verbs: Mapping[str, EntryPoint]) -> Iterator[str]:
    """A line for each distribution that brings verbs."""
    for name in sorted({_distribution(point) for point in verbs.values()}):
        try:
            yield f"{name} {version(name)}"
        except PackageNotFoundError:
            continue


def _others(verbs: Mapping[str, EntryPoint]) -> str:
    """What could be installed besides, if anything."""
    there = {_distribution(point) for point in verbs.values()}
    others = {name: what for name, what in _BROUGHT_BY.items() if name not in there}
    return f"; pip install {' or '.join(f'{name} ({what})' for name, what in others.items())}" if others else ""


def _distribution(point: EntryPoint) -> str:
    return point.dist.name if point.dist else ""


def _refuse(sentence: str, code: int) -> int:
    print(f"kiln: {sentence}", file=sys.stderr)
    return code
