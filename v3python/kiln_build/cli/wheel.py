"""`kiln wheel`: makes Python wheels: kiln-runtime and kiln-images of a release, and kiln-build of this source."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import kiln_build
from kiln_build.artifacts import reader as inspect
from kiln_build.artifacts import verify
from kiln_build.artifacts.reader import Release
from kiln_build.base import ROOT
from kiln_build.cli import VERBS
from kiln_build.cli.sign import add_password
from kiln_build.front import source, workspace
from kiln_build.options import words
from kiln_build.trust import secret, sign
from kiln_recipe import targets as table
from kiln_recipe.console.files import output_folder
from kiln_recipe.console.spelling import say
from kiln_recipe.console.usage import add_targets, filled
from kiln_recipe.errors import ArtifactError, EnvironmentProblem, UsageError

if TYPE_CHECKING:
    from kiln_build.base.wheel_file import Wheel
    from kiln_build.release.wheel import Contents

EXAMPLE = """\
kiln wheel output/kiln-0.1.0b-manylinux_2_28_x86_64-shared.tar.gz wheels
kiln wheel output/kiln-0.1.0b-manylinux_2_28_x86_64-shared.tar.gz wheels --python python3 --target sm_90
kiln wheel output/kiln-0.1.0b-manylinux_2_28_x86_64-shared.tar.gz wheels --sign ~/.minisign/minisign.key"""


_RIGHT = "a release's tarball, or the folder that it was unpacked to"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "artifact", type=filled("the artifact", _RIGHT), help="a release's tarball, or an unpacked release"
    )
    parser.add_argument(
        "output", type=filled("the output", "the folder for the wheels"), help="the folder for the wheels"
    )
    parser.add_argument(
        "--python", action="append", type=filled("--python", "the command of a Python"), metavar="COMMAND",
        help="make a wheel for this Python, which needs headers; may be repeated; default: those that are found",
    )  # fmt: skip
    add_targets(parser, "images of this target alone; may be repeated")
    parser.add_argument("--replace", action="store_true", help="replace other wheels of the same names")
    parser.add_argument(
        "--url",
        action="append",
        type=filled("--url", "for example Source=https://git.example.org/kiln"),
        metavar="LABEL=ADDRESS",
        help="an address that the packages state (Project-URL): 'Source=https://git.example.org/kiln'; may be repeated",
    )
    parser.add_argument(
        "--sign",
        type=filled("--sign", secret.WHERE),
        metavar="KEY",
        help=f"sign the wheels, as `kiln sign` does; a secret key of minisign's: {secret.WHERE}",
    )
    add_password(parser)
    parser.add_argument(
        "--json",
        action="store_true",
        help="as JSON: wheels, the targets, profile and selection of their images, signed, left_out with the reasons",
    )


def check(arguments: argparse.Namespace) -> None:
    if arguments.target:
        table.parse(";".join(arguments.target))
    words.check_there(arguments.artifact, f"give {_RIGHT}")
    words.check_output(arguments.output, Path.cwd(), None)
    _urls(arguments.url or ())
    if arguments.sign:
        secret.check_key(arguments.sign)
    if arguments.password:
        if not arguments.sign:
            raise UsageError("--password is that of a key; give the key with --sign, or leave the password out")
        secret.check(arguments.password, "the password")


def _urls(given: Sequence[str]) -> dict[str, str]:
    """The addresses that the packages state, by label: 32 letters at most, as the registry takes them."""
    urls = {}
    for word in given:
        found = re.fullmatch(r"([A-Za-z0-9][A-Za-z0-9 ._-]{0,31})=(https?://[!-~]+)", word)
        if found is None:
            raise UsageError(
                f"--url {word!r} is not a label and an address; give for example Source=https://git.example.org/kiln"
            )
        urls[found[1]] = found[2]
    return urls


def run(arguments: argparse.Namespace) -> int:
    artifact = inspect.open_artifact(Path(arguments.artifact), f"give {_RIGHT}")
    if not isinstance(artifact, Release):
        raise ArtifactError(f"{arguments.artifact} is not a release; give {_RIGHT}")
    output = words.check_output(arguments.output, Path.cwd(), None)
    words.check_outside(output, artifact.path, f"output {arguments.output}")
    key = secret.read_key(arguments.sign, arguments.password) if arguments.sign else None  # wrong ones are said now
    made, targets, left_out = _make(artifact, output, arguments)
    signed = sign.sign(output, key) if key else []
    if arguments.json:
        facts = {
            "targets": targets,
            "profile": artifact.manifest["profile"],
            "selection": artifact.manifest["selection"],
        }
        facts |= {"signed": [str(path) for path in signed], "left_out": left_out}
        print(json.dumps({"wheels": [str(path) for path in made], **facts}, indent=1))
    else:
        print("\n".join(map(str, (*made, *signed))))
    for reason in (_held(artifact, targets), *left_out):
        say(reason)
    return 0


def _held(artifact: Release, targets: Sequence[str]) -> str:
    """What the wheels have."""
    if not targets:
        return "the wheels have no images: the release was built without any"
    build = [f"profile {artifact.manifest['profile']}", *filter(None, [artifact.manifest["selection"]])]
    return f"the wheels have attention for {' and '.join(targets)} ({', '.join(build)})"


def _without_library(artifact: Release) -> list[str]:
    """A sentence for each family whose images are in the wheels' packs, and whose library is not."""
    from kiln_recipe.model import FAMILY

    return [
        f"no library for the family {family}: of a release's families wheels have {FAMILY} alone; Python calls others "
        f"by kiln.jit.Recipe, C by libkiln_{family}.so of the tarball"
        for family in inspect.families_of(artifact.manifest["variants"])
        if family != FAMILY
    ]


