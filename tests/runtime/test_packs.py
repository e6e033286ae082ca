"""Packs: where they are searched for, which are trusted, what a bad one says; variants."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import ffi
import packs
import pytest
from test_launch import arguments, work

from kiln_build.trust import ed25519, minisign
from kiln_build.trust.statement import Statement

FILE = packs.FILES["sm_90"]


@pytest.fixture
def away(built, tmp_path):
    """The toy family's library in a folder of its own, without packs."""
    lib = tmp_path / "away"
    lib.mkdir()
    for name in ("libkiln.so.0", "libkiln_toy.so", "libkiln_bare.so"):
        shutil.copy(built / "lib" / name, lib / name)
    return lib


@pytest.fixture
def opened(library, fake, away):
    """A function that opens a runtime with the family that has no packs beside it."""
    made = []

    def open_one(family="toy", **options):
        kiln = ffi.Kiln(library, fake, **options)
        made.append(kiln)
        kiln.register(ctypes.CDLL(str(away / f"libkiln_{family}.so")), family)
        return kiln

    yield open_one
    for kiln in made:
        kiln.__exit__()


def run(kiln, family="toy", **change):
    kiln.launch(work(kiln, arguments(**change), operation=f"{family}.mix"))


def put(folder: Path, data: bytes, name: str = FILE) -> str:
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(data)
    return str(folder)


def good() -> bytes:
    return packs.toy_pack("sm_90")


def test_not_found_says_where_it_looked(opened, away, tmp_path, monkeypatch):
    monkeypatch.setenv("KILN_PACK_PATH", "/nowhere:/never")
    kiln = opened(pack_path=f"{tmp_path}/a:{tmp_path}/b")
    with pytest.raises(ffi.Failure) as failure:
        run(kiln)
    assert failure.value.status == ffi.PACK_NOT_FOUND
    assert (
        f"there is no pack {FILE} in {tmp_path}/a, {tmp_path}/b, /nowhere, /never, {away}/kiln.images;"
        in failure.value.sentence
    )
    for folder in (tmp_path / "a", tmp_path / "b", "/nowhere", "/never"):
        assert (1, f"passed over: the folder {folder} does not exist") in kiln.messages
    assert not any("kiln.images" in message for level, message in kiln.messages if level == 1)
    # nothing is remembered of a search that failed
    put(tmp_path / "b", good())
    run(kiln)


def test_a_folder_that_is_too_long_is_said(opened, away, tmp_path):
    put(away / "kiln.images", good())
    kiln = opened(pack_path=f"/{'x' * 5000}:{tmp_path}/a")
    run(kiln)  # the next has it
    name = f"/{'x' * 59}... (5001 characters, too long for a path)"
    assert (1, f"passed over: the folder {name}") in kiln.messages
    (away / "kiln.images" / FILE).unlink()
    with pytest.raises(ffi.Failure) as failure:
        run(opened(pack_path=f"/{'x' * 5000}:{tmp_path}/a"))
    assert f"there is no pack {FILE} in {name}, {tmp_path}/a, {away}/kiln.images;" in failure.value.sentence


def test_order_of_the_search(opened, away, tmp_path, monkeypatch):
    folders = [tmp_path / "option", tmp_path / "environment", away / "kiln.images"]
    monkeypatch.setenv("KILN_PACK_PATH", str(folders[1]))
    for folder in reversed(folders):
        put(folder, good())
        kiln = opened(pack_path=str(folders[0]))
        run(kiln)
        assert (2, f"opened {folder / FILE}") in kiln.messages


def test_another_release(opened, away):
    other = packs.toy_pack("sm_90", release="9.9.9", families=("toy",))
    put(away / "kiln.images", other)
    with pytest.raises(ffi.Failure) as failure:
        run(opened())
    assert failure.value.status == ffi.PACK_MISMATCH
    assert failure.value.sentence == (
        f"{away}/kiln.images/{FILE} is of another release than the library: its release is 9.9.9 and its index digest "
        f"{packs.digest_of(other)}; the library's release is 1.2.3 and wants {packs.digest_of(good())}"
    )


def test_another_release_is_passed_over_for_the_right_one(opened, away, tmp_path):
    put(away / "kiln.images", good())
    folder = put(tmp_path / "old", packs.toy_pack("sm_90", release="9.9.9"))
    kiln = opened(pack_path=folder)
    run(kiln)
    assert any("passed over" in message and "9.9.9" in message for level, message in kiln.messages if level == 1)


