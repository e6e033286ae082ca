"""Packs: the archive that holds one target's images. Written here, read here and by csrc/core/pack.cc.

The grammar (docs/formats.md, 'Packs', says why), little-endian:

    pack    = header index group*
    header  = "KILNPACK" version:u32 header_size:u32=64 index_size:u64 index_digest:byte[32] zero:u64
                                    ; version 1, or 2 where there are descriptor_rows
    index   = counts group_row* image_row* kernel_row* slot_row* descriptor_row* string*
    counts  = groups:u32 images:u32 kernels:u32 slots:u32 string_bytes:u32 target:str release:str descriptors:u32
    group   = frame                 ; one zstd frame of one (split.py has its grammar)
    group_row  = offset:u64 stored:u32 decoded:u32 digest:byte[32]
    image_row  = group:u32 offset:u32 bytes:u32 symbol:str kind:u32 threads:u32 shared:u32 registers:u32 spills:u32
                 stack:u32 parameters:u32 scratch:u32 scratch_align:u32 profile_scratch:u32 clusters:u32
                 descriptors:u32 digest:byte[32]
                                    ; descriptors: 16 * the first descriptor_row + their number, in the order of the
                                    ; parameters; 0: none. A descriptor of rank r is 1 + 2 * r of the parameters
    kernel_row = family:str operation:str kernel:str first_slot:u32 slots:u32 configurations:u32 specializations:u32
                 names:str layout:byte[32]
    slot_row   = image:u32 ptx:u32 reason:str zero:u32 key:byte[32]
    descriptor_row = rank:u32 element_type:u32 swizzle:u32 fill:u32=0 box:u32[5] zero:u32
                                    ; element_type: a CUtensorMapDataType; swizzle: a CUtensorMapSwizzle;
                                    ; box: elements, the outermost dimension first, 1 behind the rank
    str     = u32                   ; offset into the strings of a NUL-terminated UTF-8 text, or NONE; a text is a line
                                    ; without control characters, but for the newlines of `names`
    NONE    = 0xFFFFFFFF

`stored` are a group's bytes in the file, which `digest` is of; `decoded` those of its images.

Needs only the standard library and zstandard: a pack is inspected on machines that have no more.
"""

from __future__ import annotations

import hashlib
import io
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kiln_build.artifacts.split import join, largest_frame
from kiln_recipe.errors import ArtifactError
from kiln_recipe.images.image import DescriptorInfo, ImageInfo
from kiln_recipe.shape import is_line

MAGIC = b"KILNPACK"
VERSIONS = (1, 2)  # the second where images take tensor descriptors
NONE = 0xFFFFFFFF
KINDS = {"cubin": 1, "hsaco": 2, "ptx": 3}

HEADER = struct.Struct("<8sIIQ32sQ")
COUNTS = struct.Struct("<8I")
GROUP_ROW = struct.Struct("<QII32s")
IMAGE_ROW = struct.Struct("<16I32s")
KERNEL_ROW = struct.Struct("<8I32s")
SLOT_ROW = struct.Struct("<4I32s")
DESCRIPTOR_ROW = struct.Struct("<10I")
MOST_DESCRIPTORS = 8  # of an image: KILN_MAX_DESCRIPTORS
# Of a descriptor, as in csrc/core/pack.cc: bytes of an element, by its CUtensorMapDataType, and of a swizzle's span.
MOST_RANK, _LONGEST_SIDE = 5, 256
_ELEMENT_BYTES = (1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4)
_SPANS = (None, 32, 64, 128)

LARGEST_GROUP = 16 << 20  # of one image, if it is larger than GROUP_BYTES
LARGEST_INDEX = 2 << 20  # 14,000 slots have 1 MiB
MOST_CHOICES = 32  # words of a name
LONGEST_TEXT = 4096
_MOST_THREADS, _LARGEST_CLUSTER, _LARGESTALIGNMENT = 1024, 16, 1 << 20  # of an image; as in csrc/core/pack.cc
MOST_EXPANSION = 100  # bytes of all images to bytes of the pack; most packs have 5 to 20
ALIGNMENT = 16  # of images in a group


@dataclass(frozen=True)
class Slot:
    """One place for a variant: its key, and its image by digest, or the reason why there is none."""

    key: str
    image: str | None = None
    ptx: str | None = None
    reason: str | None = None


@dataclass(frozen=True)
class KernelSlots:
    """All variants of a kernel on one target, in the order of the dispatch tables."""

    family: str
    operation: str
    kernel: str
    functionals: tuple[str, ...]
    configurations: tuple[str, ...]
    specializations: tuple[str, ...]
    layout: str
    slots: tuple[Slot, ...]


