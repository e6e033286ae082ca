"""`kiln fetch`: fills the download cache from the toolchain's lock, checks it, and carries it in one file.

`--verify` and `--unbundle` run on machines with no more than Python.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from kiln_build.base import ROOT
from kiln_build.options import options
from kiln_recipe.console import files
from kiln_recipe.console.usage import count, filled, path
from kiln_recipe.errors import ToolchainError, UsageError

if TYPE_CHECKING:
    from kiln_build.fetch import fetch
    from kiln_build.fetch.registry import Registry

EXAMPLE = """
kiln fetch                              fill input/cache/ for the Python that runs
kiln fetch --python 3.12                for another one, that of a container say
kiln fetch --verify                     read every byte; exit code 5 if anything is missing or wrong
kiln fetch --bundle toolchain.tar       one file with the lock and the cache
kiln fetch --unbundle toolchain.tar     the other way round, on another machine
kiln fetch --relock                     look up the lock's packages again, after a change of version
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--input",
        type=path("--input", "the folder input/ of the source tree, or a copy of it"),
        default=ROOT / "input",
        metavar="FOLDER",
        help="with the lock; default: input/",
    )
    parser.add_argument(
        "--python",
        action="append",
        type=filled("--python", "a version such as 3.12, or all"),
        metavar="X.Y",
        help="fetch for this Python, or for `all`; may be given repeatedly",
    )
    parser.add_argument("--triton-source", action="store_true", help="also what Triton is built from source with")
    parser.add_argument("--scheduler", action="store_true", help="also what KILN_SCHEDULER, a Dask cluster, needs")
    parser.add_argument(
        "--parallel", type=count("--parallel", 1000), default=4, metavar="N", help="files at once; default: 4"
    )
    parser.add_argument(
        "--json", action="store_true", help="as JSON: names, under fetched, unpacked, or missing, corrupt and unknown"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--verify", action="store_true", help="fetch nothing: check every byte of the cache")
    what.add_argument(
        "--bundle",
        type=path("--bundle", "the file to make"),
        metavar="FILE",
        help="fetch, then pack lock and cache into FILE",
    )
    what.add_argument(
        "--unbundle",
        type=path("--unbundle", "a file that --bundle made"),
        metavar="FILE",
        help="unpack FILE into the cache",
    )
    what.add_argument("--relock", action="store_true", help="write the lock anew from the registry")


def check(arguments: argparse.Namespace) -> None:
    for what in ("unbundle", "relock"):
        given = {"--python": arguments.python, "--triton-source": arguments.triton_source,
                 "--scheduler": arguments.scheduler}  # fmt: skip
        if getattr(arguments, what) and any(given.values()):
            ignored = next(name for name, value in given.items() if value)
            raise UsageError(f"--{what} is for every Python and use of the lock; leave {ignored} out")
    if arguments.bundle:
        _bundle_file(arguments.bundle)
    options.check_environment()
    options.read_ca_bundle(os.environ, Path.cwd())


def _bundle_file(word: Path) -> Path:
    from kiln_build.fetch import bundle

    return files.check_new_file(word, Path.cwd(), "--bundle", bundle.BEGIN, "bundle of `kiln fetch`")


def run(arguments: argparse.Namespace) -> int:
    from kiln_build.fetch import bundle, fetch
    from kiln_recipe.compile.lock import LOCK_NAME, check_python, read_lock, running_python
    from kiln_recipe.console import progress

    folder, cache = arguments.input, arguments.input / "cache"
    made = _bundle_file(arguments.bundle) if arguments.bundle else None
    certificates = options.read_ca_bundle(os.environ, Path.cwd())
    shown = progress.make_progress()

    def registry() -> Registry:
        from kiln_build.fetch.registry import Registry, read_configuration

        return Registry(read_configuration(certificates))

    if arguments.unbundle:
        names = bundle.read_bundle(arguments.unbundle, folder, shown)
        return _tell(arguments, f"{len(names)} files unpacked into {cache}", unpacked=names)
    if arguments.relock:
        from kiln_build.fetch.relock import relock

        lock = relock(folder, registry())
        return _tell(arguments, f"{folder / LOCK_NAME}: {len(lock.every_file())} files", files=len(lock.every_file()))
    lock = read_lock(folder / LOCK_NAME)
    asked = arguments.python or [running_python()]
    pythons = list(lock.pythons) if "all" in asked else [check_python(lock, python) for python in asked]
    more = {"triton-source": arguments.triton_source, "scheduler": arguments.scheduler}
    uses = ("front", "build", "override", *(use for use, is_asked in more.items() if is_asked))
    files = lock.wanted(pythons, uses)
    if arguments.verify:
        return _verify(arguments, fetch.verify_cache(lock, files, cache, shown), cache)
    names = fetch.fetch_files(lock, files, cache, registry, shown, parallel=arguments.parallel)
    if made:
        bundle.write_bundle(made, folder, lock, files, shown)
    here = f"{len(names)} files fetched, {len(files) - len(names)} were there: {cache}"
    also = f"; {arguments.bundle} made" if made else ""
    return _tell(arguments, here + also, fetched=names, bundle=str(arguments.bundle) if arguments.bundle else None)


def _verify(arguments: argparse.Namespace, verdict: fetch.Verdict, cache: Path) -> int:
    lines = [
        *(f"missing  {name}" for name in verdict.missing),
        *(f"corrupt  {problem}" for problem in verdict.corrupt),
        *(f"unknown  {name}" for name in verdict.unknown),
    ]
    text = "\n".join(lines) or f"{cache} is complete and right"
    _tell(
        arguments,
        text,
        good=verdict.good,
        missing=verdict.missing,
        corrupt=verdict.corrupt,
        unknown=verdict.unknown,
    )
    return 0 if verdict.good else ToolchainError.exit_code


def _tell(arguments: argparse.Namespace, text: str, **fields: object) -> int:
    print(json.dumps(fields, indent=2) if arguments.json else text)
    return 0