def test_without_images_nothing_is_trusted_until_named(opened, tmp_path):
    data = good()
    folder = put(tmp_path / "p", data)
    with pytest.raises(ffi.Failure, match="is not trusted: this library was built without images") as failure:
        run(opened("bare", pack_path=folder), "bare")
    assert failure.value.status == ffi.PACK_MISMATCH and packs.digest_of(data) in failure.value.sentence
    run(opened("bare", pack_path=folder, trusted_packs=f"{'0' * 64},{packs.digest_of(data).upper()}"), "bare")
    with pytest.raises(ffi.Failure, match="is of another release"):
        run(opened("bare", pack_path=folder, trusted_packs="0" * 64), "bare")


# ---- signatures ------------------------------------------------------------------------------------------------------

SEED = bytes(range(32))
KEY = minisign.SecretKey(b"\1\2\3\4\5\6\7\x08", SEED)
LETTERS = KEY.public.spell()


def signed(folder: str, data: bytes, key: minisign.SecretKey = KEY, **said: str) -> Path:
    """Puts a signature beside the pack, as `kiln sign` makes it, but for what is said otherwise."""
    whole = {"kind": "pack", "release": "1.2.3", "file": FILE, "digest": packs.digest_of(data), **said}
    path = Path(folder) / f"{FILE}.minisig"
    path.write_bytes(minisign.sign(key, [data], Statement(**whole).spell()).spell())
    return path


def test_a_pack_that_is_signed(opened, tmp_path):
    """By its index alone, whichever of the keys it is by; without keys it is refused as before."""
    data = good()
    folder = put(tmp_path / "p", data)
    signed(folder, data)
    other = minisign.SecretKey(b"another!", SEED[::-1]).public.spell()
    for keys in (LETTERS, f"{other},{LETTERS}", f"{LETTERS},{other}"):
        run(opened("bare", pack_path=folder, trusted_keys=keys), "bare")
    with pytest.raises(ffi.Failure, match="is not trusted: this library was built without images"):
        run(opened("bare", pack_path=folder), "bare")


def test_a_signed_pack_of_another_release(opened, away, tmp_path):
    """Where its kernels fit the library's tables; the pack of the library's own release needs no signature."""
    data = packs.toy_pack("sm_90", release="9.9.9", families=("toy",))
    folder = put(tmp_path / "p", data)
    with pytest.raises(
        ffi.Failure, match=rf"is of another release than .*; {folder}/{FILE}.minisig does not exist, so"
    ):
        run(opened(pack_path=folder, trusted_keys=LETTERS))
    signed(folder, data, release="9.9.9")
    run(opened(pack_path=folder, trusted_keys=LETTERS))
    put(away / "kiln.images", good())
    run(opened(trusted_keys=LETTERS))


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"digest": "0" * 64}, "is of another pack"),
        ({"release": "1.2.4"}, "is of another pack"),
        ({"file": "nvidia-sm_80.pack"}, "is of another pack"),
        ({"kind": "tarball"}, "is of another pack"),
        ({"key": minisign.SecretKey(b"another!", SEED)}, "is by none of the keys of kiln_options.trusted_keys"),
        ({"key": minisign.SecretKey(KEY.id, SEED[::-1])}, "is damaged or forged"),
    ],
)
def test_a_signature_of_something_else(opened, tmp_path, said, why):
    data = good()
    folder = put(tmp_path / "p", data)
    signed(folder, data, **said)
    with pytest.raises(ffi.Failure, match=f"minisig {why}") as failure:
        run(opened("bare", pack_path=folder, trusted_keys=LETTERS), "bare")
    assert failure.value.status == ffi.PACK_MISMATCH


def test_each_bit_of_what_the_runtime_reads(library, opened, tmp_path):
    """The signature of the comment covers the first one; what kiln.h promises is that nothing else is accepted."""
    data = good()
    folder = put(tmp_path / "p", data)
    path = signed(folder, data)
    whole = path.read_bytes()
    begin = whole.index(b"\n") + 1
    for place in [*range(begin, len(whole) - 1, 3), begin - 1, 5]:
        wrong = bytearray(whole)
        wrong[place] ^= 1
        path.write_bytes(wrong)
        with pytest.raises(ffi.Failure, match="minisig is (not a signature|damaged or forged|by none of the keys)"):
            run(opened("bare", pack_path=folder, trusted_keys=LETTERS), "bare")
    for text in (b"", whole[:-50], whole + b"more\n", whole.replace(b"\n", b"\r\n"), whole + bytes(1 << 20)):
        path.write_bytes(text)
        with pytest.raises(ffi.Failure, match="minisig is not a signature of minisign's"):
            run(opened("bare", pack_path=folder, trusted_keys=LETTERS), "bare")
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ffi.Failure, match="minisig is not a signature of minisign's"):
        run(opened("bare", pack_path=folder, trusted_keys=LETTERS), "bare")
    path.unlink()
    path.write_bytes(whole)
    run(opened("bare", pack_path=folder, trusted_keys=LETTERS), "bare")


