"""`kiln sign` and `kiln verify`, as users run them: what is whole passes, and every change, of whatever file, is
refused by a sentence that names it. `minisign -V` is asked too about a signature, its key or the signed file."""

from __future__ import annotations

import functools
import getpass
import hashlib
import json
import os
import select
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import deflate
import pytest

import minisign_keys
import shared
from kiln_build.artifacts import manifest_model, reader
from kiln_build.base import tar, tarball
from kiln_build.base.wheel_file import Wheel, write_wheel
from kiln_build.cli import main
from kiln_build.release import build, portable, release
from kiln_build.trust import check, minisign, secret, statement
from kiln_build.trust.statement import Statement
from old_pythons import find
from small_release import ROOT, VERSION, small_release

NAME = release.tarball_name(VERSION)
MANIFEST_SIGNATURE = NAME.replace(".tar.gz", ".manifest.json.minisig")
INSPECTOR = f"kiln-inspect-{VERSION}.pyz"
SIGNED = {f"{NAME}.sha256": f"{NAME}.sha256.minisig", INSPECTOR: f"{INSPECTOR}.minisig"}


@functools.cache
def signed_release() -> Path:
    """A folder with the small release, signed, its keys, those of another, and `kiln/`, unpacked, signed beside."""
    return shared.once("signed release", _make)


def _make(folder: Path) -> None:
    small = small_release()
    for path in (small.tarball, statement.checksum_of(small.tarball)):
        shutil.copy(path, folder)
    keys = minisign_keys.make(folder)
    minisign_keys.make(folder, "other")
    assert main(["sign", str(folder / NAME), "--key", str(keys.secret)]) == 0
    subprocess.run(["tar", "-xzf", folder / NAME], cwd=folder, check=True)
    shutil.copy(folder / MANIFEST_SIGNATURE, statement.signature_of(folder / "kiln" / manifest_model.PATH))


@pytest.fixture
def place(tmp_path) -> Path:
    """A copy, to be damaged."""
    return Path(shutil.copytree(signed_release(), tmp_path / "there", symlinks=True))


@pytest.fixture
def verify(capsys):
    """Runs `kiln verify`; gives the exit code and what was printed."""
    signed_release()

    def run(artifact: Path, *words: str, key: str = "kiln.pub") -> tuple[int, str]:
        capsys.readouterr()
        code = main(["verify", str(artifact), "--key", str(signed_release() / key), *words])
        out, err = capsys.readouterr()
        assert (code == 0) == (err == "") and (not out or code == 0 or "--json" in words)
        return code, out or err

    return run


def says(file: Path, signature: Path | None = None, key: str = "kiln.pub") -> bool | None:
    """What `minisign -V` says; None where there is none."""
    if not minisign_keys.has_minisign():
        return None
    return minisign_keys.accepted(signed_release() / key, file, signature or statement.signature_of(file))


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)


def key_of(name: str = "kiln") -> minisign.SecretKey:
    path = signed_release() / f"{name}.key"
    return minisign.read_secret_key(path.read_bytes(), b"", path.name)


def put(path: Path, said: Statement, to: Path | None = None) -> None:
    """A signature as whoever has the key could make it."""
    made = minisign.sign(key_of(), [path.read_bytes()], said.spell())
    (to or statement.signature_of(path)).write_bytes(made.spell())


# ---- what is whole ---------------------------------------------------------------------------------------------------


def test_a_signed_tarball(verify):
    code, said = verify(signed_release() / NAME)
    assert code == 0 and said.startswith(f"Kiln {VERSION}, signed by the key ")
    assert said.endswith("\nwhole: 18 files, 3 groups, 12 images checked\n")
    assert [line.split()[1] for line in said.splitlines()[3:6]] == ["tarball", "manifest", "inspector"]
    document = json.loads(verify(signed_release() / NAME, "--json")[1])
    assert (document["file"], document["release"], len(document["signed"])) == (NAME, VERSION, 3)
    assert document["verified"]["images"] == 12 and document["signed"][0]["kind"] == "tarball"


def test_minisign_accepts_the_same():
    minisign_keys.need_minisign()
    for file in SIGNED:
        assert says(signed_release() / file)
    assert says(signed_release() / "kiln" / manifest_model.PATH)


def test_an_unpacked_release(verify):
    code, said = verify(signed_release() / "kiln")
    assert code == 0 and "whole: 18 files" in said and "note" not in said
    assert verify(signed_release())[0] == 0, "the folder that kiln/ lies in"
    alone = signed_release() / MANIFEST_SIGNATURE
    assert verify(small_release().stage, "--signature", str(alone))[0] == 0


