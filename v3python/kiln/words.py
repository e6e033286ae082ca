"""The words of a command line, each checked by itself: folders, versions, recipes, selections.

Standard library only: build.sh refuses bad words before any package is installed.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from kiln.errors import EnvironmentProblem, UsageError

Selection = tuple[tuple[str, tuple[str, ...]], ...]

_NUMBERS = r"[0-9]+\.[0-9]+(?:\.[0-9]+)?"
_SUFFIX = r"[a-z]+[0-9]*"


def absolute(word: str | Path, cwd: Path) -> Path:
    """`word` as an absolute path without '..'; symbolic links stay as they are named."""
    return Path(os.path.normpath(cwd / word))


def check_version(version: str) -> str:
    """Returns `version`.

    Raises:
        UsageError: it is not X.Y or X.Y.Z with an optional suffix of small letters and digits.
    """
    if not re.fullmatch(rf"{_NUMBERS}({_SUFFIX})?", version):
        suffix = re.fullmatch(rf"{_NUMBERS}(.+)", version, re.DOTALL)
        what = f", and {suffix[1]!r} is no such suffix" if suffix else ""
        raise UsageError(
            f"version {version!r} is not X.Y or X.Y.Z with an optional suffix of small letters and then digits{what}; "
            "right are 0.1.0b, 1.2, 1.2.0rc1"
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
        raise EnvironmentProblem(f"workspace {path} is {_kind(path)}; give a folder, a name that is free, or tmpfs")
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


def check_output(word: str, cwd: Path) -> Path:
    """The absolute output folder, made if it is not there.

    Raises:
        UsageError: the word is empty.
        EnvironmentProblem: it cannot be made or written to.
    """
    if not word:
        raise UsageError("the output is empty; give the folder that the tarball shall be put into")
    path = absolute(word, cwd)
    return _writable(path, f"output {path}")


def check_store(word: str, cwd: Path) -> Path:
    """The absolute folder of KILN_STORE, made if it is not there.

    Raises:
        EnvironmentProblem: it cannot be made or written to.
    """
    return _writable(absolute(word, cwd), f"KILN_STORE={word}")


def check_recipe(word: str, cwd: Path) -> Path:
    """The absolute path of an extra recipe.

    Raises:
        EnvironmentProblem: there is no such file.
    """
    path = absolute(word, cwd)
    if path.is_dir():
        inside = f"give the file in it: {os.path.join(word, 'recipe.yaml')}"
        if not (path / "recipe.yaml").is_file():
            inside = "give paths of recipe.yaml files, and there is none in it"
        raise EnvironmentProblem(f"KILN_RECIPES names {word}, which is a folder; {inside}")
    if not path.is_file():
        raise EnvironmentProblem(f"KILN_RECIPES names {word}, which is not a file; give paths of recipe.yaml files")
    return path


def parse_selection(text: str, source: str = "KILN_SELECT") -> Selection:
    """'dtype=bf16;head_dim=64,128' as (("dtype", ("bf16",)), ("head_dim", ("64", "128"))).

    Which choices and values exist is the plan's to know. `source`: what the errors call it.

    Raises:
        UsageError: it is not of that form, or names a choice twice.
    """
    selection: dict[str, tuple[str, ...]] = {}
    for part in filter(None, (part.strip() for part in text.split(";"))):
        name, equals, values = (word.strip() for word in part.partition("="))
        split = tuple(value.strip() for value in values.split(","))
        if not (name and equals and all(split)):
            raise UsageError(f"{source}: {part!r} is not choice=value,value; right is 'dtype=bf16;head_dim=64,128'")
        if name in selection:
            raise UsageError(f"{source} names {name!r} twice; give all its values at once: {name}=first,second")
        selection[name] = tuple(dict.fromkeys(split))
    return tuple(selection.items())


def spell_selection(selection: Selection) -> str:
    """The text that `parse_selection` reads as `selection`."""
    return ";".join(f"{name}={','.join(values)}" for name, values in selection)


def _writable(path: Path, name: str) -> Path:
    if os.path.lexists(path) and not path.is_dir():
        raise EnvironmentProblem(f"{name} is {_kind(path)}; give a folder, or a name that is free")
    probe = path / f".kiln-{os.getpid()}"
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise EnvironmentProblem(f"{name} cannot be written ({error.strerror}); give a folder that you may write to")
    return path


def _kind(path: Path) -> str:
    if path.is_file():
        return "a file"
    return "a link that leads nowhere" if path.is_symlink() and not path.exists() else "no folder"