def test_s_has_one_spelling(opened, tmp_path):
    data = good()
    folder = put(tmp_path / "p", data)
    path = signed(folder, data)
    made = minisign.read_signature(path.read_bytes(), "x")
    s = int.from_bytes(made.comment_signature[32:], "little") + ed25519.ORDER
    more = dataclasses.replace(made, comment_signature=made.comment_signature[:32] + s.to_bytes(32, "little"))
    path.write_bytes(more.spell())
    with pytest.raises(ffi.Failure, match="minisig is damaged or forged"):
        run(opened("bare", pack_path=folder, trusted_keys=LETTERS), "bare")


def weak(text: str) -> str:
    return minisign.PublicKey(KEY.id, bytes.fromhex(text)).spell()


@pytest.mark.parametrize(
    "text",
    [
        "x", LETTERS[:-1], f"{LETTERS}A", f"{LETTERS} ", f"{LETTERS},,", LETTERS.replace("RW", "RX"),
        weak("00" * 32), weak("01" + "00" * 31), weak("ec" + "ff" * 30 + "7f"), weak("ed" + "ff" * 30 + "7f"),
        weak("ee" + "ff" * 30 + "ff"), weak("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85"),
        weak("c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a"),
    ],
)  # fmt: skip
def test_trusted_keys_must_be_keys(library, fake, text):
    with pytest.raises(ffi.Failure, match="is not a public key of minisign's; it must be the second line") as failure:
        ffi.Kiln(library, fake, trusted_keys=text)
    assert failure.value.status == ffi.ARGUMENT


@pytest.mark.parametrize("text", ["x", "0" * 63, "0" * 65, "g" * 64, f"{'0' * 64} "])
def test_trusted_packs_must_be_digests(library, fake, text):
    with pytest.raises(ffi.Failure, match="is not a digest; it must be 64 hexadecimal digits") as failure:
        ffi.Kiln(library, fake, trusted_packs=text)
    assert failure.value.status == ffi.ARGUMENT


def test_a_pack_of_another_target(opened, tmp_path):
    data = packs.toy_pack("sm_80")
    folder = put(tmp_path / "p", data)
    with pytest.raises(ffi.Failure, match="holds images for sm_80, not for sm_90") as failure:
        run(opened("bare", pack_path=folder, trusted_packs=packs.digest_of(data)), "bare")
    assert failure.value.status == ffi.PACK_MISMATCH


def test_another_layout(opened, tmp_path):
    images: list[packs.Image] = []
    kernels = packs.toy_kernels("bare", "sm_90", images)
    kernels[0].layout = bytes(32)
    data = packs.write("sm_90", "1.2.3", kernels, images)
    folder = put(tmp_path / "p", data)
    sentence = r"kernel main of bare.mix: the pack numbers its variants in another way"
    with pytest.raises(ffi.Failure, match=sentence) as f:
        run(opened("bare", pack_path=folder, trusted_packs=packs.digest_of(data)), "bare")
    assert f.value.status == ffi.PACK_MISMATCH
    data = packs.write("sm_90", "1.2.3", packs.toy_kernels("toy", "sm_90", images), images)
    put(tmp_path / "p", data)
    with pytest.raises(ffi.Failure, match=r"kernel main of bare.mix: the pack does not hold it"):
        run(opened("bare", pack_path=folder, trusted_packs=packs.digest_of(data)), "bare")


def damaged(data: bytes, offset: int, value: bytes) -> bytes:
    return data[:offset] + value + data[offset + len(value) :]


