"""`kiln report`: a page of a release: coverage, what ran where, sizes, registers, the build, what changed."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from kiln_build.base import ROOT
from kiln_build.options.words import check_there
from kiln_recipe.console.spelling import print_text
from kiln_recipe.console.tables import print_json
from kiln_recipe.console.usage import filled
from kiln_recipe.console.usage import path as a_path
from kiln_recipe.errors import ArtifactError, EnvironmentProblem, UsageError

if TYPE_CHECKING:
    from kiln_build.difference.side import Side
    from kiln_build.origin.timeline_file import Timeline

EXAMPLE = """\
kiln report output/kiln-0.1.0b-manylinux_2_28_x86_64-shared.tar.gz release.html
kiln report output/kiln-0.1.0b-manylinux_2_28_x86_64-shared.tar.gz release.html --against /opt/kiln
kiln report wheels/ wheels.html --json"""

_RIGHT = "a release's tarball, the folder that it was unpacked to, a folder of wheels, a wheel, or a pack"
_RECORDS = "docs/measurements/verified"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("release", type=filled("the release", _RIGHT), help=_RIGHT)
    parser.add_argument("output", type=filled("the page", "the file to write"), help="the page to write: release.html")
    parser.add_argument(
        "--against", type=filled("--against", _RIGHT), metavar="OLD", help="also show what changed since this release"
    )
    parser.add_argument(
        "--verified",
        type=a_path("--verified", "a folder with records of runs"),
        metavar="FOLDER",
        help=f"records of runs, as {_RECORDS}/ is, which is the default",
    )
    parser.add_argument(
        "--timeline",
        type=a_path("--timeline", "a build's .timeline.json"),
        metavar="FILE",
        help="the timeline of its build; default: the one beside the tarball",
    )
    parser.add_argument(
        "--json", action="store_true",
        help="also print all of it as JSON: coverage, verification, sizes, images, spilling, timeline, changes, notes",
    )  # fmt: skip


def check(arguments: argparse.Namespace) -> None:
    for word in filter(None, (arguments.release, arguments.against)):
        check_there(word, f"give {_RIGHT}")
    if arguments.verified and not arguments.verified.is_dir():
        raise EnvironmentProblem(f"--verified {arguments.verified} is not a folder; give one with records of runs")


def run(arguments: argparse.Namespace) -> int:
    from kiln_build.artifacts.manifest import load_verifications  # here, so that --help needs no package
    from kiln_build.difference import compare, side
    from kiln_build.ledger.planned import known_shares
    from kiln_build.pages import document
    from kiln_build.report import gather, page

    paths = [Path(word) for word in (arguments.release, arguments.against) if word]
    output = document.check_place(arguments.output, page.COMMAND, paths, "the page")
    release = side.open_side(paths[0])
    timeline = _timeline(release, arguments.timeline)
    difference = None
    if arguments.against:
        difference = compare.compare(side.open_side(paths[1]), release, known_shares([ROOT / "ledger"]))
    records = load_verifications(arguments.verified or ROOT / _RECORDS)
    report = gather.gather(release, records, timeline, difference)
    document.write(output, page.page(report))
    if arguments.json:
        print_json(gather.document(report))
    else:
        print_text(f"wrote {output}")
    return 0


def _timeline(release: Side, named: Path | None) -> Timeline | None:
    """The timeline that was named, or the one beside a tarball if it is of the same bytes."""
    from kiln_build.origin import timeline_file
    from kiln_build.trust import statement

    path = named or statement.timeline_of(release.path)
    if named is None and (release.kind != "tarball" or not path.is_file()):
        return None
    found = timeline_file.read(path)
    if release.digest and found.sha256 != release.digest:
        said = f"{path} is of a tarball with the digest {found.sha256[:12]}, and {release.path.name} has another"
        if named is None:
            raise ArtifactError(f"{said}; remove it, or build again")
        raise UsageError(f"{said}; give the one that its build wrote")
    return found
