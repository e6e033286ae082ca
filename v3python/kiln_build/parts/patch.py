"""Bytes patched from other bytes: zstd with these as its dictionary, of raw content."""

from __future__ import annotations

import re
from collections.abc import Iterable

import zstandard

from kiln_recipe.errors import ArtifactError

_LEVEL = 19
_LEAST_WINDOW, _MOST_WINDOW = 10, 27  # log2 of bytes: zstd's least; two sections of the largest size
LARGEST_DICTIONARY = 64 << 20  # bytes


def make(data: bytes, of: bytes) -> bytes:
    """A frame of `data`, which whoever has `of` can decode; b"" of nothing."""
    if not data:
        return b""
    window = min(max((len(data) + len(of)).bit_length(), _LEAST_WINDOW), _MOST_WINDOW)
    parameters = zstandard.ZstdCompressionParameters.from_level(
        _LEVEL, source_size=len(data), dict_size=len(of), window_log=window, write_content_size=True,
        write_checksum=False, threads=0,
    )  # fmt: skip
    return zstandard.ZstdCompressor(dict_data=_dictionary(of), compression_params=parameters).compress(data)


def apply(frame: bytes, of: bytes, size: int, what: str) -> bytes:
    """What `make` made the frame of.

    Args:
        size: bytes that it has to have.
        what: it is, in sentences.

    Raises:
        ArtifactError: it does not have so many, or is malformed.
    """
    if not size and not frame:
        return b""
    try:
        stated = zstandard.frame_content_size(frame)
        if stated != size:  # before anything is allocated for it
            raise ArtifactError(f"{what} says that it has {stated} bytes instead of {size}")
        decoder = zstandard.ZstdDecompressor(dict_data=_dictionary(of), max_window_size=1 << _MOST_WINDOW)
        data = decoder.decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise ArtifactError(f"{what} cannot be decoded ({error})") from error
    if len(data) != size:
        raise ArtifactError(f"{what} has {len(data)} bytes instead of {size}")
    return data


def like(path: str, others: Iterable[str]) -> str | None:
    """Which of other paths a file at `path` is patched from: the same one; else the first with the same name, and else
    the first that differs in numbers alone."""
    others = sorted(others)
    if path in others:
        return path
    for key in (lambda one: one.rpartition("/")[2], lambda one: re.sub("[0-9]+", "0", one)):
        if found := next((one for one in others if key(one) == key(path)), None):
            return found
    return None


def _dictionary(of: bytes) -> zstandard.ZstdCompressionDict | None:
    if not of:
        return None
    return zstandard.ZstdCompressionDict(of[-LARGEST_DICTIONARY:], dict_type=zstandard.DICT_TYPE_RAWCONTENT)
