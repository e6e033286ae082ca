"""Checks everything that an artifact states about itself: digests of files, of a pack's index, groups and images; facts
of images against the images; the manifest against the packs; the libraries against the packs they were made for.

Like inspect.py it needs only the standard library, zstandard and pyelftools.
"""

from __future__ import annotations

import hashlib
import stat
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kiln_build.artifacts import manifest_model, parts
from kiln_build.artifacts.entries import Content, Entry
from kiln_build.artifacts.manifest_model import INSPECTOR, RUNTIME, SIGNATURE
from kiln_build.artifacts.reader import (
    IMAGES,
    MANIFEST,
    ImageFile,
    PackFile,
    Release,
    families_of,
    file_of,
    need,
)
from kiln_build.artifacts.verify_pack import Report, Seen, Stated, compare, verify_pack
from kiln_build.base import tar, tarball
from kiln_recipe import digests
from kiln_recipe.console.tables import plural
from kiln_recipe.errors import ArtifactError, EnvironmentProblem

LARGEST_LIBRARY = 64 << 20  # bytes of a family's library; it is looked through as a whole


def verify(artifact: Release | PackFile | ImageFile, signed: str = "") -> Report:
    """Checks all of an artifact. What is wrong is in the report, not raised.

    Args:
        signed: the SHA-256, of a tarball or of a folder's manifest, that has been held against its signature.

    Raises:
        EnvironmentProblem: it is an image, and this Python cannot read it.
    """
    report = Report()
    try:
        need("elf")
        if not isinstance(artifact, ImageFile):
            need("zstd")
    except EnvironmentProblem as error:
        if isinstance(artifact, ImageFile):
            raise
        report.complete = False
        report.notes.append(f"the images in packs were not read: {error}")
    try:
        if isinstance(artifact, Release):
            _verify_release(artifact, report, signed)
        elif isinstance(artifact, PackFile):
            with tarball.open_file(artifact.path) as file:
                found = verify_pack(file.read, artifact.pack.file_bytes, artifact.path.name, report, Seen())
            if found.index_digest != artifact.pack.index_digest:
                report.problems.append(f"{artifact.path.name} was changed while it was read")
        else:
            report.images = 1
            if need("elf").strip(artifact.data) != artifact.data:
                report.notes.append("the image is not stripped: it holds debugging information or comments")
    except ArtifactError as error:
        report.problems.append(str(error))
    return report


def refuse_problems(report: Report, name: str) -> None:
    """Raises what is wrong with the artifact `name`, if anything is.

    Raises:
        ArtifactError: something is.
    """
    if report.problems:
        sentences = "; ".join(report.problems[:20])
        more = f"; and {len(report.problems) - 20} more" if len(report.problems) > 20 else ""
        raise ArtifactError(f"{name} is not what it should be: {sentences}{more}")


def counts(report: Report) -> str:
    """ "18 files, 3 groups", of what was checked."""
    parts = [(report.files, "file"), (report.groups, "group"), (report.images, "image")]
    return ", ".join(plural(count, name) for count, name in parts if count)


def note_of_program() -> str:
    """What is to be said of the program that runs, if it lies in a release; else ""."""
    folders = Path(sys.argv[0]).resolve().parents
    if not sys.argv[0].endswith(Path(INSPECTOR).name) or len(folders) < 3 or not (folders[2] / MANIFEST).is_file():
        return ""
    return (
        f"this program is {INSPECTOR} of a release, and says nothing about that release, whose maker may have written "
        "what it prints; use the kiln-inspect-<release>.pyz beside the tarball, checked by its own signature"
    )


def _verify_release(release: Release, report: Report, signed: str) -> None:
    if release.is_folder and not signed:
        report.notes.append(
            "an unpacked release has no digest of its manifest; only the tarball's .sha256 covers the manifest"
        )
    elif not release.is_folder and not signed:
        _verify_checksum(release.path, report)
    stated = Stated(release.manifest if release.parts is None else parts.installed(release.manifest, release.parts))
    if release.parts is not None:
        stated.whole = release.manifest
    elif release.manifest.get("part") == RUNTIME:
        stated.whole = _whole_of(release, report)
    stated.indexes |= {row["index"] for row in stated.whole.get("targets", ()) if "index" in row}
    before, read = len(report.problems), hashlib.sha256()
    try:
        _verify_entries(release, stated, report, read.update)
    except tarball.WrongSum:
        if len(report.problems) == before:  # else it was said already which file is wrong
            raise
        return
    if signed and not release.is_folder and signed != read.hexdigest():
        report.problems.append(f"{release.path.name} was changed after its digest had been found right")
    _verify_tables(stated, report)
    _verify_libraries(stated, report)


