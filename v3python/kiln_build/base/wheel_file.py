"""Writes wheels: the same bytes from the same contents, on every host and from every Python.

A wheel is a zip archive whose name says what it is for, with a folder <name>-<version>.dist-info that describes it
and, in RECORD, states the digest of each other file. Names are sorted, times are 1980-01-01, modes go by kind, and
members are compressed by libdeflate of the locked package, if that makes them smaller.
"""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from kiln_recipe.console.appear import appear
from kiln_recipe.errors import EnvironmentProblem, unwritable

_LEVEL = 6
_DAY = 1 << 5 | 1  # 1980-01-01, as zip writes dates
_LARGEST = 0xFFFFFFFF  # without zip64
_COMPRESSED = (".pack", ".pyz")


@dataclass(frozen=True)
class Wheel:
    """What goes into a wheel.

    Attributes:
        name: "kiln-runtime".
        version: as PEP 440 spells it, "0.1.0b0".
        tag: "cp312-abi3-manylinux_2_28_x86_64".
        generator: who made it, "kiln 0.1.0b".
        metadata: the text of METADATA.
        files: by path, "kiln/__init__.py": a file, or its bytes.
        licences: texts by path below the dist-info folder's licenses/.
        entry_points: by group, objects "module:function" by name.
        bills: bills of materials by their file's name below the dist-info folder's sboms/ (PEP 770).
    """

    name: str
    version: str
    tag: str
    generator: str
    metadata: str
    files: Mapping[str, Path | bytes]
    licences: Mapping[str, str] = field(default_factory=dict)
    entry_points: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    bills: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def file_name(self) -> str:
        return f"{self._stem}-{self.tag}.whl"

    @property
    def _stem(self) -> str:
        return f"{self.name.replace('-', '_')}-{self.version}"

    def members(self) -> Iterator[tuple[str, Path | bytes]]:
        """All but RECORD, in their order: what is installed, then what describes it."""
        yield from sorted(self.files.items())
        info = f"{self._stem}.dist-info"
        # Images lie beside the libraries, which a platform may keep apart from what is Python alone.
        wheel = f"Wheel-Version: 1.0\nGenerator: {self.generator}\nRoot-Is-Purelib: false\nTag: {self.tag}\n"
        texts = {"METADATA": self.metadata, "WHEEL": wheel}
        texts |= {f"licenses/{path}": text for path, text in self.licences.items()}
        if self.entry_points:
            texts["entry_points.txt"] = "".join(
                f"[{group}]\n" + "".join(f"{name} = {what}\n" for name, what in sorted(points.items()))
                for group, points in sorted(self.entry_points.items())
            )
        described = {path: text.encode() for path, text in texts.items()}
        described |= {f"sboms/{path}": bill for path, bill in self.bills.items()}
        for path, data in sorted(described.items()):
            yield f"{info}/{path}", data

    @property
    def record(self) -> str:
        return f"{self._stem}.dist-info/RECORD"


def write_wheel(wheel: Wheel, folder: Path, called: Path | None = None) -> Path:
    """Writes it into `folder`; it takes its name once it is complete.

    Args:
        called: the folder as an error names it, where `folder` is one that passes.

    Raises:
        EnvironmentProblem: it cannot be written, or is larger than a zip archive can be.
    """
    path = folder / wheel.file_name
    try:
        with appear(path) as fresh, fresh.open("wb") as file:
            _write(wheel, file)
    except OSError as error:
        raise unwritable((called or folder) / wheel.file_name, error) from error
    return path


def _write(wheel: Wheel, file: BinaryIO) -> None:
    directory, record = [], []
    for name, content in wheel.members():
        data = content.read_bytes() if isinstance(content, Path) else content
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record.append(f"{_quoted(name)},sha256={digest},{len(data)}\n")
        directory.append(_add(file, name, data))
    record.append(f"{_quoted(wheel.record)},,\n")
    directory.append(_add(file, wheel.record, "".join(record).encode()))
    start = file.tell()
    if start > _LARGEST or len(directory) > 0xFFFF:
        raise EnvironmentProblem(f"{wheel.file_name} would be larger than 4 GiB, which no wheel can be")
    file.write(b"".join(directory))
    size = file.tell() - start
    file.write(struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, len(directory), len(directory), size, start, 0))


def _add(file: BinaryIO, name: str, data: bytes) -> bytes:
    """Writes a member; its entry of the central directory."""
    import deflate

    offset, method, stored = file.tell(), 0, data
    if not name.endswith(_COMPRESSED):
        packed = bytes(deflate.deflate_compress(data, _LEVEL))
        if len(packed) < len(data):
            method, stored = 8, packed
    if max(offset, len(data)) > _LARGEST:
        raise EnvironmentProblem(f"{name} makes its wheel larger than 4 GiB, which no wheel can be")
    encoded = name.encode()
    sizes = (deflate.crc32(data), len(stored), len(data), len(encoded), 0)
    common = struct.pack("<HHHHHIIIHH", 20, 0x800, method, 0, _DAY, *sizes)  # 0x800: the name is UTF-8
    file.write(struct.pack("<I", 0x04034B50) + common + encoded + stored)
    mode = 0o100755 if ".so" in name.rpartition("/")[2] else 0o100644
    unix = 3 << 8 | 20
    return struct.pack("<IH", 0x02014B50, unix) + common + struct.pack("<HHHII", 0, 0, 0, mode << 16, offset) + encoded


def _quoted(name: str) -> str:
    """A path as a field of comma-separated values."""
    return f'"{name}"' if "," in name or '"' in name else name
