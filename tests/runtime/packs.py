"""Packs for the toy family, by a writer of their own: nothing of Kiln's is used, so that the reader is held to the
grammar in csrc/core/pack.h and not to its sibling."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, field

import zstandard

NONE = 0xFFFFFFFF
DTYPES, WIDTHS, FLAGS = ("fp16", "bf16"), (64, 128), ("false", "true")
SPECIALIZATIONS = ("aligned", "pointers", "generic")
MAIN_SIZES = [8, 8, 8, 8, 4, 4, 8, 4, 1, 8]
REDUCE_SIZES = [8, 8, 4]
STEP = 7  # the parameter that is a constant of aligned images


@dataclass(frozen=True)
class Descriptor:
    """What a pack states of a tensor descriptor."""

    box: tuple[int, ...]  # the outermost first
    element_type: int = 6  # fp16
    swizzle: int = 3  # 128 bytes

    def row(self) -> bytes:
        box = (*self.box, 1, 1, 1, 1, 1)[:5]
        return struct.pack("<10I", len(self.box), self.element_type, self.swizzle, 0, *box, 0)


@dataclass
class Image:
    """A row of an image, its bytes and the group that they lie in."""

    symbol: str
    code: bytes
    kind: int
    parameters: int
    group: int = 0
    threads: int = 128
    shared: int = 50000
    scratch: int = 0
    scratch_align: int = 0
    clusters: int = 1
    descriptors: tuple[Descriptor, ...] = ()


@dataclass
class Kernel:
    family: str
    operation: str
    name: str
    configurations: list[str]
    specializations: list[str]
    functionals: list[str]
    layout: bytes
    slots: list[tuple] = field(default_factory=list)  # (image or NONE, ptx or NONE, reason or None, key)


def key_of(*what: object) -> bytes:
    return hashlib.sha256(repr(what).encode()).digest()


def fake_code(symbol: str, sizes: list[int], fixed: int = 0) -> bytes:
    """An image for fake_driver.c."""
    return f"FAKE {symbol} {fixed} {' '.join(map(str, sizes))}".encode() + b"\0"


def functionals() -> list[tuple]:
    return [(dtype, width, flag) for dtype in DTYPES for width in WIDTHS for flag in FLAGS]


def toy_kernels(family: str, target: str, images: list[Image]) -> list[Kernel]:
    """The kernels of toy_family.cc for a target; appends their images."""
    kind = 2 if target.startswith("gfx") else 1
    names = {"sm_90": ["BLOCK=64 SPLIT=1", "BLOCK=128 SPLIT=2"]}.get(target, ["BLOCK=32 SPLIT=1"])
    kernels = []
    if target != "gfx1100":
        layout = bytes([len(names)] * 3).ljust(32, b"\0")
        texts = [f"dtype={d} width={w} flag={f}" for d, w, f in functionals()]
        main = Kernel(family, "mix", "main", names, list(SPECIALIZATIONS), texts, layout)
        for number, functional in enumerate(functionals()):
            for configuration in range(len(names)):
                for specialization in SPECIALIZATIONS:
                    key = key_of(family, target, "main", functional, configuration, specialization)
                    if target == "sm_90" and number in (2, 7):
                        main.slots.append((NONE, NONE, f"functional {number} is waived", key))
                        continue
                    sizes = list(MAIN_SIZES)
                    if specialization == "aligned":
                        del sizes[STEP]
                    symbol = f"main_{number}_{configuration}_{specialization}"
                    hidden = [8, 8]
                    code = fake_code(symbol, sizes + hidden, 16)
                    images.append(Image(symbol, code, kind, len(sizes) + 2, number // 3))
                    ptx = NONE
                    if target == "sm_80":
                        images.append(Image(symbol, fake_code(symbol, sizes + hidden, 8), 3, len(sizes) + 2, 3))
                        ptx = len(images) - 1
                    main.slots.append((len(images) - 1 - (ptx != NONE), ptx, None, key))
        kernels.append(main)
    reduce = Kernel(family, "mix", "reduce", ["BLOCK=128"], ["generic"], [f"dtype={d}" for d in DTYPES],
                    bytes([9]).ljust(32, b"\0"))  # fmt: skip
    for dtype in DTYPES:
        symbol = f"reduce_{dtype}"
        clusters = 2 if target == "sm_90" else 1
        group = 0 if target == "gfx1100" else 1
        image = Image(symbol, fake_code(symbol, [*REDUCE_SIZES, 8]), kind, 4, group, 256, 0, 48, 512, clusters)
        images.append(image)
        reduce.slots.append((len(images) - 1, NONE, None, key_of(family, target, "reduce", dtype)))
    kernels.append(reduce)
    return kernels


def write(target: str, release: str, kernels: list[Kernel], images: list[Image]) -> bytes:
    """A pack's bytes, by the grammar."""
    strings, offsets = bytearray(), {}

    def text(value: str | None) -> int:
        if value is None:
            return NONE
        if value not in offsets:
            offsets[value] = len(strings)
            strings.extend(value.encode() + b"\0")
        return offsets[value]

    count = max(image.group for image in images) + 1
    raw = [bytearray() for _ in range(count)]
    image_rows, descriptors = b"", []
    for image in images:
        group = raw[image.group]
        group.extend(b"\0" * (-len(group) % 16))
        described = 16 * len(descriptors) + len(image.descriptors) if image.descriptors else 0
        descriptors += image.descriptors
        image_rows += struct.pack(
            "<16I32s", image.group, len(group), len(image.code), text(image.symbol), image.kind, image.threads,
            image.shared, 40, 0, 0, image.parameters, image.scratch, image.scratch_align, 0, image.clusters, described,
            hashlib.sha256(image.code).digest(),
        )  # fmt: skip
        group.extend(image.code)
    kernel_rows, slot_rows, first = b"", b"", 0
    for kernel in kernels:
        names = "\n\n".join("\n".join(p) for p in (kernel.functionals, kernel.configurations, kernel.specializations))
        kernel_rows += struct.pack(
            "<8I32s", text(kernel.family), text(kernel.operation), text(kernel.name), first, len(kernel.slots),
            len(kernel.configurations), len(kernel.specializations), text(names), kernel.layout,
        )  # fmt: skip
        first += len(kernel.slots)
        for image, ptx, reason, key in kernel.slots:
            slot_rows += struct.pack("<4I32s", image, ptx, text(reason), 0, key)
    ends = text(target), text(release)
    strings.extend(b"\0" * (-len(strings) % 8))
    frames = [zstandard.ZstdCompressor(19).compress(sort(bytes(group), n % 4)) for n, group in enumerate(raw)]
    descriptor_rows = b"".join(descriptor.row() for descriptor in descriptors)
    tables = image_rows + kernel_rows + slot_rows + descriptor_rows + bytes(strings)
    size = 32 + 48 * count + len(tables)
    group_rows, offset = b"", 64 + size
    for group, frame in zip(raw, frames):
        group_rows += struct.pack("<QII32s", offset, len(frame), len(group), hashlib.sha256(frame).digest())
        offset += len(frame)
    slots = len(slot_rows) // 48
    counts = struct.pack("<8I", count, len(images), len(kernels), slots, len(strings), *ends, len(descriptors))
    return seal(counts + group_rows + tables, 2 if descriptors else 1) + b"".join(frames)