def test_the_program_beside_the_tarball_is_the_one_inside(verify):
    assert (signed_release() / INSPECTOR).read_bytes() == portable.inspector(VERSION)
    code, said = verify(signed_release() / INSPECTOR)
    assert code == 0 and said.endswith("\nwhole\n")


def test_equal_inputs_give_equal_signatures(place, capsys):
    before = {path.name: path.read_bytes() for path in place.iterdir() if path.is_file()}
    assert main(["sign", str(place / NAME), "--key", str(place / "kiln.key")]) == 0
    printed = capsys.readouterr().out.split()
    assert sorted(Path(path).name for path in printed) == sorted([*SIGNED.values(), MANIFEST_SIGNATURE, INSPECTOR])
    assert before == {path.name: path.read_bytes() for path in place.iterdir() if path.is_file()}
    assert (place / NAME).read_bytes() == small_release().tarball.read_bytes()


# ---- what was changed ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [NAME, *SIGNED, *SIGNED.values(), MANIFEST_SIGNATURE])
def test_a_byte_of_each_file_beside_the_tarball(place, verify, name):
    flip(place / name, len((place / name).read_bytes()) * 3 // 5)
    code, said = verify(place / NAME)
    assert code == (6 if name == NAME else 12) and name in said, said
    for file, signature in SIGNED.items():
        assert says(place / file) in (None, name not in (file, signature))
    if name == MANIFEST_SIGNATURE:
        assert not says(place / "kiln" / manifest_model.PATH, place / name)


def test_a_byte_of_each_file_of_a_folder(place, verify):
    files = [path for path in (place / "kiln").rglob("*") if path.is_file() and not path.is_symlink()]
    assert len(files) == 19, "18 and the signature, with the manifest, less a link"
    for path in files:
        whole = path.read_bytes()
        flip(path, len(whole) * 3 // 5)
        code, said = verify(place / "kiln")
        assert code == (12 if path.name.startswith("manifest.json") else 6), said
        assert (path.name if code == 12 else path.relative_to(place / "kiln").as_posix()) in said, said
        manifest = place / "kiln" / manifest_model.PATH
        assert says(manifest) in (None, code == 6)
        path.write_bytes(whole)
    assert verify(place / "kiln")[0] == 0


def test_each_byte_of_what_is_signed_counts(place, verify):
    """Of the .sha256 all, of its signature all but the first line."""
    checksum = place / f"{NAME}.sha256"
    signature = statement.signature_of(checksum)
    for path, begin in ((checksum, 0), (signature, signature.read_bytes().index(b"\n") + 1)):
        whole = path.read_bytes()
        for number in range(begin, len(whole) - 1, 7):
            flip(path, number)
            code, said = verify(place / NAME)
            assert code == 12 and f"{NAME}.sha256" in said, (number, said)
            path.write_bytes(whole)
    assert verify(place / NAME)[0] == 0


def test_unsigned(verify, tmp_path):
    shutil.copy(small_release().tarball, tmp_path)
    code, said = verify(tmp_path / NAME)
    assert code == 12 and f"{NAME}.sha256 is missing: what is signed is this file" in said
    shutil.copy(statement.checksum_of(small_release().tarball), tmp_path)
    code, said = verify(tmp_path / NAME)
    assert code == 12 and f"{NAME}.sha256.minisig is missing, so nothing says who made {NAME}.sha256" in said
    code, said = verify(small_release().stage)
    assert code == 12 and "manifest.json.minisig is missing" in said
    code, said = verify(small_release().packs["sm_90"])
    assert code == 12 and "nvidia-sm_90.pack.minisig is missing" in said


def test_another_key(place, verify):
    ours = minisign.read_public_key((place / "kiln.pub").read_bytes(), "")
    other = minisign.read_public_key((place / "other.pub").read_bytes(), "")
    for artifact in (place / NAME, place / "kiln", place / INSPECTOR):
        code, said = verify(artifact, key="other.pub")
        assert code == 12 and f"is by the key {ours.name}, and you trust {other.name};" in said
        assert verify(artifact, "--key", str(place / "kiln.pub"), key="other.pub")[0] == 0, "both are trusted"
    assert not says(place / f"{NAME}.sha256", key="other.pub")
    # Another key that says that it is ours.
    forged = minisign.PublicKey(ours.id, other.key)
    (place / "forged.pub").write_text(f"untrusted comment: x\n{forged.spell()}\n")
    code, said = verify(place / NAME, key=str(place / "forged.pub"))
    assert code == 12 and f"is not the signature of this {NAME}.sha256 by the key {ours.name}" in said


def test_after_a_rotation(place, verify):
    """A release that was signed again: the old key alone no longer takes it, the new one does."""
    assert main(["sign", str(place / NAME), "--key", str(place / "other.key")]) == 0
    verify(place / NAME, key="other.pub")
    code, said = verify(place / NAME)
    assert code == 12 and "is by the key" in said
    assert says(place / f"{NAME}.sha256") in (None, False)
    assert says(place / f"{NAME}.sha256", key="other.pub") in (None, True)


def test_a_truncated_signature(place, verify):
    path = place / f"{NAME}.sha256.minisig"
    whole = path.read_bytes()
    ends = [0, 1, whole.index(b"\n") + 1, whole.index(b"\n") + 50, whole.index(b"trusted", 30), len(whole) - 20]
    for end in ends:
        path.write_bytes(whole[:end])
        code, said = verify(place / NAME)
        assert code == 12 and f"{path.name} is not a signature of minisign's: its" in said.replace(": it has", ": its")
        assert not says(place / f"{NAME}.sha256")


def test_a_huge_signature(place, verify):
    with (place / f"{NAME}.sha256.minisig").open("ab") as file:
        file.truncate(1 << 40)
    code, said = verify(place / NAME)
    assert code == 12 and "has more than 8192 bytes" in said


def test_a_pipe_for_a_signature(place, verify):
    path = place / f"{NAME}.sha256.minisig"
    path.unlink()
    os.mkfifo(path)
    code, said = verify(place / NAME)
    assert code == 6 and "is not a file" in said


def test_a_pipe_for_a_tarball(place, verify):
    (place / NAME).unlink()
    os.mkfifo(place / NAME)
    code, said = verify(place / NAME)
    assert code == 6 and f"{NAME} is not a file" in said


# ---- names -----------------------------------------------------------------------------------------------------------


def test_an_older_release_under_a_newer_name(place, verify):
    """By whoever has no key: all files of one release, renamed."""
    newer = release.tarball_name("0.2.0")
    for path in [path for path in place.iterdir() if path.name.startswith("kiln-")]:
        path.rename(place / path.name.replace(VERSION, "0.2.0"))
    code, said = verify(place / newer)
    assert code == 12 and f"{newer}.sha256.minisig was made for {NAME}.sha256 (a tarball of release {VERSION})" in said
    assert says(place / f"{newer}.sha256") in (None, True), "to minisign a file has no name"
    text = (place / f"{newer}.sha256").read_text()
    (place / f"{newer}.sha256").write_text(text.replace(NAME, newer))
    code, said = verify(place / newer)
    assert code == 12 and f"is not the signature of this {newer}.sha256" in said
    assert says(place / f"{newer}.sha256") in (None, False)


def test_a_release_that_one_asks_for(place, verify):
    for artifact in (place / NAME, place / "kiln"):
        assert verify(artifact, "--release", VERSION)[0] == 0
        code, said = verify(artifact, "--release", "0.2.0")
        assert code == 12 and f"is of release {VERSION}, and not of 0.2.0, which you asked for" in said


def test_a_signature_is_of_one_kind(place, verify):
    """A file's signature, or one by the same key, does not pass beside another."""
    shutil.copy(place / f"{INSPECTOR}.minisig", place / MANIFEST_SIGNATURE)
    code, said = verify(place / NAME)
    assert code == 12 and f"{MANIFEST_SIGNATURE} is not the signature of this manifest.json" in said
    checksum = place / f"{NAME}.sha256"
    put(checksum, Statement("wheels", VERSION, checksum.name))
    code, said = verify(place / NAME)
    assert code == 12 and f"not for this {checksum.name} as a tarball" in said
    put(checksum, Statement("tarball", "0.2.0", checksum.name))
    code, said = verify(place / NAME)
    assert code == 12 and f"{NAME} is not called after the release 0.2.0, of which its signature is" in said
    manifest = place / "kiln" / manifest_model.PATH
    put(manifest, Statement("manifest", "0.2.0", manifest.name))
    code, said = verify(place / "kiln")
    assert code == 12 and f"is of release {VERSION}; its signature says 0.2.0" in said


@pytest.mark.parametrize(
    "comment",
    [
        "",
        "kiln",
        "timestamp:1700000000\tfile:x\thashed",
        "kiln tarball 0.1.0b ../x",
        "kiln x 1 y",
        f"kiln pack 0.1.0b {NAME}.sha256",
        f"kiln tarball 0.1.0b {NAME}.sha256 " + "0" * 64,
    ],
)
def test_a_comment_that_binds_nothing(place, verify, comment):
    """As `minisign -S` writes it by itself."""
    checksum = place / f"{NAME}.sha256"
    made = minisign.sign(key_of(), [checksum.read_bytes()], comment)
    statement.signature_of(checksum).write_bytes(made.spell())
    code, said = verify(place / NAME)
    assert code == 12 and "does not say which file of which release it is of" in said
    assert says(checksum) in (None, True)


@pytest.mark.parametrize(
    "text", ["{d}  {n}", "{d} {n}\n", "{d}  {n}\n{d}  x\n", "{D}  {n}\n", "{d}  /x/{n}\n", "\n", ""]
)
def test_a_list_that_is_none(place, verify, text):
    """Though it is signed."""
    checksum = place / f"{NAME}.sha256"
    digest = hashlib.sha256((place / NAME).read_bytes()).hexdigest()
    checksum.write_text(text.format(d=digest, D=digest.upper().replace("0", "A"), n=NAME))
    put(checksum, Statement("tarball", VERSION, checksum.name))
    code, said = verify(place / NAME)
    assert code == 6 and f"{checksum.name} is signed, but not a list of digests" in said


# ---- what lies behind the signature ----------------------------------------------------------------------------------


def test_nothing_is_parsed_before(place, verify, monkeypatch):
    """Neither the tarball nor the manifest, where a signature or a digest does not hold."""

    def refuse(*_arguments: object) -> None:
        raise AssertionError("it was parsed")

    monkeypatch.setattr(reader, "open_artifact", refuse)
    monkeypatch.setattr(manifest_model, "read", refuse)
    monkeypatch.setattr(tarball, "members", refuse)
    flip(place / NAME, 1000)
    assert verify(place / NAME)[0] == 6
    flip(place / "kiln" / manifest_model.PATH, 1000)
    assert verify(place / "kiln")[0] == 12
    assert verify(place / "kiln", key="other.pub")[0] == 12
    flip(place / f"{NAME}.sha256", 3)
    assert verify(place / NAME)[0] == 12


def sealed(place: Path, data: bytes) -> Path:
    """A tarball of these bytes, with a digest and a signature that hold: as if the key's owner had been careless."""
    path = place / NAME
    path.write_bytes(data)
    checksum = statement.checksum_of(path)
    checksum.write_text(f"{hashlib.sha256(data).hexdigest()}  {NAME}\n")
    put(checksum, Statement("tarball", VERSION, checksum.name))
    return path


def header(name: str, size: int) -> bytes:
    return tar.header(tar.Member(name, "file", size), tarball.DIALECT)


@pytest.mark.parametrize(
    "where", ["a gzip member behind the end", "a tar behind the end", "a hidden file", "a second copy"]
)
def test_hidden_members(place, verify, where):
    """What another unpacker would find, or another reader would not."""
    whole = (place / NAME).read_bytes()
    plain = b"".join(tarball.archive(small_release().stage))
    more = header("kiln/hidden", 512) + b"x" * 512
    if where == "a gzip member behind the end":
        data = whole + bytes(deflate.gzip_compress(more + bytes(1024), 6))
    elif where == "a tar behind the end":
        data = bytes(deflate.gzip_compress(plain + more + bytes(1024), 6))
    else:
        name = "kiln/.hidden" if where == "a hidden file" else f"kiln/{manifest_model.PATH}"
        try:
            one = header(name, 512)
        except ValueError:
            one = header("kiln/hidden", 512).replace(b"kiln/hidden\0", b"kiln/.hidde\0")
        body = plain.rstrip(b"\0")
        body += bytes(-len(body) % 512) + one + b"x" * 512
        data = bytes(deflate.gzip_compress(body + tar.end(len(body)), 6))
    code, said = verify(sealed(place, data))
    assert code == 6 and NAME in said, said
    assert says(place / f"{NAME}.sha256") in (None, True), "the signature holds: the archive is refused"


def test_folders_with_more_than_the_release(place, verify):
    root = place / "kiln"
    for name in ("lib/libextra.so", ".hidden", "share/kiln/manifest.json.minisig2", "lib/kiln.images/x.pack.minisig"):
        (root / name).write_text("x")
        code, said = verify(root)
        assert code == 6 and f"{name} exists, but is not in the manifest" in said.replace("'", "")
        (root / name).unlink()
    (root / "lib/empty").mkdir()
    code, said = verify(root)
    assert code == 6 and "the folder lib/empty exists" in said
    (root / "lib/empty").rmdir()
    (root / "lib/out").symlink_to("/etc")
    assert verify(root)[0] == 6
    (root / "lib/out").unlink()
    (root / "lib/libkiln.so.0").rename(root / "lib/libkiln_moved.so")
    code, said = verify(root)
    assert code == 6 and "lib/libkiln.so.0 is missing" in said
    (root / "lib/libkiln_moved.so").rename(root / "lib/libkiln.so.0")


def test_other_signatures_in_a_folder_hold_too(place, verify):
    """Of packs, for the runtime; of the manifest, where another file with its signature was named."""
    root, manifest = place / "kiln", place / "kiln" / manifest_model.PATH
    pack = root / "lib/kiln.images/nvidia-sm_90.pack"
    beside = statement.signature_of(pack)
    assert main(["sign", str(pack), "--key", str(place / "kiln.key")]) == 0
    code, said = verify(root)
    assert code == 0 and [line.split()[1] for line in said.splitlines()[3:5]] == ["manifest", "pack"]
    put(pack, Statement("pack", VERSION, pack.name, "0" * 64))
    code, said = verify(root)
    assert code == 12 and f"{pack.name} does not have the index that its signature names to the runtime" in said
    put(pack, Statement("pack", "0.2.0", pack.name, "0" * 64))
    code, said = verify(root)
    assert code == 12 and f"{pack.name} is of release 0.2.0, and not of {VERSION}" in said
    beside.write_text("x")
    code, said = verify(root)
    assert code == 12 and f"{beside.name} is not a signature of minisign's" in said
    beside.unlink()
    named = ("--signature", str(place / MANIFEST_SIGNATURE))
    assert verify(root, *named)[0] == 0
    flip(statement.signature_of(manifest), 100)
    code, said = verify(root, *named)
    assert code == 12 and "manifest.json.minisig" in said
    statement.signature_of(manifest).unlink()
    assert verify(root, *named)[0] == 0


# ---- what is exchanged while it is read ------------------------------------------------------------------------------


@pytest.mark.parametrize("read", ["open_artifact", "entries"])
def test_a_tarball_that_is_exchanged(place, tmp_path, verify, monkeypatch, read):
    """For another that is whole, with its .sha256, once the digest of the signed one has been found right."""
    stage = Path(shutil.copytree(small_release().stage, tmp_path / "stage", symlinks=True))
    (stage / "include/kiln/kiln.h").write_text("changed")
    path = stage / manifest_model.PATH
    document = json.loads(path.read_text())
    (row,) = (row for row in document["files"] if row["path"] == "include/kiln/kiln.h")
    row |= {"bytes": 7, "sha256": hashlib.sha256(b"changed").hexdigest()}
    path.write_bytes(manifest_model.encode_document(document))
    (tmp_path / "other").mkdir()
    other = release.make_release(stage, tmp_path / "other", VERSION)
    assert main(["inspect", str(other), "--verify"]) == 0
    owner = reader.Release if read == "entries" else reader
    original = getattr(owner, read)

    def exchanged(*words: object, **named: object) -> object:
        for file in (other, statement.checksum_of(other)):
            (place / file.name).unlink()
            shutil.copy(file, place)
        for file in (place / MANIFEST_SIGNATURE, place / INSPECTOR):
            file.unlink()
        return original(*words, **named)

    monkeypatch.setattr(owner, read, exchanged)
    code, said = verify(place / NAME)
    assert code == 6 and f"{NAME} was changed after its digest had been found right" in said


def test_a_manifest_that_is_exchanged(place, verify, monkeypatch):
    entries, path = reader.Release.entries, place / "kiln" / manifest_model.PATH

    def exchanged(opened: reader.Release, *words: object) -> object:
        path.write_text("{}")
        return entries(opened, *words)

    monkeypatch.setattr(reader.Release, "entries", exchanged)
    code, said = verify(place / "kiln")
    assert code == 6 and f"{manifest_model.PATH} was changed while the release was read" in said


def test_a_pack_that_is_exchanged(tmp_path, verify, monkeypatch):
    pack = Path(shutil.copy(small_release().packs["sm_90"], tmp_path))
    assert main(["sign", str(pack), "--key", str(signed_release() / "kiln.key")]) == 0
    whole, data = check.verify.verify, pack.read_bytes()
    index = data[64 : 64 + struct.unpack_from("<Q", data, 16)[0]]
    index = index.replace(b"\0" + VERSION.encode() + b"\0", b"\x000.1.0c\0")
    other = data[:24] + hashlib.sha256(index).digest() + data[56:64] + index + data[64 + len(index) :]

    def exchanged(*words: object) -> object:
        pack.write_bytes(other)
        return whole(*words)

    monkeypatch.setattr(check.verify, "verify", exchanged)
    code, said = verify(pack)
    assert code == 6 and f"{pack.name} was changed while it was read" in said


# ---- packs and wheels ------------------------------------------------------------------------------------------------


def test_a_pack(tmp_path, verify, capsys):
    pack = Path(shutil.copy(small_release().packs["sm_90"], tmp_path))
    assert main(["sign", str(pack), "--key", str(signed_release() / "kiln.key")]) == 0
    assert capsys.readouterr().out == f"{pack}.minisig\n"
    code, said = verify(pack)
    assert code == 0 and "whole: 2 groups, 8 images checked" in said
    assert says(pack) in (None, True)
    other = Path(shutil.copy(small_release().packs["gfx942"], tmp_path / "other.pack"))
    put(other, Statement("pack", VERSION, other.name, "0" * 64))
    code, said = verify(other)
    assert code == 12 and "other.pack does not have the index that its signature names to the runtime" in said
    for number in (20, 400, pack.stat().st_size - 1):
        flip(pack, number)
        code, said = verify(pack)
        assert code == 12 and f"is not the signature of this {pack.name}" in said
        assert says(pack) in (None, False)
        flip(pack, number)


@pytest.fixture
def wheels(tmp_path) -> Path:
    """A folder of small wheels, signed."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for name, tag in (("kiln-runtime", "cp312-abi3-linux_x86_64"), ("kiln-images-sm-90", "py3-none-any")):
        write_wheel(Wheel(name, "0.1.0b0", tag, "kiln", f"Name: {name}\n", {}), folder)
    assert main(["sign", str(folder), "--key", str(signed_release() / "kiln.key")]) == 0
    return folder


def test_wheels(wheels, verify, capsys):
    capsys.readouterr()
    listed = wheels / "kiln-0.1.0b0-wheels.sha256"
    code, said = verify(wheels, "--release", "0.1.0b0")
    assert code == 0 and said.startswith("Kiln 0.1.0b0, signed") and "whole: 2 files checked" in said
    assert says(listed) in (None, True)
    subprocess.run(["sha256sum", "-c", "--quiet", listed.name], cwd=wheels, check=True)
    one = wheels / "kiln_images_sm_90-0.1.0b0-py3-none-any.whl"
    assert verify(one)[0] == 0
    for path in sorted(wheels.iterdir()):
        whole = path.read_bytes()
        flip(path, len(whole) * 3 // 5)
        code, said = verify(wheels)
        assert code == (6 if path.suffix == ".whl" else 12) and path.name in said
        path.write_bytes(whole)
    (wheels / "kiln_runtime-9.0.tar.gz").write_text("pip would take it")
    code, said = verify(wheels)
    assert code == 6 and "kiln_runtime-9.0.tar.gz is in " in said
    assert verify(one)[0] == 0
    (wheels / "kiln_runtime-9.0.tar.gz").unlink()
    (wheels / "x\nKiln 0.1.0b0, signed").write_text("")
    code, said = verify(wheels)
    assert code == 6 and "'x\\nKiln 0.1.0b0, signed' is in " in said and said.count("\n") == 1
    (wheels / "x\nKiln 0.1.0b0, signed").unlink()
    one.unlink()
    code, said = verify(wheels)
    assert code == 0 and f"note: {one.name} is not here\n" in said
    one.symlink_to(wheels / "kiln_runtime-0.1.0b0-cp312-abi3-linux_x86_64.whl")
    assert verify(wheels) == (6, f"kiln: {wheels} is not what it should be: {one.name} is not a file\n")


def test_lists_of_wheels(wheels, verify, tmp_path, capsys):
    capsys.readouterr()
    listed = wheels / "kiln-0.1.0b0-wheels.sha256"
    shutil.copy(listed, wheels / "kiln-0.2.0-wheels.sha256")
    code, said = verify(wheels)
    assert code == 12 and "keep the wheels of each build in a folder of its own" in said
    listed.unlink()
    code, said = verify(wheels, "--signature", f"{listed}.minisig")
    assert code == 12 and "was made for kiln-0.1.0b0-wheels.sha256" in said
    (wheels / "kiln-0.2.0-wheels.sha256").unlink()
    code, said = verify(wheels)
    assert code == 12 and "has no kiln-<version>-wheels.sha256" in said
    (tmp_path / "empty").mkdir()
    assert verify(tmp_path / "empty")[0] == 2
    write_wheel(Wheel("kiln-cli", "0.2.0", "py3-none-any", "kiln", "Name: kiln-cli\n", {}), wheels)
    assert main(["sign", str(wheels), "--key", str(signed_release() / "kiln.key")]) == 2
    assert "has wheels of 0.1.0b0 and 0.2.0; give a folder with the wheels of one build" in capsys.readouterr().err


# ---- kiln-inspect.pyz ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["3.9", "3.10", "3.11", "3.12", "3.13", "3.14"])
def test_the_program_in_every_python(place, version):
    """With nothing installed."""

    def run(script: Path, *words: object) -> tuple[int, str]:
        command = [find(version), "-S", "-B", "-I", script, "verify", *words, "--key", place / "kiln.pub"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert "Traceback" not in done.stderr
        return done.returncode, done.stdout + done.stderr

    code, said = run(place / INSPECTOR, place / NAME)
    assert code == 0 and f"Kiln {VERSION}, signed by the key " in said and "proves nothing" not in said
    if version != "3.14":
        assert (
            "whole as far as it was read: 18 files, 3 groups checked\nnote: the images in packs were not read" in said
        )
    code, said = run(place / "kiln" / manifest_model.INSPECTOR, place / "kiln")
    assert code == 0 and "says nothing about that release" in said
    flip(place / NAME, 5000)
    code, said = run(place / INSPECTOR, place / NAME)
    assert code == 6 and f"{NAME} does not have the digest that is signed" in said
    flip(place / f"{NAME}.sha256", 0)
    assert run(place / INSPECTOR, place / NAME)[0] == 12


# ---- signing ---------------------------------------------------------------------------------------------------------


def sign(*words: object, **given: object) -> subprocess.CompletedProcess:
    """`kiln sign` in a process without a terminal."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path), **given.pop("env", {})}
    command = [sys.executable, "-B", "-m", "kiln_build", "sign", *map(str, words)]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, start_new_session=True, check=False, **given
    )


def test_where_a_key_comes_from(place, tmp_path):
    keys = minisign_keys.make(tmp_path, "secret", password="a secret")
    (tmp_path / "password").write_text("a secret\n")
    with keys.secret.open() as key, (tmp_path / "password").open() as password:
        one, two = key.fileno(), password.fileno()
        done = sign(place / NAME, "--key", one, "--password", two, pass_fds=(one, two))
    assert (done.returncode, done.stderr) == (0, "")
    first = (place / f"{NAME}.sha256.minisig").read_bytes()
    done = sign(place / NAME, "--key", "env:KEY", "--password", "env:WORD",
                env={"KEY": keys.secret.read_text(), "WORD": "a secret"})  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "") and (place / f"{NAME}.sha256.minisig").read_bytes() == first
    done = sign(place / NAME, "--key", keys.secret)
    assert done.returncode == 7 and done.stderr == (
        f"kiln: {keys.secret} is encrypted, and there is no terminal to ask for its password; give --password with a "
        "file, the number of an open descriptor, or env:NAME for a variable that holds its text\n"
    )
    (tmp_path / "password").write_text("another\n")
    done = sign(place / NAME, "--key", keys.secret, "--password", tmp_path / "password")
    assert done.returncode == 2 and done.stderr == (
        f"kiln: the password is not the one of the key {keys.secret}; give the one that `minisign -G` was told\n"
    )
    assert (place / f"{NAME}.sha256.minisig").read_bytes() == first


