"""build.sh of a release's own source, run as its manifest says."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from kiln_build.front.interruption import Interruption
from kiln_build.front.signals import hold_back, let_through
from kiln_build.rebuild.asked import Asked
from kiln_build.release.release import tarball_name
from kiln_recipe.errors import BuildFailed, Interrupted


def build(
    asked: Asked, tree: Path, folder: Path, workspace: Path, output: Path, environment: Mapping[str, str]
) -> Path:
    """Builds; gives the tarball's path. What build.sh says goes to standard error.

    Args:
        folder: the input.

    Raises:
        BuildFailed: build.sh failed, with its exit code; or it has made a release of another name.
        Interrupted: it was ended by a signal.
    """
    words = ["bash", str(tree / "build.sh"), *map(str, (folder, workspace, output)), asked.version, asked.targets]
    with Interruption() as interruption:
        child = _begin(words, environment)
        try:
            let_through()
            code = child.wait()
        except KeyboardInterrupt:
            received = interruption.received or signal.SIGINT
            child.send_signal(received)
            child.wait()
            raise Interrupted(f"interrupted by {received.name}", received) from None
    if code < 0 or code > 128:
        raise Interrupted(
            "the build was ended by a signal; what was compiled is kept", -code if code < 0 else code - 128
        )
    made = output / tarball_name(asked.name)
    if code or not made.is_file():
        what = f"ended with exit code {code}" if code else f"has not made {made.name}"
        failed = BuildFailed(
            f"the release cannot be made again: build.sh of its source {what}; what it said stands above"
        )
        failed.exit_code = code or BuildFailed.exit_code
        raise failed
    return made


def _begin(words: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Starts a program in a session of its own: a terminal's Ctrl-C comes to us alone, and is passed on once, as is a
    signal to end; either waits until the program is known."""
    hold_back()
    try:
        return subprocess.Popen(
            words, env=dict(environment), stdout=subprocess.DEVNULL, start_new_session=True, preexec_fn=let_through
        )
    except BaseException:
        let_through()
        raise


def sites_of(workspace: Path) -> list[Path]:
    """The folders of packages that a build has left in its workspace, on the host or from a container."""
    return [*workspace.glob("venv/lib/python3.*/site-packages"), *workspace.glob("*/venv/lib/python3.*/site-packages")]