def _refuse_without_attention(artifact: Release, name: str) -> None:
    """Raises UsageError for a release that KILN_FAMILIES left the attention family out of."""
    from kiln_recipe.model import FAMILY

    families = artifact.manifest.get("families") or [FAMILY]
    if FAMILY not in families:
        raise UsageError(
            f"{name} has no attention, which Kiln's Python package is for: it was built for {', '.join(families)} "
            f"alone; Python calls such a family by kiln.jit.Recipe, C by libkiln_{families[0]}.so of the tarball"
        )


def _refuse_without_images(artifact: Release, name: str) -> None:
    """Raises UsageError for a release whose images KILN_SELECT left to other families."""
    from kiln_recipe.model import FAMILY

    families = inspect.families_of(artifact.manifest["variants"])
    if families and FAMILY not in families:
        raise UsageError(
            f"{name} has no images of attention, which Kiln's Python package is for: it was built for "
            f"{artifact.manifest['selection']} alone; build one with family={FAMILY} in KILN_SELECT, or without "
            "KILN_SELECT"
        )


def _make(artifact: Release, output: Path, arguments: argparse.Namespace) -> tuple[list[Path], list[str], list[str]]:
    """The wheels, the targets that they have images for, and a sentence for each wheel that is not made."""
    from kiln_build.base import machine
    from kiln_build.native import native
    from kiln_build.release import wheel  # here, so that --help needs no package

    _refuse_without_attention(artifact, arguments.artifact)
    targets = arguments.target
    names = [target.name for target in table.parse(";".join(targets))] if targets else []
    wheel.python_version(str(artifact.manifest["kiln"]))
    verify.refuse_problems(verify.verify(artifact), arguments.artifact)  # before anything that takes long
    _note_other_source(artifact)
    site = Path(sysconfig.get_paths()["purelib"])
    with _folders() as (cache, kept), tempfile.TemporaryDirectory(prefix="kiln-wheel-") as temporary:
        contents = wheel.unpack(artifact, names, Path(temporary), _urls(arguments.url or ()))
        chosen, left_out = _choose(arguments.python)
        if not chosen:
            raise EnvironmentProblem(f"no wheel can be built: {'; '.join(left_out)}")
        _refuse_without_images(artifact, arguments.artifact)
        compiler = native.zig_compiler(sys.executable, cache, wheel.zig())
        wheels = [wheel.recipe_wheel(contents, ROOT), wheel.cli_wheel(contents, ROOT), build_wheel(contents)]
        wheels += [
            wheel.runtime_wheel(contents, ROOT, site, headers, compiler, kept, machine.usable_cpus(), say)
            for headers in chosen
        ]
        wheels += [wheel.images_wheel(contents, target) for target in contents.packs]
        with output_folder(str(output)) as folder:
            made = wheel.write(wheels, folder, arguments.replace)
        return made, list(contents.packs), left_out + _without_library(artifact)


def build_wheel(contents: Contents) -> Wheel:
    """kiln-build of this source tree."""
    from kiln_build.release import wheel

    verbs = [name for name, verb in VERBS.items() if verb.is_packaged]
    origin = source.encode(source.describe(ROOT))
    described = (Path(kiln_build.__file__).with_name("README.md")).read_text()
    return wheel.build_wheel(contents, ROOT, source.tree_files(ROOT), origin, verbs, described)


def _choose(commands: Sequence[str] | None) -> tuple[list, list[str]]:
    """Whose headers are taken, one Python for each ABI; and why there is none for the others."""
    from kiln_build.native import pythons
    from kiln_build.release import wheel

    found: dict[tuple[int, int], pythons.Headers] = {}
    refused: dict[str, str] = {}
    for command in commands or pythons.python_commands(os.environ):
        try:
            headers = pythons.headers_of(command)
        except EnvironmentProblem as error:
            if commands:
                raise
            refused[command] = str(error)
            continue
        abi = wheel.abi_of(headers)
        if abi not in found or headers.version < found[abi].version:
            found[abi] = headers
    left_out = []
    for abi in wheel.ABIS:
        if abi not in found:
            name = "{}.{}".format(*abi)
            near = [reason for command, reason in refused.items() if f"Python {name}." in reason]
            later = " or later" if abi == wheel.ABIS[-1] else ""
            why = near[0] if near else f"no Python {name}{later} with headers was {'named' if commands else 'found'}"
            hint = "" if near else f"; --python python{name} names one"
            left_out.append(f"no wheel for Python {name}{later}: {why}{hint}")
    return [found[abi] for abi in sorted(found)], left_out


def _note_other_source(artifact: Release) -> None:
    stated = artifact.manifest.get("source") or {}
    ours = source.describe(ROOT)
    theirs = stated.get("commit")
    if "unknown" not in (theirs, ours.commit) and theirs != ours.commit:
        say(
            f"the release was built from commit {str(theirs)[:12]}, but the wheels' Python modules are from "
            f"this tree's commit, {ours.commit[:12]}"
        )


@contextlib.contextmanager
def _folders() -> Iterator[tuple[Path, Path]]:
    """Where zig keeps what it compiled, and where extensions are kept: in the workspace whose Python runs, if it is
    one's, else in a folder that is removed."""
    place = Path(sys.prefix).parent
    if workspace.is_workspace(place):
        with workspace.own_workspace(place, say, clean=False, installs=False):
            yield place / "zig", place / "build/lib"
        return
    with tempfile.TemporaryDirectory(prefix="kiln-zig-") as folder:
        yield Path(folder) / "zig", Path(folder) / "lib"
