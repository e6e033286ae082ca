"""Groups of a new pack from those of old ones: what is the same is taken from there, what is new is patched from the
images that stood in its places, and the group is made again, byte for byte.

A pack compresses its images together, so that one new image changes every byte of its group. A delta speaks of the
images instead: decoded, most are as they were, and a new one is much like the one of the same kernel, choices,
configuration and specialization before.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kiln_build.artifacts import manifest_model, pack, split
from kiln_build.artifacts.manifest_model import IMAGES
from kiln_build.artifacts.pack import Group, Pack, PackedImage
from kiln_build.artifacts.reader import Release
from kiln_recipe import targets
from kiln_recipe.errors import ArtifactError, UsageError
from kiln_recipe.images import elf

_KEPT_GROUPS = 8  # decoded, of 512 KiB mostly
_LARGEST_BEFORE = 8 << 20  # bytes of images that a group's new ones are patched from


@dataclass
class Old:
    """The packs of the tarball before.

    Args:
        packs: their files, by path.
    """

    packs: Mapping[str, Path]
    indexes: dict[str, Pack] = field(init=False)
    groups: dict[str, tuple[str, Group]] = field(init=False)
    images: dict[str, tuple[str, PackedImage]] = field(init=False)

    def __post_init__(self) -> None:
        self.indexes = {path: pack.read_pack(file) for path, file in self.packs.items()}
        self.groups = {group.digest: (path, group) for path, one in self.indexes.items() for group in one.groups}
        self.images = {image.digest: (path, image) for path, one in self.indexes.items() for image in one.images}
        self._places: dict[str, dict[tuple[str, ...], str]] = {}
        self._decoded: dict[str, bytes] = {}

    def start_of(self, path: str) -> bytes:
        """Header and index of a pack; b"" if there is none."""
        if path not in self.packs:
            return b""
        with self.packs[path].open("rb") as file:
            groups = self.indexes[path].groups
            return file.read(groups[0].offset if groups else -1)

    def stored(self, digest: str) -> bytes:
        """A group as it is in its pack."""
        path, group = self.groups[digest]
        with self.packs[path].open("rb") as file:
            file.seek(group.offset)
            return file.read(group.stored)

    def image(self, digest: str) -> bytes:
        path, image = self.images[digest]
        group = self.indexes[path].groups[image.group]
        if group.digest not in self._decoded:
            while len(self._decoded) >= _KEPT_GROUPS:
                del self._decoded[next(iter(self._decoded))]
            self._decoded[group.digest] = pack.decode_group(self.stored(group.digest), group, path)
        return self._decoded[group.digest][image.offset : image.offset + image.bytes]

    def place(self, target: str, name: tuple[str, ...]) -> str | None:
        """The digest of the image that a target's pack has, or had, in a place; see `_names`."""
        if target not in self._places:
            found: dict[tuple[str, ...], str] = {}
            for one in self.indexes.values():
                if one.target == target:
                    for digest, names in _names(one).items():
                        for each in names:
                            found.setdefault(each, digest)
            self._places[target] = found
        return self._places[target].get(name)


