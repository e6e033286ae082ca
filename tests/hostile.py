"""Small files that would take gigabytes, or minutes, or a reader down; each is made when it is asked for."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path

import deflate

from kiln_build.artifacts import manifest_model, pack
from kiln_build.base import tar, tarball
from small_release import small_release

Maker = Callable[[Path], Path]
DIGEST = "0" * 64


def written(folder: Path, name: str, data: bytes) -> Path:
    (folder / name).write_bytes(data)
    return folder / name


def zeros(size: int) -> Iterable[bytes]:
    for _ in range(size >> 20):
        yield bytes(1 << 20)


# ---- tarballs --------------------------------------------------------------------------------------------------------


def tarball_of(folder: Path, *pieces: bytes) -> Path:
    return written(folder, "x.tar.gz", deflate.gzip_compress(b"".join(pieces), 6))


def head(name: str, kind: str, size: int = 0) -> bytes:
    return tar.header(tar.Member(name, kind, size), tarball.DIALECT)


def gzip_bomb(folder: Path) -> Path:
    """300 MiB of zeros as the first file of a release."""
    squeeze = zlib.compressobj(9, zlib.DEFLATED, 31)
    pieces = [squeeze.compress(head("kiln", "folder") + head("kiln/a", "file", 300 << 20))]
    pieces += [squeeze.compress(block) for block in zeros(300 << 20)] + [squeeze.flush()]
    data = b"".join(pieces)
    return written(folder, "x.tar.gz", data[:8] + b"\0\xff" + data[10:])


def pax_header(folder: Path) -> Path:
    """A header that announces 4 GiB of headers."""
    block = bytearray(head("kiln/a", "file", 4 << 30))
    block[156:157] = b"x"
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return tarball_of(folder, head("kiln", "folder"), bytes(block), bytes(4096))


def long_manifest(folder: Path) -> Path:
    """A manifest that says it has 8 GiB."""
    before = b"".join(head(name, "folder") for name in ("kiln", "kiln/share", "kiln/share/kiln"))
    return tarball_of(folder, before, head(f"kiln/{manifest_model.PATH}", "file", (8 << 30) - 1), bytes(4096))


def with_manifest(folder: Path, data: bytes) -> Path:
    (folder / "kiln/share/kiln").mkdir(parents=True)
    return written(folder, f"kiln/{manifest_model.PATH}", data).parents[2]


def plain_manifest() -> dict:
    return manifest_model.read((small_release().stage / manifest_model.PATH).read_bytes(), "m")


def variant(number: int) -> dict:
    name = f"{number:05x}"
    return {"target": "sm_90", "kernel": f"k{name}", "functional": f"f={name}", "configuration": f"c={name}",
            "specialization": f"s{name}", "key": DIGEST, "unavailable": f"r{name}"}  # fmt: skip


def many_variants(folder: Path, count: int = 60_000) -> Path:
    """As many variants as there may be, each of a kernel of its own."""
    document = plain_manifest() | {"variants": [variant(number) for number in range(count)]}
    return with_manifest(folder, manifest_model.encode(document))


def too_many_variants(folder: Path) -> Path:
    return many_variants(folder, 60_001)


def many_values(folder: Path) -> Path:
    """Rules with as many short values as a manifest may have."""
    document = plain_manifest()
    rule = {"target": "sm_90", "kernel": "k", "reason": "r", "variants": 1}
    rows = [rule | {"configurations": [f"{number % 4096:03x}" for number in range(4000)]} for _ in range(400)]
    return with_manifest(folder, manifest_model.encode(document | {"left_out": rows}))


def manifest_of(text: str) -> Maker:
    return lambda folder: with_manifest(folder, text.encode())


def changed(change: Callable[[dict], object]) -> Maker:
    """A manifest with a part of another type or value, in the spelling of one."""

    def make(folder: Path) -> Path:
        document = json.loads((small_release().stage / manifest_model.PATH).read_bytes())
        change(document)
        return with_manifest(folder, "".join(f"{line}\n" for line in manifest_model._lines(document)).encode())

    return make


# ---- packs -----------------------------------------------------------------------------------------------------------


def seal(index: bytes, groups: bytes = b"") -> bytes:
    """A pack whose digest of the index is right."""
    digest = hashlib.sha256(index).digest()
    return pack.HEADER.pack(pack.MAGIC, 1, pack.HEADER.size, len(index), digest, 0) + index + groups


def index_of(groups: list, images: list, kernels: list, slots: list, text: bytes) -> bytes:
    """Of rows as tuples; the target's and the release's names are the first string."""
    counts = pack.COUNTS.pack(len(groups), len(images), len(kernels), len(slots), len(text), 0, 0, 0)
    rows = ((pack.GROUP_ROW, groups), (pack.IMAGE_ROW, images), (pack.KERNEL_ROW, kernels), (pack.SLOT_ROW, slots))
    return counts + b"".join(row.pack(*values) for row, several in rows for values in several) + text


SLOT = (pack.NONE, pack.NONE, 6, 0, bytes(32))


def pack_of(folder: Path, *parts, groups: bytes = b"") -> Path:
    return written(folder, "x.pack", seal(index_of(*parts), groups))


def kernels_that_share_slots(folder: Path) -> Path:
    """Each of 10,000 kernels has all of 10,000 slots."""
    names = "\n".join(f"f={number}" for number in range(10_000)) + "\n\nc\n\ns"
    kernel = (0, 0, 0, 0, 10_000, 1, 1, 13, bytes(32))
    return pack_of(folder, [], [], [kernel] * 10_000, [SLOT] * 10_000, b"sm_90\0reason\0" + names.encode() + b"\0")


def slots_that_share_a_text(folder: Path) -> Path:
    """One reason of half a megabyte, in 20,000 slots."""
    text = b"sm_90\0" + b"r" * (1 << 19) + b"\0f\n\nc\n\ns\0"
    kernel = (0, 0, 0, 0, 1, 1, 1, 6 + (1 << 19) + 1, bytes(32))
    return pack_of(folder, [], [], [kernel], [SLOT] * 20_000, text)


def strings_without_letters(folder: Path) -> Path:
    return pack_of(folder, [], [], [], [], bytes(1 << 20))


def compressed(raw: bytes) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor(level=19).compress(raw)


def image_row(group: int, offset: int, size: int) -> tuple:
    threads = clusters = 1
    return (group, offset, size, 0, 1, threads, *[0] * 8, clusters, 0, bytes(32))


def frame_of(size: int) -> bytes:
    """A frame of zeros, none of them code."""
    return struct.pack("<3I256s", 0, 0, 0, bytes([4] * 256)) + bytes(size)


def images_that_overlap(folder: Path) -> Path:
    """A thousand images that are the same 8 MiB."""
    size = pack.LARGEST_GROUP // 2
    stored = compressed(frame_of(size))
    images = [image_row(0, 0, size)] * 1000
    offset = pack.HEADER.size + len(index_of([(0, 0, 0, b"")], images, [], [], b"sm_90\0\0\0"))
    row = (offset, len(stored), size, hashlib.sha256(stored).digest())
    return pack_of(folder, [row], images, [], [], b"sm_90\0\0\0", groups=stored)


def groups_that_expand(folder: Path) -> Path:
    """Two hundred groups that decode to 16 MiB each."""
    size = pack.LARGEST_GROUP
    stored = compressed(frame_of(size))
    images = [image_row(number, 0, size) for number in range(200)]
    begin = pack.HEADER.size + len(index_of([(0, 0, 0, b"")] * 200, images, [], [], b"sm_90\0\0\0"))
    digest = hashlib.sha256(stored).digest()
    rows = [(begin + number * len(stored), len(stored), size, digest) for number in range(200)]
    return pack_of(folder, rows, images, [], [], b"sm_90\0\0\0", groups=stored * 200)


def large_group_of_little(folder: Path) -> Path:
    """A group that takes 600 MiB of a file with holes, for 16 bytes."""
    stored = 600 << 20
    offset = pack.HEADER.size + len(index_of([(0, 0, 0, b"")], [image_row(0, 0, 16)], [], [], b"sm_90\0\0\0"))
    path = pack_of(folder, [(offset, stored, 16, bytes(32))], [image_row(0, 0, 16)], [], [], b"sm_90\0\0\0")
    os.truncate(path, offset + stored)
    return path


def selectors_alone(folder: Path) -> Path:
    """A frame that says it has 40 million records of 16 bytes, in a group that is padded to be allowed."""
    frame = struct.pack("<3I256s", 0, 40 << 20, 0, bytes([4] * 256)) + bytes(40 << 20)
    size = pack.LARGEST_GROUP
    stored = compressed(frame) + bytes(size // 90)
    offset = pack.HEADER.size + len(index_of([(0, 0, 0, b"")], [image_row(0, 0, size)], [], [], b"sm_90\0\0\0"))
    row = (offset, len(stored), size, hashlib.sha256(stored).digest())
    return pack_of(folder, [row], [image_row(0, 0, size)], [], [], b"sm_90\0\0\0", groups=stored)


def many_slots(folder: Path) -> Path:
    """As large an index as there may be: 20,000 slots, the reasons drawn so that rules say little."""
    count = 20_000
    names = "\n".join(f"a={n % 7} b={n % 11} c={n % 13} d={n}" for n in range(count // 4)) + "\n\nx\ny\n\ns\nt"
    reasons = b"".join(f"{number:04x}".encode() + b"\0" for number in range(4000))
    text = b"sm_90\0" + reasons + names.encode() + b"\0"
    slots = [(pack.NONE, pack.NONE, 6 + 5 * (number * 2654435761 % 4000), 0, bytes(32)) for number in range(count)]
    kernel = (0, 0, 0, 0, count, 2, 2, 6 + len(reasons), bytes(32))
    return pack_of(folder, [], [], [kernel], slots, text)


# ---- images ----------------------------------------------------------------------------------------------------------


def image(name: str) -> bytes:
    return (small_release().images / name).read_bytes()


def sections_of(code: bytes) -> list[tuple[int, list[int]]]:
    """Where each section's header is, and its ten fields."""
    start, count = struct.unpack_from("<Q", code, 40)[0], struct.unpack_from("<H", code, 60)[0]
    return [(start + 64 * n, list(struct.unpack_from("<IIQQQQIIQQ", code, start + 64 * n))) for n in range(count)]


