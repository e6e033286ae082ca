"""build.sh, all but finding a Python: words, source, workspace, the first packages; then `main` in the environment.

Standard library only. Run by path, isolated (`python -I`), so that nothing of the caller's reaches it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "v3python"))

from kiln.errors import EnvironmentProblem, KilnError  # noqa: E402
from kiln.front import packages, source, workspace  # noqa: E402
from kiln.options import VARIABLES, FrontDoor, read_front_door, unknown_variables  # noqa: E402

HELD = "_KILN_HELD_WORKSPACE"  # tells the build.sh of a tag that the workspace is already locked
_PR_SET_PDEATHSIG = 1
_GRACE = 10.0  # seconds that an interrupted build has to put things in order


def main(words: Sequence[str]) -> int:
    """Runs a build; returns its exit code."""
    if list(words) == ["--variables"]:
        print("\nVariables:")
        print("\n".join(f"  {name:17} {meaning}" for name, meaning in VARIABLES.items()))
        return 0
    with _signals() as signals:
        try:
            for warning in unknown_variables(os.environ):
                say(f"warning: {warning}")
            door = read_front_door(words, os.environ, Path.cwd())
            with _workspace(door) as place:
                return _build(door, place, signals)
        except KilnError as error:
            print(f"kiln: {error}", file=sys.stderr)
            return error.exit_code
        except KeyboardInterrupt:
            print("kiln: interrupted", file=sys.stderr)
            return 128 + (signals.received or signal.SIGINT)


def say(text: str) -> None:
    """One line for the user."""
    print(f"kiln: {text}", file=sys.stderr, flush=True)


def _build(door: FrontDoor, place: Path, signals: _Signals) -> int:
    other = _other_source(door, place)
    words = [str(door.input), str(place), str(door.output), door.version, door.targets]
    if other is not None:
        environment = {**os.environ, "KILN_SOURCE": "tree", "KILN_CLEAN": ""}
        return signals.run(["bash", str(other / "build.sh"), *words], environment, place)
    python = packages.prepare_front(place, door.input, door.ca_bundle, say)
    # Run from a folder of ours: `-m` puts the current one first in the search for modules.
    return signals.run([str(python), "-m", "kiln.front.main", *words], child_environment(place), ROOT / "v3python")


def child_environment(place: Path) -> Mapping[str, str]:
    """What runs in the virtual environment sees: none of the caller's Python, caches in the workspace."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    ours = {
        "PYTHONPATH": str(ROOT / "v3python"),
        "PYTHONNOUSERSITE": "1",
        "PYTHONPYCACHEPREFIX": str(place / "pycache"),
        "PYTHONUNBUFFERED": "1",
        "XDG_CACHE_HOME": str(place / "tmp" / "cache"),
    }
    # Spelled anew: these may be relative to the caller's folder, and the build runs in another.
    cwd = Path.cwd()
    for name in ("KILN_STORE", "KILN_CA_BUNDLE"):
        if kept.get(name):
            kept[name] = os.path.normpath(cwd / kept[name])
    if kept.get("KILN_LOG_JSON") and not kept["KILN_LOG_JSON"].isdecimal():
        kept["KILN_LOG_JSON"] = os.path.normpath(cwd / kept["KILN_LOG_JSON"])
    if kept.get("KILN_RECIPES"):
        paths = [os.path.normpath(cwd / word) for word in kept["KILN_RECIPES"].split(":") if word]
        kept["KILN_RECIPES"] = ":".join(paths)
    return {**kept, **ours}


def _other_source(door: FrontDoor, place: Path) -> Path | None:
    """The tree to build instead of this one: a tag's, or a patched copy."""
    origin = source.describe(ROOT)
    commit = source.tag_commit(ROOT, door.version) if door.source == "tag" else None
    patches = [] if origin.patches else source.patch_files(door.input, door.version)
    target = place / "source" / (f"tag-{door.version}" if commit else f"tree-{door.version}")
    if commit:
        print(f"kiln: source: git tag {door.version} (commit {commit[:12]}), by its own build.sh", flush=True)
        source.export_tag(ROOT, door.version, commit, target)
    elif patches:
        source.copy_tree(ROOT, target, origin)
    if patches:
        source.apply_patches(target, patches)
        print(f"kiln: source: with {len(patches)} patches of {door.input / f'patch-{door.version}'}", flush=True)
    return target if commit or patches else None


@contextlib.contextmanager
def _workspace(door: FrontDoor) -> Iterator[Path]:
    """The workspace, held; one in memory is removed at the end, whatever happened."""
    if door.workspace is not None:
        if os.environ.get(HELD) == str(door.workspace):
            yield door.workspace  # by the build.sh that started this one
            return
        with workspace.own_workspace(door.workspace, say, door.clean) as place:
            os.environ[HELD] = str(place)
            yield place
        return
    place = workspace.make_memory_workspace(say)
    try:
        with workspace.own_workspace(place, say, clean=False):
            os.environ[HELD] = str(place)
            yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


class _Signals:
    """Runs children so that each interruption reaches them once, and none outlives us."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._child: subprocess.Popen[bytes] | None = None

    def run(self, command: Sequence[str], environment: Mapping[str, str], folder: Path) -> int:
        """Runs a command to its end; returns its exit code.

        The child has a process group of its own: a terminal's Ctrl-C comes to us alone, and we pass it on. A second
        one kills. What the child leaves behind is killed in any case.
        """
        interactive = bool(os.environ.get("KILN_SHELL")) and sys.stdin.isatty()
        try:
            self._child = subprocess.Popen(
                list(command),
                env=dict(environment),
                cwd=folder,
                preexec_fn=None if interactive else _become_ours(),
            )
        except OSError as error:
            raise EnvironmentProblem(f"{command[0]} cannot be run ({error.strerror})")
        if self.received is not None:
            self._pass_on(self.received)
        try:
            code = self._wait()
        finally:
            if not interactive:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._child.pid, signal.SIGKILL)
            self._child = None
        if self.received is not None:
            return 128 + self.received
        return code if code >= 0 else 128 - code

    def _wait(self) -> int:
        deadline = None
        while True:
            try:
                return self._child.wait(0.5 if deadline else 3600)
            except subprocess.TimeoutExpired:
                pass
            except KeyboardInterrupt:  # of `handle`: the wait is over, the child is told
                deadline = time.monotonic() + _GRACE
            if deadline and time.monotonic() > deadline:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._child.pid, signal.SIGKILL)

    def handle(self, number: int, _frame: object) -> None:
        first, self.received = self.received is None, number if self.received is None else self.received
        if self._child is not None:
            self._pass_on(signal.SIGINT if first else signal.SIGKILL)
        if first:
            raise KeyboardInterrupt

    def _pass_on(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            self._child.send_signal(number) if number != signal.SIGKILL else os.killpg(self._child.pid, number)


def _become_ours() -> Callable[[], None]:
    """What a child does before it begins: takes a process group of its own, and asks to be stopped if we are killed."""
    libc = ctypes.CDLL(None)
    parent = os.getpid()

    def become() -> None:
        os.setpgrp()
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(128 + signal.SIGTERM)

    return become


@contextlib.contextmanager
def _signals() -> Iterator[_Signals]:
    signals = _Signals()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signals.handle)
    yield signals


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
