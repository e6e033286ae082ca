"""`python -m kiln_bench.tune`: the fastest configuration for each bin of a look-up, on the GPU that is there."""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from kiln_bench import shapes, timing
from kiln_bench.command import seconds
from kiln_bench.release import places
from kiln_recipe.console import usage
from kiln_recipe.console.appear import appear
from kiln_recipe.console.files import check_new_file
from kiln_recipe.console.guard import guarded
from kiln_recipe.console.progress import make_progress
from kiln_recipe.console.spelling import say
from kiln_recipe.console.tables import table
from kiln_recipe.errors import EnvironmentProblem, NotServed, UsageError, WrongResult

COMMAND = "python -m kiln_bench.tune"
EXAMPLE = f"""\
{COMMAND} release.tar.gz --target sm_90 --shapes llm --budget 10m
{COMMAND} release.tar.gz --target sm_90 --check      names calls that could be faster"""
SUMMARY = "The fastest configuration for each bin of a target's look-ups, measured on the GPU that is there"
LARGEST_LOSS = 0.03  # that --check lets pass


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "release", type=usage.filled("the release", places.RIGHT.removeprefix("give ")),
        help="a tarball, an unpacked release or a folder of wheels; of the full profile, to choose among all",
    )  # fmt: skip
    parser.add_argument(
        "--target", required=True, type=usage.filled("--target", "the name of a target"),
        help="whose look-ups; the GPU must be of it",
    )  # fmt: skip
    parser.add_argument(
        "--shapes", default="core", type=usage.filled("--shapes", "a preset or a file"), metavar="NAME|FILE",
        help="the calls, as `kiln bench` takes them; default: core",
    )  # fmt: skip
    parser.add_argument(
        "--budget", metavar="TIME", type=usage.filled("--budget", "a time such as 10m"),
        help="about how long it may take; the same command goes on from there",
    )  # fmt: skip
    parser.add_argument(
        "--output", metavar="FILE.yaml", type=usage.path("--output", "the tuning file"),
        help="the tuning file, beside which all times are kept; default: tuning/flash/<target>.yaml",
    )  # fmt: skip
    parser.add_argument(
        "--recipe", metavar="FILE", type=usage.path("--recipe", "the family's recipe.yaml"),
        help="the family's recipe; default: that of this Kiln",
    )  # fmt: skip
    parser.add_argument(
        "--tolerance", default="2", metavar="PERCENT", type=usage.filled("--tolerance", "a number of percent"),
        help="how much slower a configuration may be that other bins take too; default: 2",
    )  # fmt: skip
    parser.add_argument(
        "--check", action="store_true", help="write nothing; name calls that take more than 3 %% longer than they could"
    )


def check(arguments: argparse.Namespace) -> None:
    """
    Raises:
        UsageError, EnvironmentProblem: the words cannot be.
    """
    from kiln_bench.tune.session import BEGIN

    arguments.seconds = seconds(arguments.budget) if arguments.budget else None
    arguments.tolerance = _share(arguments.tolerance)
    arguments.shapes = shapes.read(arguments.shapes)
    arguments.output = arguments.output or Path("tuning/flash", f"{arguments.target}.yaml")
    if arguments.output.suffix != ".yaml":
        raise UsageError(f"--output {arguments.output} is invalid; expected a file that ends in .yaml")
    arguments.kept = None
    if not arguments.check:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        kept = arguments.output.with_suffix(".json")
        arguments.kept = check_new_file(kept, Path.cwd(), "the file of times", BEGIN, "file of the tuner")


def _share(text: str) -> float:
    try:
        value = float(text) / 100
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise UsageError(f"--tolerance {text} is invalid; expected a number of percent from 0 to 99")
    return value


def run(arguments: argparse.Namespace) -> int:
    recipe = _recipe(arguments.recipe)
    from kiln_bench.tune import session as sessions

    with places.found(arguments.release) as place, sessions.opened(place, arguments.target) as (libraries, about):
        import torch

        session = sessions.Session(about, arguments.kept)
        tuner = sessions.tuner_of(libraries, recipe, about)
        l2_bytes = torch.cuda.get_device_properties().L2_cache_size
        with make_progress() as progress:
            left = sessions.go_on(session, tuner, arguments.shapes, arguments.seconds, progress, l2_bytes)
    return finish(arguments, recipe, session.about, session.rows, session.clocks, left)


