"""`kiln merge`: one release of all parts of one, or of releases for several targets; the same bytes as one build's."""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from kiln_build.cli.rebuild import add_source, check_input
from kiln_build.options import options
from kiln_build.options.words import check_there
from kiln_recipe import digests
from kiln_recipe.console.files import output_folder
from kiln_recipe.console.spelling import print_made
from kiln_recipe.console.tables import print_json
from kiln_recipe.console.usage import filled
from kiln_recipe.console.usage import path as a_path
from kiln_recipe.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kiln_build.artifacts.reader import Release

EXAMPLE = """\
kiln merge parts/kiln-0.1.0b-manylinux_2_28_x86_64-*.tar.gz whole         the parts of `kiln split`
kiln merge host1/kiln-0.1.0b-....tar.gz host2/kiln-0.1.0b-....tar.gz all  releases for several targets

The second builds the commit that the releases name, from their images: nothing is compiled that one of them has.
KILN_ENGINE, KILN_PYTHON and KILN_JOBS count as with `kiln rebuild`."""

_RIGHT = "tarballs of all parts of a release, or of releases for several targets"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("part", nargs="+", type=filled("a part", _RIGHT), help=_RIGHT)
    parser.add_argument(
        "output", type=filled("the output", "the folder for the tarball"), help="the folder for the release's tarball"
    )
    add_source(parser)
    parser.add_argument(
        "--workspace", type=a_path("--workspace", "a folder"), metavar="FOLDER",
        help="of releases: the workspace for the build, as build.sh takes it; that of an earlier build has the "
        "toolchain already; default: one that is removed",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="as JSON: file, bytes, sha256")


def check(arguments: argparse.Namespace) -> None:
    options.check_environment()
    for word in arguments.part:
        check_there(word, f"give {_RIGHT}")
    check_input(arguments.input)


def run(arguments: argparse.Namespace) -> int:
    from kiln_build.artifacts import reader  # here, so that --help needs no package
    from kiln_build.parts import join
    from kiln_recipe.console.progress import make_progress

    given = [reader.open_tarball(Path(word), _RIGHT, takes_part=True) for word in arguments.part]
    parts = ["part" in release.manifest for release in given]
    if all(parts):
        with output_folder(arguments.output) as output, make_progress() as progress:
            made = join.join(given, output, progress)
    elif any(parts):
        part, release = (given[parts.index(is_part)].path for is_part in (True, False))
        raise UsageError(f"{part} is a part of a release, and {release} is a whole one; give {_RIGHT}")
    else:
        made = _built(given, arguments)
    if arguments.json:
        print_json({"file": str(made), "bytes": made.stat().st_size, "sha256": digests.of_file(made)})
    else:
        print_made(str(made), f"the release {made} is whole")
    return 0


def _built(given: Sequence[Release], arguments: argparse.Namespace) -> Path:
    from kiln_build.parts import hosts

    hosts.check(given)
    workspace = arguments.workspace and arguments.workspace.resolve()
    with output_folder(arguments.output) as output, tempfile.TemporaryDirectory(prefix="kiln-merge-") as folder:
        sources = hosts.Sources(arguments.source, arguments.input.resolve())
        return hosts.merge(given, output, Path(folder), workspace or Path(folder) / "build", sources, os.environ)
