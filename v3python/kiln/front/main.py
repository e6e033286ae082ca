"""The second half of build.sh, in the virtual environment: checks, container or host, all other packages, the build."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from kiln import fetch, lock, options, progress, targets
from kiln.errors import KilnError, ToolchainError
from kiln.front import packages, source
from kiln.options import BuildVariables, FrontDoor
from kiln.registry import Registry, read_configuration

USES = ("front", "build", "override")
ROOT = Path(__file__).resolve().parents[3]


def main(words: Sequence[str]) -> int:
    """Takes build.sh's five words, made absolute; returns the exit code."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        cwd = Path.cwd()
        door = options.read_front_door(words, os.environ, cwd)
        targets.parse(door.targets)
        variables = options.read_build_variables(os.environ)
        for recipe in variables.recipes:
            options.check_recipe(recipe, cwd)
        from kiln.front import engine

        chosen = engine.choose(door, _say)
        if chosen is not None:
            return engine.build(chosen, door, ROOT, _say)
        return build_here(door, variables)
    except KilnError as error:
        print(f"kiln: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("kiln: interrupted; what was done is kept", file=sys.stderr)
        return 128 + signal.SIGINT


def build_here(door: FrontDoor, variables: BuildVariables) -> int:
    """Fetches and installs what is missing, then builds in this process."""
    the_lock = lock.read_lock(door.input / lock.LOCK_NAME)
    python = lock.check_python(the_lock, lock.running_python())
    from_source = variables.triton == "source"
    uses = (*USES, "triton-source") if from_source else USES
    fetch_all(the_lock, python, door.input / "cache", door.ca_bundle, uses)
    overrides = {
        target.name: the_lock.override_of((target.name, *reversed(target.groups)))
        for target in targets.parse(door.targets)
    }
    requirements = the_lock.requirements(python, ("front", "build"), without=("triton",) if from_source else ())
    workspace = door.workspace
    if packages.prepare_rest(workspace, door.input, requirements):
        _say(f"packages: installed from {door.input / 'cache'}")
    if from_source:
        from kiln.front import triton

        tools = the_lock.requirements(python, ("triton-source",))
        site = triton.build_from_source(door.input, workspace, tools, _say)
    else:
        site = packages.environment_site(workspace)
    sites = []
    for target, package in overrides.items():
        if package is not None:
            only = the_lock.requirements(python, ("override",), only=(package.requirement,))
            name = package.requirement.replace("==", "-")
            sites.append((target, packages.prepare_toolchain(workspace, door.input, name, only)))
    origin = source.describe(ROOT)
    made = options.make_options(
        [str(door.input), str(workspace), str(door.output), door.version, door.targets],
        variables,
        ROOT,
        Path.cwd(),
        commit=origin.commit,
        dirty=origin.dirty,
        patches=origin.patches,
        site=site,
        target_sites=tuple(sites),
    )
    from kiln import build

    tarball = build.build(made)
    print(Path(os.environ.get(options.SHOWN_OUTPUT) or tarball.parent, tarball.name))
    return 0


def fetch_all(
    the_lock: lock.Lock, python: str, cache: Path, ca_bundle: Path | None, uses: Sequence[str] = USES
) -> None:
    """Fills the cache with what builds on `python` read; asks nobody if it is full.

    Raises:
        ToolchainError: something cannot be had.
    """
    wanted = the_lock.wanted([python], uses)
    if not fetch.missing_files(wanted, cache):
        return
    try:
        fetch.fetch_files(
            the_lock, wanted, cache, lambda: Registry(read_configuration(ca_bundle)), progress.make_progress()
        )
    except ToolchainError as error:
        raise ToolchainError(f"{error}; where there is no network, bring the cache with `kiln fetch --unbundle`")


def _say(text: str) -> None:
    print(f"kiln: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
