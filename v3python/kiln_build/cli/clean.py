"""`kiln clean`: removes what builds made in a workspace, and nothing else that lies there."""

from __future__ import annotations

import argparse
import json

from kiln_build.front import workspace
from kiln_build.options.words import WORKSPACE_PARTS
from kiln_recipe.console.usage import one_of, path
from kiln_recipe.errors import EnvironmentProblem

EXAMPLE = """
kiln clean workspace              all of it: the next build starts from nothing
kiln clean workspace --keep store venv
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "workspace", type=path("the workspace", "the folder that build.sh was given"), help="as build.sh was given it"
    )
    parser.add_argument(
        "--keep", nargs="+", type=one_of("part", WORKSPACE_PARTS), default=[], metavar="PART",
        help=f"keep these parts: {', '.join(WORKSPACE_PARTS)}",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="as JSON: a list of the parts that were removed")


def run(arguments: argparse.Namespace) -> int:
    place = arguments.workspace.absolute()
    if not workspace.is_workspace(place):
        raise EnvironmentProblem(f"{place} is not a build workspace; give the folder that build.sh was given")
    with workspace.locked(place, lambda text: None, wait=False):
        removed = workspace.clean_workspace(place, arguments.keep)
    print(json.dumps(removed) if arguments.json else f"{place}: removed {', '.join(removed) or 'nothing'}")
    return 0