def with_section(folder: Path, name: str, section: str, content: bytes, flags: int = 0) -> Path:
    """An image one of whose sections has another content, put at the file's end."""
    code = bytearray(image(name))
    names = sections_of(bytes(code))[struct.unpack_from("<H", code, 62)[0]][1][4]
    for at, fields in sections_of(bytes(code)):
        begin = names + fields[0]
        if bytes(code[begin : code.index(b"\0", begin)]).decode() == section:
            fields[2] |= flags
            fields[4], fields[5] = len(code), len(content)
            struct.pack_into("<IIQQQQIIQQ", code, at, *fields)
    return written(folder, "image", bytes(code) + content)


def debugging_without_bytes(folder: Path) -> Path:
    """A section of debugging information that has 1 GiB by its header, and none in the file."""
    code = bytearray(image("sm_90-256-fp16"))
    names = sections_of(bytes(code))[struct.unpack_from("<H", code, 62)[0]][1][4]
    (found,) = (
        (at, fields) for at, fields in sections_of(bytes(code)) if code.startswith(b".debug_frame\0", names + fields[0])
    )
    at, fields = found
    fields[1], fields[5] = 8, 1 << 30
    struct.pack_into("<IIQQQQIIQQ", code, at, *fields)
    return written(folder, "image", bytes(code))


