"""One release of all its parts, byte for byte the one that was split."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kiln_build.artifacts import manifest, manifest_model, parts
from kiln_build.artifacts.manifest_model import PARTS, PATH, RUNTIME
from kiln_build.artifacts.reader import Release
from kiln_build.release.release import make_release, part_name, unpack
from kiln_recipe import digests, shape
from kiln_recipe.console.appear import passing_folder
from kiln_recipe.console.progress import Progress
from kiln_recipe.errors import ArtifactError, UsageError


def join(given: Sequence[Release], output: Path, progress: Progress) -> Path:
    """Makes the tarball of the release, and its .sha256, in `output`; returns its path.

    Args:
        given: tarballs of parts; each file is held against the part's manifest, and that against the release's.

    Raises:
        UsageError: they are parts of different releases, one is missing, or there are two of one name that differ.
        ArtifactError: one is damaged.
        InTheWay: another release of that name is in `output`.
    """
    by_name = _by_name(given)
    check_equal(given)
    runtime = by_name.get(RUNTIME)
    release = given[0].manifest["kiln"]
    if runtime is None:
        raise UsageError(f"the part {RUNTIME} is missing; give {part_name(release, RUNTIME)} too")
    with passing_folder(".kiln-merge-", output) as folder:
        stage = folder / "kiln"
        for name, part in by_name.items():
            progress.message(f"unpacking the part {name}")
            unpack(part, stage)
        data = (stage / PATH).read_bytes()
        whole = manifest_model.read(data, str(runtime.path))
        names = [] if "part" in whole else parts.names_of(whole)
        for name, part in by_name.items():
            if name not in names or part.manifest != parts.manifest_of(whole, data, name):
                raise ArtifactError(f"{part.path}: its manifest does not follow from that of the release in {RUNTIME}")
        if missing := [name for name in names if name not in by_name]:
            which = ", ".join(part_name(release, name) for name in missing)
            raise UsageError(f"the release has parts that are missing; give {which} too")
        shutil.rmtree(stage / PARTS)
        if shape.plain(manifest.files_of(stage)) != whole["files"]:
            raise ArtifactError(f"{runtime.path}: the parts together are not what the release's manifest states")
        progress.message(f"packing the release {release}")
        return make_release(stage, output, release, replace=None)


def _by_name(given: Sequence[Release]) -> dict[str, Release]:
    """The parts by their names, the runtime first; the same part may be given twice."""
    found: dict[str, Release] = {}
    for part in given:
        name = part.manifest["part"]
        if name in found and digests.of_file(part.path) != digests.of_file(found[name].path):
            raise UsageError(f"{found[name].path} and {part.path} are both the part {name}, and differ; give one")
        found.setdefault(name, part)
    return dict(sorted(found.items(), key=lambda row: row[0] != RUNTIME))


def check_equal(given: Sequence[Release]) -> None:
    """
    Raises:
        UsageError: two differ in something that all of one release have in common; it is named.
    """
    first = given[0]
    for other in given[1:]:
        for what, get in _COMMON.items():
            ours, theirs = get(first.manifest), get(other.manifest)
            if ours != theirs:
                raise UsageError(
                    f"{first.path} and {other.path} are not of one release: {what} is {ours or 'none'} in the first "
                    f"and {theirs or 'none'} in the second"
                )


def _source(document: dict[str, Any]) -> str:
    source = document["source"]
    patches = f" and patches {source['patches'][:12]}" if source.get("patches") else ""
    return f"{source['commit']}{', changed,' if source['dirty'] else ''}{patches}"


# What all parts of a release say alike, by what it is called.
_COMMON = {
    "the version": lambda document: document["kiln"],
    "the source's commit": _source,
    "the platform": lambda document: document["platform"],
    "the profile": lambda document: document["profile"],
    "the selection": lambda document: document["selection"],
    "PTX": lambda document: "packed" if document["ptx"] else "",
    "the list of families": lambda document: ", ".join(document.get("families") or ()),
    "the digest of the release's manifest": lambda document: document.get("of", ""),
}
