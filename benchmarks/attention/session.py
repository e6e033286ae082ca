"""What speed.py and cached.py have in common: a run of rows on the GPU, kept anew after each."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from kiln_bench import capture, measure, shapes, state, timing
from kiln_bench.attention.row import DeviceFailed, Row, reason
from kiln_bench.command import seconds
from kiln_bench.release import headers, places
from kiln_bench.release.library import Libraries, Refused
from kiln_recipe.console.appear import appear
from kiln_recipe.errors import KilnError, NotServed, UsageError

TurnMs = Callable[[int], float]


class Entry(Protocol):
    """A row to be made."""

    @property
    def group(self) -> str: ...

    @property
    def part(self) -> str: ...

    @property
    def shape(self) -> Any: ...


class Makes(Protocol):
    """Makes rows of entries.

    Attributes:
        sides: labels by name.
    """

    sides: dict[str, str]

    def problem(self, entry: Any, before: Any) -> Any:
        """The tensors of a row; `before`: those of the row before it, or None."""

    def row(self, entry: Any, problem: Any, turn_ms: TurnMs) -> dict[str, Any]:
        """A row. turn_ms(sides): how long each may work in a round."""


def add_arguments(parser: argparse.ArgumentParser, parts: Sequence[str], budget: str) -> None:
    parser.add_argument("release", help="a tarball, an unpacked release or a folder of wheels")
    parser.add_argument("results", type=Path, help="the JSON to write, anew after each row")
    parser.add_argument("--parts", default=",".join(parts), help=f"some of {','.join(parts)}; default: all")
    parser.add_argument("--budget", default=budget, help=f"about how long all of it may take; default: {budget}")
    parser.add_argument(
        "--rounds", type=int, default=timing.ROUNDS, help=f"of turns, {timing.ROUNDS} or more; default: {timing.ROUNDS}"
    )


def check(parser: argparse.ArgumentParser, words: argparse.Namespace, parts: Sequence[str]) -> None:
    """Turns words into what `run` takes; ends the program where they cannot be."""
    if words.rounds < timing.ROUNDS:
        parser.error(f"--rounds: {words.rounds} are too few for quartiles; {timing.ROUNDS} or more are right")
    words.parts = words.parts.split(",")
    if unknown := set(words.parts) - set(parts):
        parser.error(f"--parts: unknown {', '.join(sorted(unknown))}; the parts are {', '.join(parts)}")
    try:
        words.seconds = seconds(words.budget)
    except UsageError as error:
        parser.error(str(error))


def ended(parser: argparse.ArgumentParser, run: Callable[[], bool]) -> int:
    """The exit code of a run: 0 if all is measured and right, else 1, and that of a failure, which is said."""
    try:
        return 0 if run() else 1
    except KilnError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return error.exit_code


def left_out(entry: Entry, why: str) -> dict[str, Any]:
    return Row(entry.part, entry.shape, more={"skipped": why, "group": entry.group}).as_dict()


def attempt(makes: Makes, entry: Entry, before: Any, turn_ms: TurnMs) -> tuple[dict[str, Any], Any]:
    """A row, and its tensors for the next one. What fails for itself, if memory runs out or a call that a row is set
    against is refused or wrong, leaves out this row alone."""
    try:
        problem = makes.problem(entry, before)
        return makes.row(entry, problem, turn_ms), problem
    except DeviceFailed:
        raise
    except (RuntimeError, Refused) as error:
        return left_out(entry, reason(error, [])), None


def run(
    words: argparse.Namespace, made_by: str, peers: Sequence[str], todo: Sequence[Entry], beside: int,
    makes_of: Callable[[Libraries, Callable[[], None]], Makes],
) -> bool:  # fmt: skip
    """Whether all rows were measured, and right.

    Args:
        made_by: what the results say of who made them.
        peers: libraries beside Kiln, by their names.
        beside: sides that a row may have besides those that turn_ms is asked for.
        makes_of: of a release's libraries, and of what is to be called while the device works.
    """
    budget = timing.Budget(words.seconds, len(todo))
    measure.check_device(made_by)
    with (
        capture.own_stream(),
        places.found(words.release) as place,
        Libraries(place.libraries, headers.read(place.headers)) as libraries,
    ):
        device = libraries.devices()[torch.cuda.current_device()]
        if device["refusal"]:
            raise NotServed(f"{place.name} cannot run on this GPU, {device['name']}: {device['refusal']}")
        target = device["target"]
        fact = {"side": "kiln", "release": place.name, "version": libraries.version, "target": target,
                "pack": place.pack(target)}  # fmt: skip
        named = shapes.Shapes("of the program", (), (), ())
        wanted = measure.Wanted(named, (), peers, words.rounds, budget.remaining)
        results: dict[str, Any] = {
            "made_by": made_by, "format": measure.FORMAT, "about": measure.about(wanted, [fact], target),
            "sides": {}, "absent": {}, "clocks": [], "rows": [],
        }  # fmt: skip
        looked = 0.0

        def look() -> None:
            nonlocal looked
            if time.monotonic() - looked > 1.0:
                results["clocks"].append(state.of_torch().get("clocks.sm", ""))
                looked = time.monotonic()

        makes = makes_of(libraries, look)
        results["sides"] = makes.sides
        problem: Any = None
        is_whole = True

        def turn_ms(sides: int) -> float:
            return budget.turn_ms(sides + beside, words.rounds)

        for entry in todo:
            began = time.monotonic()
            if budget.is_used_up:
                row = left_out(entry, "the budget is used up")
            else:
                row, problem = attempt(makes, entry, problem, turn_ms)
            results["rows"].append(row | {"seconds": round(time.monotonic() - began, 3)})
            budget.row_done()
            with appear(words.results) as fresh:
                fresh.write_text(json.dumps(results) + "\n")
            trouble = row["wrong"] or row.get("skipped") or row.get("not_captured", "")
            is_whole = is_whole and not row["wrong"] and not row.get("skipped")
            print(f"{budget.spent:.0f} s: {entry.part}, {entry.shape}", trouble, flush=True)
    return is_whole
