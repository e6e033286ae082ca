"""An image in a cache of Bazel's HTTP protocol.

    /ac/<key>     an entry: a build.bazel.remote.execution.v2.ActionResult, as servers that check what they keep want it
      output_files = 2    "image", and "ptx" if there is one: digest and size of their blobs, which the server keeps as
                          long as the entry
      stdout_raw = 5      content = digest "\n" JSON of `Entry`;  digest = the JSON's SHA-256, 64 hexadecimal digits
      stderr_raw = 7      its signature, a file of minisign's with the trusted comment "kiln entry <key>"; or none
    /cas/<blob>   a blob: one zstd frame; <blob> is the SHA-256 of the frame

Only the fields 5 and 7 are believed, and these by what is in them: servers add fields of their own. Everything else
that parses is passed over.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import msgspec
import zstandard

from kiln_build.store.store import is_time
from kiln_recipe.digests import is_digest
from kiln_recipe.images.image import Image, ImageInfo

FORMAT = 2
LARGEST_ENTRY = 1 << 16  # bytes; they have about 1,500
LARGEST_BLOB = 1 << 26  # bytes of a frame, and of what it holds; images have some hundred thousand
_LEVEL = 6
_FILES, _CONTENT, _SIGNATURE = 2, 5, 7  # fields of ActionResult
_PATH, _FILE_DIGEST = 1, 2  # of OutputFile
_HASH, _SIZE = 1, 2  # of Digest
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # protobuf's wire types


class Unusable(Exception):
    """What came is not what was asked for; the text goes on after "the entry" or "the blob": "is of the key ..."."""


class Blob(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an image's code, or its PTX, is kept as.

    Attributes:
        digest, size: of what the frame holds, in bytes.
        blob, stored: of the frame.
    """

    digest: str
    size: int
    blob: str
    stored: int


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a cache says of an image; `kiln` is the format."""

    kiln: int
    key: str
    ir: str
    seconds: float
    info: ImageInfo
    code: Blob
    ptx: Blob | None


@dataclass(frozen=True)
class Packed:
    """An entry before it goes: its content, which may yet be signed, and its blobs by name."""

    entry: Entry
    content: bytes
    blobs: dict[str, bytes]


def comment(key: str) -> str:
    """The trusted comment of an entry's signature."""
    return f"kiln entry {key}"


# ---- images ----


def pack(key: str, image: Image, ir: str, seconds: float) -> Packed:
    """The entry and the blobs of an image."""
    blobs: dict[str, bytes] = {}
    code = _blob(image.code, blobs)
    ptx = None if image.ptx is None else _blob(image.ptx.encode(), blobs)
    entry = Entry(FORMAT, key, ir, round(seconds, 4), image.info, code, ptx)
    return Packed(entry, seal(msgspec.json.encode(entry)), blobs)


def seal(document: bytes) -> bytes:
    """An entry's content. An image does not say all that is stated of it, so a digest must find what has changed."""
    return hashlib.sha256(document).hexdigest().encode() + b"\n" + document


def unpack(blob: Blob, frame: bytes) -> bytes:
    """What a blob holds.

    Raises:
        Unusable: the frame is another than the entry says, or holds something else.
    """
    if hashlib.sha256(frame).hexdigest() != blob.blob:
        raise Unusable("is damaged: it has another digest")
    try:
        size = zstandard.frame_content_size(frame)
        if size != blob.size:  # before anything is allocated for it
            holds = f"{size} bytes" if size >= 0 else "nobody knows how many bytes"
            raise Unusable(f"holds {holds}, where its entry says {blob.size}")
        content = zstandard.ZstdDecompressor().decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError:
        raise Unusable("is not a whole zstd frame") from None
    if hashlib.sha256(content).hexdigest() != blob.digest:
        raise Unusable("holds something else than its entry says")
    return content