def test_keys_from_pipes(place, tmp_path, capsys):
    """A pipe is waited for while somebody has it open to write, and no longer."""
    pipe, tarball_of = tmp_path / "pipe", str(place / NAME)
    os.mkfifo(pipe)
    for words in (["verify", tarball_of, "--key"], ["sign", tarball_of, "--key"]):
        assert main([*words, str(pipe)]) == 7
        assert "(nobody writes to this pipe); give a" in capsys.readouterr().err
    key = minisign_keys.make(tmp_path, "secret", password="a secret").secret
    assert main(["sign", tarball_of, "--key", str(key), "--password", str(pipe)]) == 7
    assert f"the password cannot be read from {pipe} (nobody writes to this pipe); give" in capsys.readouterr().err
    for verb, name in (("sign", "kiln.key"), ("verify", "kiln.pub")):
        with subprocess.Popen(["sh", "-c", 'exec 3<>"$1"; sleep 0.2; cat "$0" >&3', place / name, pipe]):
            while_open = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)  # what it writes stays until it is read
            select.select([while_open], [], [])
            assert main([verb, tarball_of, "--key", str(pipe)]) == 0
            os.close(while_open)


@pytest.mark.parametrize(
    ("key", "code", "sentence"),
    [
        ("/nowhere.key", 7, "the key is to be in /nowhere.key, which does not exist; give a file, the number"),
        ("97", 7, "the key is to come from descriptor 97, which is not open; give a file"),
        ("env:NOT_SET", 7, "the key is to be in the variable NOT_SET, which is not set; give a file"),
        ("kiln.pub", 2, "kiln.pub is not a secret key of minisign's; give the .key file that `minisign -G` made"),
        ("", 2, "--key is empty; give a file"),
    ],
)
def test_keys_that_are_none(place, capsys, key, code, sentence):
    word = str(place / key) if key.endswith(".pub") else key
    assert main(["sign", str(place / NAME), "--key", word]) == code
    assert sentence in capsys.readouterr().err