@dataclass(frozen=True)
class Group:
    offset: int
    stored: int
    decoded: int
    digest: str


@dataclass(frozen=True)
class PackedImage:
    """An image's row. `info.kind` is "cubin", "hsaco" or "ptx"; fields that a row does not hold are 0 or ""."""

    group: int
    offset: int
    bytes: int
    digest: str
    info: ImageInfo


@dataclass(frozen=True)
class Pack:
    """A pack's index. `images` are in the order in which slots refer to them by digest and kind."""

    target: str
    release: str
    index_digest: str
    file_bytes: int
    groups: tuple[Group, ...]
    images: tuple[PackedImage, ...]
    kernels: tuple[KernelSlots, ...]


class UnknownFormat(ArtifactError):
    """A pack is of a format that this Kiln does not read.

    Attributes:
        version: the format's number.
    """

    def __init__(self, name: str, version: int) -> None:
        known = " and ".join(map(str, VERSIONS))
        super().__init__(f"{name} is a pack of format {version}; this Kiln reads formats {known}")
        self.version = version


def read_pack(path: Path) -> Pack:
    """Reads and checks a pack's index.

    Raises:
        ArtifactError: it is no pack, truncated, of another format, or its index has another digest than it states.
    """
    if not path.is_file():
        raise ArtifactError(f"{path} does not exist, or is not a file; a pack is called <vendor>-<target>.pack")
    with path.open("rb") as file:
        return read_index(file.read, path.stat().st_size, str(path))


def parse_pack(data: bytes, name: str) -> Pack:
    """`read_pack` for bytes at hand; `name` is what errors call it."""
    return read_index(io.BytesIO(data).read, len(data), name)


def read_index(read: Callable[[int], bytes], size: int, name: str) -> Pack:
    """`read_pack` for `size` bytes that come by `read`; what it leaves unread are the groups, in order."""
    version, digest, index = _index_of(read, size, name)
    try:
        return _parse_index(index, version, digest.hex(), size, name)
    except (struct.error, LookupError, ValueError) as error:
        raise ArtifactError(f"{name} is corrupt: its index is malformed ({error})") from error


def index_digest(start: bytes, size: int, name: str) -> str:
    """The digest of a pack's index, which is held against it but not read.

    Args:
        start: at least the first HEADER.size + LARGEST_INDEX bytes of the pack's `size`, or all of it.

    Raises:
        ArtifactError: as `read_pack`.
    """
    return _index_of(io.BytesIO(start).read, size, name)[1].hex()


def _index_of(read: Callable[[int], bytes], size: int, name: str) -> tuple[int, bytes, bytes]:
    """Version, digest and bytes of an index."""
    head = read(HEADER.size)
    if head[:8] != MAGIC:
        raise ArtifactError(f"{name} is not a Kiln pack: it must begin with {MAGIC.decode()}")
    if len(head) < HEADER.size:
        raise ArtifactError(f"{name} is truncated: its header has {HEADER.size} bytes, the file {size} in all")
    _, version, header_size, index_size, digest, zero = HEADER.unpack(head)
    if version not in VERSIONS:
        raise UnknownFormat(name, version)
    if header_size != HEADER.size:
        raise ArtifactError(
            f"{name} is corrupt: its header states {header_size} bytes of itself, and a header has {HEADER.size}"
        )
    if index_size > size - HEADER.size or index_size < COUNTS.size:
        raise ArtifactError(f"{name} is truncated: its index has {index_size} bytes, the file {size} in all")
    if index_size > LARGEST_INDEX or zero:
        raise ArtifactError(
            f"{name} is corrupt: its index is larger than {LARGEST_INDEX >> 20} MiB, or its header is malformed"
        )
    index = read(index_size)
    if hashlib.sha256(index).digest() != digest:
        raise ArtifactError(f"{name} is corrupt: its index does not have the digest that its header states")
    return version, digest, index


def check_group(stored: bytes, group: Group, name: str) -> None:
    """Raises ArtifactError unless `stored`, a group's bytes in the pack, have the digest that the index states."""
    if hashlib.sha256(stored).hexdigest() != group.digest:
        raise ArtifactError(f"{name} is corrupt: the group at byte {group.offset} does not have its digest")


