"""Numbers of Kiln's dtypes in NumPy, which has neither bf16 nor fp8: how they are held, what they are, rounding."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
# As which type of NumPy's elements are held.
HELD = {
    "fp16": np.float16, "bf16": np.uint16, "fp32": np.float32, "fp8e4m3": np.uint8, "int32": np.int32,
    "int64": np.int64, "uint8": np.uint8,
}  # fmt: skip
_FLOATS = ("fp16", "bf16", "fp32", "fp8e4m3")


def _e4m3() -> Array:
    """The value of each byte: 4 bits of exponent, biased by 7, and 3 of mantissa; no infinity."""
    byte = np.arange(256)
    exponent, mantissa = byte >> 3 & 15, byte & 7
    size = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    size[(exponent == 15) & (mantissa == 7)] = np.nan
    return np.where(byte >> 7 == 1, -size, size)


_E4M3 = _e4m3()


def wide(stored: Array, dtype: str) -> Array:
    """What elements stand for, in float64; integers are themselves."""
    if dtype == "bf16":
        return (stored.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if dtype == "fp8e4m3":
        return _E4M3[stored]
    return stored.astype(np.float64) if dtype in _FLOATS else stored


def held(values: Array, dtype: str) -> Array:
    """Values as elements: rounded to nearest, ties to even; fp8 saturates."""
    if dtype == "bf16":
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
        rounded = (bits + (0x7FFF + (bits >> 16 & 1))) >> 16
        return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)
    if dtype == "fp8e4m3":
        return _to_e4m3(np.asarray(values, np.float64))
    with np.errstate(over="ignore"):
        return values.astype(HELD[dtype])


def _to_e4m3(values: Array) -> Array:
    """The nearer of two neighbours; of two that are as near, the one whose last bit is 0."""
    sizes = _E4M3[:127]
    size = np.minimum(np.abs(np.nan_to_num(values)), sizes[-1])
    above = np.clip(np.searchsorted(sizes, size), 1, 126)
    low, high = size - sizes[above - 1], sizes[above] - size
    byte = np.where((low < high) | ((low == high) & (above % 2 == 1)), above - 1, above)
    return np.where(np.isnan(values), 0x7F, byte | (np.signbit(values).astype(np.int64) << 7)).astype(np.uint8)


def rounded(values: Array, dtype: str) -> Array:
    """Values of float32 or float64 as the dtype has them, in float32; of fp64 they stay as they are."""
    if dtype == "fp64":
        return values
    if dtype == "fp32":
        return values.astype(np.float32)
    return wide(held(values, dtype), dtype).astype(np.float32)


def philox(seed: int, counter: tuple[Array, ...]) -> list[Array]:
    """Four words of 32 bits by Philox4x32-10 (Salmon et al., SC 2011), as the paper describes it."""
    mask = np.uint64(0xFFFFFFFF)
    c0, c1, c2, c3 = (np.asarray(part).astype(np.uint64) for part in np.broadcast_arrays(*counter))
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF
    for _ in range(10):
        first, second = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = (
            (second >> np.uint64(32)) ^ c1 ^ np.uint64(k0), second & mask,
            (first >> np.uint64(32)) ^ c3 ^ np.uint64(k1), first & mask,
        )  # fmt: skip
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return [c0, c1, c2, c3]


def kept(seed: int, offset: int, dropout: float, shape: tuple[int, int, int, int]) -> Array:
    """[batch, heads, rows, keys] of booleans: which weights dropout keeps (docs/attention.md)."""
    batch, heads, rows, keys = shape
    threshold = int(float(np.float32(dropout)) * 2**32)  # as it travels in the parameters
    plane = np.arange(batch * heads)[:, None, None]
    fours, row = np.arange(-(-keys // 4))[None, None, :], np.arange(rows)[None, :, None]
    words = philox(seed, (fours, row, plane ^ offset >> 32, np.full((1, 1, 1), offset & 0xFFFFFFFF)))
    return (np.stack(words, -1).reshape(batch * heads, rows, -1)[..., :keys] >= threshold).reshape(shape)
