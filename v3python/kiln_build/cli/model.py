"""`kiln model`: how fast AMD images run, by a static model of their main loops; needs no GPU."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from kiln_build.options.words import check_there
from kiln_recipe import targets
from kiln_recipe.console.spelling import print_text
from kiln_recipe.console.tables import print_json
from kiln_recipe.console.usage import add_targets, count, filled, selection
from kiln_recipe.errors import UsageError

EXAMPLE = """\
kiln model output/kiln-0.1.0b-manylinux_2_28_x86_64-shared.tar.gz --target gfx942
kiln model kiln/lib/kiln.images/amd-gfx942.pack --select 'dtype=bf16;head_dim=128' --html model.html
kiln model new.tar.gz --against old.tar.gz               what is faster, and what slower
kiln model kernel.hsaco --shared 16384                   a code object, which does not state its LDS"""

_RIGHT = "a release's tarball, the folder that it was unpacked to, a pack, or an AMD code object"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "artifact", type=filled("the artifact", _RIGHT),
        help="a release's tarball, an unpacked release, a pack, or an AMD code object",
    )  # fmt: skip
    add_targets(parser, "only this target; may be repeated")
    parser.add_argument(
        "--select", type=selection("--select"), default=(), metavar="CHOICES",
        help="only these: 'operation=attn_fwd;dtype=bf16;head_dim=64,128'",
    )  # fmt: skip
    parser.add_argument(
        "--against", type=filled("--against", _RIGHT), metavar="FILE",
        help="compare with this release, pack or code object: share before, after, and the ratio",
    )  # fmt: skip
    parser.add_argument(
        "--shared", type=count("--shared", 1 << 20), metavar="BYTES",
        help="of a code object: the LDS of a block, which it does not state; default: what it states",
    )  # fmt: skip
    parser.add_argument(
        "--needed", type=count("--needed", 1 << 30), metavar="OPERATIONS",
        help="of a code object: floating-point operations that a block needs in one iteration of the main loop; "
        "default: what it does",
    )  # fmt: skip
    parser.add_argument("--jobs", type=count("--jobs"), metavar="N", help="number of processes; default: one per core")
    parser.add_argument(
        "--html", type=filled("--html", "the file to write"), metavar="PAGE", help="write a page with a table and bars"
    )
    parser.add_argument("--json", action="store_true", help="as JSON: a row for each loop of each image; and changes")


def check(arguments: argparse.Namespace) -> None:
    for word in filter(None, (arguments.artifact, arguments.against)):
        check_there(word, f"give {_RIGHT}")
    targets.parse(";".join(arguments.target) or "all")


def run(arguments: argparse.Namespace) -> int:
    from kiln_build.amd_model import page, rows, show  # here, so that --help needs no package
    from kiln_build.pages import document

    path = None
    if arguments.html:
        path = document.check_place(arguments.html, page.COMMAND, [Path(arguments.artifact)])
    found = _rows(arguments, arguments.artifact)
    changes = rows.compare(_rows(arguments, arguments.against), found) if arguments.against else None
    if path:
        document.write(path, page.page(Path(arguments.artifact).name, found, changes))
    if arguments.json:
        print_json(show.document(found, changes))
        return 0
    for line in show.lines(found, changes):
        print_text(line)
    return 0


def _rows(arguments: argparse.Namespace, word: str) -> list:
    from dataclasses import replace

    from kiln_build.amd_model import images, many, rows
    from kiln_build.artifacts import reader
    from kiln_build.base import ROOT, machine
    from kiln_build.front import workspace
    from kiln_build.options import options
    from kiln_recipe.console.progress import make_progress

    artifact = reader.open_artifact(Path(word), f"give {_RIGHT}")
    is_code = isinstance(artifact, reader.ImageFile)
    for option in ("shared", "needed"):
        if getattr(arguments, option) and not is_code:
            raise UsageError(f"--{option} is for code objects alone; {word} states it of its images")
    asked = {target.name for target in targets.parse(";".join(arguments.target))} if arguments.target else set()
    found = images.images_of(artifact, asked, arguments.select)
    if arguments.shared:
        found = [replace(one, facts=replace(one.facts, shared=arguments.shared)) for one in found]
    place = options.read_workspace(os.environ, Path.cwd(), ROOT / ".kiln")
    kept = workspace.part_to_keep(place, many.FOLDER, "figures of images")
    with make_progress() as progress:
        figures = many.figures_of(found, arguments.jobs or machine.usable_cpus(), progress, kept)
    return rows.rows_of(found, figures, arguments.needed)
