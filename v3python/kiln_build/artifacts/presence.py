"""Whether the packs that a manifest names are there: packagers leave some out, and files get renamed.

Of each pack the index is read and held against the manifest, not its groups: `kiln inspect --verify` checks those.
Needs only the standard library.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kiln_build.artifacts import pack
from kiln_build.artifacts.reader import IMAGES, Release
from kiln_build.base import tarball
from kiln_recipe.errors import ArtifactError

_NOT_INSTALLED = "is not installed: it is in another part of the release, called after the target"
_MISSING, _OTHER, _DAMAGED = "is missing", "is not the one that the manifest names", "is truncated or damaged"


def absent_packs(release: Release) -> dict[str, str]:
    """By target why its pack does not serve it, a clause such as "is missing". Targets whose pack is as the manifest
    says are not in it, nor are those without one. A tarball is read to its end.

    Raises:
        ArtifactError: the tarball is not what Kiln writes.
    """
    targets = {row["pack"]: row for row in release.manifest["targets"] if "pack" in row}
    sizes = {row["path"]: row.get("bytes", 0) for row in release.manifest["files"]}
    if release.parts is not None:
        targets = {name: row for name, row in targets.items() if row["name"] in release.parts}
    if release.is_folder:
        found = {name: _of_file(release.path / IMAGES / name, row, sizes) for name, row in targets.items()}
    else:
        found = dict.fromkeys(targets, _MISSING)
        for entry in release.entries():
            folder, _, name = entry.path.rpartition("/")
            if folder == IMAGES and name in found and entry.kind == "file":
                found[name] = _problem(entry.blocks(), entry.size, targets[name], sizes)
    absent = {targets[name]["name"]: problem for name, problem in found.items() if problem}
    if release.parts is not None:
        absent |= {
            row["name"]: _NOT_INSTALLED for row in release.manifest["targets"] if row["name"] not in release.parts
        }
    return absent


def sentences_of(release: Release, absent: Mapping[str, str]) -> list[str]:
    """What `absent_packs` found, a sentence for each target."""
    return [
        f"{row['name']}: its pack {IMAGES}/{row['pack']} {absent[row['name']]}"
        for row in release.manifest["targets"]
        if row["name"] in absent
    ]


def refuse_damaged(release: Release, absent: Mapping[str, str]) -> None:
    """For those who say what is in a release: nothing can be said of a pack that is there and cannot be read.

    Raises:
        ArtifactError: there is such a pack.
    """
    unreadable = {target: why for target, why in absent.items() if why not in (_NOT_INSTALLED, _MISSING, _OTHER)}
    if unreadable:
        raise ArtifactError(
            f"{release.path} is damaged: {'; '.join(sentences_of(release, unreadable))}; unpack or install it anew"
        )


def _of_file(path: Path, target: Mapping[str, Any], sizes: Mapping[str, int]) -> str:
    try:
        with tarball.open_file(path) as file:
            return _problem(iter(lambda: file.read(1 << 16), b""), path.stat().st_size, target, sizes)
    except FileNotFoundError:
        return _MISSING
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    except ArtifactError:
        return "is not a file"


def _problem(blocks: Iterable[bytes], size: int, target: Mapping[str, Any], sizes: Mapping[str, int]) -> str:
    """Of a pack that is there, "" if it is the manifest's as far as its index tells."""
    start = bytearray()
    for block in blocks:
        start += block
        if len(start) >= pack.HEADER.size + pack.LARGEST_INDEX:
            break
    try:
        digest = pack.index_digest(bytes(start), size, target["pack"])
    except pack.UnknownFormat as error:
        return f"is of format {error.version}, which this Kiln does not read"
    except ArtifactError:
        return _DAMAGED
    if digest != target.get("index"):
        return _OTHER
    return "" if size == sizes.get(f"{IMAGES}/{target['pack']}", size) else _DAMAGED
