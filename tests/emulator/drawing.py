"""Registers drawn for the tests of VALU and SALU, and their words as numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from single import LANES, State

CDNA, RDNA = "gfx942", "gfx1100"
F32, F64, F16 = np.float32, np.float64, np.float16
M32, M64 = 2**32 - 1, 2**64 - 1
D, A, B, C = 10, 20, 30, 40  # first registers of the result and of the sources
SPECIAL_F32 = np.array(
    [0, 0x80000000, 0x3F800000, 0xBF800000, 0x7F800000, 0xFF800000, 0x7FC00000, 1, 0x807FFFFF, 0x00800000, 0x7F7FFFFF,
     0x3F000000, 0x42280000, 0xC2280000, 0x4F000000, 0x33D6BF95], np.uint32)  # fmt: skip
SPECIAL_F16 = np.array([0, 0x8000, 0x3C00, 0xBC00, 0x7C00, 0xFC00, 0x7E00, 1, 0x83FF, 0x400, 0x7BFF], np.uint32)


def drawn(kind: str, draw: np.random.Generator) -> np.ndarray:
    """Rows of a source: uint32 [words, 64]. Floats of moderate size, and among them those at the edges."""
    if kind == "f":
        rows = draw.standard_normal(LANES).astype(F32) * F32(2.0) ** draw.integers(-20, 20, LANES).astype(F32)
        row = rows.view(np.uint32)
        row[: len(SPECIAL_F32)] = draw.permutation(SPECIAL_F32)
        return row[None]
    if kind == "h":
        row = draw.standard_normal(LANES).astype(F16).view(np.uint16).astype(np.uint32)
        row[: len(SPECIAL_F16)] = draw.permutation(SPECIAL_F16)
        return (row | draw.integers(0, 2**16, LANES, np.uint32) << 16)[None]
    if kind == "p":
        halves = [draw.standard_normal(LANES).astype(F16).view(np.uint16).astype(np.uint32) for _ in range(2)]
        return (halves[0] | halves[1] << 16)[None]
    if kind == "d":
        words = (draw.standard_normal(LANES) * 2.0 ** draw.integers(-40, 40, LANES)).view(np.uint32)
        return words.reshape(LANES, 2).T.copy()
    if kind == "P":
        return np.stack([drawn("f", draw)[0], drawn("f", draw)[0]])
    rows = draw.integers(0, 2**32, (2 if kind == "q" else 1, LANES), np.uint32)
    small = draw.random(LANES) < 0.3
    rows[:, small] = draw.integers(0, 40, small.sum(), np.uint32)
    return rows


def value(kind: str, rows: np.ndarray) -> np.ndarray:
    """The lanes' values: float64 of h and d, float32 of f, Python's integers else."""
    if kind == "f":
        return rows[0].view(F32)
    if kind == "h":
        return (rows[0] & 0xFFFF).astype(np.uint16).view(F16).astype(F64)
    if kind == "d":
        return rows.T.copy().view(F64)[:, 0]
    if kind == "i":
        return rows[0].view(np.int32).astype(object)
    if kind == "q":
        return rows[0].astype(object) | rows[1].astype(object) << 32
    if kind == "w":
        return (rows[0] & 0xFFFF).astype(object)
    return rows[0].astype(object)


def bits(kind: str, values: Any) -> np.ndarray:
    """Rows of the values."""
    if kind == "f":
        return np.asarray(values, F32).view(np.uint32)[None]
    if kind == "h":
        return np.asarray(values, F64).astype(F16).view(np.uint16).astype(np.uint32)[None]
    if kind == "d":
        return np.asarray(values, F64).view(np.uint32).reshape(LANES, 2).T
    whole = [int(v) & M64 for v in values]
    rows = [np.array([v & M32 for v in whole], np.uint32)]
    return np.stack([*rows, np.array([v >> 32 for v in whole], np.uint32)]) if kind == "q" else np.stack(rows)


def same(kind: str, got: np.ndarray, wanted: np.ndarray, ulps: int = 0) -> np.ndarray:
    """Of each lane whether they are the same: any NaN is as good as another."""
    if kind in "fhd":
        a, b = value(kind, got), value(kind, wanted)
        close = np.all(got == wanted, axis=0) | (np.isnan(a) & np.isnan(b))
        if ulps:
            with np.errstate(all="ignore"):
                close |= np.abs(a - b) <= ulps * np.abs(np.spacing(b))
        return close
    return np.all(got == wanted, axis=0)


def signed(x: int, width: int = 32) -> int:
    x &= (1 << width) - 1
    return x - (1 << width) if x >> (width - 1) else x


WORDS = {"d": 2, "q": 2, "P": 2}


def register(first: int, kind: str) -> str:
    return f"v[{first}:{first + 1}]" if WORDS.get(kind, 1) == 2 else f"v{first}"


def sources_in(state: State, kinds: str, draw: np.random.Generator) -> list[np.ndarray]:
    """Draws rows of the sources, into the state's registers."""
    rows = [drawn(kind, draw) for kind in kinds]
    for first, row in zip((A, B, C), rows, strict=False):
        state.vgpr[first : first + len(row)] = row
    return rows
