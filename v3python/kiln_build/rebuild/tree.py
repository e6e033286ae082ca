"""The source of a commit, and the input that it is built with, laid out in a workspace."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from kiln_build.base import ROOT
from kiln_build.fetch import bundle
from kiln_build.front import source
from kiln_build.rebuild.asked import Asked
from kiln_recipe.compile.lock import LOCK_NAME, read_lock
from kiln_recipe.console.progress import Progress
from kiln_recipe.errors import EnvironmentProblem, UsageError

_SECONDS = 600  # of a fetch


def lay_out_source(asked: Asked, word: str | None, folder: Path, say: Callable[[str], object]) -> Path:
    """The tree of the release's commit, in `folder`.

    Args:
        word: where it is: a checkout, a folder with the source of that commit, a git bundle, or an address from which
            git can fetch; None: this tree.

    Raises:
        UsageError: what is there does not have the commit, or the release names none.
        EnvironmentProblem: it cannot be read or fetched.
    """
    if word is None or Path(word).is_dir():
        return _of_folder(asked, ROOT if word is None else Path(word).resolve(), folder, word, say)
    if asked.is_dirty or asked.commit == "unknown":
        raise UsageError(f"{_unnamed(asked)}; give the folder of that tree: --source FOLDER")
    mirror = folder.with_name("mirror")
    say(f"source: fetching {word}")
    _fetch(word, mirror)
    if not source.has_commit(mirror, asked.commit):
        raise UsageError(f"--source {word} does not have the commit {asked.commit}, which the release names")
    return source.export(mirror, asked.commit, folder, f"the commit {asked.commit[:12]}")


def _of_folder(asked: Asked, root: Path, folder: Path, word: str | None, say: Callable[[str], object]) -> Path:
    name = f"--source {word}" if word else str(root)
    is_known = not asked.is_dirty and asked.commit != "unknown"
    if is_known and source.has_commit(root, asked.commit):
        say(f"source: commit {asked.commit[:12]} of {root}")
        return source.export(root, asked.commit, folder, f"the commit {asked.commit[:12]}")
    if not (root / "build.sh").is_file():
        raise UsageError(f"{name} is not a source tree of Kiln: it has no build.sh, nor the commit {asked.commit}")
    origin = source.describe(root)
    if is_known and (origin.commit, origin.dirty) != (asked.commit, False):
        raise UsageError(
            f"{name} does not have the commit {asked.commit}, which the release names (it is of {origin.commit}"
            f"{', with changes' if origin.dirty else ''}); give a checkout, folder or address that has it: --source"
        )
    if not is_known and word is None:
        raise UsageError(f"{_unnamed(asked)}; give the folder of that tree: --source FOLDER")
    say(f"source: {root}, as it is")
    return source.copy_tree(root, folder, origin)


def _unnamed(asked: Asked) -> str:
    if asked.is_dirty:
        return f"the release was built from a tree with changes to its commit {asked.commit[:12]}, which no commit has"
    return "the release names no commit"


def _fetch(word: str, mirror: Path) -> None:
    if not shutil.which("git"):
        raise EnvironmentProblem(
            f"--source {word} is fetched by git, which is not installed; install it, or give a folder"
        )
    shutil.rmtree(mirror, ignore_errors=True)
    environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
    command = ["git", "clone", "--quiet", "--mirror", "--", word, str(mirror)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise EnvironmentProblem(
            f"--source {word} is not fetched after {_SECONDS} s; give a folder or a bundle"
        ) from error
    if done.returncode:
        said = " ".join(done.stderr.split())
        raise EnvironmentProblem(
            f"--source {word} cannot be fetched ({said}); give a checkout, a git bundle or an address"
        )


def lay_out_input(asked: Asked, tree: Path, given: Path, folder: Path, progress: Progress) -> Path:
    """The folder that build.sh reads besides: the lock of the tree, and of `given` the downloads and patches.

    Args:
        given: an input folder, whose downloads are used where the lock names them; or what `kiln fetch --bundle` made.

    Raises:
        UsageError: the release was made with patches that are not there.
        ArtifactError: the bundle is for another lock, or damaged.
    """
    (folder / "cache").mkdir(parents=True, exist_ok=True)
    shutil.copyfile(tree / "input" / LOCK_NAME, folder / LOCK_NAME)
    for path in (tree / "input").iterdir():
        if path.is_file() and path.name != LOCK_NAME:
            shutil.copyfile(path, folder / path.name)
    if given.is_file():
        bundle.read_bundle(given, folder, progress)
    else:
        for file in read_lock(folder / LOCK_NAME).every_file():
            _take(given / "cache" / file.name, folder / "cache" / file.name)
    if asked.patches:
        patches = source.patch_files(given, asked.version)
        if source.digest_of(patches) != asked.patches:
            raise UsageError(
                f"the release was made with patches of the digest {asked.patches[:12]}; give the input that has them, "
                f"as patch-{asked.version}/*.patch: --input FOLDER"
            )
        (folder / f"patch-{asked.version}").mkdir(exist_ok=True)
        for patch in patches:
            shutil.copyfile(patch, folder / f"patch-{asked.version}" / patch.name)
    return folder


def _take(path: Path, to: Path) -> None:
    """Gives a download another name, or copies it; the build checks each against the lock."""
    if to.exists() or not path.is_file():
        return
    try:
        os.link(path.resolve(), to)
    except OSError:  # another file system, or another user's
        shutil.copyfile(path, to)
