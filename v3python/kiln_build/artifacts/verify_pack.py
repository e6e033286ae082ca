"""Packs looked through: each by itself, and against what a manifest states of it.

Needs only the standard library, zstandard and pyelftools.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from kiln_build.artifacts import left_out, manifest_model, pack
from kiln_build.artifacts.reader import image_row, need, pack_rows
from kiln_recipe.errors import ArtifactError


@dataclass
class Report:
    """What was checked, and what is wrong, a sentence each.

    Attributes:
        complete: everything was read; False where this Python cannot read the images in packs.
        files, groups, images: how many were checked; of a group that cannot be decoded its digest.
        notes: what could not be checked.
    """

    complete: bool = True
    files: int = 0
    groups: int = 0
    images: int = 0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass
class Seen:
    """What images say of which a pack's index says nothing.

    Attributes:
        abis: by digest of an image its ABI.
        ptx_versions: by digest of a PTX text its version, "8.6".
    """

    abis: dict[str, int] = field(default_factory=dict)
    ptx_versions: dict[str, str] = field(default_factory=dict)


def verify_pack(read: Callable[[int], bytes], size: int, name: str, report: Report, seen: Seen) -> pack.Pack:
    """Every group and image; ends at the first group that is damaged, goes on after a wrong fact."""
    the_pack = pack.read_index(read, size, name)
    images: dict[int, list[pack.PackedImage]] = {}
    for image in the_pack.images:
        images.setdefault(image.group, []).append(image)
    for number, group in enumerate(the_pack.groups):
        stored = read(group.stored)
        if not report.complete:
            pack.check_group(stored, group, name)
            report.groups += 1
            continue
        raw = pack.decode_group(stored, group, name)
        report.groups += 1
        for image in images[number]:
            report.images += 1
            code = raw[image.offset : image.offset + image.bytes]
            _verify_image(image, code, the_pack.target, name, report, seen)
    return the_pack


def _verify_image(image: pack.PackedImage, code: bytes, target: str, name: str, report: Report, seen: Seen) -> None:
    label = f"{name}: image {image.digest[:12]}"
    if hashlib.sha256(code).hexdigest() != image.digest:
        report.problems.append(f"{label} does not have its digest")
        return
    if image.info.kind == "ptx":
        version = re.search(rb"^[.]version ([0-9]+[.][0-9]+)", code, re.MULTILINE)
        if not code.endswith(b"\0") or version is None:
            report.problems.append(f"{label} is not a PTX text that ends with a NUL")
        else:
            seen.ptx_versions[image.digest] = version[1].decode()
        return
    try:
        found, static, maps = need("elf").stated_facts(code)
    except ArtifactError as error:
        report.problems.append(f"{label}: {error}")
        return
    seen.abis[image.digest] = found.pop("abi")
    if maps != len(image.info.descriptors):
        report.problems.append(f"{label} takes {maps} tensor descriptors, the index says {len(image.info.descriptors)}")
    if image.info.shared < static:
        report.problems.append(f"{label} needs more shared memory than the index says")
    stated = {"target": target, **image_row(image)}
    for fact, value in found.items():
        if stated[fact] != value:
            report.problems.append(f"{label}: its {fact} is {value!r}, the index says {stated[fact]!r}")


class Stated:
    """What a manifest says, by what is looked up in it; and what of the packs and libraries is needed in the end. A
    pack's index is not kept: there may be many.

    Attributes:
        path: where it lies itself.
        packs: by file name the digest of each pack's index, and its families.
        held: by library those of the indexes' digests that it holds.
        whole: the manifest of the release that this is a part of, where that is known.
    """

    def __init__(self, manifest: Mapping[str, Any]) -> None:
        self.manifest = manifest
        self.path = manifest_model.path_of(manifest)
        self.whole: Mapping[str, Any] = {}
        self.files = {row["path"]: row for row in manifest["files"]}
        self.folders = {folder for path in (*self.files, self.path) for folder in _folders_of(path)}
        self.targets = {row["pack"]: row for row in manifest["targets"] if "pack" in row}
        self.indexes = {row["index"] for row in manifest["targets"] if "index" in row}
        self.variants: dict[str, list[dict[str, Any]]] = {}
        for row in manifest["variants"]:
            self.variants.setdefault(row["target"], []).append(row)
        self.rules: dict[str, list[dict[str, Any]]] = {}
        for row in manifest["left_out"]:
            self.rules.setdefault(row["target"], []).append(row)
        self.images: dict[str, dict[str, dict[str, Any]]] = {}
        for row in manifest["images"]:
            self.images.setdefault(row["target"], {})[row["sha256"]] = row
        self.packs: dict[str, tuple[str, list[str]]] = {}
        self.held: dict[str, set[str]] = {}


def _folders_of(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(len(parts))]


def compare(the_pack: pack.Pack, name: str, seen: Seen, stated: Stated, report: Report) -> None:
    """A pack, and what its images say besides, against what the manifest says of it."""
    target = stated.targets[name]
    if the_pack.index_digest != target.get("index") or the_pack.target != target["name"]:
        report.problems.append(f"{name} is not the pack that the manifest names for {target['name']}")
    if the_pack.release != stated.manifest["kiln"]:
        report.problems.append(f"{name} is of release {the_pack.release}, not of {stated.manifest['kiln']}")
    keys = ("target", "kernel", "functional", "configuration", "specialization", "key", "image", "unavailable")
    images = stated.images.get(target["name"], {})
    counts = dict.fromkeys(("variants", "unavailable"), 0)
    named: set[str] = set()
    abis: set[tuple[str, int, int | None]] = set()
    functionals: set[tuple[str, str]] = set()
    are_equal = True
    for row, variant in zip_longest(pack_rows(the_pack), stated.variants.get(target["name"], ())):
        if row is None or variant is None or any(row[key] != variant.get(key) for key in keys):
            are_equal = False
        if row is not None:
            functionals.add((row["kernel"], row["functional"]))
            counts["variants"] += 1
            counts["unavailable"] += row["image"] is None
        if row is None or row["image"] is None or row["image"] in named:
            continue
        named.add(row["image"])
        image = images.get(row["image"], {"kind": "none"})
        version = seen.ptx_versions.get(row.get("ptx_sha256", ""))
        if version not in (None, image.get("ptx_version", target.get("ptx_version"))):
            report.problems.append(
                f"the PTX of image {row['image'][:12]} is of version {version}, not the one that the manifest states"
            )
            break
        subject = f"image {row['image'][:12]}" if "abi" in image else target["name"]
        abis.add((subject, image.get("abi", target["abi"]), seen.abis.get(row["image"])))
        known = {key for key in image if key not in ("target", "sha256", "ptx_version", "abi")} | {"descriptors"}
        if any(row.get(key) != image.get(key) for key in known):
            report.problems.append(f"the manifest's image {row['image'][:12]} is not that of {name}")
            break
    every = sum(len(kernel.slots) for kernel in the_pack.kernels)
    counts |= {"functionals": len(functionals), "images": len(named), "left_out": every - counts["variants"]}
    for field_name, count in counts.items():
        if target[field_name] != count:
            report.problems.append(
                f"the manifest counts {target[field_name]} {field_name} of {target['name']}; {name} has {count}"
            )
    kinds = {image.info.kind for image in the_pack.images} - {"ptx"}
    facts: list[tuple[str, str, object, object]] = [("kind", target["name"], target["kind"], kind) for kind in kinds]
    facts += [("abi", *row) for row in abis]
    for fact, subject, said, found in sorted(facts, key=str):
        if found not in (None, said):  # None: the image could not be read, which has been said
            report.problems.append(
                f"the manifest says that the {fact} of {subject} is {said}; an image in {name} has {found}"
            )
    if left_out.rules_of(the_pack) != stated.rules.get(target["name"], []):
        report.problems.append(f"what the manifest says is left out for {target['name']} is not what {name} lacks")
    if not are_equal:
        report.problems.append(f"the manifest's variants for {target['name']} are not those of {name}")
    elif others := sorted(set(images) - named):
        report.problems.append(f"the manifest's image {others[0][:12]} is not that of {name}")