HEADER_DAMAGE = [
    (0, b"KILNPACX", ffi.PACK_CORRUPT, "it does not begin with KILNPACK"),
    (8, struct.pack("<I", 0), ffi.PACK_MISMATCH, "is a pack of format 0; Kiln 1.2.3 reads formats 1 to 2"),
    (8, struct.pack("<I", 3), ffi.PACK_MISMATCH, "is a pack of format 3; Kiln 1.2.3 reads formats 1 to 2"),
    (12, struct.pack("<I", 65), ffi.PACK_CORRUPT, "its header states another size of itself than 64"),
    (16, struct.pack("<Q", 1 << 62), ffi.PACK_CORRUPT, "its index reaches beyond the file"),
    (16, struct.pack("<Q", 3), ffi.PACK_CORRUPT, "its index reaches beyond the file"),
    (24, b"\0\0\0\0", ffi.PACK_CORRUPT, "its header states 00000000"),
    (56, b"\1", ffi.PACK_CORRUPT, "its header does not end in zeros"),
    (64, b"\xff", ffi.PACK_CORRUPT, "its index has the digest"),
]


@pytest.mark.parametrize("offset, value, status, sentence", HEADER_DAMAGE)
def test_damaged_header(opened, away, offset, value, status, sentence):
    folder = put(away / "kiln.images", damaged(good(), offset, value))
    with pytest.raises(ffi.Failure, match=sentence) as failure:
        run(opened())
    assert failure.value.status == status and f"{folder}/{FILE}" in failure.value.sentence


@pytest.mark.parametrize("size", [0, 10, 63, 64, 95, 96, 1000, -1])
def test_truncated(opened, away, size):
    put(away / "kiln.images", good()[:size])
    with pytest.raises(ffi.Failure, match=r"is corrupt: .*truncated") as failure:
        run(opened())
    assert failure.value.status == ffi.PACK_CORRUPT


def test_longer(opened, away):
    put(away / "kiln.images", good() + b"\0")
    with pytest.raises(ffi.Failure, match="the file is longer than its groups"):
        run(opened())


def test_damaged_group(opened, away, fake):
    """Checked when it is decoded, and before."""
    data = good()
    first = len(packs.index_of(data)) + 64
    put(away / "kiln.images", damaged(data, first + 20, bytes([data[first + 20] ^ 1])))
    kiln = opened()
    run(kiln, cols=128, flag=1, n=3)  # functional 3: another group
    with pytest.raises(
        ffi.Failure, match=r"is corrupt: group 0 has the digest [0-9a-f]{64}, the index states"
    ) as failure:
        run(kiln)
    assert failure.value.status == ffi.PACK_CORRUPT and fake.loaded == 1


def test_file_truncated_after_it_was_opened(opened, away):
    put(away / "kiln.images", good())
    kiln = opened()
    kiln.variants(target="sm_90")
    os.truncate(away / "kiln.images" / FILE, 2000)
    with pytest.raises(ffi.Failure, match="it was truncated after it was opened") as failure:
        run(kiln)
    assert failure.value.status == ffi.PACK_CORRUPT


def test_file_replaced_after_it_was_opened(opened, away, tmp_path):
    """As an upgrade does it, by rename: the open pack stays what it was."""
    folder = put(away / "kiln.images", good())
    kiln = opened()
    kiln.variants(target="sm_90")
    put(tmp_path, b"something else", "new")
    os.replace(tmp_path / "new", Path(folder) / FILE)
    run(kiln)


def test_a_folder_or_fifo_is_no_pack(opened, away):
    (away / "kiln.images" / FILE).mkdir(parents=True)
    with pytest.raises(ffi.Failure, match="there is no pack"):
        run(opened())
    (away / "kiln.images" / FILE).rmdir()
    os.mkfifo(away / "kiln.images" / FILE)
    with pytest.raises(ffi.Failure, match="there is no pack"):
        run(opened())


def image_row(data: bytes, number: int) -> int:
    groups = struct.unpack_from("<I", data, 64)[0]
    return 64 + 32 + 48 * groups + 96 * number


