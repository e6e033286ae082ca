"""Number formats by their definition: sign, exponent, fraction; a second opinion beside machine/convert.h."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

# Bits of exponent and fraction, bias, and what the highest codes are: "ieee" infinity and NaN, "ocp" one NaN of each
# sign, "fnuz" NaN in place of negative zero, "finite" numbers all.
SMALL = {
    "fp8": (4, 3, 7, "ocp"), "bf8": (5, 2, 15, "ieee"), "fp8_fnuz": (4, 3, 8, "fnuz"), "bf8_fnuz": (5, 2, 16, "fnuz"),
    "fp6": (2, 3, 1, "finite"), "bf6": (3, 2, 3, "finite"), "fp4": (2, 1, 1, "finite"),
}  # fmt: skip
_WHOLE = {"i8": np.int8, "iu8": np.uint8, "i32": np.int32}
_FLOATS = {"f16": (np.uint16, np.float16), "f32": (np.uint32, np.float32), "xf32": (np.uint32, np.float32),
           "f64": (np.uint64, np.float64)}  # fmt: skip


@lru_cache
def table(name: str) -> np.ndarray:
    """The value of each code of a small format."""
    exponent_bits, fraction_bits, bias, specials = SMALL[name]
    values = []
    for code in range(2 ** (1 + exponent_bits + fraction_bits)):
        sign, magnitude = divmod(code, 2 ** (exponent_bits + fraction_bits))
        exponent, fraction = divmod(magnitude, 2**fraction_bits)
        value = (fraction / 2**fraction_bits + (exponent > 0)) * 2.0 ** (max(exponent, 1) - bias)
        if specials == "ieee" and exponent == 2**exponent_bits - 1:
            value = np.nan if fraction else np.inf
        if specials == "ocp" and magnitude == 2 ** (exponent_bits + fraction_bits) - 1:
            value = np.nan
        if specials == "fnuz" and sign and not magnitude:
            value = np.nan
        values.append(-value if sign else value)
    return np.array(values)


def nearest(name: str, value: float, saturate: bool) -> int:
    """The code of a small format for a number: of the two neighbours the nearer, of equally near ones the even."""
    values, specials = table(name), SMALL[name][3]
    half = len(values) // 2
    negative = bool(np.signbit(value))
    finite = [code for code in range(half) if np.isfinite(values[code])]
    largest = finite[-1]
    nan = {"fnuz": half, "ocp": half - 1, "ieee": half - 1, "finite": largest}[specials]
    sign = half if negative else 0
    if np.isnan(value):
        return nan if specials == "fnuz" else nan | sign
    beyond = {"fnuz": half, "ocp": sign | nan, "ieee": sign | (largest + 1), "finite": sign | largest}[specials]
    magnitude = abs(float(value))
    step = values[largest] - values[largest - 1]
    if magnitude >= values[largest] + step / 2 and not (
        magnitude == values[largest] + step / 2 and largest % 2 == 0
    ):  # rounds beyond
        return sign | largest if saturate or specials == "finite" else beyond
    at = int(np.searchsorted(values[: largest + 1], magnitude))
    at = min(at, largest)
    if at and values[at] != magnitude:
        below, above = magnitude - values[at - 1], values[at] - magnitude
        if below < above or (below == above and (at - 1) % 2 == 0):
            at -= 1
    return 0 if specials == "fnuz" and at == 0 else sign | at


def decode(kind: str, codes: np.ndarray, fnuz: bool) -> np.ndarray:
    """The numbers that codes of a type stand for, as float64."""
    if kind in _FLOATS:
        bits, number = _FLOATS[kind]
        return codes.astype(bits).view(number).astype(np.float64)
    if kind == "bf16":
        return (codes.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    if kind in _WHOLE:
        return codes.astype(np.uint64).astype(np.uint32).astype(_WHOLE[kind]).astype(np.float64)
    if kind == "iu4":
        return codes.astype(np.float64)
    name = f"{kind}_fnuz" if fnuz and f"{kind}_fnuz" in SMALL else kind
    return table(name)[codes.astype(np.int64)]


def encode(kind: str, values: np.ndarray, fnuz: bool) -> np.ndarray:
    """Codes of numbers, rounded to nearest, for registers to begin with."""
    if kind in _FLOATS:
        bits, number = _FLOATS[kind]
        return values.astype(number).view(bits)
    if kind == "bf16":
        return bf16(values.astype(np.float32).view(np.uint32))
    if kind in _WHOLE:
        return values.astype(np.int64).astype(_WHOLE[kind]).view({1: np.uint8, 4: np.uint32}[_WHOLE[kind]().itemsize])
    if kind == "iu4":
        return values.astype(np.int64) & 15
    name = f"{kind}_fnuz" if fnuz and f"{kind}_fnuz" in SMALL else kind
    each, inverse = np.unique(values, return_inverse=True)
    return np.array([nearest(name, value, True) for value in each])[inverse].reshape(values.shape)


def bf16(bits: np.ndarray) -> np.ndarray:
    """f32 bits as bf16 bits, to nearest even; NaN made quiet."""
    wide = bits.astype(np.uint64)
    rounded = (wide + 0x7FFF + (wide >> 16 & 1)) >> 16
    nan = (wide & 0x7FFFFFFF) > 0x7F800000
    return np.where(nan, wide >> 16 | 0x40, rounded).astype(np.uint32) & np.uint32(0xFFFF)
