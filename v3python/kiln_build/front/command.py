"""`./kiln`: the command in a checkout. What a verb needs is installed into `.kiln/` at its first call; then it runs.
Its words and variables are judged first, by the standard library: a call that must be refused installs nothing. Files
that they name are judged once the few packages of input/front.lock are there, before all others.

`base/verbs.py` says what each verb needs. --help, --version, `fetch --verify` and `fetch --unbundle` need nothing;
`plan` with a store also needs what reads one.

`.kiln/`, or what KILN_WORKSPACE names, is a workspace as a build's is, with its own lock and virtual environment; a
build's, made by the same lock, has all packages already. Standard library only, but for
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

from kiln_build.base.verbs import VERBS  # noqa: E402
from kiln_build.front import packages, workspace  # noqa: E402
from kiln_build.front.interruption import guarded  # noqa: E402
from kiln_build.front.packages import EVERYTHING  # noqa: E402
from kiln_build.front.signals import hold_back, leave  # noqa: E402
from kiln_build.options.options import read_ca_bundle, read_workspace  # noqa: E402
from kiln_recipe import digests  # noqa: E402
from kiln_recipe.compile.lock import LOCK_NAME  # noqa: E402
from kiln_recipe.console.spelling import say  # noqa: E402

_USUAL = ROOT / ".kiln"
_INPUT = ROOT / "input"
_BARE = {"-h", "--help", "help", "-V", "--version", "version"}
# Groups of packages that are less than all, as `Verb.needs` says them.
_GROUPS = {"reading": ("zstandard", "pyelftools"), "packing": ("zstandard", "pyelftools", "deflate")}
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
    place = read_workspace(os.environ, Path.cwd(), _USUAL)
    python = Path(sys.executable) if is_bare else packages.environment_python(place)
    certificates = None if is_bare else read_ca_bundle(os.environ, Path.cwd())
    if not is_bare and not _is_there(place, group):
        # By its name, as it is run below: the command line lies above this part.
        if code := importlib.import_module("kiln_build.cli").judge(words):
            return code
        with workspace.locked(place, say, or_else="by KILN_WORKSPACE: ./kiln keeps its packages there"):
            code = _prepare(place, group, certificates, words)
        if code:
            return code
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment |= {"PYTHONPATH": str(ROOT / "v3python"), "PYTHONNOUSERSITE": "1"}  # for the processes that it starts
    hold_back()  # Python would die of one with a traceback while it starts; `cli.main` lets them through
    kept = None if is_bare else place
    return os.execve(python, _command(python, "kiln_build.cli", "main", words, kept), environment)


def group_of(words: Sequence[str]) -> str:
    """What a call needs, as `Verb.needs` says it."""
    verb = words[0] if words else ""
    is_offline = verb == "fetch" and not {"--verify", "--unbundle"}.isdisjoint(w.partition("=")[0] for w in words)
    if not words or verb in _BARE or is_offline or {"-h", "--help"} & {*words}:
        return "nothing"
    if verb == "build" and ("KILN_SCHEDULER" in os.environ or any(word.startswith("--scheduler") for word in words)):
        return "cluster"
    if verb == "plan" and ("KILN_STORE" in os.environ or any(word.startswith("--store") for word in words)):
        return "reading"
    return VERBS[verb].needs if verb in VERBS else "front"


def _is_there(place: Path, group: str) -> bool:
    """Whether a group is installed, in the versions that the locks have now."""
    if not packages.has_front(place, _INPUT):
        return False
    stamp = packages.read_stamp(place)
    as_everything = EVERYTHING if group in _GROUPS else group
    return group == "front" or digests.of_file(_INPUT / LOCK_NAME) in (stamp.get(group), stamp.get(as_everything))


def _prepare(place: Path, group: str, certificates: Path | None, asked: Sequence[str]) -> int:
    python = packages.prepare_front(place, _INPUT, certificates, say)
    if _is_there(place, group):
        return 0
    words = [str(place), group, str(certificates or ""), *asked]
    return subprocess.run(
        _command(python, "kiln_build.front.command", "provide", words, place), check=False, preexec_fn=hold_back
    ).returncode


def _command(python: Path, module: str, name: str, words: Sequence[str], kept: Path | None) -> list[str]:
    """A function of ours on `words`, in a Python of its own; `kept`: the workspace that keeps compiled modules."""
    code = _RUN.format(path=str(ROOT / "v3python"), module=module, name=name)
    cache = ["-X", f"pycache_prefix={kept / 'pycache'}"] if kept else ["-B"]
    return [str(python), "-I", *cache, "-c", code, *words]


def provide(words: Sequence[str]) -> int:
    """In the environment: fetches and installs a group; takes the workspace, its name, a file of certificates and the
    words that ask for it, whose files are judged first."""
    return guarded(lambda _: _provide(*words))


def _provide(workspace_word: str, group: str, certificates: str, *asked: str) -> int:
    from kiln_build.front import cache
    from kiln_recipe.compile import lock
    from kiln_recipe.console import progress

    if code := importlib.import_module("kiln_build.cli").judge_files(asked):
        return code
    place = Path(workspace_word)
    the_lock = lock.read_lock(_INPUT / LOCK_NAME)
    python = lock.check_python(the_lock, lock.running_python())
    only = _GROUPS.get(group)
    for_cluster = group == "cluster"
    what = " and ".join(only) if only else f"all that a build needs (1.3 GB) to {place}"
    spared = "" if only or place != _USUAL else "; KILN_WORKSPACE=<a build's workspace> would use that one's"
    say(f"packages: adding {what}{spared}")
    cache.fill(the_lock, python, _INPUT / "cache", Path(certificates) if certificates else None, scheduler=for_cluster,
               only=only)  # fmt: skip
    uses = ("front", "build", *(["scheduler"] if for_cluster else []))
    requirements = the_lock.requirements(python, uses, only=only)
    packages.install_locked(place, _INPUT / "cache", requirements, progress=progress.make_progress())
    for installed in (group, EVERYTHING) if for_cluster else (group,):
        packages.add_to_stamp(place, installed, digests.of_file(_INPUT / LOCK_NAME))
    return 0


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