@pytest.mark.parametrize(
    "field, value, sentence",
    [
        (0, 99, "an image names a group that does not exist"),
        (1, 1 << 30, "an image reaches beyond its group"),
        (2, 0, "an image reaches beyond its group"),
        (2, 0xFFFFFFFF, "an image reaches beyond its group"),
        (3, 1 << 30, "an image has no symbol"),
        (4, 0, "an image is of an unknown kind"),
        (4, 3, "a slot's image does not exist"),
        (5, 0, "an impossible number of threads"),
        (5, 1025, "an impossible number of threads"),
        (13, 8, "profile scratch"),
        (14, 0, "an impossible cluster size"),
        (15, 1, "an image names descriptors that do not exist"),
        (16, 0, "an image does not have the digest that its index states"),
        (10, 9, "takes 9 parameters, the tables of kernel main give 10 and up to two hidden"),
        (10, 13, "takes 13 parameters, the tables of kernel main give 10"),
    ],
)
def test_trusted_and_wrong(opened, tmp_path, field, value, sentence):
    """Even an index whose digest is trusted is not believed."""
    data = bytearray(good())
    bare = packs.functionals().index(("fp16", 64, "false"))
    kernels_images = 48 - 12 + 2  # the images of toy.mix come first: main's that exist, and reduce's
    row = image_row(bytes(data), kernels_images + bare + 2)  # fp16, 64, false, 0, generic: 10 visible parameters
    struct.pack_into("<I", data, row + 4 * field, value)
    index = packs.index_of(bytes(data))
    data = packs.seal(index) + bytes(data[64 + len(index) :])
    folder = put(tmp_path / "p", data)
    with pytest.raises(ffi.Failure, match=sentence) as failure:
        run(opened("bare", pack_path=folder, trusted_packs=packs.digest_of(data)), "bare", x=0x10008)
    assert failure.value.status == ffi.PACK_CORRUPT


def named(reason: str | bytes) -> bytes:
    """The pack of the family `bare` in which one reason reads so."""
    images: list[packs.Image] = []
    kernels = packs.toy_kernels("bare", "sm_90", images)
    kernels[0].slots[13] = (*kernels[0].slots[13][:2], "R" * 8, kernels[0].slots[13][3])
    data = packs.write("sm_90", "1.2.3", kernels, images)
    text = reason.encode() if isinstance(reason, str) else reason
    index = packs.index_of(data)
    assert len(text) <= 8 and index.count(b"R" * 8) == 1
    return packs.seal(index.replace(b"R" * 8, text.ljust(8, b"."))) + data[64 + len(index) :]


def opens(opened, tmp_path, data: bytes) -> list[dict]:
    folder = put(tmp_path / "p", data)
    return opened("bare", pack_path=folder, trusted_packs=packs.digest_of(data)).variants(target="sm_90")


DESCRIPTOR = packs.Descriptor((64, 64))


@pytest.mark.parametrize(
    ("descriptor", "sentence"),
    [
        (packs.Descriptor((64, 64), element_type=13), "elements are of an unknown type"),
        (packs.Descriptor((64, 64), swizzle=4), "a descriptor's swizzle is unknown"),
        (packs.Descriptor((257, 64)), "a side of a descriptor's box is not 1 to 256"),
        (packs.Descriptor((0, 64)), "a side of a descriptor's box is not 1 to 256"),
        (packs.Descriptor((64, 4)), "are not a multiple of 16 bytes"),
        (packs.Descriptor((64, 128)), "are longer than its swizzle"),
        (packs.Descriptor((64, 32), swizzle=1), "are longer than its swizzle"),
        (packs.Descriptor(()), "a descriptor's rank is not 1 to 5"),
    ],
)
def test_wrong_descriptors(forged, descriptor, sentence):
    kiln = forged(lambda main, images: setattr(images[0], "descriptors", (DESCRIPTOR, descriptor)))
    with pytest.raises(ffi.Failure, match=sentence) as failure:
        run(kiln, "bare", x=0x10008)
    assert failure.value.status == ffi.PACK_CORRUPT


@pytest.mark.parametrize("largest", [packs.Descriptor((256,) * 4 + (64,)), packs.Descriptor((1, 256), swizzle=0)])
def test_largest_boxes(forged, largest):
    run(forged(lambda main, images: setattr(images[0], "descriptors", (largest,))), "bare", x=0x10008)


def test_descriptors_that_the_tables_do_not_know(forged):
    kiln = forged(lambda main, images: [setattr(image, "descriptors", (DESCRIPTOR,)) for image in images])
    with pytest.raises(ffi.Failure, match="those in the tables of kernel main in their number") as failure:
        run(kiln, "bare", x=0x10008)
    assert failure.value.status == ffi.PACK_CORRUPT


def described(change) -> bytes:
    """The pack of the family `bare` whose first image has a descriptor, its index changed."""
    images: list[packs.Image] = []
    kernels = packs.toy_kernels("bare", "sm_90", images)
    images[0].descriptors = (DESCRIPTOR,)
    data = packs.write("sm_90", "1.2.3", kernels, images)
    index = bytearray(packs.index_of(data))
    at = index.index(DESCRIPTOR.row())
    version = change(index, image_row(data, 0) - 64, at) or 2
    return packs.seal(bytes(index), version) + data[64 + len(index) :]


