"""`kiln verify`: whether a release is one that the owner of a key has signed, and whole; from the outside in.

Runs on machines with no more than Python; looks into images if zstandard is there.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from kiln_build.artifacts import verify
from kiln_build.options.words import check_there
from kiln_build.trust import check as trust
from kiln_build.trust import minisign
from kiln_build.trust.check import Outcome
from kiln_build.trust.minisign import PublicKey
from kiln_recipe.console.files import read_given
from kiln_recipe.console.spelling import print_text
from kiln_recipe.console.tables import print_json, table
from kiln_recipe.console.usage import filled
from kiln_recipe.console.usage import path as a_path
from kiln_recipe.errors import EnvironmentProblem, UsageError

EXAMPLE = """\
kiln verify kiln-0.1.0b-manylinux_2_28_x86_64-shared.tar.gz --key kiln.pub
kiln verify kiln/ --key kiln.pub --signature kiln-0.1.0b-manylinux_2_28_x86_64-shared.manifest.json.minisig
kiln verify wheels/ --key kiln.pub --release 0.1.0b0"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "artifact",
        type=filled("the artifact", "a tarball, an unpacked release, or a folder of wheels"),
        help="a release's tarball, an unpacked release, a folder of wheels, a wheel, a pack, or the .pyz of a release",
    )
    parser.add_argument(
        "--key",
        action="append",
        required=True,
        type=a_path("--key", "a public key of minisign's"),
        metavar="FILE",
        help="a public key of minisign's that you trust; may be repeated; exit code 12 if it is signed by no such key",
    )
    parser.add_argument(
        "--signature",
        type=a_path("--signature", "the signature's file"),
        metavar="FILE",
        help="the signature, if it does not lie beside what is signed; of an unpacked release that of manifest.json",
    )
    parser.add_argument(
        "--release",
        type=filled("--release", "for example 0.1.0b+full"),
        metavar="NAME",
        help="the release that it has to be; another one, though signed, is refused with exit code 12",
    )
    parser.add_argument("--json", action="store_true", help="as JSON: file, release, signed, provenance, verified")


def check(arguments: argparse.Namespace) -> None:
    check_there(arguments.artifact, trust.WHAT)


def run(arguments: argparse.Namespace) -> int:
    keys = [_key(path) for path in arguments.key]
    outcome = trust.check(Path(arguments.artifact), keys, arguments.release or "", arguments.signature)
    if note := verify.note_of_program():
        outcome.report.notes.append(note)
    if arguments.json:
        print_json(_document(Path(arguments.artifact), outcome))
    elif not outcome.report.problems:
        print_text(_describe(outcome))
    verify.refuse_problems(outcome.report, arguments.artifact)
    return 0


def _key(path: Path) -> PublicKey:
    try:
        data = read_given(path, minisign.LARGEST + 1)
    except OSError as error:
        raise EnvironmentProblem(f"--key {path} cannot be read ({error.strerror}); give a public key's file") from error
    if len(data) > minisign.LARGEST:
        raise UsageError(f"--key {path} has more than {minisign.LARGEST} bytes; give a public key's file")
    return minisign.read_public_key(data, f"--key {path}")


def _describe(outcome: Outcome) -> str:
    report, first = outcome.report, outcome.signed[0]
    rows = [(row.signature, row.statement.kind, row.key) for row in outcome.signed]
    whole = "whole" if report.complete else "whole as far as it was read"
    counts = verify.counts(report)
    came = outcome.provenance
    lines = [
        f"Kiln {outcome.release}, signed by the key {first.key}",
        *([f"built from commit {came.commit} by {came.builder}, {came.finished}"] if came else []),
        "",
        table(("SIGNATURE", "OF", "KEY"), rows),
        "",
        f"{whole}: {counts} checked" if counts else "whole",
        *(f"note: {note}" for note in report.notes),
    ]
    return "\n".join(lines)


def _document(path: Path, outcome: Outcome) -> dict[str, object]:
    return {
        "file": path.name,
        "release": outcome.release,
        "signed": [{"signature": row.signature, "key": row.key, **asdict(row.statement)} for row in outcome.signed],
        "provenance": asdict(outcome.provenance) if outcome.provenance else None,
        "verified": asdict(outcome.report),
    }
