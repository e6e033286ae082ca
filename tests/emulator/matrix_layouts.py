"""Where the elements of matrices lie in vector registers, from AMD's Matrix Instruction Calculator and, for
gfx950, its CDNA4 guide: a second opinion beside machine/matrix.c.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

BITS = {"f64": 64, "f32": 32, "xf32": 32, "i32": 32, "f16": 16, "bf16": 16, "i8": 8, "iu8": 8, "fp8": 8, "bf8": 8,
        "fp6": 6, "bf6": 6, "fp4": 4, "iu4": 4}  # fmt: skip

# What each target has that its compiler may use, by LLVM's names.
_GFX90A = """f32_32x32x1f32 f32_16x16x1f32 f32_4x4x1f32 f32_32x32x2f32 f32_16x16x4f32 f32_32x32x4f16 f32_16x16x4f16
    f32_4x4x4f16 f32_32x32x8f16 f32_16x16x16f16 i32_32x32x4i8 i32_16x16x4i8 i32_4x4x4i8 i32_32x32x8i8 i32_16x16x16i8
    f32_32x32x2bf16 f32_16x16x2bf16 f32_4x4x2bf16 f32_32x32x4bf16 f32_16x16x8bf16 f32_32x32x4bf16_1k f32_16x16x4bf16_1k
    f32_4x4x4bf16_1k f32_32x32x8bf16_1k f32_16x16x16bf16_1k f64_16x16x4f64 f64_4x4x4f64"""
_GFX942 = """f32_32x32x1_2b_f32 f32_16x16x1_4b_f32 f32_4x4x1_16b_f32 f32_32x32x2_f32 f32_16x16x4_f32 f32_16x16x8_xf32
    f32_32x32x4_xf32 f32_32x32x4_2b_f16 f32_16x16x4_4b_f16 f32_4x4x4_16b_f16 f32_32x32x8_f16 f32_16x16x16_f16
    f32_32x32x4_2b_bf16 f32_16x16x4_4b_bf16 f32_4x4x4_16b_bf16 f32_32x32x8_bf16 f32_16x16x16_bf16 i32_32x32x4_2b_i8
    i32_16x16x4_4b_i8 i32_4x4x4_16b_i8 i32_32x32x16_i8 i32_16x16x32_i8 f64_16x16x4_f64 f64_4x4x4_4b_f64
    f32_16x16x32_bf8_bf8 f32_16x16x32_bf8_fp8 f32_16x16x32_fp8_bf8 f32_16x16x32_fp8_fp8 f32_32x32x16_bf8_bf8
    f32_32x32x16_bf8_fp8 f32_32x32x16_fp8_bf8 f32_32x32x16_fp8_fp8"""
_GFX950 = """f32_16x16x32_f16 f32_32x32x16_f16 f32_16x16x32_bf16 f32_32x32x16_bf16 i32_16x16x64_i8 i32_32x32x32_i8
    f32_32x32x8_f16 f32_16x16x16_bf16 f32_16x16x32_fp8_fp8 f32_32x32x16_bf8_fp8"""
_GFX11 = """f32_16x16x16_f16 f32_16x16x16_bf16 f16_16x16x16_f16 bf16_16x16x16_bf16 i32_16x16x16_iu8 i32_16x16x16_iu4"""
_GFX12 = f"""{_GFX11} i32_16x16x32_iu4 f32_16x16x16_fp8_fp8 f32_16x16x16_fp8_bf8 f32_16x16x16_bf8_fp8
    f32_16x16x16_bf8_bf8"""
_NAMES = {"gfx90a": ("v_mfma_", _GFX90A), "gfx942": ("v_mfma_", _GFX942), "gfx950": ("v_mfma_", _GFX950),
          "gfx1100": ("v_wmma_", _GFX11), "gfx1200": ("v_wmma_", _GFX12)}  # fmt: skip


@dataclass(frozen=True)
class Form:
    """A matrix instruction of a target: D (m x n) = A (m x k) times B (k x n) plus C, in so many blocks.

    Attributes:
        a, b, d: types of elements, of A, B, and C and D.
    """

    target: str
    name: str
    m: int
    n: int
    k: int
    blocks: int
    a: str
    b: str
    d: str

    @property
    def lanes(self) -> int:
        return 32 if self.target.startswith("gfx1") else 64

    def registers(self, matrix: str) -> int:
        """How many one of "a", "b", "d" takes."""
        return 1 + max(self.place(matrix, i, k, b)[0] + (self.bits(matrix) == 64) for i, k, b in self.indices(matrix))

    def bits(self, matrix: str) -> int:
        return BITS[getattr(self, matrix)]

    def indices(self, matrix: str) -> list[tuple[int, int, int]]:
        """All (row, column, block): of A (i, k), of B (j, k), of D (i, j)."""
        rows, columns = {"a": (self.m, self.k), "b": (self.n, self.k), "d": (self.m, self.n)}[matrix]
        return [(r, c, b) for b in range(self.blocks) for r in range(rows) for c in range(columns)]

    def place(self, matrix: str, row: int, column: int, block: int) -> tuple[int, int, int]:
        """Register, first bit and lane of an element; of gfx11 the lane of its first copy."""
        bits = self.bits(matrix)
        if matrix == "d":
            return self._sum(row, column, block)
        if self.target.startswith("gfx11"):
            return bits * column // 32, bits * column % 32, row
        across = self.m if matrix == "a" else self.n
        each = across * self.k * self.blocks // self.lanes  # elements of a lane
        if "f8f6f4" in self.name and bits == 8:
            half, within = divmod(column, self.k // 2)
            group, element = within // 16, within % 16 + 16 * half
        elif self.target.startswith("gfx12") and bits == 16:
            group, element = column // 4 % 2, column % 4 + 4 * (column // 8)
        else:
            group, element = divmod(column, each)
        return bits * element // 32, bits * element % 32, row + across * (block + self.blocks * group)

    def _sum(self, i: int, j: int, block: int) -> tuple[int, int, int]:
        if self.target.startswith("gfx11"):
            return i // 2, 0, 16 * (i % 2) + j
        if self.target.startswith("gfx12"):
            packed = self.bits("d") == 16
            return (i % 8 // 2, 16 * (i % 2), 16 * (i // 8) + j) if packed else (i % 8, 0, 16 * (i // 8) + j)
        if self.d == "f64":
            return 2 * (i // 4), 0, 16 * (i % 4) + 4 * block + j
        if self.m == 32:  # registers of a block: 16
            return 16 * block + 4 * (i // 8) + i % 4, 0, 32 * (i // 4 % 2) + j
        if self.m == 16:
            return 4 * block + i % 4, 0, 16 * (i // 4) + j
        return i, 0, 4 * block + j


def forms() -> list[Form]:
    """The instructions of all targets, those of f8f6f4 apart."""
    return [_parse(target, prefix + name) for target, (prefix, names) in _NAMES.items() for name in names.split()]


def named_form(m: int, a: str, b: str) -> Form:
    """gfx950's instruction whose modifiers name the formats, with a scale of each 32 of k."""
    k = {16: 128, 32: 64}[m]
    return Form("gfx950", f"v_mfma_scale_f32_{m}x{m}x{k}_f8f6f4", m, m, k, 1, a, b, "f32")


def _parse(target: str, name: str) -> Form:
    found = re.fullmatch(r"v_w?m[fm][ma]a?_([a-z0-9]+)_(\d+)x(\d+)x(\d+)(?:_(\d+)b)?_?(.*)", name)
    assert found, name
    d, m, n, k, blocks, types = found.groups()
    a, _, b = types.replace("_1k", "").partition("_")
    m, n, k = int(m), int(n), int(k)
    if not blocks:  # gfx90a does not say: as many as make a whole number of registers a lane
        each = {"f32": 1, "f16": 4, "bf16": 4 if "_1k" in name else 2, "i8": 4, "f64": 1}.get(a)
        blocks = each * 64 // (m * k) if target == "gfx90a" else 1
    return Form(target, name, m, n, k, max(int(blocks), 1), a, b or a, d)