def test_a_terminal_that_is_closed(place, tmp_path, monkeypatch, capsys):
    """Ctrl-D instead of a password."""

    def closed(*_arguments: object) -> str:
        raise EOFError

    key = minisign_keys.make(tmp_path, "secret", password="a secret").secret
    monkeypatch.setattr(getpass, "getpass", closed)
    monkeypatch.setattr(secret, "_has_terminal", lambda: True)
    assert main(["sign", str(place / NAME), "--key", str(key)]) == 2
    assert f"no password was given for {key}" in capsys.readouterr().err


def test_a_key_in_the_source_tree(place, capsys):
    with tempfile.NamedTemporaryFile(dir=ROOT / "tests", suffix=".key") as file:
        file.write((place / "kiln.key").read_bytes())
        file.flush()
        assert main(["sign", str(place / NAME), "--key", file.name]) == 2
        assert f"the key is in {file.name}, within Kiln's source tree" in capsys.readouterr().err


def test_a_build_that_signs(place, tmp_path, monkeypatch, capsys, verify):
    for name in (*SIGNED.values(), MANIFEST_SIGNATURE, INSPECTOR):
        (place / name).unlink()
    words = ["build", str(ROOT / "input"), str(tmp_path / "workspace"), str(place), VERSION, "sm_90"]
    key = minisign_keys.make(tmp_path, "kiln", password="a secret").secret

    def compiled(*_arguments: object) -> None:
        raise AssertionError("it was compiled")

    monkeypatch.setattr(build, "build", compiled)
    monkeypatch.setenv("WORD", "another")
    assert main([*words, "--sign", str(key), "--password", "env:WORD"]) == 2
    assert f"the password is not the one of the key {key}" in capsys.readouterr().err
    assert main([*words, "--password", "env:WORD"]) == 2
    assert main([*words, "--sign", "/nowhere.key"]) == 7
    monkeypatch.setattr(build, "build", lambda _options: place / NAME)
    monkeypatch.setenv("WORD", "a secret")
    capsys.readouterr()
    assert main([*words, "--sign", str(key), "--password", "env:WORD"]) == 0
    said = capsys.readouterr()
    assert said.out == f"{place / NAME}\n" and f"kiln: signed: {place / NAME}.sha256.minisig\n" in said.err
    assert "WORD" not in os.environ and verify(place / NAME)[0] == 0


