"""`./kiln`: the command in a checkout. What a verb needs is installed into `.kiln/` at its first call; then it runs.
Its words and variables are judged first, by the standard library: a call that must be refused installs nothing.

`base/verbs.py` says what each verb needs. --help, --version, `fetch --verify` and `fetch --unbundle` need nothing;
`plan` with a store also needs what reads one.

`.kiln/` is a workspace as a build's is, with its own lock and virtual environment. Standard library only, but for
`provide`, which runs in that environment. Run by path, isolated (`python -I`).
"""

from __future__ import annotations

import signal
import sys

if __name__ == "__main__":  # held back until there is somebody to say a word about it, as front/signals.py does
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))

import importlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "v3python"))

from kiln_build.base.spelling import say  # noqa: E402
from kiln_build.base.verbs import VERBS  # noqa: E402
from kiln_build.front import packages, workspace  # noqa: E402
from kiln_build.front.interruption import guarded  # noqa: E402
from kiln_build.front.signals import hold_back, leave  # noqa: E402
from kiln_build.options.options import read_ca_bundle  # noqa: E402
from kiln_recipe import digests  # noqa: E402
from kiln_recipe.compile.lock import LOCK_NAME  # noqa: E402

PLACE = ROOT / ".kiln"
_INPUT = ROOT / "input"
_BARE = {"-h", "--help", "help", "-V", "--version", "version"}
_READERS = ("zstandard", "pyelftools")
# Not `-m`, which would look for modules in the caller's folder first.
_RUN = (
    "import sys; sys.path.insert(0, {path!r}); from kiln_build.front.signals import leave; "
    "from {module} import {name}; leave({name}(sys.argv[1:]))"
)


def main(words: Sequence[str]) -> int:
    """Installs what is missing, and becomes the verb; returns the exit code of what keeps it from that."""
    return guarded(lambda _: _become(words))


def _become(words: Sequence[str]) -> int:
    group = group_of(words)
    is_bare = group == "nothing"
    python = Path(sys.executable) if is_bare else packages.environment_python(PLACE)
    certificates = None if is_bare else read_ca_bundle(os.environ, Path.cwd())
    if not is_bare and not _is_there(group):
        # By its name, as it is run below: the command line lies above this part.
        if code := importlib.import_module("kiln_build.cli").judge(words):
            return code
        with workspace.locked(PLACE, say):
            code = _prepare(group, certificates)
        if code:
            return code
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment |= {"PYTHONPATH": str(ROOT / "v3python"), "PYTHONNOUSERSITE": "1"}  # for the processes that it starts
    hold_back()  # Python would die of one with a traceback while it starts; `cli.main` lets them through
    return os.execve(python, _command(python, "kiln_build.cli", "main", words, keeps=not is_bare), environment)


def group_of(words: Sequence[str]) -> str:
    """What a call needs, as `Verb.needs` says it."""
    verb = words[0] if words else ""
    is_offline = verb == "fetch" and not {"--verify", "--unbundle"}.isdisjoint(w.partition("=")[0] for w in words)
    if not words or verb in _BARE or is_offline or {"-h", "--help"} & {*words}:
        return "nothing"
    if verb == "plan" and ("KILN_STORE" in os.environ or any(word.startswith("--store") for word in words)):
        return "reading"
    return VERBS[verb].needs if verb in VERBS else "front"


def _is_there(group: str) -> bool:
    """Whether a group is installed, in the versions that the locks have now."""
    has_front = packages.has_front(PLACE, _INPUT)
    return has_front and (
        group == "front" or packages.read_stamp(PLACE).get(group) == digests.of_file(_INPUT / LOCK_NAME)
    )


def _prepare(group: str, certificates: Path | None) -> int:
    python = packages.prepare_front(PLACE, _INPUT, certificates, say)
    if _is_there(group):
        return 0
    words = [group, str(certificates or "")]
    return subprocess.run(
        _command(python, "kiln_build.front.command", "provide", words, keeps=True), check=False, preexec_fn=hold_back
    ).returncode


def _command(python: Path, module: str, name: str, words: Sequence[str], *, keeps: bool) -> list[str]:
    """A function of ours on `words`, in a Python of its own; `keeps` compiled modules for the next."""
    code = _RUN.format(path=str(ROOT / "v3python"), module=module, name=name)
    cache = ["-X", f"pycache_prefix={PLACE / 'pycache'}"] if keeps else ["-B"]
    return [str(python), "-I", *cache, "-c", code, *words]


def provide(words: Sequence[str]) -> int:
    """In the environment: fetches and installs a group; takes its name and a file of certificates."""
    return guarded(lambda _: _provide(*words))


def _provide(group: str, certificates: str) -> int:
    from kiln_build.base import progress
    from kiln_build.front import cache
    from kiln_recipe.compile import lock

    the_lock = lock.read_lock(_INPUT / LOCK_NAME)
    python = lock.check_python(the_lock, lock.running_python())
    only = _READERS if group == "reading" else None
    say(f"packages: adding {' and '.join(_READERS) if only else 'all that a build needs'}")
    cache.fill(the_lock, python, _INPUT / "cache", Path(certificates) if certificates else None, only=only)
    requirements = the_lock.requirements(python, ("front", "build"), only=only)
    packages.install_locked(PLACE, _INPUT / "cache", requirements, progress=progress.make_progress())
    packages.write_stamp(PLACE, {**packages.read_stamp(PLACE), group: digests.of_file(_INPUT / LOCK_NAME)})
    return 0


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
