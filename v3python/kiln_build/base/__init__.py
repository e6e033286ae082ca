"""What any part of the build may use: kept folders, tar, wheels, zstd, the table of verbs.

Imports nothing of Kiln but kiln_recipe, reads no environment variable, and needs the standard library, but for `zstd`,
and for deflate where something is compressed.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
"""The source tree of this very package: a checkout, a build's copy of one, or what kiln-build's wheel brings."""


def command() -> str:
    """What users call this Kiln by, in lines that tell them what to run: "./kiln" in a checkout, else "kiln"."""
    return "./kiln" if (ROOT / "kiln").is_file() else "kiln"
