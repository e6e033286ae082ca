"""Which source is built: the working tree, a git tag, or either with the input's patches. Standard library only.

A copy that is made here carries its origin in `.source.json`: it is no checkout, and must still know its commit.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kiln_recipe.console.appear import appear_folder
from kiln_recipe.errors import EnvironmentProblem, UsageError

ORIGIN_NAME = ".source.json"
# What a copy of a tree that is no checkout leaves out.
_LEFT_OUT = (
    ".git",
    ".kiln",
    ".venv",
    "output",
    "__pycache__",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
    ".hypothesis",
)


@dataclass(frozen=True)
class Origin:
    """Where a source tree comes from.

    Attributes:
        commit: 40 digits, or "unknown".
        dirty: whether the tree differs from the commit.
        patches: digest of the patches applied to it, or "".
    """

    commit: str
    dirty: bool
    patches: str = ""


def describe(root: Path) -> Origin:
    """The origin of the tree at `root`. Needs no git: without it, or outside of a checkout, the commit is "unknown"."""
    try:
        recorded = json.loads((root / ORIGIN_NAME).read_text())
        return Origin(str(recorded["commit"]), bool(recorded["dirty"]), str(recorded["patches"]))
    except (OSError, ValueError, KeyError, TypeError):
        pass
    if not _is_checkout(root):
        return Origin("unknown", False)
    commit = _git(root, "rev-parse", "--verify", "-q", "HEAD")
    if commit is None:
        return Origin("unknown", True)
    return Origin(commit.decode().strip(), bool(_git(root, "status", "--porcelain")))


def tag_commit(root: Path, version: str) -> str | None:
    """The commit of the git tag `version`, or None: no such tag, no checkout, no git."""
    if not _is_checkout(root):
        return None
    answer = _git(root, "rev-parse", "-q", "--verify", f"refs/tags/{version}^{{commit}}")
    return answer.decode().strip() if answer else None


def patch_files(folder: Path, version: str) -> list[Path]:
    """The patches of input/patch-<version>/, in the order in which they are applied."""
    return sorted((folder / f"patch-{version}").glob("*.patch"))


def export_tag(root: Path, version: str, commit: str, target: Path) -> Path:
    """A clean copy of a tag at `target`, which is replaced.

    Raises:
        UsageError: the tag has no build.sh.
        EnvironmentProblem: git cannot export it.
    """
    return export(root, commit, target, f"the git tag {version}", "; KILN_SOURCE=tree builds the working tree instead")


def export(root: Path, commit: str, target: Path, called: str, instead: str = "") -> Path:
    """A clean copy of a commit at `target`, which is replaced.

    Args:
        root: a checkout, or a repository without one.
        called: what an error calls the commit; instead: what it says can be done.

    Raises:
        UsageError: it has no build.sh.
        EnvironmentProblem: git cannot export it.
    """
    archive = _git(root, "archive", "--format=tar", commit)
    if archive is None:
        raise EnvironmentProblem(f"git cannot export {called} of {root}{instead}")
    with appear_folder(target) as fresh:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(fresh)  # made by git just now, of our own tree
        if not (fresh / "build.sh").is_file():
            raise UsageError(f"{called} has no build.sh{instead}")
        _record(fresh, Origin(commit, False))
    return target


def copy_tree(root: Path, target: Path, origin: Origin) -> Path:
    """A copy of the tree at `root` without what git ignores, at `target`, which is replaced."""
    with appear_folder(target) as fresh:
        for relative in tree_files(root):
            source, copy = root / relative, fresh / relative
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, copy, follow_symlinks=False)
        _record(fresh, origin)
    return target


def apply_patches(tree: Path, patches: list[Path]) -> Origin:
    """Applies patches (`-p1`) to a copy and records that.

    Raises:
        UsageError: one does not apply.
        EnvironmentProblem: there is neither patch nor git.
    """
    digest = digest_of(patches)
    for patch in patches:
        if shutil.which("patch"):
            command = ["patch", "-p1", "--fuzz=0", "--batch", "--forward", "--no-backup-if-mismatch", "-i", str(patch)]
        elif shutil.which("git"):
            command = ["git", "apply", "-p1", str(patch)]
        else:
            raise EnvironmentProblem(f"{patch} cannot be applied: neither patch nor git is installed; install one")
        # Inside of another checkout, git would apply paths relative to that one.
        environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tree.parent)}
        done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False, env=environment)
        if done.returncode != 0:
            reason = " ".join((done.stdout + done.stderr).split())
            raise UsageError(f"{patch} does not apply: {reason}; remove it, or adapt it to this source")
    before = describe(tree)
    origin = Origin(before.commit, before.dirty, digest)
    _record(tree, origin)
    return origin


def digest_of(patches: list[Path]) -> str:
    """What a release says of the patches that it was made with."""
    digest = hashlib.sha256()
    for patch in patches:
        text = patch.read_bytes()
        digest.update(f"{patch.name} {len(text)}\n".encode() + text)
    return digest.hexdigest()


def tree_files(root: Path) -> Iterator[str]:
    """The paths of the files of a tree, without what git ignores, and without downloads."""
    listed = _git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard") if _is_checkout(root) else None
    if listed is not None:
        for name in listed.decode().split("\0"):
            if name and os.path.lexists(root / name) and not (root / name).is_dir():
                yield name
        return
    for folder, folders, files in os.walk(root):
        here = os.path.relpath(folder, root)
        skipped = ("cache",) if here == "input" else ()
        folders[:] = [name for name in folders if name not in (*_LEFT_OUT, *skipped)]
        for name in files:
            if not (here == "input" and name.endswith(".tar.gz")) and name != ORIGIN_NAME:
                yield os.path.normpath(os.path.join(here, name))


def _record(tree: Path, origin: Origin) -> None:
    (tree / ORIGIN_NAME).write_bytes(encode(origin))


def encode(origin: Origin) -> bytes:
    """What `describe` reads in a tree that is no checkout."""
    return json.dumps(origin.__dict__, sort_keys=True).encode() + b"\n"


def file_at(path: Path, revision: str) -> bytes | None:
    """What a file of a checkout is in a revision; None where it is not there."""
    root = _top(path)
    return _git(root, "show", f"{revision}:{path.resolve().relative_to(root)}") if root else None


def is_in_checkout(path: Path) -> bool:
    """Whether a file or folder is in a git checkout, and git is there to ask."""
    return _top(path) is not None


def has_revision(path: Path, revision: str) -> bool:
    """Whether the checkout that a file or folder is in has this revision; a shallow one lacks most."""
    root = _top(path)
    return root is not None and _git(root, "rev-parse", "-q", "--verify", f"{revision}^{{commit}}") is not None


def has_commit(root: Path, commit: str) -> bool:
    """Whether a checkout, or a repository without one, has a commit."""
    if not shutil.which("git") or not ((root / ".git").exists() or (root / "objects").is_dir()):
        return False
    return _git(root, "cat-file", "-e", f"{commit}^{{commit}}") is not None


def has_changes(path: Path) -> bool:
    """Whether a file or folder of a checkout differs from the last commit."""
    root = _top(path)
    return root is not None and bool(_git(root, "status", "--porcelain", "--", str(path.resolve())))


def _top(path: Path) -> Path | None:
    if not shutil.which("git"):
        return None
    path = path.resolve()
    return next((folder for folder in (path, *path.parents) if (folder / ".git").exists()), None)


def _is_checkout(root: Path) -> bool:
    """Whether `root` is the top of a checkout, and not just somewhere inside of another project's."""
    if not shutil.which("git"):
        return False
    top = _git(root, "rev-parse", "--show-toplevel")
    return top is not None and os.path.realpath(top.decode().rstrip("\n")) == os.path.realpath(root)


def _git(root: Path, *words: str) -> bytes | None:
    # The tree may belong to another user (a mounted folder, sudo): it is the one that we were started from.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    done = subprocess.run(
        ["git", "-c", f"safe.directory={root}", "-C", str(root), *words],
        capture_output=True,
        check=False,
        env={**environment, "GIT_OPTIONAL_LOCKS": "0"},
    )
    return done.stdout if done.returncode == 0 else None
