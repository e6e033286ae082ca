"""`kiln coverage`: whether a release, or a profile, serves a model's attention; without a GPU."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kiln_build.base.tables import print_json
from kiln_build.base.usage import filled
from kiln_build.options.words import check_there
from kiln_recipe import targets
from kiln_recipe.errors import escaped
from kiln_recipe.selection import PROFILES

if TYPE_CHECKING:
    from kiln_build.coverage.attention import Model

EXAMPLE = """\
kiln coverage core --model config.json                   a Transformers or diffusers configuration
kiln coverage output/kiln-0.1.0b-manylinux_2_28_x86_64-shared.tar.gz --model config.json --target sm_90
kiln coverage full --model 'head_dim=192/128 gqa=8 window=4096 sinks fp8-cache' --json"""

_SOURCE = "core, full, a release's tarball, or the folder that it was unpacked to"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", type=filled("the release", _SOURCE), help=_SOURCE)
    parser.add_argument(
        "--model", action="append", required=True, type=filled("--model", "a config.json, or a line"), metavar="MODEL",
        help="a model's config.json, of Transformers or diffusers, or a line such as 'head_dim=128 gqa=8'; may be "
        "repeated",
    )  # fmt: skip
    parser.add_argument(
        "--target",
        action="append",
        type=filled("--target", "the name of a target"),
        default=[],
        help="only this target; may be repeated; default: all of the release, or all there are",
    )
    parser.add_argument(
        "--images", action="store_true", help="also list each image of what is served; of a release with its key"
    )
    parser.add_argument("--json", action="store_true", help="as JSON: models, and a verdict for each use and target")


def check(arguments: argparse.Namespace) -> None:
    if arguments.source not in PROFILES or Path(arguments.source).exists():
        check_there(arguments.source, f"give {_SOURCE}")
    targets.parse(" ".join(arguments.target) or "all")


def run(arguments: argparse.Namespace) -> int:
    from kiln_build.coverage import show  # here, so that --help needs no package
    from kiln_build.coverage.judge import judge
    from kiln_build.coverage.source import open_source

    source = open_source(arguments.source)
    models = [_model(word) for word in arguments.model]
    verdicts = judge(source, models, _targets(arguments.target, source.targets))
    if arguments.json:
        print_json(show.document(source, models, verdicts))
        return 0
    for line in show.lines(source, models, verdicts, arguments.images):
        print(escaped(line))
    return 0


def _targets(words: Sequence[str], usual: Sequence[targets.Target]) -> Sequence[targets.Target]:
    return targets.parse(" ".join(words)) if words else usual


def _model(word: str) -> Model:
    from kiln_build.coverage import config, line

    is_line = not Path(word).exists() and ("=" in word and not word.endswith(".json"))
    return line.read(word) if is_line else config.read(Path(word))