class New:
    """A pack that is to be made.

    Args:
        start: its header and index.
        size: bytes of the whole.
        name: what errors call it.

    Raises:
        ArtifactError: the index is malformed, or is of an unknown target.
    """

    def __init__(self, start: bytes, size: int, name: str, old: Old) -> None:
        self.index = pack.read_index(io.BytesIO(start).read, size, name)
        self.start, self.name, self._old = start, name, old
        self.missing = [number for number, group in enumerate(self.index.groups) if group.digest not in old.groups]
        self._images: dict[int, list[PackedImage]] = {}
        for image in self.index.images:
            self._images.setdefault(image.group, []).append(image)
        self._names = _names(self.index)
        try:
            self._instructions = split.INSTRUCTIONS[targets.by_name(self.index.target).instructions]
        except UsageError:
            raise ArtifactError(f"{name} is for {self.index.target}, which this Kiln does not know") from None

    def new_images(self, number: int) -> list[PackedImage]:
        """Those of a group that no old pack has, each once."""
        images = {image.digest: image for image in self._images[number] if image.digest not in self._old.images}
        return list(images.values())

    def before(self, number: int) -> list[tuple[bytes, bool]]:
        """What a group's new images are patched from: each with whether it is machine code."""
        found: dict[str, None] = {}
        for image in self.new_images(number):
            places = (self._old.place(self.index.target, name) for name in self._names.get(image.digest, ()))
            if (digest := next(filter(None, places), None)) is not None:
                found[digest] = None
        images, size = [], 0
        for digest in found:
            _, image = self._old.images[digest]
            if (size := size + image.bytes) > _LARGEST_BEFORE:
                break
            images.append((self._old.image(digest), image.info.kind != "ptx"))
        return images

    def arranged(self, images: Sequence[tuple[bytes, bool]]) -> bytes:
        """Images one behind the other, arranged by opcode."""
        raw, ranges = bytearray(), []
        for data, is_code in images:
            ranges += [(len(raw) + offset, size) for offset, size in elf.code_ranges(data)] if is_code else []
            raw += data
        return split.split(bytes(raw), self._instructions, ranges)

    def cut(self, number: int, data: bytes) -> dict[str, bytes]:
        """A group's new images, by digest, of their bytes one behind the other.

        Raises:
            ArtifactError: they are not these.
        """
        found, at = {}, 0
        for image in self.new_images(number):
            found[image.digest] = data[at : at + image.bytes]
            at += image.bytes
            if hashlib.sha256(found[image.digest]).hexdigest() != image.digest:
                raise ArtifactError(f"{self.name}: an image of group {number} does not have its digest")
        if at != len(data):
            raise ArtifactError(f"{self.name}: group {number} has {len(data)} bytes of new images instead of {at}")
        return found

    def frame(self, number: int, new: Mapping[str, bytes]) -> bytes:
        """What a group is the compressed form of, of its new images and of old ones."""
        raw, ranges = bytearray(), []
        for image in self._images[number]:
            data = new.get(image.digest) or self._old.image(image.digest)
            raw += bytes(image.offset - len(raw)) + data
            if image.info.kind != "ptx":
                ranges += [(image.offset + offset, size) for offset, size in elf.code_ranges(data)]
        return split.split(bytes(raw), self._instructions, ranges)

    def hexadecimal(self) -> bytes:
        """The digests of the index as a manifest has them, to patch it from."""
        slots = (slot.key for kernel in self.index.kernels for slot in kernel.slots)
        return "\n".join((self.index.index_digest, *slots, *(image.digest for image in self.index.images))).encode()


def _names(index: Pack) -> dict[str, list[tuple[str, ...]]]:
    """By image the places that it has: the first that it stands in, and less and less exact ones."""
    found: dict[str, list[tuple[str, ...]]] = {}
    for kernel in index.kernels:
        for slot, (functional, configuration, specialization) in zip(kernel.slots, _combinations(kernel)):
            for digest, kind in ((slot.image, "image"), (slot.ptx, "ptx")):
                if digest is not None and digest not in found:
                    whole = (kind, kernel.family, kernel.operation, kernel.kernel)
                    found[digest] = [
                        (*whole, functional, configuration, specialization),
                        (*whole, configuration, specialization),
                        (*whole, functional),
                        whole,
                    ]
    return found


def _combinations(kernel: pack.KernelSlots) -> Iterator[tuple[str, str, str]]:
    for functional in kernel.functionals:
        for configuration in kernel.configurations:
            for specialization in kernel.specializations:
                yield functional, configuration, specialization


def packs_of(files: Iterable[str], stage: Path) -> dict[str, Path]:
    """The packs among a release's files, each under one of its names."""
    return {path: stage / path for path in files if path.startswith(f"{IMAGES}/") and path.endswith(".pack")}


def manifest_before(before: Release, packs: Iterable[New]) -> bytes:
    """What a manifest is patched from: the digests that new packs' indexes have, and the manifest before."""
    return b"\n".join([*(new.hexadecimal() for new in packs), manifest_model.encode_document(before.manifest)])
