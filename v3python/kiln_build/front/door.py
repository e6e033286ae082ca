"""build.sh, all but finding a Python: words, source, workspace, the first packages; then `main` in the environment.

Standard library only. Run by path, isolated (`python -I`), so that nothing of the caller's reaches it.
"""

from __future__ import annotations

import signal
import sys

if __name__ == "__main__":  # held back until there is somebody to say a word about it, as front/signals.py does
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))

import contextlib
import ctypes
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "v3python"))

from kiln_build.front import packages, source, triton, workspace  # noqa: E402
from kiln_build.front.interruption import Interruption, guarded  # noqa: E402
from kiln_build.front.signals import SIGNALS, leave  # noqa: E402
from kiln_build.options.options import FrontDoor, check_variables, environment_of, read_front_door  # noqa: E402
from kiln_build.options.variables import VARIABLES  # noqa: E402
from kiln_recipe import targets  # noqa: E402
from kiln_recipe.console.spelling import say  # noqa: E402
from kiln_recipe.errors import EnvironmentProblem, Interrupted  # noqa: E402

_PR_SET_PDEATHSIG = 1
_GRACE = 10.0  # seconds that an interrupted build has to put things in order


def main(words: Sequence[str]) -> int:
    """Runs a build; returns its exit code."""
    if list(words) == ["--variables"]:
        return guarded(lambda _: _print_variables())
    return guarded(lambda interruption: _run(words, interruption), os.environ.get("KILN_LOG_JSON"))


def _print_variables() -> int:
    print("\nVariables:")
    print("\n".join(f"  {name:17} {meaning}" for name, meaning in VARIABLES.items()))
    return 0


def _run(words: Sequence[str], interruption: Interruption) -> int:
    for warning in check_variables(os.environ):
        say(f"warning: {warning}")
    door = read_front_door(words, os.environ, Path.cwd())
    if door.build.triton == "source":
        triton.find_sources(door.input)
    change = _find_change(door)
    if change is None:  # else what is built has its own table
        targets.parse(door.targets)
    with _workspace(door, interruption) as held:
        return _build(held, change, interruption)


def _build(door: FrontDoor, change: Change | None, interruption: Interruption) -> int:
    """Builds in the workspace of `door`, which is held."""
    other = _make_source(door, change) if change else None
    words = [str(door.input), str(door.workspace), str(door.output), door.version, door.targets]
    if other is not None:
        environment = environment_of(replace(door, source="tree"), os.environ)
        return run(["bash", str(other / "build.sh"), *words], environment, other, door, interruption)
    python = packages.prepare_front(door.place, door.input, door.ca_bundle, say)
    # Run from a folder of ours: `-m` puts the current one first in the search for modules.
    folder = ROOT / "v3python"
    return run(
        [str(python), "-m", "kiln_build.front.main", *words], _child_environment(door), folder, door, interruption
    )


def _child_environment(door: FrontDoor) -> dict[str, str]:
    """What runs in the virtual environment sees: none of the caller's Python, caches in the workspace."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    ours = {
        "PYTHONPATH": str(ROOT / "v3python"),
        "PYTHONNOUSERSITE": "1",
        "PYTHONPYCACHEPREFIX": str(door.place / "pycache"),
        "PYTHONUNBUFFERED": "1",
        "XDG_CACHE_HOME": str(door.place / "tmp" / "cache"),
    }
    return {**environment_of(door, kept), **ours}


@dataclass(frozen=True)
class Change:
    """How the tree that is built differs from this one.

    Attributes:
        commit: of the tag that is built; None: this tree.
        patches: of the input.
        origin: of this tree.
    """

    commit: str | None
    patches: list[Path]
    origin: source.Origin


def _find_change(door: FrontDoor) -> Change | None:
    """What the version's tag and the input's patches ask for; None: this very tree is built."""
    origin = source.describe(ROOT)
    commit = source.tag_commit(ROOT, door.version) if door.source == "tag" else None
    patches = [] if origin.patches else source.patch_files(door.input, door.version)
    return Change(commit, patches, origin) if commit or patches else None


def _make_source(door: FrontDoor, change: Change) -> Path:
    """The tree to build instead of this one: a tag's, or a patched copy."""
    commit, patches = change.commit, change.patches
    target = door.place / "source" / (f"tag-{door.version}" if commit else f"tree-{door.version}")
    if commit:
        say(f"source: git tag {door.version} (commit {commit[:12]}), by its own build.sh")
        source.export_tag(ROOT, door.version, commit, target)
    else:
        source.copy_tree(ROOT, target, change.origin)
    if patches:
        source.apply_patches(target, patches)
        many = "patch" if len(patches) == 1 else "patches"
        say(f"source: with {len(patches)} {many} of {door.input / f'patch-{door.version}'}")
    return target


