"""Packs: what is written is read back, the bytes depend on nothing else, and no damage passes."""

from __future__ import annotations

import hashlib
import random
import re
import struct
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kiln_build.artifacts import pack, pack_writer, split
from kiln_recipe.errors import ArtifactError
from kiln_recipe.images.image import DescriptorInfo, ImageInfo

INFO = ImageInfo("cubin", "attn", 128, 65536, 200, 0, 0, 24, 0, 1, 0, 1, 7, "8.0")


ROOT = Path(__file__).resolve().parents[1]


def grammar(*files: str) -> dict[str, str]:
    """The rules that stand in files, by name, without comments."""
    rules: dict[str, str] = {}
    for file in files:
        name = None
        for line in (ROOT / file).read_text().splitlines():
            text = line.removeprefix("//").partition(";")[0].rstrip()
            begin = re.match(r"(?: {3,4})?([a-zA-Z_]+) +=(?!=) (.*)", text)
            if begin and begin[1] in RULES and begin[1] not in rules:
                name = begin[1]
                rules[name] = begin[2]
            elif name and re.match(r" {10,}[^ ]", text):
                rules[name] += " " + text
            else:
                name = None
    return {name: " ".join(rule.split()) for name, rule in rules.items()}


RULES = ("pack", "header", "index", "counts", "group", "group_row", "image_row", "kernel_row", "slot_row",
         "descriptor_row", "str", "NONE", "frame", "range", "record", "plane", "rest")  # fmt: skip


def test_the_grammar_is_the_same_wherever_it_stands():
    documented = grammar("docs/formats.md")
    assert set(documented) == set(RULES)
    assert grammar("v3python/kiln_build/artifacts/pack.py", "v3python/kiln_build/artifacts/split.py") == documented
    assert grammar("csrc/core/pack.h", "csrc/core/split.h") == documented


def decoded(data: bytes, group: pack.Group) -> bytes:
    return pack.decode_group(data[group.offset : group.offset + group.stored], group, "p")


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def make_kernels(codes: list[bytes], functionals: int, configurations: int, ptx: list[bytes | None]):
    """KernelSlots that hold `codes` in turn (None where the list ends), and what each digest stands for."""
    content = {digest_of(code): code for code in codes} | {digest_of(text): text for text in ptx if text}
    slots = []
    for number in range(functionals * configurations * 2):
        code = codes[number] if number < len(codes) else None
        text = ptx[number] if number < len(ptx) and code is not None else None
        slots.append(
            pack.Slot(
                key=digest_of(b"key%d" % number),
                image=code and digest_of(code),
                ptx=text and digest_of(text),
                reason=None if code else f"no image {number}",
            )
        )
    kernel = pack.KernelSlots(
        "flash", "attn_fwd", "attn_fwd", tuple(f"dtype=bf16 f={i}" for i in range(functionals)),
        tuple(f"BLOCK_M={i}" for i in range(configurations)), ("aligned", "generic"), digest_of(b"layout"),
        tuple(slots),
    )  # fmt: skip
    return [kernel], content


def write(path, kernels, content):
    sass = split.INSTRUCTIONS["sass"]
    return pack_writer.write_pack(
        path, "sm_90", sass, "0.1.0b", kernels, lambda _digest: INFO, content.__getitem__, lambda code: [(0, len(code))]
    )


@pytest.fixture
def written(tmp_path):
    kernels, content = make_kernels([b"A" * 100, b"B" * 3000, b"A" * 100, b"C"], 3, 1, [b".version 8.0", None])
    path = tmp_path / "nvidia-sm_90.pack"
    return path, write(path, kernels, content), kernels, content