def test_nothing_damaged_is_signed(place, capsys):
    words = ["--key", str(place / "kiln.key")]
    flip(place / "kiln/lib/libkiln.so.0", 1000)
    assert main(["sign", str(place / "kiln"), *words]) == 6
    assert "lib/libkiln.so.0 does not have the digest" in capsys.readouterr().err
    flip(place / NAME, 1000)
    assert main(["sign", str(place / NAME), *words]) == 6
    shutil.copy(small_release().tarball, place / NAME)
    (place / f"{NAME}.sha256").unlink()
    assert main(["sign", str(place / NAME), *words]) == 6
    assert "no build has finished it" in capsys.readouterr().err
    renamed = place / release.tarball_name("0.2.0")
    (place / NAME).rename(renamed)
    statement.checksum_of(renamed).write_text(f"{hashlib.sha256(renamed.read_bytes()).hexdigest()}  {renamed.name}\n")
    assert main(["sign", str(renamed), *words]) == 6
    assert f"holds the release {VERSION}; give it the name that it was built with" in capsys.readouterr().err
    assert main(["sign", str(small_release().images / "sm_90-256-fp16"), *words]) == 2


def test_another_builds_tarball_takes_no_signature_over(place, tmp_path):
    stage = Path(shutil.copytree(small_release().stage, tmp_path / "stage", symlinks=True))
    (stage / "include/kiln/kiln.h").write_text("changed")
    release.make_release(stage, place, VERSION, replace=True)
    assert not any((place / name).exists() for name in (*SIGNED.values(), MANIFEST_SIGNATURE, INSPECTOR))
