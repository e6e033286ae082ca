"""A release split into its parts, whose contents artifacts/parts.py defines: each is laid out by itself, and packed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kiln_build.artifacts import manifest_model, parts
from kiln_build.artifacts.reader import Release
from kiln_build.release.release import make_tarball, part_name, unpack
from kiln_build.trust import statement
from kiln_recipe.console.appear import passing_folder
from kiln_recipe.errors import UsageError


@dataclass(frozen=True)
class Part:
    """A part that is laid out.

    Attributes:
        name: "runtime", or its target.
        stage: the folder that has it, as it lies below a prefix.
        manifest: the part's own.
    """

    name: str
    stage: Path
    manifest: dict[str, Any]


@contextmanager
def laid_out(release: Release, output: Path) -> Iterator[Iterator[Part]]:
    """The parts of a release, one by one; what is laid out goes when this is left.

    Args:
        release: a tarball; each of its files is held against its manifest.
        output: the folder in which they are laid out, below a hidden name.

    Raises:
        UsageError: it has no packs.
        ArtifactError: it is damaged.
    """
    names = parts.names_of(release.manifest)
    if len(names) == 1:
        raise UsageError(f"{release.path} has no packs, so that there is nothing to split; give one with images")
    with passing_folder(".kiln-split-", output) as folder:
        whole = folder / "whole"
        unpack(release, whole)
        yield (_lay_out(release.manifest, whole, name, folder / name) for name in names)


def write_tarball(part: Part, output: Path) -> Path:
    """The tarball of a part, and its .sha256.

    Raises:
        InTheWay: another one of that name is there, and stays.
        EnvironmentProblem: it cannot be written.
    """
    path = output / part_name(part.manifest["kiln"], part.name)
    beside = (statement.signature_of(statement.checksum_of(path)), statement.manifest_signature_of(path))
    return make_tarball(part.stage, path, beside)


def _lay_out(whole: dict[str, Any], files: Path, name: str, stage: Path) -> Part:
    data = manifest_model.encode_document(whole)
    own = parts.manifest_of(whole, data, name)
    for row in own["files"]:
        path, original = stage / row["path"], files / parts.original_of(row["path"], name)
        path.parent.mkdir(parents=True, exist_ok=True)
        if row["path"] == manifest_model.PATH:
            path.write_bytes(data)
        elif "link" in row:
            path.symlink_to(row["link"])
        else:
            os.link(original, path)  # names of one file stay names of one file
    path = stage / manifest_model.path_of(own)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(manifest_model.encode_document(own))
    return Part(name, stage, own)