@contextlib.contextmanager
def _workspace(door: FrontDoor, interruption: Interruption) -> Iterator[FrontDoor]:
    """`door` with a workspace that is held, and clean if that was asked for; one in memory is removed at the end."""
    if door.workspace is not None:
        if door.held == door.workspace:
            yield door  # by the build.sh that started this one
            return
        with workspace.own_workspace(door.workspace, say, door.build.clean) as place:
            yield _holding(door, place)
        return
    place = workspace.make_memory_workspace(say)
    try:
        with workspace.own_workspace(place, say, clean=False):
            yield _holding(door, place)
    finally:
        interruption.ignore()
        workspace.remove(place)
        if interruption.received is not None:
            say(f"workspace: {place} is removed with everything in it; a folder as workspace would be kept")


def _holding(door: FrontDoor, place: Path) -> FrontDoor:
    return replace(door, workspace=place, held=place, build=replace(door.build, clean=False))


# ---- the build as a process ------------------------------------------------------------------------------------------


def run(
    command: Sequence[str], environment: Mapping[str, str], folder: Path, door: FrontDoor, interruption: Interruption
) -> int:
    """Runs the rest of the build to its end; returns its exit code.

    It has a process group of its own: a terminal's Ctrl-C comes to us alone, and is passed on once. A second one kills.
    What it leaves behind is killed in any case.

    Raises:
        KeyboardInterrupt: it was interrupted, and has not said so itself.
    """
    interactive = door.shell and sys.stdin.isatty()
    log = door.build.log_json
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # until we know whom to pass them on to
    try:
        child = subprocess.Popen(
            list(command),
            env=dict(environment),
            cwd=folder,
            pass_fds=(int(log),) if log and log.isdecimal() else (),
            preexec_fn=_before_it_begins(own_group=not interactive, hold_back=command[0] != "bash"),
        )
    except OSError as error:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        raise EnvironmentProblem(f"{command[0]} cannot be run ({error.strerror})")
    interruption.first = lambda number: _send(child, number)
    interruption.again = lambda number: _kill_group(child)
    try:
        code = _wait(child)
    finally:
        if not interactive:
            _kill_group(child)
    if interruption.received is None:
        if code < 0:  # it could not say so itself
            name = signal.Signals(-code).name
            raise Interrupted(f"the build was ended by {name}; what was compiled is kept", -code)
        return code
    if code not in {128 + number for number in SIGNALS}:
        raise KeyboardInterrupt(interruption.received)
    return interruption.exit_code


def _wait(child: subprocess.Popen[bytes]) -> int:
    deadline = None
    while True:
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            return child.wait(0.5 if deadline else 3600)
        except subprocess.TimeoutExpired:
            pass
        except KeyboardInterrupt:  # the child has been told
            deadline = time.monotonic() + _GRACE
        if deadline and time.monotonic() > deadline:
            _kill_group(child)


def _send(child: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        child.send_signal(number)


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)


def _before_it_begins(*, own_group: bool, hold_back: bool) -> Callable[[], None]:
    """What a child does first.

    Args:
        own_group: it takes a process group of its own, and asks to be stopped if we are killed.
        hold_back: interruptions, until the child is ready for them: `Interruption` lets them through.
    """
    libc = ctypes.CDLL(None)
    parent = os.getpid()

    def become() -> None:
        if not hold_back:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        if not own_group:
            return
        os.setpgrp()
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(128 + signal.SIGTERM)

    return become


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
