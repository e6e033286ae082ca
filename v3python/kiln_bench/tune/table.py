"""From times to a tuning file: a configuration for each bin of a look-up, and the rules that say so. Needs no GPU."""

from __future__ import annotations

import collections
import itertools
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from kiln_bench.tune.measure import is_settled, winner
from kiln_recipe.errors import UsageError

Bin = tuple[tuple[str, int], ...]  # lower edges by axis
Place = tuple[str, Bin]  # a functional without its dtype, and a bin
Row = Mapping[str, Any]  # as tune.measure makes it of a call: functional; bins and microseconds by kernel
Rule = dict[str, Any]


def without_dtype(functional: str) -> str:
    """What is tuned for one dtype is for all: "head_dim=64 padded=false extras=none"."""
    return " ".join(word for word in functional.split() if not word.startswith("dtype="))


def place_of(row: Row, kernel: str) -> Place:
    return without_dtype(row["functional"]), tuple(row["bins"][kernel].items())


def gathered(rows: Iterable[Row], kernel: str) -> dict[Place, dict[str, float]]:
    """A kernel's configurations in each place: how many times as long as the fastest each takes, the geometric mean of
    the calls that lie there in which the kernel was raced to the end. One that some call was not measured with is left
    out, unless that leaves none."""
    calls: dict[Place, list[dict[str, float]]] = {}
    for row in rows:
        times = row["microseconds"].get(kernel)
        if times and is_settled(row, kernel):
            place = place_of(row, kernel)
            fastest = min(times.values())
            calls.setdefault(place, []).append({name: took / fastest for name, took in times.items()})
    found = {}
    for place, each in calls.items():
        common = [name for name in each[0] if all(name in one for one in each)] or [*each[0]]
        found[place] = {
            name: math.exp(statistics.fmean(math.log(one[name]) for one in each if name in one)) for name in common
        }
    return found


def agreement(rows: Iterable[Row], others: Iterable[Row], kernel: str) -> list[tuple[str, Place, float]]:
    """For each place that two runs have measured with more than one configuration: how many times as long as the
    fastest of the other run that takes which is the fastest of this run."""
    mine, theirs = gathered(rows, kernel), gathered(others, kernel)
    found = []
    for place, times in mine.items():
        there = theirs.get(place, {})
        best = min(times, key=lambda name: times[name])
        if len(times) > 1 and len(there) > 1:
            found.append((kernel, place, there.get(best, math.inf) / min(there.values())))
    return found


def agreement_of_calls(rows: Iterable[Row], others: Iterable[Row]) -> list[tuple[Row, float]]:
    """For each row that two runs have with more than one candidate: how many times as long as the fastest candidate of
    the other run, of whatever implementation, that takes which is the fastest of this run."""
    theirs = {_call_of(row): row for row in others}
    found = []
    for row in rows:
        there = theirs.get(_call_of(row))
        if there is None or min(map(_count, (row, there))) < 2:
            continue
        kernel, configuration = winner(row)
        best, name = winner(there)
        took = there["microseconds"].get(kernel, {}).get(configuration, math.inf)
        found.append((row, took / there["microseconds"][best][name]))
    return found


def _call_of(row: Row) -> tuple[str, str, str, str]:
    """What two runs have in common of a call's kernel, whichever implementation ran."""
    shape = json.dumps(row["shape"], sort_keys=True)
    return row["part"], shape, row["functional"], row["used"][0].partition(".")[0]


def _count(row: Row) -> int:
    """How many candidates were measured."""
    return sum(map(len, row["microseconds"].values()))


def choose(places: Mapping[Place, Mapping[str, float]], tolerance: float) -> dict[Place, str]:
    """The configuration of each place: of each functional as few different ones as the tolerance lets."""
    chosen = {}
    for functional in dict.fromkeys(functional for functional, _ in places):
        mine = {place: times for place, times in places.items() if place[0] == functional}
        good = {
            p: {c for c, t in times.items() if t <= min(times.values()) * (1 + tolerance)} for p, times in mine.items()
        }
        left = dict(mine)
        while left:  # greedily, the one that serves most places, and of equals the fastest in all

            def merit(name: str, left: Mapping = left, mine: Mapping = mine, good: Mapping = good) -> tuple[int, float]:
                total = sum(times.get(name, max(times.values())) / min(times.values()) for times in mine.values())
                return sum(name in good[place] for place in left), -total

            best = max(dict.fromkeys(c for times in left.values() for c in times), key=merit)
            for place in [place for place in left if best in good[place]]:
                chosen[place] = best
                del left[place]
    return chosen


def rules(axes: Mapping[str, Sequence[int]], chosen: Mapping[Place, str]) -> list[Rule]:
    """A kernel's rules: exceptions first; then what most bins take, for each functional of which all were measured."""
    total = math.prod(len(edges) + 1 for edges in axes.values())
    exceptions, defaults = [], []
    for functional in dict.fromkeys(functional for functional, _ in chosen):
        about = values(functional)
        mine = {place: name for (of, place), name in chosen.items() if of == functional}
        common = None
        if len(mine) == total:
            ((common, _),) = collections.Counter(mine.values()).most_common(1)
            defaults.append({"when": about, "use": values(common)})
        for place, name in mine.items():
            if name != common:
                spans = {axis: _span(axes[axis], lower) for axis, lower in place}
                exceptions.append({"when": {**about, **{a: s for a, s in spans.items() if s}}, "use": values(name)})
    return merged(exceptions) + defaults