def _blob(content: bytes, blobs: dict[str, bytes]) -> Blob:
    frame = zstandard.ZstdCompressor(level=_LEVEL).compress(content)
    name = hashlib.sha256(frame).hexdigest()
    blobs[name] = frame
    return Blob(hashlib.sha256(content).hexdigest(), len(content), name, len(frame))


# ---- entries ----


def encode(packed: Packed, signature: bytes = b"") -> bytes:
    """The bytes of an entry."""
    named = [("image", packed.entry.code), *([("ptx", packed.entry.ptx)] if packed.entry.ptx else [])]
    files = b"".join(_message(_FILES, _output_file(path, blob)) for path, blob in named)
    return files + _message(_CONTENT, packed.content) + (_message(_SIGNATURE, signature) if signature else b"")


def split(data: bytes) -> tuple[bytes, bytes]:
    """An entry's content, of which nothing is known, and the signature of that, b"" if there is none.

    Raises:
        Unusable: it is no entry.
    """
    if len(data) > LARGEST_ENTRY:
        raise Unusable(f"has more than {LARGEST_ENTRY} bytes")
    fields: dict[int, bytes] = {}
    for number, value in _fields(data):
        if number in (_CONTENT, _SIGNATURE) and isinstance(value, bytes):
            fields[number] = value  # of a field that comes twice the last counts, as protobuf has it
    return fields.get(_CONTENT, b""), fields.get(_SIGNATURE, b"")


def decode(content: bytes, key: str) -> Entry:
    """The entry under a key.

    Raises:
        Unusable: it is no entry, or that of another key.
    """
    document = content[65:]
    if content.startswith(b'{"kiln":1,'):
        raise Unusable(f"has the format 1, and this Kiln reads {FORMAT}")
    if seal(document) != content:
        raise Unusable("is damaged, or is not an entry of Kiln")
    try:
        entry = msgspec.json.decode(document, type=Entry)
    except (msgspec.DecodeError, ValueError, RecursionError):  # what is not UTF-8; what is nested a thousand times
        raise Unusable("is not an entry of Kiln") from None
    if entry.kiln != FORMAT:
        raise Unusable(f"has the format {entry.kiln}, and this Kiln reads {FORMAT}")
    if entry.key != key:
        raise Unusable(f"is that of the key {entry.key[:64]!r}")
    names = [entry.ir, *(name for blob in (entry.code, entry.ptx) if blob for name in (blob.digest, blob.blob))]
    if not all(map(is_digest, names)):
        raise Unusable("names something that is not a digest")
    sizes = [size for blob in (entry.code, entry.ptx) if blob for size in (blob.size, blob.stored)]
    if not all(0 <= size <= LARGEST_BLOB for size in sizes) or not is_time(entry.seconds):
        raise Unusable("states a size or a time that cannot be")
    return entry


# ---- protobuf ----


def _output_file(path: str, blob: Blob) -> bytes:
    digest = _message(_HASH, blob.blob.encode()) + bytes([_SIZE << 3 | _VARINT]) + _varint(blob.stored)
    return _message(_PATH, path.encode()) + _message(_FILE_DIGEST, digest)


def _message(number: int, value: bytes) -> bytes:
    return bytes([number << 3 | _BYTES]) + _varint(len(value)) + value


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _fields(data: bytes) -> list[tuple[int, bytes | int]]:
    """Numbers and values of a message's fields; a group, which ActionResult has none of, is refused like other ends of
    what can be read."""
    found: list[tuple[int, bytes | int]] = []
    place = 0
    while place < len(data):
        tag, place = _read_varint(data, place)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, place = _read_varint(data, place)
            found.append((number, value))
            continue
        if kind == _BYTES:
            size, place = _read_varint(data, place)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise Unusable("is not an ActionResult")
        if number == 0 or size > len(data) - place:
            raise Unusable("is not an ActionResult")
        found.append((number, data[place : place + size]))
        place += size
    return found


def _read_varint(data: bytes, place: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 70, 7):
        if place >= len(data):
            break
        byte = data[place]
        place += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, place
    raise Unusable("is not an ActionResult")