def with_word(offset: int, value: int):
    """Changes a word of the descriptor's row."""
    return lambda index, image, at: struct.pack_into("<I", index, at + offset, value)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda index, image, at: 1, "it is of format 1 and has descriptors"),
        (lambda index, image, at: struct.pack_into("<I", index, image + 60, 1 << 4 | 1), "that do not exist"),
        (lambda index, image, at: struct.pack_into("<I", index, image + 60, 1 << 4), "that do not exist"),
        (lambda index, image, at: struct.pack_into("<I", index, image + 60, 2), "that do not exist"),
        (lambda index, image, at: struct.pack_into("<I", index, image + 60, 0xFFFFFFF1), "that do not exist"),
        (lambda index, image, at: struct.pack_into("<I", index, image + 16, 2), "that do not exist"),
        (lambda index, image, at: struct.pack_into("<I", index, 28, 2), "does not have the size that its counts give"),
        (lambda index, image, at: struct.pack_into("<I", index, 28, 0), "does not have the size that its counts give"),
        (with_word(0, 6), "a descriptor's rank is not 1 to 5"),
        (with_word(12, 1), "does not have zeros where it must"),
        (with_word(24, 2), "is not 1 behind its rank"),
        (with_word(36, 1), "does not have zeros where it must"),
    ],
)
def test_wrong_descriptor_rows(opened, tmp_path, change, sentence):
    with pytest.raises(ffi.Failure, match=sentence) as failure:
        opens(opened, tmp_path, described(change))
    assert failure.value.status == ffi.PACK_CORRUPT


def test_a_pack_with_descriptors_is_read(opened, tmp_path):
    assert len(opens(opened, tmp_path, described(lambda *_: None))) > 1


@pytest.mark.parametrize("text", ["\u00a0", "\u00e9", "\u4e2d", "\U0001f600", " ~", "..."])
def test_strings_are_text(opened, tmp_path, text):
    variants = opens(opened, tmp_path, named(text))
    assert any(v["unavailable"] == text.encode().ljust(8, b".") for v in variants)


@pytest.mark.parametrize(
    "text",
    [
        "\x01", "\t", "\r", "\n", "\x1b[31m", "\x1f", "\x7f", "\x80", "\x85", "\x9b31m", "\x9f",
        b"\x80", b"\xc0\xaf", b"\xff", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b".......\xc3",
    ],
)  # fmt: skip
def test_strings_that_a_terminal_would_obey(opened, tmp_path, text):
    """A reason ends up in a sentence: no controls of ASCII nor of Latin-1, no line of its own, nothing but UTF-8."""
    with pytest.raises(ffi.Failure, match="is corrupt: its strings are not text") as failure:
        opens(opened, tmp_path, named(text))
    assert failure.value.status == ffi.PACK_CORRUPT


def test_only_names_are_lists(opened, tmp_path):
    """The newlines of a kernel's names are no licence for what is told by the same offset."""
    images: list[packs.Image] = []
    data = packs.write("sm_90", "1.2.3", packs.toy_kernels("bare", "sm_90", images), images)
    index = bytearray(packs.index_of(data))
    groups, rows, kernels, _ = struct.unpack_from("<4I", index)
    kernel = 32 + 48 * groups + 96 * rows
    slot = kernel + 64 * kernels + 48 * 13
    (names,) = struct.unpack_from("<I", index, kernel + 28)
    (reason,) = struct.unpack_from("<I", index, slot + 8)
    tail = data[64 + len(index) :]
    assert opens(opened, tmp_path, data)
    for offset, sentence in ((names, "its strings are not text"), (reason + 1, "a slot's reason does not exist")):
        struct.pack_into("<I", index, slot + 8, offset)
        with pytest.raises(ffi.Failure, match=f"is corrupt: {sentence}") as failure:
            opens(opened, tmp_path, packs.seal(bytes(index)) + tail)
        assert failure.value.status == ffi.PACK_CORRUPT


def test_an_index_beyond_reason_is_not_read(opened, away):
    """Its size is the header's word; a sparse file makes room for it."""
    folder = put(away / "kiln.images", damaged(good(), 16, struct.pack("<Q", (64 << 20) + 8)))
    os.truncate(Path(folder) / FILE, 80 << 20)
    with pytest.raises(ffi.Failure, match="is corrupt: its index is larger than 64 MiB") as failure:
        run(opened())
    assert failure.value.status == ffi.PACK_CORRUPT


