"""A strict decoder of MessagePack, of which the metadata of AMD's code objects is made.

The build has msgspec; but `kiln inspect` reads images on machines with no more than pyelftools and zstandard.
"""

from __future__ import annotations

import struct
from typing import Any


def unpack(data: bytes) -> Any:
    """Decodes one document.

    Raises:
        ValueError: truncated, nested too deeply, not UTF-8, followed by more bytes, or with extension types or keys
            that are no text.
    """
    try:
        value, end = _unpack(data, 0, 0)
    except struct.error as error:
        raise ValueError("MessagePack is truncated") from error
    if end != len(data):
        raise ValueError(f"{len(data) - end} bytes follow the MessagePack document")
    return value


_NUMBERS = {0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q",
            0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q"}  # fmt: skip
_LENGTHS = {0xC4: ("bin", ">B"), 0xC5: ("bin", ">H"), 0xC6: ("bin", ">I"), 0xD9: ("str", ">B"), 0xDA: ("str", ">H"),
            0xDB: ("str", ">I"), 0xDC: ("array", ">H"), 0xDD: ("array", ">I"), 0xDE: ("map", ">H"),
            0xDF: ("map", ">I")}  # fmt: skip
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}


def _unpack(data: bytes, at: int, depth: int) -> tuple[object, int]:
    if at >= len(data) or depth > 32:
        raise ValueError("MessagePack is truncated or nested too deeply")
    tag, at = data[at], at + 1
    if tag < 0x80 or tag >= 0xE0:
        return (tag if tag < 0x80 else tag - 0x100), at
    if tag in _CONSTANTS:
        return _CONSTANTS[tag], at
    if tag in _NUMBERS:
        return struct.unpack_from(_NUMBERS[tag], data, at)[0], at + struct.calcsize(_NUMBERS[tag])
    if tag in _LENGTHS:
        kind, form = _LENGTHS[tag]
        length = struct.unpack_from(form, data, at)[0]
        at += struct.calcsize(form)
    elif tag < 0xC0:
        kind = "map" if tag < 0x90 else "array" if tag < 0xA0 else "str"
        length = tag & (0x1F if kind == "str" else 0x0F)
    else:
        raise ValueError(f"MessagePack tag {tag:#x} is not supported")
    if length > len(data) - at:  # each element takes a byte at least
        raise ValueError("MessagePack is truncated")
    if kind in ("str", "bin"):
        raw = data[at : at + length]
        return (raw.decode() if kind == "str" else raw), at + length
    items = []
    for _ in range(length * (2 if kind == "map" else 1)):
        item, at = _unpack(data, at, depth + 1)
        items.append(item)
    if kind == "array":
        return items, at
    if not all(isinstance(key, str) for key in items[::2]):
        raise ValueError("a key of a MessagePack map is not text")
    return dict(zip(items[::2], items[1::2])), at
