"""Ed25519 (RFC 8032, 5.1) with Python's integers.

Verification is as strict as libsodium's, and so as minisign's: S must be below the group's order; the key and R must be
spelled canonically and not be of small order; and the equation is the one without the cofactor. So a signature has one
spelling, and no key verifies everything.

Signing takes a time that depends on what it multiplies with. It does so once for each file of a release, on the host
that holds the key; the nonce is blinded with a random multiple of the order, so that a measured time says nothing of
it. Whoever wants more signs with minisign itself, which writes the same bytes.
"""

from __future__ import annotations

import hashlib
import secrets

# (X, Y, Z, T) with x = X/Z, y = Y/Z, xy = T/Z: extended homogeneous coordinates, RFC 8032, 5.1.4.
Point = tuple[int, int, int, int]

P = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493  # L, of the base point
_D = -121665 * pow(121666, -1, P) % P
_ROOT = pow(2, (P - 1) // 4, P)  # of -1
_NEUTRAL: Point = (0, 1, 1, 0)
_WINDOW = 4  # bits of a scalar that are looked up at once


def verify(key: bytes, message: bytes, signature: bytes) -> bool:
    """Whether `signature` (64 bytes) is one of `message` by the public key `key` (32 bytes)."""
    if len(key) != 32 or len(signature) != 64:
        return False
    s = int.from_bytes(signature[32:], "little")
    a, r = _decode(key), _decode(signature[:32])
    if s >= ORDER or a is None or r is None or _is_small(a) or _is_small(r):
        return False
    k = int.from_bytes(hashlib.sha512(signature[:32] + key + message).digest(), "little") % ORDER
    negative = (P - a[0], a[1], a[2], P - a[3])
    return _equal(_sum_of_products(((s, _BASE_TABLE), (k, _table(negative)))), r)


def is_sound(key: bytes) -> bool:
    """Whether the 32 bytes are a public key that `verify` takes."""
    point = _decode(key)
    return point is not None and not _is_small(point)


def public_key(seed: bytes) -> bytes:
    """The public key (32 bytes) that belongs to a secret `seed` (32 bytes)."""
    return _encode(_blinded(_expand(seed)[0]))


def sign(seed: bytes, message: bytes) -> bytes:
    """The signature (64 bytes) of `message`; equal inputs give equal bytes."""
    a, prefix = _expand(seed)
    key = _encode(_blinded(a))
    r = int.from_bytes(hashlib.sha512(prefix + message).digest(), "little") % ORDER
    point = _encode(_blinded(r))
    k = int.from_bytes(hashlib.sha512(point + key + message).digest(), "little") % ORDER
    return point + ((r + k * a) % ORDER).to_bytes(32, "little")


def _expand(seed: bytes) -> tuple[int, bytes]:
    if len(seed) != 32:
        raise ValueError(f"a seed has 32 bytes, not {len(seed)}")
    digest = hashlib.sha512(seed).digest()
    scalar = int.from_bytes(digest[:32], "little")
    return scalar & ((1 << 254) - 8) | 1 << 254, digest[32:]


def _blinded(scalar: int) -> Point:
    """The product of the base point and a secret."""
    return _sum_of_products(((scalar + ORDER * secrets.randbits(128), _BASE_TABLE),))


def _add(p: Point, q: Point) -> Point:
    a = (p[1] - p[0]) * (q[1] - q[0]) % P
    b = (p[1] + p[0]) * (q[1] + q[0]) % P
    c = 2 * p[3] * q[3] * _D % P
    d = 2 * p[2] * q[2] % P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % P, g * h % P, f * g % P, e * h % P


def _double(p: Point) -> Point:
    a, b = p[0] * p[0] % P, p[1] * p[1] % P
    c = 2 * p[2] * p[2] % P
    h = a + b
    e = h - (p[0] + p[1]) * (p[0] + p[1]) % P
    g = a - b
    f = c + g
    return e * f % P, g * h % P, f * g % P, e * h % P


def _table(point: Point) -> list[Point]:
    """The point's multiples by 0, 1, ... up to a window's largest number."""
    multiples = [_NEUTRAL]
    for _ in range((1 << _WINDOW) - 1):
        multiples.append(_add(multiples[-1], point))
    return multiples


def _sum_of_products(products: tuple[tuple[int, list[Point]], ...]) -> Point:
    """The sum of scalars times points, of which the tables are given: the doublings are shared (Straus, 1964)."""
    bits = max(scalar.bit_length() for scalar, _ in products)
    total = _NEUTRAL
    for shift in range((bits + _WINDOW - 1) // _WINDOW * _WINDOW - _WINDOW, -1, -_WINDOW):
        for _ in range(_WINDOW):
            total = _double(total)
        for scalar, table in products:
            total = _add(total, table[scalar >> shift & (1 << _WINDOW) - 1])
    return total


def _equal(p: Point, q: Point) -> bool:
    return (p[0] * q[2] - q[0] * p[2]) % P == 0 and (p[1] * q[2] - q[1] * p[2]) % P == 0


def _is_small(p: Point) -> bool:
    """Whether the point's order divides 8."""
    for _ in range(3):
        p = _double(p)
    return _equal(p, _NEUTRAL)


def _encode(p: Point) -> bytes:
    inverse = pow(p[2], -1, P)
    x, y = p[0] * inverse % P, p[1] * inverse % P
    return (y | (x & 1) << 255).to_bytes(32, "little")


def _decode(data: bytes) -> Point | None:
    """The point that 32 bytes spell; None if they spell none, or in another way than `_encode` does (5.1.3)."""
    number = int.from_bytes(data, "little")
    sign, y = number >> 255, number & ((1 << 255) - 1)
    if y >= P:
        return None
    u, v = (y * y - 1) % P, (_D * y * y + 1) % P
    x = u * v**3 * pow(u * v**7, (P - 5) // 8, P) % P
    if (v * x * x - u) % P:
        x = x * _ROOT % P
        if (v * x * x - u) % P:
            return None
    if x == 0 and sign:
        return None
    if x & 1 != sign:
        x = P - x
    return x, y, 1, x * y % P


def _base() -> Point:
    base = _decode((4 * pow(5, -1, P) % P).to_bytes(32, "little"))  # y = 4/5, x even
    if base is None:
        raise ArithmeticError("the base point is on the curve")
    return base


_BASE_TABLE = _table(_base())