def sort(raw: bytes, selector: int) -> bytes:
    """A group's images as they are compressed: records of 1 to 4 words, byte by byte of those with the same selector.
    What is not code is cut up like code, so any text here does; every second stretch of 40 bytes is."""
    words = bytes(1 + byte % 4 for byte in range(256))
    records, ranges, rest, at = [], [], b"", 0
    while at + 80 <= len(raw):
        skipped, at = raw[at : at + 40], at + 40
        begin = at
        while at + 4 * words[raw[at + selector]] <= begin + 40:
            records.append(raw[at : at + 4 * words[raw[at + selector]]])
            at += len(records[-1])
            if at == begin + 40:
                break
        rest += skipped
        ranges.append(struct.pack("<2I", len(skipped), at - begin))
    out = struct.pack("<3I", selector, len(records), len(ranges)) + words + b"".join(ranges)
    out += bytes(record[selector] for record in records)
    for opcode in range(256):
        alike = [record for record in records if record[selector] == opcode]
        for byte in range(4 * words[opcode]):
            if byte != selector:
                out += bytes(record[byte] for record in alike)
    return out + rest + raw[at:]


def seal(index: bytes, version: int = 1) -> bytes:
    """A header and the index that it is true for."""
    return struct.pack("<8sIIQ32sQ", b"KILNPACK", version, 64, len(index), hashlib.sha256(index).digest(), 0) + index


def index_of(pack: bytes) -> bytes:
    return pack[64 : 64 + struct.unpack_from("<Q", pack, 16)[0]]


