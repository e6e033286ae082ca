"""`kiln coverage`: whether a release, or a profile, serves a model's attention; without a GPU."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from kiln_build.options.words import check_there
from kiln_recipe import targets
from kiln_recipe.console.spelling import print_text
from kiln_recipe.console.tables import print_json
from kiln_recipe.console.usage import add_targets, filled
from kiln_recipe.errors import NotServed
from kiln_recipe.selection import PROFILES

if TYPE_CHECKING:
    from kiln_build.coverage.attention import Model
    from kiln_build.coverage.judge import Verdict
    from kiln_build.coverage.source import Source

EXAMPLE = """\
kiln coverage core --model config.json                   a Transformers or diffusers configuration
kiln coverage output/kiln-0.1.0b-manylinux_2_28_x86_64-shared.tar.gz --model config.json --target sm_90
kiln coverage full --model 'head_dim=192/128 gqa=8 window=4096 sinks fp8-cache' --json
kiln coverage core --model config.json --target sm_90 --check   for scripts"""

_SOURCE = "core, full, a release's tarball, or the folder that it was unpacked to"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", type=filled("the release", _SOURCE), help=_SOURCE)
    parser.add_argument(
        "--model", action="append", required=True, type=filled("--model", "a config.json, or a line"), metavar="MODEL",
        help="a model's config.json, of Transformers or diffusers, or a line such as 'head_dim=128 gqa=8'; may be "
        "repeated",
    )  # fmt: skip
    add_targets(parser, "only this target; may be repeated; default: all of the release, or all there are")
    parser.add_argument(
        "--images", action="store_true", help="also list each image of what is served; of a release with its key"
    )
    parser.add_argument(
        "--html", type=filled("--html", "the file to write"), metavar="FILE", help="write a page with the answers"
    )
    parser.add_argument("--json", action="store_true", help="as JSON: models, and a verdict for each use and target")
    parser.add_argument(
        "--check", action="store_true",
        help=f"exit with {NotServed.exit_code} if a use is not served on one of the targets; without it with 0, "
        "whatever is found",
    )  # fmt: skip


def check(arguments: argparse.Namespace) -> None:
    if arguments.source not in PROFILES:
        check_there(arguments.source, f"give {_SOURCE}")
    targets.parse(";".join(arguments.target) or "all")


def run(arguments: argparse.Namespace) -> int:
    from kiln_build.coverage import show  # here, so that --help needs no package
    from kiln_build.coverage.judge import judge
    from kiln_build.coverage.source import open_source

    source = open_source(arguments.source)
    models = _models(arguments.model)
    verdicts = judge(source, models, _targets(arguments.target, source.targets))
    if arguments.html:
        _write_page(arguments, source, models, verdicts)
    if arguments.json:
        print_json(show.document(source, models, verdicts))
    else:
        for line in show.lines(source, models, verdicts, arguments.images):
            print_text(line)
    if arguments.check and (refused := [one for one in verdicts if not one.is_served]):
        first = refused[0]
        raise NotServed(
            f"{source.name} does not serve {len(refused)} of {len(verdicts)} uses, each on a target; the first is "
            f"{first.use} of {first.model}, {first.kind.name}, on {first.target}"
        )
    return 0


def _write_page(
    arguments: argparse.Namespace, source: Source, models: Sequence[Model], verdicts: Sequence[Verdict]
) -> None:
    from kiln_build.coverage import page
    from kiln_build.pages import document

    path = document.check_place(arguments.html, page.COMMAND, [Path(arguments.source)])
    document.write(path, page.page(source, models, verdicts))


def _targets(words: Sequence[str], usual: Sequence[targets.Target]) -> Sequence[targets.Target]:
    return targets.parse(";".join(words)) if words else usual


def _models(words: Sequence[str]) -> list[Model]:
    """Those of different words, with names that stand once: answers go by them."""
    found = {word: _model(word) for word in dict.fromkeys(words)}
    counts = Counter(model.name for model in found.values())
    return [replace(model, name=word) if counts[model.name] > 1 else model for word, model in found.items()]


def _model(word: str) -> Model:
    from kiln_build.coverage import line
    from kiln_build.coverage.configuration import config

    is_line = not Path(word).exists() and ("=" in word and not word.endswith(".json"))
    return line.read(word) if is_line else config.read(Path(word))
