"""`kiln tune`: the fastest configuration for each bin of a target's look-ups, on the GPU that is there."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln_bench import kept, shapes, timing
from kiln_bench.command import seconds
from kiln_bench.release import places
from kiln_recipe import targets
from kiln_recipe.console import usage
from kiln_recipe.console.files import check_new_file
from kiln_recipe.console.guard import run_verb
from kiln_recipe.console.progress import make_progress
from kiln_recipe.errors import EnvironmentProblem, UsageError

if TYPE_CHECKING:
    from kiln_bench.tune.session import Session

COMMAND = "kiln tune"
EXAMPLE = """\
kiln tune release.tar.gz --target sm_90 --shapes llm --budget 10m
kiln tune release.tar.gz --target sm_90 --check               samples calls, names those that could be faster
kiln tune --from sm_90.json --output sm_90.yaml               rules and plots of times that were kept; no GPU
kiln tune --from second.json --against first.json             whether two runs find the same"""
SUMMARY = "The fastest configuration for each bin of a target's look-ups, measured on the GPU that is there"
_SAMPLE_SECONDS = 60.0  # of --check without --budget


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "release", nargs="?", type=usage.filled("the release", places.RIGHT.removeprefix("give ")),
        help="a tarball, an unpacked release or a folder of wheels; of the full profile "
        "and built with KILN_CONFIGURATIONS=all, to choose among all",
    )  # fmt: skip
    parser.add_argument(
        "--target", type=usage.filled("--target", "the name of a target"), help="whose look-ups; the GPU must be of it",
    )  # fmt: skip
    parser.add_argument(
        "--shapes", type=usage.filled("--shapes", "a preset or a file"), metavar="NAME|FILE",
        help=f"the calls: {', '.join(shapes.PRESETS)}, or a file as `kiln bench` takes it; default: core",
    )  # fmt: skip
    parser.add_argument(
        "--budget", metavar="TIME", type=usage.filled("--budget", "a time such as 10m"),
        help="about how long it may take; the same command goes on from there; default: all calls, of --check 60s",
    )  # fmt: skip
    parser.add_argument(
        "--output", metavar="FILE.yaml", type=usage.path("--output", "the tuning file"),
        help="the tuning file; beside it, all times in a .json and their plots in an .svg; default: that of this "
        "checkout, tuning/<family>/<target>.yaml",
    )  # fmt: skip
    parser.add_argument(
        "--resume", metavar="FILE.json", type=usage.path("--resume", "the times of a run"),
        help="go on from these times; default: those beside the tuning file, if they are of the same images and GPU",
    )  # fmt: skip
    parser.add_argument(
        "--check", action="store_true",
        help="write nothing; of calls spread over all shapes, name those that take more than 3 %% longer than they "
        "could",
    )  # fmt: skip
    parser.add_argument(
        "--from", dest="kept", metavar="FILE.json", type=usage.path("--from", "the times of a run"),
        help="show times that were kept, and with --output write their rules and plots; measures nothing, needs no GPU",
    )  # fmt: skip
    parser.add_argument(
        "--against", metavar="FILE.json", type=usage.path("--against", "the times of another run"),
        help="in how many calls, and in how many bins of an implementation, what is fastest here is within 2 %% of the "
        "fastest there; less than 95 %% is a failure",
    )  # fmt: skip
    parser.add_argument(
        "--recipe", metavar="FILE", type=usage.path("--recipe", "the family's recipe.yaml"),
        help="the family's recipe; default: that of this Kiln",
    )  # fmt: skip
    parser.add_argument(
        "--tolerance", default="2", metavar="PERCENT", type=usage.filled("--tolerance", "a number of percent"),
        help="how much slower a configuration may be that other bins take too; default: 2",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print all times and the new rules as JSON, not a table")


def check(arguments: argparse.Namespace) -> None:
    """
    Raises:
        UsageError, EnvironmentProblem, ArtifactError, RecipeError: the words cannot be, or a file that they name.
    """
    from kiln_bench.tune import session

    if arguments.target:
        arguments.target = _target(arguments.target)
    measuring = {"release": arguments.release, "--target": arguments.target, "--shapes": arguments.shapes,
                 "--budget": arguments.budget, "--resume": arguments.resume, "--check": arguments.check}  # fmt: skip
    if arguments.kept:
        if given := [name for name, value in measuring.items() if value]:
            raise UsageError(f"--from shows what was measured before; leave {' and '.join(given)} out")
    elif missing := [name for name in ("release", "--target") if not measuring[name]]:
        raise UsageError(f"`{COMMAND}` lacks {' and '.join(missing)}; for example: `{EXAMPLE.splitlines()[0]}`")
    if arguments.check and (arguments.output or arguments.resume):
        raise UsageError("--check writes nothing and starts anew; leave --output and --resume out")
    arguments.tolerance = _share(arguments.tolerance)
    if not (arguments.kept or arguments.check or arguments.output):
        arguments.output = _usual_output(arguments.target)
    arguments.seconds = seconds(arguments.budget) if arguments.budget else _SAMPLE_SECONDS if arguments.check else None
    arguments.shapes = None if arguments.kept else shapes.read(arguments.shapes or "core")
    arguments.session = session.read(arguments.kept) if arguments.kept else None
    arguments.resume = session.read(arguments.resume) if arguments.resume else None
    arguments.against = session.read(arguments.against) if arguments.against else None
    _recipes()
    if arguments.output:
        _check_output(arguments.output)


def _target(word: str) -> str:
    """The name of the one target that a word means, "sm_90" of H100."""
    found = targets.parse(word)
    if len(found) > 1:
        names = ", ".join(target.name for target in found)
        raise UsageError(f"--target {word} means {names}, and `{COMMAND}` measures for one; give that of the GPU")
    return found[0].name


def _share(text: str) -> float:
    try:
        value = float(text) / 100
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise UsageError(f"--tolerance {text} is invalid; expected a number of percent from 0 to 99")
    return value


def _usual_output(target: str) -> Path:
    """A build reads tuned rules from its source tree, so from a checkout they go there.

    Raises:
        UsageError: this is no checkout.
    """
    root = Path(__file__).resolve().parents[3]
    if not (root / "tritonsrc/flash/recipe.yaml").is_file():
        raise UsageError(
            f"this Kiln is installed, and not a checkout with a tuning/flash/{target}.yaml; give --output FILE.yaml"
        )
    return root / "tuning/flash" / f"{target}.yaml"


def _check_output(output: Path) -> None:
    """Before hours of work: whether the three files may be written."""
    from kiln_bench.tune import page, session, table

    if output.suffix != ".yaml":
        raise UsageError(f"--output {output} is invalid; expected a file that ends in .yaml")
    check_new_file(output, Path.cwd(), "--output", b"", "tuning file")
    table.read_before(output)
    check_new_file(output.with_suffix(".json"), Path.cwd(), "the file of times", session.BEGIN, "file of the tuner")
    check_new_file(
        output.with_suffix(".svg"), Path.cwd(), "the page of plots", page.BEGIN.encode(), "page of `kiln tune`"
    )


def run(arguments: argparse.Namespace) -> int:
    from kiln_bench.tune import results, session

    recipe = _recipe(arguments.recipe)
    found, left = (arguments.session, 0) if arguments.kept else _measure(arguments, recipe)
    wanted = results.Wanted(arguments.output, arguments.tolerance, arguments.check, arguments.json, arguments.against)
    with kept.understood(arguments.kept, session.RIGHT) if arguments.kept else nullcontext():
        return results.finish(wanted, recipe, found, left)


def _measure(arguments: argparse.Namespace, recipe: Any) -> tuple[Session, int]:
    """What was found, and how many calls are left."""
    from kiln_bench.tune import session as sessions

    with places.found(arguments.release) as place, sessions.opened(place, arguments.target) as (libraries, about):
        import torch

        path = arguments.output.with_suffix(".json") if arguments.output else None
        session = sessions.begin(about, arguments.shapes.name, path, arguments.resume)
        tuner = sessions.tuner_of(libraries, recipe, about)
        session.roof = session.roof or sessions.roof(lambda works: timing.measured(works, 5, 20.0).milliseconds)
        l2_bytes = torch.cuda.get_device_properties().L2_cache_size
        with make_progress() as progress:
            wanted = sessions.Calls(arguments.shapes, spread=arguments.check, seconds=arguments.seconds)
            left = sessions.go_on(session, tuner, wanted, progress, l2_bytes)
    return session, left


def _recipes() -> Any:
    """The module that reads recipes.

    Raises:
        EnvironmentProblem: its packages are missing.
    """
    try:
        from kiln_recipe.read import recipe
    except ImportError as error:
        raise EnvironmentProblem(
            f"`{COMMAND}` reads a recipe, for which this Python lacks {error.name}: pip install PyYAML msgspec"
        ) from error
    return recipe


def _recipe(path: Path | None) -> Any:
    site = Path(__file__).resolve().parents[2]
    own = [site / "kiln/flash/recipe.yaml", site.parent / "tritonsrc/flash/recipe.yaml"]
    found = path or next((place for place in own if place.is_file()), None)
    if found is None:
        raise EnvironmentProblem("this Kiln has no recipe of attention; name one by --recipe")
    return _recipes().load(found)


def main(words: Sequence[str] | None = None) -> int:
    """The verb of the command `kiln`; the first word is its name."""
    return run_verb(sys.modules[__name__], "tune", words)
