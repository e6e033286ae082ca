"""`kiln build`: what build.sh does once its packages are installed: plan, compile, pack, link, release."""

from __future__ import annotations

import argparse
import os
import sysconfig
from contextlib import AbstractContextManager
from pathlib import Path

from kiln_build.artifacts.manifest_model import SIGNATURE
from kiln_build.base import ROOT
from kiln_build.front import source, workspace
from kiln_build.options import options
from kiln_build.options.failure_log import failures_logged
from kiln_build.options.options import Options
from kiln_build.options.variables import MOST_SHARDS
from kiln_build.trust import secret
from kiln_recipe.console.spelling import print_made, say
from kiln_recipe.console.usage import add_families, count, filled
from kiln_recipe.errors import MissingImages, UsageError

EXAMPLE = """\
kiln build input workspace output 0.1.0b "MI300X;sm_90"
kiln build input workspace output 0.1.0b sm_90 --cache http://cache.example.org:8080/kiln
kiln build input workspace output 0.1.0b all --shard 3/100      the third of a hundred parts, into KILN_STORE
kiln build input workspace output 0.1.0b all --from-store --shards 100      the release, once all have run
KILN_SELECT='dtype=bf16;head_dim=64' kiln build input workspace output 0.1.0b sm_90
KILN_RECIPES=/home/me/norm/recipe.yaml kiln build input workspace output 0.1.0b all
kiln build input workspace output 0.1.0b sm_90 --recipe norm/recipe.yaml    only this family, without attention
kiln build input workspace output 0.1.0b all --scheduler tcp://head:8786    on a Dask cluster
kiln build input workspace output 0.1.0b sm_90 --sign ~/.minisign/minisign.key"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "input",
        type=filled("the input", "the folder input/ of the source tree, or a copy of it"),
        help="the folder with toolchain.lock.yaml and the download cache",
    )
    parser.add_argument(
        "workspace",
        type=filled("the workspace", "a folder"),
        help="a folder for all temporary files, reused by the next build",
    )
    parser.add_argument(
        "output", type=filled("the output", "the folder for the tarball"), help="the folder for the tarball"
    )
    parser.add_argument(
        "version", type=filled("the version", "X.Y or X.Y.Z, as 0.1.0b"), help="X.Y or X.Y.Z with an optional suffix"
    )
    parser.add_argument(
        "targets",
        type=filled("the list of targets", "for example 'MI300X;sm_90', or all"),
        help='GPUs or architectures, or all: "MI300X;sm_90"',
    )
    add_families(parser, "build")
    parser.add_argument(
        "--scheduler",
        type=filled("--scheduler", "a scheduler's address, as tcp://host:8786"),
        metavar="ADDRESS",
        help="have the workers of a Dask cluster compile: its scheduler's address, tcp://host:8786 or tls://host:8786",
    )
    parser.add_argument("--replace", action="store_true", help="replace another build's release of the same name")
    parser.add_argument(
        "--shard", type=filled("--shard", "I/N, for example 3/100"), metavar="I/N",
        help="compile the I-th of N parts of the images into the store, and make no release; each part on a machine of "
        "its own, and then --from-store",
    )  # fmt: skip
    parser.add_argument(
        "--from-store", action="store_true",
        help=f"compile nothing; exit code {MissingImages.exit_code} if an image is not in the store",
    )  # fmt: skip
    parser.add_argument(
        "--shards", type=count("--shards", MOST_SHARDS), metavar="N",
        help="with --from-store: how many shards there were, to name the one that lacks an image",
    )  # fmt: skip
    parser.add_argument(
        "--durations", type=filled("--durations", "a copy of a store's file durations"), metavar="FILE",
        help="with --shard or --shards: a copy of a store's file durations, the same for all shards, by which the "
        "images are divided; default: by estimates",
    )  # fmt: skip
    parser.add_argument(
        "--cache", type=filled("--cache", "the address of a cache"), metavar="ADDRESS",
        help="a cache behind the store, which a team shares: http://host:8080/kiln; variables KILN_CACHE_... say how "
        "it is opened; default: KILN_CACHE",
    )  # fmt: skip
    parser.add_argument(
        "--profile",
        action="store_true",
        help="say what each stage of compiling each kernel, and each step of the build, took of processors; as JSON "
        "beside the tarball, too",
    )
    parser.add_argument(
        "--log-json",
        type=filled("--log-json", "a file, or an open descriptor's number"),
        metavar="FILE",
        help="progress as JSON lines, to a file or an open descriptor",
    )
    parser.add_argument(
        "--sign",
        type=filled("--sign", secret.WHERE),
        metavar="KEY",
        help=f"sign the release, as `kiln sign` does; a secret key of minisign's: {secret.WHERE}",
    )
    parser.add_argument(
        "--password",
        type=filled("--password", secret.WHERE),
        metavar="SOURCE",
        help="where the key's password is, in the same forms; default: it is asked for on the terminal",
    )


def check(arguments: argparse.Namespace) -> None:
    with _failures_logged(arguments):
        options.check_environment()
        if arguments.sign:
            secret.check_key(arguments.sign)
        if arguments.password:
            if not arguments.sign:
                raise UsageError("--password is that of a key; give the key with --sign, or leave the password out")
            secret.check(arguments.password, "the password")
        made = _options(arguments)
        if arguments.sign and made.build.shard:
            raise UsageError("--sign signs a release, and a shard makes none; sign the one of --from-store")


def check_files(arguments: argparse.Namespace) -> None:
    from kiln_build.release import families

    with _failures_logged(arguments):
        families.check_files(ROOT, _options(arguments).build)


def _failures_logged(arguments: argparse.Namespace) -> AbstractContextManager[None]:
    return failures_logged(arguments.log_json or os.environ.get("KILN_LOG_JSON"))


# The variables that options stand for, with the option's name: a sentence names what the user gave.
_OPTIONS = {
    "KILN_LOG_JSON": "--log-json", "KILN_SCHEDULER": "--scheduler", "KILN_CACHE": "--cache", "KILN_SHARD": "--shard",
    "KILN_DURATIONS": "--durations",
}  # fmt: skip


def called(arguments: argparse.Namespace) -> dict[str, str]:
    """The options that were given, by the variables that they stand for."""
    return {name: option for name, option in _OPTIONS.items() if getattr(arguments, option[2:].replace("-", "_"))}


def environment_of(arguments: argparse.Namespace) -> dict[str, str]:
    """The environment in which build.sh does what the options ask for."""
    environment = options.narrow(os.environ, arguments.recipe, arguments.family, Path.cwd())
    for name, option in called(arguments).items():
        environment[name] = getattr(arguments, option[2:].replace("-", "_"))
    if arguments.replace:
        environment["KILN_REPLACE"] = "1"
    if arguments.from_store:
        environment["KILN_FROM_STORE"] = "1"
    if arguments.shards:
        environment["KILN_SHARDS"] = str(arguments.shards)
    if arguments.profile:
        environment["KILN_COSTS"] = "1"
    return environment


def _options(arguments: argparse.Namespace) -> Options:
    environment = environment_of(arguments)
    origin = source.describe(ROOT)
    return options.make_options(
        [arguments.input, arguments.workspace, arguments.output, arguments.version, arguments.targets],
        options.read_build_variables(environment, called(arguments)),
        ROOT,
        Path.cwd(),
        commit=origin.commit,
        dirty=origin.dirty,
        patches=origin.patches,
        site=Path(sysconfig.get_paths()["purelib"]),
        called=called(arguments),
    )


def run(arguments: argparse.Namespace) -> int:
    with _failures_logged(arguments):
        return _build(arguments)


def _build(arguments: argparse.Namespace) -> int:
    from kiln_build.release import build
    from kiln_build.trust import sign
    from kiln_recipe.compile import lock  # here, so that --help needs no package

    made = _options(arguments)
    key = secret.read_key(arguments.sign, arguments.password) if arguments.sign else None  # wrong ones are said now
    # build.sh alone sets up more than one Triton; to build with another than was asked for would be silent.
    overrides = lock.read_lock(made.input / lock.LOCK_NAME).overrides
    named = [t.name for t in made.targets if any(t.is_called(name) for name in overrides)]
    if made.build.triton == "source" or named:
        what = f"the lock has another Triton for {', '.join(named)}" if named else "KILN_TRITON=source"
        raise UsageError(f"{what}: `kiln build` compiles with the Triton of its own environment; use build.sh")
    with workspace.own_workspace(made.workspace, say, made.build.clean, installs=False):
        tarball = build.build(made)
    if tarball is None:  # a shard
        return 0
    if key is not None:
        for path in sign.sign(tarball, key):
            say(f"signed: {path}" if path.name.endswith(SIGNATURE) else f"written: {path}")
    print_made(str(tarball), f"the release {tarball} is whole")
    return 0
