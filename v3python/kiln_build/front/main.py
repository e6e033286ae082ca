"""The second half of build.sh, in the virtual environment: checks, container or host, all other packages, the build."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from kiln_build.base import ROOT
from kiln_build.front import cache, engine, packages, source, triton
from kiln_build.front.interruption import Interruption, guarded
from kiln_build.front.signals import leave
from kiln_build.options import options
from kiln_build.options.options import FrontDoor
from kiln_recipe import digests, targets
from kiln_recipe.compile import lock
from kiln_recipe.console import progress
from kiln_recipe.console.spelling import print_made, say


def main(words: Sequence[str]) -> int:
    """Takes build.sh's five words, made absolute; returns the exit code."""
    return guarded(lambda interruption: _run(words, interruption), os.environ.get("KILN_LOG_JSON"))


def _run(words: Sequence[str], interruption: Interruption) -> int:
    door = options.read_front_door(words, os.environ, Path.cwd())
    targets.parse(door.targets)
    if digests.of_file(door.input / lock.LOCK_NAME) != packages.read_stamp(door.place).get(packages.EVERYTHING):
        from kiln_build.release import families  # needs the packages of the front

        families.check_files(ROOT, door.build)  # before a gigabyte is installed; the build itself reads them again
    chosen = engine.choose(door, say)
    if chosen is not None:
        return engine.build(chosen, door, ROOT, say)
    interruption.first = make_helpers_stop()
    made = _build_here(door)
    if made is not None:
        print_made(str(made), f"the release {made} is whole")
    return 0


def _build_here(door: FrontDoor) -> Path | None:
    """Fetches and installs what is missing, then builds in this process; returns the tarball by the caller's name, or
    None if none was asked for."""
    the_lock = lock.read_lock(door.input / lock.LOCK_NAME)
    python = lock.check_python(the_lock, lock.running_python())
    wants = bool(door.build.scheduler)
    cache.fill(the_lock, python, door.input / "cache", door.ca_bundle, door.build.triton, scheduler=wants)
    site, target_sites = _install(door, the_lock, python)
    origin = source.describe(ROOT)
    if origin.dirty or origin.commit == "unknown":
        named = (
            "no commit is known of" if origin.commit == "unknown" else f"commit {origin.commit[:12]}, but changes in"
        )
        say(f"source: {named} this tree; the release says so, and another tree's will differ")
    made = options.make_options(
        [str(door.input), str(door.workspace), str(door.output), door.version, door.targets],
        door.build,
        ROOT,
        Path.cwd(),
        commit=origin.commit,
        dirty=origin.dirty,
        patches=origin.patches,
        site=site,
        target_sites=target_sites,
        shown_output=door.shown_output,
    )
    from kiln_build.release import build  # needs the packages that have just been installed

    tarball = build.build(made)
    return made.outside(tarball) if tarball else None


def _install(door: FrontDoor, the_lock: lock.Lock, python: str) -> tuple[Path, tuple[tuple[str, Path], ...]]:
    """Installs what the workspace lacks; returns the site-packages of the Triton, and of each target with another."""
    place, shown = door.place, progress.make_progress()
    from_source = door.build.triton == "source"
    requirements = the_lock.requirements(python, ("front", "build"), without=("triton",) if from_source else ())
    packages.prepare_rest(place, door.input, requirements, shown)
    if door.build.scheduler:
        packages.prepare_more(place, door.input, "scheduler", the_lock.requirements(python, ("scheduler",)), shown)
    if from_source:
        tools = the_lock.requirements(python, ("triton-source",))
        sources = triton.find_sources(door.input)
        site = triton.build_from_source(sources, door.input, place, tools, door.build.jobs, say)
    else:
        site = packages.environment_site(place)
        whole = {packages.EVERYTHING: digests.of_file(door.input / lock.LOCK_NAME)}  # for a ./kiln that works here
        packages.write_stamp(place, {**packages.read_stamp(place), **whole})
    target_sites = []
    for target in targets.parse(door.targets):
        package = the_lock.override_of((target.name, *reversed(target.groups)))
        if package is not None:
            only = the_lock.requirements(python, ("override",), only=(package.requirement,))
            name = package.requirement.replace("==", "-")
            other = packages.prepare_toolchain(place, door.input, name, only, progress=shown)
            target_sites.append((target.name, other))
    return site, tuple(target_sites)


def make_helpers_stop() -> Callable[[int], None]:
    """Gives what ends pip, compilers and all else that we have started in our process group, or are just starting."""
    if os.getpgrp() != os.getpid():
        return lambda number: None  # it is not ours
    told = threading.Event()

    def stop() -> None:
        told.wait()
        while True:
            os.killpg(os.getpid(), signal.SIGTERM)
            time.sleep(0.1)

    def tell(_number: int) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        told.set()

    # Begun now: what is called on a signal may find the locks of `threading` taken.
    threading.Thread(target=stop, daemon=True).start()
    return tell


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
