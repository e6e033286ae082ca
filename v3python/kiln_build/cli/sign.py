"""`kiln sign`: signs a release, wheels or packs, in minisign's format."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from kiln_build.options.words import check_there
from kiln_build.trust import check as trust
from kiln_build.trust import secret
from kiln_recipe.console.spelling import print_made
from kiln_recipe.console.usage import filled

EXAMPLE = """\
kiln sign output/kiln-0.1.0b-manylinux_2_28_x86_64-shared.tar.gz --key ~/.minisign/minisign.key
kiln sign wheels/ --key env:SIGNING_KEY --password 3 3< password"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "artifact",
        nargs="+",
        type=filled("the artifact", "a tarball, an unpacked release, a folder of wheels or a pack"),
        help="a release's tarball, an unpacked release, a folder of wheels, or a pack",
    )
    parser.add_argument(
        "--key",
        required=True,
        type=filled("--key", secret.WHERE),
        metavar="KEY",
        help=f"a secret key that `minisign -G` made: {secret.WHERE}",
    )
    add_password(parser)
    parser.add_argument("--json", action="store_true", help="as JSON: the files that were written")


def add_password(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--password",
        type=filled("--password", secret.WHERE),
        metavar="SOURCE",
        help="where the key's password is, in the same forms; default: it is asked for on the terminal",
    )


def check(arguments: argparse.Namespace) -> None:
    for word in arguments.artifact:
        check_there(word, trust.WHAT)
    secret.check_key(arguments.key)
    if arguments.password:
        secret.check(arguments.password, "the password")


def run(arguments: argparse.Namespace) -> int:
    from kiln_build.trust import sign

    key = secret.read_key(arguments.key, arguments.password)
    made = [str(path) for word in arguments.artifact for path in sign.sign(Path(word), key)]
    print_made(json.dumps(made) if arguments.json else "\n".join(made), "the signatures are written")
    return 0