@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    codes=st.lists(st.binary(min_size=1, max_size=300), max_size=12),
    shape=st.tuples(st.integers(1, 4), st.integers(1, 3)),
    ptx=st.lists(st.none() | st.binary(min_size=1, max_size=50), max_size=12),
)
def test_round_trip(tmp_path, codes, shape, ptx):
    codes = codes[: shape[0] * shape[1] * 2]
    kernels, content = make_kernels(codes, *shape, ptx)
    path = tmp_path / "p.pack"
    index_digest = write(path, kernels, content)
    read = pack.read_pack(path)
    assert (read.target, read.release, read.index_digest) == ("sm_90", "0.1.0b", index_digest)
    data = path.read_bytes()
    groups = [decoded(data, group) for group in read.groups]
    stored = {}
    for image in read.images:
        code = groups[image.group][image.offset : image.offset + image.bytes]
        assert digest_of(code) == image.digest
        assert image.offset % 16 == 0
        stored[image.digest] = code
        assert replace(image.info, kind="cubin", abi=7, ptx_version="8.0") == INFO
    # An image and the text of a PTX, with the zero at its end, may be equal.
    assert len({(image.info.kind, image.digest) for image in read.images}) == len(read.images), "each is stored once"
    for ours, theirs in zip(kernels[0].slots, read.kernels[0].slots, strict=True):
        assert (ours.key, ours.image, ours.reason) == (theirs.key, theirs.image, theirs.reason)
        if ours.ptx is None:
            assert theirs.ptx is None
        else:
            assert stored[theirs.ptx] == content[ours.ptx] + b"\0"
    assert replace(read.kernels[0], slots=()) == replace(kernels[0], slots=())


def test_same_arguments_same_bytes(written, tmp_path):
    path, index_digest, kernels, content = written
    again = tmp_path / "elsewhere.pack"
    assert write(again, kernels, content) == index_digest
    assert again.read_bytes() == path.read_bytes()


def test_groups_are_cut_before_they_grow_too_large(tmp_path, monkeypatch):
    monkeypatch.setattr(pack_writer, "GROUP_BYTES", 2500)
    source = random.Random(1)
    codes = [source.randbytes(1000) for _ in range(8)]
    kernels, content = make_kernels(codes, 4, 1, [])
    write(tmp_path / "p.pack", kernels, content)
    read = pack.read_pack(tmp_path / "p.pack")
    assert [group.decoded for group in read.groups] == [2008] * 4


def test_alike_images_lie_side_by_side(tmp_path):
    """Those of one specialization and configuration, functional by functional."""
    codes = [bytes([number]) * 50 for number in range(2 * 2 * 2)]
    kernels, content = make_kernels(codes, 2, 2, [])
    write(tmp_path / "p.pack", kernels, content)
    order = [image.digest for image in pack.read_pack(tmp_path / "p.pack").images]
    assert order == [digest_of(codes[slot]) for slot in (0, 4, 2, 6, 1, 5, 3, 7)]


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_damage_passes(written, data):
    path, *_ = written
    good = path.read_bytes()
    kind = data.draw(st.sampled_from(["flip", "truncate", "append"]))
    if kind == "flip":
        position = data.draw(st.integers(0, len(good) - 1))
        bad = bytearray(good)
        bad[position] ^= 1 << data.draw(st.integers(0, 7))
    elif kind == "truncate":
        bad = good[: data.draw(st.integers(0, len(good) - 1))]
    else:
        bad = good + data.draw(st.binary(min_size=1, max_size=9))
    with pytest.raises(ArtifactError, match=r"^p "):
        read = pack.parse_pack(bytes(bad), "p")
        for group in read.groups:
            decoded(bytes(bad), group)


def test_malformed_index_with_a_right_digest(written):
    """Who forges the digest too still gets a sentence, not a crash: every field of the index in turn."""
    path, *_ = written
    good = path.read_bytes()
    size = int.from_bytes(good[16:24], "little")
    for position in range(64, 64 + size, 4):
        bad = bytearray(good)
        bad[position : position + 4] = b"\xfe\xff\xff\xff"
        index = bytes(bad[64 : 64 + size])
        bad[24:56] = hashlib.sha256(index).digest()
        try:
            pack.parse_pack(bytes(bad), "p")
        except ArtifactError as error:
            assert str(error).startswith("p ")


