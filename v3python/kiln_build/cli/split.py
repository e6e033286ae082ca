"""`kiln split`: a release in parts: the runtime, and each target's images; each installs and verifies by itself."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING

from kiln_build.cli.sign import add_password
from kiln_build.options.words import check_there
from kiln_build.trust import secret
from kiln_recipe import digests
from kiln_recipe.console.files import output_folder
from kiln_recipe.console.spelling import print_made
from kiln_recipe.console.tables import print_json, quantity
from kiln_recipe.console.usage import filled, one_of
from kiln_recipe.errors import UsageError

if TYPE_CHECKING:
    from kiln_build.parts.cut import Part

EXAMPLE = """\
kiln split kiln-0.1.0b-manylinux_2_28_x86_64-shared.tar.gz parts
kiln split kiln-0.1.0b-manylinux_2_28_x86_64-shared.tar.gz parts --sign ~/.minisign/minisign.key
kiln split kiln-0.1.0b-manylinux_2_28_x86_64-shared.tar.gz parts --format deb --maintainer 'Jo Doe <jo@example.org>'"""

FORMATS = ("tar", "deb", "rpm", "conda")

_RIGHT = "a release's tarball"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tarball", type=filled("the tarball", _RIGHT), help=_RIGHT)
    parser.add_argument(
        "output", type=filled("the output", "the folder for the parts"), help="the folder for the parts"
    )
    parser.add_argument(
        "--format", type=one_of("format", FORMATS), default=FORMATS[0], metavar="FORMAT",
        help=f"{', '.join(FORMATS)}; default: {FORMATS[0]}; rpm needs rpmbuild",
    )  # fmt: skip
    parser.add_argument(
        "--prefix", type=filled("--prefix", "an absolute path"), metavar="PATH",
        help="of deb and rpm: the folder in which it installs; default: /opt/kiln",
    )  # fmt: skip
    parser.add_argument(
        "--maintainer", type=filled("--maintainer", "a name and an address"), metavar="NAME",
        help="of deb and rpm: who maintains the packages: 'Jo Doe <jo@example.org>'",
    )  # fmt: skip
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
    for option in ("prefix", "maintainer"):
        if getattr(arguments, option) and arguments.format not in ("deb", "rpm"):
            raise UsageError(f"--{option} is of deb and rpm; leave it out, or give --format deb")
    if arguments.prefix and not re.fullmatch("(/[A-Za-z0-9_][A-Za-z0-9_.+-]*)+", arguments.prefix):
        raise UsageError(f"--prefix {arguments.prefix} is not an absolute path of plain names; for example /opt/kiln")
    if arguments.maintainer and not re.fullmatch("[^<>\\n]+ <[^<>@\\s]+@[^<>@\\s]+>", arguments.maintainer):
        raise UsageError(
            f"--maintainer {arguments.maintainer!r} is not a name and an address: 'Jo Doe <jo@example.org>'"
        )
    if arguments.sign:
        secret.check_key(arguments.sign)
    if arguments.password:
        secret.check(arguments.password, "the password")


def run(arguments: argparse.Namespace) -> int:
    from kiln_build.artifacts import reader  # here, so that --help needs no package
    from kiln_build.parts import cut, rpm
    from kiln_build.trust import sign
    from kiln_recipe.console.progress import make_progress

    if arguments.format == "rpm":
        rpm.check()
    release = reader.open_tarball(Path(arguments.tarball))
    key = secret.read_key(arguments.sign, arguments.password) if arguments.sign else None
    rows = []
    with output_folder(arguments.output) as out, make_progress() as progress, cut.laid_out(release, out) as parts:
        for part in parts:
            progress.message(f"packing the part {part.name}")
            made = _write(part, out, arguments)
            progress.message(f"the part {part.name} has {quantity(made.stat().st_size)}")
            signatures = [str(path) for path in sign.sign(made, key)] if key else []
            rows.append(
                {"part": part.name, "file": str(made), "bytes": made.stat().st_size, "sha256": digests.of_file(made),
                 "signatures": signatures}
            )  # fmt: skip
    if arguments.json:
        print_json(rows)
    else:
        print_made("\n".join(str(row["file"]) for row in rows), f"the parts in {out} are whole")
    return 0


def _write(part: Part, output: Path, arguments: argparse.Namespace) -> Path:
    from kiln_build.parts import conda, cut, deb, package, rpm

    if arguments.format == "tar":
        return cut.write_tarball(part, output)
    made = package.package_of(part)
    if arguments.format == "conda":
        return conda.write(made, output)
    write = deb.write if arguments.format == "deb" else rpm.write
    return write(made, output, arguments.prefix or package.PREFIX, arguments.maintainer or package.MAINTAINER)