def _span(edges: Sequence[int], lower: int) -> dict[str, int]:
    above = [edge for edge in edges if edge > lower]
    return ({"at_least": lower} if lower else {}) | ({"below": above[0]} if above else {})


def merged(given: Iterable[Rule]) -> list[Rule]:
    """Rules that differ in one axis alone and touch there become one, until none do."""
    found = list(given)
    while True:
        for one, other in itertools.permutations(found, 2):
            if set(one["when"]) != set(other["when"]) or one["use"] != other["use"]:
                continue
            differ = [name for name in one["when"] if one["when"][name] != other["when"][name]]
            if len(differ) == 1 and isinstance(one["when"][differ[0]], dict):
                low, high = one["when"][differ[0]], other["when"][differ[0]]
                if low.get("below") is not None and low.get("below") == high.get("at_least"):
                    span = {k: v for k, v in low.items() if k == "at_least"}
                    span |= {k: v for k, v in high.items() if k == "below"}
                    when = {k: v for k, v in one["when"].items() if k != differ[0]}
                    found[found.index(one)] = {"when": when | ({differ[0]: span} if span else {}), "use": one["use"]}
                    found.remove(other)
                    break
        else:
            return found


def covers(rule: Rule, other: Rule) -> bool:
    """Whether a rule fits wherever the other does, so that the other, behind it, decides nothing. What one cannot be
    sure of counts as no."""
    for name, wanted in rule.get("when", {}).items():
        there = other.get("when", {}).get(name)
        if isinstance(wanted, dict):
            if not isinstance(there, dict):
                return False
            if wanted.get("at_least", 0) > there.get("at_least", 0):
                return False
            if wanted.get("below", math.inf) < there.get("below", math.inf):
                return False
        elif there is None or [value for value in _listed(there) if not _is_in(value, _listed(wanted))]:
            return False
    return True


def _listed(value: object) -> list:
    return value if isinstance(value, list) else [value]


def _is_in(value: object, others: Sequence[object]) -> bool:
    """1 is not true."""
    return any(type(value) is type(other) and value == other for other in others)


def values(names: str) -> dict[str, int | bool | str]:
    """A configuration's or a functional's name as what a recipe says: "BLOCK_M=64 ADVANCE=true"."""
    return {name: yaml.safe_load(value) for name, value in (word.split("=") for word in names.split())}


def inline(value: object) -> str:
    """A value as one line of YAML."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6, sort_keys=False)
    return text.strip().removesuffix("...").strip()


@dataclass(frozen=True)
class Block:
    """Rules of one run by kernel, and where they come from, as kiln_recipe.documents.file.TuningRunShape has it; None:
    the file does not say."""

    kernels: Mapping[str, Sequence[Rule]]
    run: Mapping[str, Any] | None = None


def read_before(path: Path) -> list[Block]:
    """The rules of a tuning file, the latest first; none where there is no file.

    Raises:
        UsageError: it is something else, and stays.
    """
    if not path.is_file():
        return []
    try:
        found = yaml.safe_load(path.read_text("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError):
        found = None
    every = [found, *(found.get("earlier") or ())] if isinstance(found, dict) else [found]
    if not all(map(_has_rules, every)):
        raise UsageError(f"{path} exists and is not a tuning file, so it stays; give a name that does not exist yet")
    return [Block(one["kernels"], one.get("run")) for one in every]


def _has_rules(found: Any) -> bool:
    kernels = found.get("kernels") if isinstance(found, dict) else None
    return isinstance(kernels, dict) and all(isinstance(rules, list) for rules in kernels.values())


def file_text(found: Mapping[str, Sequence[Rule]], before: Sequence[Block], run: Mapping[str, Any]) -> str:
    """The tuning file.

    Args:
        found: new rules by kernel.
        before: those of the file that is replaced; they stay behind the new ones, each with the run that it comes from,
            without those that a newer one covers: the first that fits counts, so only the bins that were measured
            change.
        run: where, when and with what the new ones were found.
    """
    summary = f"Tuned on {run['device']}"
    lines = [f"summary: {inline(summary)}", f"run: {inline(dict(run))}", "kernels:"]
    lines += _listed_rules(found, "  ") or ["  {}"]
    newer = {kernel: list(rules) for kernel, rules in found.items()}
    earlier = []
    for block in before:
        left = {
            kernel: [rule for rule in rules if not any(covers(one, rule) for one in newer.get(kernel, ()))]
            for kernel, rules in block.kernels.items()
        }
        for kernel, rules in left.items():
            newer.setdefault(kernel, []).extend(rules)
        if listed := _listed_rules(left, "      "):
            about = [f"run: {inline(dict(block.run))}", "kernels:"] if block.run is not None else ["kernels:"]
            earlier += [f"  - {about[0]}", *(f"    {line}" for line in about[1:]), *listed]
    return "\n".join([*lines, *(["earlier:", *earlier] if earlier else [])]) + "\n"


def _listed_rules(by_kernel: Mapping[str, Sequence[Rule]], indent: str) -> list[str]:
    """Lines of YAML, each rule once; nothing of a kernel without rules."""
    lines = []
    for kernel, rules in by_kernel.items():
        if rules:
            lines += [f"{indent}{kernel}:", *(f"{indent}  - {rule}" for rule in dict.fromkeys(map(inline, rules)))]
    return lines
