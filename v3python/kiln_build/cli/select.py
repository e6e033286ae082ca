"""`kiln select`: a smaller release of one that is there: some targets, some combinations; nothing is compiled."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln_build.options.words import check_there
from kiln_recipe import digests
from kiln_recipe.console.files import kind_of
from kiln_recipe.console.spelling import print_made
from kiln_recipe.console.tables import print_json
from kiln_recipe.console.usage import add_targets, filled, selection
from kiln_recipe.errors import EnvironmentProblem, UsageError

if TYPE_CHECKING:
    from kiln_build.artifacts.reader import Release

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
    from kiln_build.release import smaller  # here, so that --help needs no package
    from kiln_recipe import targets
    from kiln_recipe.console.progress import make_progress

    release = opened_tarball(arguments.tarball)
    output = output_folder(arguments.output)
    wanted = [target.name for word in arguments.target or () for target in targets.parse(word)]
    with make_progress() as progress:
        made = smaller.select(release, wanted, arguments.select, output, progress)
    if arguments.json:
        print_json(_document(made, smaller.targets_of(made)))
    else:
        print_made(str(made), f"the release {made} is whole")
    return 0


def opened_tarball(word: str, right: str = _RIGHT, takes_part: bool = False) -> Release:
    """The release, or the part of one, of which a word of the command line is the tarball.

    Raises:
        UsageError: it is something else.
    """
    from kiln_build.artifacts import reader

    release = reader.open_artifact(Path(word), f"give {right}", takes_part)
    if not isinstance(release, reader.Release) or release.is_folder:
        raise UsageError(f"{word} is not a tarball; give {right}")
    return release


def output_folder(word: str) -> Path:
    """The folder for what is made, which is made too.

    Raises:
        EnvironmentProblem: it cannot be.
    """
    output = Path(os.path.realpath(word))  # resolve() has no OSError for links that lead in a circle
    try:
        output.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise EnvironmentProblem(
            f"the output {output} is {kind_of(output)}; give a folder, or a name that does not exist yet"
        ) from None
    except OSError as error:
        raise EnvironmentProblem(f"{output} cannot be made ({error.strerror}); give another folder") from error
    return output


def _document(made: Path, images: dict[str, int]) -> dict[str, Any]:
    return {"file": str(made), "bytes": made.stat().st_size, "sha256": digests.of_file(made), "images": images}