def finish(
    arguments: argparse.Namespace, recipe: Any, about: Mapping[str, Any], rows: Sequence[Mapping[str, Any]],
    clocks: Sequence[str], left: int,
) -> int:  # fmt: skip
    """Prints what was found, and writes the tuning file unless it was only to be checked."""
    from kiln_bench.tune.measure import loss

    print(_table(rows))
    if left:
        say(f"{left} calls are left; the same command goes on with them")
    if rows and not arguments.check:
        with appear(arguments.output) as fresh:
            fresh.write_text(_file(arguments, recipe, about, rows, clocks), "utf-8")
        print(arguments.output)
    wrong = dict.fromkeys(f"{name}: {why}" for row in rows for name, why in row["wrong"].items())
    if wrong:
        raise WrongResult(f"images gave wrong results: {'; '.join(wrong)}")
    if not rows:
        raise NotServed("no call could be run by more than one image, so there is nothing to choose")
    if arguments.check and (slow := [row for row in rows if loss(row) > LARGEST_LOSS]):
        raise NotServed(f"{len(slow)} of {len(rows)} take more than {LARGEST_LOSS:.0%} longer than they could")
    return 0


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    from kiln_bench.tune.measure import loss, winner

    body = []
    for row in rows:
        if not row["microseconds"]:
            continue
        kernel, configuration = winner(row)
        took = row["microseconds"][kernel][configuration]
        title = f"{row['part']}, {shapes.of_row(row)}"
        used = "" if [kernel, configuration] == row["used"] else " ".join(row["used"])
        body.append([title, kernel, configuration, f"{took:.1f}", f"{loss(row):.1%}", used])
    return table(["call", "kernel", "fastest", "µs", "lost", "instead of"], body, right=["µs", "lost"])


def _file(
    arguments: argparse.Namespace, recipe: Any, about: Mapping[str, Any], rows: Sequence[Mapping[str, Any]],
    clocks: Sequence[str],
) -> str:  # fmt: skip
    import yaml

    from kiln_bench.tune import candidates
    from kiln_bench.tune import table as tables

    before: Mapping[str, Any] = {}
    if arguments.output.is_file():
        before = (yaml.safe_load(arguments.output.read_text()) or {}).get("kernels") or {}
    found = {}
    for name, kernel in candidates.kernels(recipe).items():
        places_of = tables.gathered(rows, name)
        axes = {axis.name: list(axis.edges) for axis in kernel.bins}
        found[name] = tables.rules(axes, tables.choose(places_of, arguments.tolerance)) if places_of else []
    seen = sorted({int(text.split()[0]) for text in clocks})
    spreads = [value for row in rows for each in row["spread"].values() for value in each.values()]
    said = (
        f"Made by `{COMMAND} --shapes {arguments.shapes.name}` on {datetime.now(timezone.utc):%Y-%m-%d}: "
        f"{about['device']}, driver {timing.nvidia_smi().get('driver_version', 'unknown')}, SM clock "
        f"{f'{seen[0]} to {seen[-1]} MHz' if seen else 'unknown'}, release {about['release']}.\n"
        f"{len(rows)} calls; quartiles of a candidate differ by {statistics.median(spreads):.1%} in the median. "
        f"Pack: sha256 {about['pack']}."
    )
    return tables.file_text(found, before, said, about["device"])


def _recipe(path: Path | None) -> Any:
    try:
        from kiln_recipe.read import recipe
    except ImportError as error:
        raise EnvironmentProblem(
            f"{COMMAND} reads a recipe, for which this Python lacks {error.name}: pip install PyYAML msgspec"
        ) from error
    site = Path(__file__).resolve().parents[2]
    own = [site / "kiln/flash/recipe.yaml", site.parent / "tritonsrc/flash/recipe.yaml"]
    found = path or next((place for place in own if place.is_file()), None)
    if found is None:
        raise EnvironmentProblem("this Kiln has no recipe of attention; name one by --recipe")
    return recipe.load(found)


def main(words: Sequence[str] | None = None) -> int:
    """Runs it on words, the first of which is its name; returns the exit code."""

    def begun(words: list[str]) -> int:
        parser = usage.Parser(COMMAND, SUMMARY, EXAMPLE)
        add_arguments(parser)
        arguments = parser.read(words[1:])
        if arguments is None:
            return 0
        check(arguments)
        return run(arguments)

    return guarded(begun, ["tune", *sys.argv[1:]] if words is None else words)
