"""`kiln merge`: the release of all its parts, byte for byte the one that `kiln split` was given."""

from __future__ import annotations

import argparse
from pathlib import Path

from kiln_build.cli.select import output_folder
from kiln_build.options.words import check_there
from kiln_recipe import digests
from kiln_recipe.console.spelling import print_made
from kiln_recipe.console.tables import print_json
from kiln_recipe.console.usage import filled
from kiln_recipe.errors import UsageError

EXAMPLE = """\
kiln merge parts/kiln-0.1.0b-manylinux_2_28_x86_64-*.tar.gz whole"""

_RIGHT = "tarballs of `kiln split`"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("part", nargs="+", type=filled("a part", _RIGHT), help=f"{_RIGHT}: all parts of one release")
    parser.add_argument(
        "output", type=filled("the output", "the folder for the tarball"), help="the folder for the release's tarball"
    )
    parser.add_argument("--json", action="store_true", help="as JSON: file, bytes, sha256")


def check(arguments: argparse.Namespace) -> None:
    for word in arguments.part:
        check_there(word, f"give {_RIGHT}")


def run(arguments: argparse.Namespace) -> int:
    from kiln_build.artifacts import reader  # here, so that --help needs no package
    from kiln_build.parts import join
    from kiln_recipe.console.progress import make_progress

    given = []
    for word in arguments.part:
        opened = reader.open_artifact(Path(word), f"give {_RIGHT}", takes_part=True)
        if not isinstance(opened, reader.Release) or opened.is_folder or "part" not in opened.manifest:
            raise UsageError(f"{word} is not a tarball of a part of a release; give {_RIGHT}")
        given.append(opened)
    with make_progress() as progress:
        made = join.join(given, output_folder(arguments.output), progress)
    if arguments.json:
        print_json({"file": str(made), "bytes": made.stat().st_size, "sha256": digests.of_file(made)})
    else:
        print_made(str(made), f"the release {made} is whole")
    return 0
