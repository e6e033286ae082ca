"""The dtypes of tensors: the one table of them. Standard library only.

By hand are, besides, kiln_dtype in include/kiln/kiln.h, and the core's names and sizes in csrc/core/error.cc, since the
core is built from C and C++ alone. The tables of bindings/core and bindings/torch are generated from this one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

# DLPack's type codes.
INT, UINT, FLOAT, BFLOAT, BOOL, E4M3FN, E5M2 = 0, 1, 2, 4, 6, 10, 12


class Dtype(NamedTuple):
    """A row.

    Attributes:
        name: as recipes and messages spell it; KILN_<NAME> in C.
        number: the kiln_dtype.
        bytes: of an element.
        dlpack: DLPack's type code.
        torch: PyTorch's name, which NumPy and array APIs share where they have the dtype.
        triton: Triton's name in a kernel's signature.
        language: its name in triton.language.
        largest: of a dtype of 8 bits the largest number, which stands for all beyond it after a conversion.
        synonyms: what else people call it.
    """

    name: str
    number: int
    bytes: int
    dlpack: int
    torch: str
    triton: str
    language: str
    largest: float | None = None
    synonyms: tuple[str, ...] = ()

    @property
    def is_narrow(self) -> bool:
        """Whether Triton's interpreter, which computes with NumPy's types, has no type for it."""
        return self.dlpack not in (INT, UINT, FLOAT, BOOL)


# What most tensors of a call have comes first: bindings look from the front.
TABLE = (
    Dtype("bf16", 3, 2, BFLOAT, "bfloat16", "bf16", "bfloat16"),
    Dtype("fp16", 2, 2, FLOAT, "float16", "fp16", "float16", synonyms=("half", "f16")),
    Dtype("fp32", 1, 4, FLOAT, "float32", "fp32", "float32", synonyms=("float", "f32")),
    Dtype("int32", 12, 4, INT, "int32", "i32", "int32", synonyms=("int",)),
    Dtype("int64", 13, 8, INT, "int64", "i64", "int64", synonyms=("long",)),
    Dtype("fp8e4m3", 5, 1, E4M3FN, "float8_e4m3fn", "fp8e4nv", "float8e4nv", largest=448.0),
    Dtype("uint8", 20, 1, UINT, "uint8", "u8", "uint8"),
    Dtype("fp64", 4, 8, FLOAT, "float64", "fp64", "float64", synonyms=("double", "f64")),
    Dtype("fp8e5m2", 6, 1, E5M2, "float8_e5m2", "fp8e5", "float8e5", largest=57344.0),
    Dtype("int8", 10, 1, INT, "int8", "i8", "int8"),
    Dtype("int16", 11, 2, INT, "int16", "i16", "int16"),
    Dtype("uint16", 21, 2, UINT, "uint16", "u16", "uint16"),
    Dtype("uint32", 22, 4, UINT, "uint32", "u32", "uint32"),
    Dtype("uint64", 23, 8, UINT, "uint64", "u64", "uint64"),
    Dtype("bool", 30, 1, BOOL, "bool", "i1", "int1"),
)

DTYPES: Mapping[str, int] = {row.name: row.number for row in TABLE}
DTYPE_BYTES: Mapping[str, int] = {row.name: row.bytes for row in TABLE}
TORCH_DTYPES: Mapping[str, str] = {row.name: row.torch for row in TABLE}
TRITON_DTYPES: Mapping[str, str] = {row.name: row.triton for row in TABLE}
# What others call a dtype.
SYNONYMS: Mapping[str, str] = {
    other: row.name for row in TABLE for other in (row.torch, row.triton, *row.synonyms) if other != row.name
}