def forged(path, frame: bytes, decoded: int) -> bytes:
    """A pack whose first group is another frame, all digests being right."""
    import zstandard

    good = path.read_bytes()
    size = int.from_bytes(good[16:24], "little")
    index = bytearray(good[64 : 64 + size])
    stored = zstandard.ZstdCompressor().compress(frame)
    old = struct.unpack_from("<QI", index, 32)[1]
    struct.pack_into("<QII32s", index, 32, 64 + size, len(stored), decoded, hashlib.sha256(stored).digest())
    if struct.unpack_from("<I", index)[0] > 1:
        offset = struct.unpack_from("<Q", index, 80)[0]
        struct.pack_into("<Q", index, 80, offset - old + len(stored))
    header = good[:24] + hashlib.sha256(index).digest() + good[56:64]
    return header + bytes(index) + stored + good[64 + size + old :]


def test_a_frame_larger_than_its_images_can_need_is_not_decoded(written):
    path, *_ = written
    size = pack.read_pack(path).groups[0].decoded
    bad = forged(path, bytes(64 << 20), size)
    read = pack.parse_pack(bad, "p")
    with pytest.raises(ArtifactError, match=f"a frame of 67108864 bytes where {split.largest_frame(size)} fit"):
        decoded(bad, read.groups[0])


def test_a_group_larger_than_any_is_refused(written):
    path, *_ = written
    with pytest.raises(ArtifactError, match="a group is empty or larger than 16 MiB"):
        pack.parse_pack(forged(path, b"x", pack.LARGEST_GROUP + 1), "p")


@pytest.mark.parametrize("text", ["a\nb", "\x1b[31m", "\x7f", "\x9b31m", "tab\t"])
def test_no_text_makes_a_terminal_do_anything(tmp_path, monkeypatch, text):
    kernels, content = make_kernels([b"A" * 100], 2, 1, [])
    slots = (*kernels[0].slots[:-1], replace(kernels[0].slots[-1], reason=text))
    kernels = [replace(kernels[0], slots=slots)]
    with pytest.raises(ArtifactError, match="must be a line of at most 4096 characters, none of them a control"):
        write(tmp_path / "p.pack", kernels, content)
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(pack_writer, "is_line", lambda _: True)
    write(tmp_path / "p.pack", kernels, content)
    monkeypatch.undo()
    with pytest.raises(ArtifactError, match="a string is not a line of text"):
        pack.read_pack(tmp_path / "p.pack")


@pytest.mark.parametrize("content", [b"", b"KILN", b"\x1f\x8b" + b"\0" * 100])
def test_no_pack(tmp_path, content):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(ArtifactError, match="is not a Kiln pack"):
        pack.read_pack(tmp_path / "x")


@given(st.integers(0, pack.HEADER.size - 1), st.integers(1, 255))
def test_a_damaged_header_is_called_by_what_is_damaged(at, change):
    with tempfile.TemporaryDirectory() as folder:
        kernels, content = make_kernels([b"A" * 100], 2, 1, [])
        write(Path(folder, "p.pack"), kernels, content)
        data = bytearray(Path(folder, "p.pack").read_bytes())
    data[at] ^= change
    version, size = struct.unpack_from("<2I", data, 8)
    with pytest.raises(ArtifactError) as caught:
        pack.parse_pack(bytes(data), "p")
    said = str(caught.value)
    if at < 8:
        assert "is not a Kiln pack" in said
    elif at < 12:
        assert version in pack.VERSIONS or said == f"p is a pack of format {version}; this Kiln reads formats 1 and 2"
    elif at < 16:
        assert said == f"p is corrupt: its header states {size} bytes of itself, and a header has 64"
    else:
        assert "is corrupt: its" in said or "is truncated: its index" in said


DESCRIBED = (DescriptorInfo(9, 3, (128, 64)), DescriptorInfo(6, 0, (1, 2, 4, 8, 256)))
FACTS = {
    "plain": INFO,
    "described": replace(INFO, descriptors=DESCRIBED),
    "once more": replace(INFO, descriptors=DESCRIBED),
    "otherwise": replace(INFO, descriptors=DESCRIBED[:1]),
}


def described(path, kernels, content, facts) -> None:
    """Writes a pack of images with these facts."""
    sass = split.INSTRUCTIONS["sass"]
    pack_writer.write_pack(path, "sm_90", sass, "0.1.0b", kernels, facts, content.__getitem__, lambda _code: [])


