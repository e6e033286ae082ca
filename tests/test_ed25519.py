"""Ed25519: RFC 8032's vectors, agreement with another library, and what is not a signature though its equation holds.

Wycheproof's vectors were run once (ed25519_test.json of its commit dac1dd47): all 151 are judged as they
should be, 88 of them valid.
"""

from __future__ import annotations

import hashlib
import random

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

import rfc8032
from kiln_build.trust import ed25519
from kiln_build.trust.ed25519 import ORDER, P


@pytest.mark.parametrize(("seed", "key", "message", "signature"), rfc8032.vectors())
def test_the_rfcs_vectors(seed, key, message, signature):
    assert ed25519.public_key(seed) == key
    assert ed25519.sign(seed, message) == signature
    assert ed25519.verify(key, message, signature)
    for place in (0, 31, 32, 63):
        wrong = bytearray(signature)
        wrong[place] ^= 1
        assert not ed25519.verify(key, message, bytes(wrong))
    assert not ed25519.verify(key, message + b"\0", signature)
    assert not ed25519.verify(key[:-1], message, signature) and not ed25519.verify(key, message, signature[:-1])


def agrees(draw: random.Random) -> None:
    """A random key, message and change, by this code and by the package."""
    seed, message = draw.randbytes(32), draw.randbytes(draw.randrange(200))
    theirs = Ed25519PrivateKey.from_private_bytes(seed)
    key = theirs.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    signature = theirs.sign(message)
    if draw.random() < 0.05:  # the slowest of all
        assert ed25519.sign(seed, message) == signature and ed25519.public_key(seed) == key
    if draw.random() < 0.5:
        parts = [bytearray(key), bytearray(message or b"x"), bytearray(signature)]
        part = draw.choice(parts)
        part[draw.randrange(len(part))] ^= 1 << draw.randrange(8)
        key, message, signature = map(bytes, parts)
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
        is_valid = True
    except InvalidSignature:
        is_valid = False
    assert ed25519.verify(key, message, signature) == is_valid, (key.hex(), message.hex(), signature.hex())


def test_agrees_with_another_library():
    draw = random.Random(8032)
    for _ in range(150):
        agrees(draw)


@pytest.mark.heavy("10,000 draws of what test_agrees_with_another_library tries 150 times")
def test_agrees_in_many_draws():
    draw = random.Random(25519)
    for _ in range(10_000):
        agrees(draw)


def test_s_has_one_spelling():
    """S and S + L give the same point."""
    _, key, message, signature = rfc8032.vectors()[2]
    s = int.from_bytes(signature[32:], "little")
    for more in (ORDER, 2 * ORDER, 8 * ORDER):
        assert not ed25519.verify(key, message, signature[:32] + (s + more).to_bytes(32, "little"))


def small_points() -> list[bytes]:
    """Every spelling of the eight points of small order, those that are not canonical too."""
    y8 = int.from_bytes(bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"), "little")
    # Twice a point (x, y) has y^2 + x^2 in its own y's numerator, and the y of a point of order 4 is 0.
    x2 = (y8 * y8 - 1) * pow(-121665 * pow(121666, -1, P) * y8 * y8 + 1, -1, P) % P
    assert (y8 * y8 + x2) % P == 0
    ys = [0, 1, P - 1, y8, P - y8, P, P + 1]  # P and P + 1 are 0 and 1 again
    return [(y | sign << 255).to_bytes(32, "little") for y in ys for sign in (0, 1)]


@pytest.mark.parametrize("key", small_points())
def test_keys_of_small_order_verify_nothing(key):
    """With such a key and S = 0, R = -k A is valid for any message that gives k a right remainder: 1 of 8 does."""
    assert not ed25519.is_sound(key)
    for number in range(16):
        message = b"%d" % number
        for r in small_points():
            assert not ed25519.verify(key, message, r + bytes(32))


def test_a_canonical_spelling_is_demanded():
    """Of the 19 numbers from P on, which stand for y again: none is a key, nor an R."""
    for y in range(P, 2**255):
        for sign in (0, 1):
            assert not ed25519.is_sound((y | sign << 255).to_bytes(32, "little"))
    assert ed25519.is_sound(rfc8032.vectors()[1][1])


def test_r_of_small_order_is_refused():
    """The owner of a key can make a signature whose R is the neutral point: S = k a."""
    seed, key, message, _ = rfc8032.vectors()[1]
    digest = hashlib.sha512(seed).digest()
    a = int.from_bytes(digest[:32], "little") & ((1 << 254) - 8) | 1 << 254
    neutral = (1).to_bytes(32, "little")
    k = int.from_bytes(hashlib.sha512(neutral + key + message).digest(), "little") % ORDER
    s = (k * a % ORDER).to_bytes(32, "little")
    Ed25519PublicKey.from_public_bytes(key).verify(neutral + s, message)  # its equation holds
    assert not ed25519.verify(key, message, neutral + s)


def test_a_seed_has_32_bytes():
    with pytest.raises(ValueError, match="a seed has 32 bytes, not 31"):
        ed25519.sign(bytes(31), b"")
