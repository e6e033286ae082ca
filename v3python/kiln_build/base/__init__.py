"""What any part of the build may use: files that appear whole, kept folders, tar, zstd, progress, tables, parser.

Imports nothing of Kiln but kiln_recipe, reads no environment variable, and needs the standard library, but for `zstd`
and, on a terminal, `progress`.
"""