def test_descriptors_are_read_back(tmp_path):
    codes = [name.encode() for name in FACTS]
    kernels, content = make_kernels(codes, 2, 1, [None, b".version 8.6", None, None])
    facts = {digest_of(name.encode()): info for name, info in FACTS.items()}
    path = tmp_path / "p.pack"
    sass = split.INSTRUCTIONS["sass"]
    pack_writer.write_pack(
        path, "sm_90", sass, "0.1.0b", kernels, facts.__getitem__, content.__getitem__, lambda _code: []
    )
    data, read = path.read_bytes(), pack.read_pack(path)
    assert struct.unpack_from("<I", data, 8) == (2,)
    assert data.count(pack.DESCRIPTOR_ROW.pack(2, 9, 3, 0, 128, 64, 1, 1, 1, 0)) == 2, (
        "those of equal images stand once"
    )
    found = {image.digest: image.info.descriptors for image in read.images if image.info.kind == "cubin"}
    assert found == {digest: info.descriptors for digest, info in facts.items()}
    assert [image.info.descriptors for image in read.images if image.info.kind == "ptx"] == [DESCRIBED]


def test_a_pack_without_descriptors_is_of_the_first_format(written):
    path, *_ = written
    data = path.read_bytes()
    assert struct.unpack_from("<I", data, 8) == (1,) and struct.unpack_from("<I", data, 64 + 28) == (0,)


def test_an_image_has_at_most_eight_descriptors(tmp_path):
    kernels, content = make_kernels([b"A"], 1, 1, [])
    facts = replace(INFO, descriptors=DESCRIBED[:1] * 9)
    with pytest.raises(ArtifactError, match="takes 9 tensor descriptors; the limit is 8"):
        described(tmp_path / "p", kernels, content, lambda _: facts)


@pytest.mark.parametrize(
    ("offset", "value", "sentence"),
    [
        (0, 6, "rank, element type or swizzle is unknown"),
        (0, 0, "rank, element type or swizzle is unknown"),
        (4, 13, "rank, element type or swizzle is unknown"),
        (8, 4, "rank, element type or swizzle is unknown"),
        (8, 1, "has an impossible box"),
        (12, 1, "a descriptor's row is malformed"),
        (16, 257, "has an impossible box"),
        (20, 4, "has an impossible box"),
        (20, 128, "has an impossible box"),
        (24, 2, "a descriptor's row is malformed"),
        (36, 1, "a descriptor's row is malformed"),
    ],
)
def test_wrong_descriptor_rows(tmp_path, offset, value, sentence):
    kernels, content = make_kernels([b"A" * 50], 1, 1, [])
    facts = replace(INFO, descriptors=DESCRIBED[:1])
    path = tmp_path / "p.pack"
    described(path, kernels, content, lambda _: facts)
    data = bytearray(path.read_bytes())
    size = struct.unpack_from("<Q", data, 16)[0]
    place = data.index(pack.DESCRIPTOR_ROW.pack(2, 9, 3, 0, 128, 64, 1, 1, 1, 0))
    struct.pack_into("<I", data, place + offset, value)
    data[24:56] = hashlib.sha256(data[64 : 64 + size]).digest()
    with pytest.raises(ArtifactError, match=sentence):
        pack.parse_pack(bytes(data), "p")


@pytest.mark.parametrize("named", [1 << 4 | 1, 1 << 4, 2, 0xFFFFFFF1])
def test_descriptors_that_are_not_there(tmp_path, named):
    kernels, content = make_kernels([b"A" * 50], 1, 1, [])
    path = tmp_path / "p.pack"
    facts = replace(INFO, descriptors=DESCRIBED[:1])
    described(path, kernels, content, lambda _: facts)
    data = bytearray(path.read_bytes())
    size = struct.unpack_from("<Q", data, 16)[0]
    struct.pack_into("<I", data, 64 + pack.COUNTS.size + pack.GROUP_ROW.size + 60, named)
    data[24:56] = hashlib.sha256(data[64 : 64 + size]).digest()
    with pytest.raises(ArtifactError, match="has descriptors that do not exist"):
        pack.parse_pack(bytes(data), "p")
