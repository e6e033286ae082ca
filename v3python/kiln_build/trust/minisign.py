"""minisign's files: public keys, secret keys and signatures, read and written as minisign 0.11 does.

    public    = untrusted "\\n" base64("Ed" id:byte[8] key:byte[32]) "\\n"?        ; or the second line alone
    signature = untrusted "\\n" base64(algorithm id:byte[8] ed25519:byte[64]) "\\n"
                "trusted comment: " comment "\\n" base64(ed25519:byte[64]) "\\n"?
                ; the first is of the message, the second of the first's 64 bytes and the comment
    algorithm = "ED"    ; the message is the file's BLAKE2b-512; what minisign makes
              / "Ed"    ; the message is the file itself; what old versions made
    secret    = untrusted "\\n" base64("Ed" kdf "B2" salt:byte[32] operations:u64 memory:u64 sealed:byte[104]) "\\n"?
    kdf       = "Sc"    ; sealed: xor of the rest with what scrypt makes of the password
              / 0 0     ; not encrypted, minisign's -W
    rest      = id:byte[8] seed:byte[32] key:byte[32] check:byte[32]
                ; check: BLAKE2b-256 of "Ed" id seed key; zeros where nothing is encrypted
    untrusted = "untrusted comment: " text    ; says nothing that anybody vouches for, and is never shown

Numbers are little-endian. A file is read in one spelling: base64 without spare bits, no line behind the last, no "\\r",
and a comment of printable ASCII. minisign takes more, Kiln never less than what minisign writes. Standard library only.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass

from kiln_build.trust import ed25519
from kiln_recipe.errors import TrustError, UsageError

LARGEST = 8192  # bytes of any of these files; minisign's comments have 1,024 at most
_UNTRUSTED = b"untrusted comment: "
_TRUSTED = b"trusted comment: "
_HASHED, _WHOLE = b"ED", b"Ed"
_SECRET = struct.Struct("<2s2s2s32sQQ104s")
_MOST_MEMORY = 1 << 30  # what `minisign -G` asks scrypt for, in bytes
_MOST_OPERATIONS = 1 << 25


@dataclass(frozen=True)
class PublicKey:
    """A public key; `id` is a random number that tells keys apart and proves nothing."""

    id: bytes
    key: bytes

    @property
    def name(self) -> str:
        """The key's number as minisign prints it, with leading zeros: "0DBB543053D58C63"."""
        return name_of(self.id)

    def spell(self) -> str:
        """The line of base64."""
        return base64.b64encode(_WHOLE + self.id + self.key).decode()


@dataclass(frozen=True)
class Signature:
    """A signature; `algorithm` is "ED" or "Ed", `comment` the trusted comment."""

    algorithm: bytes
    id: bytes
    signature: bytes
    comment: bytes
    comment_signature: bytes

    def spell(self) -> bytes:
        """The file's bytes."""
        lines = (
            _UNTRUSTED + b"signature of a release of Kiln",
            base64.b64encode(self.algorithm + self.id + self.signature),
            _TRUSTED + self.comment,
            base64.b64encode(self.comment_signature),
        )
        return b"".join(line + b"\n" for line in lines)


@dataclass(frozen=True, repr=False)
class SecretKey:
    """A secret key, decrypted."""

    id: bytes
    seed: bytes

    @property
    def public(self) -> PublicKey:
        return PublicKey(self.id, ed25519.public_key(self.seed))


def name_of(key_id: bytes) -> str:
    return f"{int.from_bytes(key_id, 'little'):016X}"


def read_public_key(data: bytes, name: str) -> PublicKey:
    """
    Args:
        name: what the file is called, for the sentence.

    Raises:
        UsageError: it is not a public key, or no signature can be its.
    """
    lines = _lines(data)
    if lines and lines[0].startswith(_UNTRUSTED):
        lines = lines[1:]
    raw = _base64(lines[0], 42) if len(lines) == 1 else None
    if raw is None or raw[:2] != _WHOLE:
        what = (
            "it is a secret key, which is for signing" if _is_secret(data) else "it is not a public key of minisign's"
        )
        raise UsageError(f"{name}: {what}; give the .pub file that `minisign -G` made")
    key = PublicKey(raw[2:10], raw[10:])
    if not ed25519.is_sound(key.key):
        raise UsageError(
            f"{name}: its key is not one that Ed25519 has signatures of; give the .pub file as it was made"
        )
    return key


def read_signature(data: bytes, name: str) -> Signature:
    """
    Raises:
        TrustError: it is not a signature of minisign's in its one spelling.
    """
    lines = _lines(data)
    if len(lines) != 4:
        raise TrustError(f"{name} is not a signature of minisign's: it has {len(lines)} lines instead of 4")
    first, last = _base64(lines[1], 74), _base64(lines[3], 64)
    if not lines[0].startswith(_UNTRUSTED) or not lines[2].startswith(_TRUSTED):
        raise TrustError(f"{name} is not a signature of minisign's: its first or third line is not a comment")
    if first is None or last is None or first[:2] not in (_HASHED, _WHOLE):
        raise TrustError(f"{name} is not a signature of minisign's: its second or fourth line is cut off or malformed")
    comment = lines[2][len(_TRUSTED) :]
    if any(byte != 0x09 and not 0x20 <= byte < 0x7F for byte in comment):  # minisign puts tabs between words
        raise TrustError(f"{name}: its trusted comment is not plain ASCII, as that of every release is")
    return Signature(first[:2], first[2:10], first[10:], comment, last)