def test_a_group_is_not_stored_in_more_than_it_can_need(opened, tmp_path):
    """The size of a group in the file is bounded by what it decodes to, before room is made for either."""
    data = good()
    index = bytearray(packs.index_of(data))
    last = 32 + 48 * (struct.unpack_from("<I", index)[0] - 1)
    offset, _, decoded = struct.unpack_from("<QII", index, last)
    for stored, sound in ((decoded, True), (4 * decoded + 2048, False)):
        struct.pack_into("<QII", index, last, offset, stored, decoded)
        forged = (packs.seal(bytes(index)) + data[64 + len(index) :])[:offset].ljust(offset + stored, b"\0")
        if sound:
            assert opens(opened, tmp_path, forged)
            continue
        with pytest.raises(ffi.Failure, match="takes more bytes than its decoded size can need") as failure:
            opens(opened, tmp_path, forged)
        assert failure.value.status == ffi.PACK_CORRUPT


def test_functionals_are_told_whole(library, fake, built, tmp_path):
    """However long the names of choices are."""
    import nativebuild

    long = "w" * 700
    source = (nativebuild.HERE / "toy_family.cc").read_text()
    assert source.count('"width"') == 1
    (tmp_path / "wordy.cc").write_text(source.replace('"width"', f'"{long}"'))
    wordy = tmp_path / "libwordy.so"
    nativebuild.run(["c++", "-std=c++17", "-O0", "-fPIC", "-shared", "-DTOY_NAME=wordy", "-I", built / "include",
                     tmp_path / "wordy.cc", "-o", wordy])  # fmt: skip
    data = packs.toy_pack("sm_90", families=("wordy",))
    with ffi.Kiln(library, fake, pack_path=put(tmp_path / "p", data), trusted_packs=packs.digest_of(data)) as kiln:
        kiln.register(ctypes.CDLL(str(wordy)), "wordy")
        told = {v["functional"].decode() for v in kiln.variants("wordy.mix", "sm_90") if v["kernel"] == b"main"}
        assert told == {f"dtype={d} {long}={w} flag={f}" for d, w, f in packs.functionals()}
        (variant,) = kiln.explain(work(kiln, arguments(), operation="wordy.mix"))
        assert variant["functional"].decode() == f"dtype=fp16 {long}=64 flag=false"


def test_group_that_is_no_frame(opened, tmp_path):
    """Right digest, wrong contents: not zstd, a shorter and a longer frame, two frames."""
    import hashlib

    import zstandard

    data = good()
    index = packs.index_of(data)
    groups = struct.unpack_from("<I", index, 0)[0]
    rows = [list(struct.unpack_from("<QII32s", index, 32 + 48 * i)) for i in range(groups)]
    frame = data[rows[0][0] : rows[0][0] + rows[0][1]]
    raw = zstandard.ZstdDecompressor().decompress(frame)
    compress = zstandard.ZstdCompressor().compress
    for wrong in (
        b"\0" * 50,
        compress(raw[:-1]),
        compress(raw + b"\0"),
        frame + compress(b""),
        frame[:-1],
        frame + b"x",
    ):
        offset, body, parts = 64 + len(index), b"", []
        for i, (_, stored, decoded, _) in enumerate(rows):
            bytes_ = wrong if i == 0 else data[rows[i][0] : rows[i][0] + stored]
            parts.append(struct.pack("<QII32s", offset, len(bytes_), decoded, hashlib.sha256(bytes_).digest()))
            offset += len(bytes_)
            body += bytes_
        forged = packs.seal(index[:32] + b"".join(parts) + index[32 + 48 * groups :]) + body
        folder = put(tmp_path / "p", forged)
        with pytest.raises(ffi.Failure, match="a group is not the one zstd frame that its index states") as failure:
            run(opened("bare", pack_path=folder, trusted_packs=packs.digest_of(forged)), "bare")
        assert failure.value.status == ffi.PACK_CORRUPT


def test_one_open_pack_serves_two_families(built, library, fake, toy, bare):
    trusted = ",".join(packs.digest_of(packs.toy_pack(target)) for target in packs.FILES)
    with ffi.Kiln(library, fake, trusted_packs=trusted) as kiln:
        kiln.register(toy)
        kiln.register(bare, "bare")
        run(kiln)
        run(kiln, "bare")
        assert len([m for _, m in kiln.messages if m.startswith("opened ")]) == 1
        assert fake.loaded == 2


