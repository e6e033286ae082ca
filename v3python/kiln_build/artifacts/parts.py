"""The parts of a release that was split: one with everything but the packs, "runtime", and one for each target, called
after it, with its pack. They are unpacked over one another, in any order; no two have a file in common.

    runtime    all but the packs, share/kiln/manifest.json of the whole release among it
    <target>   its pack, under each of the pack's names
    both       share/kiln/installed/<part>/: manifest.json; for a target LICENSE, NOTICES.txt, licences/, kiln.cdx.json

The manifest of a part follows from the release's, to the byte. So where the runtime is, the release's manifest, and a
signature of it, cover what else is installed; and where it is not, the part's own manifest says what it holds and, by
the digest of the release's manifest, which runtime it is for. Standard library only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from kiln_build.artifacts import manifest_model
from kiln_build.artifacts.manifest_model import PARTS, PATH, RUNTIME

_SHARE = PATH.rpartition("/")[0]
# What goes along with every part, since it may be all that somebody gets.
_ALONG = (f"{_SHARE}/LICENSE", f"{_SHARE}/NOTICES.txt", f"{_SHARE}/kiln.cdx.json", f"{_SHARE}/licences/")
_TABLES = ("images", "variants", "left_out")


def names_of(whole: Mapping[str, Any]) -> list[str]:
    """The parts of a release, by its manifest: the runtime, and the targets that have a pack."""
    return [RUNTIME, *(row["name"] for row in whole["targets"] if "pack" in row)]


def manifest_of(whole: Mapping[str, Any], data: bytes, part: str) -> dict[str, Any]:
    """The manifest of a part.

    Args:
        whole: the release's.
        data: its bytes.
        part: one of `names_of`.
    """
    rows = [row for row in whole["targets"] if row["name"] == part]
    made = {
        **whole,
        "part": part,
        "of": hashlib.sha256(data).hexdigest(),
        "targets": rows,
        "files": _files_of(whole, data, part),
        **{name: [row for row in whole[name] if row["target"] == part] for name in _TABLES},
    }
    return made | {"format": manifest_model.format_of((), (), True)}


def installed(whole: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """What a folder has in which the runtime and other parts of a release are installed, as one manifest.

    Args:
        names: of the parts, the runtime left out.
    """
    data = manifest_model.encode_document(dict(whole))
    files: list[dict[str, Any]] = []
    for part in (RUNTIME, *names):
        own = manifest_of(whole, data, part)
        text = manifest_model.encode_document(own)
        files += [row for row in own["files"] if row["path"] != PATH]
        files.append(_row(manifest_model.path_of(own), text))
    made = {name: [row for row in whole[name] if row["target"] in names] for name in _TABLES}
    targets = [row for row in whole["targets"] if row["name"] in names or "pack" not in row]
    return {**whole, **made, "targets": targets, "files": sorted(files, key=lambda row: row["path"])}


def original_of(path: str, part: str) -> str:
    """The path in the release of what a part has at `path`, which is the same but for what goes along with each."""
    inside = path.removeprefix(f"{PARTS}/{part}/")
    return f"{_SHARE}/{inside}" if inside != path else path


def _files_of(whole: Mapping[str, Any], data: bytes, part: str) -> list[dict[str, Any]]:
    packs = {row["pack"]: row["name"] for row in whole["targets"] if "pack" in row}
    rows = [row for row in whole["files"] if packs.get(row["path"].rpartition("/")[2], RUNTIME) == part]
    if part == RUNTIME:
        rows.append(_row(PATH, data))
    else:
        along = (row for row in whole["files"] if row["path"].startswith(_ALONG))
        rows += [{**row, "path": f"{PARTS}/{part}{row['path'][len(_SHARE) :]}"} for row in along]
    return sorted(rows, key=lambda row: row["path"])


def _row(path: str, data: bytes) -> dict[str, Any]:
    return {"path": path, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
