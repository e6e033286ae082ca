"""`kiln split`: a release in parts: the runtime, and each target's images; each installs and verifies by itself."""

from __future__ import annotations

import argparse

from kiln_build.cli.select import opened_tarball, output_folder
from kiln_build.cli.sign import add_password
from kiln_build.options.words import check_there
from kiln_build.trust import secret
from kiln_recipe import digests
from kiln_recipe.console.spelling import print_made
from kiln_recipe.console.tables import print_json
from kiln_recipe.console.usage import filled

EXAMPLE = """\
kiln split kiln-0.1.0b-manylinux_2_28_x86_64-shared.tar.gz parts
kiln split kiln-0.1.0b-manylinux_2_28_x86_64-shared.tar.gz parts --sign ~/.minisign/minisign.key"""

_RIGHT = "a release's tarball"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tarball", type=filled("the tarball", _RIGHT), help=_RIGHT)
    parser.add_argument(
        "output", type=filled("the output", "the folder for the parts"), help="the folder for the parts"
    )
    parser.add_argument(
        "--sign", type=filled("--sign", secret.WHERE), metavar="KEY",
        help=f"sign each part with this secret key, as `kiln sign` does: {secret.WHERE}",
    )  # fmt: skip
    add_password(parser)
    parser.add_argument(
        "--json", action="store_true", help="as JSON: a list with part, file, bytes, sha256 and signatures of each"
    )


def check(arguments: argparse.Namespace) -> None:
    check_there(arguments.tarball, f"give {_RIGHT}")
    if arguments.sign:
        secret.check(arguments.sign, "the key")
    if arguments.password:
        secret.check(arguments.password, "the password")


def run(arguments: argparse.Namespace) -> int:
    from kiln_build.parts import cut  # here, so that --help needs no package
    from kiln_build.trust import sign
    from kiln_recipe.console.progress import make_progress

    release = opened_tarball(arguments.tarball)
    key = secret.read_key(arguments.sign, arguments.password) if arguments.sign else None
    output = output_folder(arguments.output)
    rows = []
    with make_progress() as progress, cut.laid_out(release, output) as parts:
        for part in parts:
            progress.message(f"packing the part {part.name}")
            made = cut.write_tarball(part, output)
            signatures = [str(path) for path in sign.sign(made, key)] if key else []
            rows.append(
                {"part": part.name, "file": str(made), "bytes": made.stat().st_size, "sha256": digests.of_file(made),
                 "signatures": signatures}
            )  # fmt: skip
    if arguments.json:
        print_json(rows)
    else:
        print_made("\n".join(str(row["file"]) for row in rows), f"the parts in {output} are whole")
    return 0
