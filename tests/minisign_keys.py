"""Keys for tests, as `minisign -G` writes them, and what minisign says of a signature."""

from __future__ import annotations

import base64
import hashlib
import shutil
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from kiln_build.trust import ed25519


@dataclass(frozen=True)
class Keys:
    """The two files of a key, in a folder."""

    public: Path
    secret: Path


def make(
    folder: Path, name: str = "kiln", password: str | None = None, costs: tuple[int, int] = (1 << 15, 1 << 24)
) -> Keys:
    """A key that `name` determines. The costs of scrypt, operations and bytes, are far below minisign's own."""
    seed = hashlib.sha256(f"seed {name}".encode()).digest()
    key_id = hashlib.sha256(f"id {name}".encode()).digest()[:8]
    key = ed25519.public_key(seed)
    rest, kdf, salt = key_id + seed + key + bytes(32), b"\0\0", bytes(32)
    operations, memory = (0, 0) if password is None else costs
    if password is not None:
        kdf, salt = b"Sc", hashlib.sha256(name.encode()).digest()
        check = hashlib.blake2b(b"Ed" + rest[:72], digest_size=32).digest()
        stream = hashlib.scrypt(password.encode(), salt=salt, n=1 << 10, r=8, p=1, dklen=104)
        rest = bytes(a ^ b for a, b in zip(rest[:72] + check, stream))
    raw = struct.pack("<2s2s2s32sQQ104s", b"Ed", kdf, b"B2", salt, operations, memory, rest)
    secret, public = folder / f"{name}.key", folder / f"{name}.pub"
    secret.write_text(f"untrusted comment: minisign encrypted secret key\n{base64.b64encode(raw).decode()}\n")
    text = base64.b64encode(b"Ed" + key_id + key).decode()
    public.write_text(f"untrusted comment: minisign public key {key_id[::-1].hex().upper()}\n{text}\n")
    return Keys(public, secret)


def has_minisign() -> bool:
    return shutil.which("minisign") is not None


def need_minisign() -> None:
    if not has_minisign():
        pytest.skip("needs minisign")


def accepted(public: Path, file: Path, signature: Path) -> bool:
    """Whether `minisign -V` takes the signature of a file."""
    command = ["minisign", "-V", "-q", "-p", str(public), "-m", str(file), "-x", str(signature)]
    return subprocess.run(command, capture_output=True).returncode == 0
