"""`kiln ledger`: registers, spills and blocks of every image, as the repository keeps them; checks and updates that."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from kiln_build.base import ROOT
from kiln_build.options import options, words
from kiln_recipe import targets
from kiln_recipe.console.usage import count, filled, path, selection
from kiln_recipe.errors import EnvironmentProblem, LedgerError, UsageError

if TYPE_CHECKING:
    from kiln_build.farm.options import FarmOptions
    from kiln_build.ledger.ledger import Shelf
    from kiln_recipe.compile.toolchain import Toolchain

EXAMPLE = """
kiln ledger                                     does the ledger match the tree? takes seconds; exit code 9 if not
kiln ledger --update --store workspace          compile images with new keys, and write the ledger
kiln ledger --update --store workspace --targets sm_90 --select "kernel=attn_fwd;head_dim=64"
kiln ledger --sample 40                         also compile 40 images again and compare
kiln ledger --against HEAD^ --json              what is worse than in that revision
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--check", action="store_true",
        help="the default: compile nothing; fail if a key is not in the ledger, if the ledger has images that the tree "
        "does not make, or if an image is worse than it was without a reason in ledger/reasons.yaml",
    )  # fmt: skip
    what.add_argument(
        "--update", action="store_true", help="compile images with new keys, and write the ledger; then check"
    )
    what.add_argument(
        "--sample",
        type=count("--sample", 1_000_000),
        metavar="N",
        help="check, then compile N images again and compare all facts",
    )
    parser.add_argument(
        "--seed",
        type=filled("--seed", "any text, or leave it out"),
        metavar="TEXT",
        help="seed of --sample; default: a digest of the ledger",
    )
    parser.add_argument(
        "--against", type=filled("--against", "a revision"), metavar="REVISION",
        help="the revision to compare with; default: HEAD if the ledger has uncommitted changes, else HEAD^",
    )  # fmt: skip
    parser.add_argument(
        "--targets",
        type=filled("--targets", "names of targets, as build.sh takes them"),
        help="only these targets; default: all that have a ledger, to which --update adds those named here",
    )
    parser.add_argument(
        "--select",
        type=selection("--select"),
        default=(),
        metavar="CHOICES",
        help="only these: 'operation=attn_fwd;head_dim=64,128'",
    )
    parser.add_argument(
        "--store", type=filled("--store", "a store, a build's workspace or a new folder"), metavar="FOLDER",
        help="where --update keeps images and finds those compiled before: a store, a build's workspace, or "
        "a new folder; default: KILN_STORE",
    )  # fmt: skip
    parser.add_argument(
        "--jobs", type=count("--jobs"), metavar="N", help="number of parallel compiles; default: KILN_JOBS"
    )
    parser.add_argument(
        "--ledger",
        type=path("--ledger", "a folder with a ledger, as ledger/ is"),
        default=ROOT / "ledger",
        metavar="FOLDER",
        help="default: ledger/",
    )
    parser.add_argument(
        "--recipe", action="append", type=path("--recipe", "the path of a recipe.yaml"), metavar="FILE",
        help="only of this recipe; may be repeated; default: tritonsrc/*/recipe.yaml",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="as JSON: every difference, what is worse, and why")


def check(arguments: argparse.Namespace) -> None:
    options.check_environment()
    for option, what in (("store", ("update",)), ("jobs", ("update", "sample")), ("seed", ("sample",))):
        if getattr(arguments, option) and not any(getattr(arguments, action) for action in what):
            raise UsageError(f"--{option} is for {' and '.join(f'--{action}' for action in what)} alone")
    if arguments.targets:
        targets.parse(arguments.targets)
    elif not arguments.ledger.is_dir():  # with names of targets a new one may be made, or is said to lack all
        raise EnvironmentProblem(f"--ledger {arguments.ledger} is not a folder; give one with a ledger, as ledger/ is")


