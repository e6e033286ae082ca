"""No build takes another's place unless it is told to (KILN_REPLACE=1). What is known of that before anything is
compiled is said then: a finished tarball states in its manifest what it was made from."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kiln_build.artifacts import reader as inspect
from kiln_build.trust.statement import checksum_of
from kiln_recipe import digests
from kiln_recipe.errors import ArtifactError, EnvironmentProblem

_HOW = "KILN_REPLACE=1 (`kiln build --replace`) replaces it; another version or output folder keeps both"
_ELSEWHERE = "another output folder keeps both"


class InTheWay(EnvironmentProblem):
    """What another build made stands where this one's result would be."""


@dataclass(frozen=True)
class Inputs:
    """What a build is made from, as far as it is known before one begins.

    Attributes:
        commit, dirty, patches: as in a manifest's `source`.
        toolchains: by target, in the manifest's order, the digest that stands for what compiles for it.
        keys: gives those of the variants, by which images are known.
    """

    commit: str
    dirty: bool
    patches: str
    toolchains: Mapping[str, str]
    keys: Callable[[], Collection[str]]


def is_finished(tarball: Path) -> bool:
    """Whether the tarball is there, and counts: without the .sha256 beside it it does not."""
    return tarball.exists() and checksum_of(tarball).exists()


def check_names(tarball: Path) -> None:
    """
    Raises:
        InTheWay: a folder stands where the tarball, or its .sha256, is to be; none is ever replaced.
    """
    for path in (tarball, checksum_of(tarball)):
        if path.is_dir():
            raise InTheWay(f"{path} is a folder, which builds do not replace; remove it, or give another output folder")


def check_before(tarball: Path, inputs: Inputs) -> None:
    """Compares what a build would be made from with what the tarball of its name was made from. One without its
    checksum is somebody's too: builds leave nothing under that name that is not whole.

    Raises:
        InTheWay: they differ, or what stands there cannot be read.
    """
    if not os.path.lexists(tarball):
        return
    try:
        artifact = inspect.open_artifact(tarball)
    except (ArtifactError, EnvironmentProblem) as error:
        raise InTheWay(f"the output has a {tarball.name} that cannot be read ({error}); {_HOW}") from error
    if not isinstance(artifact, inspect.Release):
        raise InTheWay(f"the output has a {tarball.name} that is not a release; {_HOW}")
    if differences := _differences(artifact.manifest, inputs):
        raise InTheWay(f"the output has a {tarball.name} of another build: {'; '.join(differences)}. {_HOW}")


def is_equal(tarball: Path, digest: str, can_replace: bool) -> bool:
    """Whether the tarball that is there has the bytes of the one that was just made.

    Args:
        can_replace: a build made it, which can be told to replace what is there.

    Raises:
        InTheWay: it is another build's.
    """
    if not os.path.lexists(tarball):
        return False
    if not tarball.is_file():
        raise InTheWay(f"the output has a {tarball.name} that is not a file; {_HOW if can_replace else _ELSEWHERE}")
    there = digests.of_file(tarball)
    if there == digest:
        return True
    how = f"{_HOW}. What was compiled is kept, if the workspace is a folder" if can_replace else _ELSEWHERE
    raise InTheWay(
        f"the output has a {tarball.name} with other bytes (sha256 {there[:12]}, the new one's would be "
        f"{digest[:12]}), which was not changed; {how}"
    )


def check_files(fresh: Mapping[Path, Path]) -> None:
    """For files that are about to be replaced, by path, with the files that would take their places.

    Raises:
        InTheWay: one of them has other bytes.
    """
    other = [path for path, new in fresh.items() if path.exists() and digests.of_file(path) != digests.of_file(new)]
    if other:
        names = ", ".join(path.name for path in other)
        raise InTheWay(
            f"{other[0].parent} has {names} of another release; --replace replaces what is there, "
            "another folder keeps both"
        )


def _differences(manifest: Mapping[str, Any], inputs: Inputs) -> list[str]:
    found = []
    source = manifest.get("source") or {}
    commit = str(source.get("commit"))
    if "unknown" not in (commit, inputs.commit) and commit != inputs.commit:
        found.append(f"it is from commit {commit[:12]}, this tree is at {inputs.commit[:12]}")
    elif bool(source.get("dirty")) != inputs.dirty:
        found.append("its source was changed" if source.get("dirty") else "its source was not changed, this tree's is")
    if str(source.get("patches") or "") != inputs.patches:
        found.append("its source had other patches")
    theirs = {row["name"]: row.get("toolchain") for row in manifest["targets"]}
    if theirs.keys() != inputs.toolchains.keys():
        found.append(f"it is for {_listed(list(theirs))}, this build is for {_listed(list(inputs.toolchains))}")
    elif other := [name for name, digest in inputs.toolchains.items() if theirs[name] != digest]:
        found.append(f"another toolchain compiled for {_listed(other)}")
    if not found and (variants := manifest["variants"]):
        keys = inputs.keys()
        changed = dict.fromkeys(row["kernel"] for row in variants if row["key"] not in keys)
        if changed:
            found.append(f"its images of {_listed(list(changed))} are of another source or recipe")
    return found


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "nothing"
