"""What an entry of a cache is written like: it comes back, and whatever else comes is refused in one way."""

from __future__ import annotations

import dataclasses
import hashlib

import msgspec
import pytest
import zstandard
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from kiln_build.cache import entry
from kiln_build.cache.entry import Unusable
from kiln_recipe.images.image import DescriptorInfo, Image
from store_contract import INFO, digest

IMAGES = st.builds(
    Image,
    st.binary(max_size=300),
    st.builds(
        lambda symbol, box: dataclasses.replace(INFO, symbol=symbol, descriptors=(DescriptorInfo(9, 3, tuple(box)),)),
        st.text(max_size=9),
        st.lists(st.integers(1, 256), max_size=5),
    ),
    st.none() | st.text(max_size=200),
)
KEY = digest("key")


def action_result():
    """The message as its .proto declares it, as far as entries have it."""
    file = descriptor_pb2.FileDescriptorProto(name="re.proto", package="re", syntax="proto3")
    text, whole, message, raw = 9, 3, 11, 12
    for name, fields in {
        "Digest": [("hash", 1, text, ""), ("size_bytes", 2, whole, "")],
        "OutputFile": [("path", 1, text, ""), ("digest", 2, message, "Digest")],
        "ActionResult": [
            ("output_files", 2, message, "OutputFile"), ("exit_code", 4, 5, ""), ("stdout_raw", 5, raw, ""),
            ("stderr_raw", 7, raw, ""),
        ],
    }.items():  # fmt: skip
        made = file.message_type.add(name=name)
        for field, number, kind, of in fields:
            one = made.field.add(name=field, number=number, type=kind, label=3 if field == "output_files" else 1)
            if of:
                one.type_name = f".re.{of}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("re.ActionResult"))


ActionResult = action_result()


def decode(data: bytes) -> entry.Entry:
    return entry.decode(entry.split(data)[0], KEY)


@given(IMAGES, st.floats(0, 1e6), st.binary(max_size=40))
def test_what_is_packed_comes_back(image, seconds, signature):
    packed = entry.pack(KEY, image, digest("ir"), seconds)
    content, signed = entry.split(entry.encode(packed, signature))
    found = entry.decode(content, KEY)
    assert found == packed.entry and content == packed.content and signed == signature
    code = entry.unpack(found.code, packed.blobs[found.code.blob])
    ptx = None if found.ptx is None else entry.unpack(found.ptx, packed.blobs[found.ptx.blob]).decode()
    assert Image(code, found.info, ptx) == image and found.ir == digest("ir")


@given(IMAGES)
def test_an_entry_is_an_action_result_to_others(image):
    packed = entry.pack(KEY, image, digest("ir"), 1.0)
    data = entry.encode(packed, b"signature")
    read = ActionResult.FromString(data)
    blobs = [packed.entry.code, *([packed.entry.ptx] if packed.entry.ptx else [])]
    assert [file.path for file in read.output_files] == ["image", "ptx"][: len(blobs)]
    assert [(f.digest.hash, f.digest.size_bytes) for f in read.output_files] == [(b.blob, b.stored) for b in blobs]
    assert (read.stdout_raw, read.stderr_raw, read.exit_code) == (packed.content, b"signature", 0)
    read.exit_code = 3  # what a server adds, or puts in another order, changes nothing
    assert decode(read.SerializeToString()) == packed.entry


@given(st.binary(max_size=200))
def test_hostile_bytes_are_refused(data):
    for one in (data, b"\x2a" + bytes([len(data) & 0x7F]) + data):
        with pytest.raises(Unusable):
            decode(one)


@given(st.data())
def test_a_changed_entry_is_refused_or_says_the_same(data):
    packed = entry.pack(KEY, Image(b"code", INFO, "ptx"), digest("ir"), 1.0)
    whole = bytearray(entry.encode(packed, b"s"))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = decode(bytes(whole))
    except Unusable:
        return
    assert found == packed.entry


def changed(**fields) -> bytes:
    packed = entry.pack(KEY, Image(b"code", INFO, None), digest("ir"), 1.0)
    document = msgspec.json.decode(packed.content[65:]) | fields
    return entry.encode(dataclasses.replace(packed, content=entry.seal(msgspec.json.encode(document))))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"key": digest("other")}, f"is that of the key '{digest('other')}'"),
        ({"kiln": 3}, "has the format 3, and this Kiln reads 2"),
        ({"ir": "../../etc/passwd"}, "names something that is not a digest"),
        ({"seconds": -1.0}, "states a size or a time that cannot be"),
        ({"more": 1}, "is not an entry of Kiln"),
        ({"code": None}, "is not an entry of Kiln"),
        ({"code": {"digest": digest(1), "size": 1 << 40, "blob": digest(2), "stored": 9}}, "states a size or a time"),
        (
            {"code": {"digest": digest(1), "size": 1, "blob": "AB" * 32, "stored": 9}},
            "names something that is not a digest",
        ),
    ],
)
def test_entries_that_are_none(fields, said):
    with pytest.raises(Unusable, match=said):
        decode(changed(**fields))


def test_an_entry_that_is_too_large_is_not_read():
    with pytest.raises(Unusable, match="has more than 65536 bytes"):
        entry.split(bytes(entry.LARGEST_ENTRY + 1))


@pytest.mark.parametrize("start", ['{"kiln": 1, "info": {"x": ', '{"x": ', "", '{"kiln": 1, "info": {"arch": '])
@pytest.mark.parametrize("opened", ["[", '{"a":'])
def test_an_entry_that_is_nested_without_an_end_is_refused(start, opened):
    content = (start + opened * 60_000)[:60_000].encode()
    with pytest.raises(Unusable, match="is not an entry of Kiln"):
        entry.decode(entry.seal(content), KEY)


def test_every_bit_of_an_entry_s_content_counts():
    """Also those of what an image does not say itself, such as its dynamic shared memory."""
    content = entry.pack(KEY, Image(b"code", INFO, "ptx"), digest("ir"), 1.0).content
    for bit in range(8 * len(content)):
        other = bytearray(content)
        other[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Unusable):
            entry.decode(bytes(other), KEY)


def test_an_entry_of_the_earlier_format_is_named():
    content = entry.pack(KEY, Image(b"code", INFO, None), digest("ir"), 1.0).content[65:].replace(b":2,", b":1,", 1)
    with pytest.raises(Unusable, match="has the format 1, and this Kiln reads 2"):
        entry.decode(content, KEY)


def test_frames_that_are_another():
    packed = entry.pack(KEY, Image(b"code" * 100, INFO, None), digest("ir"), 1.0)
    blob, frame = packed.entry.code, packed.blobs[packed.entry.code.blob]

    def of(data: bytes, **fields) -> entry.Blob:
        return msgspec.structs.replace(blob, blob=hashlib.sha256(data).hexdigest(), stored=len(data), **fields)

    bomb = zstandard.ZstdCompressor().compress(bytes(1 << 24))
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(b"code" * 100)
    other = zstandard.ZstdCompressor().compress(b"CODE" * 100)
    for data, one, said in [
        (frame[:-1], blob, "is damaged"),
        (bomb, of(bomb), "holds 16777216 bytes, where its entry says 400"),
        (unsized, of(unsized), "holds nobody knows how many bytes"),
        (frame + b"x", of(frame + b"x"), "is not a whole zstd frame"),
        (frame[:-3], of(frame[:-3]), "is not a whole zstd frame"),
        (b"text", of(b"text"), "is not a whole zstd frame"),
        (other, of(other), "holds something else than its entry says"),
    ]:
        with pytest.raises(Unusable, match=said):
            entry.unpack(one, data)
