"""From times to a tuning file: chooses a configuration for each bin of a look-up, writes the rules. Needs no GPU."""

from __future__ import annotations

import collections
import itertools
import sys
from pathlib import Path

import yaml

sys.path.append(str(Path(__file__).resolve().parents[2] / "v3python"))

from kiln_recipe.documents import document
from kiln_recipe.documents.file import RecipeShape


def edges(recipe: Path, operation: str, kernel: str) -> dict[str, list[int]]:
    """The bins of a kernel's look-up, as its recipe has them; `attn_fwd.general` is an implementation's."""
    name, _, implementation = kernel.partition(".")
    written = document.read(recipe, RecipeShape).value.operations[operation].kernels[name]
    lookup = written.implementations[implementation].lookup if implementation else written.lookup
    return {axis: list(entry.edges) for axis, entry in lookup.items()}


def choose(rows: list[dict], tolerance: float) -> dict[tuple, str]:
    """The configuration of each (functional, bin): as few different ones as the tolerance lets."""
    chosen = {}
    for name in {row["functional"]: None for row in rows}:
        mine = [row for row in rows if row["functional"] == name]
        good = [
            {c for c, t in row["microseconds"].items() if t <= min(row["microseconds"].values()) * (1 + tolerance)}
            for row in mine
        ]
        left = set(range(len(mine)))
        while left:  # greedily, the one that serves most bins, and of equals the fastest in all

            def merit(configuration: str, left: set[int] = left, mine: list[dict] = mine, good: list[set] = good):
                total = sum(row["microseconds"][configuration] / min(row["microseconds"].values()) for row in mine)
                return sum(configuration in good[i] for i in left), -total

            best = max(mine[0]["microseconds"], key=merit)
            served = {i for i in left if best in good[i]}
            for i in served:
                chosen[name, tuple(mine[i]["bin"].values())] = best
            left -= served
    return chosen


def make(axes: dict[str, list[int]], rows: list[dict], chosen: dict[tuple, str]) -> list[dict]:
    """A kernel's rules: exceptions first, then for each functional what most bins take; of whatever dtype."""
    exceptions, defaults = [], []
    for name in {row["functional"]: None for row in rows}:
        about = {choice: value for choice, value in values(name).items() if choice != "dtype"}
        mine = {place: c for (functional, place), c in chosen.items() if functional == name}
        ((common, _),) = collections.Counter(mine.values()).most_common(1)
        for place, configuration in mine.items():
            if configuration == common:
                continue
            when = dict(about)
            for (axis, known), lower in zip(axes.items(), place):
                above = [edge for edge in known if edge > lower]
                when[axis] = ({"at_least": lower} if lower else {}) | ({"below": above[0]} if above else {})
            exceptions.append({"when": when, "use": values(configuration)})
        defaults.append({"when": about, "use": values(common)})
    return merged(exceptions) + defaults


def merged(rules: list[dict]) -> list[dict]:
    """Rules that differ in one axis alone and touch there become one, until none do."""
    rules = list(rules)
    while True:
        for one, other in itertools.permutations(rules, 2):
            if set(one["when"]) != set(other["when"]):
                continue
            differ = [name for name in one["when"] if one["when"][name] != other["when"][name]]
            if one["use"] == other["use"] and len(differ) == 1 and isinstance(one["when"][differ[0]], dict):
                axis = differ[0]
                low, high = one["when"][axis], other["when"][axis]
                if low.get("below") is not None and low.get("below") == high.get("at_least"):
                    span = {k: v for k, v in low.items() if k == "at_least"}
                    span |= {k: v for k, v in high.items() if k == "below"}
                    when = {k: v for k, v in one["when"].items() if k != axis} | ({axis: span} if span else {})
                    rules[rules.index(one)] = {"when": when, "use": one["use"]}
                    rules.remove(other)
                    break
        else:
            return rules


def values(names: str) -> dict[str, int | bool | str]:
    """A configuration's or a functional's name as what a recipe says: "BLOCK_M=64 ADVANCE=true"."""
    return {name: yaml.safe_load(value) for name, value in (word.split("=") for word in names.split())}


def inline(value: object) -> str:
    """A value as one line of YAML."""
    return (
        yaml.safe_dump(value, default_flow_style=True, width=10**6, sort_keys=False).strip().removesuffix("...").strip()
    )


def tuning_file(rules: dict[str, list[dict]], about: dict) -> str:
    """`rules`: of each kernel; `about`: the run that made them."""
    comment = (
        f"# Made by benchmarks/tune/run.py on {about['date']}: {about['device']}, driver {about['driver']}, SM clock "
        f"{about['clock']} after the run, release {about['release']}.\n"
    )
    kernels = "".join(
        f"  {kernel}:\n" + "".join(f"    - {inline(rule)}\n" for rule in mine) for kernel, mine in rules.items() if mine
    )
    return f"{comment}summary: {inline('Tuned on ' + about['device'])}\nkernels:\n" + (kernels or "  {}\n")
