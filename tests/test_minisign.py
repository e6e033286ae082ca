"""minisign's files: Kiln reads what minisign writes, minisign what Kiln writes; what is malformed is refused."""

from __future__ import annotations

import base64
import os
import pty
import subprocess
import time

import pytest

import minisign_keys
from kiln_build.trust import minisign
from kiln_recipe.errors import TrustError, UsageError


@pytest.fixture
def keys(tmp_path) -> minisign_keys.Keys:
    return minisign_keys.make(tmp_path)


def secret_of(keys: minisign_keys.Keys, password: bytes = b"") -> minisign.SecretKey:
    return minisign.read_secret_key(keys.secret.read_bytes(), password, keys.secret.name)


def test_minisign_and_kiln_read_each_other(tmp_path, keys):
    minisign_keys.need_minisign()
    public = minisign.read_public_key(keys.public.read_bytes(), "kiln.pub")
    file = tmp_path / "file"
    for data in (b"", b"words\n", bytes(300_000)):
        file.write_bytes(data)
        for legacy in ([], ["-l"]):
            command = ["minisign", "-S", *legacy, "-s", str(keys.secret), "-m", str(file), "-t", "kiln says so"]
            subprocess.run(command, check=True, capture_output=True, input=b"\n")
            found = minisign.read_signature((tmp_path / "file.minisig").read_bytes(), "file.minisig")
            assert found.algorithm == (b"Ed" if legacy else b"ED") and found.comment == b"kiln says so"
            assert minisign.is_signed(public, found, [data]) and not minisign.is_signed(public, found, [data, b"x"])
        made = minisign.sign(secret_of(keys), [data], "kiln says so")
        assert (made.signature, made.comment_signature) != (found.signature, b"")
        (tmp_path / "ours").write_bytes(made.spell())
        assert minisign_keys.accepted(keys.public, file, tmp_path / "ours")
        assert minisign.read_signature(made.spell(), "ours") == made
    other = minisign_keys.make(tmp_path, "other")
    assert not minisign_keys.accepted(other.public, file, tmp_path / "ours")


def test_the_same_bytes_as_minisign(tmp_path, keys):
    """But for the first line, which nothing covers."""
    minisign_keys.need_minisign()
    (tmp_path / "file").write_bytes(b"words\n")
    command = ["minisign", "-S", "-s", str(keys.secret), "-m", str(tmp_path / "file"), "-t", "kiln says so"]
    subprocess.run(command, check=True, capture_output=True)
    theirs = (tmp_path / "file.minisig").read_bytes().split(b"\n")[1:]
    assert minisign.sign(secret_of(keys), [b"words\n"], "kiln says so").spell().split(b"\n")[1:] == theirs


def test_a_password(tmp_path):
    keys = minisign_keys.make(tmp_path, password="a secret")
    data = keys.secret.read_bytes()
    assert minisign.is_encrypted(data)
    assert secret_of(keys, b"a secret").public.spell() in keys.public.read_text()
    with pytest.raises(UsageError, match="^the password is not the one of the key kiln.key; give the one that "):
        secret_of(keys, b"a Secret")
    assert not minisign.is_encrypted(minisign_keys.make(tmp_path, "plain").secret.read_bytes())


def test_minisign_takes_such_a_password_too(tmp_path):
    """So the costs mean the same to both."""
    minisign_keys.need_minisign()
    keys = minisign_keys.make(tmp_path, password="a secret")
    (tmp_path / "file").write_bytes(b"words\n")
    child, terminal = pty.fork()
    if child == 0:
        os.execvp("minisign", ["minisign", "-S", "-s", str(keys.secret), "-m", str(tmp_path / "file")])
    time.sleep(0.5)
    os.write(terminal, b"a secret\n")
    assert os.waitpid(child, 0)[1] == 0
    os.close(terminal)
    assert minisign_keys.accepted(keys.public, tmp_path / "file", tmp_path / "file.minisig")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda lines: lines[:3], "it has 3 lines instead of 4"),
        (lambda lines: [*lines, b"more"], "it has 5 lines instead of 4"),
        (lambda lines: [b"comment: x", *lines[1:]], "its first or third line is not a comment"),
        (lambda lines: [*lines[:2], b"a comment: x", lines[3]], "its first or third line is not a comment"),
        (lambda lines: [lines[0], lines[1][:-4], *lines[2:]], "its second or fourth line is cut off or malformed"),
        (lambda lines: [*lines[:3], lines[3][:-4]], "its second or fourth line is cut off or malformed"),
        (lambda lines: [lines[0], lines[1] + b"\r", *lines[2:]], "its second or fourth line is cut off or malformed"),
        (lambda lines: [lines[0], b"AAA" + lines[1][3:], *lines[2:]], "its second or fourth line is cut off or mal"),
        (lambda lines: [*lines[:2], lines[2] + b"\x1b[2J", lines[3]], "its trusted comment is not plain ASCII"),
        (lambda lines: [*lines[:2], lines[2] + b"\r", lines[3]], "its trusted comment is not plain ASCII"),
    ],
)
def test_a_signature_has_one_spelling(keys, change, sentence):
    lines = minisign.sign(secret_of(keys), [b"x"], "kiln").spell().split(b"\n")[:-1]
    data = b"".join(line + b"\n" for line in change(lines))
    with pytest.raises(TrustError, match=f"^x.minisig.*{sentence}"):
        minisign.read_signature(data, "x.minisig")


