"""Decoding what zstd compressed, by the package zstandard, or by the standard library's module from Python 3.14 on.

Importing this raises ImportError where Python has neither.
"""

from __future__ import annotations

try:
    import zstandard
except ImportError:
    from compression import zstd  # type: ignore[import-not-found]  # Python has it from 3.14 on

    _HAS_PACKAGE = False
    Error: type[Exception] = zstd.ZstdError
else:
    _HAS_PACKAGE = True
    Error = zstandard.ZstdError


def decompress(frame: bytes, largest: int) -> bytes:
    """What a frame holds.

    Raises:
        Error: it is malformed.
        ValueError: it does not say how many bytes it holds, or more than `largest`, or another number than it has.
    """
    # Decoders allocate what the frame says, whatever else they are told.
    if _HAS_PACKAGE:
        size = zstandard.frame_content_size(frame)
    else:
        size = zstd.get_frame_info(frame).decompressed_size
    if size is None or not 0 < size <= largest:
        raise ValueError(f"a frame of {'unknown size' if size in (None, -1) else f'{size} bytes'} where {largest} fit")
    if _HAS_PACKAGE:
        return zstandard.ZstdDecompressor().decompress(frame)
    decoder = zstd.ZstdDecompressor()
    raw = decoder.decompress(frame, size + 1)
    if not decoder.eof or len(raw) != size:
        raise ValueError(f"a frame says {size} bytes and has {'fewer' if len(raw) < size else 'more'}")
    return raw
