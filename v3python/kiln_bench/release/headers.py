"""The structures of the C interface as ctypes, read from Kiln's headers: what an entry takes is written there alone.

    structure   = "typedef struct" name "{" field* "}" alias ";"
    field       = type name ["[" constant "]"] ";"
    initializer = "#define" NAME "_INIT" ["(" ... ")"] "{sizeof(" alias ")" {"," value} "}"

An entry's structure is `kiln_<entry>_params`; its size is its first field, so that a release with an older or a newer
header takes it as well.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kiln_recipe.errors import ArtifactError

NAMES = ("kiln.h", "flash.h")
_SCALARS = {
    "uint64_t": ctypes.c_uint64, "int64_t": ctypes.c_int64, "int32_t": ctypes.c_int32, "float": ctypes.c_float,
    "double": ctypes.c_double, "kiln_dtype": ctypes.c_int32,
    "const char*": ctypes.c_char_p, "void*": ctypes.c_void_p, "const char* const*": ctypes.POINTER(ctypes.c_char_p),
}  # fmt: skip
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_STRUCTURE = re.compile(r"typedef struct \w+ \{([^{}]*)\} (\w+);")
_FIELD = re.compile(r"\s*(.+?)\s*\b(\w+)(?:\[(\w+)\])?\s*")
_CONSTANT = re.compile(r"#define (KILN_\w+) (\d+)\b")
_INITIALIZER = re.compile(r"#define KILN_\w+_INIT\s*\{sizeof\((\w+)\)([^}]*)\}")
_ENUMERATOR = re.compile(r"\b(KILN_\w+) = (\d+)")


class Interface:
    """What Kiln's headers declare.

    Attributes:
        structures: classes by name, "kiln_attn_fwd_params"; an instance has the values of its _INIT macro.
        constants: "KILN_BF16": 3.

    Args:
        texts: of the headers; later ones use what earlier ones declare.
    """

    def __init__(self, *texts: str) -> None:
        self.structures: dict[str, type[ctypes.Structure]] = {}
        self.constants: dict[str, int] = {}
        for text in texts:
            plain = _COMMENT.sub("", text).replace("\\\n", " ")
            for pattern in (_CONSTANT, _ENUMERATOR):
                self.constants |= {name: int(value) for name, value in pattern.findall(plain)}
            defaults = dict(_INITIALIZER.findall(plain))
            for body, name in _STRUCTURE.findall(plain):
                fields = [self._field(line) for line in body.split(";") if line.strip()]
                if all(kind is not None for _, kind in fields):  # a union is declared by no field that is known here
                    self.structures[name] = _structure(name, fields, defaults.get(name, ""))

    def __getitem__(self, name: str) -> type[ctypes.Structure]:
        """A structure.

        Raises:
            ArtifactError: the headers have none of that name.
        """
        try:
            return self.structures[name]
        except KeyError:
            raise ArtifactError(f"its headers declare no {name}; measure a release of Kiln 0.1 or later") from None

    def _field(self, line: str) -> tuple[str, type | None]:
        match = _FIELD.fullmatch(line)
        if match is None:
            return line, None
        written, name, length = match.groups()
        kind: Any = _SCALARS.get(written)
        if kind is None and (pointed := re.fullmatch(r"const (\w+)\*", written)):
            structure = self.structures.get(pointed[1])
            kind = structure and ctypes.POINTER(structure)
        if kind is None and re.fullmatch(r"kiln_\w+_fn", written):
            kind = ctypes.c_void_p
        if kind is not None and length:
            kind = kind * (self.constants[length] if length in self.constants else int(length))
        return name, kind


def _structure(name: str, fields: list[tuple[str, type | None]], written: str) -> type[ctypes.Structure]:
    values = [value.strip() for value in written.split(",")[1:]]
    defaults = {
        field: number
        for (field, _), value in zip(fields[1:], values)
        if (number := _number(value)) is not None and number != 0
    }

    def start(self: ctypes.Structure, **given: object) -> None:
        sized = {"size": ctypes.sizeof(self)} if fields[0][0] == "size" else {}
        ctypes.Structure.__init__(self, **(sized | defaults | given))

    return type(name, (ctypes.Structure,), {"_fields_": fields, "__init__": start})


def _number(text: str) -> float | int | None:
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    return float(text[:-1]) if re.fullmatch(r"-?\d+\.\d+f", text) else None


def read(folder: Path) -> Interface:
    """Of the headers in a folder.

    Raises:
        ArtifactError: it lacks one of them.
    """
    try:
        return Interface(*((folder / name).read_text() for name in NAMES))
    except (OSError, UnicodeDecodeError) as error:
        raise ArtifactError(f"{folder} lacks the headers {' and '.join(NAMES)} ({error})") from error


def own() -> Path:
    """The folder of the headers that came with this package, or of the checkout that it is in."""
    installed = Path(__file__).resolve().parents[1] / "include"
    return installed if installed.is_dir() else Path(__file__).resolve().parents[3] / "include/kiln"


def kinds(structure: type[ctypes.Structure]) -> Mapping[str, type]:
    """The types of a structure's fields."""
    return dict(structure._fields_)  # type: ignore[arg-type]
