"""Reads what authors write: recipes, the kernels' sources that they name, tuned rules.

`document` reads YAML with the line of each value, `recipe` a whole file; `kernel`, `parameters`, `configurations`,
`rules`, `scope` have each a part of its grammar; `fingerprint` digests what a kernel's source means. Needs msgspec and
PyYAML. Nothing here runs what it reads, and nothing imports Triton.
"""
