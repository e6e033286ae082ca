"""`kiln diff`: what differs between two releases, what became worse first."""

from __future__ import annotations

import argparse
from pathlib import Path

from kiln_build.base import ROOT
from kiln_build.options.words import check_there
from kiln_recipe.console.spelling import print_text
from kiln_recipe.console.tables import print_json
from kiln_recipe.console.usage import filled
from kiln_recipe.console.usage import path as a_path
from kiln_recipe.errors import EnvironmentProblem

EXAMPLE = """\
kiln diff old/kiln-0.1.0b-manylinux_2_28_x86_64-shared.tar.gz output/kiln-0.1.0b-manylinux_2_28_x86_64-shared.tar.gz
kiln diff installed/kiln output/kiln-0.1.0b-manylinux_2_28_x86_64-shared.tar.gz --html difference.html
kiln diff old-wheels/ wheels/ --json

exit code 0: the same; 1: they differ; 2: wrong use; others as everywhere"""

DIFFERS = 1  # as diff has it
_RIGHT = "a release's tarball, the folder that it was unpacked to, a folder of wheels, a wheel, or a pack"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for name, what in (("before", "the one to compare with"), ("after", "the one that is looked at")):
        parser.add_argument(name, type=filled(f"the release {name}", _RIGHT), help=f"{what}: {_RIGHT}")
    parser.add_argument("--all", action="store_true", help="all rows of each section, and not the first twelve")
    parser.add_argument(
        "--json", action="store_true",
        help="as JSON: same, verdict, before, after, targets, images, combinations, look_ups, headers, symbols, "
        "stated, files, notes",
    )  # fmt: skip
    parser.add_argument("--html", type=filled("--html", "the file to write"), metavar="FILE", help="write a page")
    parser.add_argument(
        "--ledger",
        action="append",
        type=a_path("--ledger", "a folder with a ledger, as ledger/ is"),
        metavar="FOLDER",
        help="ledgers that know modelled shares of AMD images; may be repeated; default: ledger/",
    )


def check(arguments: argparse.Namespace) -> None:
    for word in (arguments.before, arguments.after):
        check_there(word, f"give {_RIGHT}")
    for folder in arguments.ledger or ():
        if not folder.is_dir():
            raise EnvironmentProblem(f"--ledger {folder} is not a folder; give one with a ledger, as ledger/ is")


def run(arguments: argparse.Namespace) -> int:
    from kiln_build.difference import compare, page, show, side  # here, so that --help needs no package
    from kiln_build.ledger.planned import known_shares
    from kiln_build.pages import document

    before, after = Path(arguments.before), Path(arguments.after)
    written = document.check_place(arguments.html, page.COMMAND, (before, after)) if arguments.html else None
    found = compare.compare(
        side.open_side(before), side.open_side(after), known_shares(arguments.ledger or [ROOT / "ledger"])
    )
    if written:
        document.write(written, page.page(found))
    if arguments.json:
        print_json(show.document(found))
    else:
        for line in show.text(found, arguments.all):
            print_text(line)
    return 0 if found.is_empty else DIFFERS
