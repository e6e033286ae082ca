"""What comes of times: a table or JSON, the tuning file, the page of plots; and whether something is wrong."""

from __future__ import annotations

import collections
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln_bench import kept, shapes
from kiln_bench.tune import candidates, page
from kiln_bench.tune import table as tables
from kiln_bench.tune.measure import loss, winner
from kiln_bench.tune.session import MADE_BY, RIGHT, Session
from kiln_recipe.console.appear import write_whole
from kiln_recipe.console.spelling import print_text, say
from kiln_recipe.console.tables import few, table
from kiln_recipe.errors import NotServed, WrongResult

if TYPE_CHECKING:
    from kiln_recipe.model import Recipe

LARGEST_LOSS = 0.03  # that --check lets pass
ALIKE, LEAST_ALIKE = 0.02, 0.95  # of two runs: how much slower, in which share of bins
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Wanted:
    """What is to come of times.

    Attributes:
        output: the tuning file; None: nothing is written.
        tolerance: as table.choose.
        is_check: the release's own choices are judged.
        is_json: JSON is printed, not a table.
        against: another run.
    """

    output: Path | None
    tolerance: float
    is_check: bool = False
    is_json: bool = False
    against: Session | None = None


def finish(wanted: Wanted, recipe: Recipe, session: Session, left: int) -> int:
    """Prints what was found, and writes what is to be written.

    Args:
        left: how many calls no time was left for.

    Raises:
        WrongResult: images gave wrong results.
        NotServed: there is nothing to choose, or a check found something.
    """
    rows = session.rows
    chosen = choices(recipe, rows, wanted.tolerance)
    found = rules(recipe, chosen)
    if wanted.is_json:
        print(json.dumps({**session.document(), "left": left, "rules": found}, indent=1))
    else:
        print_text(_table(rows))
    for line in refusals(session):
        say(line)
    if left and wanted.is_check:
        say(f"a sample of {len(session.done)} of {len(session.done) + left} calls; --budget gives it more time")
    elif left:
        say(f"{left} calls are left; the same command goes on with them")
    if rows and wanted.output:
        files = {".yaml": text_of(found, session, wanted.output), ".svg": page.text(session, chosen, recipe)}
        for suffix, text in files.items():
            write_whole(wanted.output.with_suffix(suffix), text)
            say(f"wrote {wanted.output.with_suffix(suffix)}")
    _judge(wanted, recipe, session)
    return 0


def refusals(session: Session) -> list[str]:
    """What was not measured since it was refused, a sentence for each reason: calls; images beside those that ran."""
    found = []
    calls = collections.Counter(row["why"] for row in session.refused)
    for why, count in calls.items():
        named = [_title(row) for row in session.refused if row["why"] == why]
        found.append(f"{count} of {len(session.done) + len(session.refused)} calls refused: {why} ({few(named)})")
    images = collections.Counter(
        (title.partition(":")[0], why) for row in session.rows for title, why in row.get("refused", {}).items()
    )
    found += [f"{kernel} refused {count} times where another ran: {why}" for (kernel, why), count in images.items()]
    return found


def _judge(wanted: Wanted, recipe: Recipe, session: Session) -> None:
    rows = session.rows
    if wrong := [f"{name}: {why}" for row in rows for name, why in row["wrong"].items()]:
        raise WrongResult(f"images gave wrong results: {few(wrong)}")
    if not rows:
        raise NotServed(
            "no call could be run by more than one image, so there is nothing to choose; build the release with "
            "KILN_CONFIGURATIONS=all"
        )
    slow = [row for row in rows if loss(row) > LARGEST_LOSS]
    if wanted.is_check and slow:
        raise NotServed(
            f"{len(slow)} of {len(rows)} take more than {LARGEST_LOSS:.0%} longer than they could: "
            f"{few(map(_title, slow))}"
        )
    if wanted.against is not None:
        with kept.understood("the file of --against", RIGHT):
            _compare(recipe, rows, wanted.against.rows)


