"""`kiln apply`: the release that a delta of `kiln delta` leads to, byte for byte, from the one that it was made for."""

from __future__ import annotations

import argparse
from pathlib import Path

from kiln_build.options.words import check_there
from kiln_recipe import digests
from kiln_recipe.console.files import output_folder
from kiln_recipe.console.spelling import print_made
from kiln_recipe.console.tables import print_json
from kiln_recipe.console.usage import filled

EXAMPLE = """\
kiln apply kiln-0.1.0b-manylinux_2_28_x86_64-shared.tar.gz 0.1.1.kdelta output

exit code 6: the delta is damaged, or is for another tarball; nothing is made then"""

_RIGHT = "the tarball that the delta was made for"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("before", type=filled("the tarball", _RIGHT), help=_RIGHT)
    parser.add_argument("delta", type=filled("the delta", "a file of `kiln delta`"), help="a file of `kiln delta`")
    parser.add_argument(
        "output", type=filled("the output", "the folder for the tarball"), help="the folder for the new tarball"
    )
    parser.add_argument("--json", action="store_true", help="as JSON: file, bytes, sha256")


def check(arguments: argparse.Namespace) -> None:
    check_there(arguments.before, f"give {_RIGHT}")
    check_there(arguments.delta, "give a delta of `kiln delta`")


def run(arguments: argparse.Namespace) -> int:
    from kiln_build.artifacts import reader  # here, so that --help needs no package
    from kiln_build.parts import apply
    from kiln_recipe.console.progress import make_progress

    before = reader.open_tarball(Path(arguments.before), _RIGHT, takes_part=True)
    with output_folder(arguments.output) as output, make_progress() as progress:
        made = apply.apply(before, Path(arguments.delta), output, progress)
    if arguments.json:
        print_json({"file": str(made), "bytes": made.stat().st_size, "sha256": digests.of_file(made)})
    else:
        print_made(str(made), f"the release {made} is whole")
    return 0
