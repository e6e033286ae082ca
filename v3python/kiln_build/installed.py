"""The build of an installed kiln-build: its source tree, laid out where it can be worked in, and run from there.

The wheel has the tree in two parts: the packages, and beside this module the folder `project` with all else (csrc,
include, tritonsrc, tuning, the lock, build.sh ...). Laid out in the user's cache they are a tree like a checkout's, and
`.source.json` names its commit; so from there on there is one way to build. Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from kiln_build.cli import build, summary
from kiln_build.front.interruption import guarded
from kiln_build.front.signals import hold_back
from kiln_build.options import options
from kiln_recipe import digests
from kiln_recipe.compile.lock import LOCK_NAME
from kiln_recipe.console.spelling import say
from kiln_recipe.console.usage import Parser
from kiln_recipe.errors import EnvironmentProblem, UsageError

PROJECT = "project"
PACKAGES = ("kiln_build", "kiln_cli", "kiln_recipe")
_INPUT = "input"
_COMMAND = "v3python/kiln_build/front/command.py"


def main(words: Sequence[str]) -> int:
    """Becomes a verb of the tree: `./kiln`, or for a build build.sh; returns the exit code of what prevents that."""
    return guarded(lambda _: _become(words))


def _become(words: Sequence[str]) -> int:
    if words[:1] == ["build"]:
        return _build(words[1:])
    tree = lay_out(_cache(os.environ))
    hold_back()  # until that Python has started
    return os.execv(sys.executable, [sys.executable, "-I", "-B", str(tree / _COMMAND), *words])


def _build(words: Sequence[str]) -> int:
    parser = Parser("kiln build", summary("build"), build.EXAMPLE)
    build.add_arguments(parser)
    arguments = parser.read(words)
    if arguments is None:
        return 0
    if arguments.sign or arguments.password:
        raise UsageError(
            "--sign is for a checkout's `kiln build`; sign what this one makes: `kiln sign TARBALL --key KEY`"
        )
    environment = build.environment_of(arguments)
    if importlib.util.find_spec("ensurepip"):  # else build.sh looks for another Python
        environment.setdefault("KILN_PYTHON", sys.executable)
    bash = shutil.which("bash")
    if bash is None:
        raise EnvironmentProblem("bash is not installed, and builds are started by it; install it")
    tree = lay_out(_cache(environment))
    seed(Path(arguments.input), tree)
    given = build.called(arguments)  # build.sh would name variables in their place
    options.make_absolute(options.read_build_variables(environment, given), Path.cwd(), given)
    five = [arguments.input, arguments.workspace, arguments.output, arguments.version, arguments.targets]
    return os.execve(bash, [bash, str(tree / "build.sh"), *five], environment)


def files() -> Mapping[str, Path]:
    """The files of the tree by their paths in it, as they are installed.

    Raises:
        EnvironmentProblem: they are not complete.
    """
    found: dict[str, Path] = {}
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise EnvironmentProblem(f"the package {name} is not installed; install kiln-build with its requirements")
        for inside, path in _below(Path(spec.origin).parent):
            is_project = name == "kiln_build" and inside.startswith(f"{PROJECT}/")
            found[inside.partition("/")[2] if is_project else f"v3python/{name}/{inside}"] = path
    if "build.sh" not in found:
        raise EnvironmentProblem(
            "this kiln_build is not an installed kiln-build; in a checkout use ./kiln and build.sh"
        )
    return found


def lay_out(place: Path) -> Path:
    """The tree, in a folder of `place` whose name is its digest; laid out if it is not there.

    Raises:
        EnvironmentProblem: it cannot be written.
    """
    found = files()
    stated = "".join(f"{inside} {digests.of_file(path)}\n" for inside, path in sorted(found.items()))
    tree = place / hashlib.sha256(stated.encode()).hexdigest()[:16]
    if tree.is_dir():
        return tree
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{tree.name}.", dir=place) as folder:
            fresh = Path(folder, "tree")
            for inside, path in found.items():
                target = fresh / inside
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
            with contextlib.suppress(FileExistsError):  # another process was faster, and may work there already
                _rename(fresh, tree)
    except OSError as error:
        raise EnvironmentProblem(
            f"{tree} cannot be written ({error.strerror}); set XDG_CACHE_HOME to a folder that can be"
        )
    say(f"source: that of kiln-build is laid out in {tree}")
    return tree


def seed(folder: Path, tree: Path) -> None:
    """Makes an input folder of one that is new or empty, or has downloads alone: puts the lock there."""
    there = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if not there <= {"cache"} or (folder.exists() and not folder.is_dir()):
        return
    say(f"input: {folder} is new; it gets {LOCK_NAME} of kiln-build, and downloads will be kept in {folder / 'cache'}")
    for path in (tree / _INPUT).iterdir():
        if path.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, folder / path.name)


def _rename(fresh: Path, tree: Path) -> None:
    try:
        os.rename(fresh, tree)
    except OSError as error:
        if error.errno == errno.ENOTEMPTY:
            raise FileExistsError from None
        raise


def _below(folder: Path) -> list[tuple[str, Path]]:
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file() and "__pycache__" not in path.parts)
    return [(path.relative_to(folder).as_posix(), path) for path in paths]


def _cache(environment: Mapping[str, str]) -> Path:
    stated = environment.get("XDG_CACHE_HOME", "")
    if os.path.isabs(stated):
        return Path(stated, "kiln")
    try:
        return Path.home() / ".cache" / "kiln"
    except RuntimeError:
        raise EnvironmentProblem("no home folder is known; set XDG_CACHE_HOME to a folder that can be written")