def _verify_entries(release: Release, stated: Stated, report: Report, hear: Callable[[bytes], object]) -> None:
    seen: set[str] = set()
    for entry in release.entries(hear):
        name = entry.path if not entry.path or tar.is_plain(entry.path) else ascii(entry.path)
        if entry.kind == "folder":
            if entry.path not in stated.folders:
                report.problems.append(f"the folder {name} exists, but the manifest names nothing in it")
            continue
        seen.add(entry.path)
        if entry.mode & (stat.S_ISUID | stat.S_ISGID):
            report.problems.append(f"{name} has the mode {entry.mode:o}; files of a release never run as another user")
        if entry.kind == "file" and entry.path == stated.path:
            if Content(entry).finish() != release.spelled:
                report.problems.append(f"{name} was changed while the release was read")
            continue
        if entry.kind == "file" and _is_signature(entry.path, release, stated):
            continue
        row = stated.files.get(entry.path)
        report.files += 1
        if row is None:
            report.problems.append(f"{name} exists, but is not in the manifest")
        elif entry.kind == "link":
            _verify_link(entry, row, stated, report)
        elif entry.kind == "hard link":
            _verify_hard_link(entry, row, stated, report)
        elif entry.kind != "file":
            report.problems.append(f"{name} is neither a file, a folder nor a link")
        elif entry.size != row.get("bytes", 0):
            report.problems.append(f"{name} does not have the digest and size that the manifest states")
        else:
            _verify_file(entry, row, stated, report)
    report.problems += [f"{path} is missing" for path in sorted(set(stated.files) - seen)]


def _whole_of(release: Release, report: Report) -> Mapping[str, Any]:
    """The release's manifest, which its runtime has; from it the part's own must follow."""
    try:
        data = (release.path / MANIFEST).read_bytes() if release.is_folder else file_of(release.path, MANIFEST)
        whole = manifest_model.read(data, f"{release.path}/{MANIFEST}")
    except OSError as error:
        report.problems.append(f"{MANIFEST} cannot be read ({error.strerror})")
        return {}
    if "part" in whole or parts.manifest_of(whole, data, RUNTIME) != release.manifest:
        report.problems.append(f"{manifest_model.path_of(release.manifest)} does not follow from {MANIFEST}")
    return whole


def _is_signature(path: str, release: Release, stated: Stated) -> bool:
    """Whether an unpacked release has a signature there: beside its manifest or a pack; none is in a tarball."""
    folder, _, name = (path[: -len(SIGNATURE)] if path.endswith(SIGNATURE) else "").rpartition("/")
    return release.is_folder and (f"{folder}/{name}" == MANIFEST or (folder == IMAGES and name in stated.targets))


def _verify_link(entry: Entry, row: Mapping[str, Any], stated: Stated, report: Report) -> None:
    folder = entry.path.rpartition("/")[0]
    if row.get("link") != entry.link:
        says = row.get("link") or "that it is a file"
        report.problems.append(f"{entry.path} is a link to {ascii(entry.link)[1:-1]}; the manifest says {says}")
    elif "/" in entry.link:
        report.problems.append(f"{entry.path} is a link out of its folder, to {entry.link}")
    elif (to := f"{folder}/{entry.link}") not in stated.folders and "sha256" not in stated.files.get(to, ()):
        report.problems.append(f"{entry.path} is a link to {entry.link}, which does not exist")


def _verify_hard_link(entry: Entry, row: Mapping[str, Any], stated: Stated, report: Report) -> None:
    """Its content is the file's, which was verified under its own path."""
    file = stated.files.get(entry.link, {})
    if "sha256" not in row or (row["sha256"], row.get("bytes")) != (file.get("sha256"), file.get("bytes")):
        report.problems.append(
            f"{entry.path} is a hard link to {entry.link}; the manifest does not state the same digest and size of both"
        )


