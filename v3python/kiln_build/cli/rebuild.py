"""`kiln rebuild`: builds a release again from what its manifest names, and says whether the bytes are the same."""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from pathlib import Path

from kiln_build.base import ROOT
from kiln_build.options import options
from kiln_build.options.words import check_there
from kiln_recipe.console.spelling import print_text, say
from kiln_recipe.console.tables import print_json
from kiln_recipe.console.usage import filled
from kiln_recipe.console.usage import path as a_path
from kiln_recipe.errors import EnvironmentProblem, UsageError

EXAMPLE = """\
kiln rebuild --verify kiln-0.1.0b-manylinux_2_28_x86_64-shared.tar.gz
kiln rebuild --verify kiln-....tar.gz --source kiln.bundle --input toolchain.tar    without a network
kiln rebuild --verify kiln-....tar.gz --source https://example.org/kiln.git --workspace again

exit code 0: identical; 1: they differ; others as everywhere. KILN_ENGINE, KILN_PYTHON and KILN_JOBS say where and how
fast it is built; KILN_RECIPES names the recipes of a release with families from elsewhere"""

DIFFERS = 1
_RIGHT = "a release's tarball"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tarball", type=filled("the tarball", _RIGHT), help=_RIGHT)
    parser.add_argument(
        "--verify", action="store_true", required=True, help="build it again, and hold the two together"
    )
    add_source(parser)
    parser.add_argument(
        "--workspace", type=a_path("--workspace", "a new folder"), metavar="FOLDER",
        help="a folder for the build, which stays; default: one that is removed, but for a tarball that differs",
    )  # fmt: skip
    parser.add_argument(
        "--store", type=filled("--store", "a folder"), metavar="FOLDER",
        help="take images from this store too, which are then not compiled anew; default: none",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="as JSON: identical, sha256, kernels, files, ...")


def add_source(parser: argparse.ArgumentParser) -> None:
    """The options --source and --input, which say where a release's commit and its downloads are."""
    parser.add_argument(
        "--source",
        type=filled("--source", "a folder, a git bundle or an address"),
        help="where its commit is: a checkout, a folder with that source, a git bundle, or an address for git; "
        "default: this source tree",
    )
    parser.add_argument(
        "--input", type=a_path("--input", "an input folder, or a bundle of `kiln fetch`"), default=ROOT / "input",
        metavar="FOLDER", help="where its downloads are: an input folder, or what `kiln fetch --bundle` made; what is "
        "not there is downloaded; default: input/",
    )  # fmt: skip


def check(arguments: argparse.Namespace) -> None:
    options.check_environment()
    check_there(arguments.tarball, f"give {_RIGHT}")
    check_input(arguments.input)
    if arguments.workspace and arguments.workspace.is_dir() and any(arguments.workspace.iterdir()):
        raise UsageError(f"--workspace {arguments.workspace} is not empty; give a new folder, so that all is made anew")


def check_input(path: Path) -> None:
    """
    Raises:
        EnvironmentProblem: what --input names does not exist.
    """
    if not path.exists():
        raise EnvironmentProblem(f"--input {path} does not exist; give an input folder, or a bundle")


def run(arguments: argparse.Namespace) -> int:
    from kiln_build.artifacts import reader, verify
    from kiln_build.rebuild import again, asked, tree, verdict  # here, so that --help needs no package
    from kiln_recipe.console.progress import make_progress

    given = Path(arguments.tarball).resolve()
    release = reader.open_tarball(Path(arguments.tarball), _RIGHT)
    # What a manifest says of other bytes than those that are there cannot be compared with anything.
    verify.refuse_problems(verify.verify(release), arguments.tarball)
    wanted = asked.read(release)
    store = str(Path(arguments.store).resolve()) if arguments.store else None
    environment = asked.environment_of(wanted, os.environ, store)
    place = _place(arguments.workspace)
    is_done = False
    try:
        source = tree.lay_out_source(wanted, arguments.source, place / "source", say)
        with make_progress() as progress:
            folder = tree.lay_out_input(wanted, source, arguments.input.resolve(), place / "input", progress)
        output = place / "output"
        output.mkdir(exist_ok=True)
        made = again.build(wanted, source, folder, place / "build", output, environment)
        found = verdict.judge(given, made, again.sites_of(place / "build"))
        is_done = found.is_identical
    finally:
        _tidy(place, arguments.workspace is not None, is_done)
    if store:
        found.notes.append(f"images may be from {store}, and were then not compiled anew")
    if not is_done:
        found.notes.append(f"what was made again is {made}")
    if arguments.json:
        print_json(verdict.document(found))
    else:
        for line in verdict.text(found):
            print_text(line)
    return 0 if found.is_identical else DIFFERS


def _place(asked: Path | None) -> Path:
    try:
        if asked is None:
            return Path(tempfile.mkdtemp(prefix="kiln-rebuild-"))
        asked.mkdir(parents=True, exist_ok=True)
        return asked.resolve()
    except OSError as error:
        raise EnvironmentProblem(
            f"--workspace {asked} cannot be made ({error.strerror}); give another folder"
        ) from error


def _tidy(place: Path, is_kept: bool, is_identical: bool) -> None:
    """Removes a folder of our own, but for a tarball that differs."""
    if is_kept:
        return
    output = place / "output"
    if is_identical or not any(output.glob("*.tar.gz")):
        shutil.rmtree(place, ignore_errors=True)
        return
    for path in place.iterdir():
        if path.is_dir() and path != output:
            shutil.rmtree(path, ignore_errors=True)
