"""`kiln delta`: a small file that makes one release of another; of packs it has what is new in their images."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from kiln_build.options.words import check_there
from kiln_recipe.console.files import check_new_file
from kiln_recipe.console.spelling import print_made
from kiln_recipe.console.tables import plural, print_json, quantity
from kiln_recipe.console.usage import filled

EXAMPLE = """\
kiln delta kiln-0.1.0b-manylinux_2_28_x86_64-shared.tar.gz kiln-0.1.1-....tar.gz 0.1.1.kdelta

exit code 0: it is made, and was tried; others as everywhere"""

_RIGHT = "the tarball of a release, or of a part of one"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for name, what in (("before", "that one has"), ("after", "that is to be made of it")):
        parser.add_argument(name, type=filled(f"the tarball {name}", _RIGHT), help=f"{_RIGHT}, {what}")
    parser.add_argument("delta", type=filled("the delta", "the file to write"), help="the file to write")
    parser.add_argument(
        "--json", action="store_true", help="as JSON: file, bytes, sha256, before, after, sizes, groups"
    )


def check(arguments: argparse.Namespace) -> None:
    from kiln_build.parts.form import MAGIC

    for word in (arguments.before, arguments.after):
        check_there(word, f"give {_RIGHT}")
    check_new_file(arguments.delta, Path.cwd(), "the delta", MAGIC, "delta of `kiln delta`")


def run(arguments: argparse.Namespace) -> int:
    from kiln_build.artifacts import reader  # here, so that --help needs no package
    from kiln_build.parts import delta
    from kiln_build.parts.form import MAGIC
    from kiln_recipe.console.progress import make_progress

    path = check_new_file(arguments.delta, Path.cwd(), "the delta", MAGIC, "delta of `kiln delta`")
    words = (arguments.before, arguments.after)
    before, after = (reader.open_tarball(Path(word), _RIGHT, takes_part=True) for word in words)
    with make_progress() as progress:
        made = delta.make(before, after, path, progress)
        share = 100 * made.bytes / made.after.bytes
        groups = ", ".join(f"{count} {what}" for what, count in made.groups.items() if count)
        sizes = ", ".join(f"{what} {quantity(size)}" for what, size in made.sizes.items() if size)
        progress.message(
            f"{quantity(made.bytes)}, {share:.1f} % of the tarball's {quantity(made.after.bytes)}: {sizes}"
            + (f"; of {plural(sum(made.groups.values()), 'group')} in packs that changed: {groups}" if groups else "")
        )
    if arguments.json:
        print_json({"file": str(path), **asdict(made)})
    else:
        print_made(str(path), f"the delta {path} is whole")
    return 0
