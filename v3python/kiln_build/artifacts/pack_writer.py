"""Writes packs, whose grammar stands in pack.py."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from kiln_build.artifacts.pack import (
    ALIGNMENT,
    COUNTS,
    DESCRIPTOR_ROW,
    GROUP_ROW,
    HEADER,
    IMAGE_ROW,
    KERNEL_ROW,
    KINDS,
    LARGEST_GROUP,
    LARGEST_INDEX,
    LONGEST_TEXT,
    MAGIC,
    MOST_DESCRIPTORS,
    MOST_RANK,
    NONE,
    SLOT_ROW,
    VERSIONS,
    KernelSlots,
    Slot,
)
from kiln_build.artifacts.split import Instructions, split
from kiln_build.base.kept import Pieces
from kiln_recipe.console.appear import appear
from kiln_recipe.errors import ArtifactError, unwritable
from kiln_recipe.images.image import DescriptorInfo, ImageInfo
from kiln_recipe.shape import is_line

# A group is decoded as a whole when the first of its images is needed. Larger groups pack better and decode longer.
GROUP_BYTES = 768 << 10
ZSTD_LEVEL = 22


def write_pack(
    path: Path,
    target: str,
    instructions: Instructions,
    release: str,
    kernels: Sequence[KernelSlots],
    info: Callable[[str], ImageInfo],
    read: Callable[[str], bytes],
    code: Callable[[bytes], Iterable[tuple[int, int]]],
    workers: int = 1,
    groups: Pieces | None = None,
) -> str:
    """Writes a pack, which appears by rename. The bytes depend on nothing but the arguments, `workers` and `groups`
    excepted.

    Args:
        instructions: what the target's code is made of.
        info: facts of an image, by digest.
        read: bytes of an image or PTX text, by digest.
        code: (offset, bytes) of the machine code in an image, ascending.
        workers: how many groups are compressed at once.
        groups: what was compressed before, and gets what is compressed now.

    Returns:
        The digest of its index, which a family's library is built with.

    Raises:
        ArtifactError: a text of the index has control characters or is too long, an image is too large, or there are
            too many.
        EnvironmentProblem: the file cannot be written.
    """
    strings, descriptors = _Strings(), _Descriptors()
    image_rows: list[bytes] = []
    numbers: dict[tuple[str, str], int] = {}  # (kind, digest) to the number of its row
    pending: list[Future[bytes]] = []
    decoded: list[int] = []
    pool = ThreadPoolExecutor(workers)  # zstandard compresses without Python's lock
    try:
        for kind in ("image", "ptx"):  # PTX apart: a release without it differs in nothing else
            for group in _groups(kernels, Grouping(kind, read, code)):
                for digest, image, offset, size in group.members:
                    data = bytes(group.raw[offset : offset + size])
                    numbers[kind, digest] = len(image_rows)
                    facts = info(image)
                    place = descriptors.add(facts.descriptors)
                    image_rows.append(_image_row(len(pending), offset, data, facts, kind, strings, place))
                pending.append(pool.submit(packed, group, instructions, groups))
                decoded.append(len(group.raw))
                if len(group.raw) > LARGEST_GROUP:
                    raise ArtifactError(
                        f"an image for {target} has {len(group.raw)} bytes; a pack holds {LARGEST_GROUP}"
                    )
        frames = [future.result() for future in pending]
    finally:
        pool.shutdown(cancel_futures=True)  # who is interrupted waits for no group that has not begun
    kernel_rows, slot_rows = _kernel_rows(kernels, numbers, strings)
    names = strings.add(target), strings.add(release)
    text = strings.text()
    rows = descriptors.rows
    counts = COUNTS.pack(len(frames), len(image_rows), len(kernel_rows), len(slot_rows), len(text), *names, len(rows))
    tables = b"".join([*image_rows, *kernel_rows, *slot_rows, *rows, text])
    offset = HEADER.size + len(counts) + GROUP_ROW.size * len(frames) + len(tables)
    located = []
    for frame, size in zip(frames, decoded):
        located.append(GROUP_ROW.pack(offset, len(frame), size, hashlib.sha256(frame).digest()))
        offset += len(frame)
    index = b"".join([counts, *located, tables])
    if len(index) > LARGEST_INDEX:
        raise ArtifactError(f"the index for {target} has {len(index)} bytes; the limit is {LARGEST_INDEX}")
    index_digest = hashlib.sha256(index)
    header = HEADER.pack(MAGIC, VERSIONS[bool(rows)], HEADER.size, len(index), index_digest.digest(), 0)
    try:
        with appear(path) as fresh:
            fresh.write_bytes(b"".join([header, index, *frames]))
    except OSError as error:
        raise unwritable(path, error) from error
    return index_digest.hexdigest()


@dataclass
class Group:
    """Images, or texts of PTX, that are compressed together.

    Attributes:
        raw: them, one behind the other.
        code: (offset, bytes) of the machine code in it, ascending.
        members: of each its digest, the digest of the image whose facts describe it, its offset and its bytes.
    """

    raw: bytearray = field(default_factory=bytearray)
    code: list[tuple[int, int]] = field(default_factory=list)
    members: list[tuple[str, str, int, int]] = field(default_factory=list)


@dataclass
class Grouping:
    """Cuts the images of a pack into groups as they come: each once, cut where the next would make a group larger than
    GROUP_BYTES.

    Attributes:
        kind: "image" or "ptx", which of a slot's is meant.
        read, code: as `write_pack` has them.
    """

    kind: str
    read: Callable[[str], bytes]
    code: Callable[[bytes], Iterable[tuple[int, int]]]
    _group: Group = field(default_factory=Group)
    _seen: set[str] = field(default_factory=set)

    def add(self, slot: Slot) -> Group | None:
        """Takes the next slot in the order of `in_order`; gives the group before it, where it begins another."""
        digest = slot.image if self.kind == "image" else slot.ptx
        if digest is None or slot.image is None or digest in self._seen:  # PTX stands beside an image alone
            return None
        data = self.read(digest) + (b"\0" if self.kind == "ptx" else b"")
        self._seen.add(digest)
        size = len(self._group.raw)
        is_full = bool(self._group.members) and size + -size % ALIGNMENT + len(data) > GROUP_BYTES
        complete = self.end() if is_full else None
        raw = self._group.raw
        raw += b"\0" * (-len(raw) % ALIGNMENT)
        if self.kind == "image":
            self._group.code += [(len(raw) + offset, size) for offset, size in self.code(data)]
        self._group.members.append((digest, slot.image, len(raw), len(data)))
        raw += data
        return complete

    def end(self) -> Group | None:
        """The group that no slot has completed, if there is one; no more are to come to it."""
        group, self._group = self._group, Group()
        return group if group.members else None


def in_order(slots: int, configurations: int, specializations: int) -> list[int]:
    """The numbers of a kernel's slots in the order in which a pack has its images: those of one specialization and
    configuration side by side."""
    per_functional = configurations * specializations
    # What a functional changes (a dtype, a mask) leaves more of the code alike than another tile or another kind of
    # load does: a tenth fewer bytes than functional by functional.
    return sorted(range(slots), key=lambda n: (n % specializations, n % per_functional, n))


def _groups(kernels: Iterable[KernelSlots], grouping: Grouping) -> Iterator[Group]:
    """All groups, kernel by kernel."""
    for kernel in kernels:
        for number in in_order(len(kernel.slots), len(kernel.configurations), len(kernel.specializations)):
            if group := grouping.add(kernel.slots[number]):
                yield group
    if group := grouping.end():
        yield group


def _kernel_rows(
    kernels: Iterable[KernelSlots], numbers: Mapping[tuple[str, str], int], strings: _Strings
) -> tuple[list[bytes], list[bytes]]:
    kernel_rows: list[bytes] = []
    slot_rows: list[bytes] = []
    for kernel in kernels:
        parts = (kernel.functionals, kernel.configurations, kernel.specializations)
        kernel_rows.append(
            KERNEL_ROW.pack(
                strings.add(kernel.family),
                strings.add(kernel.operation),
                strings.add(kernel.kernel),
                len(slot_rows),
                len(kernel.slots),
                len(kernel.configurations),
                len(kernel.specializations),
                strings.add_list("\n\n".join("\n".join(part) for part in parts)),
                bytes.fromhex(kernel.layout),
            )
        )
        for slot in kernel.slots:
            slot_rows.append(
                SLOT_ROW.pack(
                    NONE if slot.image is None else numbers["image", slot.image],
                    NONE if slot.ptx is None else numbers["ptx", slot.ptx],
                    NONE if slot.reason is None else strings.add(slot.reason),
                    0,
                    bytes.fromhex(slot.key),
                )
            )
    return kernel_rows, slot_rows


def packed(group: Group, instructions: Instructions, groups: Pieces | None) -> bytes:
    """A group as it is in a pack; what was made of the same before is not made again."""
    raw = bytes(group.raw)
    key = _key_of_group(raw, instructions, group.code) if groups is not None else ""
    piece = groups.get(key) if groups is not None else None
    if piece is None:
        piece = compress(split(raw, instructions, group.code))
        if groups is not None:
            groups.put(key, piece)
    return piece


def _key_of_group(raw: bytes, instructions: Instructions, code: Sequence[tuple[int, int]]) -> str:
    """The digest of all that decides the bytes of a group: itself, where its code is and of which instructions, and
    what packs it."""
    digest = hashlib.sha256(_packer())
    how = [ZSTD_LEVEL, instructions.selector, list(instructions.words), list(code), len(raw)]
    digest.update(json.dumps(how).encode())
    digest.update(raw)
    return digest.hexdigest()


@functools.cache
def _packer() -> bytes:
    """What packs a group: two modules, and zstd."""
    import zstandard

    sources = [hashlib.sha256(Path(file).read_bytes()).hexdigest() for file in (__file__, inspect.getfile(split))]
    return json.dumps([*sources, zstandard.__version__, zstandard.ZSTD_VERSION, zstandard.backend]).encode()


def compress(frame: bytes) -> bytes:
    """A group as it is in a pack, of its frame."""
    import zstandard

    # A window as large as the group, so that every image may refer to every earlier one; no thread, so that the bytes
    # depend on nothing but the library's version.
    parameters = zstandard.ZstdCompressionParameters.from_level(
        ZSTD_LEVEL, source_size=len(frame), write_content_size=True, write_checksum=False, threads=0
    )
    return zstandard.ZstdCompressor(compression_params=parameters).compress(frame)


def _image_row(
    group: int, offset: int, code: bytes, facts: ImageInfo, kind: str, strings: _Strings, descriptors: int
) -> bytes:
    return IMAGE_ROW.pack(
        group,
        offset,
        len(code),
        strings.add(facts.symbol),
        KINDS["ptx" if kind == "ptx" else facts.kind],
        facts.threads,
        facts.shared,
        facts.registers,
        facts.spills,
        facts.stack,
        facts.parameters,
        facts.scratch,
        facts.scratch_align,
        facts.profile_scratch,
        facts.clusters,
        descriptors,
        hashlib.sha256(code).digest(),
    )


class _Strings:
    """The strings of an index: each text once.

    Raises:
        ArtifactError: from `add`: the text is no line.
    """

    def __init__(self) -> None:
        self._offsets: dict[str, int] = {}
        self._size = 0

    def add(self, text: str) -> int:
        if not is_line(text) or len(text) > LONGEST_TEXT:
            raise ArtifactError(
                f"{text[:200]!r} cannot be in a pack: it must be a line of at most {LONGEST_TEXT} characters, "
                "none of them a control character"
            )
        return self.add_list(text)

    def add_list(self, text: str) -> int:
        if text not in self._offsets:
            self._offsets[text] = self._size
            self._size += len(text.encode()) + 1
        return self._offsets[text]

    def text(self) -> bytes:
        text = b"".join(text.encode() + b"\0" for text in self._offsets)
        return text + b"\0" * (-len(text) % 8)


class _Descriptors:
    """The descriptor rows of an index: those of equal images once."""

    def __init__(self) -> None:
        self.rows: list[bytes] = []
        self._places: dict[tuple[DescriptorInfo, ...], int] = {(): 0}

    def add(self, descriptors: tuple[DescriptorInfo, ...]) -> int:
        """What an image's row says of them."""
        if descriptors not in self._places:
            if len(descriptors) > MOST_DESCRIPTORS:
                raise ArtifactError(
                    f"an image takes {len(descriptors)} tensor descriptors; the limit is {MOST_DESCRIPTORS}"
                )
            self._places[descriptors] = len(self.rows) * 16 + len(descriptors)
            for one in descriptors:
                box = (*one.box, *(1,) * (MOST_RANK - one.rank))
                self.rows.append(DESCRIPTOR_ROW.pack(one.rank, one.element_type, one.swizzle, 0, *box, 0))
        return self._places[descriptors]