def digest_of(pack: bytes) -> str:
    return hashlib.sha256(index_of(pack)).hexdigest()


FILES = {
    "sm_80": "nvidia-sm_80.pack",
    "sm_90": "nvidia-sm_90.pack",
    "gfx942": "amd-gfx942.pack",
    "gfx1100": "amd-gfx1100.pack",
}


def toy_pack(target: str, release: str = "1.2.3", families: tuple[str, ...] = ("toy", "bare")) -> bytes:
    images: list[Image] = []
    kernels = [kernel for family in families for kernel in toy_kernels(family, target, images)]
    return write(target, release, kernels, images)


TILES_TARGETS = ("sm_80", "sm_90", "gfx942")
TILES_BOXES = {"a": (64, 64), "b": (64, 64), "c": (64, 64)}
COPY_BOXES = {"x": (2, 16, 64), "y": (32,)}
FP32 = 7  # as the driver counts element types; FP16 and BF16 by dtype
ELEMENT_TYPES = {"fp16": 6, "bf16": 9}
POINTERS = [8, 8, 8, 8, 4, 4, *[8] * 6]
MAP_SIZES = [128, 4, 4, 8, 8]
WAIVED = "deep has no image of bf16"


def _tiles_kernel(target: str, operation: str, name: str, layout: int, specializations: list[str],
                  image) -> tuple[Kernel, list[Image]]:  # fmt: skip
    """image(dtype, specialization): its parameters' sizes and its descriptors; None where there is none."""
    kernel = Kernel("tiles", operation, name, ["BLOCK_M=128 BLOCK_N=256"], specializations,
                    [f"dtype={dtype}" for dtype in DTYPES], bytes([layout]).ljust(32, b"\0"))  # fmt: skip
    made = []
    for dtype in DTYPES:
        for specialization in specializations:
            key = key_of("tiles", target, name, dtype, specialization)
            what = image(dtype, specialization)
            if what is None:
                kernel.slots.append((NONE, NONE, WAIVED, key))
                continue
            sizes, descriptors = what
            symbol = f"{name.replace('.', '_')}_{dtype}_{specialization}"
            code = fake_code(symbol, [*sizes, 8, 8])
            kinds = [2] if target.startswith("gfx") else [1, 3]
            numbers = [*range(len(made), len(made) + len(kinds)), NONE][:2]
            for kind in kinds:
                given = () if kind == 2 else descriptors  # AMD's images have none
                made.append(Image(symbol, code, kind, len(sizes) + 2, shared=0, descriptors=given))
            kernel.slots.append((*numbers, None, key))
    return kernel, made


def tiles_pack(target: str, change=lambda kernels, images: None) -> bytes:
    """The pack of tiles_family.cc for a target, after change(kernels, images)."""

    def plain(dtype: str, _: str):
        return POINTERS, ()

    def deep(dtype: str, _: str):
        return (POINTERS, ()) if dtype == "fp16" else None

    def hopper(dtype: str, specialization: str):
        flag = [4] * (specialization == "generic")
        descriptors = tuple(Descriptor(box, ELEMENT_TYPES[dtype]) for box in TILES_BOXES.values())
        return [4, *MAP_SIZES, *MAP_SIZES, 4, *MAP_SIZES, *flag], descriptors

    def copy(dtype: str, _: str):
        descriptors = Descriptor(COPY_BOXES["x"], ELEMENT_TYPES[dtype]), Descriptor(COPY_BOXES["y"], FP32, 0)
        return [128, 4, 4, 4, 8, 8, 8, 128, 4, 8], descriptors

    parts = [_tiles_kernel(target, "product", "matmul.general", 4, ["generic"], plain)]
    if target == "sm_90":
        parts.append(_tiles_kernel(target, "product", "matmul.deep", 2, ["generic"], deep))
        parts.append(_tiles_kernel(target, "product", "matmul.hopper", 3, ["constant", "generic"], hopper))
    if target != "sm_80":
        parts.append(_tiles_kernel(target, "copy", "copy", 5, ["generic"], copy))
    kernels, images = [], []
    for kernel, made in parts:
        first = len(images)
        kernel.slots = [
            (NONE if i == NONE else first + i, NONE if p == NONE else first + p, *rest) for i, p, *rest in kernel.slots
        ]
        kernels.append(kernel)
        images += made
    change(kernels, images)
    return write(target, "1.2.3", kernels, images)
