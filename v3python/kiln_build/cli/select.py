"""`kiln select`: a smaller release of one that is there: some targets, some combinations; nothing is compiled."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from kiln_build.options.words import check_there
from kiln_recipe import digests
from kiln_recipe.console.files import output_folder
from kiln_recipe.console.spelling import print_made
from kiln_recipe.console.tables import print_json
from kiln_recipe.console.usage import add_targets, filled, selection
from kiln_recipe.errors import UsageError

EXAMPLE = """\
kiln select kiln-0.1.0b-manylinux_2_28_x86_64-shared.tar.gz smaller --target sm_90
kiln select kiln-0.1.0b+full-manylinux_2_28_x86_64-shared.tar.gz smaller --select 'dtype=bf16;head_dim=128'"""

_RIGHT = "a release's tarball"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tarball", type=filled("the tarball", _RIGHT), help=_RIGHT)
    parser.add_argument(
        "output", type=filled("the output", "the folder for the tarball"), help="the folder for the new tarball"
    )
    add_targets(parser, "keep this target; may be repeated; default: all")
    parser.add_argument(
        "--select",
        type=selection("--select"),
        default=(),
        metavar="CHOICES",
        help="keep only these, as KILN_SELECT: 'operation=attn_fwd;dtype=bf16;head_dim=64,128'",
    )
    parser.add_argument("--json", action="store_true", help="as JSON: file, bytes, sha256, and images by target")


def check(arguments: argparse.Namespace) -> None:
    check_there(arguments.tarball, f"give {_RIGHT}")
    if not arguments.target and not arguments.select:
        raise UsageError("nothing says what to keep; give --target or --select")


def run(arguments: argparse.Namespace) -> int:
    from kiln_build.artifacts import reader  # here, so that --help needs no package
    from kiln_build.release import smaller
    from kiln_recipe import targets
    from kiln_recipe.console.progress import make_progress

    release = reader.open_tarball(Path(arguments.tarball))
    wanted = [target.name for word in arguments.target or () for target in targets.parse(word)]
    with output_folder(arguments.output) as output, make_progress() as progress:
        made = smaller.select(release, wanted, arguments.select, output, progress)
    if arguments.json:
        print_json(_document(made, smaller.targets_of(made)))
    else:
        print_made(str(made), f"the release {made} is whole")
    return 0


def _document(made: Path, images: dict[str, int]) -> dict[str, Any]:
    return {"file": str(made), "bytes": made.stat().st_size, "sha256": digests.of_file(made), "images": images}
