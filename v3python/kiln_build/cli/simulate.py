"""`kiln simulate`: how long a build takes on so many workers, by the farm's own scheduler over simulated time."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from kiln_build.base import ROOT
from kiln_build.cli import plan
from kiln_build.options import options
from kiln_recipe.console.files import check_apart, check_new_file, kind_of
from kiln_recipe.console.spelling import print_text, say
from kiln_recipe.console.tables import plural, print_json
from kiln_recipe.console.usage import count, filled, number, several
from kiln_recipe.errors import EnvironmentProblem, UsageError

if TYPE_CHECKING:
    from kiln_build.foresight.costs import Costs
    from kiln_build.foresight.matrix import Matrix
    from kiln_build.foresight.show import Case, Subject
    from kiln_build.foresight.simulate import Work

EXAMPLE = """\
kiln simulate sm_90 --workers 8,64 --store workspace     by the durations that a store has recorded
kiln simulate all --profile full --workers 64 --cache-hit 0,0.9 --spot 0.05 --price 0.04
kiln simulate --matrix aotriton --workers 8,64,512,4096 --plot makespan.svg    271,294 images
kiln simulate --matrix my-matrix.yaml --workers 512 --json"""

_MATRIX = "a file that describes one, or aotriton"
_MOST_WORKERS = 100_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    plan.add_release(parser, "simulate", "its durations are used")
    parser.add_argument(
        "--matrix", type=filled("--matrix", _MATRIX), metavar="FILE",
        help=f"instead of a release the images of a matrix: {_MATRIX}, which has the size of AOTriton's",
    )  # fmt: skip
    parser.add_argument(
        "--workers", type=several("--workers", count("--workers", _MOST_WORKERS)), default=[8, 64, 512, 4096],
        metavar="N,N",
        help="compiles at once, each on a core; default: 8,64,512,4096",
    )  # fmt: skip
    parser.add_argument(
        "--cache-hit", type=several("--cache-hit", number("--cache-hit", 0, 1)), default=[0.0], metavar="SHARE,SHARE",
        help="shares of the images that a cache has; default: 0",
    )  # fmt: skip
    parser.add_argument(
        "--spot", type=number("--spot", 0, 100), default=0.0, metavar="RATE",
        help="workers that are lost in an hour, for each that runs; default: 0",
    )  # fmt: skip
    parser.add_argument("--price", type=number("--price", 0, 1e6), help="of a core-hour, in any currency")
    parser.add_argument(
        "--durations", type=filled("--durations", "a store's file `durations`"), metavar="FILE",
        help="what variants took: a store's file `durations`, or a build's .timeline.json; default: the store's",
    )  # fmt: skip
    parser.add_argument(
        "--cost", action="append", default=[], type=filled("--cost", "for example transfer=0.05"),
        metavar="NAME=VALUE", help="another value in place of a measured one, of those that --json lists; may be "
        "repeated",
    )  # fmt: skip
    parser.add_argument("--seed", type=count("--seed", 10**9 - 1, 0), default=0, help="of what is lost and cached")
    parser.add_argument(
        "--plot", type=filled("--plot", "the SVG file to write"), metavar="FILE", help="draw time by workers, as SVG"
    )
    parser.add_argument(
        "--html", type=filled("--html", "the file to write"), metavar="FILE", help="write a page with the forecasts"
    )
    parser.add_argument("--json", action="store_true", help="as JSON: the forecasts, and what they were made of")


def check(arguments: argparse.Namespace) -> None:
    if arguments.matrix is None:
        plan.check(arguments)
    else:
        options.check_environment()
        given = {
            "targets": arguments.targets, "--profile": arguments.profile, "--configurations": arguments.configurations,
            "--select": arguments.select, "--recipe": arguments.recipe, "--family": arguments.family,
            "--tuning": arguments.tuning, "--durations": arguments.durations, "--store": arguments.store,
        }  # fmt: skip
        for name, value in given.items():
            if value:
                raise UsageError(f"--matrix says what is compiled and how long that takes; leave {name} out")
    if arguments.plot and not arguments.plot.endswith(".svg"):
        raise UsageError(f"--plot {arguments.plot} is not the name of an SVG file; give one that ends in .svg")


def check_files(arguments: argparse.Namespace) -> None:
    from kiln_build.origin import records
    from kiln_build.release import families

    if arguments.matrix:
        _matrix(arguments.matrix)
    else:
        families.choose(ROOT, plan.read_asked(arguments))
    if arguments.durations:
        records.read(Path(arguments.durations))


def run(arguments: argparse.Namespace) -> int:
    from kiln_build.foresight import page, picture, show  # here, so that --help needs no package
    from kiln_build.pages import document

    costs = _costs(arguments.cost)
    if arguments.plot:
        kind = "plot of `kiln simulate`"
        plot = check_new_file(arguments.plot, Path.cwd(), "--plot", picture.BEGIN.encode(), kind)
    if arguments.html:
        html = document.check_place(arguments.html, page.COMMAND, [])
    if arguments.plot and arguments.html:
        check_apart({"--plot": plot, "--html": html})
    subject, works, known = _described(arguments.matrix) if arguments.matrix else _planned(arguments)
    if not works:
        raise UsageError("there is no image to compile; `kiln plan` with the same options says why")
    cases = _simulate(arguments, works, known, costs)
    if arguments.plot:
        picture.write(plot, subject, cases)
    if arguments.html:
        document.write(html, page.page(subject, cases, costs, arguments.seed, arguments.spot))
    if arguments.json:
        print_json(show.document(subject, cases, costs, arguments.seed, arguments.spot))
    else:
        for line in show.lines(subject, cases):
            print_text(line)
    return 0


def _costs(words: list[str]) -> Costs:
    from kiln_build.foresight.costs import Costs

    usual = dataclasses.asdict(Costs())
    changed = {}
    for word in words:
        name, _, value = word.partition("=")
        if name not in usual:
            raise UsageError(f"--cost {word} names no cost; give one of {', '.join(usual)}, as transfer=0.05")
        if name in changed:
            raise UsageError(f"--cost {name} is given twice; give it once")
        try:
            changed[name] = type(usual[name])(value)
        except ValueError:
            changed[name] = -1
        least = 1 if name == "packers" else 0
        if not least <= changed[name] <= 10**9:
            what = f"a whole number from {least} on" if isinstance(usual[name], int) else "a number of seconds"
            raise UsageError(f"--cost {word} is invalid; expected {what} behind {name}=")
    return dataclasses.replace(Costs(), **changed)


def _matrix(word: str) -> Matrix:
    from kiln_build.foresight import matrix

    path = matrix.AOTRITON if word == "aotriton" else Path(word)
    if not path.is_file():
        what = f"is {kind_of(path)}" if os.path.lexists(path) else "does not exist"
        raise EnvironmentProblem(f"--matrix {word} {what}; give {_MATRIX}")
    return matrix.read(path)


def _described(word: str) -> tuple[Subject, list[Work], None]:
    """The images of a matrix; an earlier build has recorded what each takes."""
    from kiln_build.foresight import show

    found = _matrix(word)
    works = found.works()
    seconds = [work.seconds for work in works]
    return show.Subject(found.name, len(works), sum(seconds), max(seconds), {}, "as described"), works, None


def _planned(arguments: argparse.Namespace) -> tuple[Subject, list[Work], dict[str, float]]:
    """The images of a release, each once, and what a store has recorded."""
    from kiln_build.farm.durations import Basis, Durations
    from kiln_build.foresight import show
    from kiln_build.foresight.simulate import Work
    from kiln_build.origin import records

    asked = plan.read_asked(arguments)
    the_plan = plan.make(arguments, asked)
    for warning in the_plan.warnings:
        say(f"warning: {warning}")
    if arguments.durations:
        recorded = records.read(Path(arguments.durations), say)
    else:
        store = plan.open_there(arguments.store, asked.store)
        recorded = store.durations() if store else {}
    durations = Durations(recorded)
    bases: Counter[Basis] = Counter()
    works: dict[str, Work] = {}
    for variant in the_plan.variants:
        key = variant.spec.key("")
        if key not in works:
            seconds, basis = durations(variant)
            bases[basis] += 1
            works[key] = Work(variant.name, seconds)
    names = [target.name for target in the_plan.targets]
    where = f"{len(names)} targets" if len(names) > 3 else ", ".join(names)
    took = [work.seconds for work in works.values()]
    subject = show.Subject(
        f"profile {the_plan.profile} for {where}", len(works), sum(took), max(took, default=0.0),
        {basis.value: bases[basis] for basis in Basis}, plan.spell_bases(bases),
    )  # fmt: skip
    return subject, list(works.values()), durations.known


def _simulate(
    arguments: argparse.Namespace, works: list[Work], known: dict[str, float] | None, costs: Costs
) -> list[Case]:
    from kiln_build.foresight.show import Case
    from kiln_build.foresight.simulate import Cluster, cached, simulate
    from kiln_recipe.console.progress import make_progress

    asked = options.read_build_variables(os.environ)
    cases = []
    with make_progress(sys.stderr) as progress:
        progress.start(len(works) * len(arguments.workers) * len(arguments.cache_hit), title="simulate", unit="image")
        for hit in arguments.cache_hit:
            hits = cached(works, hit, arguments.seed)
            for workers in arguments.workers:
                cluster = Cluster(workers, arguments.spot, timeout=asked.job_timeout, seed=arguments.seed)
                forecast = simulate(works, cluster, costs, known=known, hits=hits, advance=progress.advance)
                cases.append(Case(workers, hit, forecast, arguments.price))
        progress.close()
    if too_long := sum(work.seconds > asked.job_timeout for work in works):
        say(
            f"warning: {plural(too_long, 'image')} would fail: a compile may take {asked.job_timeout:g} s; "
            "KILN_TIMEOUT=<seconds> allows more"
        )
    return cases
