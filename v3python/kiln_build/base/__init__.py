"""What any part of the build may use: files that appear whole, kept folders, tar, zstd, progress, tables, parser.

Imports nothing of Kiln but kiln_recipe, reads no environment variable, and needs the standard library, but for `zstd`
and, on a terminal, `progress`.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
"""The source tree of this very package: a checkout, a build's copy of one, or what kiln-build's wheel brings."""