def run(arguments: argparse.Namespace) -> int:
    from kiln_build.ledger import ledger
    from kiln_build.ledger import report as ledger_report
    from kiln_build.ledger.chain import toolchain_of
    from kiln_recipe.read import recipe  # here, so that --help needs no package

    asked = options.read_build_variables(os.environ)
    folder = arguments.ledger.absolute()
    wanted = ledger.kept_targets(folder, targets.parse(arguments.targets) if arguments.targets else None)
    recipes = [recipe.load(path) for path in arguments.recipe or recipe.find(ROOT)]
    chain = toolchain_of(ROOT)
    choices = dict(arguments.select)

    def shelves(in_order: bool = True) -> tuple[tuple[Shelf, ...], frozenset[str]]:
        found = ledger.shelves(recipes, wanted, chain, folder, in_order)
        return found, ledger.selected(found, choices)

    if arguments.update:
        _update(arguments, asked, chain, *shelves(in_order=False))
    found, names = shelves()
    report = ledger_report.Report(
        found, names, folder, arguments.against, chain, not arguments.targets, bool(arguments.recipe)
    )
    if arguments.sample:
        seed = arguments.seed or ledger.seed_of(found)
        drawn = ledger.draw(found, names, arguments.sample, seed)
        report.add_sample(seed, len(drawn), _sample(drawn, chain, asked, arguments.jobs))
    print(json.dumps(report.document(), indent=1) if arguments.json else report.text())
    if problems := report.problems():
        raise LedgerError("; ".join(problems))
    return 0


def _update(
    arguments: argparse.Namespace,
    asked: options.BuildVariables,
    chain: Toolchain,
    shelves: Sequence[Shelf],
    names: frozenset[str],
) -> None:
    from kiln_build.ledger import ledger
    from kiln_build.store.stores import open_store
    from kiln_recipe.console.progress import make_progress
    from kiln_recipe.console.spelling import spell_seconds

    new = sum(
        place not in shelf.lines and variant.name in names
        for shelf in shelves
        for place, variant in shelf.places.items()
    )
    gone = sum(place not in shelf.places for shelf in shelves for place in shelf.lines)
    with make_progress(log_json=asked.log_json) as progress, _scratch(asked, arguments.jobs) as (farm_options, folder):
        store = open_store(_store(arguments.store, asked.store), progress.message)
        chain = _with_heap(chain, {shelf.target for shelf in shelves}, folder)
        update = ledger.Update(shelves, chain, names)
        result = update.run(store, farm_options, progress)
        progress.message(
            f"{result.compiled} images compiled, {result.reused} from the store, {result.shared} shared by equal IR; "
            f"{spell_seconds(result.wall_seconds)}; {new} names are new to the ledger, {gone} are gone"
        )


def _sample(drawn: list, chain: Toolchain, asked: options.BuildVariables, jobs: int | None) -> list[str]:
    from kiln_build.ledger import ledger
    from kiln_build.store.stores import open_store
    from kiln_recipe.console.progress import make_progress

    with make_progress(log_json=asked.log_json) as progress, _scratch(asked, jobs) as (farm_options, folder):
        chain = _with_heap(chain, {shelf.target for shelf, _ in drawn}, folder)
        store = open_store(folder / "store", progress.message)
        return ledger.check_sample(drawn, chain, store, farm_options, progress)


def _with_heap(chain: Toolchain, asked: Iterable[targets.Target], folder: Path) -> Toolchain:
    from kiln_build.native import native

    return native.with_heap(chain, asked, ROOT, native.own_zig(folder / "zig"), folder / "lib")


@contextlib.contextmanager
def _scratch(asked: options.BuildVariables, jobs: int | None) -> Iterator[tuple[FarmOptions, Path]]:
    """A folder for logs, compilers' temporary files and libraries, and a store. It goes again, but for logs with
    something in them: failures name these."""
    import shutil

    from kiln_build.farm.options import FarmOptions

    folder = Path(tempfile.mkdtemp(prefix="kiln-ledger-"))
    try:
        yield FarmOptions.of(replace(asked, jobs=jobs or asked.jobs), folder), folder
    finally:
        is_named = any(log.stat().st_size for log in folder.glob("logs/*"))
        for name in ("tmp", "store", "zig", "lib") if is_named else ("",):
            shutil.rmtree(folder / name, ignore_errors=True)


def _store(word: str | None, usual: str | None) -> str | Path:
    from kiln_build.store.files import find_store

    named = word or usual
    if not named:
        raise UsageError(
            "no store given; use --store FOLDER, or set KILN_STORE, to a store, a build's workspace or a new folder"
        )
    place = words.check_store(named, Path.cwd(), "--store" if word else "KILN_STORE")
    try:
        return place if words.scheme_of(place) else find_store(Path(place))
    except EnvironmentProblem:  # none yet: the first image makes it
        return place