def is_encrypted(data: bytes) -> bool:
    """Whether a secret key's file asks for a password."""
    return _secret_of(data, "")[1] != b"\0\0" if _is_secret(data) else False


def check_secret_key(data: bytes, name: str) -> None:
    """
    Raises:
        UsageError: it is not a secret key, by its form: no password is needed to say so.
    """
    _secret_of(data, name)


def read_secret_key(data: bytes, password: bytes, name: str) -> SecretKey:
    """
    Args:
        password: not used for a key that is not encrypted.

    Raises:
        UsageError: it is not a secret key, or the password is wrong.
    """
    _, kdf, _, salt, operations, memory, sealed = _secret_of(data, name)
    rest = sealed
    if kdf != b"\0\0":
        stream = _scrypt(password, salt, operations, memory, name)
        rest = bytes(a ^ b for a, b in zip(sealed, stream))
    key_id, seed, key, check = rest[:8], rest[8:40], rest[40:72], rest[72:]
    if kdf != b"\0\0" and check != hashlib.blake2b(_WHOLE + rest[:72], digest_size=32).digest():
        raise UsageError(f"the password is not the one of the key {name}; give the one that `minisign -G` was told")
    if ed25519.public_key(seed) != key:
        raise UsageError(f"{name} is damaged: its secret and its public half do not belong together")
    return SecretKey(key_id, seed)


def sign(key: SecretKey, blocks: Iterable[bytes], comment: str) -> Signature:
    """Signs what a file holds, given in blocks; the signature is of the kind "ED"."""
    signature = ed25519.sign(key.seed, _message(_HASHED, blocks))
    bound = comment.encode("ascii")
    made = Signature(_HASHED, key.id, signature, bound, ed25519.sign(key.seed, signature + bound))
    if not is_signed(key.public, made, blocks):
        raise ArithmeticError("a signature that was just made is wrong; this host computes wrongly")
    return made


def is_signed(key: PublicKey, signature: Signature, blocks: Iterable[bytes]) -> bool:
    """Whether the signature, its comment included, is by this key and of what the blocks hold."""
    if signature.id != key.id:
        return False
    bound = signature.signature + signature.comment
    return ed25519.verify(key.key, bound, signature.comment_signature) and ed25519.verify(
        key.key, _message(signature.algorithm, blocks), signature.signature
    )


def _message(algorithm: bytes, blocks: Iterable[bytes]) -> bytes:
    if algorithm == _WHOLE:
        return b"".join(blocks)
    digest = hashlib.blake2b()
    for block in blocks:
        digest.update(block)
    return digest.digest()


def _lines(data: bytes) -> list[bytes]:
    """The lines of a file; the last may lack its end, as one that was copied by hand does."""
    lines = data[: LARGEST + 1].split(b"\n")
    return lines[:-1] if lines[-1] == b"" else lines


def _base64(line: bytes, size: int) -> bytes | None:
    """What the line spells, if that has so many bytes and the line is their one spelling."""
    try:
        raw = base64.b64decode(line, validate=True)
    except (binascii.Error, ValueError):
        return None
    return raw if len(raw) == size and base64.b64encode(raw) == line else None


def _is_secret(data: bytes) -> bool:
    lines = _lines(data)
    return len(lines) == 2 and lines[0].startswith(_UNTRUSTED) and _base64(lines[1], _SECRET.size) is not None


def _secret_of(data: bytes, name: str) -> tuple[bytes, bytes, bytes, bytes, int, int, bytes]:
    if not _is_secret(data):
        raise UsageError(f"{name} is not a secret key of minisign's; give the .key file that `minisign -G` made")
    fields = _SECRET.unpack(base64.b64decode(_lines(data)[1]))
    algorithm, kdf, check = fields[:3]
    if algorithm != _WHOLE or kdf not in (b"Sc", b"\0\0") or check != b"B2":
        raise UsageError(f"{name} is a secret key of a kind that Kiln does not know; make one with minisign 0.11")
    return fields


def _scrypt(password: bytes, salt: bytes, operations: int, memory: int, name: str) -> bytes:
    """What a password is stretched to: scrypt with the cost that libsodium takes for so many operations and so much
    memory (crypto_pwhash_scryptsalsa208sha256)."""
    if not (0 < operations <= _MOST_OPERATIONS and 0 < memory <= _MOST_MEMORY):
        raise UsageError(f"{name} asks for more memory or time than any key that `minisign -G` makes")
    operations = max(operations, 32768)
    r = 8
    is_short = operations < memory // 32
    most = operations // (4 * r) if is_short else memory // (128 * r)
    log_n = 1
    while log_n < 63 and 1 << log_n <= most // 2:
        log_n += 1
    p = 1 if is_short else min(operations // 4 >> log_n, 0x3FFFFFFF) // r
    try:
        return hashlib.scrypt(
            password, salt=salt, n=1 << log_n, r=r, p=max(p, 1), maxmem=(128 * r << log_n) + (1 << 26), dklen=104
        )
    except (ValueError, MemoryError) as error:
        raise UsageError(f"{name}: its password cannot be tried here ({error}); that takes 1 GiB of memory") from error