def compressed_section(folder: Path) -> Path:
    """64 KiB that unpack to 64 MiB, and say 64 GiB."""
    content = struct.pack("<IIQQ", 1, 0, 64 << 30, 1) + zlib.compress(bytes(64 << 20), 9)
    return with_section(folder, "sm_90-256-fp16", ".nv.info", content, flags=0x800)


def broken_compression(folder: Path) -> Path:
    content = struct.pack("<IIQQ", 1, 0, 100, 1) + b"no zlib stream"
    return with_section(folder, "sm_90-256-fp16", ".nv.info", content, flags=0x800)


def many_attributes(folder: Path) -> Path:
    return with_section(folder, "sm_90-256-fp16", ".nv.info", bytes(16 << 20))


def many_symbols(folder: Path) -> Path:
    return with_section(folder, "sm_90-256-fp16", ".symtab", bytes(24 * 500_000))


def long_names(folder: Path) -> Path:
    """Symbols whose names go on for a megabyte."""
    symbols = b"".join(struct.pack("<IBBHQQ", number, 0, 0, 0, 0, 0) for number in range(4000))
    path = with_section(folder, "sm_90-256-fp16", ".symtab", symbols)
    code = bytearray(path.read_bytes())
    for at, fields in sections_of(bytes(code)):
        if fields[1] == 3:
            fields[4], fields[5] = len(code), 1 << 20
            struct.pack_into("<IIQQQQIIQQ", code, at, *fields)
            break
    return written(folder, "image", bytes(code) + b"n" * (1 << 20))


def many_sections(folder: Path) -> Path:
    code = bytearray(image("sm_90-256-fp16"))
    struct.pack_into("<Q", code, 40, len(code))
    struct.pack_into("<H", code, 60, 60_000)
    return written(folder, "image", bytes(code) + bytes(64 * 60_000))


def many_notes(folder: Path) -> Path:
    return with_section(folder, "gfx942-256-fp16", ".note", struct.pack("<3I", 0, 0, 0) * 500_000)


def deep_metadata(folder: Path) -> Path:
    content = b"\x91" * 200_000
    note = struct.pack("<3I", 7, len(content), 32) + b"AMDGPU\0\0" + content
    return with_section(folder, "gfx942-256-fp16", ".note", note)


# ---- YAML ------------------------------------------------------------------------------------------------------------


def deep_yaml(folder: Path) -> Path:
    return written(folder, "recipe.yaml", b"a: " + b"[" * 100_000)


def laughing_yaml(folder: Path) -> Path:
    lines = ["a0: &a0 [x, x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12))]
    return written(folder, "recipe.yaml", "\n".join(lines).encode())


def lock_of(text: bytes) -> Maker:
    """A bundle whose lock has this text."""

    def make(folder: Path) -> Path:
        dialect = tar.Dialect(time=0, owner="root", mode=lambda _: 0o644, gnu=True)
        data = tar.header(tar.Member("toolchain.lock.yaml", "file", len(text)), dialect) + text + tar.padding(len(text))
        (folder / "input").mkdir()
        return written(folder, "x.tar", data + tar.end(len(data)))

    return make