def test_variants_need_no_driver(library, toy):
    with ffi.Kiln(library, None) as kiln:  # no resolver, and this machine has no driver
        kiln.register(toy)
        everything = kiln.variants()
        by_target = {target: kiln.variants("toy.mix", target) for target in packs.FILES}
    assert [len(by_target[target]) for target in packs.FILES] == [26, 50, 26, 2]
    assert len(everything) == 104
    variant = by_target["sm_90"][7]
    assert variant["key"].decode() == packs.key_of("toy", "sm_90", "main", ("fp16", 64, "true"), 0, "pointers").hex()
    assert variant["functional"] == b"dtype=fp16 width=64 flag=true"
    assert variant["configuration"] == b"BLOCK=64 SPLIT=1" and variant["specialization"] == b"pointers"
    assert (variant["registers"], variant["shared_bytes"], variant["threads"]) == (40, 50000, 128)
    assert variant["unavailable"] is None and variant["has_ptx"] == 0
    waived = by_target["sm_90"][12]
    assert waived["unavailable"] == b"functional 2 is waived" and waived["registers"] == 0
    assert all(variant["has_ptx"] for variant in by_target["sm_80"] if variant["kernel"] == b"main")


def test_variants_errors(kiln, library, fake, opened):
    for operation, target, status, sentence in [
        ("toy.max", None, ffi.NOT_FOUND, "there is no operation toy.max"),
        (None, "sm_70", ffi.NOT_FOUND, "no registered family has a target sm_70; there are "),
    ]:
        with pytest.raises(ffi.Failure, match=sentence) as failure:
            kiln.variants(operation, target)
        assert failure.value.status == status
    lost = opened()
    with pytest.raises(ffi.Failure, match="no pack of any target was found"):
        lost.variants()
    with pytest.raises(ffi.Failure, match=f"there is no pack {FILE}"):
        lost.variants(target="sm_90")
    with ffi.Kiln(library, fake) as empty, pytest.raises(ffi.Failure, match="no family is registered"):
        empty.variants()


def test_a_damaged_pack_hides_no_other(opened, away):
    """All that are whole are shown; then the damaged are told of, each by its name."""
    for target, name in packs.FILES.items():
        put(away / "kiln.images", packs.toy_pack(target), name)
    kiln = opened()
    for name in (FILE, packs.FILES["gfx942"]):
        put(away / "kiln.images", b"x" * 4096, name)
    seen = []
    visit = ffi.VariantFn(lambda variant, _: seen.append(variant.contents.target) or 0)
    assert kiln.library.c.kiln_variants(kiln.handle, None, None, visit, None) == ffi.PACK_CORRUPT
    assert set(seen) == {b"sm_80", b"gfx1100"}
    sentence = kiln.library.c.kiln_error().decode()
    assert sentence.count("kiln.images/") == 2 and sentence.count("; ") == 1
    assert FILE in sentence and packs.FILES["gfx942"] in sentence
    with pytest.raises(ffi.Failure) as failure:
        kiln.variants(target="sm_90")
    assert FILE in failure.value.sentence and packs.FILES["gfx942"] not in failure.value.sentence
    assert len(kiln.variants(target="sm_80")) == 26
    put(away / "kiln.images", good())
    put(away / "kiln.images", packs.toy_pack("gfx942"), packs.FILES["gfx942"])
    assert len(kiln.variants()) == 104, "nothing is remembered of them"


def test_visits_stop_when_told(kiln):
    seen = []
    visit = ffi.VariantFn(lambda variant, _: seen.append(1) or len(seen) == 3)
    assert kiln.library.c.kiln_variants(kiln.handle, None, None, visit, None) == ffi.OK
    assert len(seen) == 3


def test_folder_of_the_library_is_absolute(built, tmp_path):
    """Registered by a relative path, searched after the process has changed its folder."""
    script = f"""
import ctypes, os, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import ffi
os.chdir({str(built / "lib")!r})
library = ffi.Library(ffi.Path({str(built / "lib")!r}))
with ffi.Kiln(library, None) as kiln:
    kiln.register(ctypes.CDLL("./libkiln_toy.so"))
    os.chdir("/")
    print(len(kiln.variants()))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "104\n", done.stderr
