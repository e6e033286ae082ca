"""Checks everything that an artifact states about itself: digests of files, of a pack's index, groups and images; facts
of images against the images; the manifest against the packs; the libraries against the packs they were made for.

Like inspect.py it needs only the standard library, zstandard and pyelftools.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kiln import pack
from kiln.errors import ArtifactError
from kiln.inspect import IMAGES, MANIFEST, ImageFile, PackFile, Release, image_row, need, pack_rows


@dataclass
class Report:
    """What was checked, and what is wrong, a sentence each. `notes`: what could not be checked."""

    files: int = 0
    groups: int = 0
    images: int = 0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def verify(artifact: Release | PackFile | ImageFile) -> Report:
    """Checks all of an artifact. What is wrong is in the report, not raised.

    Raises:
        EnvironmentProblem: pyelftools or zstandard is not installed.
    """
    need("elf")
    if not isinstance(artifact, ImageFile):
        need("zstandard")
    report = Report()
    try:
        if isinstance(artifact, Release):
            _verify_release(artifact, report)
        elif isinstance(artifact, PackFile):
            _verify_pack(artifact.pack, artifact.data, artifact.path.name, report)
        else:
            report.images = 1
            if need("elf").strip(artifact.data) != artifact.data:
                report.notes.append("the image is not stripped: it holds debugging information or comments")
    except ArtifactError as error:
        report.problems.append(str(error))
    return report


def _verify_release(release: Release, report: Report) -> None:
    if not release.is_folder:
        verify_checksum(release.path, report)
    listed = {row["path"]: row for row in release.manifest["files"]}
    seen: set[str] = set()
    libraries: dict[str, bytes] = {}
    packs: dict[str, pack.Pack] = {}
    for entry in release.entries():
        if entry.problem:
            report.problems.append(entry.problem)
            continue
        if entry.kind == "folder":
            continue
        if entry.path in seen:
            report.problems.append(f"{entry.path} is there twice")
        seen.add(entry.path)
        if entry.path == MANIFEST:
            continue
        row = listed.get(entry.path)
        report.files += 1
        if row is None:
            report.problems.append(f"{entry.path} is there, but the manifest does not name it")
        elif entry.kind == "link":
            if row.get("link") != entry.link:
                says = row.get("link") or "that it is a file"
                report.problems.append(f"{entry.path} is a link to {entry.link}; the manifest says {says}")
            elif "/" in entry.link:
                report.problems.append(f"{entry.path} is a link out of its folder, to {entry.link}")
        elif entry.kind != "file":
            report.problems.append(f"{entry.path} is neither a file, a folder nor a link")
        else:
            folder, _, name = entry.path.rpartition("/")
            is_pack = folder == IMAGES and name.endswith(".pack")
            is_library = folder == "lib" and name.startswith("libkiln_")
            digest, data = _read(entry.blocks(), keep=is_pack or is_library)
            if digest != row.get("sha256") or entry.size != row.get("bytes"):
                report.problems.append(f"{entry.path} does not have the digest and size that the manifest states")
            elif is_pack:
                try:
                    packs[name] = pack.parse_pack(data, entry.path)
                    _verify_pack(packs[name], data, entry.path, report)
                except ArtifactError as error:
                    report.problems.append(str(error))
            elif is_library:
                libraries[name] = data
    report.problems += [f"{path} is missing" for path in sorted(set(listed) - seen)]
    _verify_tables(release.manifest, packs, report)
    _verify_libraries(packs, libraries, report)


def verify_checksum(tarball: Path, report: Report) -> None:
    beside = tarball.with_name(f"{tarball.name}.sha256")
    try:
        words = beside.read_text().split()
    except (OSError, UnicodeDecodeError):
        report.notes.append(f"there is no {beside.name} beside it; the tarball as a whole was not checked")
        return
    with tarball.open("rb") as file:
        digest, _ = _read(iter(lambda: file.read(1 << 20), b""), keep=False)
    if not words or words[0] != digest:
        report.problems.append(f"{tarball.name} does not have the digest of {beside.name}")


def _verify_pack(the_pack: pack.Pack, data: bytes, name: str, report: Report) -> None:
    """Every group and image; ends at the first group that is damaged, goes on after a wrong fact."""
    for number, group in enumerate(the_pack.groups):
        raw = pack.decode_group(data, group, name)
        report.groups += 1
        for image in the_pack.images:
            if image.group == number:
                report.images += 1
                _verify_image(image, raw[image.offset : image.offset + image.bytes], the_pack.target, name, report)


def _verify_image(image: pack.PackedImage, code: bytes, target: str, name: str, report: Report) -> None:
    label = f"{name}: image {image.digest[:12]}"
    if hashlib.sha256(code).hexdigest() != image.digest:
        report.problems.append(f"{label} does not have its digest")
        return
    if image.info.kind == "ptx":
        if not code.endswith(b"\0") or b".version" not in code:
            report.problems.append(f"{label} is no PTX text that ends with a NUL")
        return
    try:
        found = _facts(code)
    except ArtifactError as error:
        report.problems.append(f"{label}: {error}")
        return
    if image.info.shared < found.pop("static_shared"):
        report.problems.append(f"{label} needs more shared memory than the index says")
    stated = {"target": target, **image_row(image)}
    for fact, value in found.items():
        if stated[fact] != value:
            report.problems.append(f"{label}: its {fact} is {value!r}, the index says {stated[fact]!r}")


def _facts(code: bytes) -> dict[str, Any]:
    """What an image itself says, under the names of `image_row`; its static shared memory, to which dynamic comes."""
    elf = need("elf")
    kind = elf.kind_of(code)
    if kind == "hsaco":
        facts = elf.amd_facts(code)
        return {
            "kind": kind, "target": facts.target.split(":")[0], "symbol": facts.kernel, "registers": facts.vgprs,
            "threads": facts.max_flat_workgroup_size, "stack": facts.private_segment,
            "parameters": len(facts.arguments), "spills": 4 * facts.vgpr_spills,
            "static_shared": facts.group_segment,
        }  # fmt: skip
    facts = elf.nvidia_facts(code)
    return {
        "kind": kind, "target": f"sm_{facts.sm}", "symbol": facts.kernel, "registers": facts.registers,
        "threads": facts.threads, "stack": facts.stack, "parameters": len(facts.parameters),
        "static_shared": facts.shared,
    }  # fmt: skip


def _verify_tables(manifest: Mapping[str, Any], packs: Mapping[str, pack.Pack], report: Report) -> None:
    stated_variants: dict[str, list] = {}
    for row in manifest["variants"]:
        stated_variants.setdefault(row["target"], []).append({"image": None, "unavailable": None, **row})
    stated_images = {(row["target"], row["sha256"]): row for row in manifest["images"]}
    named = set()
    for target in manifest["targets"]:
        name = target.get("pack")
        if name is None:
            continue
        named.add(name)
        the_pack = packs.get(name)
        if the_pack is None:
            if not any(f"{name} " in problem or f"{IMAGES}/{name}" in problem for problem in report.problems):
                report.problems.append(f"there is no pack {name} for {target['name']}")
            continue
        if the_pack.index_digest != target.get("index") or the_pack.target != target["name"]:
            report.problems.append(f"{name} is not the pack that the manifest names for {target['name']}")
        if the_pack.release != manifest.get("kiln"):
            report.problems.append(f"{name} is of release {the_pack.release}, not of {manifest.get('kiln')}")
        rows = pack_rows(the_pack)
        keys = ("target", "kernel", "functional", "configuration", "specialization", "key", "image", "unavailable")
        if [{key: row[key] for key in keys} for row in rows] != stated_variants.get(target["name"], []):
            report.problems.append(f"the manifest's variants for {target['name']} are not those of {name}")
        for row in rows:
            stated = stated_images.get((row["target"], row["image"])) if row["image"] else {}
            if stated is None or any(row.get(k) != v for k, v in stated.items() if k not in ("target", "sha256")):
                report.problems.append(f"the manifest's image {row['image'][:12]} is not that of {name}")
                break
    report.problems += [f"{name} belongs to no target of the manifest" for name in sorted(set(packs) - named)]


def _verify_libraries(packs: Mapping[str, pack.Pack], libraries: Mapping[str, bytes], report: Report) -> None:
    """A family's library holds the digest of each pack's index, and accepts no other pack."""
    for name, the_pack in packs.items():
        for family in dict.fromkeys(kernel.family for kernel in the_pack.kernels):
            library = libraries.get(f"libkiln_{family}.so")
            if library is None:
                report.problems.append(f"{name} has kernels of {family}, but there is no libkiln_{family}.so")
            elif bytes.fromhex(the_pack.index_digest) not in library:
                report.problems.append(f"libkiln_{family}.so does not hold the digest of {name}: it would refuse it")


def _read(blocks: Iterable[bytes], keep: bool) -> tuple[str, bytes]:
    """SHA-256 of the blocks, and (to keep) what they are together."""
    digest, pieces = hashlib.sha256(), []
    for block in blocks:
        digest.update(block)
        if keep:
            pieces.append(block)
    return digest.hexdigest(), b"".join(pieces)