def decode_group(stored: bytes, group: Group, name: str) -> bytes:
    """The images of a group, of which `stored` are the bytes in the pack; its digest is checked before it is decoded.

    Raises:
        ArtifactError: the group's bytes are not those that the index names.
    """
    from kiln_build.base import zstd

    check_group(stored, group, name)
    try:
        raw = join(zstd.decompress(stored, largest_frame(group.decoded)))
    except (zstd.Error, ValueError) as error:
        raise ArtifactError(f"{name} is corrupt: the group at byte {group.offset} cannot be decoded ({error})")
    if len(raw) != group.decoded:
        raise ArtifactError(f"{name} is corrupt: a group decodes to {len(raw)} bytes instead of {group.decoded}")
    return raw


def _descriptors(place: int, kind: int, rows: Sequence[DescriptorInfo]) -> tuple[DescriptorInfo, ...]:
    """Those of an image, of whose row `place` and `kind` are fields."""
    first, count = divmod(place, 16)
    is_there = 0 < count <= MOST_DESCRIPTORS and first + count <= len(rows) and kind != KINDS["hsaco"]
    if place and not is_there:
        raise ValueError("an image has descriptors that do not exist")
    return tuple(rows[first : first + count])


def _descriptor(row: tuple[int, ...]) -> DescriptorInfo:
    rank, element_type, swizzle, fill, *box, zero = row
    sides = tuple(box[:rank])
    if not 1 <= rank <= MOST_RANK or element_type >= len(_ELEMENT_BYTES) or swizzle >= len(_SPANS):
        raise ValueError("a descriptor's rank, element type or swizzle is unknown")
    if fill or zero or set(box[rank:]) - {1}:
        raise ValueError("a descriptor's row is malformed")
    inner = sides[-1] * _ELEMENT_BYTES[element_type]
    if any(not 1 <= side <= _LONGEST_SIDE for side in sides) or inner % 16 or inner > (_SPANS[swizzle] or inner):
        raise ValueError("a descriptor has an impossible box")
    return DescriptorInfo(element_type, swizzle, sides)


def _parse_index(index: bytes, version: int, digest: str, file_bytes: int, name: str) -> Pack:
    groups_n, images_n, kernels_n, slots_n, string_bytes, target, release, descriptors_n = COUNTS.unpack_from(index)
    rows = ((GROUP_ROW, groups_n), (IMAGE_ROW, images_n), (KERNEL_ROW, kernels_n), (SLOT_ROW, slots_n),
            (DESCRIPTOR_ROW, descriptors_n))  # fmt: skip
    if COUNTS.size + sum(row.size * count for row, count in rows) + string_bytes != len(index):
        raise ArtifactError(f"{name} is corrupt: its index does not have the size that its counts give")
    tables, position = [], COUNTS.size
    for row, count in rows:
        tables.append(row.iter_unpack(index[position : position + row.size * count]))
        position += row.size * count
    if (descriptors_n > 0) != (version == VERSIONS[1]):
        raise ValueError("its format must be that of packs with tensor descriptors exactly if it has some")
    if index.count(b"\0", position) > 2 + images_n + 4 * kernels_n + slots_n + 8:
        raise ValueError("it has more strings than its rows use")
    texts, lines = _texts(index[position:]), set()

    def string(offset: int) -> str:
        if offset not in lines:  # the same one may be asked for by every row
            if len(texts[offset]) > LONGEST_TEXT or not is_line(texts[offset]):
                raise ValueError("a string is not a line of text")
            lines.add(offset)
        return texts[offset]

    groups = tuple(Group(offset, stored, decoded, sha.hex()) for offset, stored, decoded, sha in tables[0])
    _check_groups(groups, HEADER.size + len(index), file_bytes, name)
    kinds = {number: kind for kind, number in KINDS.items()}
    descriptors = [_descriptor(row) for row in tables[4]]
    images: list[PackedImage] = []
    ends: dict[int, int] = {}
    for group, offset, size, symbol, kind, *facts, place, sha in tables[1]:
        threads, shared, registers, spills, stack, parameters, scratch, align, profile_scratch, clusters = facts
        end = ends.get(group, 0)  # images of a group stand one behind another: none shares bytes with others
        if offset != end + -end % ALIGNMENT or not size or kind not in kinds:
            raise ArtifactError(f"{name} is corrupt: an image lies outside of its group")
        ends[group] = offset + size
        info = ImageInfo(
            kinds[kind], string(symbol), threads, shared, registers, spills, stack, parameters, scratch, align,
            profile_scratch, clusters, abi=0, ptx_version="", descriptors=_descriptors(place, kind, descriptors),
        )  # fmt: skip
        _check_image(info)
        images.append(PackedImage(group, offset, size, sha.hex(), info))
    if [ends.get(number) for number in range(groups_n)] != [group.decoded for group in groups] or len(ends) > groups_n:
        raise ArtifactError(f"{name} is corrupt: its groups do not end where their last images do")
    slots = [_slot(row, images, string) for row in tables[3]]
    kernels, first = [], 0
    for family, operation, kernel, begin, count, configurations, specializations, names, layout in tables[2]:
        if len(texts[names]) > (LONGEST_TEXT + 1) * (count + 3):
            raise ValueError("a kernel has more names than slots")
        parts = [part.split("\n") for part in texts[names].split("\n\n")]
        if not all(is_line(name) and len(name) <= LONGEST_TEXT for part in parts for name in part):
            raise ValueError("a name is not a line of text")
        if any(name.count(" ") >= MOST_CHOICES for part in parts for name in part):
            raise ValueError(f"a name has more than {MOST_CHOICES} words")
        if len(parts) != 3 or begin != first or first + count > slots_n or len(parts[1]) != configurations:
            raise ArtifactError(f"{name} is corrupt: a kernel's names and slots do not match")
        if len(parts[2]) != specializations or len(parts[0]) * configurations * specializations != count:
            raise ArtifactError(f"{name} is corrupt: a kernel's names and slots differ in number")
        first += count
        kernels.append(
            KernelSlots(
                string(family),
                string(operation),
                string(kernel),
                tuple(parts[0]),
                tuple(parts[1]),
                tuple(parts[2]),
                layout.hex(),
                tuple(slots[begin:first]),
            )
        )
    if first != slots_n:
        raise ArtifactError(f"{name} is corrupt: it has slots that belong to no kernel")
    return Pack(string(target), string(release), digest, file_bytes, groups, tuple(images), tuple(kernels))