def test_base64_has_one_spelling(keys):
    """Of the last letter before "=" two bits count for nothing."""
    lines = minisign.sign(secret_of(keys), [b"x"], "kiln").spell().split(b"\n")
    letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    place = len(lines[1]) - 2
    other = letters[letters.index(lines[1][place]) ^ 1]
    spare = lines[1][:place] + bytes([other]) + lines[1][place + 1 :]
    assert base64.b64decode(spare, validate=True) == base64.b64decode(lines[1])
    with pytest.raises(TrustError, match="cut off or malformed"):
        minisign.read_signature(b"\n".join([lines[0], spare, *lines[2:]]), "x.minisig")


def test_each_bit_of_a_signature_counts(keys):
    """But for those of the first line."""
    public = minisign.read_public_key(keys.public.read_bytes(), "kiln.pub")
    spelled = minisign.sign(secret_of(keys), [b"x"], "kiln").spell()
    begin = spelled.index(b"\n") + 1
    for place in range(begin, len(spelled) - 1):
        wrong = bytearray(spelled)
        wrong[place] ^= 1
        try:
            found = minisign.read_signature(bytes(wrong), "x.minisig")
        except TrustError:
            continue
        assert not minisign.is_signed(public, found, [b"x"]), place


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "it is not a public key of minisign's"),
        ("untrusted comment: x\n", "it is not a public key of minisign's"),
        ("untrusted comment: x\nRWQ=\n", "it is not a public key of minisign's"),
        ("secret", "it is a secret key, which is for signing"),
        (base64.b64encode(b"Ed" + bytes(8) + (1).to_bytes(32, "little")).decode(), "its key is not one that Ed25519 "),
        (base64.b64encode(b"Ed" + bytes(8) + b"\xff" * 32).decode(), "its key is not one that Ed25519 has signatures"),
    ],
)
def test_what_is_not_a_public_key(keys, text, sentence):
    data = keys.secret.read_bytes() if text == "secret" else text.encode()
    with pytest.raises(UsageError, match=f"^--key x.pub: {sentence}"):
        minisign.read_public_key(data, "--key x.pub")


def test_a_public_key_may_be_its_line_alone(keys):
    whole = minisign.read_public_key(keys.public.read_bytes(), "x")
    assert minisign.read_public_key(f"{whole.spell()}\n".encode(), "x") == whole


def test_what_is_not_a_secret_key(tmp_path, keys):
    def refused(data: bytes) -> str:
        with pytest.raises(UsageError) as error:
            minisign.read_secret_key(data, b"", "x.key")
        return str(error.value)

    assert refused(keys.public.read_bytes()).startswith("x.key is not a secret key of minisign's; give the .key file")
    comment, line = keys.secret.read_bytes().split(b"\n")[:2]
    raw = base64.b64decode(line)

    def with_bytes(place: int, data: bytes) -> bytes:
        return comment + b"\n" + base64.b64encode(raw[:place] + data + raw[place + len(data) :]) + b"\n"

    assert "of a kind that Kiln does not know" in refused(with_bytes(2, b"XX"))
    assert refused(with_bytes(62, b"\0\0")).startswith("x.key is damaged: its secret and its public half do not belong")
    dear = minisign_keys.make(tmp_path, "dear", password="p", costs=(1 << 25, 1 << 40))
    with pytest.raises(UsageError, match="asks for more memory or time than any key that `minisign -G` makes"):
        minisign.read_secret_key(dear.secret.read_bytes(), b"p", "dear.key")