def _verify_file(entry: Entry, row: Mapping[str, Any], stated: Stated, report: Report) -> None:
    folder, _, name = entry.path.rpartition("/")
    content = Content(entry)
    found, within = None, Report(complete=report.complete)
    seen = Seen()
    if folder == IMAGES and name.endswith(".pack"):
        try:
            found = verify_pack(content.read, entry.size, entry.path, within, seen)
        except ArtifactError as error:
            within.problems.append(str(error))
    elif folder == "lib" and name.startswith("libkiln_"):
        if entry.size > LARGEST_LIBRARY:
            report.problems.append(f"{entry.path} has more than {LARGEST_LIBRARY >> 20} MiB, the limit of a library")
        else:
            library = content.read(entry.size)
            stated.held[name] = {digest for digest in stated.indexes if bytes.fromhex(digest) in library}
    if content.finish() != row.get("sha256"):  # then there is no more to say of it
        report.problems.append(f"{entry.path} does not have the digest and size that the manifest states")
        return
    report.groups += within.groups
    report.images += within.images
    report.problems += within.problems
    if found is not None:
        stated.packs[name] = found.index_digest, list(dict.fromkeys(kernel.family for kernel in found.kernels))
        if name in stated.targets:
            compare(found, name, seen, stated, report)


def _verify_checksum(path: Path, report: Report) -> None:
    """Holds a tarball against the .sha256 beside it, if there is one."""
    beside = path.with_name(f"{path.name}.sha256")
    try:
        with tarball.open_file(beside) as file:
            words = file.read(4096).decode().split()
    except FileNotFoundError:
        report.notes.append(f"{beside.name} is missing, so the tarball as a whole was not checked")
        return
    except (OSError, UnicodeDecodeError, ArtifactError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not a text file"
        report.problems.append(f"{beside.name} beside it cannot be read ({why})")
        return
    if not words or words[0] != digests.of_file(path):
        report.problems.append(f"{path.name} does not have the digest of {beside.name}")


def _verify_tables(stated: Stated, report: Report) -> None:
    for name, target in stated.targets.items():
        # Of a pack that the manifest has among its files it was said above what is wrong with it.
        is_listed = "sha256" in stated.files.get(f"{IMAGES}/{name}", ())
        if name not in stated.packs and not is_listed:
            report.problems.append(f"the pack {name} for {target['name']} is missing")
    others = sorted(set(stated.packs) - set(stated.targets))
    report.problems += [f"{name} belongs to no target of the manifest" for name in others]
    there = {target["name"] for target in stated.targets.values()}
    for table, rows in (("images", stated.images), ("variants", stated.variants), ("rules", stated.rules)):
        others = sorted(set(rows) - there)
        report.problems += [f"the manifest has {table} for {target}, which has no pack" for target in others]


def _verify_libraries(stated: Stated, report: Report) -> None:
    """A family's library holds the digest of each pack's index, and accepts no other pack. Of a release in parts, it
    holds those of packs that are not there too."""
    part = stated.manifest.get("part")
    if part not in (None, RUNTIME):
        release = stated.manifest["kiln"]
        report.notes.append(f"this is the part {part} of {release}; which packs are accepted, the part {RUNTIME} says")
        return
    packs = dict(stated.packs)
    for row in stated.whole.get("targets", ()):
        if "index" in row and row["pack"] not in packs:
            families = families_of(one for one in stated.whole["variants"] if one["target"] == row["name"])
            packs[row["pack"]] = row["index"], families
            report.notes.append(f"{row['name']} is not installed" if part is None else f"{row['name']} is another part")
    for name, (digest, families) in packs.items():
        for family in families:
            library = stated.held.get(f"libkiln_{family}.so")
            if library is None:
                report.problems.append(f"{name} has kernels of {family}, but libkiln_{family}.so is missing")
            elif digest not in library:
                report.problems.append(f"libkiln_{family}.so does not have the digest of {name} and would refuse it")