def _texts(data: bytes) -> dict[int, str]:
    """The strings of an index by their offsets; looking one up that does not begin there is a KeyError."""
    if not data.endswith(b"\0"):
        raise ValueError("its last string has no end")
    texts, offset = {}, 0
    for text in data[:-1].split(b"\0"):
        texts[offset] = text.decode()
        offset += len(text) + 1
    return texts


def _check_groups(groups: Sequence[Group], expected: int, file_bytes: int, name: str) -> None:
    for group in groups:
        if not 0 < group.decoded <= LARGEST_GROUP:
            raise ArtifactError(f"{name} is corrupt: a group is empty or larger than {LARGEST_GROUP >> 20} MiB")
        if not 0 < group.stored <= _most_stored(largest_frame(group.decoded)):
            raise ArtifactError(f"{name} is corrupt: a group takes more bytes than its decoded size can need")
        if group.offset != expected or group.offset + group.stored > file_bytes:
            raise ArtifactError(f"{name} is truncated or corrupt: a group does not lie where its index says")
        expected += group.stored
    if expected != file_bytes:
        raise ArtifactError(f"{name} is truncated or too long: it should have {expected} bytes, but has {file_bytes}")
    if sum(group.decoded for group in groups) > MOST_EXPANSION * file_bytes:
        raise ArtifactError(f"{name} is corrupt: its images are more than {MOST_EXPANSION} times its size")


def _most_stored(size: int) -> int:
    """The most that zstd makes of so many bytes: ZSTD_COMPRESSBOUND of zstd.h."""
    return size + (size >> 8) + (max(0, (128 << 10) - size) >> 11)


def _check_image(info: ImageInfo) -> None:
    """What the runtime refuses too (csrc/core/pack.cc).

    Raises:
        ValueError: no GPU can run it.
    """
    if not 0 < info.threads <= _MOST_THREADS:
        raise ValueError("an image has an impossible number of threads")
    if not 0 < info.clusters <= _LARGEST_CLUSTER:
        raise ValueError("an image has an impossible cluster size")
    align = info.scratch_align
    if align > _LARGESTALIGNMENT or (info.scratch and (not align or align & (align - 1))):
        raise ValueError("an image's scratch has an impossible alignment")
    if info.profile_scratch:
        raise ValueError("an image uses profile scratch, which releases do not")


def _slot(row: tuple, images: Sequence[PackedImage], string: Callable[[int], str]) -> Slot:
    image, ptx, reason, zero, key = row
    if zero:
        raise ValueError("a slot is odd")
    code = None if image == NONE else images[image]
    text = None if ptx == NONE else images[ptx]
    if (code and code.info.kind == "ptx") or (text and text.info.kind != "ptx"):
        raise ValueError("a slot names PTX as its image, or an image as its PTX")
    return Slot(
        key.hex(),
        code and code.digest,
        text and text.digest,
        None if reason == NONE else string(reason),
    )
