"""The AMD images of a release, a pack or a code object, each once, and the variants that have them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kiln_build.amd_model.figures import Facts
from kiln_build.artifacts import entries, pack, reader
from kiln_build.artifacts.reader import ImageFile, PackFile, Release
from kiln_build.base import tarball
from kiln_recipe.errors import ArtifactError, UsageError
from kiln_recipe.images.elf import AmdFacts

if TYPE_CHECKING:
    from kiln_recipe.selection import Selection


@dataclass(frozen=True)
class Image:
    """A code object.

    Attributes:
        target: "gfx942". digest: SHA-256 of its code.
        rows: of its variants, as `reader.variants_of` has them; () of a code object by itself.
    """

    target: str
    digest: str
    code: bytes
    facts: Facts
    rows: tuple[Mapping[str, Any], ...]


def images_of(artifact: Release | PackFile | ImageFile, targets: set[str], selection: Selection) -> list[Image]:
    """All images of AMD targets.

    Args:
        targets: only of these; empty: of all. selection: only of variants like these.

    Raises:
        UsageError: there are none, or the selection names something that is not there.
        ArtifactError: it is damaged.
    """
    if isinstance(artifact, ImageFile):
        return [_code_object(artifact, targets, selection)]
    every = reader.variants_of(artifact)
    ours = [row for row in every if row["image"] is not None and row["kind"] == "hsaco"]
    if not ours:
        raise UsageError(f"{artifact.path} has no images for AMD GPUs, and the model knows no others")
    wanted: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in reader.select(ours, dict(selection), targets):
        wanted.setdefault((row["target"], row["image"]), []).append(row)
    found = {}
    for target, digest, code in codes(artifact, wanted.__contains__):
        rows = wanted[target, digest]
        facts = Facts(rows[0]["registers"], rows[0]["shared"], rows[0]["threads"])
        found[target, digest] = Image(target, digest, code, facts, tuple(rows))
    for target, digest in wanted.keys() - found.keys():
        raise ArtifactError(f"{artifact.path} lacks the image {digest[:12]} of {target}, which its manifest names")
    return [found[place] for place in wanted]


def _code_object(artifact: ImageFile, targets: set[str], selection: Selection) -> Image:
    facts = artifact.facts
    if not isinstance(facts, AmdFacts):
        raise UsageError(f"{artifact.path} is an image for NVIDIA GPUs; the model knows AMD's")
    target = facts.target.split(":")[0]
    if targets and target not in targets:
        raise UsageError(f"{artifact.path} is for {target}, not for {', '.join(sorted(targets))}")
    if selection:
        raise UsageError(f"{artifact.path} is a single image without variants; leave --select out")
    stated = Facts(facts.vgprs, facts.group_segment, facts.max_flat_workgroup_size)
    return Image(target, hashlib.sha256(artifact.data).hexdigest(), artifact.data, stated, ())


def codes(
    artifact: Release | PackFile, is_wanted: Callable[[tuple[str, str]], bool]
) -> Iterator[tuple[str, str, bytes]]:
    """(target, digest, code) of the images for which `is_wanted((target, digest))`."""
    if isinstance(artifact, PackFile):
        with tarball.open_file(artifact.path) as file:
            yield from _of_pack(file.read, artifact.path.stat().st_size, str(artifact.path), is_wanted)
        return
    for entry in artifact.entries():
        if entry.kind == "file" and entry.path.startswith(f"{reader.IMAGES}/") and entry.path.endswith(".pack"):
            read = entries.Content(entry).read
            yield from _of_pack(read, entry.size, f"{artifact.path}: {entry.path}", is_wanted)


def _of_pack(
    read: Callable[[int], bytes], size: int, name: str, is_wanted: Callable[[tuple[str, str]], bool]
) -> Iterator[tuple[str, str, bytes]]:
    the_pack = pack.read_index(read, size, name)
    for number, group in enumerate(the_pack.groups):
        stored = read(group.stored)
        images = [one for one in the_pack.images if one.group == number and is_wanted((the_pack.target, one.digest))]
        if images:
            raw = pack.decode_group(stored, group, name)
            for one in images:
                yield the_pack.target, one.digest, raw[one.offset : one.offset + one.bytes]
