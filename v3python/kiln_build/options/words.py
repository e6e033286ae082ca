"""The words of a command line, each checked by itself: folders, files, versions, recipes.

Standard library only: build.sh refuses bad words before any package is installed.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

from kiln_recipe.console.files import absolute, is_of_kind, kind_of, what_keeps
from kiln_recipe.errors import EnvironmentProblem, UsageError

_NUMBER = r"(?:0|[1-9][0-9]{0,4})"
_NUMBERS = rf"{_NUMBER}\.{_NUMBER}(?:\.{_NUMBER})?"
_SUFFIX = r"[a-z]+[0-9]*"

# Everything that a build makes in a workspace; nothing else in the folder is ever removed.
WORKSPACE_PARTS = (
    "venv", "toolchains", "store", "zig", "triton", "logs", "build", "source", "container", "pycache", "tmp",
    "model",
)  # fmt: skip
WORKSPACE_LOCK = ".kiln-workspace"  # stands in every workspace


CACHE_KINDS = ("http", "https", "s3")  # addresses of caches, as cache/transport.py opens them


def check_version(version: str) -> str:
    """Returns `version`.

    Raises:
        UsageError: it is not X.Y or X.Y.Z with an optional suffix of small letters and digits.
    """
    if not re.fullmatch(rf"{_NUMBERS}({_SUFFIX})?", version):
        found = re.fullmatch(r"([0-9]+(?:\.[0-9]+){1,2})(.*)", version, re.DOTALL)
        numbers, suffix = found.groups() if found else ("", "")
        what = f", and {suffix!r} is not such a suffix" if suffix else ""
        for number in numbers.split(".") if found else ():
            if not re.fullmatch(_NUMBER, number):
                what = f", and {number} has {'a leading 0' if number[0] == '0' else 'more than five digits'}"
        raise UsageError(
            f"version {version!r} is not X.Y or X.Y.Z with an optional suffix of small letters and then digits{what}; "
            "for example 0.1.0b, 1.2, 1.2.0rc1 or 1.2.0dev20261125"
        )
    return version


def check_workspace(word: str, cwd: Path) -> Path | None:
    """The absolute path of the workspace, which need not be there yet; None for the word tmpfs.

    Raises:
        UsageError: the word is empty.
        EnvironmentProblem: it names something that is no folder.
    """
    if not word:
        raise UsageError("the workspace is empty; give a folder, or the word tmpfs")
    if word == "tmpfs":
        return None
    path = absolute(word, cwd)
    if os.path.lexists(path) and not path.is_dir():
        raise EnvironmentProblem(
            f"workspace {path} is {kind_of(path)}; give a folder, a name that does not exist yet, or tmpfs"
        )
    return path


def check_input(word: str, cwd: Path) -> Path:
    """The absolute input folder.

    Raises:
        UsageError: the word is empty.
        EnvironmentProblem: no such folder, or no lock in it.
    """
    if not word:
        raise UsageError("the input is empty; give the folder input/ of the source tree, or a copy of it")
    path = absolute(word, cwd)
    if not path.is_dir():
        raise EnvironmentProblem(f"input {path} is not a folder; give input/ of the source tree, or a copy of it")
    if not (path / "toolchain.lock.yaml").is_file():
        raise EnvironmentProblem(
            f"input {path} has no toolchain.lock.yaml; give input/ of the source tree, or a copy of it"
        )
    return path


def check_output(word: str, cwd: Path, workspace: Path | None, input_folder: Path | None = None) -> Path:
    """The absolute output folder. What is not there is not made: the build may yet be refused.

    Args:
        workspace, input_folder: of a build, absolute.

    Raises:
        UsageError: the word is empty; the folder is the workspace, the input or within it, or it is in what builds make
            in some workspace, which `kiln clean` removes.
        EnvironmentProblem: it cannot be made or written to.
    """
    if not word:
        raise UsageError("the output is empty; give the folder for the tarball")
    path = absolute(word, cwd)
    if workspace is not None and os.path.realpath(path) == os.path.realpath(workspace):
        raise UsageError(f"output {path} is the workspace, which only holds temporary files; give another folder")
    real = Path(os.path.realpath(path))
    if input_folder is not None and real.is_relative_to(os.path.realpath(input_folder)):
        raise UsageError(f"output {path} is in the input, which only holds what builds read; give another folder")
    known = Path(os.path.realpath(workspace)) if workspace is not None else None
    for place in real.parents:
        is_workspace = place == known or (place / WORKSPACE_LOCK).is_file()
        if is_workspace and (part := real.relative_to(place).parts[0]) in WORKSPACE_PARTS:
            raise UsageError(
                f"output {path} is in {place / part}, which only holds temporary files; give another folder"
            )
    return _possible(path, f"output {path}")


def check_there(word: str, right: str) -> None:
    """
    Args:
        right: "give a release's tarball".

    Raises:
        EnvironmentProblem: nothing is at that path, or it cannot be known.
    """
    try:
        os.stat(word)
    except OSError as error:
        raise EnvironmentProblem(f"{Path(word)} cannot be read ({error.strerror}); {right}") from error


def check_outside(path: Path, artifact: Path, what: str) -> None:
    """
    Args:
        path: absolute; where something is to be written.
        artifact: what is read: nothing is added to an unpacked release.
        what: the sentence's first words, "--html page.html".

    Raises:
        UsageError: it lies in the unpacked release that is read.
    """
    if artifact.is_dir() and path.resolve().is_relative_to(artifact.resolve()):
        raise UsageError(f"{what} lies inside of {artifact}; give a name outside of it")


def scheme_of(address: str) -> str:
    """ "s3" of "s3://bucket/images", "" of a folder."""
    found = re.match(r"([a-z][a-z0-9+.-]*)://", address)
    return found[1] if found else ""


def check_store(word: str, cwd: Path, name: str = "KILN_STORE") -> str:
    """The absolute folder of a store, or the address that it is; stores.py says which addresses there may be. What
    is not there is not made: it may lie in a workspace that is still to be. A store that is there may be read-only: it
    may have every image, and the farm refuses it if not.

    Args:
        name: by which it was given, KILN_STORE or --store.

    Raises:
        EnvironmentProblem: the folder cannot be made or written to, and is not a store.
    """
    path = absolute(word, cwd)
    if scheme_of(word) or (path / "format").is_file():
        return word if scheme_of(word) else str(path)
    return str(_possible(path, f"{name}={word}"))


def check_log(word: str, cwd: Path, name: str = "KILN_LOG_JSON") -> str:
    """The absolute path of a file that can be written to, or made, or the number of an open descriptor.

    Args:
        name: the variable, or the option.

    Raises:
        EnvironmentProblem: it is neither.
        UsageError: it is "-", or a number below 0.
    """
    if re.fullmatch("-[0-9]*", word):
        raise UsageError(f"{name}={word} is not a descriptor; give the number of an open one, or a file's name")
    if word.isdecimal():
        if problem := what_keeps(word, os.O_RDONLY):
            what = "not an open descriptor" if problem == "is not open" else f"a descriptor that {problem}"
            raise EnvironmentProblem(f"{name}={word} is {what}; give a file, or open it: {word}>progress.jsonl")
        return word
    path = absolute(word, cwd)
    there = path if os.path.lexists(path) else path.parent
    problem = "is a folder" if path.is_dir() else ""
    if not os.access(there, os.W_OK):
        problem = "cannot be written" if there.exists() else f"cannot be made: there is no folder {path.parent}"
    elif not is_of_kind(path, b"{"):
        raise EnvironmentProblem(f"{name}={word} exists and is not a log of JSON lines, so it stays; name another")
    if problem:
        raise EnvironmentProblem(f"{name}={word} {problem}; give a file, or an open descriptor's number")
    return str(path)


def check_cache(word: str, name: str = "KILN_CACHE") -> str:
    """Returns the address of a cache.

    Args:
        name: the variable, or the option.

    Raises:
        UsageError: it is none, or holds a secret, which logs would show.
    """
    try:
        parts = urlsplit(word)
        _ = parts.port  # looked at here, so that one that cannot be is refused
    except ValueError:  # it may hold a secret, so it is not shown
        raise UsageError(f"{name} is not the address of a cache; expected for example http://host:8080/kiln") from None
    if "@" in parts.netloc:
        raise UsageError(
            f"{name}={parts.scheme}://...@{parts.netloc.rpartition('@')[2]} has a login in its address, which logs "
            "would show; give it by KILN_CACHE_LOGIN"
        )
    if not scheme_of(word) or not parts.netloc or parts.query or parts.fragment or not re.fullmatch("[!-~]+", word):
        raise UsageError(f"{name}={word} is not the address of a cache; expected for example http://host:8080/kiln")
    if parts.scheme not in CACHE_KINDS:
        raise UsageError(f"{name}={word} is of an unknown kind; give an address with {', '.join(CACHE_KINDS)}")
    return word


def check_secret(word: str, cwd: Path, name: str) -> str:
    """Where a secret is kept: the absolute path of a file, or "env:NAME" as it is.

    Raises:
        EnvironmentProblem: there is no such file.
    """
    return word if word.startswith("env:") else str(check_file(word, cwd, name, "a file, or env:NAME"))


def check_file(word: str, cwd: Path, name: str, right: str) -> Path:
    """The absolute path of the file that a variable names.

    Raises:
        EnvironmentProblem: there is no such file.
    """
    path = absolute(word, cwd)
    if not path.is_file():
        raise EnvironmentProblem(f"{name}={word} is not a file; give {right}")
    return path


def check_recipe(word: str, cwd: Path, what: str = "KILN_RECIPES") -> Path:
    """The absolute path of a recipe.

    Args:
        what: names it: the variable or the option.

    Raises:
        EnvironmentProblem: there is no such file.
    """
    path = absolute(word, cwd)
    if path.is_dir():
        inside = f"give the file in it: {os.path.join(word, 'recipe.yaml')}"
        if not (path / "recipe.yaml").is_file():
            inside = "it contains no recipe.yaml; give paths of recipe.yaml files"
        raise EnvironmentProblem(f"{what} names {word}, which is a folder; {inside}")
    if not path.is_file():
        raise EnvironmentProblem(f"{what} names {word}, which is not a file; give paths of recipe.yaml files")
    return path


def _possible(path: Path, name: str) -> Path:
    """A folder that can be written to, or made where it is not there; nothing is left of the trial."""
    if os.path.lexists(path) and not path.is_dir():
        raise EnvironmentProblem(f"{name} is {kind_of(path)}; give a folder, or a name that does not exist yet")
    there = next(folder for folder in (path, *path.parents) if os.path.lexists(folder))
    try:
        with contextlib.suppress(FileNotFoundError):
            path.lstat()  # no name that is too long, and nothing below a file
        os.rmdir(tempfile.mkdtemp(prefix=".kiln-", dir=there))
    except OSError as error:
        raise EnvironmentProblem(f"{name} cannot be written ({error.strerror}); give a folder that you may write to")
    return path