def _compare(recipe: Recipe, rows: Rows, others: Rows) -> None:
    """Says in how many calls the fastest of a run, of all implementations, is among the fastest of another; and in how
    many bins of each implementation its fastest configuration is."""
    calls = tables.agreement_of_calls(rows, others)
    if not calls:
        raise NotServed("the two runs have no call in common, so they cannot be compared; measure the same --shapes")
    bins = [pair for name in candidates.kernels(recipe) for pair in tables.agreement(rows, others, name)]
    counts = collections.Counter(kernel for kernel, _, _ in bins)
    by_kernel = f" ({', '.join(f'{count} of {kernel}' for kernel, count in counts.items())})" if counts else ""
    named = [(f"{_title(row)}, {row['used'][0].partition('.')[0]}", times) for row, times in calls]
    found = [_alike(f"{len(calls)} times that a kernel could be chosen", "image", named)]
    if bins:
        named = [(f"{kernel} {place[0]} {dict(place[1])}", times) for kernel, place, times in bins]
        found.append(_alike(f"{len(bins)} bins{by_kernel}", "configuration of an implementation", named))
    if too_few := [sentence for sentence, is_enough in found if not is_enough]:
        raise NotServed("; and ".join(too_few))
    for sentence, _ in found:
        say(sentence)


def _alike(of: str, what: str, named: Sequence[tuple[str, float]]) -> tuple[str, bool]:
    """A sentence, and whether enough of what is named takes about the least time: each with the times as long as the
    fastest of the other run that it takes."""
    apart = [name for name, times in named if times > 1 + ALIKE]
    share = 1 - len(apart) / len(named)
    sentence = f"in {share:.1%} of {of} the fastest {what} is within {ALIKE:.0%} of the fastest of the other run"
    if share < LEAST_ALIKE:
        return f"{sentence}, which is less than {LEAST_ALIKE:.0%}; not in {few(apart)}", False
    return sentence, True


def choices(recipe: Recipe, rows: Rows, tolerance: float) -> dict[str, dict[tables.Place, str]]:
    """By kernel what each place takes; kernels that were not measured are not there."""
    places = {name: tables.gathered(rows, name) for name in candidates.kernels(recipe)}
    return {name: tables.choose(each, tolerance) for name, each in places.items() if each}


def rules(recipe: Recipe, chosen: Mapping[str, Mapping[tables.Place, str]]) -> dict[str, list[tables.Rule]]:
    """By kernel the rules by which a look-up chooses so."""
    kernels = candidates.kernels(recipe)
    axes = {name: {axis.name: list(axis.edges) for axis in kernels[name].bins} for name in chosen}
    return {name: tables.rules(axes[name], places) for name, places in chosen.items()}


def text_of(found: Mapping[str, Sequence[tables.Rule]], session: Session, output: Path) -> str:
    """The tuning file: the rules found, before those of the file that is there."""
    about = session.about
    spreads = [value for row in session.rows for each in row["spread"].values() for value in each.values()]
    keys = dict.fromkeys(k for row in session.rows for each in row.get("keys", {}).values() for k in each.values())
    # Of a row whose keys were not kept nobody could say when it is outdated.
    are_known = all("keys" in row for row in session.rows)
    spread = f"{statistics.median(spreads):.1%} in the median, {max(spreads):.1%} at most"
    run = {
        "by": f"{MADE_BY} --shapes {session.shapes}", "date": session.date, "device": about["device"],
        "driver": about["driver"], "clock": page.clocks(session), "release": about["release"], "pack": about["pack"],
        "calls": len(session.done), "spread": spread,
    }  # fmt: skip
    run |= {"images": [*keys]} if are_known else {"outdated": True}
    return tables.file_text(found, tables.read_before(output), run)


def _table(rows: Rows) -> str:
    body = []
    for row in rows:
        if not row["microseconds"]:
            continue
        kernel, configuration = winner(row)
        took = row["microseconds"][kernel][configuration]
        used = "" if [kernel, configuration] == row["used"] else " ".join(row["used"])
        body.append([_title(row), kernel, configuration, f"{took:.1f}", f"{loss(row):.1%}", used])
    return table(["call", "kernel", "fastest", "µs", "lost", "instead of"], body, right=["µs", "lost"])


def _title(row: Mapping[str, Any]) -> str:
    return f"{row['part']}, {shapes.of_row(row)}"
